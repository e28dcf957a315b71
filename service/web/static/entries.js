// The store's entries, and what may be done with each.

import { call, getJson } from "./api.js";
import { button, bytes, make, table } from "./dom.js";
import * as history from "./history.js";
import { imagesOf } from "./images.js";
import { part } from "./panel.js";

const PAGE = 50;

// Pictures of entries that this browser has asked about, by the beginning of their key.
async function knownPictures() {
  const found = new Map();
  for (const { turns } of await history.all()) {
    turns.forEach((turn, i) => {
      const shown = imagesOf(turns.slice(0, i));
      turn.report?.images.forEach((image, n) => {
        if (shown[n]?.url) found.set(image.key, shown[n].url);
      });
    });
  }
  return found;
}

const picture = (url) =>
  url
    ? make("img", { className: "small", src: url, alt: "The picture", referrerPolicy: "no-referrer" })
    : make("span", { className: "dim", textContent: "–", title: "This browser has not asked about it" });

export function entries() {
  const list = make("div"),
    more = button("More", () => load(true), { hidden: true });
  const { element, run } = part(
    "Entries",
    button("Read again", () => load()),
    list,
    more,
  );
  let rows = [],
    cursor = null;
  const change = (method, path, body, done) =>
    run(async (say) => {
      await call(method, path, body);
      say(done);
      await load();
    });
  const load = (further = false) =>
    run(async () => {
      const page = await getJson(`/v1/cache/entries?limit=${PAGE}${further ? `&cursor=${cursor}` : ""}`);
      rows = further ? [...rows, ...page.entries] : page.entries;
      cursor = page.cursor;
      more.hidden = !cursor;
      const known = await knownPictures();
      const cells = (entry) => {
        const short = entry.key.slice(0, 16);
        return [
          picture(known.get(short)),
          make("code", { textContent: short, title: entry.key }),
          entry.kind,
          entry.tenant,
          entry.width ? `${entry.width} × ${entry.height}` : "–",
          `${entry.tokens}`,
          bytes(entry.bytes),
          entry.tiers.join(", "),
          `${entry.hits}`,
          entry.pinned || "–",
          make(
            "span",
            { className: "tools" },
            entry.pinned
              ? button(
                  "Unpin",
                  () => change("DELETE", `/v1/cache/pins/${entry.key}`, undefined, `${short} goes as others do`),
                  { ariaLabel: `Unpin ${short}` },
                )
              : button(
                  "Pin",
                  () => change("POST", `/v1/cache/pins/${entry.key}`, { hard: true }, `${short} is pinned`),
                  { ariaLabel: `Pin ${short}` },
                ),
            button(
              "Remove",
              () => change("DELETE", `/v1/cache/entries/${entry.key}`, undefined, `${short} is removed`),
              { ariaLabel: `Remove ${short}` },
            ),
          ),
        ];
      };
      list.replaceChildren(
        rows.length
          ? table(
              "Entries of the store",
              ["picture", "key", "kind", "tenant", "pixels", "tokens", "size", "tiers", "hits", "pinned", "do"],
              rows.map(cells),
            )
          : make("p", { className: "dim", textContent: "The store holds nothing." }),
      );
    });
  return { element, load };
}
