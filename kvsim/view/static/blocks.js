"use strict";
// Called with `host` (the part of the page that block_chart.py has made) and `source` (the runs of its maps) when the
// page stands, and whenever the runs change. Numbers are formatted as the rest of the page does: 12,345.

const LARGEST = 34; // CSS pixels of a cell
const HIGHEST = { wide: 580, narrow: 620 }; // CSS pixels of all rows, about
const ORDER = ["owner", "shared", "slack", "reserved", "unused", "cached", "blank"];
const number = new Intl.NumberFormat("en-US");

class Blocks {
  constructor(root) {
    this.root = root;
    (window.kvsimBlockMaps ??= []).push(this); // of the page
    for (const name of ["moment", "totals", "cells", "cursor", "readout", "notes", "legend"]) {
      this[name] = root.querySelector("." + name);
    }
    this.canvas = root.querySelector("canvas");
    this.slider = root.querySelector("input");
    this.cell = null;
    this.time = null; // of the moment that the reader has chosen
    this.slider.addEventListener("input", () => {
      this.time = this.page.moments[this.slider.value].time;
      this.draw();
      this.lead();
    });
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    for (const media of ["(prefers-color-scheme: dark)", "print"]) {
      matchMedia(media).addEventListener("change", () => this.page && this.draw());
    }
    // A page may lay itself out for print before these are called.
    for (const printing of ["beforeprint", "afterprint"]) {
      addEventListener(printing, () => this.page && this.draw());
    }
    new ResizeObserver(() => this.page && root.clientWidth !== this.width && this.draw()).observe(root);
  }

  // Other maps, with what the page says of them.
  show(data) {
    const text = data.page[0];
    this.root.hidden = text === null;
    this.page = text === null ? null : JSON.parse(text);
    if (this.page === null) return;
    const { moments, legend, notes, chosen } = this.page;
    this.kind = data.kind[0];
    this.num_blocks = data.num_blocks[0];
    this.written = data.written[0];
    this.first_run = [0];
    for (const runs of data.runs_of[0]) this.first_run.push(this.first_run.at(-1) + runs);
    for (const item of this.legend.children) item.hidden = !legend.includes(item.dataset.look);
    this.notes_said = notes;
    this.moment.hidden = moments.length < 2;
    this.slider.max = moments.length - 1;
    const kept = moments.findIndex((moment) => moment.time === this.time);
    this.slider.value = kept < 0 ? chosen : kept;
    const leader = window.kvsimBlockMaps.find((one) => one.page);
    if (kept < 0 && window.kvsim?.isTogether && leader !== this) this.follow(leader);
    else this.draw();
  }

  // Where the runs of a page move together, the maps of the others go to their moment nearest to this one's.
  lead() {
    if (!window.kvsim?.isTogether) return;
    for (const one of window.kvsimBlockMaps) if (one !== this && one.page) one.follow(this);
  }

  follow(leader) {
    const { moments } = this.page;
    const time = BigInt(leader.page.moments[leader.slider.value].time);
    const after = (moment) => BigInt(moment.time) - time;
    const far = (moment) => (after(moment) < 0n ? -after(moment) : after(moment));
    this.slider.value = moments.reduce((best, moment, i) => (far(moment) < far(moments[best]) ? i : best), 0);
    this.time = moments[this.slider.value].time;
    this.draw();
  }

  draw() {
    if (!this.root.clientWidth) return; // not to be seen yet
    const index = Number(this.slider.value);
    const { name, totals } = this.page.moments[index];
    const place = this.page.moments.length > 1 ? ` (moment ${index + 1} of ${this.page.moments.length})` : "";
    this.totals.textContent = `${name[0].toUpperCase()}${name.slice(1)}${place}: ${totals}.`;
    this.slider.setAttribute("aria-valuetext", `${name}: ${totals}`);
    this.cut(index);
    this.measure();
    this.paint();
    this.notes.textContent = [
      ...this.notes_said,
      this.columns < this.num_cells ? `A row is ${number.format(this.columns * this.together)} blocks.` : "",
    ].join(" ");
    if (this.cell !== null) this.go(Math.min(this.cell, this.num_cells - 1));
  }

  // Where the runs of a moment begin, in blocks.
  cut(index) {
    this.first = this.first_run[index];
    this.begins = [0];
    for (let run = this.first; run < this.first_run[index + 1]; run++) {
      this.begins.push(this.begins.at(-1) + this.num_blocks[run]);
    }
    this.total = this.begins.at(-1);
    this.together = this.page.blocks_per_cell;
    this.num_cells = Math.ceil(this.total / this.together);
  }

