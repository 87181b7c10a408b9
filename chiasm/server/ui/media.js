// Images and videos that go with the next question.

const MAX_BYTES = 48 * 2 ** 20; // as base64 it is a third more, and the server takes bodies of 64 MiB by default

/** What is attached: a list of {kind, url, name, preview}. `url` is what the server gets, `preview` what is shown. */
export class Attachments {
  constructor(list, complain) {
    this.list = list;
    this.complain = complain;
    this.items = [];
  }

  /** Attaches files; those that are neither images nor videos, or too large, are complained of. */
  async addFiles(files) {
    for (const file of files) {
      const kind = file.type.split("/")[0];
      if (kind !== "image" && kind !== "video") this.complain(`${file.name} is neither an image nor a video.`);
      else if (file.size > MAX_BYTES) this.complain(`${file.name} is too large: at most ${MAX_BYTES / 2 ** 20} MiB.`);
      else await this.addFile(kind, file);
    }
  }

  async addFile(kind, file) {
    try {
      const url = await dataUrl(file);
      this.add({ kind, url, name: file.name || `pasted ${kind}`, preview: URL.createObjectURL(file) });
    } catch {
      this.complain(`${file.name} can't be read.`);
    }
  }

  /** Attaches what the server is to fetch; it isn't shown, as that would tell its host of this browser. */
  addUrl(kind, url) {
    this.add({ kind, url, name: url, preview: null });
  }

  add(item) {
    this.items.push(item);
    this.show();
  }

  remove(item) {
    this.items = this.items.filter((other) => other !== item);
    this.show();
  }

  /** All that is attached, which then no longer is. */
  take() {
    const items = this.items;
    this.items = [];
    this.show();
    return items;
  }

  show() {
    this.list.hidden = !this.items.length;
    this.list.replaceChildren(...this.items.map((item) => this.entry(item)));
  }

  entry(item) {
    const entry = document.createElement("li");
    const name = document.createElement("span");
    name.textContent = item.name;
    name.title = item.name;
    const remove = document.createElement("button");
    remove.type = "button";
    remove.textContent = "×";
    remove.setAttribute("aria-label", `Remove ${item.name}`);
    remove.addEventListener("click", () => this.remove(item));
    entry.append(...preview(item, false), name, remove);
    return entry;
  }
}

/** The picture or player of an item, if it can be shown. */
export function preview(item, hasControls) {
  if (!item.preview) return [];
  const node = document.createElement(item.kind === "image" ? "img" : "video");
  node.src = item.preview;
  if (item.kind === "image") node.alt = item.name;
  else {
    node.controls = hasControls;
    node.muted = true;
    node.setAttribute("aria-label", item.name);
  }
  return [node];
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
