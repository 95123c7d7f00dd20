// ---- legends: names that hide their curves, and keys of colours

const MARKS = { circle: "M14,7m-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", rect: "M10.5,3.5h7v7h-7Z", diamond: "M14,2.5l4.5,4.5l-4.5,4.5l-4.5,-4.5Z", triangle: "M14,2.5l4.5,8h-9Z" };
function sample({ colour, dash, marker }) {
  const line = `<path d="M0,7H28" stroke="${colour}" stroke-width="2" fill="none" stroke-dasharray="${dash ? dash.join(" ") : ""}"/>`;
  if (!marker) return line;
  const mark = marker.startsWith("path://") ? `<path d="${marker.slice(7)}" transform="translate(10 3) scale(.8)" fill="${colour}"/>` : `<path d="${MARKS[marker]}" fill="${colour}"/>`;
  return line + mark;
}

function legendEntries(kind, group) {
  if (kind === "curve" || kind === "spread") return entriesOf(group).filter((e) => kind === "curve" || group.per_client[e.name]).map((e) => ({ ...e, label: e.label.startsWith(e.name) ? e.name + aided(group, e.name) + e.label.slice(e.name.length) : e.label }));
  let names = Object.keys(group.curves);
  if (kind === "consensus") names = names.filter((n) => group.curves[n].consensus_error.some((v) => v !== null));
  return names.map((name) => ({ key: name, label: name + aided(group, name), style: styleOf(group, name) }));
}
const aided = (group, name) => (group.aided.includes(name) ? "†" : "");

function legend(plot, group) {
  const box = plot.parentElement.querySelector(".legend");
  if (!box) return;
  const kind = plot.dataset.chart;
  if (kind === "clients" || kind === "classes") { box.replaceChildren(...keyOfColours(kind, group)); return; }
  const entries = legendEntries(kind, group);
  const focus = document.activeElement && box.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const buttons = entries.map(({ key, label, style }) => {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.key = key;
    button.setAttribute("aria-pressed", String(!state.hidden.has(key)));
    button.innerHTML = `<svg width="28" height="14" aria-hidden="true">${sample(style)}</svg>`;
    button.append(label);
    button.addEventListener("click", () => { if (!state.hidden.delete(key)) state.hidden.add(key); changed(); });
    const point = (type) => () => { const drawn = charts.get(plot); if (drawn) pointOut(drawn, type, label.replace("†", "")); };
    for (const event of ["pointerenter", "focus"]) button.addEventListener(event, point("highlight"));
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, point("downplay"));
    return button;
  });
  if (entries.length > 3) {
    const shown = entries.some((entry) => !state.hidden.has(entry.key)), all = document.createElement("button");
    all.type = "button";
    all.className = "all";
    all.dataset.key = " all";
    all.textContent = shown ? "hide all" : "show all";
    all.addEventListener("click", () => { entries.forEach(({ key }) => (shown ? state.hidden.add(key) : state.hidden.delete(key))); changed(); });
    buttons.push(all);
  }
  box.replaceChildren(...buttons);
  if (focus !== null) [...box.children].find((b) => b.dataset.key === focus)?.focus({ preventScroll: true });
}
function pointOut(chart, type, label) {
  const series = chart.getOption().series.findIndex((s) => s.type === "line" && (s.name === label || s.name === `${label}, unfinished`));
  if (series >= 0) chart.dispatchAction({ type, seriesIndex: series });
}
function keyOfColours(kind, group) {
  const span = (html, text) => { const box = document.createElement("span"); box.innerHTML = html; box.append(text); return box; };
  if (kind === "classes") return Object.keys(group.per_class).length ? [span(`<i class="heat" style="background:linear-gradient(90deg, ${HEAT.join(", ")})"></i>`, "0 to 100 %")] : [];
  if (!group.fleet || !group.fleet.class_counts) return [];
  return classNames(group).map((name, c) => span(`<i style="background:${CLASSES[c % CLASSES.length]}"></i>`, name));
}
