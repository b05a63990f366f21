// Curves over seeds: a measure against rounds, floats, bytes or virtual time.
const AXIS = {
  rounds: ["rounds", "round"], floats: ["floats received by the server", "floats received"],
  bytes: ["bytes sent, both ways", "bytes"], time: ["virtual time (seconds)", "virtual seconds"],
};

function smoothed(values, width) {
  if (width < 2) return values;
  return values.map((value, at) => {
    if (value === null) return null;
    const kept = values.slice(Math.max(0, at - width + 1), at + 1).filter((each) => each !== null);
    return kept.reduce((sum, each) => sum + each, 0) / kept.length;
  });
}

function points(run, axis, measure, width) {
  const values = smoothed(run.y[measure] || [], width);
  return values.map((value, at) => [run.x[axis][at], value]);
}

// The value of a broken line at x; null outside of it or in a gap.
function between(line, x) {
  if (!line.length || x < line[0][0] || x > line[line.length - 1][0]) return null;
  let low = 0, high = line.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (line[middle][0] <= x) low = middle; else high = middle;
  }
  const [[x0, y0], [x1, y1]] = [line[low], line[high]];
  if (x === x1) return y1;
  if (y0 === null || y1 === null) return x === x0 ? y0 : null;
  return x1 === x0 ? y1 : y0 + ((y1 - y0) * (x - x0)) / (x1 - x0);
}

function statistics(values) {
  const kept = values.filter((value) => value !== null && value !== undefined);
  if (!kept.length) return { mean: null, deviation: null, low: null, high: null, count: 0 };
  const mean = kept.reduce((sum, value) => sum + value, 0) / kept.length;
  const squares = kept.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const [low, high] = extent(kept);
  return { mean, low, high, count: kept.length, deviation: kept.length > 1 ? Math.sqrt(squares / (kept.length - 1)) : null };
}

// One series: its grid with statistics over the seeds that count, and every seed by itself.
function curve(one, axis, measure, width) {
  const each = one.runs.map((run) => ({ run, line: points(run, axis, measure, width) }));
  const counted = each.filter(({ run, line }) => run.counts && line.some(([, y]) => y !== null)).map(({ line }) => line);
  let grid = [];
  if (axis === "rounds") {
    const at = counted.map((line) => new Map(line));
    grid = [...new Set(counted.flatMap((line) => line.map(([x]) => x)))].sort((a, b) => a - b)
      .map((x) => ({ x, ...statistics(at.map((values) => values.get(x))) }));
  } else if (counted.length === 1) {
    grid = counted[0].map(([x, y]) => ({ x, ...statistics([y]) }));
  } else if (counted.length) {
    const from = Math.max(...counted.map((line) => line[0][0])), to = Math.min(...counted.map((line) => line[line.length - 1][0]));
    const count = Math.max(2, ...counted.map((line) => line.length));
    for (let at = 0; at < count && to >= from; at += 1) {
      const x = at === count - 1 ? to : from + ((to - from) * at) / (count - 1);
      grid.push({ x, ...statistics(counted.map((line) => between(line, x))) });
    }
  }
  return { grid, each };
}

function edges(point, band) {
  if (band === "deviation" && point.deviation !== null) return [point.mean - point.deviation, point.mean + point.deviation];
  if (band === "range" && point.count > 1) return [point.low, point.high];
  return null;
}

// A mean of living and dead seeds says nothing of either: where one died, every seed is drawn instead of a deviation.
const withDead = (each) => each.some(({ run }) => run.died && run.counts);
const bandOf = (each, band) => band === "deviation" && withDead(each) ? "seeds" : band;

// What a series spans: [x, values...] of everything that is drawn of it.
function extremes({ grid, each }, band) {
  return [...grid.map((point) => [point.x, point.mean, ...(edges(point, band) || [])]),
    ...each.filter(({ run }) => band === "seeds" || !run.counts).flatMap(({ line }) => line)];
}

// The range of an axis that shows all of these; null where there is nothing to show.
function reach(values, log, room = false) {
  const found = extent(log ? values.filter((value) => value > 0) : values);
  if (!found) return null;
  if (!room && found[0] < found[1]) return found;
  return log ? [found[0] / 1.1, found[1] * 1.1] : padded(found);
}