  // As many cells in a row as leave them large, in pixels of the screen; rows of a round number of cells.
  measure() {
    this.width = this.root.clientWidth;
    this.ratio = window.devicePixelRatio || 1;
    const highest = this.width < 600 ? HIGHEST.narrow : HIGHEST.wide;
    const wide = Math.floor(this.width * this.ratio);
    const fitting = Math.floor(Math.sqrt((wide * highest * this.ratio) / this.num_cells));
    this.pitch = Math.max(2, Math.min(fitting, Math.round(LARGEST * this.ratio)));
    this.gap = this.pitch < 5 ? 0 : Math.max(1, Math.round(this.pitch / 14));
    const columns = Math.max(1, Math.floor((wide - this.gap) / this.pitch));
    this.columns = Math.min(this.num_cells, columns >= 20 ? columns - (columns % 10) : columns);
    this.rows = Math.ceil(this.num_cells / this.columns);
    this.canvas.width = this.columns * this.pitch + this.gap;
    this.canvas.height = this.rows * this.pitch + this.gap;
    this.canvas.style.width = this.canvas.width / this.ratio + "px";
  }

  paint() {
    const context = this.canvas.getContext("2d");
    const style = getComputedStyle(this.root);
    const css = (name) => style.getPropertyValue(name).trim();
    const looks = { ...this.page.colours, blank: css("--page"), shared: this.hatch(context) };
    const line = css("--line");
    const edge = css("--text");
    const { pitch, gap, columns } = this;
    const size = pitch - gap;
    let run = 0;
    let before = null;
    for (let cell = 0; cell < this.num_cells; cell++) {
      const x = (cell % columns) * pitch;
      const y = Math.floor(cell / columns) * pitch;
      if (gap) {
        context.fillStyle = line;
        context.fillRect(x, y, pitch + gap, pitch + gap);
      }
      while (this.begins[run + 1] <= cell * this.together) run++;
      const parts = this.parts(cell, run);
      const kind = parts[0].kind;
      if (gap && this.together === 1 && before !== null && kind !== before && cell % columns && this.is_held(kind)) {
        context.fillStyle = edge; // where the blocks of another begin
        context.fillRect(x, y, gap, pitch);
      }
      before = kind;
      this.fill(context, looks, x + gap, y + gap, size, parts);
    }
  }

  is_held(kind) {
    return this.page.kinds[kind].look === "owner" || this.page.kinds[kind].look === "shared";
  }

  // A cell in proportion to what it consists of, column after column of its pixels; slack can be seen however little.
  fill(context, looks, x, y, size, parts) {
    const slots = this.page.block_size * parts.reduce((sum, part) => sum + part.blocks, 0);
    const shown = [];
    let slack = 0;
    for (const part of parts) {
      const { look, owner } = this.page.kinds[part.kind];
      const colour = look === "owner" ? looks.owners[owner] : looks[look];
      const held = this.is_held(part.kind);
      const taken = held ? part.written : part.blocks * this.page.block_size;
      if (taken) shown.push({ look, colour, taken });
      if (held) slack += part.blocks * this.page.block_size - part.written;
    }
    if (slack) shown.push({ look: "slack", colour: looks.slack, taken: slack });
    if (shown.length > 1) shown.sort((a, b) => ORDER.indexOf(a.look) - ORDER.indexOf(b.look));
    const pixels = size * size;
    const least = this.together === 1 && pixels > 1 ? 1 : 0;
    let done = 0;
    let from = 0;
    for (const { look, colour, taken } of shown) {
      done += taken;
      let to = Math.round((done / slots) * pixels);
      if (look !== "slack" && slack && done + slack === slots) to = Math.min(to, pixels - least);
      if (size >= 8 && this.together === 1) to = this.whole_columns(to, size, done < slots);
      context.fillStyle = colour;
      column_by_column(context, x, y, size, from, to);
      from = to;
    }
  }

  // In large cells parts end with a column, and leave one to what follows.
  whole_columns(to, size, more) {
    const columns = Math.round(to / size);
    return size * Math.max(1, Math.min(columns, more ? size - 1 : size));
  }

