// How checkpoints went, all in all: Flink's gauges, and minimum, average and percentiles.
import { html } from "../html.js";
import { bytes, duration, moment, whole } from "../format.js";

const STATISTICS = ["min", "avg", "p50", "p90", "p95", "p99", "max"];
const NAMES = { min: "Minimum", avg: "Average", p50: "Median", p90: "90 %", p95: "95 %", p99: "99 %", max: "Maximum" };
const ROWS = [
  ["duration", "Duration", duration, (s) => s.lastCheckpointDuration],
  ["size", "Uploaded", bytes, (s) => s.lastCheckpointSize],
  ["full_size", "State in full", bytes, (s) => s.lastCheckpointFullSize],
  ["rows", "Rows", whole, () => null],
];

export function Summary({ summary, percentiles }) {
  const made = ROWS.filter(([key]) => percentiles?.[key]);
  return html`<section aria-labelledby="summary">
    <div class="section-head">
      <h2 id="summary">Summary</h2>
      <p class="counted">
        <span><b>${whole(summary.numberOfCompletedCheckpoints)}</b> completed</span>
        <span><b>${whole(summary.numberOfInProgressCheckpoints)}</b> in progress</span>
        <span><b class=${summary.numberOfFailedCheckpoints ? "bad" : ""}>${whole(summary.numberOfFailedCheckpoints)}</b> abandoned</span>
        ${summary.lastCheckpointRestoreTimestamp ? html`<span>last restore ${moment(summary.lastCheckpointRestoreTimestamp)}</span>` : html`<span>never restored</span>`}
      </p>
    </div>
    ${made.length > 0 && html`<div class="scroller" tabindex="0" role="region" aria-label="Percentiles">
      <table class="grid">
        <caption class="hidden">Percentiles of checkpoints</caption>
        <thead><tr><th scope="col">Per checkpoint</th><th scope="col" class="right">Last</th>${STATISTICS.map((key) => html`<th key=${key} scope="col" class="right">${NAMES[key]}</th>`)}</tr></thead>
        <tbody>
          ${made.map(
            ([key, name, text, last]) => html`<tr key=${key}>
              <th scope="row">${name}</th>
              <td class="right">${last(summary) === null ? "" : text(last(summary))}</td>
              ${STATISTICS.map((each) => html`<td key=${each} class="right">${text(percentiles[key][each])}</td>`)}
            </tr>`,
          )}
        </tbody>
      </table>
    </div>`}
  </section>`;
}
