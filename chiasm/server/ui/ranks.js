// The ranks' lanes: what each encodes now and lately, from the events of /ranks/events.
//
// Times are seconds of the engine's clock. While nothing happens the lanes stand still, so that the last work stays to
// be looked at; a dotted line says where time was left out.

const IDLE_SECONDS = 1; // without events, after which time is left out
const GAP_SECONDS = 0.3; // that stand for it
const REST_SECONDS = 0.2; // after the last event, in which the lanes still move
const MAX_PLANS = 8;
const OLDEST_SECONDS = 60;
const MAX_BLOCKS = 2000; // of a lane: a page may be left open in the background for long
const MAX_HUES = 500;

/** The panel of the ranks. */
export class Ranks {
  constructor(elements, isOwn) {
    this.elements = elements; // {lanes, plans, noPlans, gauges, status}
    this.isOwn = isOwn; // whether a request's id is that of the question asked last
    this.lanes = [];
    this.windowSeconds = 2;
    this.hues = new Map();
    this.reset();
  }

  reset() {
    this.offset = null; // from the browser's clock to the engine's
    this.leftOut = 0;
    this.last = null; // engine's time of the last event, without what was left out
    this.origin = null; // where the strips begin
    this.open = null; // the step that is being encoded
    this.isIdle = true;
  }

  /** Takes in one event. */
  take(event) {
    const offset = event.time - performance.now() / 1000;
    this.offset = Math.max(this.offset ?? -Infinity, offset); // the event that came fastest says most
    if (event.type === "hello") this.makeLanes(event);
    else if (event.type === "begin") this.begin(event);
    else this.end(event);
    this.wake();
  }

  /** The connection was lost. */
  lost() {
    if (this.open) this.close(this.open.time + 0.01, []);
    this.reset();
  }

  makeLanes({ num_ranks: count, frames_per_unit: framesPerUnit, gauges }) {
    this.reset();
    this.framesPerUnit = framesPerUnit;
    this.lanes = Array.from({ length: count }, (_, rank) => new Lane(rank));
    this.elements.lanes.replaceChildren(...this.lanes.map((lane) => lane.node));
    this.gauges(gauges);
  }

  begin(event) {
    const time = this.at(event.time);
    this.open = { time, event };
    event.lanes.forEach((rows, rank) => this.lanes[rank].begin(time, this.parts(rows, event)));
    this.lanes.forEach((lane) => (lane.now.textContent = lane.describe(event.stages)));
    this.plan(event);
  }

  end(event) {
    const time = this.at(event.time);
    if (this.open && event.encoder_step === this.open.event.step) {
      this.close(time, event.seconds);
      this.plans.took += event.makespan;
      this.tellPlans();
    }
    if (event.compute > 0) this.lanes.forEach((lane) => lane.compute(time - event.compute, time));
    this.gauges(event.gauges);
  }

  close(time, seconds) {
    this.lanes.forEach((lane, rank) => lane.close(Math.min(time, this.open.time + (seconds[rank] ?? time))));
    this.open = null;
  }

  /** An event's time on the lanes. */
  at(time) {
    if (this.last !== null && time - this.leftOut - this.last > IDLE_SECONDS) {
      this.leftOut = time - this.last - GAP_SECONDS;
      this.lanes.forEach((lane) => lane.gap(this.last + GAP_SECONDS / 2));
    }
    const own = time - this.leftOut;
    this.origin ??= own;
    this.last = Math.max(this.last ?? own, own);
    return own;
  }

  /** Where the lanes end now; they stand still a moment after the last event. */
  now() {
    const running = performance.now() / 1000 + this.offset - this.leftOut;
    return this.open ? running : Math.min(running, this.last + REST_SECONDS);
  }

  wake() {
    if (!this.isIdle) return;
    this.isIdle = false;
    const slow = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const next = () => (slow ? setTimeout(step, 500) : requestAnimationFrame(step));
    const step = () => {
      this.draw();
      const running = performance.now() / 1000 + (this.offset ?? 0) - this.leftOut;
      this.isIdle = this.last === null || (!this.open && running > this.last + REST_SECONDS + 0.1);
      if (!this.isIdle) next();
    };
    next();
  }

