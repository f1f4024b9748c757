// What people did to the job: restores, rescales, erasures, outputs that were given up.
import { html } from "../html.js";
import { jobPath } from "../api.js";
import { DagRun } from "../airflow.js";
import { useLive } from "../live.js";
import { checkpointHref } from "../route.js";
import { Table } from "./table.js";
import { Badge, Empty, KINDS, Moment, Trouble, Waiting, statusWord } from "./words.js";

export function Audit({ conn, job }) {
  const { data, error } = useLive(jobPath(conn, job, "graph"));
  if (!data) return error ? html`<${Trouble} error=${error} />` : html`<${Waiting} />`;
  const lines = data.audit ?? [];
  return html`<section aria-labelledby="audit">
    <div class="section-head"><h2 id="audit">Audit trail</h2><p class="counted"><span class="faint">What people did to this job, from its own log: it cannot be edited.</span></p></div>
    <${Trouble} error=${error} data=${data} />
    ${lines.length ? html`<${Table} caption="Audit trail" columns=${columns(conn, job)} rows=${lines} keyOf=${(line) => line.id} />` : html`<${Empty} title="Nobody has intervened">
      <p>Restores, rescales, erasures and abandoned outputs are listed here with who did them and why.</p>
    <//>`}
  </section>`;
}

const columns = (conn, job) => [
  { key: "at", name: "When", cell: (line) => html`<${Moment} at=${line.latest_ack_timestamp || line.trigger_timestamp} />` },
  { key: "what", name: "What", cell: (line) => html`<${What} line=${line} />` },
  { key: "id", name: "Record", cell: (line) => html`<a href=${checkpointHref(conn, job, line.id)}>#${line.id}</a>` },
  { key: "who", name: "By", cell: (line) => [line.user, line.host].filter(Boolean).join(" on ") || "–" },
  { key: "dag", name: "DAG run", cell: (line) => html`<${DagRun} name=${line.dag_run} />` },
  { key: "note", name: "Note", wide: true, cell: (line) => html`<span title=${line.note}>${line.note || "–"}</span>` },
];

function What({ line }) {
  const given = line.status === "ABANDONED";
  return html`<${Badge} kind=${given ? "abandoned" : line.kind}>${given ? statusWord(line.status) : (KINDS[line.kind] ?? line.kind)}<//>
    ${line.origin && html` <span class="clip" title=${line.origin}>from ${line.origin}</span>`}
    ${given && html` <span>output of ${Object.entries(line.sinks ?? {}).filter(([, outcome]) => outcome === "abandoned").map(([uid]) => uid).join(", ")}</span>`}`;
}
