// Values of state as people read them, and the points in time that a job can be asked about.
import { html } from "../html.js";

const LONG = 160;

// The server sends each value as text, for a number of this language has no more than 53 bits.
export function Value({ value }) {
  if (!value) return html`<span class="none">–</span>`;
  return html`<code class="value" title=${value.length > LONG ? value : undefined}>${value.length > LONG ? `${value.slice(0, LONG - 1)}…` : value}</code>`;
}

// A query for the address: what is empty is left out.
export function queryOf(settings) {
  return new URLSearchParams(Object.entries(settings).filter(([, value]) => value)).toString();
}
