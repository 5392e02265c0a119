"use strict";
// The report: charts take the colours of the page, runs move together if their readers want it, and for print charts are
// laid out as wide as paper and what is folded away is unfolded.

(() => {
  // Bokeh puts a document into its place some time after the page has been read.
  const waiting = setInterval(() => {
    const documents = window.Bokeh?.documents ?? [];
    if (!documents.length) return;
    clearInterval(waiting);
    documents.forEach(window.kvsimTheme);
  }, 20);

  addEventListener("DOMContentLoaded", () => {
    const boxes = [...document.querySelectorAll(".together input")];
    for (const box of boxes) {
      box.addEventListener("change", () => {
        for (const other of boxes) other.checked = box.checked;
        window.kvsim.moveTogether(box.checked);
        window.kvsimBlockMaps?.[0].lead();
      });
    }
    window.kvsim.moveTogether(boxes.some((box) => box.checked));
  });

  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open])")];
    for (const details of unfolded) details.open = true;
    kvsimTheme.layOutForPrint(true);
  });
  addEventListener("afterprint", () => {
    for (const details of unfolded) details.open = false;
    kvsimTheme.layOutForPrint(false);
  });
})();
