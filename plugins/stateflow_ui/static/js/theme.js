// Light or dark, before the first paint: what the address says, then Airflow's own choice, then the system's.
// A classic script on purpose: a module would run after the page has been painted once.
(() => {
  const root = document.documentElement;
  const asked = new URLSearchParams(location.search).get("theme");

  function around() {
    try {
      return parent !== window ? parent.document.documentElement : null;
    } catch {
      return null;
    }
  }

  function ofAirflow() {
    const frame = around();
    for (const name of ["dark", "light"]) if (frame?.classList.contains(name)) return name;
    try {
      return localStorage.getItem("theme");
    } catch {
      return null;
    }
  }

  function settle() {
    const wanted = [asked, ofAirflow()].find((name) => name === "light" || name === "dark");
    const before = root.dataset.theme;
    if (wanted) root.dataset.theme = wanted;
    else delete root.dataset.theme;
    if (before !== root.dataset.theme) window.dispatchEvent(new Event("theme"));
  }

  settle();
  addEventListener("storage", settle);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    settle();
    window.dispatchEvent(new Event("theme"));
  });
  const frame = around();
  if (frame) {
    root.dataset.framed = "";
    new MutationObserver(settle).observe(frame, { attributeFilter: ["class"] });
  }
})();
