// The frame of every page: where one is, whether it is live, what to show when a part of it breaks.
import { html, render, useEffect, useErrorBoundary } from "./html.js";
import { AirflowLink } from "./airflow.js";
import { zone } from "./format.js";
import { setLive, useLiveSwitch } from "./live.js";
import { jobHref, useRoute } from "./route.js";
import { Icon } from "./parts/icons.js";
import { Empty } from "./parts/words.js";
import { CheckpointPage } from "./pages/checkpoint.js";
import { JobPage } from "./pages/job.js";
import { JobsPage } from "./pages/jobs.js";

const PAGES = { jobs: JobsPage, job: JobPage, checkpoint: CheckpointPage, unknown: UnknownPage };

function App() {
  const route = useRoute();
  const Page = PAGES[route.page];
  const place = [route.page, route.conn, route.job, route.id].join("/");
  useEffect(() => {
    document.title = [route.id !== undefined && `Checkpoint ${route.id}`, route.job, "Stateflow"].filter(Boolean).join(" · ");
    scrollTo(0, 0);
  }, [place]);
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the page</a>
    <${Bar} route=${route} />
    <main id="main" tabindex="-1"><${Safe} key=${place}><${Page} key=${place} route=${route} /><//></main>
  `;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function Bar({ route }) {
  const live = useLiveSwitch();
  const label = live ? "Stop refreshing" : "Refresh by itself again";
  return html`<header class="bar">
    <nav aria-label="Where you are">
      <ol class="crumbs">
        <li><a href="#/jobs" aria-label="Stateflow: all jobs" aria-current=${route.page === "jobs" ? "page" : undefined}><${Mark} /><span class="brand">Stateflow</span></a></li>
        ${route.job && html`<li class="crumb-job"><a href=${jobHref(route.conn, route.job)} aria-current=${route.page === "job" ? "page" : undefined}>${route.job}</a></li>`}
        ${route.id !== undefined && html`<li><a href=${location.hash} aria-current="page">Checkpoint ${route.id}</a></li>`}
      </ol>
    </nav>
    <div class="bar-end">
      <span class="zone" title="The time zone of every time here: the one chosen in Airflow, else the browser's">${zone}</span>
      <button type="button" class="quiet" aria-pressed=${live} title=${label} onClick=${() => setLive(!live)}>
        <${Icon} name=${live ? "live" : "pause"} />${live ? "Live" : "Paused"}
      </button>
      ${!document.documentElement.hasAttribute("data-framed") && html`<${AirflowLink} to="">Airflow<//>`}
    </div>
  </header>`;
}

const Mark = () => html`<svg class="mark" viewBox="0 0 24 24" width="18" height="18" aria-hidden="true">
  <path d="M4 6.5h10a5.5 5.5 0 0 1 0 11H4" fill="none" /><circle cx="4.5" cy="6.5" r="2.2" /><circle cx="12" cy="6.5" r="2.2" /><circle cx="4.5" cy="17.5" r="2.2" />
</svg>`;

function Safe({ children }) {
  const [error] = useErrorBoundary((failure) => console.error(failure));
  if (!error) return children;
  return html`<${Empty} title="This page could not be drawn">
    <p>Something in the data was not as this page expects (${String(error.message ?? error)}). Reload it; if that does not help, the command line
      shows the same: <code>stateflow show JOB</code>.</p>
  <//>`;
}

function UnknownPage() {
  return html`<${Empty} title="There is no such page">
    <p>The address names nothing that these pages know. <a href="#/jobs">All jobs</a> are a good place to start from.</p>
  <//>`;
}

render(html`<${App} />`, document.getElementById("app"));
