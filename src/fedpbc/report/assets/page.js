// ---- drawing: each chart on its own, so that one that fails leaves the others

const EMPTY = {
  classes: "These runs have no accuracy per class in this view.",
  likely: "These runs have no record of their links and data: an earlier version made them.",
  clients: "The data of each client was not recorded.",
  consensus: "Only runs with the view mean (fedpbc, fedawe) have a consensus error.",
  memory: "The memory of these runs was not measured, or none is finished yet.",
  spread: "The accuracy of each client was not recorded in this view.",
};
function say(plot, text) {
  charts.get(plot)?.dispose();
  charts.delete(plot);
  drawn.delete(plot);
  plot.style.height = "";
  plot.classList.add("none");
  plot.removeAttribute("role");
  plot.removeAttribute("aria-label");
  plot.textContent = text;
}
function draw(plot) {
  try {
    drawChart(plot);
  } catch (error) {
    say(plot, `This chart could not be drawn (${error.message}).`);
    console.error(error);
  }
}
function drawChart(plot) {
  const place = +plot.dataset.group, group = data.groups[place], kind = plot.dataset.chart, made = CHARTS[kind](group, place);
  legend(plot, group);
  if (kind === "curve") plot.parentElement.querySelector("figcaption b").textContent = capital(`${words(valueOf(group) || "test_accuracy")} over ${words(state.x).replace(/^round$/, "rounds")}`);
  plot.parentElement.classList.toggle("empty", !made);
  if (!made) {
    const any = Object.keys(group.curves).length, hidden = any && !visible(group).length && !state.view.startsWith("all:");
    say(plot, !any ? "Nothing has been evaluated yet." : hidden ? "All curves are hidden." : EMPTY[kind] || "No algorithm has this view, or all are hidden.");
    return;
  }
  plot.classList.remove("none");
  plot.style.height = made.height ? made.height + "px" : "";
  let chart = charts.get(plot);
  if (!chart) {
    plot.textContent = "";
    chart = echarts.init(plot, null, { renderer: "svg" });
    charts.set(plot, chart);
  }
  drawn.set(plot, made);
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", plot.parentElement.querySelector("figcaption b").textContent + (made.says ? `: ${made.says}` : ""));
  chart.resize();
  chart.dispatchAction({ type: "downplay" });
  chart.setOption(made.option, { notMerge: true });
  if (kind === "curve") plot.parentElement.classList.toggle("zoomed", place in state.zoom);
}

const plots = [...document.querySelectorAll(".plot[data-chart]")], canvases = [...document.querySelectorAll("canvas[data-group]")];
// Each is drawn when it comes into view; a page of many opens at once.
const waiting = new Set(plots);
function drawAll() {
  for (const plot of plots) if (!waiting.has(plot) && plot.offsetParent !== null) draw(plot);
}
function drawWaiting() {
  for (const element of [...waiting]) if (element.offsetParent !== null && waiting.delete(element)) draw(element);
}
const observer = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) if (isIntersecting && waiting.delete(target)) { observer.unobserve(target); draw(target); }
}, { rootMargin: "600px" });
function changed() { drawAll(); toAddress(); }
for (const plot of plots) {
  const group = data.groups[+plot.dataset.group], kind = plot.dataset.chart;
  addTools(plot.parentElement, { SVG: () => svgText(plot, group), CSV: () => csvText(drawn.get(plot).csv) }, ...(kind === "curve" ? zoomTools(plot) : []));
  if (kind === "curve") zoomByDrag(plot);
}

// ---- choices

const selects = Object.keys(CHOICES).map((key) => document.getElementById(`choose-${key}`)).filter(Boolean);
const keyOf = (select) => select.id.replace("choose-", "");
function showChoices() {
  for (const select of selects) {
    const key = keyOf(select);
    if ([...select.options].some((o) => o.value === state[key])) select.value = state[key];
    // What no option has is not shown, wherever it comes from.
    else select.value = [...select.options].some((o) => o.value === CHOICES[key]) ? CHOICES[key] : select.options[0].value;
    state[key] = select.value;
  }
  document.querySelector(".bar")?.classList.toggle("changed", selects.some((s) => s.value !== (s.id === "choose-value" ? firstValue : CHOICES[keyOf(s)])) || state.hidden.size > 0);
}
for (const select of selects) {
  if (select.id === "choose-value") firstValue = select.options[0]?.value || "";
  select.addEventListener("change", () => {
    state[keyOf(select)] = select.value;
    // A part of other axes is no part of these.
    if (["x", "value", "xscale", "yscale"].includes(keyOf(select))) state.zoom = {};
    showChoices();
    changed();
  });
}
document.getElementById("choose-nothing")?.addEventListener("click", () => {
  Object.assign(state, CHOICES, { value: firstValue, zoom: {} });
  state.hidden.clear();
  showChoices();
  changed();
});
const themes = [...document.querySelectorAll("#choose-theme button")];
function theme() {
  root.toggleAttribute("data-dark", !printing && (state.theme === "dark" || (state.theme === "auto" && dark.matches)));
  themes.forEach((b) => b.setAttribute("aria-pressed", String(b.value === state.theme)));
}
themes.forEach((b) => b.addEventListener("click", () => { state.theme = b.value; theme(); drawAll(); remember(); }));
dark.addEventListener("change", () => { theme(); drawAll(); });

// ---- folds, anchors, sizes

document.querySelectorAll("details[id]").forEach((d) => {
  if (d.id in state.open) d.open = state.open[d.id];
  d.addEventListener("toggle", () => { if (!printing) { state.open[d.id] = d.open; remember(); } hints(); drawAll(); });
});
function goTo(id) {
  const target = id && document.getElementById(id);
  if (!target) return;
  const fold = target.querySelector("details.fold");
  if (fold) fold.open = true;
  target.scrollIntoView();
}
document.querySelectorAll('nav a[href^="#"]').forEach((link) => link.addEventListener("click", (event) => {
  event.preventDefault();
  state.at = link.hash.slice(1);
  goTo(state.at);
  toAddress();
}));
addEventListener("hashchange", () => {
  Object.assign(state, inAddress());
  showChoices();
  sortAll();
  drawAll();
  goTo(state.at);
});

let width = innerWidth, resizing = 0;
addEventListener("resize", () => {
  if (printing || innerWidth === width) return;
  width = innerWidth;
  cancelAnimationFrame(resizing);
  resizing = requestAnimationFrame(() => { charts.forEach((chart) => chart.resize()); hints(); });
});
const folds = [...document.querySelectorAll("details.fold, details.verdict")];
addEventListener("beforeprint", () => {
  printing = true;
  root.classList.add("printing");
  // On paper nothing unfolds.
  folds.forEach((d) => { d.dataset.was = d.open ? "1" : ""; d.open = true; });
  theme();
  drawAll();
  drawWaiting();
  shrinkTables(true);
});
addEventListener("afterprint", () => {
  root.classList.remove("printing");
  folds.forEach((d) => { d.open = Boolean(d.dataset.was); });
  printing = false;
  theme();
  shrinkTables(false);
  drawAll();
});
addEventListener("pagehide", remember);

theme();
showChoices();
sortAll();
hints();
// Pictures take a moment to be decoded, and a page may be printed at once.
canvases.forEach(timetable);
plots.forEach((plot) => observer.observe(plot));
if (state.live || data.live) {
  // A reloaded page is as it was left, also after the last reload.
  history.scrollRestoration = "manual";
  drawWaiting();
  scrollTo(0, state.scroll);
} else goTo(state.at);
root.dataset.ready = "1";
