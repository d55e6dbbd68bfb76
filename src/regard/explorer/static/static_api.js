// The answers of the translator in a worker, in the form of a server's; see page/api.js, which this replaces
// in a static site.

const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const waiting = new Map();
let count = 0,
  watch = null;

worker.addEventListener("message", ({ data: { id, result, error, progress } }) => {
  if (progress !== undefined) {
    watch?.(progress);
    return;
  }
  const { resolve, reject } = waiting.get(id);
  waiting.delete(id);
  if (error)
    reject(
      Object.assign(
        error.name === "AbortError" ? new DOMException(error.message, error.name) : new Error(error.message),
        { status: error.status },
      ),
    );
  else resolve(result);
});
worker.addEventListener("error", (event) => {
  const message =
    event.message ?? "The translator could not be loaded; a page opened from a file needs a web server.";
  for (const { reject } of waiting.values()) reject(new Error(message));
  waiting.clear();
});

function call(method, args, signal) {
  const id = ++count;
  signal?.addEventListener("abort", () => worker.postMessage({ cancel: id }));
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, method, args });
  });
}

export const setToken = () => {};
/** The error of a file of the page that cannot be read. */
export const unreachable = () => new Error("A file of this page cannot be read. Is its site still there?");

/** Describe the model, which is loaded first; `progress` gets numbers between 0 and 1. */
export function describeModel(progress = null) {
  watch = progress;
  return call("describe", []);
}

export const run = async (request, signal) =>
  Object.assign(await call("run", [request], signal), { request });

/** Call with the id of a run; one that is no longer in memory is run again first. */
async function ofRun(run, method, ...args) {
  try {
    return await call(method, [run.id, ...args]);
  } catch (error) {
    if (error.status !== 404) throw error;
    run.id = (await call("run", [{ ...run.request, base: null }])).id;
    return call(method, [run.id, ...args]);
  }
}

/** Run a text again with a base, for what changed attention does. */
export const runAgainst = async (base, request) =>
  Object.assign(await ofRun(base, "runAgainst", request), { request });
export const headStatistics = async () => {}; // the maps of a run have them
export const thumbnails = (run) => ofRun(run, "thumbnails");

const heads = new Map(),
  KEPT = 64;

/** The exact weights of one head, or of the mean of all ("mean"): Float32Array of rows × columns. */
export function head(run, map, which) {
  const key = `${run.id} ${map} ${which}`;
  if (!heads.has(key)) {
    const promise = ofRun(run, "head", map, which === "mean" ? which : Number(which));
    heads.set(key, promise);
    promise.catch(() => heads.delete(key));
    if (heads.size > KEPT) heads.delete(heads.keys().next().value);
  }
  return heads.get(key);
}

/** The exact weights of one row in every head: Float32Array of heads × columns. */
export async function row(run, map, index) {
  const { heads: count, columns } = run.maps[map],
    all = new Float32Array(count * columns);
  for (let h = 0; h < count; h++)
    all.set((await head(run, map, h)).subarray(index * columns, (index + 1) * columns), h * columns);
  return all;
}

/** How much each source token counts for target token `row`. */
export async function leaveOneOut(run, row) {
  const scores = await ofRun(run, "leaveOneOut", row);
  return { scores, keys: [...scores.keys()] };
}
