// Tiers of the store: what they hold now, and fill and hit ratio since the view was opened.

import { bytes, make } from "./dom.js";

const KEPT = 150,
  WIDTH = 240,
  HEIGHT = 48;
const SVG = "http://www.w3.org/2000/svg";

const total = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);

function sample(tier) {
  const misses = total(tier.misses);
  return {
    fill: tier.bytes_budget ? tier.bytes_physical / tier.bytes_budget : 0,
    hits: tier.hits,
    lookups: tier.hits + misses,
  };
}

const percent = (share) => (share === null ? "–" : `${(share * 100).toFixed(0)} %`);

const ratio = (one) => (one.lookups ? one.hits / one.lookups : null);

function line(values, name) {
  const element = document.createElementNS(SVG, "polyline");
  const points = values.map((value, i) =>
    value === null ? null : `${(i / Math.max(1, values.length - 1)) * WIDTH},${HEIGHT - 2 - value * (HEIGHT - 4)}`,
  );
  element.setAttribute("points", points.filter(Boolean).join(" "));
  element.setAttribute("class", name);
  return element;
}

function chart(samples, name) {
  const last = samples.at(-1);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute(
    "aria-label",
    `${name} over time: now ${percent(last.fill)} full, hit ratio ${percent(ratio(last))}`,
  );
  svg.append(
    line(
      samples.map((one) => Math.min(1, one.fill)),
      "fill",
    ),
    line(samples.map(ratio), "hits"),
  );
  return svg;
}

export class Tiers {
  constructor() {
    this.samples = new Map();
    this.grid = make("div", { className: "tiers" });
    this.degraded = make("div");
    this.element = make(
      "div",
      {},
      this.grid,
      make(
        "div",
        { className: "legend" },
        make("span", { className: "compiled" }, make("i"), "fill"),
        make("span", { className: "reused" }, make("i"), "hit ratio"),
      ),
      this.degraded,
    );
  }

  add(stats) {
    const tiers = [stats.decoded, ...stats.tiers];
    for (const tier of tiers)
      this.samples.set(tier.name, [...(this.samples.get(tier.name) ?? []), sample(tier)].slice(-KEPT));
    this.grid.replaceChildren(...tiers.map((tier) => this.card(tier)));
    this.degraded.replaceChildren(
      ...stats.degraded.map((text) => make("p", { className: "error", textContent: text })),
    );
  }

  card(tier) {
    const samples = this.samples.get(tier.name),
      last = samples.at(-1);
    const held = `${bytes(tier.bytes_physical)} of ${bytes(tier.bytes_budget)}`;
    const words = `${tier.entries} entries, ${held}, hit ratio ${percent(ratio(last))}`;
    return make(
      "div",
      { className: "tier" },
      make("h3", { textContent: tier.available ? tier.name : `${tier.name} (down)` }),
      chart(samples, tier.name),
      make("p", { textContent: words }),
    );
  }
}
