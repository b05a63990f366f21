"use strict";
// What every drawing uses: elements, numbers in words, axes, legends, the little table at the pointer.
const data = JSON.parse(document.getElementById("data").textContent);
const labels = data.series.map((one) => one.label);
const hidden = new Set();  // series that the legend has switched off, everywhere
const drawings = [];       // functions that draw again

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  return dressed(node, attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return dressed(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function dressed(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

// A number in a sentence: as the tables write it.
function told(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "-";
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e4) return value.toFixed(4);
  if (size === 0 || (size >= 1e-4 && size < 1e-3)) return String(Number(value.toPrecision(4)));
  const [digits, power] = value.toExponential(3).split("e");
  return `${Number(digits)}e${power[0]}${power.slice(1).padStart(2, "0")}`;
}

function whole(value) {
  return Math.round(value).toLocaleString("en-US");
}

// A number at an axis: short.
function short(value) {
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit) return `${Number((value / unit).toPrecision(4))}${letter}`;
  }
  if (size > 0 && size < 1e-3) return value.toExponential(0);
  return String(Number(value.toPrecision(6)));
}

function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= raw * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(at * step);
  return found;
}

function logTicks(low, high) {
  const found = [];
  const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
  const factors = to - from <= 1 ? [1, 2, 3, 5, 7] : to - from <= 3 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil((to - from) / 8));
  for (let power = from; power <= to; power += every) {
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  return found.length ? found : [low, high];
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value === null || !Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? null : [low, high];
}

function padded([low, high], share = 0.05) {
  const room = (high - low) * share || Math.abs(high) * share || 1;
  return [low - room, high + room];
}

// Every so many of some ticks that are too many.
function fewer(found, most) {
  const every = Math.ceil(found.length / (most + 1));
  return found.filter((value, at) => at % every === 0);
}

// From values to places; `back` leads from places to values. What a logarithm does not know has no finite place.
function scale(range, from, to, log) {
  const f = log ? Math.log : (value) => value, inverse = log ? Math.exp : (value) => value;
  const low = f(range[0]), high = f(range[1]);
  const place = (value) => from + ((f(value) - low) / ((high - low) || 1)) * (to - from);
  place.back = (at) => inverse(low + ((at - from) / (to - from)) * (high - low));
  return place;
}

// A frame with axes. `x`, `y`: {label, range, log, ticks}; gives back the drawing and its scales.
function frame(host, { x, y, height = 340, title, bare = false }) {
  host.replaceChildren();
  const width = Math.max(280, host.clientWidth || 900);
  const yTicks = y.ticks || (y.log ? logTicks(...y.range) : ticks(...y.range, Math.max(2, height / 60)));
  const names = yTicks.map(y.told || short);
  const box = { left: 26 + 7 * Math.max(2, ...names.map((name) => name.length)), right: width - 14, top: 10, bottom: height - 42 };
  const sx = scale(x.range, box.left, box.right, x.log), sy = scale(y.range, box.bottom, box.top, y.log);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  yTicks.forEach((value, at) => {
    drawing.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: sy(value), y2: sy(value) }),
      svg("text", { x: box.left - 6, y: sy(value) + 4, "text-anchor": "end" }, names[at]));
  });
  const most = Math.max(2, Math.min(10, (box.right - box.left) / 75));
  const xTicks = x.ticks || (x.log ? fewer(logTicks(...x.range), most) : ticks(...x.range, most));
  for (const value of bare ? [] : xTicks) {
    drawing.append(svg("line", { class: "axis", x1: sx(value), x2: sx(value), y1: box.bottom, y2: box.bottom + 4 }),
      svg("text", { x: sx(value), y: box.bottom + 18, "text-anchor": "middle" }, short(value)));
  }
  drawing.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    svg("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, x.label),
    svg("text", { x: 0, y: 0, "text-anchor": "middle", transform: `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)` }, y.label));
  host.append(drawing);
  return { drawing, sx, sy, box, width, height };
}

const placed = (scale, value) => Number.isFinite(scale(value));

// A path through points [x, y]; one that is missing, or has no place on a logarithmic axis, breaks it.
function path(points, sx, sy) {
  let text = "", on = false;
  for (const [x, y] of points) {
    if (y === null || !placed(sx, x) || !placed(sy, y)) { on = false; continue; }
    text += `${on ? "L" : "M"}${sx(x).toFixed(1)} ${sy(y).toFixed(1)}`;
    on = true;
  }
  return text;
}

const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const TURN = [0, 1, 1, 0, 2, 2, 3, 3]; // of every four series: no two of the first 32 are alike
const dash = (at) => DASHES[TURN[(at >> 2) % 8]] || null;
const series = (at) => `s${at % 8}`;

function swatch(at) {
  return svg("svg", { class: `swatch ${series(at)}`, viewBox: "0 0 24 10", "aria-hidden": "true" },
    svg("line", { x1: 0, x2: 24, y1: 6, y2: 6, "stroke-dasharray": dash(at) }));
}

function legend(present) {
  const host = el("div", { class: "legend" });
  labels.forEach((label, at) => {
    if (present && !present(at)) return;
    const button = el("button", { type: "button", "aria-pressed": String(!hidden.has(at)), title: "show or hide" }, swatch(at), label);
    button.dataset.series = at;
    button.addEventListener("click", () => {
      if (hidden.has(at)) hidden.delete(at); else hidden.add(at);
      document.querySelectorAll(`.legend button[data-series="${at}"]`).forEach(
        (each) => each.setAttribute("aria-pressed", String(!hidden.has(at))));
      redraw();
    });
    host.append(button);
  });
  return host;
}

function keys(entries) {
  return el("div", { class: "legend" }, ...entries.map(([name, kind]) =>
    el("span", { class: "key" }, el("i", { class: `keybox ${kind}` }), name)));
}

function choice(label, options, onChange) {
  const select = el("select", {}, ...options.map(([value, text]) => el("option", { value }, text)));
  select.addEventListener("change", onChange);
  return [el("label", {}, label, select), select];
}

// A small table at the pointer, kept inside of its host.
function tip(host, x, y, head, rows) {
  const table = el("table", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, cell)))));
  const box = el("div", { class: "tip" }, el("b", {}, head), table);
  untip(host);
  host.append(box);
  const width = box.offsetWidth;
  box.style.left = `${Math.max(0, x + 16 + width > host.clientWidth ? x - width - 16 : x + 16)}px`;
  box.style.top = `${Math.max(0, y)}px`;
  return box;
}

function untip(host) {
  host.querySelectorAll(".tip").forEach((old) => old.remove());
}

// The place of the pointer in the units of a drawing.
function pointer(event, drawing, width) {
  const box = drawing.getBoundingClientRect();
  const unit = width / box.width;
  return { x: (event.clientX - box.left) * unit, y: (event.clientY - box.top) * unit, unit };
}

function section(name) {
  return document.querySelector(`#${name} .drawings`);
}

function redraw() {
  drawings.forEach((draw) => draw());
}

function drawn(draw) {
  drawings.push(draw);
  draw();
}
