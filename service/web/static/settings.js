// How the next question is asked. A value that cannot be is said beside its field, and the section opens for it.

import { $, make, showError } from "./dom.js";

export const policies = { names: [], shipped: false };

export function offerPolicies(model) {
  policies.names = model.policies;
  policies.shipped = Boolean(model.description);
  const chosen = $("policy").value;
  $("policy").replaceChildren(
    make("option", { value: "", textContent: `default (${model.default_policy})` }),
    ...model.policies.map((name) => make("option", { value: name, textContent: name })),
  );
  $("policy").value = chosen;
  $("ratio").placeholder = `default (${model.default_refresh_ratio})`;
}

// A decimal comma is a decimal point.
const number = (text) => (text === "" ? undefined : Number(text.replace(",", ".")));

// The fields of a request, or null where one is wrong.
export function settings() {
  const ratio = number($("ratio").value.trim()),
    tokens = number($("tokens").value.trim());
  const ratioOk = ratio === undefined || (ratio >= 0 && ratio <= 1);
  const tokensOk = tokens === undefined || (Number.isInteger(tokens) && tokens > 0);
  showError($("ratio-error"), ratioOk ? "" : "A number from 0 to 1, such as 0.33.", $("ratio"));
  showError($("tokens-error"), tokensOk ? "" : "A whole number above 0.", $("tokens"));
  if (!ratioOk || !tokensOk) {
    $("settings").open = true;
    $(ratioOk ? "tokens" : "ratio").focus();
    return null;
  }
  const cache = { mode: $("mode").value };
  if ($("policy").value) cache.policy = $("policy").value;
  if (ratio !== undefined) cache.refresh_ratio = ratio;
  return { cache, max_tokens: tokens, system: $("system").value.trim() };
}

// What the service says of a field here, beside it. False where the field is none of these.
export function refuse(param, message) {
  const field = { "cache.refresh_ratio": "ratio", max_tokens: "tokens" }[param];
  if (!field) return false;
  $("settings").open = true;
  showError($(`${field}-error`), message, $(field));
  return true;
}
