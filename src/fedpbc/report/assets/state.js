const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const charts = new Map(); // plot element → chart
const drawn = new Map(); // plot element → what was drawn
const dark = matchMedia("(prefers-color-scheme: dark)");
let printing = false;

// ---- what is shown: in the address, so that a view can be shared; what concerns this reader alone,
// such as the colours, for as long as the tab is open

const KEY = "fedpbc:" + location.pathname;
const CHOICES = { x: "round", view: "best", value: "", xscale: "linear", yscale: "auto", fit: "zero", bands: "auto" };
const state = Object.assign({ theme: "auto", open: {}, rows: {}, scroll: 0 }, remembered(), inAddress());

function remembered() {
  try {
    const { theme = "auto", open = {}, rows = {}, scroll = 0, live = 0 } = JSON.parse(sessionStorage.getItem(KEY)) || {};
    return { theme, open, rows, scroll, live };
  } catch { return {}; }
}
function remember() {
  const { theme, open, rows } = state;
  try { sessionStorage.setItem(KEY, JSON.stringify({ theme, open, rows, scroll: window.scrollY, live: data.live })); } catch { /* not remembered */ }
}

function inAddress() {
  const hash = location.hash.slice(1), found = { hidden: new Set(), sort: {}, zoom: {}, at: "" };
  Object.assign(found, CHOICES);
  // Without a choice it is a plain anchor.
  if (!hash.includes("=")) return Object.assign(found, { at: hash });
  const fields = new URLSearchParams(hash);
  for (const key of Object.keys(CHOICES)) if (fields.has(key)) found[key] = fields.get(key);
  fields.getAll("hide").forEach((name) => found.hidden.add(name));
  for (const text of fields.getAll("sort")) {
    const [table, column, order] = text.split(":");
    if (/^\d+$/.test(table) && /^\d+$/.test(column)) found.sort[+table] = [+column, order === "down"];
  }
  for (const text of fields.getAll("zoom")) {
    const [group, ...ends] = text.split(":").map(Number);
    if (ends.length === 4 && ends.every(Number.isFinite) && ends[0] < ends[1] && ends[2] < ends[3]) found.zoom[group] = ends;
  }
  found.at = fields.get("at") || "";
  return found;
}
function toAddress() {
  const fields = new URLSearchParams();
  for (const [key, usual] of Object.entries(CHOICES)) if (state[key] !== (key === "value" ? firstValue : usual)) fields.set(key, state[key]);
  state.hidden.forEach((name) => fields.append("hide", name));
  for (const [table, [column, down]] of Object.entries(state.sort)) fields.append("sort", `${table}:${column}:${down ? "down" : "up"}`);
  for (const [group, ends] of Object.entries(state.zoom)) fields.append("zoom", [group, ...ends.map((v) => +v.toPrecision(6))].join(":"));
  if (state.at && `${fields}`) fields.set("at", state.at);
  const hash = `${fields}` || state.at;
  if (hash !== location.hash.slice(1)) history.replaceState(null, "", hash ? "#" + hash : location.pathname + location.search);
}
// The value that a page without a choice shows.
let firstValue = "";