  draw() {
    if (this.last === null) return;
    const now = this.now();
    this.lanes.forEach((lane) => lane.draw(now, this.origin, this.windowSeconds));
    const own = this.open?.event.units.some(([, name]) => name && this.isOwn(name.request_id));
    const state = this.open ? (own ? "encoding your media" : "encoding") : now < this.last + REST_SECONDS ? "working" : "idle";
    if (this.elements.status.textContent !== state) this.elements.status.textContent = state;
  }

  resize(seconds) {
    this.windowSeconds = seconds;
    this.draw();
  }

  /** What one rank encodes in a step: {label, hue, rows, isCut}. */
  parts(lane, event) {
    return lane.map(([index, start, stop]) => {
      const [numRows, name] = event.units[index];
      const isCut = stop - start < numRows;
      const label = unitLabel(name, this.framesPerUnit, this.isOwn) + (isCut ? `, rows ${start}-${stop} of ${numRows}` : "");
      return { label, hue: this.hue(name), rows: stop - start, isCut };
    });
  }

  /** A colour for each item, far from those of its neighbours; the units of a video differ a little. */
  hue(name) {
    const item = name ? `${name.request_id}/${name.modality}/${name.item}` : "";
    if (this.hues.size > MAX_HUES) this.hues.clear();
    if (!this.hues.has(item)) this.hues.set(item, (212 + 137.5 * this.hues.size) % 360);
    return this.hues.get(item) + 12 * ((name?.unit ?? 0) % 3);
  }

  /** Plans in a row with one reason are an entry together. */
  plan(event) {
    const isNew = event.stages[0] === 0;
    if (this.plans?.reason !== event.reason) this.addPlans(event.reason);
    const plans = this.plans;
    plans.count += isNew || !plans.count;
    plans.units += isNew || !plans.units ? event.units.length : 0;
    plans.predicted += event.predicted;
    this.tellPlans();
  }

  addPlans(reason) {
    this.elements.noPlans.hidden = true;
    const node = make("li", "");
    this.plans = { reason, count: 0, units: 0, predicted: 0, took: 0, node: make("div", "took") };
    node.append(make("div", "", reason), this.plans.node);
    this.elements.plans.prepend(node);
    while (this.elements.plans.children.length > MAX_PLANS) this.elements.plans.lastChild.remove();
  }

  tellPlans() {
    const { count, units, predicted, took, node } = this.plans;
    const words = [`${count} ${count === 1 ? "plan" : "plans"}`, `${units} ${units === 1 ? "unit" : "units"}`];
    words.push(`predicted ${milliseconds(predicted)}`);
    if (took) words.push(`took ${milliseconds(took)}`);
    node.textContent = words.join(", ");
  }

  gauges({ running, waiting, kv_cache: kv, units_encoded: units, cache_hits: hits, cache_queries: queries }) {
    const shown = [
      ["answering", running],
      ["waiting", waiting],
      ["KV cache", `${(100 * kv).toFixed(0)} %`],
      ["units encoded", units],
      ["from cache", queries ? `${hits} of ${queries}` : "0"],
    ];
    this.elements.gauges.replaceChildren(
      ...shown.map(([name, value]) => {
        const pair = document.createElement("div");
        const term = document.createElement("dt");
        const number = document.createElement("dd");
        term.textContent = name;
        number.textContent = value;
        pair.append(term, number);
        return pair;
      }),
    );
  }
}

/** One rank's strip of time. */
class Lane {
  constructor(rank) {
    this.rank = rank;
    this.blocks = []; // {start, end, kind, node}; end is null while it goes on
    this.node = make("div", "lane");
    this.node.dataset.rank = rank;
    const about = make("div", "about");
    this.busy = make("span", "busy");
    about.append(make("span", "", `rank ${rank}`), this.busy);
    this.track = make("div", "track");
    this.track.setAttribute("role", "img");
    this.strip = make("div", "strip");
    this.track.append(this.strip);
    this.now = make("div", "now", "has encoded nothing yet");
    this.node.append(about, this.track, this.now);
  }

