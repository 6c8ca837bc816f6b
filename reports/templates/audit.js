"use strict";
// What a reader can do with a page besides reading it: choose, find, sort, copy, enlarge, point.
// Without it the page says the same. Text becomes text, never markup, and nothing is requested.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (tag, text, properties = {}) =>
    Object.assign(document.createElement(tag), { textContent: text }, properties);

  // Cells: all digits where there are more than are shown.
  const content = (cell) => {
    const data = cell?.querySelector("data");
    return data ? data.value : (cell?.textContent ?? "").trim().replace(/\s+/g, " ");
  };
  const amount = (text) =>
    parseFloat(text.replace(/,/g, "").replace("\u2212", "-").replace(/inf$|\u221e/, "Infinity"));

  // Sorting, by a button in each heading of a table that has no cells over several rows.
  const inOrder = (a, b, falling) => {
    const [x, y] = [amount(a), amount(b)];
    if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1; // what is no number is last, both ways
    const order = isNaN(x) ? a.localeCompare(b) : x < y ? -1 : x > y ? 1 : 0;
    return falling ? -order : order;
  };
  const sort = (table, heading) => {
    const falling = heading.getAttribute("aria-sort") === "ascending";
    for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows].map((row) => [content(row.cells[heading.cellIndex]), row]);
    rows.sort(([a], [b]) => inOrder(a, b, falling));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  };
  const tables = all("main table").filter(
    (table) => table.tHead && !table.matches(".grid, .premises") && !table.closest(".finding"));
  for (const table of tables) {
    const spanned = table.querySelector("[rowspan]") || table.tHead.rows.length > 1;
    if (spanned || table.tBodies.length !== 1 || table.tBodies[0].rows.length < 3) continue;
    for (const heading of table.tHead.rows[0].cells) {
      const button = make("button", "", { type: "button", className: "sort" });
      button.setAttribute("aria-label", `Sort by ${content(heading)}`);
      heading.addEventListener("click", () => sort(table, heading)); // by its button, too
      heading.append(button);
    }
  }

  // Copying the table behind a figure, as the files of --tables are written.
  const quoted = (text) => {
    const number = /^[+-]?(\d[\d,]*(\.\d*)?(e[+-]?\d+)?|inf|nan)$/i.test(text);
    const safe = number ? text : text.replace(/(^|;)(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])/g, "$1'");
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const csv = (table) =>
    [...table.rows].map((row) => [...row.cells].map(content).map(quoted).join(",") + "\n").join("");
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // where pages may not
      const area = document.body.appendChild(make("textarea", text));
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };
  for (const behind of all("details.data")) {
    const button = make("button", "Copy as CSV", { type: "button" });
    button.addEventListener("click", async () => {
      await copy(csv(behind.querySelector("table")));
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy as CSV"), 2000);
    });
    behind.querySelector("summary").after(button);
  }
  for (const command of all("main .command")) {
    const button = make("button", "Copy", { type: "button" });
    button.setAttribute("aria-label", `Copy ${command.textContent}`);
    button.addEventListener("click", async () => {
      await copy(command.textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    command.after(" ", button);
  }

  // Choosing an adversary, a claim, a round, a value of an axis; finding rows.
  const controls = document.querySelector(".controls");
  const choices = controls ? all("select", controls) : [];
  const search = controls?.querySelector("input");
  const chosen = (key) => choices.find((one) => one.dataset.choose === key)?.value ?? "";
  const keys = choices.map((one) => one.dataset.choose).filter((key) => key !== "agent");
  const show = () => {
    for (const part of keys.length ? all(keys.map((key) => `main [data-${key}]`).join(", ")) : []) {
      part.hidden = keys.some((key) => {
        const about = part.dataset[key];
        return about && chosen(key) && !about.split(" ").includes(chosen(key));
      });
    }
    const words = search.value.trim().toLowerCase();
    const rows = tables.flatMap((table) => [...table.tBodies].flatMap((body) => [...body.rows]));
    rows.push(...all("main .finding"));
    const found = rows.filter((row) => row.textContent.toLowerCase().includes(words));
    for (const row of rows) row.classList.toggle("missed", !found.includes(row));
    controls.querySelector("output").textContent = words ? `${found.length} of ${rows.length} rows` : "";
    light(chosen("agent"));
  };
  const showWhatIsLinked = () => {
    const linked = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!controls || !linked) return;
    for (let at = linked; at; at = at.parentElement?.closest("details")) at.open = true;
    if (!linked.getClientRects().length) {
      for (const choice of [...choices, search]) choice.value = "";
      show();
    }
    linked.scrollIntoView();
  };

  // An agent: its links, its images, and how much it learns of each other one.
  const learns = document.getElementById("learnt");
  const learnt = learns ? all("[data-learnt]", learns) : [];
  const amounts = learnt.map((node) => node.dataset.learnt.split(" ").map(amount));
  const largest = Math.max(...amounts.flat().filter((mu) => mu > 0 && mu < Infinity));
  const light = (agent) => {
    for (const line of all(".graph line"))
      line.classList.toggle("lit", agent !== "" && line.dataset.ends.split(" ").includes(agent));
    for (const node of all(".graph [data-node]"))
      node.classList.toggle("chosen", node.dataset.node === agent);
    for (const image of all("[data-agent]"))
      image.classList.toggle("dim", agent !== "" && image.dataset.agent !== agent);
    const known = learnt.map((node, i) => [agent === "" ? NaN : amounts[i][agent], node]);
    for (const [mu, node] of known) {
      const shape = node.querySelector(".agent");
      const shade = mu > 0 ? 1 + Math.log10(mu / largest) / 3 : 0; // three decades, as the matrix
      const part = `${75 * Math.min(1, Math.max(0, shade))}%`;
      const colour = mu < Infinity ? "defense" : "no-defense";
      shape.style.fill = isNaN(mu) ? "" : `color-mix(in srgb, var(--${colour}) ${part}, var(--card))`;
    }
    if (!learns) return;
    const most = known.filter(([mu]) => mu > 0).sort(([a], [b]) => b - a).slice(0, 3);
    const said = most.map(([mu, node]) =>
      `agent ${node.dataset.node} (mu ${mu < Infinity ? mu : "infinite: no noise"})`);
    learns.querySelector("output").textContent =
      agent && `Agent ${agent} learns ${said.length ? `most of ${said.join(", ")}` : "of no other agent"}.`;
  };
  for (const node of all(".graph [data-node]")) {
    const choice = choices.find((one) => one.dataset.choose === "agent");
    node.addEventListener("click", () => {
      if (!choice) return;
      choice.value = choice.value === node.dataset.node ? "" : node.dataset.node;
      show();
    });
  }
  if (controls) {
    controls.hidden = false;
    if (learns) learns.hidden = false;
    controls.addEventListener("input", show);
    addEventListener("hashchange", showWhatIsLinked);
    show(); // a browser may have kept what was chosen
    showWhatIsLinked();
  }

  // Images in full size; Escape closes what is open.
  const dialog = document.body.appendChild(make("dialog", ""));
  const close = make("button", "Close", { type: "button" });
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  for (const image of all("main .targets svg, main img")) {
    const said = image.getAttribute("aria-label") ?? image.alt;
    const button = make("button", "+", { type: "button", className: "zoom" });
    const framed = make("span", "", { className: "framed" });
    button.setAttribute("aria-label", `Enlarge ${said}`);
    framed.addEventListener("click", () => {
      const figure = make("figure", "");
      const large = image.cloneNode(true);
      large.removeAttribute("style");
      figure.append(large, make("figcaption", said));
      dialog.setAttribute("aria-label", said);
      dialog.replaceChildren(figure, close);
      dialog.showModal();
    });
    image.replaceWith(framed);
    framed.append(image, button);
  }

  // The value of a mark, at once where browsers wait.
  const tip = document.body.appendChild(make("div", "", { className: "tip-text", hidden: true }));
  for (const title of all(".figure use > title, .figure path > title")) {
    title.parentNode.dataset.value = title.textContent;
    title.remove();
  }
  document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest("[data-value]");
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.dataset.value;
    const right = scrollX + document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(0, Math.min(event.pageX + 12, right))}px`;
    tip.style.top = `${event.pageY + 14}px`;
  });
})();
