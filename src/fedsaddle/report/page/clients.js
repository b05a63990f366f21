// How the solution serves each client, and who was asked, answered or came too late.
function seedsOf(lists) {
  return [...new Set(lists.flatMap((runs) => runs.map((run) => run.seed)))].sort((a, b) => a - b);
}

// The run of a series with this seed, or its first.
function ofSeed(runs, seed) {
  return runs.find((run) => run.seed === seed) || runs[0];
}

function drawFairness() {
  const host = section("fairness");
  if (!host) return;
  const chart = el("div", { class: "chart" });
  const words = el("div", { class: "wide" });
  const names = [...new Set(data.clients.flatMap((runs) => runs.flatMap((run) => Object.keys(run.measures))))];
  const [measureLabel, measure] = choice("measure", names.map((name) => [name, name]), () => draw());
  const [seedLabel, seed] = choice("seed", seedsOf(data.clients).map((each) => [each, each]), () => draw());
  measure.id = "fairness-measure";
  host.append(el("div", { class: "controls" }, measureLabel, seedLabel), legend((at) => data.clients[at].length), chart, words);
  function draw() {
    const shown = labels.map((label, at) => ({ label, at, run: ofSeed(data.clients[at], Number(seed.value)) }))
      .filter(({ at, run }) => run && run.measures[measure.value] && !hidden.has(at))
      .map((one) => ({ ...one, found: one.run.measures[measure.value] }));
    fairnessTable(words, shown, measure.value);
    const range = extent(shown.flatMap(({ found }) => found.values || found.edges));
    if (!range) return chart.replaceChildren();
    const line = 62, height = 56 + line * shown.length;
    const state = frame(chart, { height, title: `${measure.value} of every client`,
      x: { label: `${measure.value} of a client`, range: padded(range, 0.03) },
      y: { label: "", range: [0, shown.length], ticks: [] } });
    shown.forEach((one, at) => strip(state, one, at, line, chart));
  }
  drawn(draw);
}

function strip({ drawing, sx, sy, box, width }, { label, at, run, found }, row, line, chart) {
  const middle = box.top + line * (row + 0.62);
  const group = svg("g", { class: series(at) });
  group.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: middle + 22, y2: middle + 22 }),
    svg("text", { class: "strong", x: box.left, y: middle - 26 }, label,
      svg("tspan", { class: "soft", dx: 10 }, `worst: client ${found.worst_client}, ${found.told.worst}`)));
  if (found.values) {
    const order = found.values.map((value, at) => at).sort((a, b) => found.values[a] - found.values[b]);
    order.forEach((which, place) => {
      const client = found.ids[which];
      const dot = svg("circle", { class: "dot", cx: sx(found.values[which]), r: 4,
        cy: middle + 14 - (28 * (place % 8)) / 7 });  // neighbours at different heights, so that equal ones are seen
      dot.addEventListener("pointerenter", (event) => {
        const place = pointer(event, drawing, width);
        const rows = run.rows && run.rows[client] !== undefined ? [[`${whole(run.rows[client])} rows`]] : [];
        tip(chart, place.x / place.unit, place.y / place.unit, `client ${client}: ${told(found.values[which])}`, rows);
      });
      dot.addEventListener("pointerleave", () => untip(chart));
      group.append(dot);
    });
  } else {
    const most = Math.max(...found.counts);
    found.counts.forEach((count, bin) => group.append(svg("rect", { class: "bar", x: sx(found.edges[bin]) + 0.5,
      width: Math.max(0.5, sx(found.edges[bin + 1]) - sx(found.edges[bin]) - 1), y: middle + 22 - (42 * count) / most,
      height: (42 * count) / most })));
  }
  group.append(svg("circle", { class: "worst", cx: sx(found.worst), cy: found.values ? middle + (found.higher ? 14 : 14 - (28 * ((found.clients - 1) % 8)) / 7) : middle + 17, r: 6.5 }));
  for (const [value, name] of [[found.tenth, "worst 10 %"], [found.mean, "mean"]]) {
    group.append(svg("line", { class: "mark", x1: sx(value), x2: sx(value), y1: middle - 18, y2: middle + 22,
      "stroke-dasharray": name === "mean" ? null : "3 2" }, svg("title", {}, `${name}: ${told(value)}`)));
  }
  drawing.append(group);
}

function fairnessTable(host, shown, measure) {
  const head = ["method", "seed", "clients", "worst", "worst client", "worst 10 %", "mean"];
  host.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ...head.map((name, at) => el("th", { class: at ? "number" : "" }, name)))),
    el("tbody", {}, ...shown.map(({ label, at, run, found }) => el("tr", {}, el("th", {}, swatch(at), label),
      ...[String(run.seed), whole(found.clients), found.told.worst, `client ${found.worst_client}`, found.told.tenth, found.told.mean]
        .map((text) => el("td", { class: "number" }, text)))))),
    el("p", { class: "note" }, `${measure}: a circle marks the worst client, a dashed line the mean of the worst 10 %, a solid line the mean over clients.`));
}

function drawParticipation() {
  const host = section("participation");
  if (!host) return;
  host.append(keys([["answered", "answered"], ["late", "late"], ["no answer", "silent"]]));
  const grid = el("div", { class: "charts" });
  host.append(grid);
  data.participation.forEach((found, at) => {
    if (!found.rounds) return;
    const bars = el("div", { class: "chart" });
    const figure = el("figure", {}, el("figcaption", {}, swatch(at), `${labels[at]}, seed ${found.seed}`), bars);
    if (found.raster) figure.append(rasterOf(found));
    grid.append(figure);
    drawn(() => { figure.hidden = hidden.has(at); if (!figure.hidden) participationBars(bars, found); });
  });
}

