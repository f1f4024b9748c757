// Checkpoints over time: what they hold, what they uploaded, how long they took, what they read.
import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../html.js";
import { jobPath } from "../api.js";
import { bytes, duration, moment, plural, short, whole } from "../format.js";
import { useLive } from "../live.js";
import { checkpointHref } from "../route.js";
import { makeChart, rangeText } from "./chart.js";
import { Badge, Empty, KINDS, Trouble, Waiting } from "./words.js";

// What a batch should take, where the run has a target.
const target = (panel, series, at) => panel.against && series[panel.against][at] !== null && html`<span class="target">of ${panel.text(series[panel.against][at])}</span>`;

// Enough for every pixel of a wide screen; a closer look asks for as many within it.
const POINTS = 1200;

const PANELS = [
  { key: "full", name: "State in full", text: bytes, tone: "full", draw: "area", binary: true },
  { key: "size", name: "Uploaded", text: bytes, tone: "uploaded", draw: "bars", binary: true },
  { key: "duration", name: "Duration", text: duration, tone: "duration", draw: "points", against: "target" },
  { key: "rows", name: "Rows", text: short, tone: "rows", draw: "bars" },
];

const WINDOWS = [["1 h", 3600], ["24 h", 86400], ["7 d", 7 * 86400]];
const COUNTS = [["Last 100", 100], ["Last 1 000", 1000]];

// Columns by time or by number, ascending in either: clocks of hosts may differ, and uPlot trusts the order.
function arranged(columns, byTime) {
  const order = columns.id.map((_, k) => k);
  const key = byTime ? columns.t : columns.id;
  order.sort((a, b) => key[a] - key[b] || columns.id[a] - columns.id[b]);
  const pick = (values) => order.map((k) => values[k]);
  const kinds = pick(columns.kind);
  const held = (values) => order.map((k, at) => (kinds[at] === "checkpoint" ? (values?.[k] ?? null) : null));
  return {
    id: pick(columns.id),
    t: pick(columns.t),
    kind: kinds,
    timeline: pick(columns.timeline),
    x: pick(key).map((value) => (byTime ? value / 1000 : value)),
    full: held(columns.full),
    size: held(columns.size),
    duration: held(columns.duration),
    rows: held(columns.rows),
    target: held(columns.target),
  };
}

// A zoom is a stretch that stays, or the last so many, which moves on with the job.
const viewOf = (range, extent) => range && (range.last ? { min: Math.max(extent[0], extent[1] - range.last), max: extent[1] } : range);

// What to ask for a stretch of which the outline leaves something out. `total`: checkpoints that there are.
function closer(coarse, byTime, view, total) {
  if (!view || coarse.id.length >= total) return null;
  const inside = coarse.x.flatMap((at, k) => (at >= view.min && at <= view.max ? [coarse.t[k]] : []));
  const [since, until] = byTime ? [view.min * 1000, view.max * 1000] : [inside[0], inside.at(-1)];
  if (!(until > since)) return null;
  return `timeline?points=${POINTS}&since=${Math.floor(since)}${view.max < coarse.x.at(-1) ? `&until=${Math.ceil(until)}` : ""}`;
}

export function Timeline({ conn, job, p95, total = Infinity }) {
  const [byTime, setByTime] = useState(true);
  const [range, setRange] = useState(null);
  const coarse = useLive(jobPath(conn, job, `timeline?points=${POINTS}`));
  const outline = useMemo(() => coarse.data && arranged(coarse.data, byTime), [coarse.data, byTime]);
  const extent = outline && [outline.x[0], outline.x.at(-1)];
  const view = outline && viewOf(range, extent);
  const nearer = outline && closer(outline, byTime, view, total);
  const fine = useLive(nearer && jobPath(conn, job, nearer));
  const series = useMemo(() => (nearer && fine.data?.id.length ? arranged(fine.data, byTime) : outline), [outline, nearer && fine.data, byTime]);

  if (!series) return coarse.error ? html`<${Trouble} error=${coarse.error} />` : html`<${Waiting} lines=${8} />`;
  if (!series.kind.includes("checkpoint")) {
    return html`<${Empty} title="No checkpoint yet"><p>The timeline begins with the first micro-batch that the job completes. Start a run, and it shows here.</p><//>`;
  }
  return html`<section aria-labelledby="timeline">
    <div class="section-head">
      <h2 id="timeline">Timeline</h2>
      <${Windows} extent=${extent} byTime=${byTime} range=${range} view=${view} onRange=${setRange} />
      <div class="switch" role="group" aria-label="Spread by">
        <button type="button" aria-pressed=${byTime} onClick=${() => { setRange(null); setByTime(true); }}>By time</button>
        <button type="button" aria-pressed=${!byTime} onClick=${() => { setRange(null); setByTime(false); }}>By number</button>
      </div>
    </div>
    <${Panels} key=${byTime} conn=${conn} job=${job} series=${series} extent=${extent} byTime=${byTime} view=${view} partial=${coarse.data.partial} onRange=${setRange} p95=${p95} />
  </section>`;
}

