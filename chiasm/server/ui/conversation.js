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
  const follow = () => turns.lastElementChild?.scrollIntoView({ block: "end" });
  for (const loaded of ["load", "loadedmetadata"]) gallery.addEventListener(loaded, follow, true); // they grow by it
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
    this.thoughts = null;
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

  /** Adds text and reasoning; they are drawn once a frame at most, and less often where that takes long. */
  add({ text, reasoning }) {
    this.text += text;
    if (reasoning) this.thoughts ??= new Thoughts(this.body);
    this.thoughts?.add(reasoning);
    if (this.isDue) return;
    this.isDue = true;
    setTimeout(() => requestAnimationFrame(() => this.draw()), REST * this.drawingTime);
  }

  draw() {
    this.isDue = false;
    const start = performance.now();
    const isFollowed = this.turn.getBoundingClientRect().bottom < window.innerHeight + 40; // else its reader is elsewhere
    this.shown.show(this.text);
    this.thoughts?.draw(this.text !== "");
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

/** What the model thought, above its answer: open until that begins, then folded, unless its reader has chosen. */
class Thoughts {
  constructor(answer) {
    this.fold = document.createElement("details");
    this.fold.className = "thoughts";
    this.fold.open = true;
    const summary = document.createElement("summary");
    summary.textContent = "Reasoning";
    summary.addEventListener("click", () => (this.isChosen = true));
    this.isChosen = false;
    this.text = document.createTextNode("");
    this.news = "";
    const words = document.createElement("div");
    words.append(this.text);
    this.fold.append(summary, words);
    answer.before(this.fold);
  }

  add(text) {
    this.news += text;
  }

  draw(isOver) {
    if (this.news) this.text.appendData(this.news);
    this.news = "";
    if (isOver && !this.isChosen) this.fold.open = false;
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
