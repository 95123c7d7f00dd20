// ---- charts of a group: each returns null, or its option, its numbers as rows of CSV, and a sentence

// A curve of the main chart: an algorithm in the chosen view, or one algorithm in all its views.
function entriesOf(group) {
  const [mode, only] = [state.view.slice(0, 4), state.view.slice(4)];
  if (mode === "all:" && group.curves[only])
    return Object.keys(group.curves[only].views).map((view) => ({ key: `${only} ${view}`, name: only, view, label: view, style: styled(data.view_styles[view]) }));
  return Object.keys(group.curves).map((name) => {
    const view = viewOf(group, name);
    return { key: name, name, view, label: `${name} (${view || "has no such view"})`, style: styled(group.styles[name]) };
  });
}
function lastOf(curve, view, key) { const v = curve.views[view][key]; return v ? v.mean[v.mean.length - 1] : null; }
function viewOf(group, name) {
  const curve = group.curves[name];
  if (!curve) return null;
  const has = Object.keys(curve.views);
  if (state.view === "paper") return group.paper_view[name] || data.paper_order.find((v) => has.includes(v));
  if (state.view === "best" || state.view.startsWith("all:")) {
    if (group.best_view[name]) return group.best_view[name];
    const own = data.deployable.filter((v) => has.includes(v));
    const good = (v) => { const a = lastOf(curve, v, "test_accuracy"); return a === null ? -lastOf(curve, v, "test_loss") : a; };
    return own.sort((a, b) => good(b) - good(a))[0] || null;
  }
  return has.includes(state.view) ? state.view : null;
}
const valueOf = (group) => (group.values.includes(state.value) ? state.value : group.values[0]);
const visibleEntries = (group) => entriesOf(group).filter((entry) => !state.hidden.has(entry.key));
const visible = (group) => Object.keys(group.curves).filter((name) => !state.hidden.has(name));
const styleOf = (group, name) => styled(group.styles[name]);

const AXIS_FORMAT = { bytes_up: sent, bytes_down: sent, bytes_both: sent, seconds };
const MANY = 8; // curves: more bands than that hide each other

function bandOf(curve, values, factor, many) {
  const kind = state.bands === "auto" ? (many ? "none" : "deviation") : state.bands;
  if (kind === "none" || curve.seeds < 2) return null;
  const scale = factor * (kind === "interval" ? curve.half_interval : 1);
  return values.deviation.map((v) => (v === null ? 0 : v * scale));
}
// As usual: losses and distances, of which none is negative; a logarithm would leave out what is.
const isLoss = (key) => key === "distance" || key.endsWith("loss");
function isLog(key, series) {
  if (state.yscale !== "auto") return state.yscale === "log";
  return isLoss(key) && !series.some((s) => s.mean.some((v) => v !== null && v < 0));
}

