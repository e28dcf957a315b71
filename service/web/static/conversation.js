// A conversation: its turns, how they are shown, asked, edited and asked again.

import { events } from "./api.js";
import { $, announce, button, make, showError } from "./dom.js";
import * as history from "./history.js";
import { contentPart, imagesOf, thumbnail } from "./images.js";
import { rendered } from "./markdown.js";
import { openPicture } from "./picture.js";
import { reportOf } from "./report.js";
import { refuse } from "./settings.js";
import { measured } from "./speed.js";

export const fresh = () => ({
  id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`,
  turns: [],
  updated: Date.now(),
});

export const titleOf = (conversation) => conversation.turns[0]?.text.slice(0, 60) || "New conversation";

const said = (turns) => turns.filter((turn) => turn.role === "user" || turn.text);

// What the service is asked for the turns before `end`.
export function messagesOf(turns, system, end) {
  const messages = said(turns.slice(0, end)).map((turn) =>
    turn.role === "user"
      ? { role: "user", content: [...turn.images.map(contentPart), { type: "text", text: turn.text }] }
      : { role: "assistant", content: turn.text },
  );
  return system ? [{ role: "system", content: system }, ...messages] : messages;
}

// The turn and the image in it that an error is about: `messages[1].content[0].image_url.url`.
function faultOf(param, turns, system) {
  const found = /^messages\[(\d+)\]\.content\[(\d+)\]/.exec(param ?? "");
  const turn = found && said(turns)[Number(found[1]) - (system ? 1 : 0)];
  return turn?.images?.[Number(found[2])] ? { turn: turns.indexOf(turn), image: Number(found[2]) } : null;
}

export class Conversation {
  constructor(onChange, onEdit) {
    this.onChange = onChange;
    this.onEdit = onEdit;
    this.running = null;
    this.show(fresh());
  }

  show(kept) {
    this.stop();
    this.kept = kept;
    $("turns").replaceChildren();
    this.kept.turns.forEach((_, i) => this.draw(i));
    $("empty").hidden = kept.turns.length > 0;
  }

  stop() {
    this.running?.abort();
  }

  // Forget turn `i` and all behind it.
  cut(i) {
    this.stop();
    this.kept.turns.length = i;
    const shown = [...$("turns").children];
    shown.slice(i).forEach((element) => element.remove());
    shown.slice(0, i).forEach((element, n) => {
      if (element.querySelector(".fault")) this.draw(n);
    });
  }

  async ask(text, images, asked) {
    this.kept.turns.push({ role: "user", text, images });
    this.draw(this.kept.turns.length - 1);
    await this.answer(asked);
  }

  async answer(asked) {
    const { kept } = this;
    const turn = { role: "assistant", text: "", asked, report: null, usage: null, total: 0, error: null };
    kept.turns.push(turn);
    const place = kept.turns.length - 1;
    const element = this.draw(place);
    $("empty").hidden = true;
    element.scrollIntoView({ block: "nearest" });
    const running = new AbortController();
    this.running = running;
    this.onChange(true);
    announce("Answering …");
    await this.stream(kept, place, element, running.signal);
    if (this.running === running) this.running = null;
    this.onChange(this.running !== null);
    announce(turn.error ? `Not answered: ${turn.error.message}` : `Answer: ${turn.text}`);
    if (!kept.turns.includes(turn)) return; // edited meanwhile
    const isKept = await history.keep(kept);
    showError(
      $("history-error"),
      isKept ? "" : "This conversation is not kept: the browser has no room for it. Clear the history.",
    );
    if (this.kept !== kept) return;
    this.draw(place);
    if (turn.error?.at) this.draw(turn.error.at.turn);
    this.onChange(this.running !== null);
  }

  // Fill turn `place` of `kept`, shown as `element`, as its answer comes.
  async stream(kept, place, element, signal) {
    const turn = kept.turns[place];
    const started = performance.now();
    const body = {
      messages: messagesOf(kept.turns, turn.asked.system, place),
      cache: turn.asked.cache,
      max_tokens: turn.asked.max_tokens,
      stream: true,
      stream_options: { include_usage: true },
    };
    const text = element.querySelector(".text");
    let due = false;
    const redraw = () => {
      due = false;
      text.replaceChildren(rendered(turn.text));
      element.scrollIntoView({ block: "nearest" });
    };
    try {
      for await (const chunk of events("/v1/chat", body, signal)) {
        turn.text += chunk.choices[0]?.delta.content ?? "";
        turn.report = chunk.kv_report ?? turn.report;
        turn.usage = chunk.usage ?? turn.usage;
        if (!due) {
          due = true;
          requestAnimationFrame(redraw);
        }
      }
    } catch (error) {
      const stopped = error.name === "AbortError";
      const at = faultOf(error.param, kept.turns, turn.asked.system);
      turn.error = { message: stopped ? "Stopped." : error.message, at, stopped };
      if (error.param) refuse(error.param, error.message);
    }
    turn.total = performance.now() - started;
  }

  // Draw turn `i`, in the place of what was drawn of it before.
  draw(i) {
    const turn = this.kept.turns[i];
    const element = turn.role === "user" ? this.userTurn(turn, i) : this.assistantTurn(turn, i);
    const before = $("turns").children[i];
    if (before) before.replaceWith(element);
    else $("turns").append(element);
    return element;
  }

  userTurn(turn, i) {
    const fault = this.kept.turns.find((one) => one.error?.at?.turn === i)?.error.at.image;
    const images = turn.images.map((image, n) =>
      make("li", { className: n === fault ? "fault" : "" }, thumbnail(image, n)),
    );
    return make(
      "li",
      { className: "turn user" },
      make("h2", { className: "hide", textContent: "You" }),
      images.length ? make("ul", { className: "thumbs", ariaLabel: "Images of this question" }, ...images) : null,
      make("p", { className: "asked", textContent: turn.text }),
      make(
        "div",
        { className: "tools" },
        button("Edit", () => this.onEdit(i, turn), { ariaLabel: "Edit this question" }),
        copyButton(turn.text, "Copy this question"),
      ),
    );
  }

  assistantTurn(turn, i) {
    const ended = turn.report || turn.error;
    const text = make("div", { className: ended ? "text" : "text waiting" }, rendered(turn.text));
    const element = make(
      "li",
      { className: "turn assistant" },
      make("h2", { className: "hide", textContent: "Answer" }),
      text,
    );
    if (turn.error)
      element.append(make("p", { className: turn.error.stopped ? "dim" : "error", textContent: turn.error.message }));
    if (!ended) return element;
    const tools = make(
      "div",
      { className: "tools" },
      copyButton(turn.text, "Copy this answer"),
      button("Regenerate", () => this.regenerate(i), { ariaLabel: "Regenerate this answer" }),
    );
    element.append(tools);
    if (!turn.report) return element;
    element.append(
      make(
        "details",
        { className: "report" },
        make("summary", { textContent: summary(turn.report) }),
        ...reportOf(turn),
      ),
    );
    if (turn.report.images.length) {
      const body = { messages: messagesOf(this.kept.turns, turn.asked.system, i), cache: turn.asked.cache };
      const shown = imagesOf(this.kept.turns.slice(0, i));
      tools.append(
        button("Refresh picture", () => openPicture(element, body, shown)),
        button("Measure speed", () => measured(element, body)),
      );
    }
    return element;
  }

  regenerate(i) {
    const { asked } = this.kept.turns[i];
    this.cut(i);
    return this.answer(asked);
  }
}

function summary(report) {
  if (!report.images.length) return `first token after ${report.timings.ttft_ms} ms, no images`;
  const kinds = ["reused", "compiled", "refreshed", "chained"]
    .map((kind) => [report[`${kind}_tokens`], kind])
    .filter(([count]) => count);
  return `of ${report.visual_tokens} visual tokens ${kinds.map(([count, kind]) => `${count} ${kind}`).join(", ")}`;
}

function copyButton(text, label) {
  const element = button(
    "Copy",
    async () => {
      const done = await copied(text);
      announce(done ? "Copied." : "Could not be copied.");
      element.textContent = done ? "Copied" : "Not copied";
      setTimeout(() => {
        element.textContent = "Copy";
      }, 1500);
    },
    { ariaLabel: label },
  );
  return element;
}

// Pages that came without TLS from another machine have no clipboard: there the old way is left.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = make("textarea", { value: text });
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
