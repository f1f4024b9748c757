// What the job did lately, and what it is made of.
import { html } from "../html.js";
import { Summary } from "./summary.js";
import { Timeline } from "./timeline.js";
import { Topology } from "./topology.js";
import { Waiting } from "./words.js";

export function Overview({ conn, job, data }) {
  return html`<div class="stack">
    <${Timeline} conn=${conn} job=${job} p95=${data?.percentiles?.duration?.p95} total=${data?.summary.numberOfCompletedCheckpoints} />
    ${data ? html`<${Summary} summary=${data.summary} percentiles=${data.percentiles} /><${Topology} status=${data.status} />` : html`<${Waiting} />`}
  </div>`;
}
