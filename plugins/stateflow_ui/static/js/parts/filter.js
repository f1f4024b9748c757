// Says that only what one DAG or DAG run wrote is shown, and takes that away.
import { html } from "../html.js";
import { Icon } from "./icons.js";

export function FilterChip({ filter, onClear }) {
  if (!filter.dag) return null;
  function clear() {
    const address = new URL(location.href);
    address.searchParams.delete("dag_id");
    address.searchParams.delete("run_id");
    history.replaceState(history.state, "", address);
    onClear({ dag: "", run: "" });
  }
  return html`<p class="filtered">
    <span>Only what DAG <b>${filter.dag}</b>${filter.run && html`, run <b>${filter.run}</b>`} wrote</span>
    <button type="button" class="quiet" onClick=${clear}><${Icon} name="close" />Show everything</button>
  </p>`;
}
