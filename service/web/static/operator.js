// The operator's view: tiers over time, entries, and what may be done about them.

import { call, events, getJson, Refused } from "./api.js";
import { $, announce, button, bytes, make, showError, table } from "./dom.js";
import * as history from "./history.js";
import { imagesOf } from "./images.js";
import { Tiers } from "./tiers.js";

const EVERY = 2000, PAGE = 50;
let timer = null, view = null;

// A part of the view with its own error line; `run` shows there what the service refuses.
function part(title, ...children) {
  const error = make("p", { className: "error", role: "alert", hidden: true });
  const said = make("p", { className: "dim", role: "status" });
  const element = make("section", { className: "card", ariaLabel: title }, make("h2", { textContent: title }), ...children, said, error);
  const run = async (work) => {
    showError(error, "");
    try {
      await work((text) => { said.textContent = text; });
    } catch (failure) {
      if (!(failure instanceof Refused)) throw failure;
      showError(error, failure.message);
    }
  };
  return { element, run };
}

const field = (label, properties = {}) => {
  const input = make("input", { type: "text", autocomplete: "off", ...properties });
  return { input, element: make("label", {}, `${label} `, input) };
};

const filled = (values) => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== "" && value !== undefined));

// Pictures of entries that this browser has asked about, by the beginning of their key.
async function knownPictures() {
  const found = new Map();
  for (const { turns } of await history.all()) {
    turns.forEach((turn, i) => {
      const shown = imagesOf(turns.slice(0, i));
      turn.report?.images.forEach((image, n) => { if (shown[n]?.url) found.set(image.key, shown[n].url); });
    });
  }
  return found;
}

const picture = (url) => (url
  ? make("img", { className: "small", src: url, alt: "The picture", referrerPolicy: "no-referrer" })
  : make("span", { className: "dim", textContent: "–", title: "This browser has not asked about it" }));

function entries() {
  const list = make("div"), more = button("More", () => load(true), { hidden: true });
  const { element, run } = part("Entries", button("Read again", () => load()), list, more);
  let rows = [], cursor = null;
  const change = (method, path, body, done) => run(async (say) => { await call(method, path, body); say(done); await load(); });
  const load = (further = false) => run(async () => {
    const page = await getJson(`/v1/cache/entries?limit=${PAGE}${further ? `&cursor=${cursor}` : ""}`);
    rows = further ? [...rows, ...page.entries] : page.entries;
    cursor = page.cursor;
    more.hidden = !cursor;
    const known = await knownPictures();
    const cells = (entry) => {
      const short = entry.key.slice(0, 16);
      return [picture(known.get(short)), make("code", { textContent: short, title: entry.key }), entry.kind, entry.tenant, entry.width ? `${entry.width} × ${entry.height}` : "–", `${entry.tokens}`,
        bytes(entry.bytes), entry.tiers.join(", "), `${entry.hits}`, entry.pinned || "–",
        make("span", { className: "tools" },
          entry.pinned
            ? button("Unpin", () => change("DELETE", `/v1/cache/pins/${entry.key}`, undefined, `${short} goes as others do`), { ariaLabel: `Unpin ${short}` })
            : button("Pin", () => change("POST", `/v1/cache/pins/${entry.key}`, { hard: true }, `${short} is pinned`), { ariaLabel: `Pin ${short}` }),
          button("Remove", () => change("DELETE", `/v1/cache/entries/${entry.key}`, undefined, `${short} is removed`), { ariaLabel: `Remove ${short}` }))];
    };
    list.replaceChildren(rows.length
      ? table("Entries of the store", ["picture", "key", "kind", "tenant", "pixels", "tokens", "size", "tiers", "hits", "pinned", "do"], rows.map(cells))
      : make("p", { className: "dim", textContent: "The store holds nothing." }));
  });
  return { element, load };
}

