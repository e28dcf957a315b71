// Elements without markup in strings, and numbers for people.

export const $ = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const { dataset, ...plain } = properties;
  const element = Object.assign(document.createElement(tag), plain);
  Object.assign(element.dataset, dataset ?? {});
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const button = (text, onclick, properties = {}) =>
  make("button", { type: "button", textContent: text, onclick, ...properties });

// An empty text takes the error away.
export function showError(element, text, field = null) {
  element.textContent = text;
  element.hidden = !text;
  field?.setAttribute("aria-invalid", text ? "true" : "false");
}

export const announce = (text) => {
  $("status").textContent = text;
};

export const ms = (value) =>
  value >= 1000 ? `${(value / 1000).toFixed(2)} s` : `${value.toFixed(value < 10 ? 1 : 0)} ms`;

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
}

export const facts = (pairs) =>
  make(
    "dl",
    { className: "facts" },
    ...pairs.map(([name, value]) =>
      make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value })),
    ),
  );

export const table = (caption, head, rows) =>
  make(
    "div",
    { className: "scroll", tabIndex: 0, role: "region", ariaLabel: caption },
    make(
      "table",
      {},
      make("thead", {}, make("tr", {}, ...head.map((name) => make("th", { textContent: name, scope: "col" })))),
      make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell))))),
    ),
  );

export function download(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
