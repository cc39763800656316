"use strict";
// Keeps the page of a run that goes on up to date: asks what it shows now, and changes only that.
(() => {
  const EVERY_MS = 2000;
  const root = document.documentElement;
  const state = document.createElement("p");
  state.className = "live";
  state.setAttribute("role", "status");
  let tag = "";

  const attributes = (from, to) => {
    for (const { name } of [...from.attributes])
      if (!to.hasAttribute(name) && name !== "open") from.removeAttribute(name);
    for (const { name, value } of to.attributes)
      if (from.getAttribute(name) !== value && name !== "open") from.setAttribute(name, value);
  };

  // Makes one element like another; charts stay, as do places that the reader opened or scrolled.
  const morph = (from, to) => {
    if (from.isEqualNode(to)) return;
    if (from.classList.contains("chart")) {
      from.setAttribute("aria-label", to.getAttribute("aria-label"));
      return;
    }
    attributes(from, to);
    const olds = [...from.childNodes];
    const news = [...to.childNodes];
    news.forEach((wanted, i) => {
      const old = olds[i];
      const alike = old && old.nodeType === wanted.nodeType && old.nodeName === wanted.nodeName;
      if (!old) from.append(wanted);
      else if (!alike || (old.id || "") !== (wanted.id || "")) old.replaceWith(wanted);
      else if (old.nodeType === Node.ELEMENT_NODE) morph(old, wanted);
      else if (old.data !== wanted.data) old.data = wanted.data;
    });
    olds.slice(news.length).forEach((old) => old.remove());
  };

  const show = async ({ body, figures, goes_on }) => {
    const page = `<div id="body">${body}</div>`;
    const wanted = new DOMParser().parseFromString(page, "text/html").getElementById("body");
    const here = document.getElementById("body");
    // The header's buttons are alive: only its words change.
    wanted.querySelector("nav").replaceWith(here.querySelector("nav").cloneNode(true));
    morph(here, wanted);
    await window.hadar.redraw(figures);
    state.textContent = goes_on ? `Up to date at ${new Date().toLocaleTimeString()}` : "";
    root.dataset.updates = String(Number(root.dataset.updates || 0) + 1);
    return goes_on;
  };

  const ask = async () => {
    let goesOn = true;
    try {
      if (!document.hidden) {
        const answer = await fetch("now", { headers: tag ? { "If-None-Match": tag } : {} });
        if (answer.status === 200) {
          const told = await answer.json();
          tag = answer.headers.get("ETag");
          goesOn = await show(told);
        } else if (answer.status !== 304) state.textContent = await answer.text();
      }
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // which is how fetch says that nobody answers
      state.textContent = "hadar watch has ended; this is the last that it told";
    }
    if (goesOn) setTimeout(ask, EVERY_MS);
  };

  document.body.append(state);
  setTimeout(ask, EVERY_MS);
})();