function participationBars(host, found) {
  const silent = found.asked.map((asked, at) => Math.max(0, asked - found.answered[at] - found.late[at]));
  stacked(host, { rounds: found.rounds, step: found.step, label: "clients asked", title: "asked, answered and late per round",
    parts: [["answered", "answered", found.answered], ["late", "late", found.late], ["no answer", "silent", silent]] });
}

// Bars in a row, each made of parts [name, class, values].
function stacked(host, { rounds, step, label, title, parts, height = 170, told: say = whole }) {
  const sums = rounds.map((round, at) => parts.reduce((sum, [, , values]) => sum + values[at], 0));
  const unit = step > 1 ? `rounds, ${step} to a bar` : "round";
  const last = rounds[rounds.length - 1] + step - 1;
  const { drawing, sx, sy, box, width } = frame(host, { height, title,
    x: { label: unit, range: [rounds[0] - 0.5, last + 0.5] }, y: { label, range: [0, Math.max(...sums, 1) * 1.05] } });
  const gap = sx(step) - sx(0) > 4 ? 1 : 0;
  for (const [at, round] of rounds.entries()) {
    let base = 0;
    const left = sx(round - 0.5), wide = Math.max(0.4, sx(round - 0.5 + step) - left - gap);
    for (const [, kind, values] of parts) {
      if (!values[at]) continue;
      drawing.append(svg("rect", { class: kind, x: left.toFixed(2), width: wide.toFixed(2), y: sy(base + values[at]).toFixed(2),
        height: (sy(base) - sy(base + values[at])).toFixed(2) }));
      base += values[at];
    }
  }
  drawing.addEventListener("pointermove", (event) => {
    const place = pointer(event, drawing, width);
    const at = Math.floor(((place.x - box.left) / (box.right - box.left)) * ((last - rounds[0] + 1) / step));
    if (at < 0 || at >= rounds.length) return untip(host);
    const name = step > 1 ? `rounds ${rounds[at]} to ${rounds[at] + step - 1}` : `round ${rounds[at]}`;
    return tip(host, place.x / place.unit, 5, name, parts.map(([part, , values]) => [part, say(values[at])]));
  });
  drawing.addEventListener("pointerleave", () => untip(host));
}

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

// Clients x rounds: the colour says what became of most asks of a cell, its strength how many there were.
function rasterOf(found) {
  const { clients, group, lines, columns, palette, width, cells } = found.raster;
  const index = new Map([...LETTERS].map((letter, at) => [letter, at]));
  const entry = (line, column) => {
    let at = 0;
    const from = (line * columns + column) * width;
    for (let place = 0; place < width; place += 1) at = at * 64 + index.get(cells[from + place]);
    return palette[at];
  };
  const canvas = el("canvas", { width: columns, height: lines, role: "img", "aria-label": "clients asked, by round" });
  canvas.style.height = `${Math.min(300, Math.max(150, lines * 3))}px`;
  const box = el("div", { class: "raster" }, el("span", { class: "side" }, `clients 0 to ${clients - 1}`), canvas,
    el("div", { class: "below" }, el("span", {}, `round ${found.rounds[0]}`),
      el("span", {}, `round ${found.rounds[found.rounds.length - 1] + found.step - 1}`)));
  const most = Math.max(1, ...palette.map((counts) => counts[0] + counts[1] + counts[2]));
  drawn(() => {
    const style = getComputedStyle(document.documentElement);
    const colours = ["--answered", "--late", "--silent"].map((name) => style.getPropertyValue(name).split(",").map(Number));
    const pen = canvas.getContext("2d"), picture = pen.createImageData(columns, lines);
    for (let line = 0; line < lines; line += 1) {
      for (let column = 0; column < columns; column += 1) {
        const counts = entry(line, column), sum = counts[0] + counts[1] + counts[2];
        if (!sum) continue;
        const at = (line * columns + column) * 4;
        for (let part = 0; part < 3; part += 1) {
          picture.data[at + part] = colours.reduce((mix, colour, kind) => mix + (colour[part] * counts[kind]) / sum, 0);
        }
        picture.data[at + 3] = 90 + (165 * sum) / most;
      }
    }
    pen.putImageData(picture, 0, 0);
  });
  canvas.addEventListener("pointermove", (event) => {
    const area = canvas.getBoundingClientRect();
    const column = Math.min(columns - 1, Math.floor(((event.clientX - area.left) / area.width) * columns));
    const line = Math.min(lines - 1, Math.max(0, Math.floor(((event.clientY - area.top) / area.height) * lines)));
    const [answered, late, silent] = entry(line, column);
    const who = group > 1 ? `clients ${line * group} to ${Math.min(clients, (line + 1) * group) - 1}` : `client ${line}`;
    const when = found.step > 1 ? `rounds ${found.rounds[column]} to ${found.rounds[column] + found.step - 1}` : `round ${found.rounds[column]}`;
    tip(box, event.clientX - box.getBoundingClientRect().left, event.clientY - box.getBoundingClientRect().top, `${who}, ${when}`,
      [["answered", String(answered)], ["late", String(late)], ["no answer", String(silent)]]);
  });
  canvas.addEventListener("pointerleave", () => untip(box));
  return box;
}
