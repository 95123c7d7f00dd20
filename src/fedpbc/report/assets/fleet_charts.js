// ---- charts of a real fleet: one value per round each

Object.assign(CHARTS, {
  answers(group) {
    const r = group.rounds, series = [{ name: "answered", x: r.round, mean: r.answered, colour: blue(), marker: "circle", index: 0 }];
    if (r.refused.some((v) => v)) series.push({ name: "refused", x: r.round, mean: r.refused, colour: css("--bad"), dash: [7, 3], marker: "triangle", index: 3 });
    const chart = lines(series, { x: "round", y: "clients", format: number });
    if (chart) chart.option.yAxis.minInterval = 1;
    return chart;
  },
  durations(group) {
    return lines([{ name: "a round", x: group.rounds.round, mean: group.rounds.seconds, colour: blue(), marker: "circle", index: 0 }], { x: "round", y: "seconds", format: seconds });
  },
  traffic(group) {
    const r = group.rounds;
    const chart = lines([
      { name: "received", x: r.round, mean: r.bytes_up, colour: blue(), marker: "circle", index: 0 },
      { name: "sent", x: r.round, mean: r.bytes_down, colour: css("--ink"), dash: [7, 3], marker: "triangle", index: 3 },
    ], { x: "round", y: "sum of all rounds so far", format: sent });
    // "600B" would be read as bytes, and is billions.
    if (chart) chart.option.yAxis.axisLabel.formatter = sent;
    return chart;
  },
});
