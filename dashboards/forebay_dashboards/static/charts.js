// Tells the figures under the pointer: plots of one time have one table, and a line across all of them at the step that is pointed at.
// On the timeline, what the pointer is drawn across is looked at closer.
"use strict";
(() => {
  const show = (plots, step) => {
    const table = plots.parentElement.querySelector("[data-figures]");
    const pointed = step === null ? null : table.querySelector(`tr[data-step="${step}"]`);
    const row = pointed ?? table.querySelector("tr[data-step]");
    for (const figure of plots.querySelectorAll("figure:has(.cross)")) {
      const line = figure.querySelector(".cross");
      line.classList.toggle("on", pointed !== null);
      for (const end of ["x1", "x2"]) line.setAttribute(end, `${(100 * ((step ?? 0) + 0.5)) / plots.dataset.plots}%`);
      for (const told of figure.querySelectorAll("[data-column]")) told.textContent = row.cells[Number(told.dataset.column) + 1].textContent;
      const when = figure.querySelector(".when");
      when.dataset.last ??= when.textContent;
      when.textContent = pointed ? pointed.cells[0].textContent : when.dataset.last;
    }
  };

  document.body.addEventListener("pointermove", (event) => {
    const drawn = event.target.closest?.("[data-plots] figure:has(.cross) .drawn");
    if (!drawn) return;
    const box = drawn.getBoundingClientRect();
    const plots = drawn.closest("[data-plots]");
    show(plots, Math.floor(((event.clientX - box.left) / box.width) * plots.dataset.plots));
  });
  document.body.addEventListener("pointerout", (event) => {
    const plots = event.target.closest?.("[data-plots]");
    if (plots && !plots.contains(event.relatedTarget)) show(plots, null);
  });

  const DRAWN_MIN = 6;
  let drag = null;

  document.body.addEventListener("pointerdown", (event) => {
    const track = event.target.closest?.(".gantt .track");
    if (!track || event.button !== 0) return;
    drag = { track, box: track.getBoundingClientRect(), from: event.clientX, mark: document.createElementNS("http://www.w3.org/2000/svg", "rect") };
    drag.mark.classList.add("drawn-over");
    event.preventDefault();
  });
  const drawn = (event) => [drag.from, event.clientX].map((x) => Math.min(1, Math.max(0, (x - drag.box.left) / drag.box.width))).sort((a, b) => a - b);
  const around = (bar) => {
    const [left, wide] = [bar.x, bar.width].map((length) => length.baseVal.value / drag.box.width);
    return [left - wide / 10, left + wide * 1.1];
  };
  const drop = () => {
    drag?.mark.remove();
    drag = null;
  };
  document.body.addEventListener("pointermove", (event) => {
    if (!drag || Math.abs(event.clientX - drag.from) < DRAWN_MIN) return;
    const [from, to] = drawn(event);
    drag.mark.setAttribute("x", `${100 * from}%`);
    drag.mark.setAttribute("width", `${100 * (to - from)}%`);
    drag.track.append(drag.mark);
  });
  document.body.addEventListener("pointercancel", drop);
  document.body.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const { since, until, address } = drag.track.closest(".gantt").dataset;
    const bar = event.target.closest?.(".gantt .track rect");
    const part = drag.mark.isConnected ? drawn(event) : bar && around(bar);
    drop();
    if (!part) return;
    const [from, to] = part.map((at) => Math.round(Number(since) + at * (until - since)));
    location.assign(`${address}ms=${Math.max(10, to - from)}&until=${to}`);
  });
})();