function Windows({ extent: [low, high], byTime, range, view, onRange }) {
  const known = (byTime ? WINDOWS : COUNTS).filter(([, length]) => high - low > length);
  return html`<div class="windows" role="group" aria-label="Zoom">
    ${known.map(([name, length]) => html`<button key=${name} type="button" class="chip" aria-pressed=${range?.last === length} onClick=${() => onRange({ last: length })}>${name}</button>`)}
    <button type="button" class="chip" aria-pressed=${!range} onClick=${() => onRange(null)}>All</button>
    <span class="range">${view ? rangeText(view, byTime) : ""}</span>
  </div>`;
}

function Panels({ conn, job, series, extent, byTime, view, partial, onRange, p95 }) {
  const holder = useRef(null);
  const charts = useRef([]);
  const facts = useRef({});
  const [at, setAt] = useState(null);
  const [spoken, setSpoken] = useState("");
  const [theme, setTheme] = useState(0);
  facts.current = { series, extent, view, p95, onRange };

  const open = useCallback((index) => {
    const id = facts.current.series.id[index];
    if (id !== undefined) location.hash = checkpointHref(conn, job, id);
  }, [conn, job]);

  useEffect(() => {
    const changed = () => setTheme((n) => n + 1);
    addEventListener("theme", changed);
    return () => removeEventListener("theme", changed);
  }, []);

  useLayoutEffect(() => {
    const box = holder.current;
    const seats = [...box.querySelectorAll(".panel-chart")];
    const group = `timeline-${Math.random()}`;
    const narrow = box.clientWidth < 640;
    let settling = true;
    const markers = () => facts.current.series.x.map((x, k) => ({ x, kind: facts.current.series.kind[k] })).filter(({ kind }) => !["checkpoint", "fence"].includes(kind));
    charts.current = PANELS.map((panel, k) =>
      makeChart({ ...panel, guide: panel.key === "duration" ? () => facts.current.p95 : undefined }, {
        holder: seats[k], data: dataOf(panel, facts.current.series), width: seats[k].clientWidth,
        height: heightOf(k), group, byTime, first: k === 0, last: k === PANELS.length - 1, narrow, markers,
        onCursor: (index) => setAt(index ?? null),
        onRange: (scale) => k === 0 && !settling && heard(scale),
      }),
    );
    // A drag in any panel sets the x scale of all; what the effect below has set is no news.
    function heard({ min, max }) {
      const { extent: [low, high], view: before, onRange: tell } = facts.current;
      const pad = low === high ? 1 : 0;
      const known = before ?? { min: low - pad, max: high + pad };
      if (Math.abs(known.min - min) + Math.abs(known.max - max) > (max - min) * 1e-6) tell({ min: Math.max(low, min), max: Math.min(high, max) });
    }
    queueMicrotask(() => { settling = false; });
    const watch = new ResizeObserver(() => charts.current.forEach((chart, k) => chart.setSize({ width: seats[k].clientWidth, height: heightOf(k) })));
    watch.observe(box);
    return () => {
      watch.disconnect();
      charts.current.forEach((chart) => chart.destroy());
      charts.current = [];
    };
  }, [theme, byTime]);

  // New data or another range: scales follow, the cursor stays.
  useLayoutEffect(() => {
    const [low, high] = extent;
    const pad = low === high ? 1 : 0;
    charts.current.forEach((chart, k) => {
      chart.batch(() => {
        chart.setData(dataOf(PANELS[k], series), false);
        chart.setScale("x", view ? { min: view.min, max: view.max } : { min: low - pad, max: high + pad });
      });
    });
  }, [series, extent[0], extent[1], view?.min, view?.max, p95, theme]);

  const newest = series.kind.lastIndexOf("checkpoint");
  const shown = at ?? newest;

  function move(index) {
    const next = Math.max(0, Math.min(series.x.length - 1, index));
    const [chart] = charts.current;
    chart.setCursor({ left: chart.valToPos(series.x[next], "x"), top: 10 }, true, true);
    setAt(next);
    setSpoken(`Checkpoint ${series.id[next]}: ${PANELS.map((panel) => `${panel.name} ${panel.text(series[panel.key][next])}`).join(", ")}`);
  }

  function zoom(factor) {
    const { min, max } = charts.current[0].scales.x;
    const middle = at === null ? max : series.x[at];
    const next = { min: Math.max(extent[0], middle - (middle - min) * factor), max: Math.min(extent[1], middle + (max - middle) * factor) };
    onRange(next.min <= extent[0] && next.max >= extent[1] ? null : next);
  }

  function pressed(event) {
    const keys = {
      ArrowLeft: () => move(shown - (event.shiftKey ? 20 : 1)),
      ArrowRight: () => move(shown + (event.shiftKey ? 20 : 1)),
      Home: () => move(0),
      End: () => move(series.x.length - 1),
      Enter: () => open(shown),
      "+": () => zoom(0.5),
      "-": () => zoom(2),
      Escape: () => onRange(null),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target !== event.currentTarget && event.key === "Enter") return;
    event.preventDefault();
    keys[event.key]();
  }

  const down = useRef(null);
  const press = (event) => { down.current = [event.clientX, event.clientY, event.pointerType]; };
  function release(event) {
    const [x, y, kind] = down.current ?? [];
    const still = Math.abs(event.clientX - x) < 4 && Math.abs(event.clientY - y) < 4;
    if (kind === "mouse" && event.button === 0 && still && at !== null && event.target.closest(".u-over")) open(at);
  }

  return html`<div class="timeline" ref=${holder} tabindex="0" role="group" aria-label="Checkpoints over time" aria-describedby="timeline-help"
      onKeyDown=${pressed} onPointerDown=${press} onPointerUp=${release} onDblClick=${() => onRange(null)}>
    <p class="readout">
      <a href=${checkpointHref(conn, job, series.id[shown])}>#${series.id[shown]}</a>
      <span>${KINDS[series.kind[shown]] ?? series.kind[shown]}</span>
      <span>${moment(series.t[shown])}</span>
      ${series.timeline[shown] > 1 && html`<${Badge}>timeline ${series.timeline[shown]}<//>`}
      ${at === null && html`<span class="faint">${partial ? "older ones are still being read" : `newest of ${plural(series.id.length, "point")}`}</span>`}
    </p>
    ${PANELS.map((panel) => html`<div class="panel" key=${panel.key}>
      <p class="panel-name"><i class=${`tone tone-${panel.tone}`}></i>${panel.name}<b>${panel.key === "rows" ? whole(series.rows[shown]) : panel.text(series[panel.key][shown])}</b>${target(panel, series, shown)}</p>
      <div class="panel-chart"></div>
    </div>`)}
    <p class="hint" id="timeline-help">Drag to zoom, double-click for all. A click opens a checkpoint. Keys: <kbd>←</kbd> <kbd>→</kbd> <kbd>+</kbd> <kbd>-</kbd> <kbd>Enter</kbd> <kbd>Esc</kbd></p>
    <p class="hidden" aria-live="polite">${spoken}</p>
  </div>`;
}

const dataOf = (panel, series) => [series.x, series[panel.key], ...(panel.against ? [series[panel.against]] : [])];

const heightOf = (k) => (k === PANELS.length - 1 ? 74 + 38 : k === 0 ? 116 : 78);
