// What the panels of the operator's view have in common.

import { Refused } from "./api.js";
import { make, showError } from "./dom.js";

// A part of the view with its own error line; `run` shows there what the service refuses.
export function part(title, ...children) {
  const error = make("p", { className: "error", role: "alert", hidden: true });
  const said = make("p", { className: "dim", role: "status" });
  const element = make(
    "section",
    { className: "card", ariaLabel: title },
    make("h2", { textContent: title }),
    ...children,
    said,
    error,
  );
  const run = async (work) => {
    showError(error, "");
    try {
      await work((text) => {
        said.textContent = text;
      });
    } catch (failure) {
      if (!(failure instanceof Refused)) throw failure;
      showError(error, failure.message);
    }
  };
  return { element, run };
}

export const field = (label, properties = {}) => {
  const input = make("input", { type: "text", autocomplete: "off", ...properties });
  return { input, element: make("label", {}, `${label} `, input) };
};

// What stands in a field, undefined where nothing does. What is no number is refused here: sent, it would be null, and
// so no condition.
export function number(input) {
  const text = input.value.trim();
  const value = Number(text);
  if (!(value >= 0 && value < Infinity)) throw new Refused({ message: `${text} is no number.`, code: "no_number" }, 0);
  return text ? value : undefined;
}

export const filled = (values) =>
  Object.fromEntries(Object.entries(values).filter(([, value]) => value !== "" && value !== undefined));
