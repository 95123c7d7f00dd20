// ---- style

const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const isDark = () => root.hasAttribute("data-dark");
const CLASSES = ["#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB", "#6699CC", "#661100"];
// From dark to light: the steps are also distinct in grey.
const HEAT = ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"];
const HATCH = { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: -0.78 };
const blue = () => (isDark() ? "#4FA8E0" : "#0072B2");

function styled(style) {
  if (!style) return { colour: css("--ink"), dash: null, marker: "circle", index: 1, bold: false };
  const { dash, marker, index } = style;
  return { colour: style[isDark() ? "dark" : "colour"], dash, marker, index, bold: index === 0 };
}

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
const nameAxis = (names) => axis({ type: "category", data: names, inverse: true, axisLabel: { color: css("--ink"), fontSize: 11, width: innerWidth < 760 ? 110 : 260, overflow: "truncate" }, splitLine: { show: false } });
