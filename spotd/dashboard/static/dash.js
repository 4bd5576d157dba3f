// Keeps the page as new as the daemon: asks for it again, and changes what has changed, so that
// nothing flickers and nothing that a person holds (focus, selection, scrolling) is lost.
"use strict";
(() => {
  const refreshMs = 1000 * Number(document.body.dataset.refreshS || 3);
  const lost = document.getElementById("lost");
  const pause = document.getElementById("pause");
  let paused = false, timer = 0, since = 0;

  const key = (node) => (node.nodeType === 1 ? node.dataset.key || node.id || "" : "");

  function sync(from, to) {
    if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) return false;
    if (from.nodeType !== 1) {
      if (from.data !== to.data) from.data = to.data;
      return true;
    }
    for (const { name } of [...from.attributes])
      if (!to.hasAttribute(name)) from.removeAttribute(name);
    for (const { name, value } of to.attributes)
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    children(from, to);
    return true;
  }

  // Rows and cards with a key are found again by it, wherever they are by now; others by their place.
  function children(from, to) {
    const old = new Map();
    for (const node of from.childNodes) if (key(node)) old.set(key(node), node);
    let at = from.firstChild;
    for (const next of [...to.childNodes]) {
      const known = key(next) && old.get(key(next));
      if (known && known !== at) from.insertBefore(known, at);
      const mine = known || at;
      const fits = mine && (known || !key(mine)) && !(mine instanceof HTMLFormElement);
      if (mine instanceof HTMLFormElement && next.nodeName === "FORM") {
        at = mine.nextSibling; // what a person is typing stays
      } else if (fits && sync(mine, next)) {
        at = mine.nextSibling;
      } else {
        from.insertBefore(document.importNode(next, true), at);
      }
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  }

  function buttons() {
    for (const one of document.querySelectorAll(".copy[hidden]")) one.hidden = false;
  }

  async function refresh() {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
    if (answer.status === 401) return location.reload(); // the session has ended
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    // The command has ended, and somebody else of this machine took its port.
    if (next.body.dataset.start !== document.body.dataset.start) throw new Error("a stranger answers");
    for (const copy of next.querySelectorAll(".copy")) copy.hidden = false;
    if (paused) return;
    for (const id of ["state", "clock", "main"])
      sync(document.getElementById(id), next.getElementById(id));
    document.title = next.title;
  }

  function tell(text) {
    lost.textContent = text;
    lost.hidden = !text;
  }

  async function turn() {
    clearTimeout(timer);
    if (!paused && !document.hidden) {
      try {
        await refresh();
        since = 0;
        tell("");
      } catch (error) {
        since = since || Date.now();
        const old = Math.round((Date.now() - since) / 1000);
        tell(`✕ What serves this page does not answer (${error.message}), since ${old} s. ` +
             "The figures are from before. Try: spotctl dashboard");
      }
    }
    clearTimeout(timer);
    timer = setTimeout(turn, refreshMs);
  }

  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Updates are paused" : "Pause updates";
    if (!paused) turn();
  });
  document.addEventListener("visibilitychange", () => document.hidden || turn());
  document.addEventListener("click", async (event) => {
    const button = event.target.closest && event.target.closest(".copy");
    if (!button) return;
    const text = button.previousElementSibling.textContent;
    let told = "Copied";
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
      told = "Press Ctrl-C";
    }
    button.textContent = told;
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  buttons();
  timer = setTimeout(turn, refreshMs);
})();
