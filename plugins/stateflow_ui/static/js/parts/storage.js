// What the job occupies, and what a collection would free.
import { html } from "../html.js";
import { jobPath } from "../api.js";
import { bytes, percent, plural, whole } from "../format.js";
import { useLive } from "../live.js";
import { Table } from "./table.js";
import { Empty, Trouble, Waiting } from "./words.js";

const REASONS = {
  subsumed: "Newer checkpoints have taken their place.",
  orphan: "Left by a batch or a run that did not come to its end.",
};

export function Storage({ conn, job }) {
  const { data, error } = useLive(jobPath(conn, job, "storage"), { every: 15000 });
  if (!data) return error ? html`<${Trouble} error=${error} />` : html`<${Waiting} />`;
  const freed = [...data.freed].sort((a, b) => b.bytes - a.bytes);
  const gone = freed.reduce((sum, each) => sum + each.bytes, 0);
  const total = Math.max(data.total_bytes ?? 0, data.kept.bytes + gone);
  return html`<div class="stack">
    <${Trouble} error=${error} data=${data} />
    <section aria-labelledby="storage">
      <div class="section-head">
        <h2 id="storage">Storage</h2>
        <p class="counted">
          <span><b>${bytes(total)}</b> in the job's folder</span>
          <span><b>${bytes(data.kept.bytes)}</b> needed by ${plural(data.kept.checkpoints, "checkpoint")}</span>
          <span><b>${bytes(gone)}</b> can go</span>
        </p>
      </div>
      ${data.retention && html`<p class="after">The connection's retention keeps <b>${data.retention}</b>, beside the newest ${whole(data.retained)}.</p>`}
      <${Bar} total=${total} kept=${data.kept.bytes} freed=${freed} />
      ${freed.length
        ? html`<${Table} caption="What a clean-up would free" rows=${[...freed.map((each) => ({ ...each, goes: true })), { reason: "kept", ...data.kept, roots: rootsText(data.roots) }]} keyOf=${(each) => each.reason} columns=${columns(total)} />`
        : html`<${Empty} title="Nothing to clean up"><p>${whole(data.kept.files)} files, and every one is needed by a kept checkpoint, a tag or a savepoint in the making. A run collects behind itself.</p><//>`}
      ${freed.length > 0 && html`<p class="after"><b>Clean up</b> above starts the DAG that deletes these. It can also only report, and it works beside a running job.</p>`}
    </section>
  </div>`;
}

// Why records stay, most of one reason first.
const rootsText = (roots = {}) => Object.entries(roots).sort(([, a], [, b]) => b - a).slice(0, 6).map(([reason, count]) => (count > 1 ? `${whole(count)} ${reason}` : reason)).join(", ");

function Bar({ total, kept, freed }) {
  if (!total) return null;
  return html`<div class="stacked" role="img" aria-label=${`${percent(kept, total)} kept, ${percent(total - kept, total)} can go`}>
    <i class="part part-kept" style=${{ flexGrow: kept / total }} title=${`kept ${bytes(kept)}`}></i>
    ${freed.map((each, k) => html`<i key=${each.reason} class=${`part part-${k % 3}`} style=${{ flexGrow: each.bytes / total }} title=${`${each.reason} ${bytes(each.bytes)}`}></i>`)}
  </div>`;
}

const columns = (total) => [
  { key: "reason", name: "What", cell: (each) => html`<b>${each.reason}</b>` },
  { key: "why", name: "Why", wide: true, cell: (each) => (each.goes ? (REASONS[each.reason] ?? "No record that is kept names them.") : `Named by ${plural(each.checkpoints, "checkpoint")}${each.roots ? `: ${each.roots}` : ""}.`) },
  { key: "files", name: "Files", right: true, cell: (each) => whole(each.files) },
  { key: "bytes", name: "Size", right: true, cell: (each) => bytes(each.bytes) },
  { key: "share", name: "Share", right: true, cell: (each) => percent(each.bytes, total) },
  { key: "fate", name: "Clean-up", cell: (each) => (each.goes ? "frees it" : html`<span class="faint">keeps it</span>`) },
];