function drawCurves() {
  const host = section("curves");
  if (!host) return;
  const chart = el("div", { class: "chart" });
  const again = () => draw();
  let near = {};  // the ranges of x and y that are looked at more closely
  const far = () => { near = {}; draw(); };
  const logX = el("input", { type: "checkbox", id: "logx" }), logY = el("input", { type: "checkbox", id: "logy" });
  const stretch = () => { logX.checked = data.stretched.includes(axis.value); };
  const [measureLabel, measure] = choice("measure", data.measures.map((name) => [name, name]), far);
  const [axisLabel, axis] = choice("against", data.axes.map((name) => [name, AXIS[name][0]]), () => { stretch(); far(); });
  const [bandLabel, band] = choice("over seeds", [["deviation",
    data.series.some((one) => one.runs.some((run) => run.died && run.counts)) ? "± one standard deviation; every seed where one died" : "± one standard deviation"], ["range", "least to most"],
    ["seeds", "every seed"], ["none", "mean only"]], again);
  const width = el("input", { type: "number", min: 1, max: 100, value: data.smooth });
  const whole = el("button", { type: "button", id: "whole" }, "show all of it");
  width.addEventListener("input", again);
  logX.addEventListener("change", far);
  logY.addEventListener("change", far);
  whole.addEventListener("click", far);
  measure.id = "measure"; axis.id = "axis"; band.id = "band"; width.id = "smooth";
  measure.value = data.headline;
  stretch();
  host.append(el("div", { class: "controls" }, measureLabel, axisLabel, bandLabel,
    el("label", {}, "mean of the last", width, "evaluations"), el("label", {}, logX, "log x"), el("label", {}, logY, "log y"),
    whole), legend(), chart);

  let state = null;
  function draw() {
    const steps = Math.max(1, Math.floor(Number(width.value)) || 1);
    const all = data.series.map((one) => curve(one, axis.value, measure.value, steps));
    const shown = all.map((one, at) => ({ ...one, at })).filter(({ at }) => !hidden.has(at));
    const spans = shown.map((one) => extremes(one, bandOf(one.each, band.value))).flat();
    const xRange = near.x || reach(spans.map(([x]) => x), logX.checked);
    const seen = spans.filter(([x]) => xRange && x >= xRange[0] && x <= xRange[1]);
    const yRange = near.y || reach(seen.flatMap(([, ...values]) => values), logY.checked, true);
    whole.hidden = !near.x && !near.y;
    if (near.x && !yRange) return far();
    if (!yRange || !xRange) {
      chart.replaceChildren(el("p", { class: "note" }, "Nothing to draw: no finite value is shown, or none above 0 for a logarithm."));
      state = null;
      return undefined;
    }
    const x = { label: AXIS[axis.value][0], range: xRange, log: logX.checked };
    const y = { label: measure.value, range: yRange, log: logY.checked };
    state = { ...frame(chart, { x, y, title: `${measure.value} against ${x.label}` }), shown };
    state.lines = cut(state.drawing, state.box);
    shown.forEach((one) => one.grid.length + one.each.length && drawOne(state, one, bandOf(one.each, band.value)));
    const end = () => { untip(chart); state && state.drawing.querySelectorAll(".cursor").forEach((old) => old.remove()); };
    state.drawing.addEventListener("pointermove", (event) => hover(event, chart, state, axis.value));
    state.drawing.addEventListener("pointerleave", end);
    state.drawing.addEventListener("dblclick", far);
    closer(state, (ranges) => { near = { x: ranges.x || near.x, y: ranges.y || (ranges.x ? undefined : near.y) }; draw(); });
    return undefined;
  }
  drawn(draw);
}

function drawOne({ lines, sx, sy }, { grid, each, at }, band) {
  const group = svg("g", { class: series(at), "data-series": at });
  let run = [];
  const flush = () => {
    if (run.length > 1) {
      const upper = run.map(([x, [, high]]) => `${sx(x).toFixed(1)} ${sy(high).toFixed(1)}`);
      const lower = run.map(([x, [low]]) => `${sx(x).toFixed(1)} ${sy(low).toFixed(1)}`).reverse();
      group.append(svg("path", { class: "band", d: `M${upper.concat(lower).join("L")}Z` }));
    }
    run = [];
  };
  for (const point of grid) {
    const around = point.mean === null ? null : edges(point, band);
    if (around && placed(sx, point.x) && placed(sy, around[0])) run.push([point.x, around]); else flush();
  }
  flush();
  for (const { run: one, line } of each) {
    if (band !== "seeds" && one.counts) continue;
    group.append(svg("path", { class: "thin", d: path(line, sx, sy), "stroke-dasharray": one.counts ? dash(at) : "3 3" }));
    const last = line.filter(([x, y]) => y !== null && placed(sx, x) && placed(sy, y)).pop();
    if (last && one.died) {
      const [px, py] = [sx(last[0]), sy(last[1])];
      group.append(svg("path", { class: "mark", d: `M${px - 4} ${py - 4}L${px + 4} ${py + 4}M${px - 4} ${py + 4}L${px + 4} ${py - 4}` }));
    }
  }
  const line = grid.map(({ x, mean }) => [x, mean]);
  if (band !== "seeds") group.append(svg("path", { class: "line", d: path(line, sx, sy), "stroke-dasharray": dash(at) }));
  if (line.length === 1 && line[0][1] !== null && placed(sx, line[0][0]) && placed(sy, line[0][1])) group.append(svg("circle", { class: "dot", cx: sx(line[0][0]), cy: sy(line[0][1]), r: 4 }));
  lines.append(group);
}

// Against rounds the pointer goes to the nearest evaluation; else values are read off the lines.
function hover(event, chart, { drawing, sx, box, width, shown }, axis) {
  const at = pointer(event, drawing, width);
  const grids = shown.flatMap(({ grid }) => grid.map(({ x }) => x)).filter((x) => placed(sx, x));
  if (!grids.length) return;
  const [first, last] = extent(grids);
  let x = Math.min(last, Math.max(first, sx.back(Math.min(box.right, Math.max(box.left, at.x)))));
  if (axis === "rounds") x = grids.reduce((best, each) => (Math.abs(each - x) < Math.abs(best - x) ? each : best), grids[0]);
  drawing.querySelectorAll(".cursor").forEach((old) => old.remove());
  drawing.append(svg("line", { class: "cursor", x1: sx(x), x2: sx(x), y1: box.top, y2: box.bottom }));
  const rows = shown.map(({ grid, at: number }) => {
    const find = (name) => (axis === "rounds" ? (grid.find((point) => point.x === x) || {})[name] ?? null
      : between(grid.map((point) => [point.x, point[name]]), x));
    const deviation = find("deviation");
    return [swatch(number), labels[number], told(find("mean")), deviation === null ? "" : `± ${told(deviation)}`];
  });
  tip(chart, sx(x) / at.unit, 10, `${AXIS[axis][1]} ${axis === "time" ? told(x) : whole(x)}`, rows);
}
