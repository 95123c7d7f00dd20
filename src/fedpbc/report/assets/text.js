// ---- labels and numbers

const TEXT = {
  test_accuracy: "test accuracy", train_accuracy: "training accuracy", test_loss: "test loss",
  distance: "distance to the optimum ‖x − x*‖",
  round: "round", local_steps: "local steps of all clients", uploads: "uploads",
  bytes_up: "bytes sent up", bytes_down: "bytes sent down", bytes_both: "bytes sent up and down",
};
const words = (key) => TEXT[key] || key.replaceAll("_", " ");
// Shown in percent; a custom metric is shown as it is, whatever its name.
const isShare = (key) => key === "test_accuracy" || key === "train_accuracy";
const capital = (text) => text[0].toUpperCase() + text.slice(1);
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
const percent = (v) => v.toFixed(1) + " %";
const bytes = (v) => (v >= 2 ** 30 ? (v / 2 ** 30).toFixed(2) + " GiB" : (v / 2 ** 20).toFixed(0) + " MiB");
// What was sent is counted in powers of ten, as in the tables.
function sent(exact) {
  const v = +exact.toPrecision(3);
  const power = v > 0 ? Math.min(6, Math.max(0, Math.floor(Math.log10(v) / 3 + 1e-9))) : 0;
  return `${+(v / 1000 ** power).toPrecision(3)} ${["B", "kB", "MB", "GB", "TB", "PB", "EB"][power]}`;
}
const seconds = (v) => (v >= 7200 ? (v / 3600).toFixed(1) + " h" : v >= 120 ? (v / 60).toFixed(1) + " min" : (+v.toPrecision(3)) + " s");
