// ---- each chart as SVG and CSV, each table as CSV and LaTeX

const csvCell = (v) => {
  const text = v === null || v === undefined ? "" : String(v);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
const csvText = (rows) => rows.map((row) => row.map(csvCell).join(",")).join("\r\n") + "\r\n";
const TYPES = { svg: "image/svg+xml", csv: "text/csv", tex: "text/x-tex" };

function save(text, name, ending) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: TYPES[ending] + ";charset=utf-8" }));
  link.download = `${name.normalize("NFKD").replace(/[^A-Za-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 80).toLowerCase() || "fedpbc"}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
function tool(text, name, action) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = text;
  button.title = name;
  button.setAttribute("aria-label", name);
  button.addEventListener("click", action);
  return button;
}
// What a figure or a table can be saved as: {ending: function that returns the text}.
function addTools(box, kinds, ...more) {
  const tools = document.createElement("div"), title = () => titleOf(box);
  tools.className = "tools";
  tools.append(...more);
  for (const [kind, made] of Object.entries(kinds))
    tools.append(tool(kind, `Save "${title()}" as ${kind}`, () => save(made(), `${document.title} ${title()}`, kind === "LaTeX" ? "tex" : kind.toLowerCase())));
  box.prepend(tools);
}
function titleOf(box) {
  const named = box.querySelector("figcaption b, caption");
  return named ? named.textContent : box.querySelector("table")?.getAttribute("aria-label") || box.querySelector("img")?.alt || "table";
}

// A chart stands alone: with its title and its legend.
function svgText(plot, group) {
  const svg = plot.querySelector("svg"), figure = plot.parentElement, kind = plot.dataset.chart;
  const width = svg.clientWidth || plot.clientWidth, height = svg.clientHeight || plot.clientHeight;
  const font = getComputedStyle(document.body).fontFamily.replaceAll('"', "'"), pen = document.createElement("canvas").getContext("2d");
  pen.font = `12px ${font}`;
  let x = 10, y = 40, parts = "";
  const item = (mark, label, wide) => {
    const size = wide + 6 + pen.measureText(label).width;
    if (x + size > width - 10 && x > 10) { x = 10; y += 20; }
    parts += `<g transform="translate(${x} ${y})">${mark}<text x="${wide + 6}" y="11" font-size="12" fill="${css("--ink")}">${escaped(label)}</text></g>`;
    x += size + 18;
  };
  const box = figure.querySelector(".legend");
  if (box && (kind === "clients")) classNames(group).forEach((name, c) => item(`<rect width="12" height="12" y="1" fill="${CLASSES[c % CLASSES.length]}"/>`, name, 12));
  else if (box && kind !== "classes") legendEntries(kind, group).filter((e) => !state.hidden.has(e.key)).forEach((e) => item(sample(e.style), e.label, 28));
  const top = parts ? y + 24 : 32, copy = svg.cloneNode(true);
  copy.setAttribute("y", top);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${top + height}" viewBox="0 0 ${width} ${top + height}" font-family="${font}">` +
    `<rect width="100%" height="100%" fill="${css("--paper")}"/><text x="10" y="22" font-size="15" font-weight="600" fill="${css("--ink")}">${escaped(titleOf(figure))}</text>` +
    parts + new XMLSerializer().serializeToString(copy) + "</svg>";
}

// ---- tables

const cellText = (cell) => [...cell.childNodes].filter((n) => n.nodeType === Node.TEXT_NODE).map((n) => n.textContent).join("").trim();
const tagsOf = (row) => [...row.querySelectorAll(".tag")].map((tag) => tag.textContent).join(", ");
const shownRows = (table) => [...table.tBodies[0].rows].filter((row) => row.offsetParent !== null);
const headOf = (table) => [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
function tableCsv(table) {
  const rows = shownRows(table), marks = rows.some(tagsOf);
  return csvText([[...headOf(table), ...(marks ? ["marks"] : [])], ...rows.map((row) => [...[...row.cells].map(cellText), ...(marks ? [tagsOf(row)] : [])])]);
}
const LATEX = {
  "\\": "\\textbackslash{}", "&": "\\&", "%": "\\%", "$": "\\$", "#": "\\#", "_": "\\_", "{": "\\{", "}": "\\}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}",
  "±": "$\\pm$", "×": "$\\times$", "−": "$-$", "–": "--", "—": "---", "…": "\\ldots{}", "†": "$\\dagger$", "‡": "$\\ddagger$", "·": "$\\cdot$", "‖": "$\\|$", "≤": "$\\leq$", "≥": "$\\geq$", "∞": "$\\infty$", "’": "'",
  "α": "$\\alpha$", "β": "$\\beta$", "γ": "$\\gamma$", "δ": "$\\delta$", "η": "$\\eta$", "σ": "$\\sigma$", "₀": "$_0$", "₁": "$_1$", "₂": "$_2$", "²": "$^2$",
};
const latex = (text) => [...text].map((c) => LATEX[c] || c).join("");
function tableLatex(table) {
  const best = (row) => row.querySelector(".tag.best") !== null;
  const columns = [...table.tHead.rows[0].cells].map((cell) => (cell.classList.contains("text") ? "l" : "r")).join("");
  const rows = shownRows(table).map((row) => [...row.cells].map((cell) => { const text = latex(cellText(cell)); return best(row) && text ? `\\textbf{${text}}` : text; }));
  return `% needs \\usepackage{booktabs}\n\\begin{tabular}{${columns}}\n\\toprule\n${headOf(table).map(latex).join(" & ")} \\\\\n\\midrule\n` +
    rows.map((row) => row.join(" & ") + " \\\\\n").join("") + "\\bottomrule\n\\end{tabular}\n";
}

// A picture is saved as it is in the page, if it is one of lines.
for (const image of document.querySelectorAll('img.picture[src^="data:image/svg"]')) {
  const bytes = () => Uint8Array.from(atob(image.src.split(",")[1]), (c) => c.charCodeAt(0));
  addTools(image.parentElement, { SVG: () => new TextDecoder().decode(bytes()) });
}
