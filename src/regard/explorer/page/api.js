// The server's answers: JSON for runs, bytes for weights. Heads that were fetched stay in memory.

const BASE = new URL("api/", new URL(".", import.meta.url));
const heads = new Map();
const KEPT = 64; // heads in memory

const TOKEN = "regard-token"; // of a server that needs one; the browser forgets it with the tab

export const setToken = (token) => sessionStorage.setItem(TOKEN, token.replace(/[^\x21-\x7e]/gu, ""));

async function answer(path, options = {}) {
  let response;
  try {
    const token = sessionStorage.getItem(TOKEN);
    const headers = { ...options.headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
    response = await fetch(new URL(path, BASE), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is regard explore still running?");
  }
  if (response.ok) return response;
  let message = `The server answered with status ${response.status}.`;
  try { message = (await response.json()).error ?? message; } catch { /* not JSON */ }
  const error = new Error(message);
  error.status = response.status;
  throw error;
}

export const describeModel = async () => (await answer("model")).json();

export async function run(body, signal) {
  const headers = { "content-type": "application/json" };
  return (await answer("runs", { method: "POST", headers, body: JSON.stringify(body), signal })).json();
}

/** Thumbnails of all heads: one list per map, each with bytes of rows × columns. */
export async function thumbnails(run) {
  const bytes = new Uint8Array(await (await answer(`runs/${run.id}/thumbnails`)).arrayBuffer());
  let start = 0;
  return run.maps.map(({ heads: count, thumbnail: [rows, columns] }) =>
    Array.from({ length: count }, () => bytes.subarray(start, start += rows * columns)));
}

/** The exact weights of one head, or of the mean of all ("mean"): Float32Array of rows × columns. */
export async function head(run, map, which) {
  const key = `${run.id}/maps/${map}/heads/${which}`;
  if (!heads.has(key)) {
    const promise = answer(`runs/${key}`).then((r) => r.arrayBuffer()).then((b) => new Float32Array(b));
    heads.set(key, promise);
    promise.catch(() => heads.delete(key));
    if (heads.size > KEPT) heads.delete(heads.keys().next().value);
  }
  return heads.get(key);
}

/** How much each source token counts for target token `row` (leave-one-out); null if there is no such figure. */
export async function leaveOneOut(run, row) {
  const headers = { "content-type": "application/json" }, body = JSON.stringify({ run: run.id, row });
  return (await (await answer("trust", { method: "POST", headers, body })).json()).scores?.leave_one_out ?? null;
}
