// Keeps a page of a long table, or another part of a page, live: asks for it again after a change, never twice at a time, and no oftener than its server wants.
"use strict";
(() => {
  const PACE_MS = 500;
  const TYPING_MS = 250;
  const body = document.body;

  // A time that is shown in the viewer's zone stays as it is, so that nothing under a selection changes.
  Idiomorph.defaults.callbacks.beforeNodeMorphed = (old, fresh) => old.localName !== "time" || old.dateTime !== fresh.dateTime;

  class LivePart {
    constructor(element) {
      this.element = element;
      this.path = element.dataset.page;
      this.part = `${this.path}/${element.dataset.part}`;
      this.query = location.search.slice(1);
      this.pace = PACE_MS;
      this.turn = 0;
      this.busy = false;
      this.resting = null;
      this.stale = false;
      for (const topic of [...element.dataset.live.split(" "), "feed"]) body.addEventListener(`live-${topic}`, () => this.changed());
      document.addEventListener("visibilitychange", () => this.proceed());
      element.addEventListener("click", (event) => this.follow(event));
      element.addEventListener("htmx:afterRequest", (event) => this.heed(event.detail.xhr));
    }

    changed() {
      this.stale = true;
      this.proceed();
    }

    proceed() {
      if (this.stale && !this.busy && this.resting === null && !document.hidden) this.fetch();
    }

    show(query) {
      this.query = query;
      if (this.busy) htmx.trigger(this.element, "htmx:abort");
      this.fetch();
    }

    async fetch() {
      const turn = ++this.turn;
      this.busy = true;
      this.stale = false;
      clearTimeout(this.resting);
      this.resting = null;
      const address = this.part + (this.query ? `?${this.query}` : "");
      await htmx.ajax("GET", address, { source: this.element, target: this.element, swap: "morph:innerHTML" }).catch(() => {});
      if (turn !== this.turn) return;
      this.busy = false;
      this.resting = setTimeout(() => {
        this.resting = null;
        this.proceed();
      }, this.pace);
    }

    heed(xhr) {
      this.pace = Math.max(PACE_MS, Number(xhr.getResponseHeader("X-Pace-Milliseconds")) || PACE_MS);
      const state = this.element.querySelector("[data-query]");
      if (!state || xhr.status !== 200) return;
      this.query = state.dataset.query;
      const address = this.path + (this.query ? `?${this.query}` : "");
      if (location.pathname + location.search !== address) history.replaceState(null, "", address);
    }

    follow(event) {
      const link = event.target.closest("a[data-table-link]");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
      event.preventDefault();
      this.show(new URL(link.href).search.slice(1));
    }

    search(words) {
      const asked = new URLSearchParams(this.query);
      asked.delete("page");
      asked.set("q", words);
      this.show(asked.toString());
    }
  }

  const dialog = document.querySelector("dialog#dialog");

  // What is to be confirmed stands in the dialog; what comes back with an error status does so too.
  if (dialog) {
    let opener = null;
    body.addEventListener("htmx:afterSwap", (event) => {
      if (event.detail.target !== dialog || dialog.open) return;
      opener = event.detail.requestConfig?.elt?.id ?? null;
      dialog.showModal();
    });
    dialog.addEventListener("click", (event) => {
      if (event.target !== dialog && !event.target.closest("[data-close]")) return;
      event.preventDefault();
      dialog.close();
    });
    dialog.addEventListener("close", () => {
      dialog.replaceChildren();
      document.getElementById(opener)?.focus();
    });
  }

  const parts = new Map();
  for (const element of document.querySelectorAll("[data-live]")) parts.set(element.id, new LivePart(element));
  for (const form of document.querySelectorAll("[data-filter]")) {
    const table = parts.get(form.dataset.filter);
    let typing = null;
    const search = () => {
      clearTimeout(typing);
      table.search(form.elements.q.value);
    };
    form.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(search, TYPING_MS);
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      search();
    });
  }
})();
