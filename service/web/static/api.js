// The service as the page talks to it. A key that is asked for is asked of the reader, once for each kind of route.

import { $ } from "./dom.js";

const KEPT = { tenant: "conduit.key", operator: "conduit.operator-key" };
const WHY = {
  tenant: "This service answers who has a key.",
  operator: "The store is the operator's: his key is asked for, not a caller's.",
};

// What the service refused: `message` is for people, `param` the field at fault.
export class Refused extends Error {
  constructor(error, status) {
    super(error.message);
    this.code = error.code;
    this.param = error.param ?? null;
    this.status = status;
  }
}

const kindOf = (path) => (path.startsWith("/v1/cache/") ? "operator" : "tenant");
const keyOf = (kind) => sessionStorage.getItem(KEPT[kind]) ?? "";

// Resolves to whether a key was given.
export function askForKey(kind = "tenant") {
  const dialog = $("key-dialog");
  if (dialog.open) return Promise.resolve(false);
  $("key-why").textContent = WHY[kind];
  $("key").value = keyOf(kind);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener(
      "close",
      () => {
        const given = dialog.returnValue === "ok";
        if (given) sessionStorage.setItem(KEPT[kind], $("key").value.trim());
        resolve(given);
      },
      { once: true },
    ),
  );
}

async function send(method, path, body, signal) {
  const key = keyOf(kindOf(path));
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const plain = body === undefined || body instanceof FormData;
  if (!plain) headers["content-type"] = "application/json";
  try {
    return await fetch(path, { method, headers, body: plain ? body : JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused({ message: "The service cannot be reached: is it still running?", code: "unreachable" }, 0);
  }
}

async function refusal(response) {
  try {
    return new Refused((await response.json()).error, response.status);
  } catch {
    return new Refused(
      { message: `The service answered with status ${response.status}.`, code: "unknown" },
      response.status,
    );
  }
}

// The response of a call that went well; asks for a key where one is wanted and tries once more.
export async function call(method, path, body, signal) {
  let response = await send(method, path, body, signal);
  const keyless = response.status === 401 || (response.status === 403 && kindOf(path) === "operator");
  if (keyless && (await askForKey(kindOf(path)))) response = await send(method, path, body, signal);
  if (!response.ok) throw await refusal(response);
  return response;
}

export const getJson = async (path) => (await call("GET", path)).json();

export async function* events(path, body, signal) {
  const response = await call("POST", path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (pending + value).split("\n\n");
    pending = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith("data: ") || block === "data: [DONE]") continue;
      const event = JSON.parse(block.slice(6));
      if (event.error) throw new Refused(event.error, 200);
      yield event;
    }
  }
}
