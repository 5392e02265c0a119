"use strict";
// The panel beside the charts over time: what holds at the moment that a reader points at, exactly, and what is drawn.
// Whatever comes from a run is put in as text, never as markup.

(() => {
  const { rowThatHolds } = window.kvsimPacked;
  const { percentOf } = window.kvsimDrawing;

  const grouped = (value) => value.toLocaleString("en-US");

  function readableBytes(value, units) {
    const [unit, size] = units.find(([, size]) => value >= size) ?? ["B", 1];
    return size === 1 ? `${grouped(value)} B` : `${(Number(value) / size).toFixed(2)} ${unit}`;
  }

  // A moment as people read it: "20.80 s", "4 min 12.3 s"; as units.format_moment has it.
  function readableTime(value) {
    const ns = Number(value);
    if (ns < 1e6) return ns ? `${(ns / 1e3).toFixed(2)} us` : "0 s";
    if (ns < 1e9) return `${(ns / 1e6).toFixed(2)} ms`;
    if (ns < 6e10 - 5e6) return `${(ns / 1e9).toFixed(2)} s`;
    const tenths = Math.round(ns / 1e8);
    const seconds = `${((tenths % 600) / 10).toFixed(1)} s`;
    const minutes = Math.floor(tenths / 600);
    return minutes < 60 ? `${minutes} min ${seconds}` : `${grouped(Math.floor(minutes / 60))} h ${minutes % 60} min ${seconds}`;
  }

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  const HINT =
    "Point at a chart, or move to it with the tab key and then by rows with ← →, by a tenth with page up and page down, " +
    "to the ends with home and end. Drag, Ctrl + wheel, or + − 0 to zoom. Shares are of the pool, where nothing else is said.";

  // Of `rows`, as they were unpacked. `hidden` has the names of levels that are not drawn; `toggled` is called when it
  // has changed, and `zoom` with how much wider the time shown is to be.
  class Panel {
    constructor(rows, hidden, toggled, zoom) {
      this.rows = rows;
      this.moment = element("p", { class: "moment", "aria-live": "polite", "aria-atomic": "true" });
      this.marks = element("ul", { class: "marks", "aria-live": "polite", "aria-label": "Refusals and preemptions" });
      const { note } = rows;
      const levels = element("div", { class: "levels", role: "group", "aria-label": "Show or hide" });
      this.values = new Map(note.levels.map((level) => [level.name, this.addLevel(level, levels, hidden, toggled)]));
      for (const level of note.beside) this.values.set(level.name, this.addBeside(level, levels));
      this.marks.hidden = !note.lanes.length;
      this.root = element(
        "section",
        { class: "kvsim-panel", "aria-label": `Values at a moment${note.name ? `, ${note.name}` : ""}` },
        element("div", { class: "bar" }, this.zoomButtons(zoom), this.moment),
        levels,
        this.marks,
        element("p", { class: "beside" }, this.heldInWords()),
        element("p", { class: "hint" }, HINT),
      );
    }

    zoomButtons(zoom) {
      const group = element("span", { role: "group", "aria-label": "Zoom in time", class: "zoom" });
      for (const [text, label, wider] of [
        ["+", "zoom in", 0.5],
        ["−", "zoom out", 2],
        ["all", "show all of the time", Infinity],
      ]) {
        const button = element("button", { type: "button", "aria-label": label, title: label }, text);
        button.addEventListener("click", () => zoom(wider));
        group.append(button);
      }
      return group;
    }

    addLevel(level, levels, hidden, toggled) {
      const box = element("input", { type: "checkbox" });
      box.checked = !hidden.has(level.name);
      box.addEventListener("change", () => {
        hidden[box.checked ? "delete" : "add"](level.name);
        toggled();
      });
      const swatch = element("i", { class: level.is_line ? "line" : "area", "data-name": level.name });
      if (level.colour) swatch.style.setProperty("--swatch", level.colour);
      return this.addValues(level, levels, element("label", { "data-level": level.name }, box, swatch, level.label));
    }

    // What is read off and not drawn.
    addBeside(level, levels) {
      return this.addValues(level, levels, element("div", { "data-level": level.name }, level.label));
    }

    addValues(level, levels, item) {
      const [readable, share, exact, blocks] = ["b", "small", "small", "small"].map((tag) => element(tag));
      item.append(element("span", {}, readable, " ", level.of === "pool" ? share : ""), exact);
      if (level.has_blocks) item.append(blocks);
      if (level.of !== "pool") item.append(share);
      levels.append(item);
      return { readable, share, exact, blocks };
    }

    // What is not held, where a run has more than a page can hold.
    heldInWords() {
      const { note, timeline, pressure } = this.rows;
      return [
        [timeline.rows, note.num_rows, "instants"],
        [pressure.rows, note.num_marks, "refusals and preemptions"],
      ]
        .filter(([held, all]) => held < all)
        .map(([held, all, what]) => `${grouped(held)} of ${grouped(all)} ${what} are held.`)
        .join(" ");
    }

    // The row that holds at a time.
    show(ns) {
      const { note, timeline } = this.rows;
      const row = rowThatHolds(timeline.columns.time_ns, ns);
      if (row < 0) return this.showNothing(ns);
      const value = (name) => timeline.columns[name][row];
      const happened = note.events.filter(value).map((event) => `${grouped(value(event))} ${event}`);
      this.moment.replaceChildren(
        element("span", {}, element("b", {}, readableTime(value("time_ns"))), ` = ${grouped(value("time_ns"))} ns: `),
        `${grouped(value("running"))} running, ${grouped(value("waiting"))} waiting`,
        happened.length ? `; ${happened.join(", ")}` : "",
      );
      for (const level of [...note.levels, ...note.beside]) this.showLevel(level, value(level.column), value);
      this.marks.replaceChildren(...this.marksOf(row));
      // To be scrolled by keyboard, where it needs to be.
      if (this.marks.scrollHeight > this.marks.clientHeight) this.marks.tabIndex = 0;
      else this.marks.removeAttribute("tabindex");
    }

    showNothing(ns) {
      const { note, timeline } = this.rows;
      const when = `${readableTime(ns)}: before the first instant`;
      this.moment.textContent = timeline.rows ? when : "no instants yet";
      for (const texts of this.values.values()) Object.values(texts).forEach((text) => (text.textContent = ""));
      this.marks.replaceChildren();
    }

    // `valueOf` gives any column of the row.
    showLevel(level, value, valueOf) {
      const { readable, share, exact, blocks } = this.values.get(level.name);
      if (level.column === level.name) {
        readable.textContent = grouped(value);
        exact.textContent = "requests";
        return;
      }
      const { byte_units, block_bytes } = this.rows.note;
      readable.textContent = readableBytes(value, byte_units);
      const whole = valueOf(`${level.of}_bytes`);
      const percent = whole ? `${percentOf(value, whole).toFixed(2)} %` : "";
      share.textContent = level.name === "pool" ? "" : level.of === "pool" ? percent : percent && `${percent} of ${level.of}`;
      exact.textContent = `${grouped(value)} B`;
      blocks.textContent = `${grouped(BigInt(value) / BigInt(block_bytes))} blocks`;
    }

    bytesInWords(value) {
      return `${readableBytes(value, this.rows.note.byte_units)} (${grouped(value)} B)`;
    }

    // What memory refused while a row held. A refusal that began before and goes on is the last that did.
    marksOf(row) {
      const { note, timeline, pressure } = this.rows;
      const { time_ns, refused } = timeline.columns;
      const first = this.marksBefore(time_ns[row]);
      const last = row + 1 < time_ns.length ? this.marksBefore(time_ns[row + 1]) : pressure.rows;
      const isRefused = (mark) => note.lanes[pressure.columns.lane[mark]].event === "refused";
      const marks = Array.from({ length: last - first }, (_, i) => first + i);
      if (refused[row] && !marks.some(isRefused)) {
        let mark = first - 1;
        while (mark >= 0 && !isRefused(mark)) mark--;
        if (mark >= 0) marks.unshift(mark);
      }
      const items = marks.slice(0, 5).map((mark) => element("li", {}, this.markInWords(mark)));
      if (marks.length > 5) items.push(element("li", {}, `and ${grouped(marks.length - 5)} more`));
      return items;
    }

    markInWords(mark) {
      const { note, pressure } = this.rows;
      const of = (name) => grouped(pressure.columns[name][mark]);
      const { event, cause } = note.lanes[pressure.columns.lane[mark]];
      const since = readableTime(pressure.columns.time_ns[mark]);
      const when = event === "refused" ? `for ${of("steps")} steps from ${since}, when it` : `at ${since}, when it`;
      return (
        `request ${pressure.columns.request_id[mark]} ${event}: ${cause}, ${when} needed ${of("need_blocks")} blocks; ` +
        `blank ${of("blank_blocks")}, evictable ${of("evictable_blocks")}, missing ${of("missing_blocks")}; ` +
        `slack ${this.bytesInWords(pressure.columns.slack_bytes[mark])}`
      );
    }

    marksBefore(ns) {
      const times = this.rows.pressure.columns.time_ns;
      let mark = rowThatHolds(times, ns);
      while (mark >= 0 && times[mark] >= ns) mark--;
      return mark + 1;
    }
  }

  window.kvsimMoment = { HINT, Panel, element, readableTime };
})();
