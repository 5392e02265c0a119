"use strict";
// Gives charts the colours of the page: those of page.css, which are light, dark, or fit for print.

(() => {
  const VARIABLES = {
    Axis: {
      axis_label_text_color: "--text",
      major_label_text_color: "--text",
      axis_line_color: "--faint",
      major_tick_line_color: "--faint",
      minor_tick_line_color: "--line",
    },
    Grid: { grid_line_color: "--line" },
    Legend: {
      label_text_color: "--text",
      title_text_color: "--text",
      background_fill_color: "--card",
      border_line_color: "--line",
    },
    Title: { text_color: "--text" },
  };
  const documents = new Set();

  // A tag {theme: {property: variable}} says it for any other model. Tags come as maps or as plain objects.
  function tagged(model) {
    const themes = model.tags.map((tag) => (tag instanceof Map ? tag.get("theme") : tag?.theme)).filter(Boolean);
    return Object.assign({}, ...themes.map((theme) => (theme instanceof Map ? Object.fromEntries(theme) : theme)));
  }

  function colour(document_, style) {
    const models = new Set(document_.roots().flatMap((root) => [...root.references()]));
    for (const model of models) {
      const kinds = Object.keys(VARIABLES).filter((kind) => model.type.endsWith(kind));
      const wanted = Object.entries(Object.assign({}, ...kinds.map((kind) => VARIABLES[kind]), tagged(model)));
      // What is null is not drawn, and stays so.
      const drawn = wanted.filter(([name]) => name in model.properties && model[name] !== null);
      const values = drawn
        .map(([name, variable]) => [name, style.getPropertyValue(variable).trim()])
        .filter(([, value]) => value);
      // What a reader's page looks like is of no concern to a server.
      if (values.length) model.setv(Object.fromEntries(values), { sync: false });
    }
  }

  function colourAll() {
    const style = getComputedStyle(document.documentElement);
    for (const document_ of documents) colour(document_, style);
    paintAll();
  }

  // At once, since a printer does not wait for the next frame. Chromium prints what was drawn since a canvas was last
  // read, sharp at any size; but where that has cleared a canvas it prints white, and would hide the canvas below.
  function paintAll() {
    const reader = document.createElement("canvas").getContext("2d");
    for (const view of Bokeh.index.query((view) => view.canvas_view)) {
      view.invalidate_painters(); // all of them
      view.paint();
      const { canvas } = view.canvas_view.overlays;
      if (canvas.width && canvas.height) reader.drawImage(canvas, 0, 0);
    }
  }

  // A printer waits for nothing that is yet to come: charts are laid out as wide as paper, or as the page again, at once.
  function layOutForPrint(isPrinting) {
    document.documentElement.classList.toggle("for-print", isPrinting);
    for (const view of Bokeh.index.query((view) => view.is_layout_root)) view.compute_layout();
    window.kvsim?.redraw();
    paintAll();
  }

  // What Bokeh lays over each plot for its gestures is nothing to come to by keyboard: it has no name and no keys.
  function unstop() {
    for (const view of Bokeh.index.query((view) => view.canvas_view)) view.canvas_view.events_el.tabIndex = -1;
  }

  // The charts of a Bokeh document, now and whenever the page changes its colours. To be called again for new charts.
  window.kvsimTheme = (document_) => {
    if (!documents.size) {
      for (const query of ["(prefers-color-scheme: dark)", "print"]) {
        matchMedia(query).addEventListener("change", colourAll);
      }
    }
    if (!documents.has(document_)) document_.idle.connect(unstop); // when all of it is built
    documents.add(document_);
    unstop();
    colour(document_, getComputedStyle(document.documentElement));
  };
  window.kvsimTheme.layOutForPrint = layOutForPrint;
})();
