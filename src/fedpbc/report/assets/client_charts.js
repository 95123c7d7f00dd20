// ---- charts of the clients: their links, their data, and how well a model serves each of them

Object.assign(CHARTS, {
  spread(group) {
    const series = [];
    for (const { name, view, label, style } of visibleEntries(group)) {
      const views = group.per_client[name] || {};
      if (views[view]) series.push(rankCurve(label, style, views[view]));
      // Where clients have models of their own, each is evaluated on its client's samples.
      if (views.own && !series.some((s) => s.name === `${name} (own models)`)) series.push(rankCurve(`${name} (own models)`, Object.assign({}, style, { dash: [2, 4] }), views.own));
    }
    const chart = lines(series, { x: "clients, from the worst served, %", y: "accuracy on samples like the client's own, %", format: percent, xFormat: (v) => `${Math.round(v)} %`, fit: state.fit === "fit", limits: [0, 100] });
    // The worst tenth is what the table sums up.
    if (chart) chart.option.series.push(shaded(0, 10));
    return chart;
  },
  likely(group) {
    const fleet = group.fleet;
    if (!fleet || !fleet.p) return null;
    const option = base(), n = fleet.p.length;
    option.xAxis = xAxis(fleet.known_p ? "pᵢ" : "share of rounds", { min: 0, max: 1 });
    option.yAxis = yAxis("clients", { minInterval: 1 });
    const fill = blue(), bins = fleet.p.map((count, k) => [k / n, (k + 1) / n, count]);
    option.series = [{
      type: "custom", data: bins, encode: { x: [0, 1], y: 2 },
      renderItem: (params, api) => {
        const [x0, y1] = api.coord([api.value(0), api.value(2)]), [x1, y0] = api.coord([api.value(1), 0]);
        return { type: "rect", shape: { x: x0 + 0.5, y: y1, width: Math.max(1, x1 - x0 - 1), height: y0 - y1 }, style: { fill } };
      },
    }];
    option.tooltip.formatter = (p) => `${p.value[0].toFixed(2)} to ${p.value[1].toFixed(2)}: ${p.value[2]} clients`;
    return { option, csv: [["from", "to", "clients"], ...bins] };
  },
  clients(group) {
    const counts = group.fleet && group.fleet.class_counts;
    if (!counts) return null;
    const option = base(), names = classNames(group);
    option.xAxis = xAxis("client", { type: "category", data: counts.map((_, i) => String(i)) });
    option.yAxis = yAxis("samples");
    option.series = names.map((name, c) => ({
      type: "bar", stack: "all", name, data: counts.map((row) => row[c]), barCategoryGap: "12%", emphasis: { disabled: true },
      itemStyle: { color: CLASSES[c % CLASSES.length] },
    }));
    option.tooltip.trigger = "axis";
    option.tooltip.axisPointer = { type: "shadow" };
    option.tooltip.formatter = (hovered) => `client ${hovered[0].axisValue}` + hovered.filter((p) => p.value > 0).sort((a, b) => b.value - a.value)
      .map((p) => `<br><span style="color:${p.color}">■</span> ${escaped(p.seriesName)}: ${p.value}`).join("");
    return { option, csv: [["client", ...names], ...counts.map((row, i) => [i, ...row])] };
  },
});
// A part of the x axis in grey, from the bottom to the top.
const shaded = (from, to) => ({
  type: "custom", z: 0, silent: true, clip: true, data: [[from, to]], encode: { x: [0, 1], y: [] }, tooltip: { show: false }, emphasis: { disabled: true },
  renderItem: ({ coordSys }, api) => {
    const [x0] = api.coord([from, 0]), [x1] = api.coord([to, 0]);
    return { type: "rect", shape: { x: x0, y: coordSys.y, width: x1 - x0, height: coordSys.height }, style: { fill: css("--dim"), opacity: 0.15 } };
  },
});
const rankCurve = (name, style, clients) => Object.assign({}, style, { name, x: clients.accuracy.map((_, k) => (100 * k) / (clients.accuracy.length - 1)), mean: clients.accuracy.map((v) => v * 100), marker: null });
function classNames(group) {
  const counts = group.fleet.class_counts[0], all = group.fleet.all_classes;
  return counts.map((_, c) => (c === counts.length - 1 && all > counts.length ? "all others" : group.classes[c] || `class ${c}`));
}

// ---- timetables: an image with a pixel for each client and round

function timetable(canvas) {
  if (canvas.dataset.drawn) return;
  const fleet = data.groups[+canvas.dataset.group].fleet, first = firstRound(fleet), image = new Image();
  canvas.dataset.drawn = "1";
  canvas.width = fleet.shown_rounds;
  canvas.height = fleet.shown_clients;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  image.onload = () => context.drawImage(image, 0, 0);
  image.src = fleet.timetable;
  const isUp = (t, i) => context.getImageData(t, i, 1, 1).data[3] > 0;
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const t = Math.min(canvas.width - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * canvas.width)));
    const i = Math.min(canvas.height - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * canvas.height)));
    tip.textContent = `client ${i}, round ${t + first}: ${isUp(t, i) ? "up" : "down"}`;
    tip.hidden = false;
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 6) + "px";
    tip.style.top = event.clientY + 14 + "px";
  });
  addTools(canvas.closest("figure"), {
    SVG: () => timetableSvg(fleet),
    CSV: () => csvText([["client", ...Array.from({ length: canvas.width }, (_, t) => t + first)],
      ...Array.from({ length: canvas.height }, (_, i) => [i, ...Array.from({ length: canvas.width }, (_, t) => +isUp(t, i))])]),
  });
}
// A simulation's rounds are numbered from 1, a fleet's as in its logs.
const firstRound = (fleet) => fleet.first_round ?? 1;
function timetableSvg(fleet) {
  const [width, height] = [900, 360], text = `font-family="sans-serif" font-size="12" fill="#333"`;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width + 40}" height="${height + 40}"><rect width="100%" height="100%" fill="#fff"/>` +
    `<image x="30" y="10" width="${width}" height="${height}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${fleet.timetable}"/>` +
    `<rect x="30" y="10" width="${width}" height="${height}" fill="none" stroke="#999"/>` +
    `<text x="${30 + width / 2}" y="${height + 30}" text-anchor="middle" ${text}>round, ${firstRound(fleet)} to ${firstRound(fleet) + fleet.shown_rounds - 1}</text>` +
    `<text transform="translate(20 ${10 + height / 2}) rotate(-90)" text-anchor="middle" ${text}>client, 0 to ${fleet.shown_clients - 1}</text></svg>`;
}
