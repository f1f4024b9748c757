// Small pieces of text that recur: health, run, times, badges, notices.
import { html, useState } from "../html.js";
import { SignIn } from "../airflow.js";
import { ago, iso, moment } from "../format.js";
import { Icon } from "./icons.js";

export const HEALTH = {
  lost: { word: "Lost", rank: 0 },
  unreadable: { word: "Unreadable", rank: 1 },
  blocked: { word: "Blocked", rank: 2 },
  failed: { word: "Failed", rank: 3 },
  stale: { word: "Stale", rank: 4 },
  new: { word: "New", rank: 5 },
  ok: { word: "Healthy", rank: 6 },
};

export const rankOf = (health) => HEALTH[health]?.rank ?? 9;

export function Health({ health }) {
  return html`<span class=${`health health-${health}`}><${Icon} name=${health in HEALTH ? health : "new"} />${HEALTH[health]?.word ?? health}</span>`;
}

// A sentence of the server: what stands in backticks is something to type.
export const Sentence = ({ text }) => html`${(text ?? "").split("`").map((part, k) => (k % 2 ? html`<code>${part}</code>` : part))}`;

export function Running({ running, status }) {
  if (status === "LOST") return html`<span class="run" title="It has given no sign of life for too long"><${Icon} name="lost" />Silent</span>`;
  if (status === "UNREADABLE" || status === "READING") return html`<span class="run">${status === "READING" ? "Being read" : "Unreadable"}</span>`;
  return html`<span class=${running ? "run run-on" : "run"}><${Icon} name=${running ? "running" : "idle"} />${running ? "Running" : "Idle"}</span>`;
}

// An age that says its moment when pointed at.
export function Ago({ at, now, suffix = true }) {
  if (!at) return html`<span class="none">–</span>`;
  const text = ago(now - at);
  return html`<time datetime=${iso(at)} title=${moment(at)}>${suffix ? text : text.replace(/ ago$/, "")}</time>`;
}

export const Moment = ({ at }) => (at ? html`<time datetime=${iso(at)}>${moment(at)}</time>` : html`<span class="none">–</span>`);

export const Badge = ({ kind = "", children, title }) => html`<span class=${`badge ${kind && `badge-${kind}`}`} title=${title}>${children}</span>`;

export const KINDS = {
  checkpoint: "Checkpoint",
  restore: "Restore",
  rescale: "Rescale",
  erase: "Erase",
  fence: "Fence",
};

const STATUSES = { COMPLETED: "Completed", IN_PROGRESS: "In progress", ABANDONED: "Abandoned" };

export const statusWord = (status) => STATUSES[status] ?? status;

export function Notice({ kind = "warning", children }) {
  return html`<div class=${`notice notice-${kind}`} role=${kind === "error" ? "alert" : "status"}>
    <${Icon} name=${kind === "error" ? "lost" : kind === "good" ? "ok" : "warning"} /><div>${children}</div>
  </div>`;
}

// What a failed request leaves to say; data that was there stays in view below it.
export function Trouble({ error, data }) {
  if (!error) return null;
  if (error.status === 401) return html`<${Notice} kind="error">${error.message} <${SignIn} /><//>`;
  if (error.status === 503 && error.wait && !data) return html`<${Notice}>${error.message}<//>`;
  return html`<${Notice} kind=${data ? "warning" : "error"}><${Sentence} text=${error.message} /><//>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h3>${title}</h3>${children}</div>`;
}

export function Command({ text }) {
  const [copied, setCopied] = useState(false);
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
      setTimeout(() => setCopied(false), 1500);
    } catch {
      // a frame without the right to the clipboard: the text can be marked by hand
    }
  }
  return html`<div class="command">
    <code>${text}</code>
    <button type="button" class="icon" onClick=${copy} aria-label="Copy the command">${copied ? html`<${Icon} name="ok" />` : html`<${Icon} name="copy" />`}</button>
  </div>`;
}

// Grey bars where something will be, so that nothing jumps when it comes.
export const Waiting = ({ lines = 6 }) =>
  html`<div class="waiting" role="status" aria-label="Loading">${Array.from({ length: lines }, (_, k) => html`<i style=${{ width: `${92 - ((k * 17) % 40)}%` }}></i>`)}</div>`;
