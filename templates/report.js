"use strict";
// Charts are drawn, and the legend filters all of them. Tables sort by a click on a heading, and copy as CSV.
const charts = JSON.parse(document.getElementById("charts").textContent);
const views = new Map();
for (const { datasets } of Object.values(charts)) {
  for (const [name, columns] of Object.entries(datasets)) {
    const keys = Object.keys(columns);
    datasets[name] = (columns[keys[0]] ?? []).map((_, row) => Object.fromEntries(keys.map((key) => [key, columns[key][row]])));
  }
}
const chips = [...document.querySelectorAll(".chip")];
const numbers = (chip) => chip.dataset.numbers.split(" ").map(Number);

async function draw(name) {
  const element = document.getElementById(`chart-${name}`);
  const spec = charts[name];
  const narrow = element.clientWidth < 480;
  const config = { ...spec.config, axisY: { labelLimit: Math.round(element.clientWidth * 0.36) } };
  const height = typeof spec.height === "number" && narrow ? Math.min(spec.height, 190) : spec.height;
  views.get(name)?.finalize();
  const { view, finalize } = await vegaEmbed(element, { ...spec, height, config }, {
    ast: true, actions: false, renderer: "svg", defaultStyle: false, tooltip: { disableDefaultStyle: true },
  });
  views.set(name, { view, finalize });
  show();
}

// What the legend hides and highlights, in one chart or all.
function show(hot = []) {
  const hidden = chips.filter((chip) => chip.getAttribute("aria-pressed") === "false").flatMap(numbers);
  for (const { view } of views.values()) view.signal("hidden", hidden).signal("hot", hot).runAsync();
}

for (const chip of chips) {
  chip.addEventListener("click", () => {
    chip.setAttribute("aria-pressed", chip.getAttribute("aria-pressed") === "false");
    show();
  });
  chip.addEventListener("pointerenter", () => show(chip.getAttribute("aria-pressed") === "true" ? numbers(chip) : []));
  chip.addEventListener("pointerleave", () => show());
}

function across(spec, by, title) {
  for (const param of spec.params) if (param.name === "by") param.value = by;
  for (const layer of spec.layer) layer.encoding.x.title = title;
}

for (const select of document.querySelectorAll("figure select")) {
  const name = select.closest("figure").querySelector(".chart").id.slice("chart-".length);
  select.addEventListener("change", () => {
    across(charts[name], select.value, select.selectedOptions[0].text);
    draw(name);
  });
}

(async () => {
  for (const name of Object.keys(charts)) await draw(name);
  document.documentElement.dataset.drawn = "true";
})();

for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  if (table.classList.contains("sorts")) {
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sort(table.tBodies[0], heads, column));
    });
  }
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "copy";
  copy.textContent = "Copy as CSV";
  copy.addEventListener("click", async () => {
    copy.textContent = (await copied(csv(table))) ? "Copied" : "Could not copy";
  });
  table.closest(".table").append(copy);
}

function number(cell) {
  const text = cell.dataset.v ?? cell.textContent.trim().replace(/,/g, "").replace(/^−/, "-");
  return cell.dataset.v === undefined && !/^[-+]?\d/.test(text) ? NaN : parseFloat(text);
}

// Numbers by size, else text; empty cells stay last.
function sort(body, heads, column) {
  const head = heads[column];
  const down = head.getAttribute("aria-sort") === "ascending";
  heads.forEach((each) => each.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const isNumber = head.classList.contains("r");
  const keyed = [...body.rows].map((row) => {
    const text = row.cells[column].textContent.trim();
    const value = number(row.cells[column]);
    return { row, text, value, last: isNumber ? Number.isNaN(value) : text === "" };
  });
  const compare = (a, b) => (isNumber ? a.value - b.value : a.text.localeCompare(b.text, "en", { numeric: true }));
  keyed.sort((a, b) => a.last - b.last || (a.last ? 0 : down ? compare(b, a) : compare(a, b)));
  body.append(...keyed.map((each) => each.row));
}

// A cell that a spreadsheet would take for a formula is made text, as in the CSV files beside the page.
function csv(table) {
  const cell = (text) => {
    const safe = /^[=+\-@\t\r]/.test(text) && !/^[-+]?[\d.,]+$/.test(text) ? "'" + text : text;
    return /[",\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
  };
  return [...table.rows].map((row) => [...row.cells].map((one) => cell(one.textContent.trim())).join(",")).join("\n") + "\n";
}

// A file that was opened from a disk may have no clipboard: the older way works there.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
