// What other code would have done on past batches: reports of replays that were kept, such as those of an upgrade's shadow.
import { html } from "../html.js";
import { DagRun } from "../airflow.js";
import { jobPath } from "../api.js";
import { duration, percent, plural, whole } from "../format.js";
import { useLive } from "../live.js";
import { checkpointHref, jobHref } from "../route.js";
import { NoRight } from "./right.js";
import { Table } from "./table.js";
import { Value } from "./values.js";
import { Badge, Command, Empty, Moment, Notice, Sentence, Trouble, Waiting } from "./words.js";

const KINDS = ["gone", "new", "different"];
const sum = (group) => KINDS.reduce((all, kind) => all + (group[kind] ?? 0), 0);

// Of batches that could not be compared nobody knows how many rows there are.
const figure = (sink, count) => (!sink.unknown_batches ? whole(count) : count ? `${whole(count)} + ?` : "?");

export function Replays({ conn, job, data, name }) {
  return html`<section aria-labelledby="replays">
    <div class="section-head"><h2 id="replays">Replays</h2><p class="counted"><span class="faint">What other code would have done on batches that were. Nothing of it was published.</span></p></div>
    ${!data ? html`<${Waiting} lines=${3} />` : data.reads_state ? html`<${Kept} conn=${conn} job=${job} name=${name} />` : html`<${NoRight} conn=${conn} />`}
  </section>`;
}

function Kept({ conn, job, name }) {
  const { data, error } = useLive(jobPath(conn, job, "replays"), { every: 15000 });
  if (!data) return error ? html`<${Trouble} error=${error} />` : html`<${Waiting} />`;
  const chosen = data.replays.find((each) => each.name === name);
  return html`<div class="stack">
    <${Trouble} error=${error} data=${data} />
    ${name && !chosen && html`<${Notice}>There is no report ${name} any more: the job keeps the newest twenty, and an erasure deletes all.<//>`}
    ${data.replays.length
      ? html`<${Table} caption="Reports of replays, newest first" rows=${data.replays} keyOf=${(each) => each.name} columns=${columns(conn, job)} />`
      : html`<${Empty} title="No replay"><p>The DAG <code>stateflow_upgrade</code> leaves a report here before it stops the job, and so does</p><${Command} text=${`stateflow replay FILE:PIPELINE --job ${job} --last 20 --compare --keep NAME`} /><//>`}
    ${chosen && html`<${Report} key=${name} conn=${conn} job=${job} kept=${chosen} />`}
  </div>`;
}

const columns = (conn, job) => [
  { key: "name", name: "Report", wide: true, cell: (each) => html`<a title=${each.name} href=${jobHref(conn, job, `replays/${encodeURIComponent(each.name)}`)}>${each.name}</a>` },
  { key: "at", name: "Made", cell: (each) => html`<${Moment} at=${each.at} />` },
  { key: "span", name: "Batches", right: true, cell: (each) => html`${whole(each.report.batches)} <small>#${each.report.from}–#${each.report.to}</small>` },
  { key: "rows", name: "Rows", hint: "Output rows that differ", right: true, cell: (each) => whole(each.report.sinks.reduce((all, sink) => all + sum(sink), 0)) },
  { key: "keys", name: "Keys", hint: "Keys whose state differs", right: true, cell: (each) => whole(each.report.states.reduce((all, state) => all + sum(state), 0)) },
  { key: "verdict", name: "Verdict", cell: (each) => html`<${Verdict} kept=${each} />` },
  { key: "run", name: "DAG run", cell: (each) => html`<${DagRun} name=${each.by.dag_run} brief />` },
];

function Verdict({ kept }) {
  const { report } = kept;
  if (kept.excess) return html`<${Badge} kind="abandoned">beyond the limit<//>`;
  if (report.uncompared.length) return html`<${Badge} kind="in_progress">not all compared<//>`;
  if (report.same) return html`<${Badge} kind="tag">the same<//>`;
  return html`<${Badge}>${report.compared ? "differs" : "not compared"}<//>`;
}

function Report({ conn, job, kept }) {
  const { report } = kept;
  const slot = (id) => html`<a href=${checkpointHref(conn, job, id)}>#${id}</a>`;
  const states = report.states.filter((each) => sum(each) || (each.note && each.note !== "it belongs to subtasks"));
  const changes = [
    ...report.sinks.flatMap((sink) => sink.changes.map((each) => ({ ...each, where: `sink ${sink.sink}` }))),
    ...report.states.flatMap((state) => state.changes.map((each) => ({ ...each, where: `${state.operator} ${state.state}`, slot: report.to }))),
  ].map((each, k) => ({ ...each, k }));
  const counts = KINDS.map((kind) => ({ key: kind, name: kind, right: true, cell: (each) => whole(each[kind] ?? 0) }));
  const outputs = [["before", "delivered"], ["after", "now"], ...KINDS.map((kind) => [kind, kind])].map(([key, name]) => ({ key, name, right: true, cell: (each) => figure(each, each[key] ?? 0) }));
  return html`<section aria-label=${`Report ${kept.name}`} class="stack">
    <div class="section-head"><h3>${kept.name}</h3><p class="counted">
      <span><b>${report.pipeline}</b> over ${plural(report.batches, "batch", "batches")} from ${slot(report.from)} to ${slot(report.to)}</span>
      <span>${plural(report.rows, "row")} in ${duration(report.seconds * 1000)}</span>
      ${kept.max_changed !== null && html`<span>limit <b>${percent(kept.max_changed, 1)}</b></span>`}
    </p></div>
    ${kept.excess && html`<${Notice} kind="error"><${Sentence} text=${kept.excess} /><//>`}
    ${[...report.notes, ...report.uncompared.map((each) => `not compared: ${each}`)].map((note) => html`<${Notice} key=${note}><${Sentence} text=${note} /><//>`)}
    ${report.sinks.length > 0 && html`<${Table} caption="Outputs" rows=${report.sinks} keyOf=${(each) => each.sink} columns=${[
      { key: "sink", name: "Output", wide: true, cell: (each) => html`<b>${each.sink}</b>` },
      ...(report.compared ? outputs : [{ key: "after", name: "rows", right: true, cell: (each) => whole(each.after) }]),
    ]} />`}
    ${states.length > 0 && html`<${Table} caption="State" rows=${states} keyOf=${(each) => `${each.operator}.${each.state}`} columns=${[
      { key: "state", name: "State", wide: true, cell: (each) => html`<b>${each.operator}</b> ${each.state} ${each.note && html`<small>${each.note}</small>`}` },
      { key: "keys", name: "keys looked at", right: true, cell: (each) => whole(each.keys) },
      ...counts,
    ]} />`}
    ${changes.length > 0
      ? html`<${Table} caption="First differences" className="past" rows=${changes} keyOf=${(each) => each.k} columns=${[
          { key: "where", name: "Where", cell: (each) => each.where },
          { key: "slot", name: "Checkpoint", cell: (each) => slot(each.slot) },
          { key: "kind", name: "What", cell: (each) => html`<${Badge} kind=${each.kind === "gone" ? "abandoned" : ""}>${each.kind}<//>` },
          { key: "key", name: "Key", cell: (each) => html`<${Value} value=${each.key} />` },
          { key: "before", name: "Delivered", wide: true, cell: (each) => html`<${Value} value=${each.before} />` },
          { key: "after", name: "Now", wide: true, cell: (each) => html`<${Value} value=${each.after} />` },
        ]} />`
      : html`<p class="after">${report.same && !report.uncompared.length ? "Nothing differs." : "No single difference was kept."}</p>`}
  </section>`;
}
