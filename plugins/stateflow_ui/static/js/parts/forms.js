// The forms of the actions: what they ask, what they send, what they say is going to happen.
import { html, useEffect, useId, useState } from "../html.js";
import { jobPath } from "../api.js";
import { bytes, plural } from "../format.js";
import { useLive } from "../live.js";
import { Notice } from "./words.js";

function Field({ name, hint, children }) {
  const id = useId();
  return html`<div class="field"><label for=${id}>${name}</label>${children(id)}${hint && html`<p class="hint">${hint}</p>`}</div>`;
}

function Tick({ name, hint, value, onValue, first }) {
  const id = useId();
  return html`<div class="tick">
    <input type="checkbox" id=${id} checked=${value} data-first=${first} onChange=${(event) => onValue(event.target.checked)} />
    <label for=${id}>${name}<span class="hint">${hint}</span></label>
  </div>`;
}

function Choice({ legend, options, value, onValue }) {
  const group = useId();
  return html`<fieldset class="field">
    <legend>${legend}</legend>
    ${options.map(
      ([key, name, hint], k) => html`<div class="tick" key=${key}>
        <input type="radio" name=${group} id=${`${group}-${key}`} checked=${value === key} data-first=${k === 0} onChange=${() => onValue(key)} />
        <label for=${`${group}-${key}`}>${name}<span class="hint">${hint}</span></label>
      </div>`,
    )}
  </fieldset>`;
}

const Note = ({ value, onValue, hint = "Why, for those who read the history later." }) =>
  html`<${Field} name="Note" hint=${hint}>${(id) => html`<input type="text" id=${id} value=${value} maxlength="200" autocomplete="off" onInput=${(event) => onValue(event.target.value)} />`}<//>`;