const CHARTS = {
  curve(group, place) {
    const key = valueOf(group);
    if (!key) return null; // nothing has been evaluated
    const factor = isShare(key) ? 100 : 1, entries = visibleEntries(group);
    const series = entries.map(({ name, view, label, style }) => {
      const curve = group.curves[name], values = view && curve.views[view][key];
      // A run of an earlier version has counted no bytes.
      if (!values || curve[state.x].includes(null)) return { name: label, x: [], mean: [] };
      return Object.assign(style, {
        name: curve.unfinished ? `${label}, unfinished` : label, x: curve[state.x], mean: values.mean.map((v) => (v === null ? null : v * factor)),
        spread: bandOf(curve, values, factor, entries.length > MANY),
      });
    });
    return lines(series, {
      x: words(state.x), y: isShare(key) ? `${words(key)}, %` : words(key), xLog: state.xscale === "log", log: isLog(key, series), fit: state.fit === "fit",
      zoom: state.zoom[place], limits: isShare(key) ? [0, 100] : undefined, format: isShare(key) ? percent : number, xFormat: AXIS_FORMAT[state.x],
    });
  },
  consensus(group) {
    const series = [];
    for (const name of visible(group)) {
      const curve = group.curves[name];
      if (!curve.consensus_error.some((v) => v !== null)) continue;
      series.push(Object.assign(styleOf(group, name), { name, x: curve.round, mean: curve.consensus_error }));
      if (curve.consensus_bound.some((v) => v !== null))
        series.push({ name: `${name}: bound of Lemma 3`, colour: styleOf(group, name).colour, dash: [2, 5], index: 0, x: curve.round, mean: curve.consensus_bound });
    }
    return lines(series, { x: "round", y: "(1/m) Σ‖x̄ − xᵢ‖²", log: true, format: number });
  },
  staleness(group) {
    const s = group.staleness;
    if (!s) return null;
    return lines([
      { name: "largest", x: s.round, mean: s.staleness_max, colour: css("--ink"), dash: [7, 3], marker: "triangle", index: 3 },
      { name: "mean", x: s.round, mean: s.staleness_mean, colour: blue(), marker: "circle", index: 0 },
    ], { x: "round", y: "rounds since last contact", format: number });
  },
  seconds(group) {
    const series = visible(group).map((name) => Object.assign(styleOf(group, name), { name, x: group.curves[name].round, mean: group.curves[name].seconds }));
    return lines(series, { x: "round", y: "seconds", format: seconds });
  },
  time(group) { return bars(group, group.time, seconds, "seconds"); },
  memory(group) { return bars(group, group.memory, bytes, "bytes"); },
  classes(group) {
    const entries = visibleEntries(group).filter(({ name, view }) => group.per_class[name] && group.per_class[name][view]);
    if (!entries.length) return null;
    const rows = entries.map((entry) => entry.label), accuracies = entries.map(({ name, view }) => group.per_class[name][view]);
    const columns = accuracies[0].map((_, c) => group.classes[c] || String(c)), narrow = columns.length > 20 || innerWidth < 500;
    const cells = accuracies.flatMap((row, j) => row.map((v, c) => ({
      value: [c, j, v === null ? "-" : v * 100],
      label: { show: !narrow, color: v !== null && v > 0.55 ? "#10151b" : "#ffffff", formatter: () => (v === null ? "–" : (v * 100).toFixed(0)) },
    })));
    const option = base();
    option.grid = { left: 8, right: 8, top: 8, bottom: 8, containLabel: true };
    option.xAxis = axis({ type: "category", data: columns, axisLabel: { color: css("--dim"), fontSize: 11, interval: narrow ? "auto" : 0, rotate: columns.some((c) => c.length > 3) ? 45 : 0 }, splitLine: { show: false } });
    option.yAxis = nameAxis(rows);
    option.visualMap = { show: false, type: "continuous", min: 0, max: 100, inRange: { color: HEAT } };
    option.series = [{ type: "heatmap", data: cells, label: { fontSize: 10 }, itemStyle: { borderColor: css("--paper"), borderWidth: 1 }, emphasis: { disabled: true } }];
    option.tooltip.formatter = (p) => `${escaped(rows[p.value[1]])}<br>class ${escaped(columns[p.value[0]])}: ${typeof p.value[2] === "number" ? percent(p.value[2]) : "not in the test split"}`;
    // Rows are no taller than their text needs.
    const height = Math.min(Math.max(400, 84 + 22 * rows.length), 84 + 40 * rows.length);
    return { option, height, csv: [["model", ...columns], ...rows.map((row, j) => [row, ...accuracies[j]])], scale: "heat" };
  },
};

function bars(group, values, format, unit) {
  const names = visible(group).filter((name) => values[name] !== undefined && values[name] !== null);
  if (!names.length) return null;
  const option = base();
  option.grid = { left: 8, right: 62, top: 8, bottom: 8, containLabel: true };
  option.yAxis = nameAxis(names);
  option.xAxis = axis({ type: "value", axisLabel: { show: false }, splitLine: { show: false }, axisLine: { show: false } });
  option.aria = { enabled: true, label: { enabled: false }, decal: { show: true } };
  option.series = [{
    type: "bar", barMaxWidth: 26, label: { show: true, position: "right", color: css("--ink"), fontSize: 11, formatter: (p) => format(p.value) },
    data: names.map((name) => ({ value: values[name], itemStyle: { color: styleOf(group, name).colour, borderColor: css("--dim"), borderWidth: 0.5, decal: group.aided.includes(name) ? HATCH : { symbol: "none" } } })),
  }];
  option.tooltip.formatter = (p) => `${escaped(p.name)}: ${format(p.value)}`;
  const height = names.length > 10 ? 30 + 24 * names.length : null;
  return { option, height, csv: [["algorithm", unit], ...names.map((name) => [name, values[name]])], says: names.map((name) => `${name} ${format(values[name])}`).join(", ") };
}
