// The server's answers: JSON for runs, bytes for weights.

const BASE = new URL("api/", new URL(".", import.meta.url));
const heads = new Map();
const KEPT = 64; // heads in memory

const TOKEN = "regard-token"; // of a server; forgotten with the tab

export const setToken = (token) => sessionStorage.setItem(TOKEN, token.replace(/[^\x21-\x7e]/gu, ""));

/** The error of a server that is gone. */
export const unreachable = () =>
  Object.assign(new Error("The server does not answer. Is regard explore still running?"), {
    unreachable: true,
  });

/** The content of an answer, as JSON or as bytes; a connection may also end inside it. */
async function answer(path, options = {}, form = "json") {
  let response;
  try {
    const token = sessionStorage.getItem(TOKEN);
    const headers = { ...options.headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
    response = await fetch(new URL(path, BASE), { ...options, headers });
    if (response.ok) return await response[form]();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
  let message = `The server answered with status ${response.status}.`;
  try {
    message = (await response.json()).error ?? message;
  } catch {
    /* not JSON */
  }
  throw Object.assign(new Error(message), { status: response.status });
}

const post = (path, body, signal) =>
  answer(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });

export const describeModel = (progress, index) => answer(`model?index=${index || 0}`);

/** Run a text. The run keeps its request, to be run again. */
export async function run(request, signal) {
  return Object.assign(await post("runs", request, signal), { request });
}

/** Call with the id of a run; if the server no longer has it, run its text again first. */
async function ofRun(run, call) {
  try {
    return await call(run.id);
  } catch (error) {
    if (error.status !== 404 || !run.request) throw error;
    run.renewed ??= post("runs", { ...run.request, base: undefined })
      .then(({ id }) => {
        run.id = id;
      })
      .finally(() => {
        run.renewed = null;
      });
    await run.renewed;
    return call(run.id);
  }
}

const bytes = (run, path) => ofRun(run, (id) => answer(`runs/${id}/${path}`, {}, "arrayBuffer"));

/** Run a text again with a base, for what changed attention does. */
export const runAgainst = (base, request) => ofRun(base, (id) => run({ ...request, base: id }));

/** The tree of a search; {text, beam, prefix, then, …}. */
export const search = (request, signal) => post("search", request, signal);

/** How far attention explains one output of a run. */
export const trust = (run, row, attention) =>
  ofRun(run, (id) =>
    post("trust", { run: id, ...(row === null ? {} : { row }), ...(attention ? { attention } : {}) }),
  );

/** Gold links between words, and how well attention finds them. */
export const gold = (run, map, head, links) =>
  ofRun(run, (id) =>
    post(`runs/${id}/maps/${map}/gold`, { links, ...(head === "mean" ? {} : { head: Number(head) }) }),
  );

export const diversity = (run, map) => ofRun(run, (id) => answer(`runs/${id}/maps/${map}/diversity`));

/** Add the mean entropy and distance of its heads to every map of a run. */
export function headStatistics(run) {
  run.statistics ??= ofRun(run, (id) => answer(`runs/${id}/statistics`))
    .then((all) => all.forEach((numbers, i) => Object.assign(run.maps[i], numbers)))
    .catch((error) => {
      run.statistics = null; // asked for again the next time
      throw error;
    });
  return run.statistics;
}

/** Thumbnails of all heads: one list per map, each with bytes of rows × columns. */
export async function thumbnails(run) {
  const all = new Uint8Array(await bytes(run, "thumbnails"));
  let start = 0;
  return run.maps.map(({ heads: count, thumbnail: [rows, columns] }) =>
    Array.from({ length: count }, () => all.subarray(start, (start += rows * columns))),
  );
}

/**
 * The weights of one head, or of the mean of all ("mean"), or a stage before: Float32Array of rows × columns.
 */
export function head(run, map, which, stage = "") {
  const path = `maps/${map}/heads/${which}${stage ? `/stages/${stage}` : ""}`,
    key = `${run.id}/${path}`;
  if (!heads.has(key)) {
    const promise = bytes(run, path).then((buffer) => new Float32Array(buffer));
    heads.set(key, promise);
    promise.catch(() => heads.delete(key));
    if (heads.size > KEPT) heads.delete(heads.keys().next().value);
  }
  return heads.get(key);
}

/** The exact weights of one row in every head: Float32Array of heads × columns. */
export const row = async (run, map, index) => new Float32Array(await bytes(run, `maps/${map}/rows/${index}`));

/** A picture of one head or the mean, or all weights, as a file. */
export async function file(run, map, which, level, format) {
  const query = new URLSearchParams({ level });
  return new Blob([await bytes(run, `maps/${map}/heads/${which}/export.${format}?${query}`)]);
}

/** Leave-one-out of source tokens for target token `row`: {scores, keys: their columns}; null if there is none. */
export async function leaveOneOut(run, row) {
  const { scores, keys } = await trust(run, row);
  return scores ? { scores: scores.leave_one_out, keys } : null;
}
