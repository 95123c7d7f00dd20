// ---- line charts: [{name, x, mean, spread, colour, dash, marker, index}], spread: half the height of a band

function lines(series, { x, y, xLog, log, fit, zoom, format, xFormat, limits = [-Infinity, Infinity] }) {
  const shown = series.filter((s) => s.x.length);
  const isX = (v) => v !== null && v !== undefined && (!xLog || v > 0);
  const ok = (v) => v !== null && v !== undefined && (!log || v > 0);
  const drawn = shown.some((s) => s.mean.some((v, k) => ok(v) && isX(s.x[k])));
  if (!drawn) return null;
  const low = (s, k) => s.mean[k] - (s.spread ? s.spread[k] : 0), high = (s, k) => s.mean[k] + (s.spread ? s.spread[k] : 0);
  const positive = shown.flatMap((s) => s.mean.filter((v) => v > 0));
  const least = positive.length ? Math.min(...positive) : 1;
  const ats = shown.flatMap((s) => s.x.filter(isX));
  // The whole picture; zooming out ends there.
  const full = [xLog ? Math.min(...ats) : 0, Math.max(...ats), null, null];
  if (full[0] === full[1]) full[xLog ? 0 : 1] = xLog ? full[0] / 2 : full[1] || 1;
  const option = base();
  const [x0, x1, y0, y1] = zoom || full;
  option.xAxis = xAxis(x, { type: xLog ? "log" : "value", min: x0, max: x1, axisLabel: { color: css("--dim"), fontSize: 11, hideOverlap: true, formatter: xFormat || tick } });
  option.yAxis = yAxis(y, { type: log ? "log" : "value", scale: !!log || !!fit, axisLabel: { color: css("--dim"), fontSize: 11, formatter: tick } });
  if (zoom) Object.assign(option.yAxis, { min: y0, max: y1 });
  else if (!log && fit) {
    const ends = shown.flatMap((s) => s.mean.flatMap((v, k) => (ok(v) && isX(s.x[k]) ? [low(s, k), high(s, k)] : [])));
    const [bottom, top] = [Math.min(...ends), Math.max(...ends)], margin = (top - bottom || Math.abs(top) || 1) * 0.04;
    // Not min and max themselves: ticks are round numbers then.
    option.yAxis.min = Math.max(limits[0], roundTo(bottom - margin, top - bottom, Math.floor));
    option.yAxis.max = Math.min(limits[1], roundTo(top + margin, top - bottom, Math.ceil));
  } else if (!log) option.yAxis.min = (e) => (e.min >= 0 ? 0 : null);
  else if (positive.length) {
    // Whole powers of ten, as few as hold the data; fitted: not even those.
    option.yAxis.min = fit ? least / 1.1 : 10 ** Math.floor(Math.log10(least));
    option.yAxis.max = fit ? Math.max(...positive) * 1.1 : 10 ** Math.ceil(Math.log10(Math.max(...positive)) + 1e-9);
  }
  option.series = [];
  for (const s of shown) {
    const points = s.x.map((v, k) => [v, s.mean[k]]).filter((p) => isX(p[0]) && ok(p[1]));
    const inside = zoom ? points.filter((p) => p[0] >= x0 && p[0] <= x1).length : points.length;
    const every = Math.max(1, Math.floor(inside / 6)), first = Math.floor((s.index * every) / 10) % every;
    option.series.push({
      type: "line", name: s.name, z: 3, symbol: s.marker || "none", symbolSize: 8, showAllSymbol: true, color: s.colour,
      lineStyle: { color: s.colour, width: s.bold ? 2.8 : 2, type: s.dash || "solid" },
      // A name in the legend points out its curve; see legend.js.
      itemStyle: { color: s.colour }, emphasis: { focus: "series", scale: false, lineStyle: { width: 3.4 } },
      blur: { lineStyle: { opacity: 0.12 }, itemStyle: { opacity: 0.12 } },
      data: points.map((p, k) => (s.marker && k % every === first ? { value: p } : { value: p, symbol: "none" })),
    });
    if (s.spread && s.spread.some((v) => v > 0)) {
      const band = s.x.map((v, k) => [v, low(s, k), high(s, k)]).filter((p, k) => ok(s.mean[k]) && isX(p[0]))
        .map((p) => (log ? [p[0], Math.max(p[1], least / 2), p[2]] : p));
      option.series.push({
        type: "custom", name: s.name, z: 1, silent: true, clip: true, data: band, encode: { x: 0, y: [1, 2] }, emphasis: { disabled: true },
        renderItem: (params, api) => {
          if (params.dataIndexInside !== 0) return null;
          const below = band.map((p) => api.coord([p[0], p[1]])), above = band.map((p) => api.coord([p[0], p[2]]));
          return { type: "polygon", shape: { points: below.concat(above.reverse()) }, style: { fill: s.colour, opacity: 0.14 } };
        },
      });
    }
  }
  Object.assign(option.tooltip, {
    trigger: "axis", axisPointer: { type: "line", lineStyle: { color: css("--dim") }, label: { show: false } },
    formatter: (hovered) => {
      const at = hovered[0].axisValue;
      const rows = shown.flatMap((s) => {
        let k = 0;
        for (let j = 1; j < s.x.length; j++) if (Math.abs(s.x[j] - at) < Math.abs(s.x[k] - at)) k = j;
        if (at > s.x[s.x.length - 1] * 1.02 || !ok(s.mean[k])) return [];
        const spread = s.spread && s.spread[k] ? ` ± ${format(s.spread[k])}` : "";
        return [[s.mean[k], `<tr><td style="text-align:left;padding:0 8px 0 0;border:0"><span style="color:${s.colour}">●</span> ${escaped(s.name)}</td><td style="padding:0;border:0">${format(s.mean[k])}${spread}</td></tr>`]];
      });
      // As they lie above each other.
      rows.sort((a, b) => b[0] - a[0]);
      return `${escaped(x)} ${(xFormat || whole.format)(at)}<table style="font-size:12px">${rows.map((row) => row[1]).join("")}</table>`;
    },
  });
  const ends = shown.map((s) => [s.name, s.mean.findLast(ok)]).filter((end) => end[1] !== undefined);
  const banded = shown.some((s) => s.spread);
  return {
    option, full,
    csv: [["curve", x, y, ...(banded ? ["plus or minus"] : [])],
      ...shown.flatMap((s) => s.x.map((v, k) => [s.name, v, s.mean[k], ...(banded ? [s.spread ? s.spread[k] : ""] : [])]))],
    says: ends.map(([name, v]) => `${name} ${format(v)}`).join(", ") + " at the end",
  };
}
// A round number near v, by the size of what is to be seen.
function roundTo(v, range, towards) {
  const step = 10 ** Math.floor(Math.log10(range || Math.abs(v) || 1)) / 10;
  return +(towards(v / step) * step).toPrecision(10);
}
