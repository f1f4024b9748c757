// A step curve of one number over checkpoints: each point is a link, and deletions, expiry and edits of the job are marks.
// The curve is drawn by `y`; what is read stands in `label`, which has all digits.
import { html } from "../html.js";
import { moment } from "../format.js";
import { KINDS } from "./words.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [1000, 180, 8, 8, 22, 8];
const GONE = { deleted: "deleted", expired: "expired", undeclared: "not declared", "not there": "not there" };

export function Curve({ points, href, name }) {
  const known = points.filter(({ y }) => y !== null);
  const least = known.reduce((one, other) => (other.y < one.y ? other : one));
  const most = known.reduce((one, other) => (other.y > one.y ? other : one));
  const [low, high] = [least.y, most.y];
  const [first, last] = [points[0].at, points.at(-1).at];
  const x = (at) => LEFT + ((WIDTH - LEFT - RIGHT) * (at - first)) / (last - first || 1);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (value - low)) / (high - low || 1);
  const marks = points.filter((point) => point.y === null || point.kind !== "checkpoint");
  const label = `${name}: from ${known[0].label} to ${known.at(-1).label}, least ${least.label}, most ${most.label}`;
  return html`<figure class="curve">
    <div class="curve-scale" aria-hidden="true"><span>${most.label}</span><span>${least.label}</span></div>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="group" aria-label=${label}>
      ${marks.map((point) => html`<line key=${`m${point.slot}`} class="curve-mark" x1=${x(point.at)} x2=${x(point.at)} y1=${TOP - 6} y2=${HEIGHT} />`)}
      <path class="curve-line" d=${steps(points, x, y)} />
    </svg>
    <div class="curve-points">
      ${points.map((point) => html`<a key=${point.slot} href=${href(point.slot)} class=${point.y === null || point.kind !== "checkpoint" ? "curve-point marked" : "curve-point"}
        style=${{ left: `${(100 * x(point.at)) / WIDTH}%`, top: `${(100 * (point.y === null ? HEIGHT - BOTTOM : y(point.y))) / HEIGHT}%` }}
        title=${titleOf(point)} aria-label=${titleOf(point)}>${point.y === null || point.kind !== "checkpoint" ? html`<span>${markOf(point)}</span>` : ""}</a>`)}
    </div>
    <figcaption><time>${moment(first)}</time><time>${moment(last)}</time></figcaption>
  </figure>`;
}

const markOf = (point) => (point.kind !== "checkpoint" ? (KINDS[point.kind] ?? point.kind).toLowerCase() : (GONE[point.what] ?? point.what));

const titleOf = (point) => `#${point.slot}, ${moment(point.at)}: ${point.y === null ? markOf(point) : point.label}${point.kind !== "checkpoint" && point.y !== null ? ` (${markOf(point)})` : ""}`;

// A value holds until the next one; where there is none the line stops.
function steps(points, x, y) {
  let path = "";
  let drawing = false;
  for (const point of points) {
    const at = x(point.at).toFixed(1);
    if (drawing) path += `H${at}`;
    if (point.y !== null) path += `${drawing ? "V" : `M${at} `}${y(point.y).toFixed(1)}`;
    drawing = point.y !== null;
  }
  return path;
}
