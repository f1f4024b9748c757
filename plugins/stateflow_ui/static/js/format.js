// Numbers, sizes, times and ages as people read them. Pure but for the viewer's time zone.

export const NONE = "–";
// 9999-12-31T23:59:59.999Z, the watermark of a job that was drained.
const END_OF_TIME = 253402300799999;

// The zone that was chosen in Airflow's own header, else the browser's.
function chosenZone() {
  try {
    const name = JSON.parse(localStorage.getItem("timezone") ?? "null");
    if (name && name !== "local") {
      new Intl.DateTimeFormat("en", { timeZone: name });
      return name;
    }
  } catch {
    // not a zone, or no storage
  }
  return Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
}

export const zone = chosenZone();

const clock = new Intl.DateTimeFormat("sv-SE", { timeZone: zone, dateStyle: "short", timeStyle: "medium" });
const grouped = new Intl.NumberFormat("en-US");

const missing = (value) => value === null || value === undefined || Number.isNaN(value);

// Binary units under their short names, as the command line prints them.
export function bytes(value) {
  if (missing(value)) return NONE;
  let size = value;
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (Math.abs(size) < 1024) return `${unit === "B" || Math.abs(size) >= 100 ? Math.round(size) : size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TB`;
}

export const whole = (value) => (missing(value) ? NONE : grouped.format(Math.round(value)));

// So many rows, bytes or files.
export const amount = (count, unit) => (unit === "bytes" ? bytes(count) : plural(count, unit.slice(0, -1)));

// Three digits and a unit: 12.3 k.
export function short(value) {
  if (missing(value)) return NONE;
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(value) >= size) {
      const part = value / size;
      return `${Math.abs(part) >= 100 ? Math.round(part) : part.toFixed(1)} ${unit}`;
    }
  }
  return Number.isInteger(value) ? String(value) : Math.abs(value) >= 10 ? String(Math.round(value)) : value.toFixed(1);
}

const DAY = 86400e3;
const UNITS = [["d", DAY], ["h", 3600e3], ["min", 60e3], ["s", 1e3]];

// How long something took.
export function duration(ms) {
  if (missing(ms)) return NONE;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60e3) return `${(ms / 1000).toFixed(ms < 10e3 ? 2 : 1)} s`;
  for (let k = 0; k < 3; k++) {
    const [unit, size] = UNITS[k];
    if (ms >= size) {
      const rest = Math.floor((ms % size) / UNITS[k + 1][1]);
      return `${Math.floor(ms / size)} ${unit}${rest ? ` ${rest} ${UNITS[k + 1][0]}` : ""}`;
    }
  }
  return NONE;
}

// How long ago, in one unit.
export function age(ms) {
  if (missing(ms)) return NONE;
  for (const [unit, size] of UNITS) if (ms >= 2 * size || unit === "s") return `${Math.max(0, Math.floor(ms / size))} ${unit}`;
  return NONE;
}

export const ago = (ms) => (missing(ms) ? NONE : ms < 1000 ? "just now" : `${age(ms)} ago`);

export function moment(ms) {
  if (missing(ms) || ms === 0) return NONE;
  return ms >= END_OF_TIME - 1000 ? "end of time" : clock.format(ms);
}

const TIME = /^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d)?([.,]\d+)?$/;

// A time as `moment` shows it, in UTC, as the server takes it; whatever else was typed stays as it is.
export function timeInUtc(text) {
  const [, day, minute, second = "", fraction = ""] = text.match(TIME) ?? [];
  const shown = Date.parse(`${day}T${minute}${second}Z`);
  if (!day || Number.isNaN(shown) || !new Date(shown).toISOString().startsWith(day)) return text;
  const ahead = (ms) => Date.parse(`${clock.format(ms).replace(" ", "T")}Z`) - ms;
  // The clocks may change nearby: of an hour that comes twice it is the first one.
  const around = [-DAY, DAY].map((away) => shown - ahead(shown + away)).filter((ms) => !missing(ms));
  const at = around.find((ms) => ms + ahead(ms) === shown) ?? around[0];
  if (missing(at)) return text;
  return `${new Date(at).toISOString().slice(0, second ? 19 : 16)}${fraction}Z`;
}

export const drained = (ms) => !missing(ms) && ms >= END_OF_TIME - 1000;

export const iso = (ms) => (missing(ms) || ms === 0 || drained(ms) ? "" : new Date(ms).toISOString());

// Rows, or how far event time is behind: whichever the server can tell.
export function lag(value, unit = "rows") {
  if (missing(value)) return NONE;
  return unit === "ms" ? (value >= 1000 ? age(value) : duration(value)) : `${short(value)} ${unit}`;
}

export const percent = (part, all) => (all ? `${((100 * part) / all).toFixed(part === all || part === 0 ? 0 : 1)} %` : NONE);

export const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

// The sentence of the server without its first words, where the job's name stands beside it.
export function withoutSubject(sentence, job) {
  const text = (sentence ?? "").replace(`job '${job}' `, "");
  return text.charAt(0).toUpperCase() + text.slice(1);
}
