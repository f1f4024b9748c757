// Tables that sort by their headers. On a phone each row becomes a card whose cells say their own names.
import { Fragment, html } from "../html.js";

// columns: { key, name, hint, cell(row), value(row) to sort by, right: figures, wide: takes what room is left, big: largest first }
// `below(row)` is a sentence that stands in a row of its own, or nothing.
export function Table({ columns, rows, sort, onSort, keyOf, caption, className = "", onRow, below }) {
  return html`<table class=${`grid cards ${className}`}>
    <caption class="hidden">${caption}</caption>
    <thead>
      <tr>${columns.map((column) => html`<${Header} key=${column.key} column=${column} sort=${sort} onSort=${onSort} />`)}</tr>
    </thead>
    <tbody>
      ${rows.map((row) => {
        const key = keyOf(row);
        const more = below?.(row);
        const open = onRow && ((event) => opened(event, row, onRow));
        return html`<${Fragment} key=${key}>
          <tr class=${[onRow && "opens", more && "has-more"].filter(Boolean).join(" ")} onClick=${open}>
            ${columns.map((column) => html`<td class=${classOf(column)} data-name=${column.name}>${column.cell(row)}</td>`)}
          </tr>
          ${more && html`<tr class=${onRow ? "opens more-row" : "more-row"} onClick=${open}><td></td><td colspan=${columns.length - 1}>${more}</td></tr>`}
        <//>`;
      })}
    </tbody>
  </table>`;
}

const classOf = (column) => [column.right && "right", column.wide && "wide", `col-${column.key}`].filter(Boolean).join(" ");

// The row is a larger target for the mouse; its link is the real one.
function opened(event, row, onRow) {
  if (event.target.closest("a, button, input") || String(getSelection())) return;
  onRow(row, event);
}

function Header({ column, sort, onSort }) {
  const classes = classOf(column);
  if (!onSort || !column.value) return html`<th scope="col" class=${classes} title=${column.hint}>${column.name}</th>`;
  const mine = sort.key === column.key;
  const order = mine ? (sort.down ? "descending" : "ascending") : "none";
  return html`<th scope="col" class=${classes} aria-sort=${order} title=${column.hint}>
    <button type="button" class="sorter" onClick=${() => onSort({ key: column.key, down: mine ? !sort.down : Boolean(column.big) })}>
      ${column.name}<span aria-hidden="true">${mine ? (sort.down ? "↓" : "↑") : ""}</span>
    </button>
  </th>`;
}

// Unknown values go last, whichever way is up.
export function sorted(rows, columns, { key, down }, tie) {
  const column = columns.find((each) => each.key === key);
  if (!column?.value) return rows;
  const order = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  return [...rows].sort((one, other) => {
    const [a, b] = [column.value(one), column.value(other)];
    const [noneA, noneB] = [a === null || a === undefined, b === null || b === undefined];
    if (noneA || noneB) return noneA - noneB || order(tie(one), tie(other));
    return (down ? order(b, a) : order(a, b)) || order(tie(one), tie(other));
  });
}
