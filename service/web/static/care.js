// Panels that look after the store: evict, warm, verify, quotas.

import { call, events, getJson, Refused } from "./api.js";
import { button, bytes, make, table } from "./dom.js";
import { field, filled, number, part } from "./panel.js";

export function eviction(reload) {
  const tenant = field("Tenant"),
    idle = field("Unused for (seconds)", { inputMode: "numeric" }),
    free = field("Until so many bytes are free", { inputMode: "numeric" });
  const go = button("Evict", () => evict(false), { disabled: true });
  const { element, run } = part(
    "Evict",
    make("p", {
      className: "dim",
      textContent: "The least recently used of what matches; nothing goes before a dry run has said what.",
    }),
    make("div", { className: "fields" }, tenant.element, idle.element, free.element),
    make(
      "div",
      { className: "row" },
      button("Dry run", () => evict(true)),
      go,
    ),
  );
  const body = () => {
    const given = filled({
      tenant: tenant.input.value.trim(),
      older_than: number(idle.input),
      bytes: number(free.input),
    });
    return Object.keys(given).length ? given : { all: true };
  };
  for (const { input } of [tenant, idle, free])
    input.oninput = () => {
      go.disabled = true;
    };
  const evict = (dry) =>
    run(async (say) => {
      const result = await (await call("POST", "/v1/cache/evict", { ...body(), dry_run: dry })).json();
      const removed = `${result.keys.length} entries, ${bytes(result.bytes)}`;
      say(`${dry ? "Would remove" : "Removed"} ${removed}; ${result.skipped_leased} in use stay.`);
      go.disabled = !dry || !result.keys.length;
      if (!dry) reload();
    });
  return element;
}

export function warming(reload) {
  const tenant = field("Tenant");
  const addresses = make("textarea", { rows: 3, ariaLabel: "Addresses of pictures, one a line" });
  const { element, run } = part(
    "Warm",
    make("p", { className: "dim", textContent: "Pictures to compute before they are asked about, an address a line." }),
    addresses,
    make(
      "div",
      { className: "row" },
      tenant.element,
      button("Warm", () =>
        run(async (say) => {
          const images = addresses.value
            .split("\n")
            .map((line) => line.trim())
            .filter(Boolean);
          const failed = [];
          for await (const event of events("/v1/cache/warm", filled({ images, tenant: tenant.input.value.trim() }))) {
            if (event.failed) failed.push(`${images[event.image]}: ${event.failed.message}`);
            say(`${event.image + 1} of ${images.length} done`);
          }
          reload();
          if (failed.length) throw new Refused({ message: failed.join(" "), code: "not_stored" }, 200);
        }),
      ),
    ),
  );
  return element;
}

export function verifying() {
  const { element, run } = part(
    "Verify",
    button("Read and check every record", () =>
      run(async (say) => {
        for await (const event of events("/v1/cache/verify", {})) {
          const removed = Object.values(event.removed).reduce((sum, count) => sum + count, 0);
          say(
            event.done
              ? `${event.checked} records checked, ${removed} removed`
              : `${event.tier}: ${event.checked} of ${event.total}`,
          );
        }
      }),
    ),
  );
  return element;
}

export function quotas() {
  const tenant = field("Tenant"),
    limit = field("Bytes in each tier", { inputMode: "numeric" }),
    list = make("div");
  const { element, run } = part(
    "Quotas",
    list,
    make(
      "div",
      { className: "row" },
      tenant.element,
      limit.element,
      button("Set", () => change("PUT", tenant.input.value.trim(), () => ({ bytes: number(limit.input) }))),
    ),
  );
  // `bodyOf` may refuse what was typed.
  const change = (method, name, bodyOf = () => undefined) =>
    run(async (say) => {
      const body = bodyOf();
      await call(method, `/v1/cache/quotas/${encodeURIComponent(name)}`, body);
      say(body ? `${name} may hold ${bytes(body.bytes)} in each tier` : `${name} has no quota`);
      await load();
    });
  const load = () =>
    run(async () => {
      const found = (await getJson("/v1/cache/quotas")).quotas;
      list.replaceChildren(
        found.length
          ? table(
              "Quotas of tenants",
              ["tenant", "quota", "held", "do"],
              found.map((one) => [
                one.tenant,
                bytes(one.bytes),
                bytes(one.held),
                button("Lift", () => change("DELETE", one.tenant), { ariaLabel: `Lift the quota of ${one.tenant}` }),
              ]),
            )
          : make("p", { className: "dim", textContent: "No tenant has a quota." }),
      );
    });
  return { element, load };
}
