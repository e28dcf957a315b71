// The operator's view: tiers over time, entries, and what may be done about them.

import { getJson } from "./api.js";
import { eviction, quotas, verifying, warming } from "./care.js";
import { $, announce } from "./dom.js";
import { entries } from "./entries.js";
import { part } from "./panel.js";
import { Tiers } from "./tiers.js";

const EVERY = 2000;
let timer = null;
let view = null;

function build() {
  const [tiers, listed, limits] = [new Tiers(), entries(), quotas()];
  const { element, run } = part("Tiers", tiers.element);
  const poll = () => run(async () => tiers.add(await getJson("/v1/cache/stats")));
  $("operator-view").replaceChildren(
    element,
    listed.element,
    eviction(listed.load),
    warming(listed.load),
    verifying(),
    limits.element,
  );
  return { poll, listed, limits };
}

export async function showOperator() {
  view ??= build();
  await view.poll();
  await view.listed.load();
  await view.limits.load();
  announce("The operator's view");
  clearInterval(timer);
  if (location.hash === "#operator")
    timer = setInterval(() => {
      if (!document.hidden && !$("key-dialog").open) view.poll();
    }, EVERY);
}

export function leaveOperator() {
  clearInterval(timer);
  timer = null;
}
