// ---- tables: sorted by a click, folded to the views that matter, with a hint where they scroll

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
const tables = [...document.querySelectorAll("table.sortable")];
function sortAll() {
  for (const [number, [column, down]] of Object.entries(state.sort))
    if (tables[number] && column < tables[number].tHead.rows[0].cells.length) sort(tables[number], column, down);
}
const FOLDED_ROWS = 12;
tables.forEach((table, number) => {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.setAttribute("aria-sort", "none");
    head.querySelector("button").addEventListener("click", () => {
      const now = head.getAttribute("aria-sort"), text = typeof sortValue(table.tBodies[0].rows[0]?.cells[column] || document.createElement("td")) === "string";
      // Numbers start with the largest, text with A.
      const down = now === "none" ? !text : now === "ascending";
      state.sort[number] = [column, down];
      sort(table, column, down);
      toAddress();
    });
  });
  const box = table.closest(".table-box"), rows = [...table.tBodies[0].rows], more = [];
  // Of many views, first those that can be deployed best; of many clients, those absent longest.
  if (rows.length > FOLDED_ROWS && rows.some((row) => row.dataset.other !== undefined)) {
    const best = rows.filter((row) => row.dataset.other === undefined).length;
    const fold = tool("", "", () => { state.rows[number] = !state.rows[number]; show(); remember(); hints(); });
    const show = () => {
      table.classList.toggle("folded", !state.rows[number]);
      fold.textContent = state.rows[number] ? `only the ${best} ${table.dataset.few}` : `show all ${rows.length} ${table.dataset.all}`;
      for (const name of ["title", "aria-label"]) fold.setAttribute(name, fold.textContent);
    };
    show();
    more.push(fold);
  }
  addTools(box, { CSV: () => tableCsv(table), LaTeX: () => tableLatex(table) }, ...more);
});
function hints() {
  for (const box of document.querySelectorAll(".table-box")) {
    const scroller = box.querySelector(".wide-table"), rest = scroller.scrollWidth - scroller.clientWidth - scroller.scrollLeft;
    box.classList.toggle("scrolls", scroller.scrollWidth > scroller.clientWidth + 1);
    box.classList.toggle("more", rest > 2);
  }
}
document.querySelectorAll(".wide-table").forEach((scroller) => scroller.addEventListener("scroll", hints, { passive: true }));
// On paper nothing scrolls: a table that is too wide is made smaller.
function shrinkTables(printed) {
  for (const scroller of document.querySelectorAll(".wide-table")) {
    const table = scroller.querySelector("table");
    table.style.zoom = "";
    if (printed && scroller.clientWidth && table.scrollWidth > scroller.clientWidth) table.style.zoom = Math.max(0.3, scroller.clientWidth / table.scrollWidth - 0.005);
  }
}
