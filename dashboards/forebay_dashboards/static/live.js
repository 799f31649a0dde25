// Keeps a page live: says what changed (htmx then fetches that part), counts running leases up, and shows times in the viewer's zone.
"use strict";
(() => {
  const RECONNECT_MS_MIN = 500;
  const RECONNECT_MS_MAX = 15000;
  const TICK_MS = 100;
  const RETRY_MS = 5000;
  const TOPICS = ["leases", "sessions", "devices", "usage", "prices", "tenants", "feed"];
  const HOUR_NS = 3600000000000n;
  const SYMBOLS = { USD: "$", EUR: "€", GBP: "£" };
  const body = document.body;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const texts = JSON.parse(body.dataset.texts ?? "{}");
  const language = document.documentElement.lang;
  // The page's language, as the reader's region writes it.
  const locale = navigator.languages.find((tag) => tag.split("-")[0] === language) ?? language;
  const clock = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "medium" });

  const say = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);

  const announce = (topic) => body.dispatchEvent(new Event(`live-${topic}`));

  function tellZone() {
    if (!zone || document.cookie.split("; ").includes(`forebay_zone=${zone}`)) return;
    document.cookie = `forebay_zone=${zone}; path=${body.dataset.zonePath}; max-age=31536000; samesite=lax`;
    announce("zone");
  }

  function localTimes(root) {
    for (const element of root.querySelectorAll("time[datetime]:not([title])")) {
      const moment = new Date(element.dateTime);
      element.title = element.dateTime;
      element.textContent = clock.format(moment);
    }
  }

  const pad = (number, width) => String(number).padStart(width, "0");

  function durationText(ns) {
    const tenths = ns / 100000000n;
    if (tenths < 600n) return say(texts.seconds, { seconds: `${tenths / 10n}.${tenths % 10n}` });
    const seconds = tenths / 10n;
    const minutes = (seconds / 60n) % 60n;
    const hours = seconds / 3600n;
    const rest = pad(seconds % 60n, 2);
    return hours ? say(texts.hours, { hours, minutes: pad(minutes, 2), seconds: rest }) : say(texts.minutes, { minutes, seconds: rest });
  }

  function amountText(nano, currency) {
    const millionths = (nano + 500n) / 1000n;
    const text = `${(millionths / 1000000n).toLocaleString("en")}.${pad(millionths % 1000000n, 6)}`;
    return SYMBOLS[currency] ? SYMBOLS[currency] + text : `${text} ${currency}`;
  }

  const begun = new WeakMap();

  function tick() {
    const now = performance.now();
    for (const element of document.querySelectorAll(".ticking")) {
      if (begun.get(element)?.ns !== element.dataset.ns) begun.set(element, { ns: element.dataset.ns, at: now });
      const ns = BigInt(element.dataset.ns) + BigInt(Math.round((now - begun.get(element).at) * 1000000));
      const price = element.dataset.price;
      element.textContent = price === undefined ? durationText(ns) : amountText((ns * BigInt(price)) / HOUR_NS, element.dataset.currency);
    }
  }

  function markFresh(root, known) {
    for (const row of root.querySelectorAll("[data-fresh] tbody tr")) {
      if (!known.has(row.id)) row.classList.add("fresh");
    }
  }

  function showState(state, text) {
    const element = document.getElementById("connection");
    if (!element || element.dataset.state === state) return;
    element.dataset.state = state;
    element.querySelector(".text").textContent = text;
  }

  let pause = RECONNECT_MS_MIN;
  let interrupted = false;

  function listen() {
    const source = new EventSource(body.dataset.events);
    source.addEventListener("open", () => {
      pause = RECONNECT_MS_MIN;
      showState("live", texts.live);
      if (interrupted) TOPICS.forEach(announce);
      interrupted = false;
    });
    for (const topic of TOPICS) source.addEventListener(topic, () => announce(topic));
    source.addEventListener("error", (event) => {
      if (event.data !== undefined) return;
      interrupted = true;
      showState("lost", texts.lost);
      source.close();
      setTimeout(listen, pause);
      pause = Math.min(pause * 2, RECONNECT_MS_MAX);
    });
  }

  // What removes something says what, and is left undone unless the visitor means it. Before htmx hears of it. Without scripts the server asks.
  document.addEventListener(
    "click",
    (event) => {
      const button = event.target.closest?.("button[data-ask]");
      if (!button) return;
      if (!window.confirm(button.form.elements.question.value)) {
        event.preventDefault();
        event.stopImmediatePropagation();
      } else if (!button.form.elements.asked) {
        button.form.append(Object.assign(document.createElement("input"), { type: "hidden", name: "asked", value: "1" }));
      }
    },
    true,
  );

  body.addEventListener("click", (event) => {
    const told = event.target.closest("[data-copy]")?.parentElement.querySelector("input");
    if (!told) return;
    told.select();
    navigator.clipboard?.writeText(told.value);
  });

  let rowsBefore = new Set();
  let edited = null;
  let opening = 0;
  // A list that is read anew must not take away a form in it, nor the row that a form is on its way to.
  const keeps = (list) => list.hasAttribute("data-keep-while-editing") && (opening > 0 || list.querySelector("[data-editing]") !== null);
  const opened = new WeakSet(document.querySelectorAll("[data-editing]"));
  body.addEventListener("htmx:beforeRequest", (event) => {
    const element = event.detail.elt;
    const row = element.closest("[data-editing]");
    if (row) edited = row.dataset.editing;
    if (keeps(element)) event.preventDefault();
    else if (element.hasAttribute("data-edits")) opening += 1;
  });
  body.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.requestConfig.elt.hasAttribute("data-edits")) opening -= 1;
  });
  body.addEventListener("htmx:beforeSwap", (event) => {
    if (keeps(event.detail.target)) {
      event.detail.shouldSwap = false;
      return;
    }
    rowsBefore = new Set([...event.detail.target.querySelectorAll("[data-fresh] tbody tr")].map((row) => row.id));
  });
  body.addEventListener("htmx:afterSwap", (event) => {
    const root = event.detail.target.isConnected ? event.detail.target : document;
    localTimes(document);
    tick();
    if (rowsBefore.size) markFresh(root, rowsBefore);
    const editor = [...document.querySelectorAll("[data-editing]")].find((one) => !opened.has(one));
    const first = editor && (editor.querySelector("[aria-invalid]") ?? editor.querySelector("input:not([type=hidden])"));
    if (editor) opened.add(editor);
    if (edited !== null && document.activeElement === body) {
      (document.querySelector(`[data-edits="${CSS.escape(edited)}"]`) ?? document.getElementById("saved"))?.focus();
    }
    if (first) first.focus();
  });

  localTimes(document);
  tick();
  setInterval(tick, TICK_MS);
  setInterval(() => document.querySelector("[data-retry]") && TOPICS.forEach(announce), RETRY_MS);
  if (body.dataset.events) {
    listen();
    // htmx attaches its listeners on DOMContentLoaded, which is after deferred scripts have run.
    document.addEventListener("DOMContentLoaded", tellZone);
  }
})();
