"use strict";
// Draws the rows of a run over time, and tells which row holds at a moment. See over_time.py, which makes the charts
// and gives the rows. Nothing is computed here but places on the screen.

(() => {
  const { unpacked, rowThatHolds } = window.kvsimPacked;
  const { chosen, drawable, heights, shares } = window.kvsimDrawing;
  const { HINT, Panel, element } = window.kvsimMoment;

  // Pixels of the screen. One would show no more of a run that goes up and down within it, and takes twice as long.
  const COLUMN = 2;

  // Of a chart in pixels; 0 while it is not laid out, as in a tab that nobody has looked at yet.
  const widthOf = (figure) => (figure.properties.inner_width.is_unset ? 0 : figure.inner_width);

  // ---- one run's charts

  const LABELS = {
    memory: "Memory over time",
    slack: "Slack over time, in percent of what is allocated",
    requests: "Running and waiting requests over time",
    pressure: "Refusals and preemptions over time",
  };

  class OverTime {
    constructor(models) {
      this.models = models;
      this.rows = null; // {note, timeline, pressure}, when unpacked
      this.bytes = null; // of which the rows are, or will be
      this.whole = null; // the range of time that the rows take
      this.isWhole = true;
      this.isEveryRow = false; // of the part that is shown
      this.moment_ns = null; // pointed at, or null
      this.hidden = new Set();
      this.drawn = { levels: [], slack: [], counts: [], marks: [] };
      this.attached = new WeakSet();
      this.isWaiting = false; // for the charts to be on the page
    }

    // The rows, the range or the size are others than they were, or a reader points at something.
    changed(cause) {
      if (cause.event_name !== undefined) {
        if (this.rows) this.point(cause.origin, cause.x, cause.y);
        return;
      }
      const bytes = this.models.packed.get_column("packed");
      if (bytes !== this.bytes && bytes.length) this.load(bytes);
      else if (this.rows) this.draw();
    }

    async load(bytes) {
      this.bytes = bytes;
      const rows = await unpacked(bytes);
      if (this.bytes !== bytes) return; // others have come in the meantime
      const before_ns = this.unit_ns;
      this.rows = rows;
      this.unit_ns = rows.note.time.ns;
      const { timeline, pressure, note } = rows;
      [this.x, this.mark_x] = [timeline, pressure].map(({ columns }) => {
        const x = new Float64Array(columns.time_ns.length);
        for (let row = 0; row < x.length; row++) x[row] = Number(columns.time_ns[row]) / note.time.ns;
        return x;
      });
      this.fullest = 0;
      const { allocated_bytes } = timeline.columns;
      for (let row = 1; row < timeline.rows; row++) {
        if (allocated_bytes[row] > allocated_bytes[this.fullest]) this.fullest = row;
      }
      this.slack_share = shares(timeline.columns.slack_bytes, allocated_bytes);
      this.panel = null;
      this.showLevels();
      this.showWhole((before_ns ?? note.time.ns) / note.time.ns);
      for (const other of this.others()) other.showWhole(1);
      this.draw();
      for (const other of this.others()) other.draw();
      for (const other of this.others()) other.showMoment(); // may be this one's
    }

    // Those that a reader has not hidden. What is nowhere more than nothing is not drawn at all. An outline of many rows
    // covers what it is the outline of.
    showLevels() {
      const present = new Set(this.rows.note.levels.map((level) => level.name));
      for (const [key, model] of Object.entries(this.models)) {
        const [, name] = key.match(/^(?:toggled|share)_(.*)/) ?? [];
        if (!name) continue;
        const visible = present.has(name) && !this.hidden.has(name) && (name !== "allocated" || this.isEveryRow);
        model.setv({ visible }, { sync: false });
      }
    }

    // The axis goes on with the rows, unless a reader looks at a part of them. Units of time may have become longer,
    // and rows of another run may end before that part.
    showWhole(scale) {
      const { time } = this.models;
      const { ns } = this.rows.note.time;
      const end = Number(this.together().map((one) => one.last_ns()).reduce((a, b) => (b > a ? b : a))) / ns || 1 / ns;
      this.whole = { start: Math.min(0, this.x[0] ?? 0), end };
      const part = { start: time.start * scale, end: time.end * scale };
      const range = this.isWhole || part.end > end ? this.whole : part;
      const min_interval = Math.max(1e3 / ns, end * 1e-9);
      time.setv({ bounds: [this.whole.start, end], min_interval, ...range }, { sync: false });
    }

    // ---- drawing

    draw() {
      if (!this.attach()) {
        if (!this.isWaiting) requestAnimationFrame(() => ((this.isWaiting = false), this.draw()));
        this.isWaiting = true;
        return;
      }
      const { memory, time, drawn_levels, drawn_counts } = this.models;
      const { axis_bytes } = this.rows.note;
      const width = widthOf(memory);
      const { columns, rows } = this.rows.timeline;
      const { start, end } = time;
      const { whole } = this;
      // Both ends of a range are told of, when both are set already.
      const view = [this.bytes, start, end, width];
      if (!width || view.every((part, i) => part === this.view?.[i])) return;
      this.view = view;
      const hair = 1e-9 * (whole.end - whole.start);
      this.isWhole = start <= whole.start + hair && end >= whole.end - hair;
      const wide = (end - start) / Math.max(1, Math.round((width * devicePixelRatio) / COLUMN));
      const first = Math.max(0, rowThatHolds(this.x, start));
      const last = Math.min(rows - 1, rowThatHolds(this.x, end) + 1);
      this.isEveryRow = last - first < (4 * (end - start)) / wide;
      const choice = (...levels) => chosen(this.x, first, last, levels, start, this.isEveryRow ? 0 : wide);
      this.drawn.levels = choice(columns.allocated_bytes);
      this.drawn.slack = choice(this.slack_share);
      this.drawn.counts = choice(columns.running, columns.waiting);
      this.put(drawn_levels, this.drawn.levels, (name) => drawable(columns[name], this.drawn.levels, axis_bytes));
      this.put(drawn_counts, this.drawn.counts, (name) => drawable(columns[name], this.drawn.counts, 1));
      this.drawSlack();
      this.drawMarks(start, end, wide);
      this.showLevels();
      this.showMoment();
      for (const other of this.others()) other.follow(this);
    }

    // High shares that last for moments, as of the first tokens of a run, do not press down all else.
    drawSlack() {
      const { drawn_slack, slack, most_slack } = this.models;
      const rows = this.drawn.slack;
      const allocated = drawable(this.rows.timeline.columns.allocated_bytes, rows, 1);
      const share = (name) => shares(drawable(this.rows.timeline.columns[name], rows, 1), allocated);
      this.put(drawn_slack, rows, share);
      const { usual, most } = heights(this.x, this.slack_share, rows);
      const end = Math.max(0.1, Math.min(1.3 * usual, 1.05 * most));
      slack.y_range.setv({ start: 0, end }, { sync: false });
      most_slack.setv({ visible: most > end, text: `cut off here: up to ${most.toFixed(2)} %` }, { sync: false });
    }

    put(source, rows, valuesOf) {
      const data = {};
      for (const name of source.columns()) {
        data[name] = name === "time" ? drawable(this.x, rows, 1) : valuesOf(name);
        if (!rows.length) data[name] = [0]; // see over_time.py
      }
      // What is drawn is of no concern to a server.
      source.setv({ data }, { sync: false, check_eq: false });
    }

    // The first mark of each lane in each column.
    drawMarks(start, end, wide) {
      const { lanes, marks_at } = this.rows.note;
      const { lane } = this.rows.pressure.columns;
      const parts = new Array(lanes.length).fill(NaN);
      const marks = [];
      const last = rowThatHolds(this.mark_x, end);
      for (let mark = Math.max(0, rowThatHolds(this.mark_x, start)); mark <= last; mark++) {
        const part = Math.floor((this.mark_x[mark] - start) / wide);
        if (part !== parts[lane[mark]]) marks.push(mark);
        parts[lane[mark]] = part;
      }
      this.drawn.marks = marks;
      const data = {
        time: drawable(this.mark_x, marks, 1),
        y: marks.map((mark) => lane[mark] + marks_at),
        colour: marks.map((mark) => lanes[lane[mark]].colour),
      };
      this.models.drawn_marks.setv({ data }, { sync: false, check_eq: false });
    }

    // Make charts reachable by keyboard and build the panel, when they are on the page; false if they are not yet.
    attach() {
      const names = Object.keys(LABELS);
      const views = names.map((name) => Bokeh.index.find_one(this.models[name]));
      const readout = Bokeh.index.find_one(this.models.readout);
      if (views.some((view) => !view?.canvas_view) || !readout) return false;
      views.forEach((view, i) => {
        if (this.attached.has(view.el)) return;
        this.attached.add(view.el);
        const { name } = this.rows.note;
        view.el.tabIndex = 0;
        view.el.style.outlineOffset = "-3px"; // its ring covers no word of its neighbours
        view.el.setAttribute("role", "group");
        view.el.setAttribute("aria-label", `${LABELS[names[i]]}${name ? `, ${name}` : ""}. ${HINT}`);
        view.el.addEventListener("keydown", (event) => this.press(event, names[i]));
        nameTools(view);
        // A finger scrolls the page up and down; sideways it is the chart's.
        view.canvas_view.shadow_el.append(element("style", {}, ".bk-events { touch-action: pan-y !important; }"));
        window.kvsimTheme?.(this.models[names[i]].document);
      });
      this.panel ??= new Panel(
        this.rows,
        this.hidden,
        () => this.showLevels(),
        (wider) => this.zoom(wider),
      );
      if (this.panel.root.parentNode !== readout.shadow_el) {
        readout.shadow_el.querySelector(".kvsim-panel")?.remove();
        readout.shadow_el.append(this.panel.root);
      }
      return true;
    }

    // ---- the moment

    point(figure, x, y) {
      const { time, pressure } = this.models;
      const at = Math.min(Math.max(x, time.start), time.end);
      const mark = figure === pressure ? this.nearestMark(at, Math.floor(y)) : null;
      this.moment_ns =
        mark === null ? Math.floor(at * this.rows.note.time.ns) : this.rows.pressure.columns.time_ns[mark];
      this.tellMoment();
    }

    // Of a lane, within some pixels.
    nearestMark(x, lane) {
      const { time, pressure } = this.models;
      const near = (8 * (time.end - time.start)) / Math.max(1, widthOf(pressure));
      const lanes = this.rows.pressure.columns.lane;
      const isNear = (mark) => Math.abs(this.mark_x[mark] - x) <= near;
      let before = rowThatHolds(this.mark_x, x);
      let after = before + 1;
      while (isNear(before) && lanes[before] !== lane) before--;
      while (isNear(after) && lanes[after] !== lane) after++;
      const found = [before, after].filter(isNear);
      found.sort((one, other) => Math.abs(this.mark_x[one] - x) - Math.abs(this.mark_x[other] - x));
      return found[0] ?? null;
    }

    // Before a reader points anywhere, the first moment at which most is allocated; of runs that move together, of the
    // first of them.
    momentShown() {
      const { rows, fullest } = this.together()[0];
      return this.moment_ns ?? rows.timeline.columns.time_ns[fullest] ?? 0;
    }

    tellMoment() {
      this.showMoment();
      for (const other of this.others()) other.moment_ns = this.moment_ns;
      for (const other of this.others()) other.showMoment();
    }

    showMoment() {
      if (!this.panel) return; // not on the page yet
      const { note, timeline } = this.rows;
      const ns = this.momentShown();
      for (const line of [this.models.halo, this.models.moment]) {
        line.setv({ location: Number(ns) / note.time.ns, visible: timeline.rows > 0 }, { sync: false });
      }
      this.panel.show(ns);
    }

    // ---- several runs of a page

    // Those that have the same time and moment as this one, itself included.
    together() {
      return isTogether ? [...charts.values()].filter((one) => one.rows) : [this];
    }

    others() {
      return this.together().filter((one) => one !== this);
    }

    last_ns() {
      return this.rows.timeline.columns.time_ns.at(-1) ?? 0;
    }

    // Show the time that another shows.
    follow(leader) {
      const { time } = this.models;
      const scale = leader.unit_ns / this.unit_ns;
      const [start, end] = [leader.models.time.start * scale, leader.models.time.end * scale];
      const hair = 1e-9 * (end - start); // units differ, and do not go back and forth to the last digit
      if (Math.abs(time.start - start) > hair || Math.abs(time.end - end) > hair) time.setv({ start, end });
    }

    // ---- moving

    press(event, name) {
      if (!this.rows?.timeline.rows || event.ctrlKey || event.metaKey || event.altKey) return;
      const { time } = this.models;
      const tenth_ns = Math.round(((time.end - time.start) * this.rows.note.time.ns) / 10);
      const moves = {
        ArrowLeft: () => this.step(name, -1),
        ArrowRight: () => this.step(name, 1),
        PageUp: () => this.jump(-tenth_ns),
        PageDown: () => this.jump(tenth_ns),
        Home: () => this.go(this.rows.timeline.columns.time_ns[0]),
        End: () => this.go(this.rows.timeline.columns.time_ns.at(-1)),
        "+": () => this.zoom(0.5),
        "-": () => this.zoom(2),
        0: () => this.zoom(Infinity),
      };
      if (!(event.key in moves)) return;
      event.preventDefault();
      moves[event.key]();
    }

    // To the next row, or in the chart of refusals to the next of those.
    step(name, by) {
      const table = name === "pressure" && this.rows.pressure.rows ? "pressure" : "timeline";
      const times = this.rows[table].columns.time_ns;
      const now = this.momentShown();
      let to = rowThatHolds(times, now) + (by > 0 ? 1 : 0);
      if (by < 0) while (to >= 0 && times[to] >= (table === "timeline" ? this.rowTime(now) : now)) to--;
      if (by > 0 && to >= times.length) return; // another run goes on for longer
      this.go(times[Math.min(Math.max(to, 0), times.length - 1)]);
    }

    rowTime(ns) {
      const times = this.rows.timeline.columns.time_ns;
      return times[Math.max(0, rowThatHolds(times, ns))];
    }

    jump(by_ns) {
      const last_ns = Math.max(...this.together().map((one) => Number(one.last_ns())));
      this.go(Math.min(Math.max(Number(this.momentShown()) + by_ns, 0), last_ns));
    }

    go(moment_ns) {
      this.moment_ns = moment_ns;
      const { time } = this.models;
      const x = Number(moment_ns) / this.rows.note.time.ns;
      const by = x < time.start ? x - time.start : x > time.end ? x - time.end : 0;
      if (by) time.setv({ start: time.start + by, end: time.end + by });
      this.tellMoment();
    }

    // Around the moment if it can be seen, else around the middle.
    zoom(factor) {
      const { time } = this.models;
      const { start, end } = this.whole;
      const wide = Math.max((time.end - time.start) * factor, time.min_interval);
      if (wide >= end - start) return time.setv({ start, end });
      const x = Number(this.momentShown()) / this.rows.note.time.ns;
      const centre = x >= time.start && x <= time.end ? x : (time.start + time.end) / 2;
      const share = (centre - time.start) / (time.end - time.start);
      const from = Math.min(Math.max(centre - share * wide, start), end - wide);
      return time.setv({ start: from, end: from + wide });
    }
  }

  // ---- the page's charts

  const charts = new Map();
  let isTogether = false;

  // Tools of a chart are reached by keyboard: they are buttons, with the names that Bokeh shows of them.
  function nameTools(view) {
    const toolbar = view.toolbar_panel?.toolbar_view;
    if (!toolbar) return;
    for (const { el } of toolbar.tool_button_views) {
      el.setAttribute("role", "button");
      el.setAttribute("aria-label", el.title);
    }
    toolbar.overflow_el.setAttribute("role", "button");
    toolbar.overflow_el.setAttribute("aria-label", "More tools");
    toolbar.shadow_el.append(element("style", {}, "@media print { :host { visibility: hidden !important; } }"));
  }

  // What a callback of Bokeh's calls, with the models of one run's charts and what has changed of them.
  window.kvsimOverTime = (models, cause) => {
    const { id } = models.packed;
    if (charts.get(id)?.models.packed !== models.packed) charts.set(id, new OverTime(models));
    return charts.get(id).changed(cause);
  };

  const chart = (number = 0) => [...charts.values()][number];
  const inWords = ({ columns }, row) =>
    row < 0 ? null : Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, String(values[row])]));

  // For those who want a row from the page itself: as text, since numbers would not hold them all. `number` counts the
  // runs of a page from 0.
  window.kvsim = {
    isReady: (number) => Boolean(chart(number)?.panel),
    // Whether all runs of the page show the same time and moment, those of the first.
    moveTogether(together) {
      isTogether = together;
      const [first, ...others] = [...charts.values()].filter((one) => one.rows);
      if (!first) return;
      for (const one of [first, ...others]) one.showWhole(1);
      if (!together) return;
      for (const one of others) one.follow(first);
      first.tellMoment();
    },
    get isTogether() {
      return isTogether;
    },
    // At once, for a page that has come to be of another width.
    redraw: () => charts.forEach((one) => one.rows && one.draw()),
    // The row that holds at a time, given as text or a number; null before the first.
    rowAt(time_ns, number) {
      const { timeline } = chart(number).rows;
      const ns = typeof time_ns === "number" ? Math.floor(time_ns) : BigInt(time_ns);
      return inWords(timeline, rowThatHolds(timeline.columns.time_ns, ns));
    },
    // The row that the panel shows.
    rowShown: (number) => window.kvsim.rowAt(String(chart(number).momentShown()), number),
    // Numbers of the rows that are drawn: of levels, of requests, and of refusals and preemptions.
    drawn: (number) => chart(number).drawn,
    lastDrawn: (number) => inWords(chart(number).rows.timeline, chart(number).drawn.levels.at(-1) ?? -1),
  };
})();
