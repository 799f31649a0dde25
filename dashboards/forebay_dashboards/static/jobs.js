// Has the browser tell, once that is allowed, that a job of this page came to its end or is to run again while its reader looks elsewhere.
"use strict";
(() => {
  const ENDS = ["succeeded", "failed", "cancelled"];
  const button = document.getElementById("allow-notices");
  const states = new Map();
  if (!("Notification" in window)) return;

  const looksHere = () => document.visibilityState === "visible" && document.hasFocus();

  function look() {
    for (const { dataset } of document.querySelectorAll("[data-job]")) {
      const before = states.get(dataset.job);
      states.set(dataset.job, dataset.state);
      const over = ENDS.includes(dataset.state) && !ENDS.includes(before);
      const again = dataset.state === "queued" && ["starting", "running"].includes(before);
      if (before === undefined || !(over || again) || looksHere() || Notification.permission !== "granted") continue;
      new Notification(dataset.said, { tag: `forebay-job-${dataset.job}` }).onclick = () => window.focus();
    }
  }

  button.hidden = Notification.permission !== "default";
  button.addEventListener("click", async () => {
    button.hidden = (await Notification.requestPermission()) !== "default";
  });
  document.body.addEventListener("htmx:afterSettle", look);
  look();
})();
