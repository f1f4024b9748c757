// What can be done to a job: each button opens a form, and the form starts the DAG that does it.
import { html, useState } from "../html.js";
import { AirflowLink } from "../airflow.js";
import { act } from "../api.js";
import { follow } from "../runs.js";
import { Dialog } from "./dialog.js";
import { FORMS } from "./forms.js";
import { Command, Notice, Sentence } from "./words.js";

export function ActionBar({ conn, job, about, origin }) {
  const [open, setOpen] = useState(null);
  return html`<div class="actions" role="group" aria-label="Actions">
    ${Object.entries(FORMS).map(([action, { name, danger }]) => html`<button key=${action} type="button" class=${danger ? "danger" : ""} aria-haspopup="dialog" aria-disabled=${about.may?.[FORMS[action].does] === false} title=${about.may?.[FORMS[action].does] === false ? `You may not start the DAG ${about.dags?.[FORMS[action].does] ?? ""}` : undefined} onClick=${() => setOpen(action)}>${name}</button>`)}
    ${open && html`<${ActionDialog} action=${open} conn=${conn} job=${job} about=${about} origin=${origin} onClose=${() => setOpen(null)} />`}
  </div>`;
}

// `about` is what the server says of the job: its status, and which DAG does what, for whom.
export function ActionDialog({ action, conn, job, about, origin, onClose }) {
  const form = FORMS[action];
  const dag = about.dags?.[form.does] ?? null;
  return html`<${Dialog} title=${form.title(job)} onClose=${onClose}>
    ${dag ? html`<${Form} form=${form} dag=${dag} conn=${conn} job=${job} about=${about} origin=${origin} onClose=${onClose} />` : html`<${NoDag} form=${form} job=${job} onClose=${onClose} />`}
  <//>`;
}

function Form({ form, dag, conn, job, about, origin, onClose }) {
  const { Fields } = form;
  const [values, setValues] = useState(() => form.begin({ status: about.status, origin }));
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const set = (name) => (value) => setValues((before) => ({ ...before, [name]: value }));
  const forbidden = about.may?.[form.does] === false;
  const wrong = forbidden || form.wrong?.(values);

  async function send(event) {
    event.preventDefault();
    if (busy || wrong) return;
    setBusy(true);
    setError(null);
    try {
      const started = await act(dag, { job, conn_id: conn, ...form.conf(values) });
      follow({ conn, job, action: form.name, dag: started.dag_id, run: started.run_id });
      onClose();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  }

  return html`<form onSubmit=${send}>
    <div class="body">
      ${about.paused?.[form.does] && html`<${Notice}>The DAG is paused, so nothing would happen: turn <${AirflowLink} to=${`dags/${encodeURIComponent(dag)}`}>${dag}<//> on first.<//>`}
      <${Fields} values=${values} set=${set} status=${about.status} conn=${conn} job=${job} />
      ${error && html`<${Notice} kind="error"><${Sentence} text=${error.message} /><//>`}
    </div>
    <footer>
      <span class="faint">${forbidden ? html`You may not start the DAG <b>${dag}</b>` : html`Starts the DAG <b>${dag}</b>`}</span>
      <button type="button" onClick=${onClose}>Cancel</button>
      <button type="submit" class=${form.danger ? "primary danger" : "primary"} disabled=${Boolean(wrong)} aria-busy=${busy}>${busy ? "Starting …" : form.verb(values)}</button>
    </footer>
  </form>`;
}

function NoDag({ form, job, onClose }) {
  return html`<div class="body">
      <p>There is no DAG for this, or none that you may see. Copy <code>dags/${form.file}</code> and what it imports into the DAGs folder: the button works as soon as Airflow has read it. Until then, on the command line:</p>
      <${Command} text=${form.command(job)} />
    </div>
    <footer><button type="button" data-first onClick=${onClose}>Close</button></footer>`;
}
