// One panel of the timeline: uPlot, told how these pages draw. Panels share their x scale and the cursor.
import { moment, zone } from "../format.js";
import { colour } from "./colour.js";

const BINARY = Array.from({ length: 60 }, (_, k) => 2 ** k);
const FAMILY = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

const day = new Intl.DateTimeFormat("en-GB", { timeZone: zone, day: "numeric", month: "short" });
const year = new Intl.DateTimeFormat("en-GB", { timeZone: zone, year: "numeric" });
const hour = new Intl.DateTimeFormat("en-GB", { timeZone: zone, hour: "2-digit", minute: "2-digit" });
const second = new Intl.DateTimeFormat("en-GB", { timeZone: zone, hour: "2-digit", minute: "2-digit", second: "2-digit" });

// Times below, the day where it changes: what stands under one tick is not said again under the next.
function timeLabels(_, splits, __, ___, step) {
  let before = "";
  return splits.map((at) => {
    const date = new Date(at * 1000);
    if (step >= 86400 * 300) return year.format(date);
    const today = day.format(date);
    const first = step >= 86400 ? today : (step < 60 ? second : hour).format(date);
    const next = step >= 86400 ? year.format(date) : today;
    const below = next === before ? "" : `\n${next}`;
    before = next;
    return first + below;
  });
}

const numberLabels = (_, splits) => splits.map((value) => (Number.isInteger(value) ? `#${value}` : ""));

function drawn(panel) {
  const { paths } = globalThis.uPlot;
  const stroke = () => colour(`--${panel.tone}`);
  if (panel.draw === "area") {
    return { stroke, width: 1.5, fill: () => colour(`--${panel.tone}`, 0.14), paths: paths.stepped({ align: 1 }), points: { show: false } };
  }
  if (panel.draw === "bars") {
    return { stroke, width: 0, fill: () => colour(`--${panel.tone}`, 0.85), paths: paths.bars({ size: [0.8, 14, 1.5], align: 0 }), points: { show: false } };
  }
  return { stroke, width: 0, paths: () => null, points: { show: true, size: 3.4, width: 0, fill: stroke, stroke } };
}

// What the values should be: a dashed line, which steps where that was changed.
const against = () => ({ stroke: () => colour("--text"), width: 1, dash: [5, 4], spanGaps: true, paths: globalThis.uPlot.paths.stepped({ align: 1 }), points: { show: false } });

// Restores and the like, behind what is drawn: where a line of history was broken off or bent.
function marks(first, markers) {
  return (u) => {
    const { ctx, bbox } = u;
    const ratio = devicePixelRatio;
    let labelled = -Infinity;
    ctx.save();
    ctx.lineWidth = ratio;
    ctx.font = `${11 * ratio}px ${FAMILY}`;
    ctx.strokeStyle = ctx.fillStyle = colour("--mark");
    ctx.textAlign = "left";
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    for (const { x, kind } of markers()) {
      const at = Math.round(u.valToPos(x, "x", true)) + 0.5;
      if (at < bbox.left || at > bbox.left + bbox.width) continue;
      line(ctx, at, bbox.top, at, bbox.top + bbox.height);
      // A label that would run into the one before it, or out of the panel, is left out: the readout tells the kind.
      const width = ctx.measureText(kind).width + 8 * ratio;
      const start = Math.max(bbox.left, Math.min(at - width / 2, bbox.left + bbox.width - width));
      if (first && start > labelled) {
        ctx.fillText(kind, start + 4 * ratio, bbox.top - 5 * ratio);
        labelled = start + width;
      }
    }
    ctx.restore();
  };
}

// A line to measure by, over what is drawn.
function guide(value) {
  return (u) => {
    const { ctx, bbox } = u;
    const ratio = devicePixelRatio;
    const at = Math.round(u.valToPos(value() ?? NaN, "y", true)) + 0.5;
    if (!(at > bbox.top && at < bbox.top + bbox.height)) return;
    ctx.save();
    ctx.lineWidth = ratio;
    ctx.font = `${11 * ratio}px ${FAMILY}`;
    ctx.strokeStyle = colour("--muted");
    ctx.setLineDash([2 * ratio, 4 * ratio]);
    line(ctx, bbox.left, at, bbox.left + bbox.width, at);
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    const width = ctx.measureText("95 %").width;
    ctx.fillStyle = colour("--page", 0.85);
    ctx.fillRect(bbox.left + bbox.width - width - 8 * ratio, at - 8 * ratio, width + 8 * ratio, 16 * ratio);
    ctx.fillStyle = colour("--muted");
    ctx.fillText("95 %", bbox.left + bbox.width - 4 * ratio, at);
    ctx.restore();
  };
}

function line(ctx, x0, y0, x1, y1) {
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
}

export function makeChart(panel, { holder, data, width, height, group, byTime, first, last, narrow, markers, onCursor, onRange }) {
  const grid = { stroke: () => colour("--grid"), width: 1 };
  const axis = { stroke: () => colour("--muted"), font: `11px ${FAMILY}`, grid, ticks: { show: false } };
  const options = {
    width,
    height,
    padding: [first ? 18 : 6, 12, last ? 0 : 4, 0],
    tzDate: (at) => globalThis.uPlot.tzDate(new Date(at * 1000), zone),
    legend: { show: false },
    cursor: {
      y: false,
      sync: { key: group, scales: ["x", null] },
      drag: { x: true, y: false, dist: 5 },
      bind: { dblclick: () => null },
      points: { size: 7, width: 1.5, fill: () => colour(`--${panel.tone}`), stroke: () => colour("--page") },
    },
    scales: { x: { time: byTime }, y: { range: (_, low, high) => [0, (high || 1) * 1.1] } },
    axes: [
      { ...axis, size: last ? 38 : 0, gap: 6, space: byTime ? 76 : 64, values: last ? (byTime ? timeLabels : numberLabels) : (_, splits) => splits.map(() => "") },
      { ...axis, size: narrow ? 52 : 66, gap: 6, space: 23, incrs: panel.binary ? BINARY : undefined, values: (_, splits) => splits.map((value) => panel.text(value).replace(/\.0+ /, " ")) },
    ],
    series: [{}, { spanGaps: true, ...drawn(panel) }, ...(panel.against ? [against()] : [])],
    hooks: {
      drawClear: [marks(first, markers)],
      draw: panel.guide ? [guide(panel.guide)] : [],
      setCursor: [(u) => onCursor(u.cursor.idx)],
      setScale: [(u, key) => key === "x" && onRange(u.scales.x)],
    },
  };
  return new globalThis.uPlot(options, data, holder);
}

export const rangeText = ({ min, max }, byTime) => (byTime ? `${moment(min * 1000)} to ${moment(max * 1000)}` : `#${Math.ceil(min)} to #${Math.floor(max)}`);
