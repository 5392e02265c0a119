// The app's page: opens its Bokeh session, switches tabs, keeps the address, and binds plain inputs to channels.
// It computes nothing: what is touched is told to the server, and what the server says is put in its place as text.
"use strict";

(async () => {
  const WAIT_MS = 200; // until somebody who types is answered
  const ANSWER_MS = 500; // for the answer to a place of a slider

  const embed = JSON.parse(document.getElementById("embed").textContent);
  await Bokeh.embed.embed_items({}, embed, "/", null);
  const session = Bokeh.documents[0];
  const named = (name) => session.get_model_by_name(name);
  const heard = (model, property, act) => {
    const run = () => act(model[property]);
    model.properties[property].change.connect(run);
    run();
  };

  bindAddress(named("address"));
  for (const root of document.querySelectorAll("[data-channel]")) {
    bindChannel(root, named(root.dataset.channel));
  }
  kvsimTheme(session);
  for (const [event, isPrinting] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => kvsimTheme.layOutForPrint(isPrinting));
  }
  document.body.dataset.ready = "yes";

  function bindAddress(address) {
    heard(address, "query", (query) => history.replaceState(null, "", location.pathname + (query && `?${query}`)));
    const tabs = [...document.querySelectorAll("[role=tab]")];
    const open = (chosen) => {
      for (const tab of tabs) {
        tab.setAttribute("aria-selected", String(tab === chosen));
        tab.tabIndex = tab === chosen ? 0 : -1;
        document.getElementById(tab.getAttribute("aria-controls")).hidden = tab !== chosen;
      }
      address.tab = chosen.dataset.tab;
    };
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    for (const [place, tab] of tabs.entries()) {
      tab.addEventListener("click", () => open(tab));
      tab.addEventListener("keydown", (event) => {
        if (!(event.key in steps)) return;
        const next = tabs[(place + steps[event.key] + tabs.length) % tabs.length];
        open(next);
        next.focus();
      });
    }
    document.getElementById("copy-link").addEventListener("click", async () => {
      const said = document.getElementById("copied");
      try {
        await navigator.clipboard.writeText(location.href);
        const isWrong = document.querySelector("[role=tabpanel]:not([hidden]) [data-field][aria-invalid=true]");
        said.textContent = isWrong ? "Link copied, of the last values that can be used" : "Link copied";
      } catch {
        said.textContent = `Copy it from here: ${location.href}`;
      }
    });
  }

  function bindChannel(root, channel) {
    let count = 0;
    let timer = null;
    const say = (kind, name, value, file_name = "") => {
      clearTimeout(timer);
      count += 1; // the same touch twice is two touches
      channel.said = JSON.stringify({ count, kind, name, value, file_name });
    };

    for (const input of root.querySelectorAll("[data-field]")) {
      const name = input.dataset.field;
      input.addEventListener("change", () => say("set", name, input.value));
      if (input.type === "text") {
        input.addEventListener("input", () => {
          clearTimeout(timer);
          timer = setTimeout(() => say("typed", name, input.value), WAIT_MS);
        });
      }
      if ("pick" in input.dataset) showAllOnFocus(input);
    }
    // A slider passes through more places than can be answered: it says where it is when the last has been answered.
    let sliding = null;
    let awaited = null;
    const answered = () => {
      clearTimeout(awaited);
      awaited = null;
      const said = sliding;
      sliding = null;
      if (said) slide(...said);
    };
    const slide = (name, value) => {
      if (awaited !== null) {
        sliding = [name, value];
        return;
      }
      awaited = setTimeout(answered, ANSWER_MS); // what changes nothing has no answer
      say("slid", name, value);
    };
    for (const slider of root.querySelectorAll("[data-slider]")) {
      slider.addEventListener("input", () => slide(slider.dataset.slider, slider.value));
      slider.addEventListener("change", () => {
        const last = sliding;
        sliding = null;
        if (last) say("slid", ...last);
        say("let_go", slider.dataset.slider, "");
      });
    }
    for (const button of root.querySelectorAll("[data-press]")) {
      button.addEventListener("click", () => say("pressed", button.dataset.press, ""));
    }
    for (const zone of root.querySelectorAll("[data-drop]")) bindDrop(zone, say);
    for (const form of root.querySelectorAll("form")) form.addEventListener("submit", (event) => event.preventDefault());
    heard(channel, "shown", (shown) => {
      show(root, JSON.parse(shown));
      answered();
    });
  }

  // A list that offers only what the box holds already helps nobody: the box is empty while it is looked through.
  function showAllOnFocus(input) {
    input.addEventListener("focus", () => {
      input.placeholder = input.value;
      input.value = "";
    });
    input.addEventListener("blur", () => {
      input.value ||= input.placeholder;
    });
  }

  function bindDrop(zone, say) {
    const input = zone.querySelector("input[type=file]");
    const take = (file) => {
      if (!file) return;
      if (file.size > Number(zone.dataset.most)) {
        say("file", zone.dataset.drop, null, file.name);
        return;
      }
      const reader = new FileReader();
      reader.addEventListener("load", () => {
        say("file", zone.dataset.drop, reader.result.slice(reader.result.indexOf(",") + 1), file.name);
      });
      reader.readAsDataURL(file);
    };
    input.addEventListener("change", () => {
      take(input.files[0]);
      input.value = ""; // the same file again is a change again
    });
    const over = (isOver) => (event) => {
      event.preventDefault();
      zone.classList.toggle("over", isOver);
    };
    zone.addEventListener("dragover", over(true));
    zone.addEventListener("dragleave", over(false));
    zone.addEventListener("drop", (event) => {
      over(false)(event);
      take(event.dataTransfer.files[0]);
    });
  }

  function show(root, { fields, sliders, wrong, texts, widths, marks }) {
    for (const input of root.querySelectorAll("[data-field]")) {
      const { field } = input.dataset;
      input.setAttribute("aria-invalid", String(field in wrong));
      if (input.type === "radio") input.checked = input.value === fields[field];
      else if (input !== document.activeElement) input.value = fields[field];
    }
    for (const slider of root.querySelectorAll("[data-slider]")) {
      const { max, at, says } = sliders[slider.dataset.slider];
      slider.max = max;
      slider.setAttribute("aria-valuetext", says);
      if (slider !== document.activeElement || slider.value === slider.dataset.at) slider.value = at;
      slider.dataset.at = at;
    }
    for (const place of root.querySelectorAll("[data-wrong]")) put(place, wrong[place.dataset.wrong] ?? "");
    for (const place of root.querySelectorAll("[data-text]")) put(place, texts[place.dataset.text] ?? "");
    for (const place of root.querySelectorAll("[data-width]")) place.style.width = widths[place.dataset.width];
    for (const [mark, isOn] of Object.entries(marks)) root.classList.toggle(mark, isOn);
    for (const field of root.querySelectorAll("details [aria-invalid=true]")) field.closest("details").open = true;
  }

  // What stays is not touched, so that a screen reader says what has changed and nothing else.
  function put(place, text) {
    if (place.textContent !== text) place.textContent = text;
  }
})();
