// Runs the translator beside the page: messages {id, method, args} are answered by {id, result} or {id,
// error}.

import { guessLanguage, readGuesser } from "./language.js";
import { Run } from "./run.js";
import { readTensors } from "./tensors.js";
import { EOS, Tokenizer, splitLanguage } from "./tokenizer.js";
import { Translator } from "./translator.js";

const KEPT = 24; // runs in memory
const runs = new Map(),
  cancelled = new Set();
let translator = null,
  guesser = null,
  description = null,
  count = 0;

const file = (name) => new URL(`model/${name}`, import.meta.url);

async function read(name) {
  const response = await fetch(file(name));
  if (!response.ok)
    throw new Error(
      `The file model/${name} is missing; write the folder again with regard explore --static.`,
    );
  return response;
}

/** Fetch the weights; progress is posted as a number between 0 and 1. */
async function readWeights() {
  const response = await read("model.safetensors"),
    { bytes } = description,
    parts = [];
  let done = 0;
  for await (const part of chunks(response.body.getReader())) {
    parts.push(part);
    done += part.length;
    postMessage({ progress: Math.min(1, done / bytes) });
  }
  return new Blob(parts).arrayBuffer();
}

async function* chunks(reader) {
  for (let part = await reader.read(); !part.done; part = await reader.read()) yield part.value;
}

const channel = new MessageChannel();
/** A function that lets messages in now and then, and throws once call `id` is cancelled. */
function pauseFor(id) {
  let last = performance.now();
  return async () => {
    if (performance.now() - last > 30) {
      await new Promise((resolve) => {
        channel.port1.onmessage = resolve;
        channel.port2.postMessage(0);
      });
      last = performance.now();
    }
    if (cancelled.has(id)) throw new DOMException("cancelled", "AbortError");
  };
}

/**
 * The text as the model reads it: with the token of the target language in front, for a multilingual model.
 * If the page names no language, English is translated into the model's first other one, as text_read does.
 */
function addTarget(text, to) {
  const codes = translator.source.languages,
    [code] = splitLanguage(text, codes);
  if (!codes.length || code !== null) return text;
  if (to) return `>>${to}<< ${text}`;
  const language = guessLanguage(guesser, text);
  if (language !== null && language !== "en" && codes.includes("en")) return `>>en<< ${text}`;
  const others = codes.filter((other) => other !== language && other !== "en");
  if (others.length && (language === null || language === "en" || others.length === 1))
    return `>>${others[0]}<< ${text}`;
  throw new Error(`This model translates into ${codes.join(", ")}; choose the language.`);
}

function get(id) {
  const run = runs.get(id);
  if (run) return run;
  throw Object.assign(new Error("This run is no longer in memory."), { status: 404 });
}

const methods = {
  async describe() {
    if (translator) return description;
    description = await (await read("description.json")).json();
    const config = (await (await read("config.json")).json()).model;
    const tokenizers = await Promise.all(
      description.tokenizers.map(async (name) => new Tokenizer(await (await read(name)).json())),
    );
    if (tokenizers[0].languages.length)
      guesser = readGuesser(await (await read("language_trigrams.txt")).text());
    translator = new Translator(config, readTensors(await readWeights()), tokenizers[0], tokenizers.at(-1));
    return description;
  },

  async run({ text, to = "", beam = 1, base = null, changes = [], prefix = [] }, id) {
    const before = base === null ? null : get(base),
      pause = pauseFor(id),
      { source, target } = translator;
    const { characters, tokens } = description.limits,
      shorten = (count, what, most) =>
        new Error(
          `The text has ${count.toLocaleString("en")} ${what}, and the explorer takes at most ${most.toLocaleString("en")}; shorten it.`,
        );
    if (text.length > characters) throw shorten(text.length, "characters", characters);
    const given = addTarget(text, to),
      { ids, spans } = source.encode(given);
    if (!ids.length) throw new Error("The tokenizer makes no token of this text; type another.");
    if (ids.length > tokens) throw shorten(ids.length, "tokens", tokens);
    const input = [...ids, EOS],
      hypotheses = await translator.search(input, { beam, changes, prefix, pause }),
      best = hypotheses[0];
    const plain = (tokens) => target.decode(tokens.filter((token) => token !== EOS));
    const output = {
      text: plain(best.tokens),
      logP: best.logP,
      ended: best.ended,
      tokenLogP: best.tokenLogP,
      forced: plain(prefix),
      hypotheses: hypotheses.map(({ tokens, logP, score }) => ({ text: plain(tokens), logP, score })),
    };
    if (before) output.comparison = compare(before, { input, tokens: best.tokens, logP: best.logP, changes });
    const sides = {
      source: source.sideOfText(given, input, [...spans, null]),
      target: target.sideOfTokens(best.tokens),
      inputs: target.sideOfTokens([2, ...best.tokens.slice(0, -1)]),
    };
    const run = new Run(text, output, sides, best.maps, {
        input,
        tokens: best.tokens,
        logP: best.logP,
        changes,
      }),
      name = `run${++count}`;
    runs.set(name, run);
    if (runs.size > KEPT) runs.delete(runs.keys().next().value);
    return run.describe(name);
  },

  runAgainst: (base, request, id) => methods.run({ ...request, base }, id),
  thumbnails: async (id) => get(id).thumbnails(),
  head: async (id, map, which) => get(id).head(map, which),

  async leaveOneOut(id, row, call) {
    const { input, tokens } = get(id);
    return translator.leaveOneOut(input, tokens, row, pauseFor(call));
  },
};

/** How likely each of the two outputs is with and without the changes. */
function compare(before, { input, tokens, logP, changes }) {
  const same = before.tokens.join() === tokens.join(),
    known = !before.changes.length && before.input.join() === input.join();
  const plain = known ? before.logP : translator.score(input, before.tokens);
  const own = (of) => (changes.length ? translator.score(input, of) : logP);
  return {
    original: {
      plain,
      edited: same ? logP : changes.length ? translator.score(input, before.tokens, changes) : plain,
    },
    changed: { plain: same ? plain : own(tokens), edited: logP },
  };
}

addEventListener("message", async ({ data: { id, method, args, cancel } }) => {
  if (cancel) {
    cancelled.add(cancel);
    return;
  }
  try {
    postMessage({ id, result: await methods[method](...args, id) });
  } catch (error) {
    postMessage({ id, error: { message: error.message, name: error.name, status: error.status } });
  }
  cancelled.delete(id);
});
