// What a job is made of: where it reads, what it keeps, where it writes.
import { html } from "../html.js";
import { amount, bytes, drained, moment, short, whole } from "../format.js";
import { Table } from "./table.js";
import { Badge } from "./words.js";

const SOURCES = [
  { key: "uid", name: "Source", cell: (s) => html`<b>${s.uid}</b> <${Badge}>${s.kind}<//>${s.waits_for && html`<br /><small class="waits">waits for ${s.waits_for}, which is behind</small>`}${s.limits.map((limit) => html`<br /><small class="limit">${limit}</small>`)}` },
  { key: "position", name: "Position", wide: true, cell: (s) => html`<span title=${s.position}>${s.position || "–"}</span>` },
  { key: "event_time", name: "Newest event", right: true, cell: (s) => (drained(s.event_time) ? "–" : moment(s.event_time)) },
];

const OPERATORS = [
  { key: "uid", name: "Operator", cell: (o) => html`<b>${o.uid}</b>${o.what && html`<br /><small title=${o.combiner}>${o.what}</small>`}${o.hot_key?.share && html`<br /><${HotKey} operator=${o} />`}` },
  { key: "key", name: "Key", cell: (o) => (o.key ? html`<code class="clip" title=${o.key}>${o.key}</code>` : "–") },
  { key: "states", name: "States", wide: true, cell: (o) => html`<span title=${Object.entries(o.states ?? {}).map(([name, type]) => `${name}: ${type}`).join("\n")}>${Object.keys(o.states ?? {}).join(", ") || "–"}</span>` },
  { key: "parallelism", name: "Parallelism", right: true, cell: (o) => html`${whole(o.parallelism)}<small> of ${whole(o.max_parallelism)}</small>` },
  { key: "shards", name: "Shards", right: true, cell: (o) => whole(o.shards) },
  { key: "entries", name: "Entries", right: true, cell: (o) => short(o.entries) },
  { key: "size", name: "State", right: true, cell: (o) => bytes(o.state_size) },
  { key: "expired", name: "Expired", right: true, cell: (o) => expired(o) },
  { key: "backend", name: "Backend", cell: (o) => o.backend || "–" },
];

const SINKS = [
  { key: "uid", name: "Sink", cell: (s) => html`<b>${s.uid}</b> ${s.kind && html`<${Badge}>${s.kind}<//>`}` },
  { key: "target", name: "Target", wide: true, cell: (s) => html`<span title=${s.target}>${s.target || "–"}</span>` },
  { key: "commit", name: "Has output of", right: true, cell: (s) => (s.last_commit === null || s.last_commit === undefined ? "nothing yet" : `checkpoint ${s.last_commit}`) },
];

function expired({ ttl = {}, expired: left, expiring, live_bytes: live = {}, expired_bytes: gone = {} }) {
  const lives = Object.entries(ttl).map(([name, text]) => `${name}: ${text}${name in live ? `; about ${bytes(live[name])} live, ${bytes(gone[name])} expired` : ""}`);
  if (lives.length === 0) return "–";
  const rest = expiring ? "Entries that left with the newest batch; more wait for the next ones" : "Entries that left with the newest batch";
  const sizes = Object.keys(live).length > 0 && html`<small> ~${bytes(total(gone))} wait, ~${bytes(total(live))} live</small>`;
  return html`<span title=${[rest, ...lives].join("\n")}>${whole(left)}${expiring ? "+" : ""}${sizes}</span>`;
}

const HotKey = ({ operator: { hot_key: hot, parallelism } }) =>
  html`<small class="hot" title="One key has so many of the rows that a subtask works while the others wait. The log of the run names the key">hot key: about ${Math.round(hot.share * 100)} % of the rows, subtask ${hot.subtask} of ${parallelism}</small>`;

// What the newest batch might take of a source, and took.
const limitsOf = (uid, chosen) =>
  (chosen?.streams ?? []).filter(({ source }) => source === uid).map(({ most, took, unit }) => `at most ${amount(most, unit)} a batch${took === null ? "" : `, took ${amount(took, unit)}`}`);

const total = (sizes) => Object.values(sizes).reduce((sum, size) => sum + size, 0);

export function Topology({ status }) {
  const parts = [
    ["Sources", SOURCES, status.sources?.map((source) => ({ ...source, waits_for: status.waited?.[source.uid], limits: limitsOf(source.uid, status.batch_size) }))],
    ["Operators", OPERATORS, status.operators],
    ["Sinks", SINKS, status.sinks],
  ];
  return html`${parts.map(
    ([name, columns, rows]) =>
      rows?.length > 0 &&
      html`<section key=${name}><h2>${name}</h2><${Table} caption=${name} columns=${columns} rows=${rows} keyOf=${(row) => row.uid} /></section>`,
  )}`;
}
