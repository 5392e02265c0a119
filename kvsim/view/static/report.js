"use strict";
// The report: charts take the colours of the page, and what is folded away is unfolded for print.

(() => {
  // Bokeh puts a document into its place some time after the page has been read.
  const waiting = setInterval(() => {
    const documents = window.Bokeh?.documents ?? [];
    if (!documents.length) return;
    clearInterval(waiting);
    documents.forEach(window.kvsimTheme);
  }, 20);

  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open])")];
    for (const details of unfolded) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of unfolded) details.open = false;
  });
})();
