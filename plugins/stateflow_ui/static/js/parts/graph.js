// The history graph: one lane per line of history, with what people did to the job along it.
import { html, useEffect, useMemo, useState } from "../html.js";
import { jobPath } from "../api.js";
import { moment, plural, whole } from "../format.js";
import { useLive } from "../live.js";
import { checkpointHref } from "../route.js";
import { lanes } from "./lanes.js";
import { Badge, Empty, KINDS, Trouble, Waiting } from "./words.js";

const HEIGHTS = { wide: 30, narrow: 52 };
const LANE = 18;
const LEFT = 14;
const SHOWN = 150;

export function Graph({ conn, job }) {
  const { data, error } = useLive(jobPath(conn, job, "graph"));
  const [all, setAll] = useState(false);
  const spans = useMemo(() => (all ? data?.spans : data?.spans.slice(0, SHOWN)) ?? [], [data, all]);
  const drawing = useMemo(() => lanes(spans), [spans]);
  const row = useNarrow() ? HEIGHTS.narrow : HEIGHTS.wide;
  if (!data) return error ? html`<${Trouble} error=${error} />` : html`<${Waiting} lines=${10} />`;
  if (!spans.length) {
    return html`<${Empty} title="No history yet"><p>Every checkpoint, restore and rescale becomes part of this graph. It begins with the job's first run.</p><//>`;
  }
  const timelines = new Set(data.spans.map((span) => span.timeline)).size;
  return html`<section aria-label="History graph">
    <div class="section-head">
      <h2>History graph</h2>
      <p class="counted">${plural(timelines, "timeline")}<span class="faint">A restore to something older begins a new one; the old one stays restorable until it is collected.</span></p>
    </div>
    <${Trouble} error=${error} data=${data} />
    <div class="graph" style=${{ "--lanes": `${LEFT + drawing.width * LANE}px`, "--row-height": `${row}px` }}>
      <${Lines} spans=${spans} drawing=${drawing} head=${data.head} row=${row} />
      <ol>
        ${spans.map((span) => html`<${Row} key=${span.newest} span=${span} conn=${conn} job=${job} data=${data} />`)}
      </ol>
    </div>
    ${data.spans.length > spans.length && html`<p class="more"><span>${whole(spans.length)} of ${whole(data.spans.length)} rows</span><button type="button" onClick=${() => setAll(true)}>Show all</button></p>`}
    ${data.more && data.spans.length === spans.length && html`<p class="more">Older rows are not drawn: the history lists them.</p>`}
  </section>`;
}

function useNarrow() {
  const query = useMemo(() => matchMedia("(max-width: 720px)"), []);
  const [narrow, setNarrow] = useState(query.matches);
  useEffect(() => {
    const changed = () => setNarrow(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, [query]);
  return narrow;
}

const x = (lane) => LEFT + lane * LANE;

function Lines({ spans, drawing, head, row }) {
  const height = spans.length * row;
  return html`<svg width=${LEFT + drawing.width * LANE} height=${height} aria-hidden="true">
    ${drawing.edges.map((edge) => html`<path class=${`lane lane-${edge.lane % 6}`} d=${route(edge, height, row)} />`)}
    ${spans.map((span, at) => html`<${Node} span=${span} cx=${x(drawing.rows[at].lane)} cy=${(at + 0.5) * row} lane=${drawing.rows[at].lane} head=${span.newest === head} />`)}
  </svg>`;
}

// Straight down its own lane, then over to the lane that it joins just above the row it stands on.
function route({ from, to, start, end }, height, row) {
  const [x0, y0, x1, y1] = [x(start), (from + 0.5) * row, x(end), Math.min((to + 0.5) * row, height)];
  if (x0 === x1) return `M${x0} ${y0}V${y1}`;
  const bend = y1 - row;
  return `M${x0} ${y0}V${Math.max(y0, bend)}C${x0} ${bend + row * 0.6} ${x1} ${bend + row * 0.4} ${x1} ${y1}`;
}

// Full: it can be restored. Hollow: its files were collected.
function Node({ span, cx, cy, lane, head }) {
  const tone = `lane-${lane % 6} ${isCollected(span) ? "node-gone" : ""}`;
  if (span.count > 1) return html`<rect class=${`node ${tone}`} x=${cx - 3.5} y=${cy - 8} width="7" height="16" rx="3.5" />`;
  if (span.kind !== "checkpoint") return html`<path class=${`node node-act ${tone}`} d=${`M${cx} ${cy - 6.5}l6.5 6.5l-6.5 6.5l-6.5-6.5z`} />`;
  return html`${head && html`<circle class=${`ring ${tone}`} cx=${cx} cy=${cy} r="8" />`}<circle class=${`node ${tone}`} cx=${cx} cy=${cy} r="4.5" />`;
}

function Row({ span, conn, job, data }) {
  const tags = Object.entries(data.tags ?? {}).filter(([, slot]) => slot === span.newest);
  const saved = (data.savepoints ?? []).filter((each) => each.checkpoint <= span.newest && each.checkpoint >= span.oldest);
  const { when, words } = said(span);
  return html`<li class=${isCollected(span) ? "collected" : ""}>
    <span class="slot"><a href=${checkpointHref(conn, job, span.newest)}>#${span.newest}</a>${span.count > 1 && html`<span class="faint"> … #${span.oldest}</span>`}</span>
    <span class="when">${when}</span>
    ${span.kind !== "checkpoint" && html`<${Badge} kind=${span.kind}>${KINDS[span.kind] ?? span.kind}<//>`}
    ${span.newest === data.head && html`<${Badge} kind="head">head<//>`}
    ${tags.map(([name]) => html`<${Badge} key=${name} kind="tag" title="Tag: keeps this checkpoint">${name}<//>`)}
    ${saved.map((each) => html`<${Badge} key=${each.url} kind="savepoint" title=${`Savepoint ${each.url}, ${moment(each.at)}`}>savepoint ${each.name || ""}<//>`)}
    ${isCollected(span) && html`<${Badge} title="Its files were collected: it can be looked at and not restored">collected<//>`}
    <span class="said" title=${span.text}>${words}</span>
  </li>`;
}

const isCollected = (span) => span.text.endsWith(", collected");
const TIME = /(?:, the newest of )?(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)/;

// The words of the server (its times are UTC) without what the row shows already.
function said(span) {
  const [, date, clock] = span.text.match(TIME) ?? [];
  const words = span.text
    .replace(/^\d+(\.\.\d+)?\s*/, "")
    .replace(new RegExp(`^${span.kind}\\b\\s*`), "")
    .replace(/\((?:head|tag )[^)]*\)\s*/, "")
    .replace(/, collected$/, "")
    .replace(TIME, "")
    .replace(/\s+/g, " ");
  return { when: date ? moment(Date.parse(`${date}T${clock}Z`)) : "", words: words.trim() };
}
