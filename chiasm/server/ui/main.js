// The page: ties its parts together, and the keyboard, the clipboard and what is dropped to them.

import { Chat, describe } from "/ui/chat.js";
import { AnswerView, showQuestion } from "/ui/conversation.js";
import { events, problem } from "/ui/events.js";
import { Attachments } from "/ui/media.js";
import { Ranks } from "/ui/ranks.js";

const RETRY_SECONDS = 3;
const KEY = "chiasm-api-key";

const $ = (id) => document.getElementById(id);
const attachments = new Attachments($("attached"), complain);
const chat = new Chat(headers);
let requestId = "";
const ranks = new Ranks(
  { lanes: $("lanes"), plans: $("plans"), noPlans: $("no-plans"), gauges: $("gauges"), status: $("feed") },
  (id) => requestId !== "" && id === requestId,
);

function headers() {
  const key = $("key").value;
  return key ? { authorization: `Bearer ${key}` } : {};
}

function complain(text) {
  $("alert").textContent = text;
  $("alert").hidden = !text;
}

function settings() {
  const chosen = {};
  if ($("max-tokens").value) chosen.max_tokens = Number($("max-tokens").value);
  if ($("temperature").value) chosen.temperature = Number($("temperature").value);
  return chosen;
}

async function ask() {
  const text = $("question").value.trim();
  if (chat.isBusy || (!text && !attachments.items.length)) return;
  complain("");
  const media = attachments.take();
  $("question").value = "";
  $("empty").hidden = true;
  showQuestion($("turns"), text, media);
  const view = new AnswerView($("turns"));
  requestId = `page-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
  showBusy(true);
  const trouble = await chat.ask({ text, media, settings: settings(), requestId }, (news) => {
    view.add(news);
    view.tell(describe(news));
  });
  view.end(trouble);
  if (!chat.isBusy) showBusy(false); // else a new conversation has begun meanwhile
}

function showBusy(isBusy) {
  const hadFocus = [$("send"), $("stop")].includes(document.activeElement);
  $("send").hidden = isBusy;
  $("stop").hidden = !isBusy;
  if (hadFocus) $("question").focus();
}

function startAnew() {
  chat.forget();
  showBusy(false);
  for (const turn of document.querySelectorAll(".turn")) turn.remove();
  $("empty").hidden = false;
  complain("");
  $("question").focus();
}

async function showModel() {
  const response = await fetch("/v1/models", { headers: headers() });
  if (response.status === 401) {
    complain("This server wants an API key; it is entered under Settings.");
    $("settings").open = true;
    $("key").focus();
    return;
  }
  complain(response.ok ? "" : await problem(response));
  if (response.ok) $("model").textContent = (await response.json()).data[0].id;
}

async function followRanks() {
  for (;;) {
    try {
      const response = await fetch("/ranks/events", { headers: headers() });
      if (!response.ok) throw new Error(await problem(response));
      $("feed").classList.remove("off");
      $("feed").textContent = "idle";
      for await (const event of events(response)) {
        if (event.type) ranks.take(event);
      }
      throw new Error("The server ended the connection.");
    } catch (error) {
      ranks.lost();
      $("feed").classList.add("off");
      $("feed").textContent = `not connected: ${error.message}`;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_SECONDS * 1000));
  }
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
$("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
});
$("stop").addEventListener("click", () => chat.stop());
$("new").addEventListener("click", startAnew);
document.addEventListener("keydown", (event) => {
  const open = document.querySelector(".tools details[open]");
  if (event.key === "Escape" && open) {
    open.open = false;
    open.querySelector("summary").focus();
  } else if (event.key === "Escape") chat.stop();
  else if (event.altKey && event.key.toLowerCase() === "n") startAnew();
});
for (const own of document.querySelectorAll(".tools details")) {
  own.addEventListener("toggle", () => {
    if (!own.open) return;
    for (const other of document.querySelectorAll(".tools details")) if (other !== own) other.open = false;
  });
}

$("attach").addEventListener("click", () => $("files").click());
$("files").addEventListener("change", async () => {
  await attachments.addFiles([...$("files").files]);
  $("files").value = "";
  $("question").focus();
});
function addUrl() {
  const url = $("url").value.trim();
  if (!/^https?:\/\//i.test(url)) return complain("An address begins with http:// or https://.");
  complain("");
  attachments.addUrl($("url-kind").value, url);
  $("url").value = "";
  $("by-url").open = false;
  return $("question").focus();
}
$("add-url").addEventListener("click", addUrl);
$("url").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  addUrl();
});
document.addEventListener("paste", (event) => {
  if (!event.clipboardData.files.length) return;
  event.preventDefault();
  attachments.addFiles([...event.clipboardData.files]);
});

const holdsFiles = (event) => event.dataTransfer.types.includes("Files");
document.addEventListener("dragover", (event) => {
  if (!holdsFiles(event)) return;
  event.preventDefault();
  $("drop").hidden = false;
});
document.addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) $("drop").hidden = true;
});
document.addEventListener("drop", (event) => {
  $("drop").hidden = true;
  if (!holdsFiles(event)) return;
  event.preventDefault();
  attachments.addFiles([...event.dataTransfer.files]);
});

$("window").addEventListener("change", () => ranks.resize(Number($("window").value)));
window.addEventListener("resize", () => ranks.draw());
$("key").value = sessionStorage.getItem(KEY) ?? "";
$("key").addEventListener("change", () => {
  sessionStorage.setItem(KEY, $("key").value);
  showModel();
});
showModel().catch(() => complain("The server can't be reached."));
followRanks();
