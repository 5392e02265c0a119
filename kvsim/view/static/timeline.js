"use strict";
// Draws the rows of a run over time, and tells which row holds at a moment. See over_time.py, which makes the charts and
// gives the rows, and packing.py, which says how they are packed. Nothing is computed here but places on the screen,
// shares of the pool and blocks; whole numbers stay exact.

(() => {
  // ---- unpacking

  const SIGNED = { 1: Int8Array, 2: Int16Array, 4: Int32Array, 8: BigInt64Array };

  async function inflated(bytes) {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // Planes of bytes, the lowest first, as the signed integers that they were (of the machine's order, which is little-endian
  // in every browser).
  function joined(planes, width) {
    const bytes = new Uint8Array(planes.length);
    const count = planes.length / width;
    for (let plane = 0; plane < width; plane++) {
      for (let i = 0, at = plane; i < count; i++, at += width) bytes[at] = planes[plane * count + i];
    }
    return new SIGNED[width](bytes.buffer);
  }

  // Numbers where they are exact, else BigInts.
  function column(packed, rows, planes) {
    const first = BigInt(packed.first);
    const values = packed.exact ? new Float64Array(rows) : new BigInt64Array(rows);
    if (!planes) return values.fill(packed.exact ? Number(first) : first);
    const steps = joined(planes, packed.width);
    if (packed.exact) {
      let value = Number(first);
      values[0] = value;
      for (let i = 1; i < rows; i++) values[i] = value += Number(steps[i - 1]);
    } else {
      let value = first;
      values[0] = value;
      for (let i = 1; i < rows; i++) values[i] = value = BigInt.asIntN(64, value + BigInt(steps[i - 1]));
    }
    return values;
  }

  async function unpacked(array) {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.length); // Bokeh's own arrays have no parts
    const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    const tables = {};
    let at = 4 + length;
    for (const [name, table] of Object.entries(header.tables)) {
      const columns = {};
      for (const [key, packed] of Object.entries(table.columns)) {
        // Each waits for its bytes, so a page is not held up by all of them.
        const planes = packed.bytes ? await inflated(bytes.subarray(at, at + packed.bytes)) : null;
        at += packed.bytes ?? 0;
        columns[key] = "same" in packed ? columns[packed.same] : column(packed, table.rows, planes);
      }
      tables[name] = { rows: table.rows, columns };
    }
    return { note: header.note, ...tables };
  }

  // ---- rows

  // The last row of which `values`, in order, are `value` or less; -1 before the first. Exact also between Number and BigInt.
  function rowThatHolds(values, value) {
    let low = 0;
    let high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= value) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  // Rows `first ... last`; if they are many, of each part of `x`, from `start` on and `wide`, the first and the last row, and
  // of each level the first with the most and the first with the least.
  function chosen(x, first, last, levels, start, wide) {
    const rows = [];
    if (wide <= 0 || last - first < 2) {
      for (let row = first; row <= last; row++) rows.push(row);
      return rows;
    }
    const reach = new Int32Array(2 * levels.length);
    let part = NaN;
    let begun = first;
    function close(end) {
      const taken = new Set([begun, ...reach, end]);
      rows.push(...[...taken].sort((one, other) => one - other));
    }
    for (let row = first; row <= last; row++) {
      const now = Math.floor((x[row] - start) / wide);
      if (now !== part) {
        if (row > first) close(row - 1);
        part = now;
        begun = row;
        reach.fill(row);
        continue;
      }
      for (let i = 0; i < levels.length; i++) {
        const level = levels[i];
        if (level[row] > level[reach[2 * i]]) reach[2 * i] = row;
        if (level[row] < level[reach[2 * i + 1]]) reach[2 * i + 1] = row;
      }
    }
    close(last);
    return rows;
  }

  // ---- words

  const grouped = (value) => value.toLocaleString("en-US");

  function readableBytes(value, units) {
    const [unit, size] = units.find(([, size]) => value >= size) ?? ["B", 1];
    return size === 1 ? `${grouped(value)} B` : `${(Number(value) / size).toFixed(2)} ${unit}`;
  }

  // As many decimals as milliseconds need.
  function readableTime(value, { unit, ns }) {
    return `${(Number(value) / ns).toFixed(Math.max(0, Math.ceil(Math.log10(ns / 1e6))))} ${unit}`;
  }

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // ---- one run's charts

  const HINT =
    "Point at a chart, or move to it with the tab key and then by rows with ← →, by a tenth with page up and page down, " +
    "to the ends with home and end. Drag, Ctrl + wheel, or + − 0 to zoom.";
  const LABELS = {
    memory: "Memory over time",
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
      this.moment_ns = null; // pointed at, or null
      this.hidden = new Set();
      this.drawn = { levels: [], counts: [], marks: [] };
      this.attached = new WeakSet();
      this.isWaiting = false;
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
      this.rows = rows;
      const { timeline, pressure, note } = rows;
      this.x = Float64Array.from(timeline.columns.time_ns, (ns) => Number(ns) / note.time.ns);
      this.mark_x = Float64Array.from(pressure.columns.time_ns, (ns) => Number(ns) / note.time.ns);
      this.panel = null;
      this.showWhole();
      this.draw();
    }

    // The axis goes on with the rows, unless a reader looks at a part of them.
    showWhole() {
      const { ns } = this.rows.note.time;
      const end = this.x.at(-1) || 1 / ns;
      this.whole = { start: Math.min(0, this.x[0] ?? 0), end };
      const range = this.isWhole ? this.whole : {};
      const bounds = [this.whole.start, end];
      const min_interval = Math.max(1e3 / ns, end * 1e-9);
      this.models.time.setv({ bounds, min_interval, ...range }, { sync: false });
    }

    // ---- drawing

    draw() {
      if (!this.attach()) {
        if (!this.isWaiting) requestAnimationFrame(() => ((this.isWaiting = false), this.draw()));
        this.isWaiting = true;
        return;
      }
      const { memory, time, drawn_levels, drawn_counts } = this.models;
      const { columns, rows } = this.rows.timeline;
      const { start, end } = time;
      const { whole } = this;
      this.isWhole = start <= whole.start && end >= whole.end;
      const wide = (end - start) / Math.max(1, Math.round(memory.inner_width * devicePixelRatio));
      const first = Math.max(0, rowThatHolds(this.x, start));
      const last = Math.min(rows - 1, rowThatHolds(this.x, end) + 1);
      const choice = (names) => {
        const isFew = last - first < (4 * (end - start)) / wide;
        return chosen(this.x, first, last, names.map((name) => columns[name]), start, isFew ? 0 : wide);
      };
      this.drawn.levels = choice(["allocated_bytes"]);
      this.drawn.counts = choice(["running", "waiting"]);
      this.put(drawn_levels, this.drawn.levels, this.rows.note.axis_bytes);
      this.put(drawn_counts, this.drawn.counts, 1);
      this.drawMarks(start, end, wide);
      this.showMoment();
    }

    put(source, rows, size) {
      const { columns } = this.rows.timeline;
      const data = { time: Float64Array.from(rows, (row) => this.x[row]) };
      for (const name of source.columns()) {
        if (name !== "time") data[name] = Float64Array.from(rows, (row) => Number(columns[name][row]) / size);
        if (!rows.length) data[name] = [0]; // see over_time.py
      }
      // What is drawn is of no concern to a server.
      source.setv({ data }, { sync: false, check_eq: false });
    }

    // The first mark of each lane in each column of pixels.
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
        time: Float64Array.from(marks, (mark) => this.mark_x[mark]),
        y: Float64Array.from(marks, (mark) => lane[mark] + marks_at),
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
        view.el.setAttribute("role", "group");
        view.el.setAttribute("aria-label", `${LABELS[names[i]]}${name ? `, ${name}` : ""}. ${HINT}`);
        view.el.addEventListener("keydown", (event) => this.press(event, names[i]));
        // A finger scrolls the page up and down; sideways it is the chart's.
        view.canvas_view.shadow_el.append(element("style", {}, ".bk-events { touch-action: pan-y !important; }"));
        window.kvsimTheme?.(this.models[names[i]].document);
      });
      this.panel ??= this.newPanel();
      if (this.panel.root.parentNode !== readout.shadow_el) {
        readout.shadow_el.querySelector(".kvsim-panel")?.remove();
        readout.shadow_el.append(this.panel.root);
      }
      return true;
    }

    // ---- the panel

    newPanel() {
      const { note, timeline, pressure } = this.rows;
      const zoom = element("span", { role: "group", "aria-label": "Zoom in time", class: "zoom" });
      for (const [text, label, act] of [
        ["+", "zoom in", () => this.zoom(0.5)],
        ["−", "zoom out", () => this.zoom(2)],
        ["all", "show all of the time", () => this.zoom(Infinity)],
      ]) {
        const button = element("button", { type: "button", "aria-label": label, title: label }, text);
        button.addEventListener("click", act);
        zoom.append(button);
      }
      const moment = element("p", { class: "moment", "aria-live": "polite", "aria-atomic": "true" });
      const marks = element("ul", { class: "marks", "aria-live": "polite" });
      const beside = element("p", { class: "beside" });
      const levels = element("div", { class: "levels", role: "group", "aria-label": "Show or hide" });
      const values = new Map(note.levels.map((level) => [level.name, this.newLevel(level, levels)]));
      const hint = [HINT];
      for (const [held, all, what] of [
        [timeline.rows, note.num_rows, "instants"],
        [pressure.rows, note.num_marks, "refusals and preemptions"],
      ]) {
        if (held < all) hint.unshift(`${grouped(held)} of ${grouped(all)} ${what} are held.`);
      }
      const bar = element("div", { class: "bar" }, zoom, moment);
      const label = `Values at a moment${note.name ? `, ${note.name}` : ""}`;
      const root = element("section", { class: "kvsim-panel", "aria-label": label });
      root.append(bar, levels, beside, marks, element("p", { class: "hint" }, hint.join(" ")));
      return { root, moment, marks, beside, values };
    }

    newLevel(level, levels) {
      const box = element("input", { type: "checkbox" });
      box.checked = !this.hidden.has(level.name);
      const show = () => {
        this.hidden[box.checked ? "delete" : "add"](level.name);
        this.models[`toggled_${level.name}`].setv({ visible: box.checked }, { sync: false });
      };
      box.addEventListener("change", show);
      show();
      const swatch = element("i", { class: level.is_line ? "line" : "area", "data-name": level.name });
      if (level.colour) swatch.style.setProperty("--swatch", level.colour);
      const readable = element("b");
      const exact = element("small");
      levels.append(element("label", { "data-level": level.name }, box, swatch, `${level.label} `, readable, exact));
      return { readable, exact };
    }

    // ---- the moment

    point(figure, x, y) {
      const { time, pressure } = this.models;
      const at = Math.min(Math.max(x, time.start), time.end);
      const mark = figure === pressure ? this.nearestMark(at, Math.floor(y)) : null;
      this.moment_ns =
        mark === null ? Math.floor(at * this.rows.note.time.ns) : this.rows.pressure.columns.time_ns[mark];
      this.showMoment();
    }

    // Of a lane, within some pixels.
    nearestMark(x, lane) {
      const { time, pressure } = this.models;
      const near = (8 * (time.end - time.start)) / Math.max(1, pressure.inner_width);
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

    // Before a reader points anywhere, the first moment at which most is allocated.
    momentShown() {
      const { time_ns, allocated_bytes } = this.rows.timeline.columns;
      if (this.moment_ns !== null || !time_ns.length) return this.moment_ns ?? 0;
      let fullest = 0;
      for (let row = 1; row < allocated_bytes.length; row++) {
        if (allocated_bytes[row] > allocated_bytes[fullest]) fullest = row;
      }
      return time_ns[fullest];
    }

    showMoment() {
      const { note, timeline } = this.rows;
      const ns = this.momentShown();
      const row = rowThatHolds(timeline.columns.time_ns, ns);
      this.models.moment.setv({ location: Number(ns) / note.time.ns, visible: timeline.rows > 0 }, { sync: false });
      const { moment, marks, beside, values } = this.panel;
      if (row < 0) {
        moment.textContent = timeline.rows ? `${readableTime(ns, note.time)}: before the first instant` : "no instants yet";
        for (const { readable, exact } of values.values()) readable.textContent = exact.textContent = "";
        beside.textContent = "";
        marks.replaceChildren();
        return;
      }
      const value = (name) => timeline.columns[name][row];
      const happened = note.events.filter((event) => value(event)).map((event) => `${grouped(value(event))} ${event}`);
      moment.replaceChildren(
        element("b", {}, readableTime(value("time_ns"), note.time)),
        ` = ${grouped(value("time_ns"))} ns: ${grouped(value("running"))} running, ${grouped(value("waiting"))} waiting`,
        happened.length ? `; ${happened.join(", ")}` : "",
      );
      for (const level of note.levels) this.showLevel(level, value(level.column), value("pool_bytes"), values.get(level.name));
      const bytes = (name) => this.bytesInWords(value(`${name}_bytes`));
      beside.textContent = note.beside.map((name) => `${name.replace("_", " ")} ${bytes(name)}`).join(" · ");
      marks.replaceChildren(...this.marksOf(row));
    }

    showLevel(level, value, pool, { readable, exact }) {
      if (level.column === level.name) {
        readable.textContent = grouped(value);
        exact.textContent = "requests";
        return;
      }
      const words = [`${grouped(value)} B`];
      if (level.name !== "pool") words.push(`${((100 * Number(value)) / Number(pool)).toFixed(2)} % of the pool`);
      if (level.has_blocks) words.push(`${grouped(BigInt(value) / BigInt(this.rows.note.block_bytes))} blocks`);
      readable.textContent = readableBytes(value, this.rows.note.byte_units);
      exact.textContent = words.join(" · ");
    }

    bytesInWords(value) {
      return `${readableBytes(value, this.rows.note.byte_units)} (${grouped(value)} B)`;
    }

    // What memory refused while a row held.
    marksOf(row) {
      const { note, timeline, pressure } = this.rows;
      const times = timeline.columns.time_ns;
      const last = row + 1 < times.length ? this.marksBefore(times[row + 1]) : pressure.rows;
      const first = this.marksBefore(times[row]);
      const items = [];
      for (let mark = first; mark < Math.min(last, first + 5); mark++) {
        const of = (name) => grouped(pressure.columns[name][mark]);
        const { event, cause } = note.lanes[pressure.columns.lane[mark]];
        const words =
          `request ${pressure.columns.request_id[mark]} ${event}: ${cause}` +
          (event === "refused" ? ` (${of("steps")} steps)` : "") +
          `; need ${of("need_blocks")} blocks, blank ${of("blank_blocks")}, evictable ${of("evictable_blocks")}, ` +
          `missing ${of("missing_blocks")}; slack ${this.bytesInWords(pressure.columns.slack_bytes[mark])}`;
        items.push(element("li", {}, words));
      }
      if (last - first > 5) items.push(element("li", {}, `and ${grouped(last - first - 5)} more`));
      return items;
    }

    marksBefore(ns) {
      const times = this.rows.pressure.columns.time_ns;
      let mark = rowThatHolds(times, ns);
      while (mark >= 0 && times[mark] >= ns) mark--;
      return mark + 1;
    }

    // ---- moving

    press(event, name) {
      if (!this.rows?.timeline.rows || event.ctrlKey || event.metaKey || event.altKey) return;
      const tenth = (this.models.time.end - this.models.time.start) / 10;
      const moves = {
        ArrowLeft: () => this.step(name, -1),
        ArrowRight: () => this.step(name, 1),
        PageUp: () => this.jump(-tenth),
        PageDown: () => this.jump(tenth),
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
      this.go(times[Math.min(Math.max(to, 0), times.length - 1)]);
    }

    rowTime(ns) {
      const times = this.rows.timeline.columns.time_ns;
      return times[Math.max(0, rowThatHolds(times, ns))];
    }

    jump(by) {
      const { ns } = this.rows.note.time;
      const at = Number(this.momentShown()) / ns + by;
      this.go(Math.floor(Math.min(Math.max(at, this.whole.start), this.whole.end) * ns));
    }

    go(moment_ns) {
      this.moment_ns = moment_ns;
      const { time } = this.models;
      const x = Number(moment_ns) / this.rows.note.time.ns;
      const by = x < time.start ? x - time.start : x > time.end ? x - time.end : 0;
      if (by) time.setv({ start: time.start + by, end: time.end + by });
      this.showMoment();
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

  // What a callback of Bokeh's calls, with the models of one run's charts and what has changed of them.
  window.kvsimOverTime = (models, cause) => {
    const { id } = models.packed;
    if (!charts.has(id)) charts.set(id, new OverTime(models));
    return charts.get(id).changed(cause);
  };

  const chart = (number = 0) => [...charts.values()][number];
  const inWords = ({ columns }, row) =>
    row < 0 ? null : Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, String(values[row])]));

  // For those who want a row from the page itself: as text, since numbers would not hold them all. `number` counts a page's runs.
  window.kvsim = {
    isReady: (number) => Boolean(chart(number)?.panel),
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
