// Data that keeps itself fresh: asked again every few seconds with its ETag, so that nothing is drawn anew without need.
import { useCallback, useEffect, useState } from "./html.js";
import { apiUrl, read } from "./api.js";

const EVERY = 5000;
const KEPT = 60;
const cache = new Map();
const listeners = new Set();
let running = true;

export const isLive = () => running;

export function setLive(on) {
  running = on;
  for (const listener of listeners) listener();
}

// Draws the component again when the switch is thrown.
export function useLiveSwitch() {
  const [, draw] = useState(0);
  useEffect(() => {
    const listener = () => draw((n) => n + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return running;
}

function remember(path, entry) {
  cache.delete(path);
  cache.set(path, entry);
  if (cache.size > KEPT) cache.delete(cache.keys().next().value);
}

// { data, error, at, loading, refresh }: what was last heard stays while an error is shown beside it.
export function useLive(path, { every = EVERY } = {}) {
  const [state, setState] = useState(() => ({ path, ...(cache.get(path) ?? {}), error: null }));
  const [asked, ask] = useState(0);

  useEffect(() => {
    if (!path) return undefined;
    let gone = false;
    let timer = 0;
    let pause = every;
    setState({ path, ...(cache.get(path) ?? {}), error: null });

    async function look() {
      clearTimeout(timer);
      const known = cache.get(path);
      try {
        const heard = await read(apiUrl(path), { known: known?.tag });
        pause = every;
        const entry = heard ? { data: heard.data, tag: heard.tag, at: Date.now() } : { ...known, at: Date.now() };
        remember(path, entry);
        if (gone) return;
        if (heard) setState({ path, ...entry, error: null });
        else setState((before) => (before.error ? { path, ...entry, error: null } : before));
      } catch (error) {
        if (gone) return;
        pause = error.wait ? error.wait * 1000 : Math.min(pause * 2, 40000);
        setState((before) => (before.error?.message === error.message ? before : { ...before, path, error }));
      }
      plan();
    }

    function plan() {
      if (gone || !every || !running || document.hidden) return;
      timer = setTimeout(look, pause);
    }

    function wake() {
      if (document.hidden || !running) clearTimeout(timer);
      else look();
    }

    look();
    document.addEventListener("visibilitychange", wake);
    listeners.add(wake);
    return () => {
      gone = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", wake);
      listeners.delete(wake);
    };
  }, [path, every, asked]);

  const refresh = useCallback(() => ask((n) => n + 1), []);
  // Between a new path and its effect the old path's data must not show.
  const mine = state.path === path ? state : { ...(cache.get(path) ?? {}), error: null };
  return { data: mine.data, error: mine.error, at: mine.at, loading: !mine.data && !mine.error, refresh };
}

// The time by the server's clock, moving on by itself.
export function useNow(said, every = 1000) {
  const [, draw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && running && draw((n) => n + 1), every);
    return () => clearInterval(timer);
  }, [every]);
  const [offset, setOffset] = useState(0);
  useEffect(() => {
    if (said) setOffset(said - Date.now());
  }, [said]);
  return Date.now() + offset;
}
