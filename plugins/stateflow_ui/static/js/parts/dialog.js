// A dialog drawn in the page: the frame's sandbox has no alert and no confirm. The element brings what is hard to get
// right by hand: the page behind is inert, Tab stays inside, Escape closes, the focus returns to where it came from.
import { html, useEffect, useId, useRef } from "../html.js";
import { Icon } from "./icons.js";

export function Dialog({ title, onClose, children }) {
  const element = useRef(null);
  const name = useId();
  useEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    element.current.querySelector("[data-first]")?.focus();
    return () => before?.isConnected && before.focus();
  }, []);
  const outside = (event) => event.target === element.current && onClose();
  return html`<dialog ref=${element} aria-labelledby=${name} onClose=${onClose} onMouseDown=${outside}>
    <div class="sheet">
      <header>
        <h2 id=${name}>${title}</h2>
        <button type="button" class="icon" aria-label="Close" onClick=${onClose}><${Icon} name="close" /></button>
      </header>
      ${children}
    </div>
  </dialog>`;
}
