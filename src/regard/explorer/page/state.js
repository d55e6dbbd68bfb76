// What the page shows, kept in its address: a link opens the same view of the same text.

const DEFAULTS = {
  model: "", // index, where several can be chosen
  view: "",
  text: "",
  to: "",
  beam: "1",
  map: "",
  head: "mean",
  row: "",
  level: "words",
  kind: "all",
  stage: "",
  entropy: "",
  distance: "", // of heads
  prefix: "",
  pins: "", // token ids of the beginning, and the steps that the user forced
  node: "",
  pruned: "", // of the search: the chosen node, whether pruned nodes are shown
  token: "", // the output token that the view Trust explains
  target: "",
  links: "", // a given translation, and gold links
  mode: "",
  other: "", // of the comparison
  changes: "", // of What if, as JSON
  attention: "", // the map that the view Trust tests
  mechanism: "", // as JSON
};
const LONGEST = 4000; // characters; a longer text is not put into the address
export const state = { ...DEFAULTS };

export function readAddress() {
  const query = new URLSearchParams(location.search);
  for (const key of Object.keys(DEFAULTS)) state[key] = query.get(key) ?? DEFAULTS[key];
}

export function set(changes) {
  if ("level" in changes && changes.level !== state.level) state.row = ""; // it counts words or tokens
  for (const [key, value] of Object.entries(changes)) state[key] = String(value);
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(state))
    if (value !== DEFAULTS[key] && value.length <= LONGEST) query.set(key, value);
  const text = query.toString();
  try {
    history.replaceState(null, "", text ? `?${text}` : location.pathname);
  } catch {
    /* a page from a file has no such address */
  }
}

/** An index of the address if it is one of `count`; else `other`. */
export const indexOf = (key, count, other) =>
  /^\d+$/u.test(state[key]) && Number(state[key]) < count ? Number(state[key]) : other;

/** The index of the map that the address names, and its head; else those given, and the mean. */
export const mapIndex = (run, other) => indexOf("map", run.maps.length, other);
export const headOf = (map) => indexOf("head", map.heads, "mean");

/** The row that the address names, if the map that it names has rows of this side; else −1. */
export function rowOf(run, side) {
  const map = run.maps[mapIndex(run, -1)];
  return map && map.rowSide !== side ? -1 : indexOf("row", Infinity, -1);
}

/** A value of the address that is JSON; null if it is missing or broken. */
export function stored(key) {
  try {
    return JSON.parse(state[key]);
  } catch {
    return null;
  }
}
