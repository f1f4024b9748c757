// Every record of the job, newest first. The server gives pages; only the rows in view are in the document.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { apiUrl, jobPath, read } from "../api.js";
import { DagRun } from "../airflow.js";
import { bytes, duration, plural, whole } from "../format.js";
import { useLive } from "../live.js";
import { checkpointHref, filterQuery } from "../route.js";
import { Ago, Badge, Empty, KINDS, Moment, Trouble, Waiting, statusWord } from "./words.js";

const PAGE = 100;
const AROUND = 12;

export function History({ conn, job, now, filter }) {
  const [kind, setKind] = useState("");
  const only = filterQuery(filter);
  const at = (before) => jobPath(conn, job, `history?limit=${PAGE}${before ? `&before=${before}` : ""}${kind ? `&kind=${kind}` : ""}${only ? `&${only}` : ""}`);
  return html`<section aria-label="History">
    <div class="section-head">
      <h2>History</h2>
      <label class="field-inline">Show
        <select value=${kind} onChange=${(event) => setKind(event.target.value)}>
          <option value="">everything</option>
          ${Object.entries(KINDS).map(([key, name]) => html`<option key=${key} value=${key}>${name.toLowerCase()}s only</option>`)}
        </select>
      </label>
      <${GoTo} conn=${conn} job=${job} />
    </div>
    <${Lines} key=${`${kind} ${only}`} all=${!kind && !only} conn=${conn} job=${job} now=${now} at=${at} />
  </section>`;
}

function GoTo({ conn, job }) {
  const [id, setId] = useState("");
  function go(event) {
    event.preventDefault();
    if (/^\d+$/.test(id)) location.hash = checkpointHref(conn, job, id);
  }
  return html`<form class="goto" onSubmit=${go}>
    <label class="field-inline">Checkpoint <input inputmode="numeric" size="7" placeholder="number" value=${id} onInput=${(event) => setId(event.target.value.trim())} /></label>
    <button type="submit">Open</button>
  </form>`;
}

// The newest page keeps itself fresh; what came before it never changes and is kept as it came.
function Lines({ conn, job, now, at, all }) {
  const newest = useLive(at(null));
  const [held, setHeld] = useState({ lines: [], next: null });
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const page = newest.data;
  // Shown with the page in the same frame: an effect comes a frame later, and the table would stand empty for one.
  const { lines, next } = page ? withNewest(held, page) : held;

  useEffect(() => {
    if (page) setHeld((held) => withNewest(held, page));
  }, [page]);

  async function load() {
    if (busy || !next) return;
    setBusy(true);
    setError(null);
    try {
      const { data } = await read(apiUrl(at(next)));
      setHeld((held) => (held.next === next ? { lines: [...held.lines, ...data.lines], next: data.next } : held));
    } catch (failure) {
      setError(failure);
    }
    setBusy(false);
  }

  if (!page) return newest.error ? html`<${Trouble} error=${newest.error} />` : html`<${Waiting} lines=${12} />`;
  if (!page.lines.length) {
    return html`<${Empty} title="Nothing of this kind"><p>The job's log holds no such record yet. Checkpoints come with every micro-batch; restores and rescales with those actions.</p><//>`;
  }
  return html`
    <${Trouble} error=${newest.error ?? error} data=${page} />
    <${Rows} lines=${lines} conn=${conn} job=${job} now=${now} onEnd=${load} />
    <p class="more">
      <span>${all ? `${whole(lines.length)} of ${plural(page.total, "record")}` : plural(lines.length, "record")}</span>${page.partial && html`<span class="faint">older ones are still being read</span>`}
      ${next ? html`<button type="button" onClick=${load} aria-busy=${busy}>${busy ? "Loading …" : "Load older"}</button>` : html`<span class="faint">That is all.</span>`}
    </p>`;
}

// If so much is new that the page no longer meets what is held, there is a hole between them: begin again.
export function withNewest(held, page) {
  const lowest = page.lines.at(-1)?.id;
  if (!held.lines.length || lowest === undefined || lowest > held.lines[0].id) return { lines: page.lines, next: page.next };
  const below = held.lines.filter((line) => line.id < lowest);
  return { lines: [...page.lines, ...below], next: below.length ? held.next : page.next };
}

