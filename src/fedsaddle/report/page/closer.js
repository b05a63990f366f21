// Looking closer: a rectangle drawn over a chart becomes what it shows.
const LEAST = 8;  // of a rectangle that is meant, in the units of the drawing

// Calls `shown` with {x, y}: the ranges of a rectangle drawn with the mouse or a pen; without the one in whose direction
// it is flat. A finger scrolls the page.
function closer({ drawing, sx, sy, box, width }, shown) {
  const within = (value, low, high) => Math.min(high, Math.max(low, value));
  const place = (event) => {
    const { x, y } = pointer(event, drawing, width);
    return { x: within(x, box.left, box.right), y: within(y, box.top, box.bottom) };
  };
  let from = null, outline = null;
  drawing.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch") return;
    from = place(event);
    outline = svg("rect", { class: "closer" });
    drawing.append(outline);
    drawing.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  drawing.addEventListener("pointermove", (event) => {
    if (!from) return;
    const { left, right, top, bottom } = rectangle(from, place(event), box);
    dressed(outline, { x: left, y: top, width: right - left, height: bottom - top }, []);
  });
  drawing.addEventListener("pointercancel", () => { from = null; outline && outline.remove(); });
  drawing.addEventListener("pointerup", (event) => {
    if (!from) return;
    const { left, right, top, bottom, wide, high } = rectangle(from, place(event), box);
    from = null;
    outline.remove();
    if (wide || high) shown({ x: wide && [sx.back(left), sx.back(right)], y: high && [sy.back(bottom), sy.back(top)] });
  });
}

// Flat in one direction: all of the chart there.
function rectangle(one, other, box) {
  const wide = Math.abs(one.x - other.x) >= LEAST, high = Math.abs(one.y - other.y) >= LEAST;
  return {
    wide, high,
    left: wide || !high ? Math.min(one.x, other.x) : box.left, right: wide || !high ? Math.max(one.x, other.x) : box.right,
    top: high || !wide ? Math.min(one.y, other.y) : box.top, bottom: high || !wide ? Math.max(one.y, other.y) : box.bottom,
  };
}

// A part of a drawing, in its own units, whose content ends at the edges of the chart.
function cut(drawing, box) {
  const room = 5;  // for marks at the edge
  const [x, y, width, height] = [box.left - room, box.top - room, box.right - box.left + 2 * room, box.bottom - box.top + 2 * room];
  const part = svg("svg", { class: "lines", x, y, width, height, viewBox: `${x} ${y} ${width} ${height}` });
  drawing.append(part);
  return part;
}
