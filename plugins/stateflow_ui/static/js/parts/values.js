// Values of state as people read them, and the points in time that a job can be asked about.
import { html } from "../html.js";

const LONG = 160;

export const valueText = (value) => (value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value));

export function Value({ value }) {
  const text = valueText(value);
  if (!text) return html`<span class="none">–</span>`;
  return html`<code class="value" title=${text.length > LONG ? text : undefined}>${text.length > LONG ? `${text.slice(0, LONG - 1)}…` : text}</code>`;
}

// A query for the address: what is empty is left out.
export function queryOf(settings) {
  return new URLSearchParams(Object.entries(settings).filter(([, value]) => value)).toString();
}
