// Figures: values at the pointer or by the arrow keys, and conditions that are shown or hidden in all of them.
// Without this script each figure is there, named, with the values of its marks where the pointer rests.
const tip = document.createElement("div");
tip.className = "tip";
tip.setAttribute("role", "status");
tip.hidden = true;
document.body.append(tip);

const shown = (part) => !part.classList.contains("off");
const charts = [...document.querySelectorAll("figure > [role=img]")].map(chart);

function chart(frame) {
  const svg = frame.querySelector("svg");
  const panels = [];
  for (const part of svg.querySelectorAll("[data-left], [data-line]")) {
    if (part.dataset.left) panels.push({ part, lines: [] });
    else panels.at(-1)?.lines.push({ part, points: points(part) });
  }
  const marks = [...svg.querySelectorAll("title")].map((title) => {
    const part = title.parentElement;
    part.dataset.tip = title.textContent;
    title.remove(); // else the browser shows it too
    return part;
  });
  const at = { panel: 0, share: 1, mark: -1 };
  if (!panels.length && !marks.length) return { svg, panels };
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
  cursor.setAttribute("class", "cursor");
  svg.append(cursor);
  const hide = () => {
    tip.hidden = true;
    cursor.removeAttribute("d");
  };
  frame.tabIndex = 0;
  frame.setAttribute("role", "group");
  frame.setAttribute("aria-roledescription", "figure with values at the arrow keys");
  const point = (event) => {
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const near = nearest(marks.filter(shown), event);
    if (near) return says([near.dataset.tip], [], event);
    at.panel = panels.findIndex(({ part }) => within(part.getBBox(), x, y));
    if (at.panel >= 0) {
      const box = panels[at.panel].part.getBBox();
      at.share = (x - box.x) / box.width;
      return values(svg, panels[at.panel], at.share, cursor, event);
    }
    return hide();
  };
  frame.addEventListener("pointermove", point);
  frame.addEventListener("pointerdown", point);
  frame.addEventListener("pointerleave", hide);
  frame.addEventListener("blur", hide);
  frame.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") return hide();
    if (!step && !(panels.length > 1 && /^Arrow(Up|Down)$/.test(event.key))) return undefined;
    event.preventDefault();
    if (panels.length) {
      if (!step) at.panel += event.key === "ArrowUp" ? -1 : 1;
      at.panel = Math.min(panels.length - 1, Math.max(0, at.panel));
      at.share = Math.min(1, Math.max(0, at.share + (step || 0) / (event.shiftKey ? 200 : 40)));
      return values(svg, panels[at.panel], at.share, cursor);
    }
    const able = marks.filter(shown);
    at.mark = Math.min(able.length - 1, Math.max(0, at.mark + step));
    return able.length ? says([able[at.mark].dataset.tip], [], middle(able[at.mark])) : hide();
  });
  return { svg, panels };
}

function points(line) {
  const path = line.querySelector("path")?.getAttribute("d") ?? "";
  return [...path.matchAll(/([ML])(-?[\d.]+) (-?[\d.]+)/g)].map(([, kind, x, y]) => ({ kind, x: +x, y: +y }));
}

function within(box, x, y) {
  return x >= box.x && x <= box.x + box.width && y >= box.y && y <= box.y + box.height;
}

function middle(part) {
  const box = part.getBoundingClientRect();
  return { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 };
}

// The mark under the pointer, or the nearest one that a finger may mean.
function nearest(marks, event) {
  const far = (part) => {
    const box = part.getBoundingClientRect();
    const beside = (low, value, high) => Math.max(low - value, 0, value - high);
    return Math.hypot(beside(box.left, event.clientX, box.right), beside(box.top, event.clientY, box.bottom));
  };
  const [least] = marks.map((part) => ({ part, far: far(part) })).sort((a, b) => a.far - b.far);
  return least && least.far < 6 ? least.part : null;
}

