// ---- zoom of a group's main chart: drag a rectangle, or the buttons

function cornersOf(chart) {
  const { x, y, width, height } = chart.getModel().getComponent("grid").coordinateSystem.getRect();
  return { left: x, top: y, right: x + width, bottom: y + height };
}
// The values at two opposite corners, in pixels.
function rangeOf(chart, { left, top, right, bottom }) {
  const [x0, y0] = chart.convertFromPixel({ gridIndex: 0 }, [left, bottom]), [x1, y1] = chart.convertFromPixel({ gridIndex: 0 }, [right, top]);
  return [x0, x1, y0, y1];
}
function zoomTo(place, range) {
  if (range && range.every(Number.isFinite) && range[0] < range[1] && range[2] < range[3]) state.zoom[place] = range;
  else delete state.zoom[place];
  changed();
}
function zoomBy(plot, share) {
  const chart = charts.get(plot), place = +plot.dataset.group;
  if (!chart) return;
  const c = cornersOf(chart), dx = (c.right - c.left) * share, dy = (c.bottom - c.top) * share;
  const range = rangeOf(chart, { left: c.left + dx, right: c.right - dx, top: c.top + dy, bottom: c.bottom - dy });
  // Beyond all points there is nothing to see.
  const [x0, x1] = drawn.get(plot).full;
  if (range[0] <= x0 && range[1] >= x1) zoomTo(place, null);
  else zoomTo(place, [Math.max(range[0], x0), Math.min(range[1], x1), range[2], range[3]]);
}
function zoomTools(plot) {
  return [
    tool("+", "Zoom in", () => zoomBy(plot, 0.25)), tool("−", "Zoom out", () => zoomBy(plot, -0.5)),
    tool("reset zoom", "Show all of the chart", () => zoomTo(+plot.dataset.group, null)),
  ];
}
function zoomByDrag(plot) {
  const frame = document.createElement("div");
  frame.className = "frame";
  frame.hidden = true;
  plot.parentElement.append(frame);
  let from = null;
  const at = (event) => { const box = plot.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const rectangle = (event) => {
    const c = cornersOf(charts.get(plot)), [x, y] = at(event);
    const within = (v, low, high) => Math.min(high, Math.max(low, v));
    const [ax, bx] = [from[0], within(x, c.left, c.right)].sort((a, b) => a - b), [ay, by] = [from[1], within(y, c.top, c.bottom)].sort((a, b) => a - b);
    return { left: ax, right: bx, top: ay, bottom: by };
  };
  plot.addEventListener("pointerdown", (event) => {
    const chart = charts.get(plot);
    // A finger scrolls the page.
    if (!chart || event.button !== 0 || event.pointerType === "touch") return;
    const c = cornersOf(chart), [x, y] = at(event);
    if (x >= c.left && x <= c.right && y >= c.top && y <= c.bottom) from = [x, y];
  });
  addEventListener("pointermove", (event) => {
    if (!from) return;
    const r = rectangle(event), box = plot.getBoundingClientRect(), outer = plot.parentElement.getBoundingClientRect();
    frame.hidden = r.right - r.left < 6 || r.bottom - r.top < 6;
    Object.assign(frame.style, { left: `${box.left - outer.left + r.left}px`, top: `${box.top - outer.top + r.top}px`, width: `${r.right - r.left}px`, height: `${r.bottom - r.top}px` });
  });
  addEventListener("pointerup", (event) => {
    if (!from) return;
    const r = rectangle(event), shown = !frame.hidden;
    from = null;
    frame.hidden = true;
    if (shown) zoomTo(+plot.dataset.group, rangeOf(charts.get(plot), r));
  });
  plot.addEventListener("dblclick", () => zoomTo(+plot.dataset.group, null));
}
