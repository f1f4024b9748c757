// One checkpoint: what it cost, where it stands, and every operator, state and shard that it names.
import { html, useState } from "../html.js";
import { jobPath } from "../api.js";
import { DagRun } from "../airflow.js";
import { ago, bytes, drained, duration, moment, percent, plural, short, whole } from "../format.js";
import { useLive, useNow } from "../live.js";
import { checkpointHref, jobHref } from "../route.js";
import { HeatStrip, skew } from "../parts/heat.js";
import { RunList } from "../parts/runlist.js";
import { Table } from "../parts/table.js";
import { Badge, Empty, KINDS, Moment, Trouble, Waiting, statusWord } from "../parts/words.js";
import { JobHead } from "./job.js";

export function CheckpointPage({ route }) {
  const { conn, job, id } = route;
  const summary = useLive(jobPath(conn, job));
  const { data, error } = useLive(jobPath(conn, job, `checkpoints/${id}`), { every: 10000 });
  const now = useNow(summary.data?.now);
  return html`<div class="page">
    <${JobHead} conn=${conn} job=${job} data=${summary.data} origin=${data?.kept ? `checkpoint:${id}` : "latest"} />
    <${RunList} conn=${conn} job=${job} />
    <${Title} conn=${conn} job=${job} id=${id} line=${data?.line} status=${summary.data?.status} />
    <${Trouble} error=${error} data=${data} />
    ${!data && !error && html`<${Waiting} lines=${10} />`}
    ${!data && error && html`<p><a href=${jobHref(conn, job, "history")}>The history</a> lists every record of the job.</p>`}
    ${data && html`<${Details} conn=${conn} job=${job} data=${data} now=${now} />`}
  </div>`;
}

