// A key's past: what a state held for it after each kept checkpoint in which that changed.
import { html, useState } from "../html.js";
import { DagRun } from "../airflow.js";
import { jobPath } from "../api.js";
import { plural, timeInUtc, zone } from "../format.js";
import { useLive } from "../live.js";
import { checkpointHref, jobHref } from "../route.js";
import { Curve } from "./curve.js";
import { NoRight } from "./right.js";
import { Table } from "./table.js";
import { Value, queryOf } from "./values.js";
import { Badge, Empty, KINDS, Moment, Notice, Sentence, Trouble, Waiting } from "./words.js";

const WORDS = {
  kept: "had it already", set: "set", changed: "changed", deleted: "deleted", expired: "expired", undeclared: "state not declared", "not there": "not there",
};

export function Keys({ conn, job, data, query }) {
  const operators = (data?.status.operators ?? []).filter((each) => each.key && Object.keys(each.states).length);
  const asked = Object.fromEntries(["operator", "state", "key", "map_key", "since"].map((name) => [name, query.get(name) ?? ""]));
  return html`<section aria-labelledby="keys">
    <div class="section-head"><h2 id="keys">A key's past</h2><p class="counted"><span class="faint">Its value after each kept checkpoint in which it changed.</span></p></div>
    ${!data
      ? html`<${Waiting} lines=${3} />`
      : !data.reads_state
        ? html`<${NoRight} conn=${conn} />`
        : operators.length
          ? html`<${Form} key=${JSON.stringify(asked)} conn=${conn} job=${job} operators=${operators} asked=${asked} />
              ${asked.key && html`<${Past} conn=${conn} job=${job} asked=${asked} />`}`
          : html`<${Empty} title="No keyed state"><p>No operator of this job keeps state by key, or it has no checkpoint yet.</p><//>`}
  </section>`;
}

function Form({ conn, job, operators, asked }) {
  const [values, setValues] = useState({ ...asked, operator: asked.operator || operators[0].uid });
  const operator = operators.find((each) => each.uid === values.operator) ?? operators[0];
  const states = Object.entries(operator.states);
  const [state, type] = states.find(([name]) => name === values.state) ?? states[0];
  const set = (name) => (event) => setValues((before) => ({ ...before, [name]: event.target.value }));
  function go(event) {
    event.preventDefault();
    const map_key = type.startsWith("map") ? values.map_key.trim() : "";
    location.hash = `${jobHref(conn, job, "keys")}?${queryOf({ operator: operator.uid, state, key: values.key.trim(), map_key, since: timeInUtc(values.since.trim()) })}`;
  }
  return html`<form class="asking" onSubmit=${go}>
    <label>Operator<select value=${operator.uid} onChange=${set("operator")}>${operators.map((each) => html`<option key=${each.uid} value=${each.uid}>${each.uid}</option>`)}</select></label>
    <label>State<select value=${state} onChange=${set("state")}>${states.map(([name, text]) => html`<option key=${name} value=${name} title=${text}>${name} (${text.split(" ")[0]})</option>`)}</select></label>
    <label class="grows">Key <small>${operator.key}</small><input required autocomplete="off" spellcheck="false" placeholder=${operator.key.includes(",") ? "a,7" : "42"} value=${values.key} onInput=${set("key")} /></label>
    ${type.startsWith("map") && html`<label>Map key <small>empty: all</small><input autocomplete="off" spellcheck="false" value=${values.map_key} onInput=${set("map_key")} /></label>`}
    <label title=${`A time without a zone is one of ${zone}`}>Since <small>empty: all kept</small><input autocomplete="off" spellcheck="false" size="16" placeholder="300, tag:NAME or time" value=${values.since} onInput=${set("since")} /></label>
    <button type="submit" class="primary">Show</button>
  </form>`;
}

function Past({ conn, job, asked }) {
  const { data, error } = useLive(jobPath(conn, job, `key?${queryOf(asked)}`), { every: 60000 });
  const [field, setField] = useState("");
  if (!data) return error ? html`<${Trouble} error=${error} />` : html`<${Waiting} lines=${8} />`;
  const { versions } = data;
  if (!versions.length) {
    return html`<${Empty} title="Nothing was ever set for this key"><p><${Sentence} text=${`${data.nothing}; ${plural(data.checkpoints, "kept checkpoint")} read.`} /></p>${data.notes.map((note) => html`<p key=${note}><${Sentence} text=${note} /></p>`)}<//>`;
  }
  const fields = numericFields(versions);
  const chosen = fields.includes(field) ? field : fields[0];
  const points = chosen === undefined ? [] : versions.map((each) => ({ ...each, label: each.numbers[chosen], y: numberOf(each.numbers[chosen]) }));
  const href = (slot) => checkpointHref(conn, job, slot);
  return html`<div class="stack">
    <${Trouble} error=${error} data=${data} />
    ${data.notes.map((note) => html`<${Notice} key=${note}><${Sentence} text=${note} /><//>`)}
    ${fields.length > 1 && html`<label class="field-inline">Curve of <select value=${chosen} onChange=${(event) => setField(event.target.value)}>${fields.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>`}
    ${points.filter(({ y }) => y !== null).length > 1 && html`<${Curve} points=${points} href=${href} name=${chosen || asked.state} />`}
    <p class="counted"><span><b>${plural(versions.length, "value")}</b> in ${plural(data.checkpoints, "kept checkpoint")}</span></p>
    <${Table} caption=${`Values of ${asked.state} for ${asked.key}, newest first`} className="past" rows=${[...versions].reverse()} keyOf=${(each) => each.slot} columns=${columns(conn, job, versions)} />
  </div>`;
}

const columns = (conn, job, versions) => [
  { key: "slot", name: "Checkpoint", cell: (each) => html`<a href=${checkpointHref(conn, job, each.slot)}>#${each.slot}</a>` },
  { key: "at", name: "Decided", cell: (each) => html`<${Moment} at=${each.at} />` },
  { key: "what", name: "What", cell: (each) => html`<${What} version=${each} />` },
  { key: "value", name: "Value", wide: true, cell: (each) => html`<${Value} value=${each.value} />${each.more && html` <small>and more entries</small>`}` },
  { key: "code", name: "Code", cell: (each) => (each.code ? html`<code>${each.code.slice(0, 12)}</code>` : "–") },
  { key: "run", name: "DAG run", cell: (each) => html`<${DagRun} name=${each.dag_run} brief />` },
  { key: "diff", name: "", right: true, cell: (each) => before(conn, job, each, versions) },
];

// What else changed in that batch, or since the newest checkpoint before it that is kept.
function before(conn, job, version, versions) {
  const { slot, previous } = version;
  if (version === versions[0] || !previous) return "";
  return html`<a href=${`${jobHref(conn, job, "differences")}?${queryOf({ before: previous, after: slot })}`}>what else changed${previous < slot - 1 && ` since #${previous}`}</a>`;
}

function What({ version }) {
  const { what, kind } = version;
  return html`<${Badge} kind=${what === "deleted" || what === "expired" ? "abandoned" : ""}>${WORDS[what] ?? what}<//>
    ${kind !== "checkpoint" && html` <${Badge} kind=${kind}>${KINDS[kind] ?? kind}<//>`}`;
}

// "" stands for the value itself; a value with fields has a curve of each that is a number.
function numericFields(versions) {
  const held = versions.filter((each) => each.value !== null);
  return Object.keys(held[0]?.numbers ?? {}).filter((name) => held.every((each) => name in each.numbers));
}

const numberOf = (text) => (text === undefined ? null : Number(text));
