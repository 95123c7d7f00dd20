"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const KEY = "fedpbc:" + location.pathname;
  const state = Object.assign(
    { x: "round", view: "paper", value: "", theme: "auto", hidden: {}, sort: {}, open: {}, scroll: 0 },
    remembered(),
  );
  const charts = new Map(); // plot element → chart
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let printing = false;

  function remembered() {
    try { return JSON.parse(sessionStorage.getItem(KEY)) || {}; } catch { return {}; }
  }
  function remember() {
    state.scroll = window.scrollY;
    state.live = data.live;
    try { sessionStorage.setItem(KEY, JSON.stringify(state)); } catch { /* not remembered */ }
  }

  // ---- labels and numbers

  const TEXT = {
    test_accuracy: "test accuracy", train_accuracy: "training accuracy", test_loss: "test loss",
    distance: "distance to the optimum ‖x − x*‖",
    round: "round", local_steps: "local steps of all clients", uploads: "uploads",
    bytes_up: "bytes sent up", bytes_down: "bytes sent down", bytes_both: "bytes sent up and down",
  };
  const words = (key) => TEXT[key] || key.replaceAll("_", " ");
  const isShare = (key) => key.endsWith("accuracy");
  const escaped = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  function number(v) {
    if (v === null || v === undefined) return "–";
    const size = Math.abs(v);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return v.toExponential(2);
    return String(+v.toPrecision(4));
  }
  function tick(v) {
    const size = Math.abs(v);
    if (size !== 0 && size < 1e-3) return v.toExponential(0);
    return size >= 10000 ? compact.format(v) : String(+v.toPrecision(6));
  }
  const bytes = (v) => (v >= 2 ** 30 ? (v / 2 ** 30).toFixed(2) + " GiB" : (v / 2 ** 20).toFixed(0) + " MiB");
  // What was sent is counted in powers of ten, as in the tables.
  function sent(exact) {
    const v = +exact.toPrecision(3);
    const power = v > 0 ? Math.min(6, Math.max(0, Math.floor(Math.log10(v) / 3 + 1e-9))) : 0;
    return `${+(v / 1000 ** power).toPrecision(3)} ${["B", "kB", "MB", "GB", "TB", "PB", "EB"][power]}`;
  }
  const seconds = (v) => (v >= 7200 ? (v / 3600).toFixed(1) + " h" : v >= 120 ? (v / 60).toFixed(1) + " min" : (+v.toPrecision(3)) + " s");

  // ---- style

  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const isDark = () => root.hasAttribute("data-dark");
  const colourOf = (group, name) => { const style = group.styles[name]; return style ? style[isDark() ? "dark" : "colour"] : css("--ink"); };
  const CLASSES = ["#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB", "#6699CC", "#661100"];
  const HATCH = { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: -0.78 };

  function base() {
    return {
      animation: false,
      textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: css("--ink") },
      grid: { left: 8, right: 18, top: 26, bottom: 26, containLabel: true },
      tooltip: {
        confine: true, backgroundColor: css("--paper"), borderColor: css("--line"), padding: [6, 10],
        textStyle: { color: css("--ink"), fontSize: 12 },
      },
    };
  }
  function axis(more) {
    const line = { lineStyle: { color: css("--grid") } };
    return Object.assign({
      axisLine: { show: true, lineStyle: { color: css("--dim") } }, axisTick: { show: false },
      axisLabel: { color: css("--dim"), fontSize: 11, hideOverlap: true },
      nameTextStyle: { color: css("--dim"), fontSize: 11 }, splitLine: line, minorSplitLine: { show: false },
    }, more);
  }
  const xAxis = (name, more) => axis(Object.assign({ type: "value", name, nameLocation: "middle", nameGap: 24, splitLine: { show: false } }, more));
  const yAxis = (name, more) => axis(Object.assign({ type: "value", name, nameLocation: "end", nameTextStyle: { color: css("--dim"), fontSize: 11, align: "left", padding: [0, 0, 0, -6] } }, more));

  // ---- line charts: [{name, x, mean, deviation, colour, dash, marker, index}]

  function lines(series, { x, y, log, format, xFormat }) {
    const shown = series.filter((s) => s.x.length);
    const ok = (v) => v !== null && v !== undefined && (!log || v > 0);
    const positive = shown.flatMap((s) => s.mean.filter((v) => v > 0));
    const least = positive.length ? Math.min(...positive) : 1;
    const option = base();
    option.xAxis = xAxis(x, { min: 0, max: "dataMax", axisLabel: { color: css("--dim"), fontSize: 11, hideOverlap: true, formatter: xFormat || tick } });
    option.yAxis = yAxis(y, { type: log ? "log" : "value", scale: !!log, axisLabel: { color: css("--dim"), fontSize: 11, formatter: tick } });
    if (!log) option.yAxis.min = (e) => (e.min >= 0 ? 0 : null);
    else if (positive.length) {
      // Whole powers of ten, as few as hold the data.
      option.yAxis.min = 10 ** Math.floor(Math.log10(least));
      option.yAxis.max = 10 ** Math.ceil(Math.log10(Math.max(...positive)) + 1e-9);
    }
    option.series = [];
    for (const s of shown) {
      const points = s.x.map((v, k) => [v, s.mean[k]]).filter((p) => ok(p[0]) || p[0] === 0).filter((p) => ok(p[1]));
      const every = Math.max(1, Math.floor(points.length / 6)), first = Math.floor((s.index * every) / 10) % every;
      option.series.push({
        type: "line", name: s.name, z: 3, symbol: s.marker || "none", symbolSize: 8, showAllSymbol: true, color: s.colour,
        lineStyle: { color: s.colour, width: s.bold ? 2.8 : 2, type: s.dash || "solid" },
        itemStyle: { color: s.colour }, emphasis: { disabled: true },
        data: points.map((p, k) => (s.marker && k % every === first ? { value: p } : { value: p, symbol: "none" })),
      });
      if (s.deviation && s.deviation.some((v) => v > 0)) {
        const band = s.x.map((v, k) => [v, s.mean[k] - s.deviation[k], s.mean[k] + s.deviation[k]])
          .filter((p, k) => ok(s.mean[k])).map((p) => (log ? [p[0], Math.max(p[1], least / 2), p[2]] : p));
        option.series.push({
          type: "custom", name: s.name, z: 1, silent: true, clip: true, data: band, encode: { x: 0, y: [1, 2] },
          renderItem: (params, api) => {
            if (params.dataIndexInside !== 0) return null;
            const low = band.map((p) => api.coord([p[0], p[1]])), high = band.map((p) => api.coord([p[0], p[2]]));
            return { type: "polygon", shape: { points: low.concat(high.reverse()) }, style: { fill: s.colour, opacity: 0.14 } };
          },
        });
      }
    }
    Object.assign(option.tooltip, {
      trigger: "axis", axisPointer: { type: "line", lineStyle: { color: css("--dim") }, label: { show: false } },
      formatter: (hovered) => {
        const at = hovered[0].axisValue;
        const rows = shown.map((s) => {
          let k = 0;
          for (let j = 1; j < s.x.length; j++) if (Math.abs(s.x[j] - at) < Math.abs(s.x[k] - at)) k = j;
          if (at > s.x[s.x.length - 1] * 1.02) return "";
          const spread = s.deviation && s.deviation[k] ? ` ± ${format(s.deviation[k])}` : "";
          return `<tr><td style="text-align:left;padding:0 8px 0 0;border:0"><span style="color:${s.colour}">●</span> ${escaped(s.name)}</td><td style="padding:0;border:0">${format(s.mean[k])}${spread}</td></tr>`;
        });
        return `${escaped(x)} ${(xFormat || whole.format)(at)}<table style="font-size:12px">${rows.join("")}</table>`;
      },
    });
    return shown.some((s) => s.mean.some(ok)) ? option : null;
  }

  // ---- charts of a group

  function lastOf(curve, view, key) { const v = curve.views[view][key]; return v ? v.mean[v.mean.length - 1] : null; }
  function viewOf(group, name) {
    const curve = group.curves[name];
    if (!curve) return null;
    const has = Object.keys(curve.views);
    if (state.view === "paper") return group.paper_view[name] || data.paper_order.find((v) => has.includes(v));
    if (state.view === "best") {
      if (group.best_view[name]) return group.best_view[name];
      const own = data.deployable.filter((v) => has.includes(v));
      const good = (v) => { const a = lastOf(curve, v, "test_accuracy"); return a === null ? -lastOf(curve, v, "test_loss") : a; };
      return own.sort((a, b) => good(b) - good(a))[0] || null;
    }
    return has.includes(state.view) ? state.view : null;
  }
  const valueOf = (group) => (group.values.includes(state.value) ? state.value : group.values[0]);
  const visible = (group) => Object.keys(group.curves).filter((name) => !state.hidden[name]);
  const styled = (group, name) => { const { dash, marker, index } = group.styles[name]; return { colour: colourOf(group, name), dash, marker, index, bold: index === 0 }; };

  const AXIS_FORMAT = { bytes_up: sent, bytes_down: sent, bytes_both: sent, seconds };
  const CHARTS = {
    curve(group) {
      const key = valueOf(group);
      if (!key) return null; // nothing has been evaluated
      const factor = isShare(key) ? 100 : 1;
      const series = visible(group).map((name) => {
        const view = viewOf(group, name), curve = group.curves[name], values = view && curve.views[view][key];
        // A run of an earlier version has counted no bytes.
        if (!values || curve[state.x].includes(null)) return { name, x: [], mean: [] };
        const suffix = curve.unfinished ? ", unfinished" : "";
        return Object.assign(styled(group, name), {
          name: `${name} (${view}${suffix})`, x: curve[state.x], mean: values.mean.map((v) => (v === null ? null : v * factor)),
          deviation: curve.seeds > 1 ? values.deviation.map((v) => (v === null ? 0 : v * factor)) : null,
        });
      });
      return lines(series, {
        x: words(state.x), y: isShare(key) ? `${words(key)}, %` : words(key), log: !isShare(key),
        format: isShare(key) ? (v) => v.toFixed(1) + " %" : number, xFormat: AXIS_FORMAT[state.x],
      });
    },
    consensus(group) {
      const series = [];
      for (const name of visible(group)) {
        const curve = group.curves[name];
        if (!curve.consensus_error.some((v) => v !== null)) continue;
        series.push(Object.assign(styled(group, name), { name, x: curve.round, mean: curve.consensus_error }));
        if (curve.consensus_bound.some((v) => v !== null))
          series.push({ name: `${name}: bound of Lemma 3`, colour: colourOf(group, name), dash: [2, 5], index: 0, x: curve.round, mean: curve.consensus_bound });
      }
      return lines(series, { x: "round", y: "(1/m) Σ‖x̄ − xᵢ‖²", log: true, format: number });
    },
    staleness(group) {
      const s = group.staleness;
      if (!s) return null;
      const ink = css("--ink"), blue = isDark() ? "#4FA8E0" : "#0072B2";
      return lines([
        { name: "largest", x: s.round, mean: s.staleness_max, colour: ink, dash: [7, 3], marker: "triangle", index: 3 },
        { name: "mean", x: s.round, mean: s.staleness_mean, colour: blue, marker: "circle", index: 0 },
      ], { x: "round", y: "rounds since last contact", format: number });
    },
    seconds(group) {
      const series = visible(group).map((name) => Object.assign(styled(group, name), { name, x: group.curves[name].round, mean: group.curves[name].seconds }));
      return lines(series, { x: "round", y: "seconds", format: seconds });
    },
    time(group) { return bars(group, group.time, seconds); },
    memory(group) { return bars(group, group.memory, bytes); },
    classes(group) {
      const names = visible(group).filter((name) => group.per_class[name] && group.per_class[name][viewOf(group, name)]);
      if (!names.length) return null;
      const rows = names.map((name) => `${name} (${viewOf(group, name)})`);
      const accuracies = names.map((name) => group.per_class[name][viewOf(group, name)]);
      const columns = accuracies[0].map((_, c) => group.classes[c] || String(c)), narrow = columns.length > 20;
      const cells = accuracies.flatMap((row, j) => row.map((v, c) => ({
        value: [c, j, v === null ? "-" : v * 100],
        label: { show: !narrow, color: v !== null && v > 0.55 ? "#10151b" : "#ffffff", formatter: () => (v === null ? "–" : (v * 100).toFixed(0)) },
      })));
      const option = base();
      option.grid = { left: 8, right: 8, top: 8, bottom: 8, containLabel: true };
      option.xAxis = axis({ type: "category", data: columns, axisLabel: { color: css("--dim"), fontSize: 11, interval: narrow ? "auto" : 0, rotate: columns.some((c) => c.length > 3) ? 45 : 0 }, splitLine: { show: false } });
      option.yAxis = axis({ type: "category", data: rows, inverse: true, axisLabel: { color: css("--ink"), fontSize: 11 }, splitLine: { show: false } });
      // From dark to light: the steps are also distinct in grey.
      option.visualMap = { show: false, type: "continuous", min: 0, max: 100, inRange: { color: ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"] } };
      option.series = [{ type: "heatmap", data: cells, label: { fontSize: 10 }, itemStyle: { borderColor: css("--paper"), borderWidth: 1 }, emphasis: { disabled: true } }];
      option.tooltip.formatter = (p) => `${escaped(rows[p.value[1]])}<br>class ${escaped(columns[p.value[0]])}: ${typeof p.value[2] === "number" ? p.value[2].toFixed(1) + " %" : "not in the test split"}`;
      return option;
    },
    likely(group) {
      const fleet = group.fleet;
      if (!fleet || !fleet.p) return null;
      const option = base(), n = fleet.p.length;
      option.xAxis = xAxis(fleet.known_p ? "pᵢ" : "share of rounds", { min: 0, max: 1 });
      option.yAxis = yAxis("clients", { minInterval: 1 });
      const blue = isDark() ? "#4FA8E0" : "#0072B2";
      option.series = [{
        type: "custom", data: fleet.p.map((count, k) => [k / n, (k + 1) / n, count]), encode: { x: [0, 1], y: 2 },
        renderItem: (params, api) => {
          const [x0, y1] = api.coord([api.value(0), api.value(2)]), [x1, y0] = api.coord([api.value(1), 0]);
          return { type: "rect", shape: { x: x0 + 0.5, y: y1, width: Math.max(1, x1 - x0 - 1), height: y0 - y1 }, style: { fill: blue } };
        },
      }];
      option.tooltip.formatter = (p) => `${p.value[0].toFixed(2)} to ${p.value[1].toFixed(2)}: ${p.value[2]} clients`;
      return option;
    },
    clients(group) {
      const counts = group.fleet && group.fleet.class_counts;
      if (!counts) return null;
      const option = base(), classes = counts[0].length, all = group.fleet.all_classes;
      const name = (c) => (c === classes - 1 && all > classes ? "all others" : group.classes[c] || String(c));
      option.xAxis = xAxis("client", { type: "category", data: counts.map((_, i) => String(i)) });
      option.yAxis = yAxis("samples");
      option.series = counts[0].map((_, c) => ({
        type: "bar", stack: "all", name: name(c), data: counts.map((row) => row[c]), barCategoryGap: "12%", emphasis: { disabled: true },
        itemStyle: { color: CLASSES[c % CLASSES.length] },
      }));
      option.tooltip.trigger = "axis";
      option.tooltip.axisPointer = { type: "shadow" };
      option.tooltip.formatter = (hovered) => `client ${hovered[0].axisValue}` + hovered.filter((p) => p.value > 0).sort((a, b) => b.value - a.value)
        .map((p) => `<br><span style="color:${p.color}">■</span> ${escaped(p.seriesName)}: ${p.value}`).join("");
      return option;
    },
  };

  function bars(group, values, format) {
    const names = visible(group).filter((name) => values[name] !== undefined && values[name] !== null);
    if (!names.length) return null;
    const option = base();
    option.grid = { left: 8, right: 62, top: 8, bottom: 8, containLabel: true };
    option.yAxis = axis({ type: "category", data: names, inverse: true, axisLabel: { color: css("--ink"), fontSize: 11 }, splitLine: { show: false } });
    option.xAxis = axis({ type: "value", axisLabel: { show: false }, splitLine: { show: false }, axisLine: { show: false } });
    option.aria = { enabled: true, label: { enabled: false }, decal: { show: true } };
    option.series = [{
      type: "bar", barMaxWidth: 26, label: { show: true, position: "right", color: css("--ink"), fontSize: 11, formatter: (p) => format(p.value) },
      data: names.map((name) => ({ value: values[name], itemStyle: { color: colourOf(group, name), borderColor: css("--dim"), borderWidth: 0.5, decal: group.aided.includes(name) ? HATCH : { symbol: "none" } } })),
    }];
    option.tooltip.formatter = (p) => `${escaped(p.name)}: ${format(p.value)}`;
    return option;
  }

  // ---- drawing

  const EMPTY = {
    classes: "These runs have no accuracy per class in this view.",
    likely: "These runs have no record of their links and data: an earlier version made them.",
    clients: "The data of each client was not recorded.",
    consensus: "Only runs with the view mean (fedpbc, fedawe) have a consensus error.",
    memory: "The memory of these runs was not measured, or none is finished yet.",
  };
  function draw(plot) {
    const group = data.groups[+plot.dataset.group], kind = plot.dataset.chart, option = CHARTS[kind](group);
    legend(plot, group);
    if (kind === "curve") {
      const title = `${words(valueOf(group) || "test_accuracy")} over ${words(state.x).replace(/^round$/, "rounds")}`;
      plot.parentElement.querySelector("figcaption b").textContent = title[0].toUpperCase() + title.slice(1);
    }
    let chart = charts.get(plot);
    plot.classList.toggle("none", !option);
    if (!option) {
      plot.style.height = "";
      if (chart) { chart.dispose(); charts.delete(plot); }
      const any = Object.keys(group.curves).length;
      plot.textContent = !any ? "Nothing has been evaluated yet." : visible(group).length ? EMPTY[kind] || "No algorithm has this view." : "All curves are hidden.";
      return;
    }
    // Rows of a heatmap are no taller than their text needs.
    if (kind === "classes") plot.style.height = Math.min(Math.max(400, 84 + 22 * option.yAxis.data.length), 84 + 40 * option.yAxis.data.length) + "px";
    if (!chart) {
      plot.textContent = "";
      chart = echarts.init(plot, null, { renderer: "svg" });
      charts.set(plot, chart);
    }
    chart.resize();
    chart.setOption(option, { notMerge: true });
  }
  const plots = [...document.querySelectorAll(".plot[data-chart]")];
  // Many charts: each is drawn when it comes into view.
  const waiting = new Set(plots.length > 40 ? plots : []);
  function drawAll() {
    for (const plot of plots) if (!waiting.has(plot) && plot.offsetParent !== null) draw(plot);
    timetables();
  }
  if (waiting.size) {
    const observer = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting && waiting.delete(entry.target)) { observer.unobserve(entry.target); draw(entry.target); }
    }, { rootMargin: "400px" });
    plots.forEach((plot) => observer.observe(plot));
  }

  const MARKS = { circle: "M14,7m-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", rect: "M10.5,3.5h7v7h-7Z", diamond: "M14,2.5l4.5,4.5l-4.5,4.5l-4.5,-4.5Z", triangle: "M14,2.5l4.5,8h-9Z" };
  function legend(plot, group) {
    const box = plot.parentElement.querySelector(".legend");
    if (!box) return;
    const kind = plot.dataset.chart;
    let entries = Object.keys(group.curves);
    if (kind === "consensus") entries = entries.filter((n) => group.curves[n].consensus_error.some((v) => v !== null));
    const focus = document.activeElement && box.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    box.replaceChildren(...entries.map((name) => {
      const style = styled(group, name), button = document.createElement("button"), view = kind === "curve" ? viewOf(group, name) : "";
      button.type = "button";
      button.dataset.name = name;
      button.setAttribute("aria-pressed", String(!state.hidden[name]));
      const isPath = style.marker.startsWith("path://");
      const mark = isPath ? `<path d="${style.marker.slice(7)}" transform="translate(10 3) scale(.8)" fill="${style.colour}"/>` : `<path d="${MARKS[style.marker]}" fill="${style.colour}"/>`;
      button.innerHTML = `<svg width="28" height="14" aria-hidden="true"><path d="M0,7H28" stroke="${style.colour}" stroke-width="2" stroke-dasharray="${style.dash ? style.dash.join(" ") : ""}"/>${mark}</svg>`;
      const aided = group.aided.includes(name) ? "†" : "";
      button.append(name + aided + (kind === "curve" ? ` (${view || "has no such view"})` : ""));
      button.addEventListener("click", () => { state.hidden[name] = !state.hidden[name]; drawAll(); remember(); });
      return button;
    }));
    if (focus !== null) [...box.children].find((b) => b.dataset.name === focus)?.focus();
  }

  // ---- timetables: an image with a pixel for each client and round

  function timetables() {
    for (const canvas of document.querySelectorAll("canvas[data-group]")) {
      if (canvas.dataset.drawn) continue;
      const fleet = data.groups[+canvas.dataset.group].fleet, image = new Image();
      canvas.dataset.drawn = "1";
      canvas.width = fleet.shown_rounds;
      canvas.height = fleet.shown_clients;
      image.onload = () => canvas.getContext("2d", { willReadFrequently: true }).drawImage(image, 0, 0);
      image.src = fleet.timetable;
      const tip = document.createElement("div");
      tip.className = "tip";
      tip.hidden = true;
      document.body.append(tip);
      canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
      canvas.addEventListener("pointermove", (event) => {
        const box = canvas.getBoundingClientRect();
        const t = Math.min(canvas.width - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * canvas.width)));
        const i = Math.min(canvas.height - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * canvas.height)));
        const up = canvas.getContext("2d").getImageData(t, i, 1, 1).data[3] > 0;
        tip.textContent = `client ${i}, round ${t + 1}: ${up ? "up" : "down"}`;
        tip.hidden = false;
        tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 6) + "px";
        tip.style.top = event.clientY + 14 + "px";
      });
    }
  }

  // ---- sortable tables

  function sortValue(cell) {
    if (cell.dataset.sort !== undefined) return cell.dataset.sort === "" ? null : +cell.dataset.sort;
    const text = cell.textContent.trim(), numeral = text.match(/^[-−+]?[\d,]*\.?\d+(e[-+]?\d+)?/i);
    if (numeral) return parseFloat(numeral[0].replaceAll(",", "").replace("−", "-"));
    return text === "–" || text === "" ? null : text.toLowerCase();
  }
  function sort(table, column, down) {
    const body = table.tBodies[0], rows = [...body.rows];
    const entries = rows.map((row, k) => ({ row, k, v: sortValue(row.cells[column]) }));
    entries.sort((a, b) => {
      if (a.v === null || b.v === null) return (a.v === null) - (b.v === null) || a.k - b.k;
      if (typeof a.v !== typeof b.v) return typeof a.v === "number" ? -1 : 1;
      const order = a.v < b.v ? -1 : a.v > b.v ? 1 : 0;
      return (down ? -order : order) || a.k - b.k;
    });
    body.append(...entries.map((entry) => entry.row));
    [...table.tHead.rows[0].cells].forEach((head, k) => head.setAttribute("aria-sort", k === column ? (down ? "descending" : "ascending") : "none"));
  }
  document.querySelectorAll("table.sortable").forEach((table, number) => {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.setAttribute("aria-sort", "none");
      head.querySelector("button").addEventListener("click", () => {
        const now = head.getAttribute("aria-sort"), text = typeof sortValue(table.tBodies[0].rows[0]?.cells[column] || document.createElement("td")) === "string";
        // Numbers start with the largest, text with A.
        const down = now === "none" ? !text : now === "ascending";
        state.sort[number] = [column, down];
        sort(table, column, down);
        remember();
      });
    });
    const saved = state.sort[number];
    if (saved && saved[0] < table.tHead.rows[0].cells.length) sort(table, ...saved);
  });

  // ---- choices

  function choices(box, key, after) {
    const buttons = [...box.querySelectorAll("button")];
    const show = () => buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.value === state[key])));
    buttons.forEach((b) => b.addEventListener("click", () => { state[key] = b.value; show(); after(); remember(); }));
    show();
  }
  for (const key of ["x", "view", "value"]) {
    const select = document.getElementById(`choose-${key}`);
    if (!select) continue;
    if ([...select.options].some((o) => o.value === state[key])) select.value = state[key];
    state[key] = select.value;
    select.addEventListener("change", () => { state[key] = select.value; drawAll(); remember(); });
  }
  function theme() {
    const is = !printing && (state.theme === "dark" || (state.theme === "auto" && dark.matches));
    root.toggleAttribute("data-dark", is);
  }
  choices(document.getElementById("choose-theme"), "theme", () => { theme(); drawAll(); });
  dark.addEventListener("change", () => { theme(); drawAll(); });

  document.querySelectorAll("details[id]").forEach((d) => {
    if (d.id in state.open) d.open = state.open[d.id];
    d.addEventListener("toggle", () => { state.open[d.id] = d.open; drawAll(); remember(); });
  });

  let width = innerWidth, resizing = 0;
  addEventListener("resize", () => {
    if (printing || innerWidth === width) return;
    width = innerWidth;
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(() => charts.forEach((chart) => chart.resize()));
  });
  addEventListener("beforeprint", () => {
    printing = true;
    root.classList.add("printing");
    theme();
    waiting.clear();
    drawAll();
  });
  addEventListener("afterprint", () => { printing = false; root.classList.remove("printing"); theme(); drawAll(); });
  addEventListener("pagehide", remember);

  theme();
  drawAll();
  // A reloaded page is as it was left, also after the last reload.
  if (data.live || state.live) scrollTo(0, state.scroll);
  if (data.live) {
    // A page on disk cannot request data: it reloads as a whole.
    history.scrollRestoration = "manual";
    setTimeout(function reload() {
      if (document.hidden || printing) { setTimeout(reload, 1000); return; }
      remember();
      location.reload();
    }, data.live * 1000);
  }
  root.dataset.ready = "1";
})();
