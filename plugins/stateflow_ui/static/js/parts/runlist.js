// What was started from here, as it goes on: each DAG run with its state and where its tasks are.
import { html } from "../html.js";
import { AirflowLink, runPath } from "../airflow.js";
import { dismiss, useRuns } from "../runs.js";
import { Icon } from "./icons.js";

const WORDS = {
  queued: "queued",
  running: "running",
  success: "done",
  failed: "failed",
  deferred: "waiting",
  awaiting_input: "asks for approval",
  upstream_failed: "not run",
  skipped: "skipped",
  up_for_retry: "tries again",
  scheduled: "next",
};

export const wordOf = (state) => WORDS[state] ?? (state ? state.replaceAll("_", " ") : "to come");

export function RunList({ conn, job }) {
  const runs = useRuns(conn, job);
  if (!runs.length) return null;
  return html`<ul class="runs" aria-label="Started from here" aria-live="polite">
    ${runs.map((run) => html`<li key=${`${run.dag}/${run.run}`} class=${`started started-${run.unknown ? "unknown" : run.state}`}>
      <${Icon} name=${run.state === "success" ? "ok" : run.state === "failed" ? "lost" : "stale"} />
      <span><b>${run.action}</b> ${stateOf(run)}</span>
      <${AirflowLink} to=${runPath(run.dag, run.run)} title=${`${run.dag} · ${run.run}`}>${run.dag}<//>
      <${Steps} tasks=${run.tasks} />
      <button type="button" class="icon" aria-label=${`Put away: ${run.action} ${wordOf(run.state)}`} onClick=${() => dismiss(run)}><${Icon} name="close" /></button>
    </li>`)}
  </ul>`;
}

function stateOf(run) {
  if (run.unknown) return "started";
  // The run goes on, and yet nothing will happen until somebody answers.
  return run.tasks?.some((task) => task.state === "awaiting_input") ? "waits for approval" : wordOf(run.state);
}

function Steps({ tasks = [] }) {
  if (!tasks.length) return html`<span class="steps"></span>`;
  return html`<ol class="steps" aria-label="Tasks">
    ${tasks.map(({ task_id, state }) => html`<li key=${task_id} class=${`step step-${state ?? "none"}`} title=${`${task_id}: ${wordOf(state)}`}><i></i>${task_id}${["running", "deferred", "failed", "up_for_retry", "awaiting_input"].includes(state) ? html` <span>${wordOf(state)}</span>` : ""}</li>`)}
  </ol>`;
}
