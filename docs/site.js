"use strict";
// What the theme adds to a page while it is read gets what the keyboard and a screen reader need.
(() => {
  const name = () => {
    document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((one) => {
      one.tabIndex = 0;
      one.setAttribute("role", "group");
      one.setAttribute("aria-label", "a table, wider than some screens");
    });
    document.querySelectorAll(".md-code__nav").forEach((one, i) => {
      one.setAttribute("aria-label", `Code ${i + 1}`);
    });
  };
  document.addEventListener("DOMContentLoaded", () => {
    document.querySelector(".md-search")?.setAttribute("aria-label", "Search"); // a dialog
    document.querySelectorAll(".md-nav--secondary nav[aria-label]").forEach((one, i) => {
      one.setAttribute("aria-label", `${one.getAttribute("aria-label")}, ${i + 1}`); // names repeat
    });
    name();
    new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
  });
})();
