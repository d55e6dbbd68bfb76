// The answers of the translator in a worker, in the form of a server's; see page/api.js, which this replaces in a static site.

const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const waiting = new Map();
let count = 0, watch = null;

worker.addEventListener("message", ({ data: { id, result, error, progress } }) => {
  if (progress !== undefined) { watch?.(progress); return; }
  const { resolve, reject } = waiting.get(id);
  waiting.delete(id);
  if (error) reject(Object.assign(error.name === "AbortError" ? new DOMException(error.message, error.name) : new Error(error.message), { status: error.status }));
  else resolve(result);
});
worker.addEventListener("error", (event) => {
  const message = event.message ?? "The translator could not be loaded; a page opened from a file needs a web server.";
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

/** Describe the model, which is loaded first; `progress` gets numbers between 0 and 1. */
export function describeModel(progress = null) {
  watch = progress;
  return call("describe", []);
}

export const run = (body, signal) => call("run", [body], signal);
export const thumbnails = (run) => call("thumbnails", [run.id]);

const heads = new Map(), KEPT = 64;

/** The exact weights of one head, or of the mean of all ("mean"): Float32Array of rows × columns. */
export function head(run, map, which) {
  const key = `${run.id} ${map} ${which}`;
  if (!heads.has(key)) {
    const promise = call("head", [run.id, map, which === "mean" ? which : Number(which)]);
    heads.set(key, promise);
    promise.catch(() => heads.delete(key));
    if (heads.size > KEPT) heads.delete(heads.keys().next().value);
  }
  return heads.get(key);
}

/** How much each source token counts for target token `row` (leave-one-out), and Kendall's τ of that with each of `rows`. */
export const leaveOneOut = (run, row, rows, signal) => call("leaveOneOut", [run.id, row, rows], signal);
