// Conversations in this browser (IndexedDB). Where a browser keeps nothing, they last as long as the tab.

const NAME = "conduit",
  STORE = "conversations";
let opening = null;
const inMemory = new Map();

function open() {
  opening ??= new Promise((resolve) => {
    const asked = indexedDB.open(NAME, 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore(STORE, { keyPath: "id" });
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => resolve(null);
  });
  return opening;
}

async function within(mode, work) {
  const database = await open();
  if (!database) return undefined;
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(STORE, mode);
    const asked = work(transaction.objectStore(STORE));
    transaction.oncomplete = () => resolve(asked.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

// Newest first.
export async function all() {
  const found = (await within("readonly", (store) => store.getAll())) ?? [...inMemory.values()];
  return found.sort((a, b) => b.updated - a.updated);
}

// Resolves to whether the browser has it now; it refuses what is beyond its quota.
export async function keep(conversation) {
  conversation.updated = Date.now();
  inMemory.set(conversation.id, conversation);
  try {
    await within("readwrite", (store) => store.put(structuredClone(conversation)));
    return true;
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    return false;
  }
}

export async function clear() {
  inMemory.clear();
  await within("readwrite", (store) => store.clear());
}
