// Points that people keep: savepoints in folders of their own, tags inside the job.
import { html, useState } from "../html.js";
import { jobPath } from "../api.js";
import { ago, bytes, moment } from "../format.js";
import { useLive } from "../live.js";
import { checkpointHref } from "../route.js";
import { ActionDialog } from "./actions.js";
import { Table } from "./table.js";
import { Badge, Command, Empty, Moment, Trouble, Waiting } from "./words.js";

export function Savepoints({ conn, job, data, now }) {
  const live = useLive(jobPath(conn, job, "savepoints"));
  const [origin, setOrigin] = useState(null);
  if (!live.data) return live.error ? html`<${Trouble} error=${live.error} />` : html`<${Waiting} />`;
  const saved = live.data.savepoints;
  const tags = Object.entries(data?.status.tags ?? {}).map(([name, slot]) => ({ name, slot }));
  const restore = (from) => html`<button type="button" class="small" onClick=${() => setOrigin(from)}>Restore …</button>`;
  return html`<div class="stack">
    <${Trouble} error=${live.error} data=${live.data} />
    <section aria-labelledby="savepoints">
      <div class="section-head"><h2 id="savepoints">Savepoints</h2><p class="counted"><span class="faint">Self-contained copies that the job never deletes.</span></p></div>
      ${saved.length
        ? html`<${Table} caption="Savepoints" columns=${columns(conn, job, now, restore, data?.status.root)} rows=${saved} keyOf=${(each) => each.url} />`
        : html`<${Empty} title="No savepoint"><p>Take one before an upgrade or a risky change: press <b>Savepoint</b> above, or schedule <code>stateflow_periodic_savepoints</code>.</p><//>`}
    </section>
    <section aria-labelledby="tags">
      <div class="section-head"><h2 id="tags">Tags</h2><p class="counted"><span class="faint">Names that keep a checkpoint inside the job; they copy nothing.</span></p></div>
      ${tags.length
        ? html`<${Table} caption="Tags" rows=${tags} keyOf=${(tag) => tag.name} columns=${[
            { key: "name", name: "Tag", cell: (tag) => html`<b>${tag.name}</b>` },
            { key: "slot", name: "Checkpoint", wide: true, cell: (tag) => html`<a href=${checkpointHref(conn, job, tag.slot)}>#${tag.slot}</a>` },
            { key: "act", name: "", right: true, cell: (tag) => restore(`tag:${tag.name}`) },
          ]} />`
        : html`<${Empty} title="No tag"><p>A tag is an instant savepoint:</p><${Command} text=${`stateflow tag ${job} before-upgrade`} /><//>`}
    </section>
    ${origin && data && html`<${ActionDialog} action="restore" conn=${conn} job=${job} about=${data} origin=${origin} onClose=${() => setOrigin(null)} />`}
  </div>`;
}

const columns = (conn, job, now, restore, root) => [
  { key: "name", name: "Savepoint", cell: (each) => html`<b>${each.name || "unnamed"}</b> ${each.kind && html`<${Badge}>${each.kind}<//>`}${each.claimed_by && html` <${Badge} kind="claimed" title="Its files belong to that job now">claimed by ${each.claimed_by}<//>`}` },
  { key: "checkpoint", name: "Of", cell: (each) => (each.checkpoint === null ? "–" : html`<a href=${checkpointHref(conn, job, each.checkpoint)}>#${each.checkpoint}</a>`) },
  { key: "at", name: "Taken", cell: (each) => html`<${Moment} at=${each.at} /> ${each.at && html`<small>${ago(now - each.at)}</small>`}` },
  { key: "bytes", name: "Size", right: true, cell: (each) => bytes(each.bytes) },
  { key: "expires", name: "Expires", cell: (each) => expiry(each.expires, now) },
  { key: "note", name: "Note", wide: true, cell: (each) => html`<span title=${each.problem || each.note}>${each.problem ? html`<b class="bad">${each.problem}</b>` : each.note || "–"}</span>` },
  { key: "url", name: "Where", wide: true, cell: (each) => html`<code title=${each.url}>${root ? each.url.replace(root, "…") : each.url}</code>` },
  { key: "act", name: "", right: true, cell: (each) => (each.problem || each.claimed_by ? "" : restore(each.url)) },
];

function expiry(at, now) {
  if (!at) return html`<span class="faint">never</span>`;
  return at < now ? html`<${Badge} kind="in_progress" title="The next clean-up disposes of it">expired<//>` : moment(at);
}
