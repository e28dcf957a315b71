// One image with the grid of its visual tokens over it.

import { make } from "./dom.js";

const STATES = ["reused", "compiled", "refreshed", "exact", "chained"];
export const LAYERS = {
  states: "where each token is from",
  scores: "what chose it, in units of the image's mean",
  drift: "how far its keys had moved",
};

const LONGEST = 480;

// As a canvas understands it: what the style sheet's light or dark comes to.
function colour(name) {
  const probe = make("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

export function legendOf(layer) {
  if (layer === "states") return STATES.map((name) => make("span", { className: name }, make("i"), name));
  return [make("span", { className: "refreshed" }, make("i"), `${LAYERS[layer]}: the fuller the colour, the more`)];
}

// Rows and columns: those of the model, or, where it cuts pictures into tiles, a square that holds as many.
function gridOf(told) {
  const side = Math.ceil(Math.sqrt(told.states.length));
  return told.grid ?? [Math.ceil(told.states.length / side), side];
}

export function paint(canvas, picture, told, layer, opacity) {
  const [rows, columns] = gridOf(told);
  const ratio = picture.naturalWidth ? picture.naturalHeight / picture.naturalWidth : rows / columns;
  canvas.width = ratio > 1 ? Math.round(LONGEST / ratio) : LONGEST;
  canvas.height = ratio > 1 ? LONGEST : Math.round(LONGEST * ratio);
  const context = canvas.getContext("2d");
  if (picture.naturalWidth) context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  const values = told[layer];
  const most = layer === "states" ? 1 : Math.max(...(values ?? []).map((value) => value ?? 0), Number.MIN_VALUE);
  const [width, height] = [canvas.width / columns, canvas.height / rows];
  const colours = Object.fromEntries(["line", ...STATES].map((name) => [name, colour(name)]));
  context.strokeStyle = colours.line;
  told.states.forEach((state, i) => {
    const [x, y] = [(i % columns) * width, Math.floor(i / columns) * height];
    const strength =
      layer === "states" ? (told.shares && state === 2 ? told.shares[i] : 1) : Math.max(0, values?.[i] ?? 0) / most;
    context.globalAlpha = opacity * strength;
    context.fillStyle = colours[layer === "states" ? STATES[state] : "refreshed"];
    context.fillRect(x, y, width, height);
    context.globalAlpha = Math.min(1, opacity + 0.2);
    context.strokeRect(x, y, width, height);
  });
  context.globalAlpha = 1;
}