  // The kinds of a cell, with their blocks and written tokens; `run` is the run that it begins in.
  parts(cell, run) {
    const end = Math.min((cell + 1) * this.together, this.total);
    const parts = [];
    for (let at = cell * this.together; at < end; run++) {
      const stop = Math.min(end, this.begins[run + 1]);
      const kind = this.kind[this.first + run];
      const written = this.written_before(run, stop) - this.written_before(run, at);
      const same = parts.find((part) => part.kind === kind);
      if (same) {
        same.blocks += stop - at;
        same.written += written;
      } else {
        parts.push({ kind, blocks: stop - at, written });
      }
      at = stop;
    }
    return parts;
  }

  // Tokens of a run in its blocks before one: all but its last are full.
  written_before(run, block) {
    return Math.min(this.written[this.first + run], (block - this.begins[run]) * this.page.block_size);
  }

  hatch(context) {
    const tile = document.createElement("canvas");
    const step = (tile.width = tile.height = Math.max(4, Math.round(5 * this.ratio)));
    const brush = tile.getContext("2d");
    brush.fillStyle = this.page.colours.shared;
    brush.fillRect(0, 0, step, step);
    brush.strokeStyle = "#ffffff";
    brush.lineWidth = Math.max(1, step / 4.5);
    for (const shift of [-step, 0, step]) {
      brush.moveTo(shift, step);
      brush.lineTo(shift + step, 0);
    }
    brush.stroke();
    return context.createPattern(tile, "repeat");
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const scale = this.canvas.width / box.width / this.pitch;
    const column = Math.min(this.columns - 1, Math.floor((event.clientX - box.left) * scale));
    const cell = Math.floor((event.clientY - box.top) * scale) * this.columns + column;
    if (cell >= 0 && cell < this.num_cells) this.go(cell);
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    const ends = { Home: 0, End: this.num_cells - 1 };
    if (!(event.key in steps) && !(event.key in ends)) return;
    event.preventDefault();
    const to = event.key in ends ? ends[event.key] : this.cell === null ? 0 : this.cell + steps[event.key];
    if (to >= 0 && to < this.num_cells) this.go(to);
  }

  // Say what a cell is, and mark it.
  go(cell) {
    this.cell = cell;
    this.readout.textContent = this.said(cell);
    const unit = this.canvas.getBoundingClientRect().width / this.canvas.width;
    const size = Math.max(3, (this.pitch - this.gap) * unit) + "px";
    Object.assign(this.cursor.style, {
      left: ((cell % this.columns) * this.pitch + this.gap) * unit + "px",
      top: (Math.floor(cell / this.columns) * this.pitch + this.gap) * unit + "px",
      width: size,
      height: size,
    });
    this.cursor.hidden = false;
  }

  said(cell) {
    const first = cell * this.together;
    let run = 0;
    while (this.begins[run + 1] <= first) run++;
    const parts = this.parts(cell, run);
    const last = Math.min(first + this.together, this.total);
    const of = ` of ${number.format(this.total)}`;
    if (last === first + 1) return `Block ${number.format(last)}${of}: ${this.said_of(parts[0])}.`;
    const named = parts.slice(0, 4).map((part) => `${number.format(part.blocks)} ${this.said_of(part)}`);
    if (parts.length > 4) named.push(`and ${number.format(parts.length - 4)} more`);
    return `Blocks ${number.format(first + 1)} to ${number.format(last)}${of}: ${named.join("; ")}.`;
  }

  said_of({ kind, blocks, written }) {
    const { state, text, slot_bytes } = this.page.kinds[kind];
    if (state === "cached" || state === "blank") return text;
    const slots = blocks * this.page.block_size;
    const empty = slots - written;
    const bytes = number.format(empty * slot_bytes);
    const left = empty ? `${number.format(empty)} ${empty === 1 ? "slot" : "slots"} (${bytes} B) empty` : "no slot empty";
    return `${text}, ${number.format(written)} of ${number.format(slots)} tokens written, ${left}`;
  }
}

// Fill pixels `from ... to - 1` of a square, counted down its columns.
function column_by_column(context, x, y, size, from, to) {
  while (from < to) {
    const column = Math.floor(from / size);
    const top = from % size;
    const whole = top === 0 ? Math.floor((to - from) / size) : 0;
    const height = whole ? size : Math.min(size - top, to - from);
    context.fillRect(x + column, y + top, whole || 1, height);
    from += whole ? whole * size : height;
  }
}

const view = Bokeh.index.find_one(host);
const root = view && view.shadow_el.querySelector(".kvsim-blocks");
if (root) {
  if (!root.blocks) root.blocks = new Blocks(root);
  root.blocks.show(source.data);
}
