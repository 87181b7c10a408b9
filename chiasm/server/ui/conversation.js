// The turns as they are shown.

import { GrowingText } from "/ui/markdown.js";
import { preview } from "/ui/media.js";

const REST = 3; // between drawings, as a multiple of the time that the last one took

/** Shows a question; returns nothing. */
export function showQuestion(turns, text, media) {
  const { turn, body } = makeTurn(turns, "user", "You asked");
  const gallery = document.createElement("div");
  gallery.className = "media";
  gallery.append(...media.flatMap((item) => (item.preview ? preview(item, true) : [note(`${item.kind}: ${item.name}`)])));
  if (media.length) body.append(gallery);
  const words = document.createElement("p");
  words.textContent = text;
  if (text) body.append(words);
  turn.scrollIntoView({ block: "end" });
}

/** An answer that grows. */
export class AnswerView {
  constructor(turns) {
    const { turn, body } = makeTurn(turns, "assistant", "The model answered");
    this.turn = turn;
    this.body = body;
    this.body.classList.add("answer");
    this.shown = new GrowingText(this.body);
    this.meta = note("");
    this.meta.classList.add("meta");
    this.turn.append(this.meta);
    this.turn.classList.add("waiting");
    this.turn.setAttribute("aria-busy", "true");
    this.text = "";
    this.isDue = false;
    this.drawingTime = 0; // in ms, layout included where the end is followed
    this.turn.scrollIntoView({ block: "end" });
  }

  /** Adds text; it is drawn once a frame at most, and less often where that takes long. */
  add({ text }) {
    this.text += text;
    if (this.isDue) return;
    this.isDue = true;
    setTimeout(() => requestAnimationFrame(() => this.draw()), REST * this.drawingTime);
  }

  draw() {
    this.isDue = false;
    const start = performance.now();
    const isFollowed = this.turn.getBoundingClientRect().bottom < window.innerHeight + 40; // else its reader is elsewhere
    this.shown.show(this.text);
    if (isFollowed) this.turn.scrollIntoView({ block: "end" });
    this.drawingTime = performance.now() - start;
  }

  /** The line below: counts and times. */
  tell(line) {
    this.meta.textContent = line;
  }

  /** Ends the answer, with what went wrong if something did. */
  end(problem) {
    this.draw();
    this.turn.classList.remove("waiting");
    this.turn.removeAttribute("aria-busy");
    if (problem) {
      const line = note(problem);
      line.classList.add("error");
      this.turn.append(line);
    }
    this.turn.scrollIntoView({ block: "end" });
  }
}

function makeTurn(turns, kind, label) {
  const turn = document.createElement("article");
  turn.className = `turn ${kind}`;
  turn.setAttribute("aria-label", label);
  const body = document.createElement("div");
  body.className = "body";
  turn.append(body);
  turns.append(turn);
  return { turn, body };
}

function note(text) {
  const node = document.createElement("p");
  node.className = "quiet";
  node.textContent = text;
  return node;
}
