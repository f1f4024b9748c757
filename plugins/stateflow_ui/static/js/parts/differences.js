// What changed between two points of the timeline: by operator and state, with the first changes of each.
import { html, useState } from "../html.js";
import { jobPath } from "../api.js";
import { plural, timeInUtc, whole, zone } from "../format.js";
import { useLive } from "../live.js";
import { checkpointHref, jobHref } from "../route.js";
import { NoRight } from "./right.js";
import { Table } from "./table.js";
import { Value, queryOf } from "./values.js";
import { Badge, Empty, Moment, Notice, Sentence, Trouble, Waiting } from "./words.js";

export function Differences({ conn, job, data, query }) {
  const asked = Object.fromEntries(["before", "after", "operator", "state"].map((name) => [name, query.get(name) ?? ""]));
  return html`<section aria-labelledby="differences">
    <div class="section-head"><h2 id="differences">What changed</h2><p class="counted"><span class="faint">Between any two kept checkpoints.</span></p></div>
    ${!data
      ? html`<${Waiting} lines=${3} />`
      : !data.reads_state
        ? html`<${NoRight} conn=${conn} />`
        : html`<${Form} key=${JSON.stringify(asked)} conn=${conn} job=${job} status=${data.status} asked=${asked} />
            ${asked.before && asked.after && html`<${Found} conn=${conn} job=${job} asked=${asked} />`}`}
  </section>`;
}

function Form({ conn, job, status, asked }) {
  const [values, setValues] = useState(asked);
  const set = (name) => (event) => setValues((before) => ({ ...before, [name]: event.target.value }));
  const names = ["latest", ...Object.keys(status.tags ?? {}).map((name) => `tag:${name}`)];
  function go(event) {
    event.preventDefault();
    const plain = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, timeInUtc(value.trim().replace(/^#/, ""))]));
    location.hash = `${jobHref(conn, job, "differences")}?${queryOf(plain)}`;
  }
  return html`<form class="asking" onSubmit=${go}>
    <datalist id="points">${names.map((name) => html`<option key=${name} value=${name} />`)}</datalist>
    <label title=${`A time without a zone is one of ${zone}`}>From <small>number, tag:NAME or time</small><input required list="points" autocomplete="off" spellcheck="false" size="18" placeholder="317" value=${values.before} onInput=${set("before")} /></label>
    <label>To <small>the same</small><input required list="points" autocomplete="off" spellcheck="false" size="18" placeholder="latest" value=${values.after} onInput=${set("after")} /></label>
    <label>Operator<select value=${values.operator} onChange=${set("operator")}><option value="">all</option>${(status.operators ?? []).map((each) => html`<option key=${each.uid} value=${each.uid}>${each.uid}</option>`)}</select></label>
    <button type="submit" class="primary">Compare</button>
  </form>`;
}

function Found({ conn, job, asked }) {
  const { data, error } = useLive(jobPath(conn, job, `differences?${queryOf(asked)}`), { every: 60000 });
  if (!data) return error ? html`<${Trouble} error=${error} />` : html`<${Waiting} lines=${8} />`;
  const point = ({ slot, at }) => html`<a href=${checkpointHref(conn, job, slot)}>#${slot}</a> <small><${Moment} at=${at} /></small>`;
  const columns = [
    { key: "operator", name: "Operator", cell: (each) => html`<b>${each.operator}</b>` },
    { key: "state", name: "State", wide: true, cell: (each) => each.state },
    ...data.kinds.map((kind) => ({ key: kind, name: kind, right: true, cell: (each) => whole(each.counts[kind] ?? 0) })),
  ];
  return html`<div class="stack">
    <${Trouble} error=${error} data=${data} />
    <p class="counted"><span>from ${point(data.before)}</span><span>to ${point(data.after)}</span></p>
    ${data.notes.map((note) => html`<${Notice} key=${note}><${Sentence} text=${note} /><//>`)}
    ${data.states.length
      ? html`<${Table} caption="Changes by state" rows=${data.states} keyOf=${(each) => `${each.operator}.${each.state}`} columns=${columns} />
          ${data.states.map((each) => html`<${First} key=${`${each.operator}.${each.state}`} conn=${conn} job=${job} found=${each} />`)}`
      : html`<${Empty} title="No entry differs"><p>${data.notes.length ? "What else is different is said above." : "The two hold the same state."}</p><//>`}
  </div>`;
}

function First({ conn, job, found }) {
  const total = Object.values(found.counts).reduce((sum, count) => sum + count, 0);
  const columns = [
    { key: "key", name: "Key", cell: (each) => html`<a href=${`${jobHref(conn, job, "keys")}?${queryOf({ operator: found.operator, state: found.state, key: each.key })}`}>${each.key}</a>` },
    { key: "part", name: "Entry", cell: (each) => [each.namespace, each.part].filter((part) => part !== null).join(", ") },
    { key: "kind", name: "What", cell: (each) => html`<${Badge} kind=${each.kind === "went" || each.kind === "deleted" || each.kind === "expired" ? "abandoned" : ""}>${each.kind}<//>` },
    { key: "before", name: "Before", wide: true, cell: (each) => html`<${Value} value=${each.before} />` },
    { key: "after", name: "After", wide: true, cell: (each) => html`<${Value} value=${each.after} />` },
  ];
  return html`<section aria-label=${`Changes of ${found.operator} ${found.state}`}>
    <div class="section-head"><h3>${found.operator} ${found.state}</h3>${total > found.first.length && html`<p class="counted"><span class="faint">the first ${whole(found.first.length)} of ${plural(total, "change")}; <code>stateflow diff</code> writes all of them</span></p>`}</div>
    <${Table} caption=${`First changes of ${found.operator} ${found.state}`} className="past" rows=${found.first.map((each, k) => ({ ...each, k }))} keyOf=${(each) => each.k} columns=${columns} />
  </section>`;
}
