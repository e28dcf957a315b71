// Time to the first token with and without the store: the median of three each, taken in turns.

import { call, Refused } from "./api.js";
import { announce, facts, make, ms } from "./dom.js";
import { policies } from "./settings.js";

const RUNS = 3;

const median = (values) => values.toSorted((a, b) => a - b)[(values.length - 1) / 2];

async function firstToken(body, cache) {
  const answer = await call("POST", "/v1/chat", { ...body, cache: { ...cache, chain: "off" }, max_tokens: 1 });
  return (await answer.json()).kv_report.timings.ttft_ms;
}

export async function measured(element, body) {
  element.querySelector(".speed")?.remove();
  const section = make(
    "section",
    { className: "speed", ariaLabel: "Speed" },
    make("p", { className: "dim", textContent: "Measuring …" }),
  );
  element.append(section);
  try {
    const reuse = { ...body.cache, mode: "auto" },
      full = { mode: "bypass", policy: "full" };
    await firstToken(body, reuse); // what is not stored yet is stored now
    const seen = { reuse: [], full: [] };
    for (let run = 0; run < RUNS; run += 1) {
      seen.full.push(await firstToken(body, full));
      seen.reuse.push(await firstToken(body, reuse));
    }
    const [a, b] = [median(seen.full), median(seen.reuse)];
    section.replaceChildren(
      facts([
        ["full prefill", ms(a)],
        ["with the store", ms(b)],
        ["ratio", (b / a).toFixed(2)],
      ]),
      make("p", {
        className: "dim",
        textContent: `Time to the first token as the service measures it, median of ${RUNS} each, without chains.`,
      }),
    );
    if (policies.shipped) {
      section.append(
        make("p", {
          className: "note",
          textContent:
            "The model that ships is too small to gain much: most of this time is the work around its prefill. " +
            "Figures of larger models are in the README.",
        }),
      );
    }
    section.scrollIntoView({ block: "nearest" });
    announce(`Full prefill ${ms(a)}, with the store ${ms(b)}`);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    section.replaceChildren(make("p", { className: "error", role: "alert", textContent: error.message }));
  }
}
