// One job: what it is at the moment, what can be done to it, and a tab for each thing to look into.
import { html, useState } from "../html.js";
import { useLive, useNow } from "../live.js";
import { jobPath } from "../api.js";
import { dagFilter, jobHref } from "../route.js";
import { ActionBar } from "../parts/actions.js";
import { Audit } from "../parts/audit.js";
import { Differences } from "../parts/differences.js";
import { Facts } from "../parts/facts.js";
import { FilterChip } from "../parts/filter.js";
import { Graph } from "../parts/graph.js";
import { History } from "../parts/history.js";
import { Keys } from "../parts/keys.js";
import { Overview } from "../parts/overview.js";
import { Replays } from "../parts/replays.js";
import { RunList } from "../parts/runlist.js";
import { Savepoints } from "../parts/savepoints.js";
import { Storage } from "../parts/storage.js";
import { Notice, Sentence, Trouble, Waiting } from "../parts/words.js";

const SECTIONS = [
  ["overview", "Overview", Overview],
  ["history", "History", History],
  ["graph", "Graph", Graph],
  ["savepoints", "Savepoints", Savepoints],
  ["storage", "Storage", Storage],
  ["keys", "Keys", Keys],
  ["differences", "Differences", Differences],
  ["replays", "Replays", Replays],
  ["audit", "Audit", Audit],
];

export function JobPage({ route }) {
  const { conn, job, tab } = route;
  const { data, error } = useLive(jobPath(conn, job));
  const now = useNow(data?.now);
  const [filter, setFilter] = useState(dagFilter);
  const Section = SECTIONS.find(([key]) => key === tab)[2];
  return html`<div class="page">
    <${JobHead} conn=${conn} job=${job} data=${data} />
    <${Trouble} error=${error} data=${data} />
    ${data?.error && html`<${Notice}><${Sentence} text=${data.error} /><//>`}
    <${RunList} conn=${conn} job=${job} />
    ${data && html`<${Facts} conn=${conn} job=${job} data=${data} now=${now} />`}
    ${!data && !error && html`<${Waiting} lines=${3} />`}
    ${(data || !error) && html`
      <nav class="tabs" aria-label="Parts of the job">
        ${SECTIONS.map(([key, name]) => html`<a key=${key} href=${jobHref(conn, job, key)} ref=${key === tab ? inView : null} aria-current=${key === tab ? "page" : undefined}>${name}</a>`)}
      </nav>
      <${FilterChip} filter=${filter} onClear=${setFilter} />
      <${Section} key=${tab} conn=${conn} job=${job} data=${data} now=${now} filter=${filter} query=${route.query} name=${route.name} />
    `}
  </div>`;
}

// On a phone the row of tabs is wider than the screen.
const inView = (link) => {
  const row = link?.parentElement;
  if (row) row.scrollLeft = Math.max(0, link.offsetLeft + link.offsetWidth - row.offsetLeft - row.clientWidth + 24);
};

export function JobHead({ conn, job, data, origin = "latest" }) {
  return html`<div class="head">
    <h1>${job}<span class="conn" title=${data?.status.root ?? "Connection that holds the checkpoint root"}>${conn}</span></h1>
    <div class="head-end">${data && html`<${ActionBar} conn=${conn} job=${job} about=${data} origin=${origin} />`}</div>
  </div>`;
}
