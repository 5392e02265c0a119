// The tab of scenarios: tells Python what was touched, and puts into the page what Python shows. It computes nothing.
"use strict";
{
  const begin = (page) => {
    const QUIET_MS = 250; // without a key, until what was typed is checked
    const at = (id) => document.getElementById(`scenario-${id}`);
    // What stays is not touched, so that a screen reader says what has changed and nothing else.
    const put = (place, text) => {
      if (place.textContent !== text) place.textContent = text;
    };
    const pending = new Map();
    let count = 0;
    let timer = 0;
    let text = "";
    let files = "";
    let problem = null;

    const say = (message) => {
      count += 1;
      page.said = JSON.stringify({ ...message, count });
    };
    const flush = () => {
      clearTimeout(timer);
      for (const message of pending.values()) say(message);
      pending.clear();
    };
    const later = (name, message) => {
      pending.set(name, message);
      clearTimeout(timer);
      timer = setTimeout(flush, QUIET_MS);
    };
    const now = (message) => {
      flush();
      say(message);
    };

    const fields = at("fields");
    fields.addEventListener("input", (event) => {
      const { key } = event.target.dataset;
      later(key, { kind: "field", key, value: event.target.value });
    });
    fields.addEventListener("change", flush);
    fields.addEventListener("submit", (event) => event.preventDefault());
    fields.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target.dataset.key !== undefined) {
        event.preventDefault(); // a value has one line
        flush();
      }
    });
    at("text").addEventListener("input", (event) => later("", { kind: "text", value: event.target.value }));
    at("text").addEventListener("change", flush);
    // What lies in the folder may be another since: it is looked at anew by whoever is about to choose.
    for (const coming of ["focus", "pointerenter"]) {
      at("file").addEventListener(coming, () => now({ kind: "files" }));
    }
    at("file").addEventListener("change", (event) => now({ kind: "file", value: event.target.value }));
    at("run").addEventListener("click", () => now({ kind: "run" }));
    at("stop").addEventListener("click", () => now({ kind: "stop" }));
    for (const mode of ["fields", "text"]) {
      at(`mode-${mode}`).addEventListener("change", () => now({ kind: "mode", value: mode }));
    }
    // Whoever leaves waits for nothing any more.
    window.addEventListener("pagehide", () => now({ kind: "stop" }));
    at("save").addEventListener("click", (event) => {
      flush();
      const url = URL.createObjectURL(new Blob([at("whole").hidden ? text : at("text").value], { type: "text/plain" }));
      event.currentTarget.href = url;
      setTimeout(() => URL.revokeObjectURL(url), 10000);
    });

    const toLine = (line) => {
      const lines = at("text").value.split("\n");
      const start = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
      at("text").focus();
      at("text").setSelectionRange(start, start + (lines[line - 1] ?? "").length);
    };
    at("to-problem").addEventListener("click", () => {
      at("edit").open = true;
      if (problem.to === "text" && problem.line !== null) toLine(problem.line);
      else at(problem.to).focus();
    });
    const listed = (problem) => {
      const item = document.createElement("li");
      if (problem.line === null) {
        item.textContent = problem.sentence;
      } else {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = `line ${problem.line}: ${problem.sentence}`;
        button.addEventListener("click", () => toLine(problem.line));
        item.append(button);
      }
      return item;
    };
    const showProblems = ({ beside, loose, all }) => {
      for (const place of fields.querySelectorAll("[id$=-problem]")) {
        put(place, (beside[place.id.replace(/^scenario-|-problem$/g, "")] ?? []).join("\n"));
      }
      for (const box of fields.querySelectorAll("[data-key]")) {
        box.setAttribute("aria-invalid", String(at(`${box.id.replace("scenario-", "")}-problem`).textContent !== ""));
      }
      at("loose").replaceChildren(...loose.map((sentence) => listed({ sentence, line: null })));
      at("text-problems").replaceChildren(...all.map(listed));
      at("text").setAttribute("aria-invalid", String(all.length > 0));
    };
    // By folder, so that a letter leads to a file in it. A list that stays the same stays open.
    const showFiles = (folders) => {
      if (files === JSON.stringify(folders)) return;
      files = JSON.stringify(folders);
      const groups = folders.map(([folder, names]) => {
        const options = names.map(([value, label]) => new Option(label, value));
        if (folder === "") return options;
        const group = document.createElement("optgroup");
        group.label = folder;
        group.append(...options);
        return [group];
      });
      at("file").replaceChildren(...groups.flat());
    };
    const showDraft = () => {
      const draft = JSON.parse(page.draft);
      text = draft.text;
      showFiles(draft.files);
      at("file").value = draft.file;
      at("file").title = draft.file;
      at("printed").textContent = text;
      for (const mode of ["fields", "text"]) at(`mode-${mode}`).checked = draft.mode === mode;
      fields.hidden = draft.mode !== "fields";
      at("whole").hidden = draft.mode !== "text";
      at("long").hidden = draft.fits_address;
      at("save").download = draft.name;
      at("command").textContent = draft.command;
      at("where").textContent = draft.is_in_file ? "in the folder of this app" : "where the text has been saved";
      showProblems(draft.problems);
    };
    const showForm = () => {
      fields.innerHTML = page.form; // made by a template that escapes all that is not its own
      at("text").value = text;
      showProblems(JSON.parse(page.draft).problems);
    };
    const showRun = () => {
      const run = JSON.parse(page.run);
      at("run").disabled = !run.can_run;
      at("stop").disabled = !run.can_stop;
      at("progress").hidden = !run.can_stop;
      at("progress").removeAttribute("value");
      if (run.num_requests !== null) {
        at("progress").max = run.num_requests;
        at("progress").value = run.num_ended;
      }
      put(at("status"), run.status);
      problem = run.problem;
      put(at("problem"), problem?.sentence ?? "");
      at("to-problem").hidden = problem === null;
      put(at("earlier"), run.earlier);
      at("earlier").parentElement.classList.toggle("earlier", run.earlier !== "");
      at("charts").hidden = !run.has_charts;
    };
    const showResults = () => {
      at("results").innerHTML = page.results; // likewise
    };

    const showFault = () => put(at("fault"), page.fault);

    const { draft, form, run, results, fault } = page.properties;
    const shown = [[draft, showDraft], [form, showForm], [run, showRun], [results, showResults], [fault, showFault]];
    for (const [property, show] of shown) {
      page.connect(property.change, show);
      show();
    }
  };

  // The model through which both talk is there as soon as the page's session is.
  const join = () => {
    const documents = window.Bokeh?.documents ?? [];
    const page = documents.map((each) => each.get_model_by_name("scenario-page")).find((model) => model);
    if (page) begin(page);
    else setTimeout(join, 50);
  };
  join();
}
