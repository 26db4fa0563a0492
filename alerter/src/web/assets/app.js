// What pages do beyond links and forms: they renew themselves, say how old they are, and take keys.
// Nothing here is needed to read a page or to press a button.
"use strict";

(() => {
  const RENEW_MS = 5000;
  // Two renewals that failed, and one on its way.
  const STALE_MS = 17000;
  let renewed = Date.now();
  let chosen = -1;

  const typing = () => {
    const at = document.activeElement;
    return Boolean(at && at.closest("input:not([type=checkbox]), textarea, select"));
  };
  // What somebody is filling in must not be replaced under their hands.
  const busy = () =>
    typing() || Boolean(document.querySelector("#live input[type=checkbox]:checked, dialog[open], form.edited"));

  const clock = (ms) => new Date(ms).toTimeString().slice(0, 8);

  function showAge(reason) {
    const state = document.getElementById("age");
    if (!state || document.getElementById("live")?.dataset.renews !== "yes") return;
    const stale = Date.now() - renewed > STALE_MS;
    state.className = stale ? "stale" : "live";
    state.textContent = stale ? `stale since ${clock(renewed)}` : busy() ? `paused at ${clock(renewed)}` : "live";
    if (reason) state.title = reason;
  }

  function renew() {
    const live = document.getElementById("live");
    if (!live || document.hidden || live.dataset.renews !== "yes") return;
    if (busy()) {
      // It is not stale because of us: the server was not asked.
      showAge();
      return;
    }
    live.dispatchEvent(new CustomEvent("renew"));
    showAge();
  }

  // Somebody may have begun to fill something in while the answer was on its way.
  document.addEventListener("htmx:before:swap", (event) => {
    if (event.target.id === "live" && busy()) event.preventDefault();
  });
  document.addEventListener("htmx:after:swap", (event) => {
    // What failed was swapped nowhere.
    if (event.detail?.ctx?.response?.status >= 400) return;
    renewed = Date.now();
    choose(chosen);
    showAge();
  });
  for (const failed of ["htmx:error", "htmx:response:error"]) {
    document.addEventListener(failed, (event) => {
      const status = event.detail?.ctx?.response?.raw?.status ?? event.detail?.ctx?.response?.status;
      // The session has ended: the login leads back here.
      if (status === 401) location.reload();
      showAge(status ? `the alerter answered ${status}` : "the alerter did not answer");
    });
  }
  // What happens to an incident or a node is shown at once. The timer below shows the rest, and all of
  // it where the stream is refused.
  const SOON_MS = 300;
  let events = null;
  let soon = 0;

  function follow() {
    if (document.hidden) {
      // A browser has six connections to a server, for all tabs together.
      events?.close();
      events = null;
      return;
    }
    if (events || document.getElementById("live")?.dataset.renews !== "yes") return;
    events = new EventSource("/api/v1/events");
    const wake = () => {
      soon ||= setTimeout(() => {
        soon = 0;
        renew();
      }, SOON_MS);
    };
    for (const kind of ["incident", "node", "reset"]) events.addEventListener(kind, wake);
  }

  document.addEventListener("visibilitychange", () => {
    follow();
    renew();
  });
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form");
    if (form && !event.target.matches("[type=checkbox]")) form.classList.add("edited");
  });
  document.addEventListener("reset", (event) => event.target.classList.remove("edited"));
  setInterval(renew, RENEW_MS);

  // A picture that the alerter does not have leaves no hole.
  function settle(image) {
    image.closest("figure").hidden = image.naturalWidth === 0;
  }
  for (const image of document.querySelectorAll("img.chart")) {
    if (image.complete) settle(image);
    image.addEventListener("load", () => settle(image));
    image.addEventListener("error", () => settle(image));
  }

  const items = () => [...document.querySelectorAll("[data-item]")];

  function choose(at) {
    const all = items();
    for (const item of all) item.classList.remove("chosen");
    if (at < 0 || all.length === 0) return;
    chosen = Math.min(at, all.length - 1);
    all[chosen].classList.add("chosen");
    all[chosen].scrollIntoView({ block: "nearest" });
  }

  function press(key) {
    const within = items()[chosen] || document;
    const button = within.querySelector(`[data-key="${key}"]`) || document.querySelector(`main [data-key="${key}"]`);
    if (!button || button.disabled) return false;
    if (button.matches("input, textarea")) button.focus();
    else button.click();
    return true;
  }

  function open() {
    const link = items()[chosen]?.querySelector("a");
    if (link) link.click();
    return Boolean(link);
  }

  const keys = {
    j: () => (choose(chosen + 1), true),
    k: () => (choose(Math.max(chosen - 1, 0)), true),
    Enter: open,
    "/": () => press("/"),
    "?": () => (document.getElementById("keys")?.showModal(), true),
    a: () => press("a"),
    e: () => press("e"),
    s: () => press("s"),
    n: () => press("n"),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing()) return;
    if (event.key === "Enter" && document.activeElement.matches("a, button, summary")) return;
    const done = keys[event.key]?.();
    if (done) event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
  });

  const all = document.getElementById("pick-all");
  if (all) {
    all.hidden = false;
    all.addEventListener("change", () => {
      for (const box of document.querySelectorAll("input[name=id]")) box.checked = all.checked;
    });
  }
  showAge();
  follow();
})();
