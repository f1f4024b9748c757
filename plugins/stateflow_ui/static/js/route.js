// What the address after the # says. `#/jobs`, `#/jobs/CONN/JOB`, `#/jobs/CONN/JOB/TAB`, `#/jobs/CONN/JOB/checkpoints/N`,
// `#/jobs/CONN/JOB/replays/NAME`.
import { useEffect, useState } from "./html.js";

export const TABS = ["overview", "history", "graph", "savepoints", "storage", "keys", "differences", "replays", "audit"];

export function parse(hash) {
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const query = new URLSearchParams(search);
  const [first = "", conn, job, tab, id] = path.split("/").map(decoded);
  if (first !== "" && first !== "jobs") return { page: "unknown", query };
  if (!conn || !job) return { page: "jobs", query };
  if (tab === "checkpoints" && /^\d+$/.test(id ?? "")) return { page: "checkpoint", conn, job, id: Number(id), query };
  if (tab === "replays" && id) return { page: "job", conn, job, tab, name: id, query };
  if (tab && !TABS.includes(tab)) return { page: "unknown", query };
  return { page: "job", conn, job, tab: tab || "overview", query };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function jobHref(conn, job, rest = "") {
  return `#/jobs/${encodeURIComponent(conn)}/${encodeURIComponent(job)}${rest && rest !== "overview" ? `/${rest}` : ""}`;
}

export const checkpointHref = (conn, job, id) => jobHref(conn, job, `checkpoints/${id}`);

export function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return parse(hash);
}

// Remembers a page's own settings in the address without a step in the history for every key pressed.
export function keepQuery(settings) {
  const [path] = location.hash.split("?");
  const query = new URLSearchParams(Object.entries(settings).filter(([, value]) => value));
  const next = `${path || "#/jobs"}${query.size ? `?${query}` : ""}`;
  if (next !== location.hash) history.replaceState(history.state, "", next);
}

// The tab on a DAG or a DAG run is the same page with `?dag_id=..&run_id=..` before the #.
export function dagFilter() {
  const query = new URLSearchParams(location.search);
  const dag = query.get("dag_id");
  // Airflow leaves a placeholder where there is nothing to fill in.
  const said = (value) => (value && !/^\{.*\}$/.test(value) ? value : "");
  return { dag: said(dag), run: said(query.get("run_id")) };
}

export function filterQuery({ dag, run }) {
  const query = new URLSearchParams();
  if (dag) query.set("dag_id", dag);
  if (run) query.set("run_id", run);
  return query.toString();
}
