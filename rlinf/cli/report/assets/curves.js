"use strict";
// The curves: one small chart per metric, chosen by namespace, smoothed, with values under the cursor.

const run = JSON.parse(document.getElementById("run-data").textContent);

// -- numbers ----------------------------------------------------------------------------------

/** Exponential mean without the bias of its beginning; gaps stay gaps. */
function smoothed(values, weight) {
  let mean = 0, mass = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    mean = weight * mean + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return mean / mass;
  });
}

/** Round numbers between two, about so many. */
function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999);
  const out = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) out.push(n * step);
  return out;
}

/** A number for people. */
function shown(value) {
  if (typeof value !== "number" || Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
}

/** A number of an axis: short. */
function tick(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return +(value / 1e6).toPrecision(4) + "M";
  if (size >= 1e4) return +(value / 1e3).toPrecision(4) + "k";
  if (size !== 0 && size < 1e-3) return (+value.toPrecision(3)).toExponential();
  return String(+value.toPrecision(6));
}

/** Env steps after a step, between the known ones if need be. */
function envSteps(step) {
  const known = run.metrics.env_steps;
  let low = 0, high = known.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (known[middle][0] < step) low = middle + 1; else high = middle;
  }
  const [after, value] = known[low];
  if (after === step || low === 0 || after < step) return value;
  const [before, earlier] = known[low - 1];
  return earlier + (value - earlier) * (step - before) / (after - before);
}

// -- what is chosen ---------------------------------------------------------------------------

const series = {};
for (const [name, found] of Object.entries(run.metrics.series)) {
  // What JSON has no number for stands there by its name.
  series[name] = { steps: found.steps, values: found.values.map((v) => typeof v === "number" ? v : Number(v.replace("inf", "Infinity"))) };
}
const names = Object.keys(series);
const OVERVIEW = [
  /^eval\/(success_once|pass@1)$/, /^eval\/return$/, /^env\/success_once$/, /^env\/return$/, /^rollout\/(score|rewards)$/,
  /^train\/\w+\/q_values$/, /^train\/\w+\/q_targets$/, /^train\/\w+\/td_error$/, /^train\/\w+\/alpha$/,
  /^train\/replay_buffer\/total_samples$/, /^train\/\w+\/update_ratio$/, /^rollout\/policy_age$/,
  /^rollout\/policy_age_max$/, /^rollout\/stale_dropped$/, /^rollout\/handed_over_early$/, /^train\/dagger\/labels$/, /^rollout\/intervened$/,
  /^train\/actor\/(policy_loss|loss)$/, /^train\/critic\/value_loss$/, /^train\/actor\/approx_kl$/,
  /^train\/actor\/grad_norm$/, /^train\/critic\/explained_variance$/, /^env\/steps_per_second$/,
  /^rollout\/samples_per_second$/, /^time\/step$/,
];
const MOST_IN_OVERVIEW = 12;
/** Whether there is something to see: what is about other kinds of runs is zero from first to last. */
const says = (name) => !/policy_age|stale_dropped|handed_over|intervened/.test(name) || series[name].values.some((v) => v !== 0);
const namespace = (name) => name.includes("/") ? name.slice(0, name.indexOf("/")) : "other";
const groups = ["overview", ...new Set(names.map(namespace))];
const chosen = { group: "overview", search: "", weight: 0, axis: "step" };

function wanted() {
  if (chosen.search) return names.filter((name) => name.toLowerCase().includes(chosen.search));
  if (chosen.group !== "overview") return names.filter((name) => namespace(name) === chosen.group);
  const main = OVERVIEW.flatMap((wanted) => names.filter((name) => wanted.test(name) && says(name)));
  return (main.length ? main : names).slice(0, MOST_IN_OVERVIEW);
}

// -- a chart ----------------------------------------------------------------------------------

const SIZE = { width: 360, height: 168, left: 48, right: 10, top: 8, bottom: 20 };
let charts = [];

function svg(kind, attributes, parent) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (parent) parent.append(node);
  return node;
}