// What each line of a panel is at this share of its width.
function values(svg, { part, lines }, share, cursor, event) {
  const box = part.getBBox();
  const edge = (name) => Number(part.dataset[name]);
  const x = box.x + share * box.width;
  const rows = [];
  for (const { part: line, points: along } of lines.filter((one) => shown(one.part))) {
    const next = along.findIndex((one) => one.x >= x);
    const [a, b] = [along[next - 1] ?? along[next], along[next]];
    if (!b || (a !== b && b.kind === "M") || (a === b && b.x > x + 1)) continue;
    const y = a === b || a.x === b.x ? b.y : a.y + ((b.y - a.y) * (x - a.x)) / (b.x - a.x);
    const value = edge("bottom") + ((box.y + box.height - y) / box.height) * (edge("top") - edge("bottom"));
    rows.push({ name: line.dataset.line, value, colour: line.querySelector("path").getAttribute("stroke") });
  }
  rows.sort((one, other) => other.value - one.value);
  cursor.setAttribute("d", `M${x} ${box.y}v${box.height}`);
  const width = edge("right") - edge("left");
  const along = rounded(edge("left") + share * width, 5 * width);
  const text = (row) => ({ ...row, text: rounded(row.value, edge("top") - edge("bottom")) });
  const where = new DOMPoint(x, box.y).matrixTransform(svg.getScreenCTM());
  says([`${part.dataset.x}: ${along}`, part.dataset.y], rows.map(text), event ?? { clientX: where.x, clientY: where.y });
}

// As many digits as a thousandth of the axis takes.
function rounded(value, range) {
  return value.toFixed(Math.min(8, Math.max(0, Math.ceil(-Math.log10(Math.abs(range) / 1000)))));
}

function says(heads, rows, { clientX, clientY }) {
  tip.replaceChildren(...heads.map((text) => made("p", text)));
  for (const { name, text, colour } of rows) {
    const row = made("p", "");
    row.append(swatch(colour), made("span", name), made("span", text));
    tip.append(row);
  }
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = clientX + 16 + width > innerWidth ? clientX - 16 - width : clientX + 16;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(innerHeight - height - 4, clientY - height / 2))}px`;
}

// As the figures have it: a style sheet of the dark page gives some colours another.
function swatch(colour) {
  const box = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const area = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of [["width", "100%"], ["height", "100%"], ["fill", colour]]) area.setAttribute(name, value);
  box.append(area);
  return box;
}

function made(tag, text) {
  const part = document.createElement(tag);
  part.textContent = text;
  return part;
}

// The same switch for all figures: a box beside each name, or a click on the name in a figure.
for (const switches of document.querySelectorAll(".switches")) {
  const boxes = [...switches.querySelectorAll("input")];
  const count = switches.querySelector("output");
  const apply = () => {
    for (const box of boxes) {
      for (const part of document.querySelectorAll(`[data-c="${box.value}"]`)) part.classList.toggle("off", !box.checked);
    }
    charts.forEach(({ panels }) => panels.forEach(takeTurns));
    const on = boxes.filter((box) => box.checked).length;
    count.textContent = on === boxes.length ? "all" : `${on} of ${boxes.length}`;
  };
  for (const box of boxes) box.after(swatch(box.dataset.colour));
  for (const button of switches.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      for (const box of boxes) box.checked = button.value === "all";
      apply();
    });
  }
  switches.addEventListener("change", apply);
  for (const label of document.querySelectorAll("[data-label]")) {
    label.addEventListener("click", () => boxes.find((box) => box.value === label.dataset.c)?.click());
  }
  switches.hidden = false;
}

// Lines that coincide are dashes by turns: of those that are still shown.
function takeTurns({ lines }) {
  const groups = {};
  for (const line of lines.filter(({ part }) => part.dataset.turn && shown(part))) (groups[line.part.dataset.turn] ??= []).push(line);
  for (const group of Object.values(groups)) {
    const dash = Math.min(8, 64 / group.length);
    group.forEach(({ part }, place) => {
      const path = part.querySelector("path");
      path.setAttribute("stroke-dasharray", group.length > 1 ? `${dash} ${(group.length - 1) * dash}` : "none");
      path.setAttribute("stroke-dashoffset", place * dash);
    });
  }
}
