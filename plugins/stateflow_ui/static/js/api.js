// Talking to the server that these pages came from. Every address is relative to the page.

export class ApiError extends Error {
  // `wait`: seconds after which the server would like to be asked again, 0 if it did not say.
  constructor(status, sentence, wait = 0) {
    super(sentence);
    this.status = status;
    this.wait = wait;
  }
}

const here = new URL(".", document.baseURI);

export const apiUrl = (path) => new URL(`api/${path}`, here).href;
// Airflow's own pages and API lie beside the plugin, below the same path of [api] base_url.
export const airflowUrl = (path) => new URL(`../${path}`, here).href;

export const jobPath = (conn, job, rest = "") =>
  `jobs/${encodeURIComponent(conn)}/${encodeURIComponent(job)}${rest ? `/${rest}` : ""}`;

// `known` is the tag of what the page has already; the answer is null when that still holds.
export async function read(url, { known = null } = {}) {
  const headers = { Accept: "application/json" };
  if (known) headers["If-None-Match"] = known;
  const answer = await reach(url, { headers, cache: "no-store" });
  if (answer.status === 304) {
    await answer.text(); // an answer that nobody reads counts as broken off
    return null;
  }
  return { data: await body(answer), tag: answer.headers.get("ETag") };
}

// The plugin says whether this button may start that DAG, and with what; Airflow's public API starts it, for the user who pressed.
// The header is what a foreign page cannot send along with somebody's cookie.
export async function act(dag, conf) {
  const wanted = await body(await post(apiUrl(`actions/${encodeURIComponent(dag)}`), { conf }, { "X-Stateflow-Action": "1" }));
  const run = await body(await post(airflowUrl(wanted.path), wanted.body));
  return { dag_id: wanted.dag_id, run_id: run.dag_run_id };
}

const post = (url, document, headers = {}) =>
  reach(url, { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(document) });

async function reach(url, request) {
  let answer;
  try {
    answer = await fetch(url, { credentials: "same-origin", ...request });
  } catch {
    throw new ApiError(0, "Airflow's API server does not answer: what is shown may be old, the page keeps trying.");
  }
  if (answer.ok || answer.status === 304) return answer;
  throw new ApiError(answer.status, await sentence(answer), Number(answer.headers.get("Retry-After")) || 0);
}

async function body(answer) {
  try {
    return await answer.json();
  } catch {
    throw new ApiError(answer.status, "The server's answer is not what this page understands: reload it, it may be of another version.");
  }
}

async function sentence(answer) {
  let said = "";
  try {
    const { detail } = await answer.json();
    if (typeof detail === "string") said = detail;
    else if (Array.isArray(detail)) said = detail.map((each) => each.msg ?? "").filter(Boolean).join("; ");
    else said = detail?.message ?? detail?.reason ?? "";
  } catch {
    // an error page instead of JSON: the status has to do
  }
  if (answer.status === 401) return "You are not signed in to Airflow, or your session has ended: sign in, then come back.";
  // Airflow's own guard says no more than this.
  if (answer.status === 403 && (!said || said === "Forbidden")) return "Airflow does not allow you to do this: ask its administrators for the right to it.";
  // Airflow's refusal of a form goes on with the schema, which nobody can mend.
  said = said.trim().split("\n")[0].trim();
  return said || `The server answered ${answer.status} ${answer.statusText}`.trim();
}
