"use strict";
// Tables sort by a click on a heading, and copy as CSV. Without this script all is still there to read.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(body, heads, column));
  });
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "copy";
  copy.textContent = "Copy as CSV";
  copy.addEventListener("click", async () => {
    copy.textContent = (await copied(csv(table))) ? "Copied" : "Could not copy";
  });
  table.parentElement.after(copy);
}

function number(text) {
  const plain = text.trim().replace(/,/g, "").replace(/^[−]/, "-");
  const found = /^[-+]?\d+(\.\d+)?(e[-+]?\d+)?/i.exec(plain);
  const scale = { k: 1e3, M: 1e6, B: 1e9, G: 1e9, T: 1e12 };
  const [, letter] = (found && /^([kMBGT])(?![A-Za-z])/.exec(plain.slice(found[0].length))) || [];
  return found ? Number(found[0]) * (scale[letter] ?? 1) : NaN;
}

// Numbers by size where a column is one of numbers, else text; empty cells stay last.
function sort(body, heads, column) {
  const head = heads[column];
  const down = head.getAttribute("aria-sort") === "ascending";
  heads.forEach((each) => each.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const isNumber = head.classList.contains("r");
  const keyed = [...body.rows].map((row) => {
    const text = row.cells[column].textContent.trim();
    const value = number(text);
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