  begin(start, parts) {
    this.parts = parts;
    if (!parts.length) return;
    const node = make("div", "block open");
    node.title = parts.map((part) => part.label).join("\n");
    for (const part of parts) {
      const piece = make("i", part.isCut ? "cut" : "");
      piece.style.flexGrow = part.rows;
      piece.style.setProperty("--hue", part.hue);
      node.append(piece);
    }
    this.add({ start, end: null, kind: "encoder", node });
  }

  close(end) {
    for (const block of this.blocks) {
      if (block.end !== null) continue;
      block.end = end;
      block.node.classList.remove("open");
    }
  }

  compute(start, end) {
    const before = this.blocks.findLast((block) => block.kind === "language");
    if (before && start - before.end < 0.02) before.end = end;
    else this.add({ start, end, kind: "language", node: make("div", "block language") });
  }

  gap(time) {
    this.add({ start: time, end: time, kind: "gap", node: make("div", "gap") });
  }

  add(block) {
    this.blocks.push(block);
    this.strip.append(block.node);
    const isOld = ({ end }) => end !== null && (end < block.start - OLDEST_SECONDS || this.blocks.length > MAX_BLOCKS);
    while (isOld(this.blocks[0])) this.blocks.shift().node.remove();
  }

  describe([start, stop, all]) {
    if (!this.parts.length) return "waits for the others";
    const [first, ...others] = this.parts;
    const part = stop - start < all ? `, layers to ${Math.round((100 * stop) / all)} %` : "";
    return first.label + (others.length ? ` and ${others.length} more` : "") + part;
  }

  draw(now, origin, seconds) {
    const scale = this.track.clientWidth / seconds;
    const sums = { encoder: 0, language: 0, gap: 0 };
    for (const block of this.blocks) {
      const stop = block.end ?? now;
      if (block.scale !== scale || block.drawnTo !== stop) place(block, stop, origin, scale);
      sums[block.kind] += Math.max(0, stop - Math.max(block.start, now - seconds));
    }
    this.strip.style.transform = `translateX(${(seconds - (now - origin)) * scale}px)`;
    const span = Math.max(1e-3, Math.min(seconds, now - (this.blocks[0]?.start ?? now)));
    const [encoder, language] = [sums.encoder, sums.language].map((sum) => `${Math.min(100, (100 * sum) / span).toFixed(0)} %`);
    this.busy.textContent = `encoder ${encoder} · language model ${language}`;
    const label = `Rank ${this.rank}: encoder ${encoder}, language model ${language} of the time shown; ${this.now.textContent}`;
    if (this.track.getAttribute("aria-label") !== label) this.track.setAttribute("aria-label", label);
  }
}

/** Puts a block where it belongs on its strip; a strip moves as a whole, so this is seldom done. */
function place(block, stop, origin, scale) {
  block.scale = scale;
  block.drawnTo = stop;
  block.node.style.left = `${(block.start - origin) * scale}px`;
  if (block.kind !== "gap") block.node.style.width = `${(stop - block.start) * scale}px`;
}

function unitLabel(name, framesPerUnit, isOwn) {
  if (!name) return "a unit";
  const { modality, item, unit, num_units: count } = name;
  const whose = isOwn(name.request_id) ? "" : " of another request";
  if (modality === "video") {
    const first = unit * framesPerUnit + 1;
    const frames = framesPerUnit > 1 ? `frames ${first}-${first + framesPerUnit - 1}` : `frame ${first}`;
    return `video ${item + 1}, ${frames} of ${count * framesPerUnit}${whose}`;
  }
  return `image ${item + 1}${count > 1 ? `, tile ${unit + 1} of ${count}` : ""}${whose}`;
}

function milliseconds(seconds) {
  return seconds < 0.01 ? `${(1000 * seconds).toFixed(1)} ms` : `${(1000 * seconds).toFixed(0)} ms`;
}

function make(kind, className, text = "") {
  const node = document.createElement(kind);
  if (className) node.className = className;
  node.textContent = text;
  return node;
}
