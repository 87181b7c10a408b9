// Markdown as nodes. Every piece of text becomes a text node or an attribute that was checked: what a model writes can
// never be markup. Knows paragraphs, headings, lists, quotes, tables, rules, code, emphasis and links.
// A model may write anything, over and over: no form here reads a stretch of text twice, and no search begins anew at
// every mark, so that the time grows with the length only.

const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/s;
const HEADING = /^ {0,3}(#{1,6})\s(.*)$/s;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s(.*)$/s;
const QUOTE = /^ {0,3}>\s?(.*)$/s;
const TABLE_RULE = /^:?-+:?$/; // of one column
const MAX_DEPTH = 8; // of quotes, lists and emphasis in one another
const MAX_LINK_TEXT = 1000;

/** The nodes of a text that grows at its end. An open fence runs to the end. */
export class GrowingText {
  /** @param parent gets a node for each block, and may hold no others */
  constructor(parent) {
    this.parent = parent;
    this.settledLength = 0; // what follows can't change the blocks up to here
    this.numSettled = 0;
  }

  /** Shows a text that begins with the one shown before; only blocks that may have changed are made anew. */
  show(text) {
    const own = text.slice(this.settledLength).split("\n");
    const lines = own.map((line) => (line.endsWith("\r") ? line.slice(0, -1) : line));
    const fragment = document.createDocumentFragment();
    const starts = blocks(lines, fragment, 0);
    while (this.parent.childNodes.length > this.numSettled) this.parent.lastChild.remove();
    this.parent.append(fragment);
    // A block has ended for good when the next one's first line is whole: until then that line may turn into its own.
    const last = starts.findLastIndex((at) => at < lines.length - 1);
    if (last <= 0) return;
    this.numSettled += last;
    for (const line of own.slice(0, starts[last])) this.settledLength += line.length + 1;
  }
}

/** Adds one node for each block; returns the lines where they begin. */
function blocks(lines, parent, depth) {
  const starts = [];
  for (let at = 0; at < lines.length; ) {
    if (!lines[at].trim()) at += 1;
    else {
      starts.push(at);
      at = block(lines, at, parent, depth);
    }
  }
  return starts;
}

/** Adds the block that begins at a line; returns the line behind it. */
function block(lines, at, parent, depth) {
  const line = lines[at];
  const fence = fenceOf(line);
  if (fence) return code(lines, at, fence, parent);
  const heading = HEADING.exec(line);
  if (heading) {
    inline(unclosed(heading[2].trim()), add(parent, `h${heading[1].length}`), depth);
    return at + 1;
  }
  if (RULE.test(line)) {
    add(parent, "hr");
    return at + 1;
  }
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quote(lines, at, parent, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return list(lines, at, parent, depth);
  if (line.includes("|") && isTableRule(lines[at + 1] ?? "")) return table(lines, at, parent, depth);
  return paragraph(lines, at, parent, depth);
}

/** The marks of a fence that a line opens, or null. */
function fenceOf(line) {
  const match = FENCE.exec(line);
  return match && (match[1][0] === "~" || !match[2].includes("`")) ? match[1] : null;
}

/** A heading without the marks that may end it: `# Title #`. */
function unclosed(title) {
  let end = title.length;
  while (title[end - 1] === "#") end -= 1;
  return end === 0 || !title[end - 1].trim() ? title.slice(0, end).trimEnd() : title;
}

function isTableRule(line) {
  return cellsOf(line).every((cell) => TABLE_RULE.test(cell));
}

function paragraph(lines, at, parent, depth) {
  const own = [lines[at++]];
  while (at < lines.length && lines[at].trim() && !begins(lines[at])) own.push(lines[at++]);
  const node = add(parent, "p");
  own.forEach((line, index) => {
    if (index) add(node, "br");
    inline(line.trim(), node, depth);
  });
  return at;
}

function begins(line) {
  return fenceOf(line) !== null || [HEADING, RULE, QUOTE, ITEM].some((form) => form.test(line));
}

function code(lines, at, fence, parent) {
  const own = [];
  for (at += 1; at < lines.length; at += 1) {
    const trimmed = lines[at].trim();
    if (trimmed.startsWith(fence) && !trimmed.replaceAll(fence[0], "")) {
      at += 1;
      break;
    }
    own.push(lines[at]);
  }
  add(add(parent, "pre"), "code").textContent = own.join("\n");
  return at;
}

function quote(lines, at, parent, depth) {
  const own = [];
  for (let match; at < lines.length && (match = QUOTE.exec(lines[at])); at += 1) own.push(match[1]);
  blocks(own, add(parent, "blockquote"), depth + 1);
  return at;
}

function list(lines, at, parent, depth) {
  const first = ITEM.exec(lines[at]);
  const indent = first[1].length;
  const isOrdered = /\d/.test(first[2]);
  const node = add(parent, isOrdered ? "ol" : "ul");
  if (isOrdered) node.start = parseInt(first[2], 10);
  while (at < lines.length) {
    const match = ITEM.exec(lines[at]);
    if (!match || match[1].length !== indent || /\d/.test(match[2]) !== isOrdered) break;
    const end = endOfItem(lines, at + 1, indent);
    const item = add(node, "li");
    inline(match[3].trim(), item, depth + 1);
    blocks(outdent(lines.slice(at + 1, end)), item, depth + 1);
    at = end;
  }
  return at;
}

/** The line behind an item: it goes on with lines deeper than its mark, and with empty ones before such lines. */
function endOfItem(lines, at, indent) {
  let end = at;
  for (let next = at; next < lines.length; next += 1) {
    if (!lines[next].trim()) continue;
    if (lines[next].search(/\S/) <= indent) break;
    end = next + 1;
  }
  return end;
}

function outdent(lines) {
  const least = lines.reduce((depth, line) => (line.trim() ? Math.min(depth, line.search(/\S/)) : depth), Infinity);
  return lines.map((line) => line.slice(least));
}

function table(lines, at, parent, depth) {
  const node = add(parent, "table");
  row(lines[at], add(add(node, "thead"), "tr"), "th", depth);
  const body = add(node, "tbody");
  for (at += 2; at < lines.length && lines[at].includes("|"); at += 1) row(lines[at], add(body, "tr"), "td", depth);
  return at;
}

function row(line, parent, kind, depth) {
  for (const cell of cellsOf(line)) inline(cell, add(parent, kind), depth);
}

function cellsOf(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

const MARK = /`+|[*~[\\]|https?:\/\//g;
const ESCAPE = /\\[\\`*~_[\]()#+\-.!|>{}]/y;
const ADDRESS = /https?:\/\/[^\s<>"'`)\]]+/y;

/** Adds the spans of a line. */
function inline(text, parent, depth) {
  if (depth > MAX_DEPTH || text.search(MARK) < 0) {
    if (text) parent.append(text);
    return;
  }
  const spans = new Spans(text);
  const marks = new RegExp(MARK);
  let from = 0;
  for (let mark; (mark = marks.exec(text)); ) {
    const span = spans.at(mark.index, mark[0]);
    if (!span) continue;
    if (mark.index > from) parent.append(text.slice(from, mark.index));
    span.add(parent, depth + 1);
    from = marks.lastIndex = span.end;
  }
  if (from < text.length) parent.append(text.slice(from));
}

/** The spans of a line, asked for from left to right. */
class Spans {
  constructor(text) {
    this.text = text;
    this.strongEnd = finder(text, /\S\*\*/g);
    this.emphasisEnd = finder(text, /[^\s*]\*(?!\*)/g);
    this.deletedEnd = finder(text, /~~/g);
    this.labelEnd = finder(text, /\]/g);
    this.addressEnd = finder(text, /[()\s]/g);
    this.ticks = null; // the places of runs of backticks, latest first, by length
  }

  /** What begins at a mark: {end, add(parent, depth)}, or null. */
  at(at, mark) {
    if (mark[0] === "`") return this.code(at, mark.length);
    if (mark === "*") return this.strong(at) ?? this.emphasis(at);
    if (mark === "~") return this.deleted(at);
    if (mark === "[") return this.link(at);
    if (mark === "\\") return this.match(ESCAPE, at, (own, parent) => parent.append(own[1]));
    return this.match(ADDRESS, at, (own, parent, depth) => link(own, null, parent, depth));
  }

  match(form, at, addOwn) {
    form.lastIndex = at;
    const own = form.exec(this.text)?.[0];
    return own ? { end: at + own.length, add: (parent, depth) => addOwn(own, parent, depth) } : null;
  }

  /** An element around what stands between two places. */
  element(kind, start, stop, end) {
    const own = this.text.slice(start, stop);
    return { end, add: (parent, depth) => inline(own, add(parent, kind), depth) };
  }

  strong(at) {
    if (this.text[at + 1] !== "*" || !/\S/.test(this.text[at + 2] ?? "")) return null;
    const stop = this.strongEnd(at + 2) + 1;
    return stop < this.text.length ? this.element("strong", at + 2, stop, stop + 2) : null;
  }

  emphasis(at) {
    if (!/[^\s*]/.test(this.text[at + 1] ?? "")) return null;
    const stop = this.emphasisEnd(at + 1) + 1;
    return stop < this.text.length ? this.element("em", at + 1, stop, stop + 1) : null;
  }

  deleted(at) {
    if (this.text[at + 1] !== "~" || !/\S/.test(this.text[at + 2] ?? "")) return null;
    const stop = this.deletedEnd(at + 3);
    return stop < this.text.length ? this.element("del", at + 2, stop, stop + 2) : null;
  }

  code(at, length) {
    this.ticks ??= runs(this.text);
    const places = this.ticks.get(length) ?? []; // none of a run of which a part was escaped
    while (places.length && places.at(-1) <= at) places.pop();
    if (!places.length) return null;
    const own = this.text.slice(at + length, places.at(-1));
    const isPadded = own.startsWith(" ") && own.endsWith(" ") && own.trim();
    const end = places.at(-1) + length;
    return { end, add: (parent) => (add(parent, "code").textContent = isPadded ? own.slice(1, -1) : own) };
  }

  link(at) {
    const { text } = this;
    const stop = this.labelEnd(at + 1);
    if (text[stop + 1] !== "(" || stop === at + 1 || stop - at > MAX_LINK_TEXT) return null;
    const end = this.addressEnd(stop + 2);
    if (text[end] !== ")" || end === stop + 2) return null;
    const address = text.slice(stop + 2, end);
    return { end: end + 1, add: (parent, depth) => link(address, text.slice(at + 1, stop), parent, depth) };
  }
}

/**
 * Where a form is next found, from a place on; Infinity if nowhere.
 *
 * Asked for places that rise, it reads the text once, as long as the form has no repetition.
 */
function finder(text, form) {
  let found = -1;
  return (from) => {
    if (found >= from) return found;
    form.lastIndex = from;
    found = form.exec(text)?.index ?? Infinity;
    return found;
  };
}

function runs(text) {
  const places = new Map();
  for (const { 0: { length }, index } of [...text.matchAll(/`+/g)].reverse()) {
    if (!places.has(length)) places.set(length, []);
    places.get(length).push(index);
  }
  return places;
}

/** A link if it leads to the web, else just its text. */
function link(address, text, parent, depth) {
  let url = null;
  try {
    url = new URL(address);
  } catch {
    // not an absolute address
  }
  if (!url || !["http:", "https:", "mailto:"].includes(url.protocol)) {
    parent.append(text ?? address);
    return;
  }
  const node = add(parent, "a");
  node.href = url.href;
  node.rel = "noopener noreferrer nofollow";
  node.target = "_blank";
  if (text === null) node.textContent = address;
  else inline(text, node, MAX_DEPTH + 1); // a link holds no other
}

function add(parent, kind) {
  return parent.appendChild(document.createElement(kind));
}
