// What is said in the place of state to whoever may not read it.
import { html } from "../html.js";
import { Empty } from "./words.js";

export const NoRight = ({ conn }) => html`<${Empty} title="Only for those who may edit the connection">
  <p>What state and replays hold is data of the job. It is shown to those who may edit the connection <code>${conn}</code> in Airflow: ask its administrators for that right.</p>
<//>`;
