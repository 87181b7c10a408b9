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

  /** Forgets all turns. */
  forget() {
    this.stop();
    this.messages = [];
  }

  /** Ends the answer under way; the server then ends its work on it. */
  stop() {
    this.stopping?.abort();
  }

  /**
   * Asks, and keeps the turn if there was an answer.
   *
   * @param question {text, media, settings, requestId}
   * @param onNews called with {text} and {usage, firstToken, seconds} as they come
   * @returns what went wrong, or null
   */
  async ask(question, onNews) {
    const message = { role: "user", content: content(question) };
    const messages = [...this.messages, message];
    const stopping = (this.stopping = new AbortController());
    let answer = "";
    let trouble = null;
    try {
      trouble = await this.stream(messages, question, stopping.signal, (news) => {
        answer += news.text ?? "";
        onNews(news);
      });
    } catch (error) {
      trouble = stopping.signal.aborted ? "Stopped." : `The server can't be reached: ${error.message}.`;
    }
    if (this.stopping === stopping) this.stopping = null;
    if (answer) this.messages = [...messages, { role: "assistant", content: answer }];
    return trouble;
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
      const text = event.choices?.[0]?.delta?.content ?? "";
      const seconds = (performance.now() - start) / 1000;
      if (event.usage?.completion_tokens || text) firstToken ??= seconds;
      onNews({ text, usage: event.usage, firstToken, seconds });
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

function content({ text, media }) {
  const parts = media.map(({ kind, url }) => ({ type: `${kind}_url`, [`${kind}_url`]: { url } }));
  if (text) parts.push({ type: "text", text });
  return parts;
}
