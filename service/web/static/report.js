// Where the KV of an answer is from.

import { bytes, facts, make, ms, table } from "./dom.js";

// Class in the style sheet, count, words.
const origins = (report) => [
  ["reused", report.reused_tokens, "reused from the store"],
  ["compiled", report.compiled_tokens, "compiled: not in the store"],
  ["refreshed", report.refreshed_tokens, "refreshed for this question"],
  ["chained", report.chained_tokens, "from the chain of an earlier prompt"],
];

function bar(parts) {
  const words = parts.map(([, count, name]) => `${count} ${name}`).join(", ");
  const spans = parts
    .filter(([, count]) => count)
    .map(([kind, count]) => {
      const span = make("span", { className: kind });
      span.style.flexGrow = count; // set by script, which the policy allows; an attribute in markup it would not
      return span;
    });
  return make("div", { className: "bar", role: "img", ariaLabel: `Visual tokens: ${words}` }, ...spans);
}

export const legend = (parts) =>
  make(
    "div",
    { className: "legend" },
    ...parts.map(([kind, count, name]) => make("span", { className: kind }, make("i"), `${count} ${name}`)),
  );

const outcome = (image) =>
  make("span", { className: `tag ${image.outcome}`, textContent: image.outcome, title: image.reason });

function images(report) {
  const head = ["image", "entry", "outcome", "from", "tokens", "refreshed", "size", "load", "compile"];
  return table(
    "Images of this answer",
    head,
    report.images.map((image, i) => [
      `${i + 1}`,
      make("code", { textContent: image.key }),
      outcome(image),
      image.tier ?? "–",
      `${image.tokens}`,
      image.exact ? "0 (exact)" : `${image.refreshed}`,
      image.bytes ? bytes(image.bytes) : "–",
      image.load_ms ? ms(image.load_ms) : "–",
      image.compile_ms ? ms(image.compile_ms) : "–",
    ]),
  );
}

export function reportOf(turn) {
  const { report, usage, total } = turn;
  const ratio = report.policy === "full" ? "" : ` r = ${report.refresh_ratio}`;
  const shown = [
    facts([
      ["first token", ms(report.timings.ttft_ms)],
      ["in all", ms(total)],
      ["policy", report.policy + ratio],
      ...(report.fallback ? [["ran as full prefill", report.fallback]] : []),
      ...(usage ? [["tokens", `${usage.prompt_tokens} + ${usage.completion_tokens}`]] : []),
    ]),
  ];
  if (report.images.length) shown.push(bar(origins(report)), legend(origins(report)), images(report));
  return shown;
}
