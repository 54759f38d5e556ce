"use strict";
// Shows a campaign or a run, and follows the server if there is one. Every text goes into the page as text.
(() => { // the bundle of Vega has short names of its own
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const STATES = ["failed", "held", "running", "cancelling", "queued", "pending", "completed", "cancelled", "screened"];
// Name, place in a row's cells, and in its values to sort by.
const COLUMNS = [["step", 0, 0], ["left", 1, 1], ["loss", 2, 2], ["tokens/s", 3, 3], ["memory", 4, 4], ["micro-batch", 5, 5], ["GPUs", 6, 6], ["tries", 7, 7], ["job", 8]];
const AT_FIRST = 100, REST_MS = 3000;

// Without characters that change the direction of other text, or that a terminal would obey once it is pasted.
const inert = (child) => (child instanceof Node ? child : String(child).replace(/[^\P{C}\n\t]/gu, ""));
function node(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.map(inert));
  return made;
}
const put = (id, ...children) => $(id).replaceChildren(...children.map(inert));
const address = (path, query) => `${path}?${new URLSearchParams({ campaign: data.campaign, ...query })}`;
async function ask(path, query) {
  const answer = await fetch(address(path, query));
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// -- charts: drawn once, then given new data
const views = new Map();
const sized = new ResizeObserver(() => dispatchEvent(new Event("resize"))); // which Vega listens to
function chart(id, spec) {
  sized.observe($(id));
  const config = { ...spec.config, axisY: { labelLimit: Math.round($(id).clientWidth * 0.36) } };
  const height = $(id).clientWidth < 480 ? 190 : 250;
  const options = { ast: true, actions: false, renderer: "svg", defaultStyle: false, tooltip: { disableDefaultStyle: true } };
  put(id, node("div", { "aria-hidden": "true" })); // the label of the figure is for readers of the screen
  views.set(id, vegaEmbed($(id).firstChild, { ...spec, height, config }, options).then(({ view }) => view));
  return views.get(id);
}
function rowsOf(columns) {
  const keys = Object.keys(columns);
  return columns[keys[0]].map((_, place) => Object.fromEntries(keys.map((key) => [key, columns[key][place]])));
}
async function curves(id, kind, drawn) {
  const view = await (views.get(id) ?? chart(id, data.specs[kind]));
  const [lowest, highest] = drawn.ends[kind];
  view.signal("titles", drawn.titles).signal("groups", drawn.groups).signal("lowest", lowest).signal("highest", highest);
  view.data("rows", rowsOf(drawn.rows));
  if (kind === "loss") view.data("held_out", rowsOf(drawn.held_out));
  await view.resize().runAsync();
  document.documentElement.dataset.drawn = "true";
}

// -- the table of runs
const rows = new Map(), lines = new Map(), sparks = new Map(), stale = new Set();
let order = [], limit = AT_FIRST, text = "", by = null, down = false, colours = {}, used = [];
const states = new Set();

function line(row) {
  if (!lines.has(row.id)) {
    const link = node("a", data.live || data.details[row.id] ? { href: `#run-${row.id}` } : {}), why = node("small", {}), doing = node("small", {}), word = node("b", {});
    const state = node("span", {}, node("i", {}), word);
    lines.set(row.id, { link, why, doing, word, state, row: node("tr", {}) });
  }
  const own = lines.get(row.id);
  if (own.shown === row && own.used === used) return own.row;
  Object.assign(own, { shown: row, used });
  own.link.textContent = row.title;
  own.link.title = row.name;
  own.why.textContent = row.why;
  own.doing.textContent = row.doing;
  own.word.textContent = row.early ? `${row.state} early` : row.state;
  own.state.className = `state ${row.state}`;
  own.row.className = row.state;
  const cells = used.map(([name, place]) => {
    const cell = node("td", { class: name === "job" ? "" : "r", ...(row.cells[place] ? { "data-name": name } : {}) }, row.cells[place]);
    if (name === "step" && row.share !== null && row.share < 1) {
      const bar = node("i", {});
      bar.style.transform = `scaleX(${row.share})`;
      cell.append(node("span", { class: "progress", "aria-hidden": "true" }, bar));
    }
    return cell;
  });
  own.spark = node("td", {});
  const place = used.findIndex(([name]) => name === "loss");
  if (place >= 0) cells.splice(place + 1, 0, own.spark);
  own.row.replaceChildren(node("td", {}, own.link, own.why), node("td", {}, own.state, own.doing), ...cells);
  spark(row.id);
  return own.row;
}

function spark(id) {
  const own = lines.get(id), losses = sparks.get(id)?.filter((loss) => loss !== null) ?? [];
  if (!own?.spark || losses.length < 2) return;
  const ends = [...losses].sort((a, b) => a - b), low = ends[0], high = ends[Math.floor((ends.length - 1) * 0.95)];
  const y = (loss) => (high > low ? 19 - 18 * Math.min(1, (loss - low) / (high - low)) : 10).toFixed(1);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", losses.map((loss, place) => `${place ? "L" : "M"}${((100 * place) / (losses.length - 1)).toFixed(1)} ${y(loss)}`).join(""));
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({ class: "spark", viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" })) picture.setAttribute(key, value);
  if (id in colours) path.setAttribute("class", `k${colours[id]}`);
  picture.append(path);
  own.spark.replaceChildren(picture);
}

const KEYS = { run: (row) => row.title, state: (row) => STATES.indexOf(row.state) };
for (const [name, place, value] of COLUMNS) KEYS[name] = (row) => (value === undefined ? row.cells[place] : row.values[value]);

function arrange() {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  order = [...rows.values()].filter((row) => {
    const all = `${row.title} ${row.name} ${row.state} ${row.why} ${row.cells[8]}`.toLowerCase();
    return (!states.size || states.has(row.state)) && words.every((word) => all.includes(word));
  });
  if (!by) return;
  const key = KEYS[by], last = (value) => value === null || value === "" || typeof value === "string" && by === "loss";
  const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  const keyed = order.map((row) => [key(row), row]);
  keyed.sort(([a], [b]) => last(a) - last(b) || (last(a) ? 0 : down ? compare(b, a) : compare(a, b)));
  order = keyed.map(([, row]) => row);
}

function heads() {
  put("heads", ...["run", "state", ...used.map(([name]) => name)].flatMap((name) => {
    const button = node("button", { type: "button" }, name);
    button.addEventListener("click", () => {
      [down, by] = by === name ? [!down, down ? null : name] : [false, name];
      heads();
      show();
    });
    const sorted = by === name ? { "aria-sort": down ? "descending" : "ascending" } : {};
    const numeric = name !== "run" && name !== "state" && name !== "job";
    const head = node("th", { scope: "col", class: numeric ? "r" : "", ...sorted }, button);
    return name === "loss" ? [head, node("td", {})] : [head];
  }));
}

function show() {
  const now = COLUMNS.filter(([name, place]) => (name === "tries" ? [...rows.values()].some((row) => row.cells[place] > 1) : [...rows.values()].some((row) => row.cells[place])));
  if (now.length !== used.length) {
    used = now;
    heads();
  }
  arrange();
  const body = $("rows"), wanted = order.slice(0, limit).map(line);
  wanted.forEach((row, place) => body.children[place] !== row && body.insertBefore(row, body.children[place] ?? null));
  while (body.children.length > wanted.length) body.lastChild.remove();
  put("shown", order.length === rows.size ? "" : `${order.length.toLocaleString("en")} of ${rows.size.toLocaleString("en")} runs`);
}

let pulse = "live";
function head({ counts, early, steps, lines: said, settled }) {
  pulse = settled ? "finished" : "live";
  const present = STATES.filter((state) => counts[state]);
  put("share", ...present.map((state) => {
    const part = node("i", { class: state });
    part.style.flexGrow = counts[state];
    return part;
  }));
  const all = present.map((state) => `${counts[state].toLocaleString("en")} ${state}`);
  $("share").setAttribute("aria-label", all.join(", "));
  put("lines", ...[`${steps}${early ? ` · ${early} completed early` : ""}`, ...said].map((one) => node("li", {}, ...one.split("`").map((piece, place) => (place % 2 ? node("code", {}, piece) : piece)))));
  put("states", ...present.map((state, place) => {
    const button = node("button", { type: "button", "aria-pressed": states.has(state) }, node("span", { class: `state ${state}` }, node("i", {}), all[place]));
    button.dataset.state = state;
    return button;
  }));
}

let newest = 0;
function take(news) {
  if (news.whole) rows.clear();
  for (const row of news.rows) {
    rows.set(row.id, row);
    stale.add(row.id);
  }
  if (news.whole) for (const id of lines.keys()) if (!rows.has(id)) lines.delete(id);
  head(news.head);
  show();
  for (const [id, when, name, said] of news.events) {
    newest = Math.max(newest, id);
    $("events").prepend(node("li", {}, node("time", {}, when), node("span", {}, name), node("span", {}, said)));
  }
  while ($("events").children.length > 100) $("events").lastChild.remove();
  if (news.rows.some((row) => `#run-${row.id}` === location.hash)) refreshRun();
  draw();
}

// -- curves of the rows in sight, asked for at most every few seconds
let drawing = null;
function draw() {
  if (data.live && !drawing) drawing = setTimeout(redraw, sparks.size ? REST_MS : 0);
}
async function redraw() {
  const wanted = order.slice(0, limit).filter((row) => stale.has(row.id)).slice(0, 200).map((row) => row.id);
  wanted.forEach((id) => stale.delete(id));
  try {
    drawn(await ask("draw", { rows: wanted, chart: order.slice(0, 60).map((row) => row.id) }));
  } catch {
    wanted.forEach((id) => stale.add(id));
  }
  drawing = null;
  if (order.slice(0, limit).some((row) => stale.has(row.id))) draw();
}
function drawn(found) {
  colours = found.chart.colours;
  for (const [id, losses] of Object.entries(found.sparks)) sparks.set(Number(id), losses);
  for (const id of sparks.keys()) spark(id);
  put("legend", ...found.chart.legend.slice(0, 8).map(([title, slot]) => node("span", {}, node("i", { class: `k${slot}` }), title)));
  if (!$("campaign").hidden) curves("chart-loss", "loss", found.chart);
}

function verdict({ sentence, effort, chart: spec, caption }) {
  put("answer", sentence, ...(effort ? [node("small", {}, ` ${effort}`)] : []));
  $("verdict").hidden = !spec;
  put("caption", caption);
  if (spec) chart("chart-verdict", spec);
}

// -- a run
let opened = null, log = { file: "", at: 0 }, reading = null;
async function refreshRun() {
  const id = opened;
  try {
    const found = data.live ? await ask("run", { run: id }) : data.details[id];
    if (id === opened && found) run(found);
  } catch (error) {
    put("run-state", error.message);
  }
}
function run(found) {
  put("facts", ...found.facts.flatMap(([name, value]) => [node("dt", {}, name), node("dd", {}, value)]));
  put("next", found.next);
  put("attempts", found.attempts.join("\n") || "none yet");
  put("run-events", found.events.join("\n"));
  put("config", found.config);
  put("ds", found.ds_config);
  $("ds-section").hidden = !found.ds_config;
  $("gpus-section").hidden = found.gpus.length < 2;
  const [names, ...gpus] = found.gpus.length ? found.gpus : [[]];
  const cell = (kind, value, place) => node(kind, { class: place > 2 ? "r" : "", ...(kind === "th" ? { scope: "col" } : {}) }, value);
  put("gpus", node("thead", {}, node("tr", {}, ...names.map((name, place) => cell("th", name, place)))), node("tbody", {}, ...gpus.map((gpu) => node("tr", {}, ...gpu.map((value, place) => cell("td", value, place))))));
  options("attempt", found.tries.map((number) => [number, number]).reverse());
  options("rank", [...Array(Math.min(found.ranks, 1024)).keys()].map((number) => [`rank ${number}`, number]).concat([["the launcher", "launcher"]]));
  curves("chart-run-loss", "loss", found.curves);
  curves("chart-run-pace", "pace", found.curves);
  if (data.live) {
    if (!reading) follow();
  } else {
    put("log", found.log.text);
    put("log-file", found.log.file);
  }
}
function options(id, pairs) {
  if ($(id).options.length === pairs.length) return;
  put(id, ...pairs.map(([name, value]) => node("option", { value }, name)));
}
async function follow() {
  clearTimeout(reading);
  const id = opened, of = $("rank").value, query = { run: id, file: log.file, at: log.at };
  if ($("attempt").value) query.attempt = $("attempt").value;
  if (of === "launcher") query.launcher = 1;
  else query.rank = of || 0;
  let ended = false;
  try {
    const found = await ask("log", query);
    if (id !== opened || of !== $("rank").value) return;
    const area = $("log"), atEnd = area.scrollHeight - area.scrollTop - area.clientHeight < 40;
    if (found.file !== log.file || found.cut) put("log", found.cut ? "… the beginning is left out\n" : "");
    area.append(found.text);
    while (area.childNodes.length > 400) area.firstChild.remove();
    if (atEnd) area.scrollTop = area.scrollHeight;
    [log, ended] = [found, found.ended];
    put("log-file", found.file);
  } catch (error) {
    if (id === opened) put("log-file", error.message);
  }
  reading = setTimeout(() => !ended && $("follow").checked && follow(), 1500);
}
function restart() {
  log = { file: "", at: 0 };
  put("log");
  follow();
}

// -- which part is seen
function route() {
  const id = Number(location.hash.match(/^#run-(\d+)$/)?.[1] ?? 0), row = rows.get(id);
  clearTimeout(reading);
  [opened, reading, log] = [row ? id : null, null, { file: "", at: 0 }];
  $("run").hidden = !row;
  $("campaign").hidden = Boolean(row) || data.campaign === null;
  $("list").hidden = data.campaign !== null;
  const crumbs = data.campaigns.length > 1 && data.campaign !== null ? [node("a", { href: data.home }, "Campaigns")] : [];
  if (row) crumbs.push(node("a", { href: "#" }, data.campaign));
  put("where", ...crumbs.flatMap((one, place) => (place ? [" / ", one] : [one])));
  document.title = inert([row?.title, data.campaign ?? "Campaigns"].filter(Boolean).join(" · "));
  if (!row) {
    if (data.campaign !== null) draw();
    return;
  }
  put("run-title", row.title);
  put("run-state", lines.get(id)?.state.cloneNode(true) ?? row.state, row.why ? ` ${row.why}` : "");
  for (const part of ["facts", "next", "attempts", "run-events", "log", "log-file", "attempt", "rank", "gpus"]) put(part);
  scrollTo(0, 0);
  $("run-title").focus({ preventScroll: true });
  refreshRun();
}

function campaigns(all) {
  put("campaigns", ...all.map((one) => {
    const counts = STATES.filter((state) => one.counts[state]).map((state) => node("span", { class: `state ${state}` }, node("i", {}), `${one.counts[state].toLocaleString("en")} ${state}\u2003`));
    const href = data.live ? `?${new URLSearchParams({ campaign: one.name })}` : one.href;
    return node("tr", {}, node("td", {}, node("a", { href }, one.name)), node("td", { class: "long" }, ...counts), ...one.cells.map((cell, place) => node("td", { class: place === 2 ? "r" : "" }, cell)));
  }));
}

function connect() {
  const query = data.campaign === null ? "stream" : address("stream", { since: data.version, event: newest });
  const source = new EventSource(query);
  const say = (said, off) => {
    put("now", said);
    $("now").classList.toggle("off", off);
  };
  let rested = 0; // an answer takes long for many runs: no more than a twentieth of the time goes into it
  source.onopen = () => say(pulse, false);
  source.onerror = () => say("disconnected: is `campaign serve` still running?", true);
  source.onmessage = ({ data: body }) => {
    const news = JSON.parse(body);
    if (news.campaigns) campaigns(news.campaigns);
    if (news.rows) take(news);
    say(news.trouble ?? pulse, Boolean(news.trouble));
    if (!news.rows) return;
    if (news.rows.some((row) => row.state === "completed") && Date.now() > rested) judge();
  };
  const judge = async () => {
    const began = Date.now();
    rested = Infinity;
    await ask("verdict").then(verdict, () => {});
    rested = Date.now() + Math.max(30000, 20 * (Date.now() - began));
  };
  if (data.campaign !== null) judge();
}

campaigns(data.campaigns);
if (data.campaign !== null) take(data);
$("filter").addEventListener("input", () => {
  text = $("filter").value;
  limit = AT_FIRST;
  show();
  draw();
});
$("states").addEventListener("click", ({ target }) => {
  const state = target.closest("button")?.dataset.state;
  if (!state) return;
  if (!states.delete(state)) states.add(state);
  for (const button of $("states").children) button.setAttribute("aria-pressed", states.has(button.dataset.state));
  show();
  draw();
});
new IntersectionObserver(([{ isIntersecting }]) => {
  if (!isIntersecting || limit >= order.length) return;
  limit += 200;
  show();
  draw();
}, { rootMargin: "600px" }).observe($("end"));
for (const id of ["attempt", "rank", "follow"]) $(id).addEventListener("change", restart);
addEventListener("hashchange", route);
route();
if (data.live) connect();
else if (data.campaign !== null) {
  drawn(data.drawn);
  verdict(data.verdict);
}
})();
