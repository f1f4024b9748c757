// All jobs at a glance: who needs somebody, and why.
import { html, useEffect, useMemo, useRef, useState } from "../html.js";
import { DagRun } from "../airflow.js";
import { bytes, duration, lag, plural, short, withoutSubject } from "../format.js";
import { useLive, useNow } from "../live.js";
import { dagFilter, filterQuery, jobHref, keepQuery } from "../route.js";
import { FilterChip } from "../parts/filter.js";
import { Icon } from "../parts/icons.js";
import { Sparkline } from "../parts/sparkline.js";
import { Table, sorted } from "../parts/table.js";
import { Ago, Command, Empty, HEALTH, Health, Notice, Running, Sentence, Trouble, Waiting, rankOf } from "../parts/words.js";

const ADD = `airflow connections add stateflow_default --conn-type stateflow --conn-extra '{"checkpoint_dir": "s3://bucket/checkpoints"}'`;

export function JobsPage({ route }) {
  const [filter, setFilter] = useState(dagFilter);
  const query = filterQuery(filter);
  const { data, error } = useLive(`jobs${query ? `?${query}` : ""}`);
  const now = useNow(data?.now);
  const [text, setText] = useState(route.query.get("q") ?? "");
  const [health, setHealth] = useState(route.query.get("health") ?? "");
  const [sort, setSort] = useState(() => asked(route.query.get("sort")));

  useEffect(() => keepQuery({ q: text, health, sort: written(sort) }), [text, health, sort]);

  const jobs = data?.jobs ?? [];
  const columns = useMemo(() => columnsOf(now, new Set(jobs.map((job) => job.conn_id)).size > 1), [data, now]);
  const reading = data && !jobs.length && data.roots.some((root) => root.read === false && !root.error);
  const matching = jobs.filter((job) => matches(job, text));
  const rows = sorted(matching.filter((job) => !health || job.health === health), columns, sort, (job) => job.job);

  return html`<div class="page">
    <div class="head">
      <h1>Jobs</h1>
      ${jobs.length > 0 && html`<${Counts} jobs=${matching} health=${health} onHealth=${setHealth} /><div class="head-end"><${FilterBox} text=${text} onText=${setText} /></div>`}
    </div>
    <${FilterChip} filter=${filter} onClear=${setFilter} />
    <${Trouble} error=${error} data=${data} />
    ${(data?.roots ?? []).filter((root) => root.error).map((root) => html`<${Notice} key=${root.conn_id}><b>${root.conn_id}</b> <${Sentence} text=${root.error} /><//>`)}
    ${data?.problem && html`<${Notice}>${data.problem}<//>`}
    ${((!data && !error) || reading) && html`<${Waiting} lines=${10} />`}
    ${data && !jobs.length && !reading && html`<${NoJobs} roots=${data.roots} filter=${filter} />`}
    ${data && jobs.length > 0 && !rows.length && html`<${Empty} title="No job matches">
      <p>None of ${plural(jobs.length, "job")} has what you ask for.</p>
      <button type="button" onClick=${() => { setText(""); setHealth(""); }}>Show all jobs</button>
    <//>`}
    ${rows.length > 0 && html`<${Table} caption="Jobs" className="jobs" columns=${columns} rows=${rows} sort=${sort} onSort=${setSort}
      keyOf=${(job) => `${job.conn_id}/${job.job}`} below=${whyUnwell} onRow=${(job) => { location.hash = jobHref(job.conn_id, job.job); }} />`}
    <${WarmHosts} jobs=${matching} now=${now} />
  </div>`;
}

// What the newest run of each job says of where it is, or was. A host on which nothing has run is not known here.
function WarmHosts({ jobs, now }) {
  const hosts = new Map();
  for (const job of jobs.filter((each) => each.warm_host)) {
    const key = `${job.warm_host} on ${job.machine ?? "?"}`;
    hosts.set(key, [...(hosts.get(key) ?? []), job]);
  }
  if (!hosts.size) return null;
  const names = [...hosts.keys()].sort();
  return html`<section class="warm-hosts">
    <h2>Warm hosts</h2>
    <ul>${names.map((name) => html`<${WarmHost} key=${name} name=${name} jobs=${hosts.get(name)} now=${now} />`)}</ul>
  </section>`;
}

function WarmHost({ name, jobs, now }) {
  const running = jobs.filter((job) => job.running);
  const newest = Math.max(...jobs.map((job) => job.last_checkpoint_at ?? 0));
  return html`<li><b>${name}</b>${": "}
    ${running.length
      ? html`${plural(running.length, "run")} now, ${running.map((job, at) => html`${at > 0 && ", "}<a href=${jobHref(job.conn_id, job.job)}>${job.job}</a>`)}`
      : "no run now"}; the newest run of ${plural(jobs.length, "job")}${newest > 0 && html`, last checkpoint <${Ago} at=${newest} now=${now} />`}
  </li>`;
}

function matches(job, text) {
  const held = [job.job, job.conn_id, job.dag_run ?? "", job.warm_host ?? "", job.running ? "running" : "idle", HEALTH[job.health]?.word ?? ""].join(" ").toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => held.includes(word));
}

const written = ({ key, down }) => (key === "health" && !down ? "" : `${down ? "-" : ""}${key}`);

function asked(text) {
  if (!text) return { key: "health", down: false };
  return { key: text.replace(/^-/, ""), down: text.startsWith("-") };
}

function columnsOf(now, severalRoots) {
  return [
    { key: "health", name: "Health", value: (job) => rankOf(job.health), cell: (job) => html`<${Health} health=${job.health} />` },
    { key: "job", name: "Job", wide: true, value: (job) => job.job, cell: (job) => html`<${Name} job=${job} root=${severalRoots} />` },
    { key: "run", name: "Run", big: true, value: (job) => Number(job.running), cell: (job) => html`<${Running} running=${job.running} status=${job.status} />` },
    { key: "age", name: "Last checkpoint", right: true, big: true, hint: "Age of the newest complete checkpoint", value: (job) => job.last_checkpoint_at && now - job.last_checkpoint_at,
      cell: (job) => html`<${Ago} at=${job.last_checkpoint_at} now=${now} />` },
    { key: "lag", name: "Lag", right: true, big: true, hint: "How far the job is behind its input", value: (job) => job.lag, cell: (job) => lag(job.lag, job.lag_unit) },
    { key: "rate", name: "Rows/s", right: true, big: true, hint: "Of the last batches of a job that runs", value: (job) => job.rows_per_second, cell: (job) => short(job.rows_per_second) },
    { key: "state", name: "State", right: true, big: true, value: (job) => job.state_size,
      cell: (job) => html`<span class="traced"><${Sparkline} values=${job.recent?.full} zero=${false} tone="full" /><span>${bytes(job.state_size)}</span></span>` },
    { key: "duration", name: "Duration", right: true, big: true, hint: "Of the last checkpoint, and of the 50 before it", value: lastDuration,
      cell: (job) => html`<span class="traced"><${Sparkline} values=${job.recent?.duration} tone="duration" /><span>${duration(lastDuration(job))}</span></span>` },
    { key: "dag", name: "DAG", value: (job) => job.dag_run || null, cell: (job) => html`<${DagRun} name=${job.dag_run} brief />` },
  ];
}

const lastDuration = (job) => job.last_duration ?? job.recent?.duration.at(-1) ?? null;

function Name({ job, root }) {
  return html`<span class="job-name"><a href=${jobHref(job.conn_id, job.job)}>${job.job}</a>${root && html`<span class="conn" title="Connection that holds its checkpoint root">${job.conn_id}</span>`}</span>`;
}

// Of a job that is well there is nothing to say, unless the last look at it failed and what is shown is older.
function whyUnwell(job) {
  const said = !["ok", "new"].includes(job.health) ? withoutSubject(job.reason, job.job) : job.error;
  return said ? html`<span class="reason"><${Sentence} text=${said} /></span>` : null;
}

function Counts({ jobs, health, onHealth }) {
  const counts = Object.keys(HEALTH).map((key) => [key, jobs.filter((job) => job.health === key).length]);
  return html`<div class="counts" role="group" aria-label="Show by health">
    <button type="button" class="chip" aria-pressed=${health === ""} onClick=${() => onHealth("")}>${plural(jobs.length, "job")}</button>
    ${counts.filter(([key, count]) => count > 0 || key === health).map(
      ([key, count]) => html`<button key=${key} type="button" class="chip" aria-pressed=${health === key} onClick=${() => onHealth(health === key ? "" : key)}>
        <${Health} health=${key} /><span class="number">${count}</span>
      </button>`,
    )}
  </div>`;
}

function FilterBox({ text, onText }) {
  const box = useRef(null);
  useEffect(() => {
    function slash(event) {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest?.("input, textarea, select, dialog")) return;
      event.preventDefault();
      box.current.focus();
    }
    addEventListener("keydown", slash);
    return () => removeEventListener("keydown", slash);
  }, []);
  const typed = (event) => onText(event.target.value);
  return html`<label class="search">
    <${Icon} name="search" />
    <span class="hidden">Filter jobs</span>
    <input ref=${box} type="search" placeholder="Filter by job, DAG, root …" value=${text} onInput=${typed} spellcheck="false" autocomplete="off"
      onKeyDown=${(event) => event.key === "Escape" && onText("")} />
    <kbd aria-hidden="true">/</kbd>
  </label>`;
}

function NoJobs({ roots, filter }) {
  if (filter.dag) {
    return html`<${Empty} title="No job has a record of this ${filter.run ? "DAG run" : "DAG"} among its newest records">
      <p>A job shows here once a task of <b>${filter.dag}</b>${filter.run && html` in run <b>${filter.run}</b>`} has completed a checkpoint.
        Older records are in the job's history: show everything, and open the job.</p>
    <//>`;
  }
  if (!roots.length) {
    return html`<${Empty} title="No checkpoint root is known">
      <p>Jobs are found through Airflow connections of the type <b>stateflow</b>, and there is none whose root you may see. Add one that names the root, or ask for the right to see it:</p>
      <${Command} text=${ADD} />
    <//>`;
  }
  if (roots.every((root) => root.error)) return null;
  return html`<${Empty} title="No job yet">
    <p>${roots.map((root) => root.root).join(", ")} holds no job. One appears with the first checkpoint of a <code>StateflowRunOperator</code>, or of</p>
    <${Command} text="stateflow run pipeline.py:orders" />
  <//>`;
}