function Title({ conn, job, id, line, status }) {
  const tags = Object.entries(status?.tags ?? {}).filter(([, slot]) => slot === id);
  const top = Math.max(status?.head ?? 0, ...(status?.pending ?? []));
  return html`<div class="checkpoint-title">
    <h2>${KINDS[line?.kind] ?? "Checkpoint"} ${id}</h2>
    ${line && line.status !== "COMPLETED" && html`<${Badge} kind=${line.status.toLowerCase()}>${statusWord(line.status)}<//>`}
    ${status?.head === id && html`<${Badge} kind="head">head<//>`}
    ${tags.map(([name]) => html`<${Badge} key=${name} kind="tag">${name}<//>`)}
    <nav class="steps-nav" aria-label="Neighbours">
      ${id > 1 && html`<a href=${checkpointHref(conn, job, id - 1)}>← ${id - 1}</a>`}
      ${id < top && html`<a href=${checkpointHref(conn, job, id + 1)}>${id + 1} →</a>`}
    </nav>
  </div>`;
}

function Details({ conn, job, data, now }) {
  const { line, since, operators = [], sources = [], sinks = [], owner = {}, statistics = {}, versions = {} } = data;
  const at = line.latest_ack_timestamp || line.trigger_timestamp;
  const gone = data.collected;
  const facts = [
    ["Decided", html`<${Moment} at=${at} /><small>${ago(now - at)}</small>`],
    ["Duration", duration(line.end_to_end_duration || null)],
    ["State in full", html`${bytes(line.state_size)}<small>${plural(line.num_files ?? 0, "file")}</small>`],
    ["Uploaded", html`${bytes(line.checkpointed_size ?? 0)}<small>${percent(line.checkpointed_size ?? 0, line.state_size)} of it</small>`],
    ["Rows", html`${short(line.processed_rows ?? 0)} in<small>${short(line.emitted_rows ?? 0)} out</small>`],
    ["Watermark", drained(line.watermark) ? "end of time" : html`<${Moment} at=${line.watermark} />`],
    ["Timeline", html`${whole(line.timeline ?? 1)}<small>epoch ${line.epoch}</small>`],
    ["Continues", line.based_on ? html`<a href=${checkpointHref(conn, job, line.based_on)}>#${line.based_on}</a>` : line.origin || "nothing before it"],
  ];
  return html`<div class="stack">
    <dl class="factlist">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <p class="after">Written by ${written(line, owner)}${code(versions)}</p>
    ${data.kept && since && html`<p class="after"><a href=${`${jobHref(conn, job, "differences")}?before=${since}&after=${line.id}`}>What changed in the state since #${since}</a>${since !== line.based_on && `, the newest kept one before it: #${line.based_on} has been collected`}</p>`}
    ${(line.origin || line.note) && html`<p class="noted">${line.origin && html`Restored from <b>${line.origin}</b>${statistics.together ? ", one of several jobs that went back together" : ""}. `}${line.note}</p>`}
    <${Phases} line=${line} statistics=${statistics} />
    ${gone && html`<${Empty} title="Its files were collected"><p>What is told here comes from the statistics, which outlive a checkpoint. It cannot be restored any more; <a href=${jobHref(conn, job, "graph")}>the graph</a> shows those that can.</p><//>`}
    ${operators.map((operator) => html`<${Operator} key=${operator.uid} operator=${operator} statistics=${statistics.operators?.[operator.uid]} />`)}
    <${Ends} sources=${sources} sinks=${sinks} line=${line} />
  </div>`;
}

function written(line, owner) {
  const run = line.dag_run || owner.dag_run;
  const who = [line.user || owner.user, line.host || owner.host].filter(Boolean).join(" on ") || "nobody known";
  return run ? html`<${DagRun} name=${run} />${line.task && html`, task ${line.task}`}, as ${who}` : who;
}

// Which version of the pipeline's own code made it: the file with the beginning of its checksum, and what is known of its revision.
function code({ pipeline, revision }) {
  if (!pipeline) return null;
  const [file, checksum = ""] = pipeline.split("@sha256:");
  return html`, with <span title=${pipeline}>${file} <code>${checksum.slice(0, 12)}</code></span>${revision && html` of <code>${revision}</code>`}`;
}

const PHASES = [["evaluate_ms", "evaluate and upload", "evaluate"], ["decide_ms", "decide", "decide"], ["commit_ms", "commit sinks", "commit"]];

// Where the time of the batch went, if the run noted it.
function Phases({ line, statistics }) {
  const held = { ...line.metrics, ...statistics };
  const parts = PHASES.filter(([key]) => Number.isFinite(held[key]));
  const total = parts.reduce((sum, [key]) => sum + held[key], 0);
  if (!total) return null;
  return html`<section aria-labelledby="phases">
    <h2 id="phases">Where the time went</h2>
    <div class="stacked" role="img" aria-label=${parts.map(([key, name]) => `${name} ${duration(held[key])}`).join(", ")}>
      ${parts.map(([key, , tone]) => html`<i key=${key} class=${`part phase-${tone}`} style=${{ flexGrow: held[key] / total }}></i>`)}
    </div>
    <p class="legend-line">${parts.map(([key, name, tone]) => html`<span key=${key}><i class=${`dot phase-${tone}`}></i>${name} <b>${duration(held[key])}</b></span>`)}</p>
  </section>`;
}

const STATES = [
  { key: "name", name: "State", cell: (state) => html`<b>${state.name}</b>` },
  { key: "kind", name: "Kind", cell: (state) => state.kind },
  { key: "type", name: "Type", wide: true, cell: (state) => html`<code title=${state.type}>${state.type}</code>` },
];

function Operator({ operator, statistics }) {
  const { shards = [], key_groups: groups = [], states = [] } = operator;
  const total = shards.reduce((sum, shard) => sum + shard.bytes, 0);
  const facts = skew(bySubtask(shards));
  return html`<section aria-label=${`Operator ${operator.uid}`} class="operator">
    <div class="section-head">
      <h2>${operator.uid}</h2>
      <p class="counted">
        ${operator.what && html`<span>${operator.what}</span>`}
        ${operator.combiner && html`<span>${operator.combiner}</span>`}
        <span>keyed by <code>${operator.key}</code></span>
        <span>parallelism <b>${whole(operator.parallelism)}</b> of ${whole(operator.max_parallelism)}</span>
        <span><b>${bytes(total)}</b> in ${plural(shards.length, "shard")}</span>
        ${facts.factor > 0 && html`<span class=${facts.factor >= 2 ? "bad" : ""}>heaviest subtask <b>${facts.factor.toFixed(1)} ×</b> the average</span>`}
        ${statistics?.keys !== undefined && html`<span>${short(statistics.keys)} keys called</span>`}
      </p>
    </div>
    ${groups.length > 0 && html`<${HeatStrip} groups=${groups} shards=${shards} />`}
    <div class="columns">
      <div>${states.length > 0 && html`<${Table} caption=${`States of ${operator.uid}`} columns=${STATES} rows=${states} keyOf=${(state) => state.name} />`}</div>
      <div>${shards.length > 0 && html`<${Shards} shards=${shards} uid=${operator.uid} />`}</div>
    </div>
  </section>`;
}

function bySubtask(shards) {
  const sums = new Map();
  for (const shard of shards) sums.set(shard.subtask, (sums.get(shard.subtask) ?? 0) + shard.bytes);
  return [...sums.values()];
}

const MANY = 16;

function Shards({ shards, uid }) {
  const [all, setAll] = useState(false);
  const most = Math.max(1, ...shards.map((shard) => shard.bytes));
  const columns = [
    { key: "subtask", name: "Subtask", right: true, cell: (shard) => whole(shard.subtask) },
    { key: "groups", name: "Key groups", right: true, cell: (shard) => `${shard.first}–${shard.last}` },
    { key: "entries", name: "Entries", right: true, cell: (shard) => short(shard.entries) },
    { key: "files", name: "Files", right: true, cell: (shard) => whole(shard.files) },
    { key: "bytes", name: "Size", right: true, cell: (shard) => html`<span class="measured"><i class="bar-cell"><i style=${{ width: `${(100 * shard.bytes) / most}%` }}></i></i><span>${bytes(shard.bytes)}</span></span>` },
    { key: "host", name: "Host", wide: true, cell: (shard) => html`<span title=${shard.host}>${shard.host || "–"}</span> ${shard.backend && html`<small>${shard.backend}</small>`}` },
  ];
  const rows = all ? shards : shards.slice(0, MANY);
  return html`<${Table} caption=${`Shards of ${uid}`} columns=${columns} rows=${rows} keyOf=${(shard) => `${shard.subtask}-${shard.first}`} />
    ${shards.length > rows.length && html`<p class="more"><span>${MANY} of ${plural(shards.length, "shard")}</span><button type="button" onClick=${() => setAll(true)}>Show all</button></p>`}`;
}

const SOURCES = [
  { key: "uid", name: "Source", cell: (source) => html`<b>${source.uid}</b> ${source.kind && html`<${Badge}>${source.kind}<//>`}` },
  { key: "position", name: "Position", wide: true, cell: (source) => html`<span title=${source.position}>${source.position || "–"}</span>` },
  { key: "event", name: "Newest event", right: true, cell: (source) => moment(source.event_time) },
];

function Ends({ sources, sinks, line }) {
  const columns = [
    { key: "uid", name: "Sink", cell: (sink) => html`<b>${sink.uid}</b> ${sink.kind && html`<${Badge}>${sink.kind}<//>`}` },
    { key: "target", name: "Target", wide: true, cell: (sink) => html`<span title=${sink.target}>${sink.target || "–"}</span>` },
    { key: "outcome", name: "Outcome", cell: (sink) => sink.outcome ?? line.sinks?.[sink.uid] ?? "–" },
    { key: "rows", name: "Rows", right: true, cell: (sink) => whole(sink.rows) },
  ];
  return html`
    ${sources.length > 0 && html`<section><h2>Sources</h2><${Table} caption="Sources" columns=${SOURCES} rows=${sources} keyOf=${(source) => source.uid} /></section>`}
    ${sinks.length > 0 && html`<section><h2>Sinks</h2><${Table} caption="Sinks" columns=${columns} rows=${sinks} keyOf=${(sink) => sink.uid} /></section>`}`;
}
