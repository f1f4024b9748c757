// Bytes per key group as a strip: where state is heavy, and which shard holds it.
import { html, useEffect, useMemo, useRef, useState } from "../html.js";
import { bytes, plural, whole } from "../format.js";
import { colour } from "./colour.js";

const HEIGHT = 40;

export function skew(groups) {
  const total = groups.reduce((sum, size) => sum + size, 0);
  const most = groups.reduce((best, size, k) => (size > groups[best] ? k : best), 0);
  const mean = total / (groups.length || 1);
  return { total, most, mean, factor: mean ? groups[most] / mean : 0 };
}

export function HeatStrip({ groups, shards }) {
  const canvas = useRef(null);
  const [at, setAt] = useState(null);
  const [drawn, draw] = useState(0);
  const facts = useMemo(() => skew(groups), [groups]);
  const top = groups[facts.most] || 1;

  useEffect(() => {
    const again = () => draw((n) => n + 1);
    const watch = new ResizeObserver(again);
    watch.observe(canvas.current);
    addEventListener("theme", again);
    return () => {
      watch.disconnect();
      removeEventListener("theme", again);
    };
  }, []);

  useEffect(() => paint(canvas.current, groups, top, shards), [groups, shards, drawn]);

  function point(event) {
    const box = event.currentTarget.getBoundingClientRect();
    setAt(Math.max(0, Math.min(groups.length - 1, Math.floor(((event.clientX - box.left) / box.width) * groups.length))));
  }
  function key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -groups.length, End: groups.length }[event.key];
    if (!step) return;
    event.preventDefault();
    setAt((before) => Math.max(0, Math.min(groups.length - 1, (before ?? facts.most) + step)));
  }

  const shown = at ?? facts.most;
  const owner = shards.find((shard) => shard.first <= shown && shown <= shard.last);
  const said = `Key group ${shown}: ${bytes(groups[shown])}, ${times(groups[shown], facts.mean)} the average${owner ? `, subtask ${owner.subtask}` : ""}`;
  return html`<div class="heat">
    <p class="readout"><b>${at === null ? "Heaviest: key group" : "Key group"} ${shown}</b><span>${bytes(groups[shown])}</span><span>${times(groups[shown], facts.mean)} the average</span>${owner && html`<span>subtask ${owner.subtask}, shard ${owner.first}–${owner.last}</span>`}</p>
    <canvas ref=${canvas} tabindex="0" role="slider" aria-label=${`State by key group, ${plural(groups.length, "group")}`} aria-valuemin="0" aria-valuemax=${groups.length - 1}
      aria-valuenow=${shown} aria-valuetext=${said} onPointerMove=${point} onPointerDown=${point} onPointerLeave=${() => setAt(null)} onKeyDown=${key} onBlur=${() => setAt(null)}></canvas>
    <p class="scale"><span>0</span><span class="legend">0 B <i class="ramp"></i> ${bytes(top)} per key group</span><span>${whole(groups.length - 1)}</span></p>
  </div>`;
}

const times = (size, mean) => (mean ? `${(size / mean).toFixed(1)} ×` : "0 ×");

// One column per pixel at most; of the groups that share a pixel the heaviest shows.
function paint(canvas, groups, top, shards) {
  const ratio = devicePixelRatio || 1;
  const width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  canvas.width = width;
  canvas.height = Math.round(HEIGHT * ratio);
  const ctx = canvas.getContext("2d");
  const columns = Math.min(width, groups.length);
  for (let k = 0; k < columns; k++) {
    const [from, to] = [Math.floor((k * groups.length) / columns), Math.floor(((k + 1) * groups.length) / columns)];
    let most = 0;
    for (let g = from; g < to; g++) most = Math.max(most, groups[g]);
    const left = Math.round((k * width) / columns);
    ctx.fillStyle = most ? colour("--heat", 0.1 + 0.9 * Math.round((most / top) * 40) / 40) : colour("--sunk");
    ctx.fillRect(left, 0, Math.round(((k + 1) * width) / columns) - left, canvas.height);
  }
  if (shards.length > width / 8) return;
  ctx.fillStyle = colour("--page");
  for (const shard of shards) if (shard.first > 0) ctx.fillRect(Math.round((shard.first * width) / groups.length) - Math.round(ratio / 2), 0, Math.max(1, Math.round(ratio)), canvas.height);
}