function eviction(reload) {
  const tenant = field("Tenant"), idle = field("Unused for (seconds)", { inputMode: "numeric" }), free = field("Until so many bytes are free", { inputMode: "numeric" });
  const go = button("Evict", () => evict(false), { disabled: true });
  const { element, run } = part("Evict", make("p", { className: "dim", textContent: "The least recently used of what matches; nothing goes before a dry run has said what." }),
    make("div", { className: "fields" }, tenant.element, idle.element, free.element), make("div", { className: "row" }, button("Dry run", () => evict(true)), go));
  const body = () => {
    const given = filled({ tenant: tenant.input.value.trim(), older_than: idle.input.value && Number(idle.input.value), bytes: free.input.value && Number(free.input.value) });
    return Object.keys(given).length ? given : { all: true };
  };
  for (const { input } of [tenant, idle, free]) input.oninput = () => { go.disabled = true; };
  const evict = (dry) => run(async (say) => {
    const result = await (await call("POST", "/v1/cache/evict", { ...body(), dry_run: dry })).json();
    say(`${dry ? "Would remove" : "Removed"} ${result.keys.length} entries, ${bytes(result.bytes)}; ${result.skipped_leased} in use stay.`);
    go.disabled = !dry || !result.keys.length;
    if (!dry) reload();
  });
  return element;
}

function warming(reload) {
  const tenant = field("Tenant");
  const addresses = make("textarea", { rows: 3, ariaLabel: "Addresses of pictures, one a line" });
  const { element, run } = part("Warm", make("p", { className: "dim", textContent: "Pictures to compute before they are asked about, an address a line." }),
    addresses, make("div", { className: "row" }, tenant.element, button("Warm", () => run(async (say) => {
      const images = addresses.value.split("\n").map((line) => line.trim()).filter(Boolean);
      const failed = [];
      for await (const event of events("/v1/cache/warm", filled({ images, tenant: tenant.input.value.trim() }))) {
        if (event.failed) failed.push(`${images[event.image]}: ${event.failed.message}`);
        say(`${event.image + 1} of ${images.length} done`);
      }
      reload();
      if (failed.length) throw new Refused({ message: failed.join(" "), code: "not_stored" }, 200);
    }))));
  return element;
}

function verifying() {
  const { element, run } = part("Verify", button("Read and check every record", () => run(async (say) => {
    for await (const event of events("/v1/cache/verify", {})) {
      const removed = Object.values(event.removed).reduce((sum, count) => sum + count, 0);
      say(event.done ? `${event.checked} records checked, ${removed} removed` : `${event.tier}: ${event.checked} of ${event.total}`);
    }
  })));
  return element;
}

function quotas() {
  const tenant = field("Tenant"), limit = field("Bytes in each tier", { inputMode: "numeric" }), list = make("div");
  const { element, run } = part("Quotas", list, make("div", { className: "row" }, tenant.element, limit.element, button("Set", () => change("PUT", tenant.input.value.trim(), { bytes: Number(limit.input.value) }))));
  const change = (method, name, body) => run(async (say) => {
    await call(method, `/v1/cache/quotas/${encodeURIComponent(name)}`, body);
    say(body ? `${name} may hold ${bytes(body.bytes)} in each tier` : `${name} has no quota`);
    await load();
  });
  const load = () => run(async () => {
    const found = (await getJson("/v1/cache/quotas")).quotas;
    list.replaceChildren(found.length
      ? table("Quotas of tenants", ["tenant", "quota", "held", "do"], found.map((one) => [one.tenant, bytes(one.bytes), bytes(one.held), button("Lift", () => change("DELETE", one.tenant), { ariaLabel: `Lift the quota of ${one.tenant}` })]))
      : make("p", { className: "dim", textContent: "No tenant has a quota." }));
  });
  return { element, load };
}

function build() {
  const tiers = new Tiers(), listed = entries(), limits = quotas();
  const { element, run } = part("Tiers", tiers.element);
  const poll = () => run(async () => tiers.add(await getJson("/v1/cache/stats")));
  $("operator-view").replaceChildren(element, listed.element, eviction(listed.load), warming(listed.load), verifying(), limits.element);
  return { poll, listed, limits };
}

export async function showOperator() {
  view ??= build();
  await view.poll();
  await view.listed.load();
  await view.limits.load();
  announce("The operator's view");
  clearInterval(timer);
  if (location.hash === "#operator") timer = setInterval(() => { if (!document.hidden && !$("key-dialog").open) view.poll(); }, EVERY);
}

export function leaveOperator() { clearInterval(timer); timer = null; }
