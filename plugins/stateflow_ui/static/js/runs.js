// DAG runs that were started from these pages, followed through Airflow's own API until they end.
import { useEffect, useState } from "./html.js";
import { airflowUrl, read } from "./api.js";

const STORE = "stateflow-runs";
const EVERY = 3000;
const OVER = ["success", "failed"];

let runs = restored();
let timer = 0;
const listeners = new Set();

function restored() {
  try {
    return JSON.parse(sessionStorage.getItem(STORE)) ?? [];
  } catch {
    return [];
  }
}

function change(next) {
  runs = next;
  try {
    sessionStorage.setItem(STORE, JSON.stringify(runs));
  } catch {
    // without storage the list lives as long as the page
  }
  for (const listener of listeners) listener();
}

export function follow(run) {
  change([{ ...run, state: "queued" }, ...runs.filter((each) => each.run !== run.run || each.dag !== run.dag)].slice(0, 8));
  clearTimeout(timer);
  timer = setTimeout(look, 500);
}

export const dismiss = (run) => change(runs.filter((each) => each !== run));

const going = (run) => !OVER.includes(run.state) && !run.unknown;

async function look() {
  clearTimeout(timer);
  if (!document.hidden) {
    const answers = await Promise.all(runs.map((run) => (going(run) ? asked(run) : run)));
    const heard = new Map(answers.map((run) => [`${run.dag}/${run.run}`, run]));
    // Others may have been started or dismissed while Airflow was asked.
    const next = runs.map((run) => heard.get(`${run.dag}/${run.run}`) ?? run);
    if (JSON.stringify(next) !== JSON.stringify(runs)) change(next);
  }
  if (runs.some(going)) timer = setTimeout(look, EVERY);
}

async function asked(run) {
  const base = `api/v2/dags/${encodeURIComponent(run.dag)}/dagRuns/${encodeURIComponent(run.run)}`;
  try {
    const [{ data }, tasks] = await Promise.all([
      read(airflowUrl(base)),
      read(airflowUrl(`${base}/taskInstances`)).catch(() => null),
    ]);
    return { ...run, state: data.state, tasks: (tasks?.data.task_instances ?? []).map(({ task_id, state }) => ({ task_id, state })) };
  } catch (error) {
    // Not being allowed to see DAG runs is final; anything else may pass.
    return [403, 404].includes(error.status) ? { ...run, unknown: error.message } : run;
  }
}

export function useRuns(conn, job) {
  const [, draw] = useState(0);
  useEffect(() => {
    const listener = () => draw((n) => n + 1);
    listeners.add(listener);
    if (runs.some(going)) look();
    return () => listeners.delete(listener);
  }, []);
  return runs.filter((run) => run.conn === conn && run.job === job);
}
