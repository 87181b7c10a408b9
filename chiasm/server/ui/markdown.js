// Markdown as nodes. Every piece of text becomes a text node or an attribute that was checked: what a model writes can
// never be markup. Knows paragraphs, headings, lists, quotes, tables, rules, code, emphasis and links.

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}>\s?(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const MAX_DEPTH = 8; // of quotes, lists and emphasis in one another

/** A fragment with the nodes of a text, which may still grow: an open fence runs to the end. */
export function render(text) {
  const fragment = document.createDocumentFragment();
  blocks(text.replaceAll("\r\n", "\n").split("\n"), fragment, 0);
  return fragment;
}

function blocks(lines, parent, depth) {
  for (let at = 0; at < lines.length; ) at = block(lines, at, parent, depth);
}

/** Adds the block that begins at a line; returns the line behind it. */
function block(lines, at, parent, depth) {
  const line = lines[at];
  if (!line.trim()) return at + 1;
  const fence = FENCE.exec(line);
  if (fence) return code(lines, at, fence, parent);
  const heading = HEADING.exec(line);
  if (heading) {
    inline(heading[2], add(parent, `h${heading[1].length}`), depth);
    return at + 1;
  }
  if (RULE.test(line)) {
    add(parent, "hr");
    return at + 1;
  }
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quote(lines, at, parent, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return list(lines, at, parent, depth);
  if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "")) return table(lines, at, parent, depth);
  return paragraph(lines, at, parent, depth);
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
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some((form) => form.test(line));
}

function code(lines, at, fence, parent) {
  const own = [];
  for (at += 1; at < lines.length; at += 1) {
    const trimmed = lines[at].trim();
    if (trimmed.startsWith(fence[1]) && !trimmed.replaceAll(fence[1][0], "")) {
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
    const own = [];
    at += 1;
    while (at < lines.length && belongs(lines, at, indent)) own.push(lines[at++]);
    const item = add(node, "li");
    inline(match[3], item, depth + 1);
    blocks(outdent(own), item, depth + 1);
  }
  return at;
}

/** Whether a line goes on with an item: deeper than its mark, or empty before one that is. */
function belongs(lines, at, indent) {
  let next = at;
  while (next < lines.length && !lines[next].trim()) next += 1;
  return next < lines.length && lines[next].search(/\S/) > indent;
}

function outdent(lines) {
  const depths = lines.filter((line) => line.trim()).map((line) => line.search(/\S/));
  const least = depths.length ? Math.min(...depths) : 0;
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
  const cells = line.trim().replace(/^\||\|$/g, "").split("|");
  for (const cell of cells) inline(cell.trim(), add(parent, kind), depth);
}

const SPANS = [
  { form: /^(`+)([^`]|[^`].*?[^`])\1(?!`)/, add: (match, parent) => (add(parent, "code").textContent = match[2].replace(/^ (.+) $/, "$1")) },
  { form: /^\*\*(?=\S)(.+?\S|\S)\*\*/, add: (match, parent, depth) => inline(match[1], add(parent, "strong"), depth) },
  { form: /^\*(?=[^\s*])(.*?[^\s*])\*(?!\*)/, add: (match, parent, depth) => inline(match[1], add(parent, "em"), depth) },
  { form: /^~~(?=\S)(.+?)~~/, add: (match, parent, depth) => inline(match[1], add(parent, "del"), depth) },
  { form: /^\[([^\]\n]{1,1000})\]\(([^()\s]{1,2000})\)/, add: (match, parent, depth) => link(match[2], match[1], parent, depth) },
  { form: /^https?:\/\/[^\s<>"'`)\]]+/, add: (match, parent, depth) => link(match[0], null, parent, depth) },
  { form: /^\\([\\`*_~[\]()#+\-.!|>{}])/, add: (match, parent) => parent.append(match[1]) },
];
const MARK = /[`*~[\\]|https?:/;

/** Adds the spans of a line. */
function inline(text, parent, depth) {
  if (depth > MAX_DEPTH) {
    parent.append(text);
    return;
  }
  const marks = new RegExp(MARK, "g");
  let from = 0;
  for (let mark; (mark = marks.exec(text)); ) {
    const rest = text.slice(mark.index);
    const span = SPANS.find(({ form }) => form.test(rest));
    if (!span) continue;
    if (mark.index > from) parent.append(text.slice(from, mark.index));
    const match = span.form.exec(rest);
    span.add(match, parent, depth + 1);
    from = mark.index + match[0].length;
    marks.lastIndex = from;
  }
  if (from < text.length) parent.append(text.slice(from));
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