const NAMES = ["Record", "Kind", "Decided", "Duration", "Uploaded", "State", "Rows in", "Rows out", "DAG run"];
const RIGHT = new Set([3, 4, 5, 6, 7]);

// Rows have one height, so that those out of view can stand as one empty row above and one below.
function Rows({ lines, conn, job, now, onEnd }) {
  const body = useRef(null);
  const [view, setView] = useState({ first: 0, last: 60, height: 31 });

  useLayoutEffect(() => {
    function look() {
      const table = body.current;
      if (!table) return;
      const row = table.querySelector("tr[data-row]");
      const height = row?.getBoundingClientRect().height || 31;
      const top = table.getBoundingClientRect().top;
      const first = Math.max(0, Math.floor(-top / height) - AROUND);
      const last = Math.min(lines.length, Math.ceil((innerHeight - top) / height) + AROUND);
      setView((before) => (before.first === first && before.last === last && before.height === height ? before : { first, last, height }));
    }
    look();
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, [lines.length]);

  useEffect(() => {
    if (view.last >= lines.length && lines.length > view.last - view.first) onEnd();
  }, [view.last >= lines.length]);

  const first = Math.min(view.first, lines.length);
  const last = Math.min(Math.max(view.last, first), lines.length);
  return html`<table class="grid cards history" aria-rowcount=${lines.length + 1}>
    <caption class="hidden">Records of the job, newest first</caption>
    <thead><tr>${NAMES.map((name, k) => html`<th key=${name} scope="col" class=${RIGHT.has(k) ? "right" : ""}>${name}</th>`)}</tr></thead>
    <tbody ref=${body}>
      ${first > 0 && html`<tr class="gap" aria-hidden="true" style=${{ height: `${first * view.height}px` }}><td colspan=${NAMES.length}></td></tr>`}
      ${lines.slice(first, last).map((line, k) => html`<${Line} key=${line.id} line=${line} index=${first + k + 2} conn=${conn} job=${job} now=${now} />`)}
      ${last < lines.length && html`<tr class="gap" aria-hidden="true" style=${{ height: `${(lines.length - last) * view.height}px` }}><td colspan=${NAMES.length}></td></tr>`}
    </tbody>
  </table>`;
}

function Line({ line, index, conn, job, now }) {
  const plain = line.kind === "checkpoint";
  const figure = (text) => (plain ? text : "");
  return html`<tr data-row aria-rowindex=${index} class=${plain ? "" : "special"}>
    <td data-name="Record"><a href=${checkpointHref(conn, job, line.id)}>#${line.id}</a>${line.timeline > 1 && html` <small title="Timeline">t${line.timeline}</small>`}</td>
    <td data-name="Kind">
      ${plain ? html`<span class="faint">checkpoint</span>` : html`<${Badge} kind=${line.kind}>${KINDS[line.kind] ?? line.kind}<//>`}
      ${line.status && line.status !== "COMPLETED" && html` <${Badge} kind=${line.status.toLowerCase()}>${statusWord(line.status)}<//>`}
      ${!plain && (line.origin || line.note) && html` <span class="clip faint" title=${[line.origin && `from ${line.origin}`, line.note].filter(Boolean).join(": ")}>${line.origin || line.note}</span>`}
    </td>
    <td data-name="Decided"><${Moment} at=${line.latest_ack_timestamp || line.trigger_timestamp} /> <small><${Ago} at=${line.latest_ack_timestamp || line.trigger_timestamp} now=${now} /></small></td>
    <td data-name="Duration" class="right">${figure(duration(line.end_to_end_duration || null))}</td>
    <td data-name="Uploaded" class="right">${figure(bytes(line.checkpointed_size ?? 0))}</td>
    <td data-name="State" class="right">${bytes(line.state_size ?? 0)}</td>
    <td data-name="Rows in" class="right">${figure(whole(line.processed_rows ?? 0))}</td>
    <td data-name="Rows out" class="right">${figure(whole(line.emitted_rows ?? 0))}</td>
    <td data-name="DAG run"><${DagRun} name=${line.dag_run} brief /></td>
  </tr>`;
}
