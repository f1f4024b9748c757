// The strip below a job's name: the answers to what one asks first.
import { html } from "../html.js";
import { DagRun } from "../airflow.js";
import { bytes, drained, duration, lag, moment, plural, whole, withoutSubject } from "../format.js";
import { checkpointHref } from "../route.js";
import { Icon } from "./icons.js";
import { Ago, Health, Moment, Running, Sentence } from "./words.js";

export function Facts({ conn, job, data, now }) {
  const { status } = data;
  const { health } = data;
  const last = status.last_checkpoint_at;
  return html`<section class="facts" aria-label="At the moment">
    <div class=${`verdict verdict-${health}`}>
      <${Health} health=${health} />
      <p><${Sentence} text=${withoutSubject(data.reason, job)} /></p>
    </div>
    <${Failure} outcome=${data.outcome} now=${now} />
    <dl>
      <${Fact} name="Run"><${Running} running=${status.status === "RUNNING"} status=${status.status} /><small>${status.status !== "RUNNING" && data.outcome?.stopped ? data.outcome.stopped : `epoch ${status.epoch}`}</small><//>
      <${Fact} name="Last checkpoint">
        ${status.head === null || status.head === undefined ? "none yet" : html`<${Ago} at=${last} now=${now} /><small><a href=${checkpointHref(conn, job, status.head)}>#${status.head}</a></small>`}
      <//>
      <${Fact} name="Lag">${lag(data.lag, data.lag_unit)}<//>
      <${Fact} name="State">${bytes(status.state_size)}<small>${plural(status.num_files, "file")}</small><//>
      <${Fact} name="Watermark">${watermark(status.watermark, now)}<${Holder} held=${status.watermark_held} /><//>
      ${status.batch_size?.target_ms && html`<${Fact} name="Batch size"><${BatchSize} chosen=${status.batch_size} /><//>`}
      <${Fact} name="Timeline">${whole(status.timeline)}${status.pending?.length > 0 && html`<small>pending ${status.pending.join(", ")}</small>`}<//>
      <${Fact} name="Written by"><${Writer} owner=${status.owner} /><//>
    </dl>
  </section>`;
}

// What the newest run said when it failed: the first thing that one would look for in its log.
function Failure({ outcome, now }) {
  if (!outcome?.exit_code) return null;
  return html`<div class="verdict failure">
    <span class="health health-lost"><${Icon} name="warning" />Last run failed</span>
    <p><${Sentence} text=${outcome.error} /> <small>exit code ${outcome.exit_code}, <${Ago} at=${outcome.at} now=${now} /></small></p>
  </div>`;
}

const Fact = ({ name, children }) => html`<div><dt>${name}</dt><dd>${children}</dd></div>`;

function watermark(at, now) {
  if (at === null || at === undefined) return html`<span class="none">none</span>`;
  if (drained(at)) return html`end of time<small>drained</small>`;
  return html`<${Ago} at=${at} now=${now} /><small>${moment(at)}</small>`;
}

// Which source to look at when the watermark stands still.
function Holder({ held }) {
  if (!held) return null;
  if (held.partition) return html`<small class="held">held back by partition ${held.partition} of source ${held.source}, whose last rows came at <${Moment} at=${held.since} /></small>`;
  return html`<small class="held">held back by source ${held.source}, without rows since <${Moment} at=${held.since} /></small>`;
}

// Of a run with a target; what it chose for each source stands beside the sources.
const BatchSize = ({ chosen }) => html`${duration(chosen.duration_ms)} of ${duration(chosen.target_ms)}<small>${plural(chosen.rows, "row")}</small>`;

const WarmHost = ({ owner }) => owner.warm_host && html`<small title="The Spark application that stays, in which the run began">warm host ${owner.warm_host} on ${owner.host}</small>`;

function Writer({ owner = {} }) {
  if (owner.dag_run) return html`<${DagRun} name=${owner.dag_run} brief />${owner.task && html`<small>${owner.task}</small>`}<${WarmHost} owner=${owner} />`;
  const who = [owner.user, owner.host].filter(Boolean).join(" on ");
  return who ? html`${who}<${WarmHost} owner=${owner} />` : html`<span class="none">–</span>`;
}
