// The refresh picture: on each image the grid of its visual tokens, from `cache.explain`.

import { call, Refused } from "./api.js";
import { button, download, make } from "./dom.js";
import { LAYERS, legendOf, paint } from "./paint.js";
import { policies } from "./settings.js";

let opened = 0;

const labelled = (text, field) => {
  field.id ||= `field-${(opened += 1)}`;
  return make("span", { className: "field" }, make("label", { htmlFor: field.id, textContent: text }), field);
};

const select = (names, value) => {
  const field = make(
    "select",
    {},
    ...names.map((name) => make("option", { value: name, textContent: name || "default" })),
  );
  field.value = value;
  return field;
};

const range = (value) => make("input", { type: "range", min: "0", max: "1", step: "0.01", value: `${value}` });

// One setting to draw: a policy and a ratio.
class Arm {
  constructor(cache, draw) {
    this.policy = select(["", ...policies.names], cache.policy ?? "");
    this.ratio = range(cache.refresh_ratio ?? 0.1);
    this.shown = make("output", { textContent: Number(this.ratio.value).toFixed(2) });
    this.chain = make("input", { type: "checkbox" });
    this.figures = make("div", { className: "figures" });
    this.controls = make(
      "div",
      { className: "fields" },
      labelled("Policy", this.policy),
      labelled("Ratio", this.ratio),
      this.shown,
      labelled("Use chains", this.chain),
    );
    this.element = make("div", { className: "arm" }, this.controls, this.figures);
    this.ratio.oninput = () => {
      this.shown.textContent = Number(this.ratio.value).toFixed(2);
    };
    for (const field of [this.policy, this.ratio, this.chain]) field.onchange = () => draw(this);
    this.images = [];
  }

  async load(body, withDrift) {
    const cache = {
      mode: "read",
      explain: true,
      refresh_ratio: Number(this.ratio.value),
      chain: this.chain.checked ? "auto" : "off",
    };
    if (this.policy.value) cache.policy = this.policy.value;
    const reports = await Promise.all(
      [cache, ...(withDrift ? [{ mode: "read", explain: true, refresh_ratio: 1, chain: "off" }] : [])].map(
        async (each) =>
          (await (await call("POST", "/v1/chat", { ...body, cache: each, max_tokens: 1 })).json()).kv_report,
      ),
    );
    this.report = reports[0];
    this.images = reports[0].images.map((image, i) => ({
      ...image,
      told: { ...image.explained, drift: reports[1]?.images[i].explained.drift ?? image.explained.drift },
    }));
  }
}

export function openPicture(element, body, shown) {
  element.querySelector(".picture")?.remove();
  const layer = select(Object.keys(LAYERS), "states");
  const opacity = range(0.6);
  const twice = make("input", { type: "checkbox" });
  const error = make("p", { className: "error", role: "alert", hidden: true });
  const legend = make("div", { className: "legend" });
  const arms = [];
  const side = make("div", { className: "arms" });

  const redraw = () => {
    legend.replaceChildren(...legendOf(layer.value));
    for (const arm of arms)
      arm.figures.replaceChildren(
        ...arm.images.map((image, i) => figure(image, i, shown[i], layer.value, Number(opacity.value))),
      );
  };
  const load = async (arm) => {
    error.hidden = true;
    section.setAttribute("aria-busy", "true");
    try {
      await arm.load(body, layer.value === "drift");
      redraw();
    } catch (failure) {
      if (!(failure instanceof Refused)) throw failure;
      error.textContent = failure.message;
      error.hidden = false;
    }
    section.removeAttribute("aria-busy");
  };
  const add = (cache) => {
    const arm = new Arm(cache, load);
    arms.push(arm);
    side.append(arm.element);
    return load(arm);
  };
  layer.onchange = () => (layer.value === "drift" ? arms.forEach(load) : redraw());
  opacity.oninput = redraw;
  twice.onchange = () => {
    if (twice.checked) add({ refresh_ratio: 1 });
    else {
      arms.length = 1;
      side.replaceChildren(arms[0].element);
    }
  };
  const section = make(
    "section",
    { className: "picture", ariaLabel: "Refresh picture" },
    make(
      "div",
      { className: "fields" },
      labelled("Layer", layer),
      labelled("Opacity", opacity),
      labelled("Two side by side", twice),
      button("Save PNG", () => savePng(arms, error)),
      button("Save JSON", () => download("refresh.json", json(arms))),
      button("Close", () => section.remove()),
    ),
    legend,
    error,
    side,
  );
  element.append(section);
  add(body.cache).then(() => section.scrollIntoView({ block: "nearest" }));
}

function figure(image, i, source, layer, opacity) {
  const canvas = make("canvas", { width: 480, height: 480, role: "img" });
  const counts = `${image.refreshed} of ${image.tokens} tokens refreshed`;
  const words = [`Image ${i + 1}: ${counts}`, ...(image.exact ? ["exact"] : []), image.outcome].join(", ");
  canvas.setAttribute("aria-label", `${words}; layer ${layer}`);
  const picture = make("img", { alt: "", referrerPolicy: "no-referrer" });
  const draw = () => paint(canvas, picture, image.told, layer, opacity);
  picture.onload = draw;
  if (source?.url) picture.src = source.url;
  draw();
  return make("figure", {}, canvas, make("figcaption", { textContent: words }));
}

const json = (arms) =>
  new Blob(
    [
      JSON.stringify(
        arms.map((arm) => arm.report),
        null,
        1,
      ),
    ],
    { type: "application/json" },
  );

function savePng(arms, error) {
  const rows = arms.map((arm) => [...arm.figures.querySelectorAll("canvas")]);
  const width = Math.max(...rows.map((row) => row.reduce((sum, one) => sum + one.width + 8, 0)));
  const whole = make("canvas", {
    width,
    height: rows.reduce((sum, row) => sum + Math.max(...row.map((one) => one.height)) + 8, 0),
  });
  const context = whole.getContext("2d");
  let y = 0;
  for (const row of rows) {
    let x = 0;
    for (const one of row) {
      context.drawImage(one, x, y);
      x += one.width + 8;
    }
    y += Math.max(...row.map((one) => one.height)) + 8;
  }
  try {
    whole.toBlob((blob) => download("refresh.png", blob));
  } catch {
    // a browser gives no pixels of pictures from elsewhere away
    error.textContent = "A picture from another host cannot be saved: add it as a file, or save the JSON.";
    error.hidden = false;
  }
}
