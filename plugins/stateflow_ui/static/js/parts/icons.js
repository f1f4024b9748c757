// The few signs that the pages use; each is a shape of its own, so that none is told by its colour alone.
import { html } from "../html.js";

const SHAPES = {
  ok: html`<circle cx="8" cy="8" r="6.2" /><path d="m5.3 8.2 1.9 1.9 3.6-4" />`,
  stale: html`<circle cx="8" cy="8" r="6.2" /><path d="M8 4.6V8l2.3 1.6" />`,
  lost: html`<path d="M4 4l8 8M12 4l-8 8" />`,
  blocked: html`<path d="M5.4 1.8h5.2l3.6 3.6v5.2l-3.6 3.6H5.4l-3.6-3.6V5.4z" /><path d="M5 8h6" />`,
  unreadable: html`<path d="M8 1.8 14.2 8 8 14.2 1.8 8z" /><path d="M8 5v3.6M8 10.8v.2" />`,
  failed: html`<circle cx="8" cy="8" r="6.2" /><path d="M8 4.4v4.4M8 11v.2" />`,
  new: html`<circle cx="8" cy="8" r="6.2" stroke-dasharray="2.6 2.3" />`,
  running: html`<path d="M5 3.4v9.2L12.4 8z" fill="currentColor" />`,
  idle: html`<path d="M5.5 4v8M10.5 4v8" />`,
  close: html`<path d="m4 4 8 8m0-8-8 8" />`,
  out: html`<path d="M6.5 3.5h-3v9h9v-3M9 3h4v4M13 3 7.5 8.5" />`,
  warning: html`<path d="M8 2.2 14.6 13.6H1.4zM8 6.4v3.4M8 11.7v.2" />`,
  pause: html`<path d="M5.5 3.5v9M10.5 3.5v9" />`,
  live: html`<path d="M5 3.4v9.2L12.4 8z" fill="currentColor" />`,
  copy: html`<path d="M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z" />`,
  search: html`<circle cx="7" cy="7" r="4.2" /><path d="m10.2 10.2 3.6 3.6" />`,
  tag: html`<path d="M2.5 2.5h5.2l5.8 5.8-5.2 5.2-5.8-5.8z" /><path d="M5.2 5.2v.1" />`,
};

export function Icon({ name, label }) {
  return html`<svg class=${`sign sign-${name}`} viewBox="0 0 16 16" width="14" height="14" role=${label ? "img" : undefined}
    aria-label=${label} aria-hidden=${label ? undefined : "true"}>${SHAPES[name]}</svg>`;
}
