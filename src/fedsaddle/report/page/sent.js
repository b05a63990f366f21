// What was sent, and how well scores tell classes apart.
const WAYS = [["down", "down"], ["up", "up"], ["late", "late"]];

function drawTraffic() {
  const host = section("communication");
  if (!host) return;
  const [label, what] = choice("count", [["floats", "floats"], ["bytes", "bytes"]], () => redraw());
  what.id = "sent";
  const phases = el("div", { class: "chart" }), grid = el("div", { class: "charts" });
  host.append(el("div", { class: "controls" }, label), keys([["down, to clients", "down"], ["up, received in time", "up"], ["up, too late", "late"]]),
    el("h3", {}, "By phase, over the whole run (mean over runs)"), phases, el("h3", {}, "Per round"), grid);
  drawn(() => drawPhases(phases, what.value));
  data.traffic.forEach((found, at) => {
    if (!found.rounds) return;
    const bars = el("div", { class: "chart" });
    const figure = el("figure", {}, el("figcaption", {}, swatch(at), `${labels[at]}, seed ${found.seed}`), bars);
    grid.append(figure);
    drawn(() => {
      figure.hidden = hidden.has(at);
      if (figure.hidden) return;
      stacked(bars, { rounds: found.rounds, step: found.step, label: what.value, title: `${what.value} per round`,
        parts: WAYS.map(([way, kind]) => [way, kind, found.each[`${what.value}_${way}`]]) });
    });
  });
}

function drawPhases(host, what) {
  const rows = [];
  data.traffic.forEach((found, at) => {
    if (!found.phases || hidden.has(at)) return;
    for (const [name, sent] of Object.entries(found.phases)) {
      rows.push({ at, name, parts: WAYS.map(([way, kind]) => [kind, sent[`${what}_${way}`], way]) });
    }
  });
  host.replaceChildren();
  if (!rows.length) return;
  const sum = (row) => row.parts.reduce((total, [, value]) => total + value, 0);
  const line = 22, width = Math.max(280, host.clientWidth || 900);
  const names = rows.map((row) => `${labels[row.at]}: ${row.name}`);
  const left = Math.min(width * 0.45, 16 + 6.7 * Math.max(...names.map((name) => name.length))), right = width - 70;
  const most = Math.max(...rows.map(sum), 1);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${line * rows.length + 8}`, role: "img", "aria-label": `${what} by phase` });
  rows.forEach((row, at) => {
    const y = 4 + line * at;
    if (at && rows[at - 1].at !== row.at) drawing.append(svg("line", { class: "grid", x1: 0, x2: width, y1: y - 1, y2: y - 1 }));
    drawing.append(svg("text", { x: left - 8, y: y + 14, "text-anchor": "end" }, names[at]));
    let from = left;
    for (const [kind, value, way] of row.parts) {
      const wide = ((right - left) * value) / most;
      if (value) drawing.append(svg("rect", { class: kind, x: from, y: y + 3, width: Math.max(0.5, wide), height: line - 7 },
        svg("title", {}, `${names[at]}: ${whole(value)} ${what} ${way}`)));
      from += wide;
    }
    drawing.append(svg("text", { x: from + 6, y: y + 14 }, short(sum(row))));
  });
  host.append(drawing);
}

function drawScores() {
  const host = section("scores");
  if (!host) return;
  const sets = [...new Set(data.scores.flatMap((runs) => runs.flatMap((run) => Object.keys(run.sets))))];
  const [setLabel, set] = choice("rows", sets.map((name) => [name, name]), () => draw());
  const [seedLabel, seed] = choice("seed", seedsOf(data.scores).map((each) => [each, each]), () => draw());
  const roc = el("div", { class: "chart" }), calibration = el("div", { class: "chart" }), list = el("p", { class: "note" });
  const second = el("figure", {}, el("figcaption", {}, "Calibration"), calibration);
  host.append(el("div", { class: "controls" }, setLabel, seedLabel), legend((at) => data.scores[at].length),
    el("div", { class: "charts pair" }, el("figure", {}, el("figcaption", {}, "ROC"), roc), second), list);
  function draw() {
    const shown = labels.map((label, at) => ({ label, at, run: ofSeed(data.scores[at], Number(seed.value)) }))
      .filter(({ at, run }) => run && run.sets[set.value] && !hidden.has(at)).map((one) => ({ ...one, found: one.run.sets[set.value] }));
    drawRoc(roc, shown);
    list.replaceChildren(shown.map(({ label, run, found }) => `${label}, seed ${run.seed}: AUC ${found.told}`).join("; "));
    const calibrated = shown.filter(({ found }) => (found.calibration.score || []).length);
    second.hidden = !calibrated.length;
    if (calibrated.length) drawCalibration(calibration, calibrated);
  }
  drawn(draw);
}

function drawRoc(host, shown) {
  const { drawing, sx, sy } = frame(host, { height: 380, title: "ROC curves",
    x: { label: "false positive rate", range: [0, 1] }, y: { label: "true positive rate", range: [0, 1.01] } });
  drawing.append(svg("path", { class: "level", d: path([[0, 0], [1, 1]], sx, sy) }));
  for (const { at, found } of shown) {
    drawing.append(svg("path", { class: `line ${series(at)}`, "stroke-dasharray": dash(at), d: path(found.fpr.map((x, point) => [x, found.tpr[point]]), sx, sy) }));
  }
}

function drawCalibration(host, shown) {
  const range = extent(shown.flatMap(({ found }) => found.calibration.score));
  const { drawing, sx, sy } = frame(host, { height: 380, title: "calibration",
    x: { label: "mean score of the rows", range: range[0] >= 0 && range[1] <= 1 ? [0, 1] : padded(range) },
    y: { label: "share of positives", range: [-0.02, 1.02] } });
  if (range[0] >= 0 && range[1] <= 1) drawing.append(svg("path", { class: "level", d: path([[0, 0], [1, 1]], sx, sy) }));
  for (const { at, label, found } of shown) {
    const { score, share, count = [] } = found.calibration;
    const most = Math.max(1, ...count.filter(Number.isFinite));
    const group = svg("g", { class: series(at) });
    const kept = score.map((x, bin) => [x, share[bin], count[bin]]).filter(([x, y]) => Number.isFinite(x) && x !== null && y !== null);
    group.append(svg("path", { class: "thin", d: path(kept, sx, sy), "stroke-dasharray": dash(at) }));
    for (const [x, y, rows] of kept) {
      group.append(svg("circle", { class: "dot", cx: sx(x), cy: sy(y), r: rows ? 2.5 + 6 * Math.sqrt(rows / most) : 4 },
        svg("title", {}, `${label}: score ${told(x)}, share of positives ${told(y)}${rows ? `, ${whole(rows)} rows` : ""}`)));
    }
    drawing.append(group);
  }
}
