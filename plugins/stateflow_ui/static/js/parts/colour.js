// What a colour of the style sheet is at the moment, for what is painted on a canvas.
let probe = null;
let known = new Map();

addEventListener("theme", () => {
  known = new Map();
});

export function colour(name, alpha = 1) {
  const key = `${name} ${alpha}`;
  if (!known.has(key)) {
    if (!probe) {
      probe = document.createElement("i");
      probe.hidden = true;
      document.body.append(probe);
    }
    probe.style.color = alpha === 1 ? `var(${name})` : `color-mix(in oklab, var(${name}) ${alpha * 100}%, transparent)`;
    known.set(key, getComputedStyle(probe).color);
  }
  return known.get(key);
}
