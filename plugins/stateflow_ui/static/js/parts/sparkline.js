// A line as small as a word. Its numbers are said beside it, so it is hidden from readers.
import { html } from "../html.js";

const WIDTH = 96;
const HEIGHT = 20;

export function path(values, { zero = true } = {}) {
  const known = values.filter((value) => Number.isFinite(value));
  if (known.length < 2) return "";
  const high = Math.max(...known);
  // Away from zero a change shows; but one of a few percent must not look like a cliff.
  const low = zero ? Math.min(0, ...known) : Math.min(...known, high * 0.8);
  const span = high - low || 1;
  const step = (WIDTH - 4) / (values.length - 1);
  return values
    .map((value, k) => (Number.isFinite(value) ? `${(2 + k * step).toFixed(1)} ${(HEIGHT - 2 - ((value - low) / span) * (HEIGHT - 5)).toFixed(1)}` : ""))
    .filter(Boolean)
    .map((point, k) => `${k ? "L" : "M"}${point}`)
    .join("");
}

export function Sparkline({ values = [], zero = true, tone = "line" }) {
  const line = path(values, { zero });
  if (!line) return html`<svg class="spark" width=${WIDTH} height=${HEIGHT} aria-hidden="true"></svg>`;
  const [x, y] = line.slice(line.lastIndexOf("L") + 1).split(" ");
  return html`<svg class=${`spark spark-${tone}`} width=${WIDTH} height=${HEIGHT} viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true">
    <path d=${line} fill="none" /><circle cx=${x} cy=${y} r="1.8" />
  </svg>`;
}