function SavepointFields({ values, set, status }) {
  return html`
    <${Choice} legend="Kind" value=${values.kind} onValue=${set("kind")} options=${[
      ["native", "Native", `A copy of the newest checkpoint's files, ${bytes(status?.state_size)}. The run is not slowed.`],
      ["canonical", "Canonical", "Typed Parquet tables: restores into any backend and parallelism, any program reads it. Starts Spark."],
    ]} />
    <${Note} value=${values.note} onValue=${set("note")} />`;
}

const NUMBER = /^\s*(?:checkpoint:)?(\d+)\s*$/;
const PLACE = /^\s*([A-Za-z][A-Za-z0-9+.-]*:\/\/.+?|\/.+?)\s*$/;

function RestoreFields({ values, set, status, conn, job }) {
  const saved = (useLive(jobPath(conn, job, "savepoints"), { every: 0 }).data?.savepoints ?? []).filter((each) => !each.problem && !each.claimed_by);
  const tags = Object.entries(status?.tags ?? {});
  const known = ["latest", "other", ...tags.map(([name]) => `tag:${name}`), ...saved.map((each) => each.url)];
  const value = known.includes(values.origin) ? values.origin : "other";
  return html`
    <p>The recovery DAG shows the plan and waits for a person's approval before anything changes. Then it stops the run, restores state and offsets, verifies, and starts the job again.</p>
    <${Field} name="Restore from">${(id) => html`<select id=${id} data-first value=${value} onChange=${(event) => set("origin")(event.target.value)}>
      <option value="latest">the newest checkpoint${status?.head ? ` (#${status.head})` : ""}</option>
      ${tags.length > 0 && html`<optgroup label="Tags">${tags.map(([name, slot]) => html`<option key=${name} value=${`tag:${name}`}>${name} (#${slot})</option>`)}</optgroup>`}
      ${saved.length > 0 && html`<optgroup label="Savepoints">${saved.map((each) => html`<option key=${each.url} value=${each.url}>${each.name || each.url} (#${each.checkpoint}, ${each.kind})</option>`)}</optgroup>`}
      <option value="other">a checkpoint, or a savepoint elsewhere …</option>
    </select>`}<//>
    ${value === "other" && html`<${Field} name="Checkpoint or savepoint" hint="The number of a kept checkpoint (the Graph tab shows which are), or the URL of a savepoint.">${(id) => html`<input type="text" id=${id} value=${values.where} spellcheck="false" autocomplete="off" onInput=${(event) => set("where")(event.target.value)} />`}<//>`}
    ${value === "other" && values.where.trim() !== "" && !originOf(values) && html`<p class="hint" role="alert">That is neither a checkpoint's number nor the URL of a savepoint.</p>`}
    <${Tick} name="Rewind the outputs too" hint="Outputs are taken back to what they held then; a savepoint has to be one of this job. Otherwise they keep what they have, and what followed is delivered again." value=${values.rewind_sinks} onValue=${set("rewind_sinks")} />
    ${values.rewind_sinks && html`<${Tick} name="With the jobs that have read them" hint="Jobs of this root that have read what is undone go back, too, and their readers. The plan shows each; without this their next runs are refused." value=${values.with_readers} onValue=${set("with_readers")} />`}
    <${Note} value=${values.note} onValue=${set("note")} />`;
}

function originOf({ origin, where }) {
  if (origin !== "other") return origin;
  const [, number] = where.match(NUMBER) ?? [];
  return number ? `checkpoint:${number}` : (where.match(PLACE)?.[1] ?? "");
}

function StopFields({ values, set, status }) {
  return html`
    <p>${status?.status === "RUNNING" ? "The run ends after its batch; the next one carries on from there." : "No run is known to be going on; the request stands for the one that may be starting."}</p>
    <${Tick} first name="Take a savepoint" hint="Before an upgrade: what to go back to when the new code is wrong." value=${values.savepoint} onValue=${set("savepoint")} />
    <${Tick} name="Drain" hint="Fires every event-time timer and ends the job for good: windows are put out as if no more input could come." value=${values.drain} onValue=${set("drain")} />
    ${values.drain && html`<${Notice}>A drained job is not resumed as if nothing had happened: every new row would be late.<//>`}
    <${Note} value=${values.note} onValue=${set("note")} />`;
}

function CleanupFields({ values, set, conn, job }) {
  const retained = useSettled(isCount(values.retained) ? values.retained : null);
  const age = useSettled(isAge(values.age) ? values.age.trim() : null);
  const asked = retained && age !== null && (age ? `storage?retained=${retained}&age=${encodeURIComponent(age)}` : `storage?retained=${retained}`);
  const { data } = useLive(asked && jobPath(conn, job, asked));
  return html`
    <p>Deletes what no kept checkpoint, tag or pin needs; a running job need not be stopped.</p>
    <p class="verdict-line" aria-live="polite">${data ? freed(data) : "Counting what would go …"}</p>
    ${data?.retention && html`<p>The connection's retention keeps <b>${data.retention}</b>, too.</p>`}
    <${Field} name="Checkpoints to keep" hint="The newest ones; tags and the head are always kept.">${(id) => html`<input type="number" id=${id} data-first min="1" max="10000" value=${values.retained} onInput=${(event) => set("retained")(event.target.value)} />`}<//>
    <${Field} name="Keep all younger than" hint="Such as 1 day. Empty: as the connection's option retained_age says. 0 seconds: none stays for its age.">${(id) => html`<input type="text" id=${id} value=${values.age} onInput=${(event) => set("age")(event.target.value)} />`}<//>
    <${Tick} name="Only report" hint="The task log says what would go and why; nothing is deleted." value=${values.dry_run} onValue=${set("dry_run")} />`;
}

function freed({ freed: parts, kept, age, roots }) {
  const young = roots.young ?? 0;
  const gone = parts.reduce((sum, each) => sum + each.bytes, 0);
  const by = young ? `, ${young} of them only for being younger than ${age}` : "";
  return gone ? html`Would free <b>${bytes(gone)}</b> and keep <b>${plural(kept.checkpoints, "checkpoint")}</b>${by}.` : `There is nothing to free at the moment${young ? `: ${plural(young, "checkpoint")} ${young > 1 ? "are" : "is"} kept only for being younger than ${age}` : ""}.`;
}

// What was typed, once the typing has paused.
function useSettled(value) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), 350);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}

const isAge = (text) => /^(\d+(\.\d+)? *(ms|s|seconds?|m|minutes?|h|hours?|d|days?|weeks?))?$/.test(text.trim());
const isCount = (text) => /^\d+$/.test(String(text)) && Number(text) >= 1 && Number(text) <= 10000;

// `does` is the action's name in what the server says of a job's DAGs.
export const FORMS = {
  savepoint: {
    name: "Savepoint",
    does: "savepoint",
    title: (job) => `Take a savepoint of ${job}`,
    file: "stateflow_savepoint.py",
    command: (job) => `stateflow savepoint create ${job}`,
    verb: () => "Take savepoint",
    begin: () => ({ kind: "native", note: "" }),
    conf: ({ kind, note }) => ({ kind, note }),
    Fields: SavepointFields,
  },
  restore: {
    name: "Restore",
    does: "recovery",
    title: (job) => `Restore ${job}`,
    file: "stateflow_recovery.py",
    command: (job) => `stateflow restore ${job} pipeline.py:${job} --from checkpoint:42`,
    verb: () => "Plan the restore",
    begin: ({ origin = "latest" }) => {
      const where = origin.match(/^checkpoint:(\d+)$/)?.[1] ?? "";
      return { origin: where ? "other" : origin, where, rewind_sinks: false, with_readers: false, note: "" };
    },
    wrong: (values) => !originOf(values),
    conf: (values) => ({ origin: originOf(values), rewind_sinks: values.rewind_sinks, with_readers: values.rewind_sinks && values.with_readers, note: values.note }),
    Fields: RestoreFields,
  },
  stop: {
    name: "Stop",
    does: "stop",
    title: (job) => `Stop ${job}`,
    file: "stateflow_stop.py",
    command: (job) => `stateflow stop ${job}`,
    danger: true,
    verb: ({ drain }) => (drain ? "Drain and stop" : "Stop"),
    begin: () => ({ savepoint: false, drain: false, note: "" }),
    conf: ({ savepoint, drain, note }) => ({ savepoint, drain, note }),
    Fields: StopFields,
  },
  cleanup: {
    name: "Clean up",
    does: "cleanup",
    title: (job) => `Clean up ${job}`,
    file: "stateflow_cleanup.py",
    command: (job) => `stateflow gc ${job}`,
    verb: ({ dry_run }) => (dry_run ? "Report" : "Clean up"),
    begin: () => ({ retained: "3", age: "", dry_run: true }),
    wrong: ({ retained, age }) => !isCount(retained) || !isAge(age),
    conf: ({ retained, age, dry_run }) => ({ retained: Number(retained), age: age.trim(), dry_run }),
    Fields: CleanupFields,
  },
};
