// The page: which view is shown, the next question, and the conversations before.

import { askForKey, getJson, Refused } from "./api.js";
import { Conversation, fresh, titleOf } from "./conversation.js";
import { $, announce, make, showError } from "./dom.js";
import * as history from "./history.js";
import { Attachments } from "./images.js";
import { leaveOperator, showOperator } from "./operator.js";
import { offerPolicies, settings } from "./settings.js";

const attachments = new Attachments();
let editing = null;

async function listHistories() {
  const kept = await history.all();
  const current = conversation.kept;
  const others = kept.filter((one) => one.id !== current.id);
  $("histories").replaceChildren(
    ...[current, ...others].map((one) => make("option", { value: one.id, textContent: titleOf(one) })),
  );
  $("histories").value = current.id;
}

const conversation = new Conversation(
  (running) => {
    $("stop").disabled = !running;
    $("send").disabled = running;
    if (!running) listHistories();
  },
  (i, turn) => {
    editing = i;
    $("editing").hidden = false;
    $("question").value = turn.text;
    attachments.set(turn.images);
    $("question").focus();
  },
);

function endEditing() {
  editing = null;
  $("editing").hidden = true;
  $("question").value = "";
  attachments.set([]);
}

$("cancel-edit").onclick = endEditing;
$("composer").onsubmit = (event) => {
  event.preventDefault();
  if (conversation.running || !attachments.addUrl()) return;
  const text = $("question").value.trim();
  showError($("question-error"), text ? "" : "What is the question?", $("question"));
  if (!text) {
    $("question").focus();
    return;
  }
  const asked = settings();
  if (!asked) return;
  if (editing !== null) conversation.cut(editing);
  const images = attachments.images;
  endEditing();
  conversation.ask(text, images, asked);
};
$("question").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
};
$("stop").onclick = () => conversation.stop();
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !$("key-dialog").open) conversation.stop();
});

$("new").onclick = () => {
  endEditing();
  conversation.show(fresh());
  listHistories();
  $("question").focus();
};
$("clear").onclick = async () => {
  await history.clear();
  endEditing();
  conversation.show(fresh());
  await listHistories();
  announce("The history is cleared.");
};
$("histories").onchange = async () => {
  const chosen = (await history.all()).find((one) => one.id === $("histories").value);
  endEditing();
  conversation.show(chosen ?? fresh());
  listHistories();
};
$("key-button").onclick = async () => {
  if (await askForKey(location.hash === "#operator" ? "operator" : "tenant")) loadModel();
};

function route() {
  const operator = location.hash === "#operator";
  $("ask-view").hidden = operator;
  $("operator-view").hidden = !operator;
  for (const [id, current] of [
    ["to-ask", !operator],
    ["to-operator", operator],
  ]) {
    if (current) $(id).setAttribute("aria-current", "page");
    else $(id).removeAttribute("aria-current");
  }
  if (operator) showOperator();
  else leaveOperator();
}
window.addEventListener("hashchange", route);

async function loadModel() {
  try {
    const [model] = (await getJson("/v1/models")).data;
    $("model").textContent =
      `${model.id} · context ${model.max_model_len} · ${model.default_policy}, r = ${model.default_refresh_ratio}`;
    $("limits").hidden = !model.description;
    $("limits").textContent = model.description ?? "";
    offerPolicies(model);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    $("model").textContent = error.code === "invalid_api_key" ? "This service asks for an API key." : error.message;
  }
}

async function loadSamples() {
  const samples = await getJson("/samples.json");
  $("offer").hidden = !samples.length;
  $("samples").append(...samples.map((sample, i) => make("option", { value: `${i}`, textContent: sample.title })));
  $("samples").onchange = () => {
    const sample = samples[$("samples").value];
    if (!sample) return;
    attachments.set(sample.images.map((image) => ({ url: new URL(image, location.href).href, name: image })));
    $("question").value = sample.question;
    $("samples").value = "";
  };
}

const [latest] = await history.all();
if (latest) conversation.show(latest);
await listHistories();
route();
loadSamples();
loadModel();