function element(kind, className, text, parent) {
  const node = document.createElement(kind);
  if (className) node.className = className;
  if (text) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function path(xs, ys, x, y) {
  let text = "", pen = "M";
  for (let i = 0; i < xs.length; i++) {
    if (!Number.isFinite(ys[i])) { pen = "M"; continue; }
    text += pen + x(xs[i]).toFixed(2) + " " + y(ys[i]).toFixed(2);
    pen = "L";
  }
  return text;
}

function bounds(name, values) {
  const finite = values.filter(Number.isFinite);
  if (!finite.length) return [0, 1];
  let low = finite.reduce((a, b) => Math.min(a, b)), high = finite.reduce((a, b) => Math.max(a, b));
  if (/success|accuracy|fraction/.test(name) && low >= 0 && high <= 1) return [0, 1];
  if (low === high) { const room = Math.abs(low) * 0.1 || 1; return [low - room, high + room]; }
  const room = (high - low) * 0.05;
  return [low - room, high + room];
}

function drawChart(name, parent) {
  const { steps, values } = series[name];
  const xs = chosen.axis === "env steps" ? steps.map(envSteps) : steps;
  const lines = chosen.weight ? smoothed(values, chosen.weight) : values;
  const box = element("div", "chart", "", parent);
  const head = element("header", "", "", box);
  const title = element("div", "name", "", head);
  const cut = name.indexOf("/") + 1;
  element("span", "", name.slice(0, cut), title);
  title.append(name.slice(cut));
  title.title = name;
  const now = element("div", "now", "", head);
  const picture = svg("svg", { viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", "aria-label": name }, box);
  const [low, high] = bounds(name, values);
  let first = xs[0], last = xs[xs.length - 1];
  if (first === last) { first -= 1; last += 1; }
  const x = (v) => SIZE.left + (v - first) / (last - first) * (SIZE.width - SIZE.left - SIZE.right);
  const y = (v) => SIZE.height - SIZE.bottom - (v - low) / (high - low) * (SIZE.height - SIZE.top - SIZE.bottom);
  for (const value of ticks(low, high, 4)) {
    svg("line", { x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: y(value), y2: y(value), class: "grid" }, picture);
    svg("text", { x: SIZE.left - 6, y: y(value) + 3.5, "text-anchor": "end" }, picture).textContent = tick(value);
  }
  for (const value of ticks(first, last, 5).filter((v) => xs.length === 1 ? v === xs[0] : chosen.axis !== "step" || Number.isInteger(v))) {
    svg("text", { x: x(value), y: SIZE.height - 5, "text-anchor": "middle" }, picture).textContent = tick(value);
  }
  svg("path", { d: path(xs, values, x, y), class: chosen.weight ? "raw faint" : "raw" }, picture);
  if (chosen.weight) svg("path", { d: path(xs, lines, x, y), class: "smooth" }, picture);
  if (xs.length <= 40 && !chosen.weight) xs.forEach((at, i) => {
    if (Number.isFinite(values[i])) svg("circle", { cx: x(at), cy: y(values[i]), r: 2.2, class: "point" }, picture);
  });
  const cursor = svg("line", { y1: SIZE.top, y2: SIZE.height - SIZE.bottom, class: "cursor", visibility: "hidden" }, picture);
  const dot = svg("circle", { r: 3.6, class: "point", visibility: "hidden" }, picture);
  const chart = {
    /** Marks the point nearest to a place on the axis; without one, tells the last value. */
    mark(place) {
      const known = xs.map((at, i) => i).filter((i) => place === undefined || Number.isFinite(xs[i]));
      let best = known[known.length - 1];
      if (place !== undefined) for (const i of known) if (Math.abs(xs[i] - place) < Math.abs(xs[best] - place)) best = i;
      const unit = chosen.axis === "step" ? "step " : "";
      const raw = chosen.weight ? ` (${shown(values[best])})` : "";
      now.textContent = place === undefined
        ? shown(values[values.length - 1])
        : `${shown(lines[best])}${raw} at ${unit}${Math.round(xs[best]).toLocaleString("en")}`;
      const visible = place !== undefined && Number.isFinite(lines[best]) ? "visible" : "hidden";
      for (const mark of [cursor, dot]) mark.setAttribute("visibility", visible);
      if (visible === "visible") {
        cursor.setAttribute("x1", x(xs[best])); cursor.setAttribute("x2", x(xs[best]));
        dot.setAttribute("cx", x(xs[best])); dot.setAttribute("cy", y(lines[best]));
      }
    },
  };
  picture.addEventListener("pointermove", (event) => {
    const area = picture.getBoundingClientRect();
    const at = (event.clientX - area.left) / area.width * SIZE.width;
    const place = first + (at - SIZE.left) / (SIZE.width - SIZE.left - SIZE.right) * (last - first);
    for (const one of charts) one.mark(place);
  });
  picture.addEventListener("pointerleave", () => { for (const one of charts) one.mark(); });
  chart.mark();
  return chart;
}

// -- tools ------------------------------------------------------------------------------------

function drawCharts() {
  const parent = document.getElementById("charts");
  parent.replaceChildren();
  charts = wanted().map((name) => drawChart(name, parent));
  for (const button of document.querySelectorAll(".chips button")) {
    button.setAttribute("aria-pressed", String(!chosen.search && button.textContent === chosen.group));
  }
}

function drawTools() {
  const tools = document.getElementById("curve-tools");
  const chips = element("div", "chips", "", tools);
  const search = document.createElement("input");
  for (const group of groups) {
    const button = element("button", "", group, chips);
    button.type = "button";
    button.addEventListener("click", () => { chosen.group = group; chosen.search = search.value = ""; drawCharts(); });
  }
  Object.assign(search, { type: "search", placeholder: "find a metric" });
  search.setAttribute("aria-label", "find a metric");
  search.addEventListener("input", () => { chosen.search = search.value.trim().toLowerCase(); drawCharts(); });
  tools.append(search);
  const smooth = element("label", "", "smoothing", tools);
  const range = document.createElement("input");
  Object.assign(range, { type: "range", min: 0, max: 0.98, step: 0.02, value: 0 });
  range.addEventListener("input", () => { chosen.weight = +range.value; drawCharts(); });
  smooth.append(range);
  if (run.metrics.env_steps.length) {
    const label = element("label", "", "over", tools);
    const select = document.createElement("select");
    for (const axis of ["step", "env steps"]) element("option", "", axis, select);
    select.addEventListener("change", () => { chosen.axis = select.value; drawCharts(); });
    label.append(select);
  }
}

if (names.length) { drawTools(); drawCharts(); }
