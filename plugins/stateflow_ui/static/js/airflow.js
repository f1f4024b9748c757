// Ways out of these pages into Airflow's own. In a frame they must lead the window around it, which its sandbox
// forbids to links: so the outer page is asked to go there itself.
import { html } from "./html.js";
import { airflowUrl } from "./api.js";

export function outer() {
  try {
    return parent !== window && parent.document ? parent : null;
  } catch {
    return null;
  }
}

function follow(event) {
  const around = outer();
  if (!around) return;
  event.preventDefault();
  const href = event.currentTarget.href;
  const link = around.document.createElement("a");
  link.href = href;
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.button === 1) link.target = "_blank";
  link.hidden = true;
  around.document.body.append(link);
  link.click();
  link.remove();
}

export function AirflowLink({ to, children, title }) {
  return html`<a class="out" href=${airflowUrl(to)} title=${title} onClick=${follow} onAuxClick=${follow}>${children}</a>`;
}

export function SignIn() {
  const { pathname, search, hash } = (outer() ?? window).location;
  return html`<${AirflowLink} to=${`api/v2/auth/login?next=${encodeURIComponent(pathname + search + hash)}`}>Sign in<//>`;
}

export const runPath = (dag, run) => `dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}`;

// Records name a DAG run as `dag_id/run_id`; a run id may hold a slash, a DAG id never does.
export function splitRun(name) {
  const at = (name ?? "").indexOf("/");
  return at > 0 ? { dag: name.slice(0, at), run: name.slice(at + 1) } : null;
}

export function DagRun({ name, brief = false }) {
  const parts = splitRun(name);
  if (!parts) return name ? html`<span>${name}</span>` : html`<span class="none">–</span>`;
  const text = brief ? parts.dag : `${parts.dag} · ${parts.run}`;
  return html`<${AirflowLink} to=${runPath(parts.dag, parts.run)} title=${`DAG run ${name}`}>${text}<//>`;
}
