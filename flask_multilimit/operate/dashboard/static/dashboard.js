// Refreshes elements with data-live every two seconds, and writes times in the browser's zone. All pages work without it.
(() => {
  "use strict";
  const EVERY = 2000;
  const LONGEST = 30000;
  const language = document.documentElement.lang;
  const withDay = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "medium" });
  const ofToday = new Intl.DateTimeFormat(language, { timeStyle: "medium" });

  function writeTimes(root) {
    const today = new Date().toDateString();
    for (const element of root.querySelectorAll("time[datetime]")) {
      const at = new Date(element.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      element.title = element.textContent;
      element.textContent = (at.toDateString() === today ? ofToday : withDay).format(at);
    }
  }

  // Only texts and attributes that differ are written, so that nothing jumps, and the selection and the focus stay.
  function become(old, now) {
    for (const { name, value } of now.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (!now.hasAttribute(name)) old.removeAttribute(name);
    }
    const olds = [...old.childNodes];
    const news = [...now.childNodes];
    const alike = olds.length === news.length && olds.every((node, i) => node.nodeName === news[i].nodeName);
    if (!alike) {
      old.replaceChildren(...news);
      return;
    }
    olds.forEach((node, i) => {
      if (node.nodeType === Node.ELEMENT_NODE) become(node, news[i]);
      else if (node.data !== news[i].data) node.data = news[i].data;
    });
  }

  // The focus stays on the same client and action when rows and buttons move, so that Enter never does another thing.
  function keepFocus(element, change) {
    const held = element.contains(document.activeElement) ? document.activeElement : null;
    const label = (each) => each.getAttribute("aria-label") || (each.localName === "button" ? each.textContent : "");
    const name = (each) => [each.localName, each.getAttribute("href"), label(each)].join(" ");
    const known = held && name(held);
    change();
    if (!held || (held.isConnected && name(held) === known)) return;
    const same = [...element.querySelectorAll("a, button, [tabindex]")].find((each) => name(each) === known);
    const next = same || element.querySelector("[tabindex]");
    if (next) next.focus({ preventScroll: true });
    else held.blur();
  }

  writeTimes(document);
  const live = document.querySelectorAll("[data-live]");
  if (!live.length) return;

  const pause = document.getElementById("pause");
  const stale = document.getElementById("stale");
  let paused = false;
  let timer = 0;
  let failures = 0;
  let out = false;
  let asking = null;

  async function refresh() {
    asking = new AbortController();
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", redirect: "manual", signal: asking.signal });
      out = answer.type === "opaqueredirect" || answer.status === 401 || answer.status === 403;
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      writeTimes(page);
      for (const element of live) {
        const found = page.querySelector(`[data-live="${element.dataset.live}"]`);
        if (found) keepFocus(element, () => become(element, found));
      }
      failures = 0;
      stale.textContent = "";
    } catch (error) {
      if (error.name !== "AbortError") {
        failures += 1;
        stale.textContent = out ? stale.dataset.out : stale.dataset.waiting;
      }
    }
    asking = null;
    plan();
  }

  // A visitor who is logged out is asked for again only when the page is looked at again: each try counts as a guess.
  function plan() {
    clearTimeout(timer);
    if (paused || out || document.hidden) return;
    timer = setTimeout(refresh, Math.min(EVERY * 2 ** Math.min(failures, 10), LONGEST));
  }

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? pause.dataset.go : pause.dataset.pause;
    if (paused && asking) asking.abort();
    plan();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !paused && !asking) refresh();
    else plan();
  });
  plan();
})();
