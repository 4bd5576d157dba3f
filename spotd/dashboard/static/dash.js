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

  // How tables are sorted and filtered, by caption, so that it holds over every refresh.
  const sorts = new Map(), filters = new Map();
  const UNITS = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, d: 86400, h: 3600, m: 60, s: 1 };

  // What a cell is sorted by: a time, a number, else its words; null for what is not known.
  function rank(cell) {
    const time = cell.querySelector("time");
    if (time) return Date.parse(time.dateTime);
    const text = cell.textContent.trim();
    if (!text || text === "-" || text === "?" || text === "unknown") return null;
    if (!cell.classList.contains("number")) return text.toLowerCase();
    const spans = [...text.matchAll(/([\d.]+)(GiB|MiB|KiB|B|[dhms])(?![a-z])/g)];
    const plain = text.replaceAll(",", "").match(/-?[\d.]+(?:e[-+]?\d+)?/i);
    const unit = text.match(/ (GiB|MiB|KiB|B|s)$/);
    if (!unit && spans.length) return spans.reduce((sum, [, n, u]) => sum + Number(n) * UNITS[u], 0);
    return plain ? Number(plain[0]) * (unit ? UNITS[unit[1]] : 1) : text.toLowerCase();
  }

  function compare(a, b, down) {
    if (a === null || b === null) return (a === null) - (b === null); // the unknown is last
    const order = typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
    return down ? -order : order;
  }

  function arrange(root) {
    for (const box of root.querySelectorAll(".find")) box.hidden = false;
    for (const table of root.querySelectorAll("table")) {
      const name = table.caption.textContent, body = table.tBodies[0];
      const sort = sorts.get(name), words = (filters.get(name) || "").toLowerCase().split(/\s+/);
      [...table.tHead.rows[0].cells].forEach((cell, at) => {
        if (sort && sort.at === at) cell.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      });
      if (sort) {
        const rows = [...body.rows].map((row) => [rank(row.cells[sort.at]), row]);
        rows.sort((a, b) => compare(a[0], b[0], sort.down));
        body.append(...rows.map(([, row]) => row));
      }
      for (const row of body.rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    }
  }

  async function refresh() {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
    if (answer.status === 401) return location.reload(); // the session has ended
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    // The command has ended, and somebody else of this machine took its port.
    if (next.body.dataset.start !== document.body.dataset.start) throw new Error("a stranger answers");
    for (const copy of next.querySelectorAll(".copy")) copy.hidden = false;
    arrange(next);
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
  document.addEventListener("input", (event) => {
    if (!event.target.matches(".find")) return;
    const table = event.target.nextElementSibling.querySelector("table");
    filters.set(table.caption.textContent, event.target.value);
    arrange(document);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest("button.sort");
    if (!button) return;
    const cell = button.closest("th"), name = button.closest("table").caption.textContent;
    const before = sorts.get(name), same = before && before.at === cell.cellIndex;
    sorts.set(name, { at: cell.cellIndex, down: same ? !before.down : false });
    arrange(document);
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
  for (const copy of document.querySelectorAll(".copy")) copy.hidden = false;
  arrange(document);
  timer = setTimeout(turn, refreshMs);
})();
