// Asking: the conversation as the API takes it, and one answer at a time.

import { events, problem } from "/ui/events.js";

/** A conversation with the server. */
export class Chat {
  constructor(headers) {
    this.headers = headers; // makes the headers of a request
    this.messages = [];
    this.stopping = null;
  }

  get isBusy() {
    return this.stopping !== null;
  }

  /** Forgets all turns, and the one under way, whatever still comes of it. */
  forget() {
    this.stop();
    this.stopping = null;
    this.messages = [];
  }

  /** Ends the answer under way; the server then ends its work on it. */
  stop() {
    this.stopping?.abort();
  }

  /**
   * Asks, and keeps the turn if there was an answer, or a beginning of one, and the conversation was not forgotten.
   *
   * @param question {text, media, settings, requestId}
   * @param onNews called with {text, reasoning, usage, firstToken, seconds} as they come
   * @returns what went wrong, or null
   */
  async ask(question, onNews) {
    const message = { role: "user", content: content(question) };
    const messages = [...this.messages, message];
    const stopping = (this.stopping = new AbortController());
    const answer = { content: "", reasoning: "", finish: null };
    let trouble = null;
    try {
      trouble = await this.stream(messages, question, stopping.signal, (news) => {
        answer.content += news.text;
        answer.reasoning += news.reasoning;
        answer.finish = news.finish ?? answer.finish;
        onNews(news);
      });
    } catch (error) {
      trouble = stopping.signal.aborted ? "Stopped." : `The server can't be reached: ${error.message}.`;
    }
    if (this.stopping !== stopping) return trouble; // forgotten: what is asked next belongs to another conversation
    this.stopping = null;
    if (answer.content || answer.reasoning) this.messages = [...messages, turn(answer)];
    return trouble ?? lack(answer);
  }

  async stream(messages, { settings, requestId }, signal, onNews) {
    const start = performance.now();
    const body = { messages, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true }, ...settings };
    const headers = { "content-type": "application/json", "x-request-id": requestId, ...this.headers() };
    const response = await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
    if (!response.ok) return problem(response);
    let firstToken = null;
    for await (const event of events(response)) {
      if (event.error) return event.error.message;
      const { delta, finish_reason: finish } = event.choices?.[0] ?? {};
      const { content: text, reasoning } = { ...delta };
      const seconds = (performance.now() - start) / 1000;
      if (event.usage?.completion_tokens || text || reasoning) firstToken ??= seconds;
      onNews({ text: text ?? "", reasoning: reasoning ?? "", finish, usage: event.usage, firstToken, seconds });
    }
    return null;
  }
}

/** A line of counts and times for an answer. */
export function describe({ usage, firstToken, seconds }) {
  const parts = [];
  if (firstToken !== null) parts.push(`first token after ${firstToken.toFixed(firstToken < 10 ? 2 : 1)} s`);
  if (usage) {
    const details = usage.prompt_tokens_details ?? {};
    const { image = 0, video = 0 } = details.multimodal_tokens ?? {};
    const of = [image && `${image} of images`, video && `${video} of videos`, details.cached_tokens && `${details.cached_tokens} cached`];
    const inner = of.filter(Boolean).join(", ");
    parts.push(`${usage.prompt_tokens} prompt tokens${inner ? ` (${inner})` : ""}`);
    parts.push(`${usage.completion_tokens} generated`);
    const decoding = seconds - firstToken;
    if (usage.completion_tokens > 1 && decoding > 0) {
      parts.push(`${((usage.completion_tokens - 1) / decoding).toFixed(1)} tokens/s`);
    }
  }
  return parts.join(" · ");
}

/** An answer as later requests tell it; the template decides how much of the reasoning the model sees again. */
function turn({ content, reasoning }) {
  return { role: "assistant", content, ...(reasoning && { reasoning }) };
}

/** What to say of an answer in which nothing is said, or null. */
function lack({ content, reasoning, finish }) {
  if (content || !reasoning) return null;
  if (finish !== "length") return "The model ended after its reasoning, without an answer.";
  return "The model was still reasoning at the longest answer allowed; Settings can allow a longer one.";
}

function content({ text, media }) {
  const parts = media.map(({ kind, url }) => ({ type: `${kind}_url`, [`${kind}_url`]: { url } }));
  if (text) parts.push({ type: "text", text });
  return parts;
}
