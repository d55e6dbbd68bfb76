// A translator of regard: encode a text, search (greedy or beam), score, and change attention on the way.

import { DECODERS, ENCODERS } from "./network.js";
import { linear, logProbabilities, softmax } from "./tensors.js";
import { BOS, EOS } from "./tokenizer.js";

/** A function that applies changes of attention, in order, to a row of weights. */
function editor(changes) {
  if (!changes.length) return () => {};
  return (map, head, row, weights) => {
    for (const { map: name, change, head: only = null, row: at = null, key, weights: given } of changes) {
      if (name !== map || (only !== null && only !== head) || (at !== null && at !== row)) continue;
      if (change === "uniform") weights.fill(1 / weights.length);
      else if (change === "zero") weights.fill(0);
      else if (change === "weights") for (let s = 0; s < weights.length; s++) weights[s] = given[s] ?? 0;
      else if (key < weights.length) {
        weights.fill(0);
        weights[key] = 1;
      } else if (at !== null)
        throw new Error(`Row ${at + 1} of ${map} does not see token ${key + 1}; choose another.`);
    }
  };
}

export class Translator {
  constructor(config, tensors, source, target) {
    const { dim, tie, scale_embeddings: scaled, encoder, decoder } = config;
    Object.assign(this, { source, target, scale: scaled ? Math.sqrt(dim) : 1, config });
    this.targetTable = tensors.get("target.table.weight");
    this.sourceTable = tie === "all" ? this.targetTable : tensors.get("source.table.weight");
    this.projection = tie === "none" ? tensors.get("output.projection.weight") : this.targetTable;
    this.readout = tensors.get("output.readout.weight");
    this.bias = tensors.get("output.projection.bias")?.data;
    this.encoder = new ENCODERS[encoder.kind](tensors, "encoder", encoder);
    this.decoder = new DECODERS[decoder.kind](tensors, "decoder", decoder);
  }

  embed({ data, columns }, id) {
    return data.slice(id * columns, (id + 1) * columns).map((x) => x * this.scale);
  }

  encode(ids, edit) {
    return this.encoder.encode(
      ids.map((id) => this.embed(this.sourceTable, id)),
      edit,
    );
  }

  /** Feed one token to a hypothesis: its next scores are in `scores`, the weights of the step in `maps`. */
  step(hypothesis, token, edit) {
    const [features, state, maps] = this.decoder.step(
      this.embed(this.targetTable, token),
      hypothesis.state,
      hypothesis.length,
      edit,
    );
    const read = this.readout ? linear(this.readout, features) : features;
    return { ...hypothesis, state, maps, scores: linear(this.projection, read, this.bias) };
  }

  begin(ids, edit) {
    const memory = this.encode(ids, edit);
    return {
      memory,
      first: { state: this.decoder.start(memory), length: 0, logP: 0, token: BOS, parent: null },
    };
  }

  longest(source, prefix) {
    const { encoder, decoder } = this.config,
      learned = (part) => (part.position === "learned" ? part.max_positions : Infinity);
    if (source > learned(encoder))
      throw new Error(`The text has ${source} tokens, and this model reads ${learned(encoder)}; shorten it.`);
    return Math.min(Math.floor((source * 3) / 2) + 20 + prefix, learned(decoder));
  }

  /**
   * Search translations of source ids (with EOS). Returns hypotheses, best first: {tokens (with EOS if
   * ended), tokenLogP, logP, score, ended, maps}. `pause` is awaited at every step, so that the caller can cancel;
   * `prefix` is forced.
   */
  async search(ids, { beam = 1, changes = [], prefix = [], pause = async () => {} } = {}) {
    const edit = editor(changes),
      { memory, first } = this.begin(ids, edit),
      most = this.longest(ids.length, prefix.length),
      done = [];
    let rows = [first];
    const finish = (row, token, logP, ended) =>
      done.push({ parent: row, token, logP, length: row.length + 1, ended });
    for (let length = 1; rows.length; length++) {
      await pause();
      const candidates = [];
      rows = rows.map((row) => this.step(row, row.token, edit));
      for (const row of rows) {
        const logP = logProbabilities(row.scores),
          forced = prefix[length - 1];
        for (const token of forced === undefined ? best(logP, beam === 1 ? 1 : beam + 1) : [forced]) {
          candidates.push({ row, token, logP: row.logP + logP[token] });
        }
      }
      if (rows.length > 1 || candidates.length > 1) candidates.sort((a, b) => b.logP - a.logP); // stable
      const kept = candidates.slice(0, 2 * beam).filter(({ logP }) => logP > -Infinity);
      for (const { row, token, logP } of kept.slice(0, beam))
        if (token === EOS) finish(row, token, logP, true);
      let next = kept.filter(({ token }) => token !== EOS).slice(0, beam);
      if (done.length >= beam) next = [];
      else if (length >= most) {
        for (const { row, token, logP } of next.slice(0, beam - done.length)) finish(row, token, logP, false);
        next = [];
      }
      rows = next.map(({ row, token, logP }) => ({ state: row.state, length, logP, token, parent: row }));
    }
    const sorted = done
      .map((end) => ({ ...end, score: end.logP / end.length }))
      .sort((a, b) => b.score - a.score);
    return sorted.slice(0, beam).map((end) => this.hypothesis(end, memory));
  }

  /** Collect the tokens and the attention of a finished hypothesis from its chain of steps. */
  hypothesis(end, memory) {
    const steps = [];
    for (let at = end; at.parent; at = at.parent) steps.unshift(at);
    const maps = { ...memory.maps };
    for (const { parent } of steps)
      for (const [name, weights] of Object.entries(parent.maps)) (maps[name] ??= []).push(weights);
    const tokenLogP = steps.map((step) => step.logP - step.parent.logP);
    return {
      tokens: steps.map((step) => step.token),
      tokenLogP,
      logP: end.logP,
      score: end.score,
      ended: end.ended,
      maps,
    };
  }

  /** The log probability of a given translation. */
  score(ids, tokens, changes = []) {
    const edit = editor(changes);
    let { first: row } = this.begin(ids, edit),
      logP = 0;
    [BOS, ...tokens.slice(0, -1)].forEach((token, t) => {
      row = { ...this.step(row, token, edit), length: t + 1 };
      logP += logProbabilities(row.scores)[tokens[t]];
    });
    return logP;
  }

  /** The distribution of the token after a beginning of a translation. */
  distribution(ids, tokens) {
    const edit = editor([]);
    let { first: row } = this.begin(ids, edit);
    [BOS, ...tokens].forEach((token, t) => {
      row = { ...this.step(row, token, edit), length: t + 1 };
    });
    return softmax(Float64Array.from(row.scores));
  }

  /**
   * How much each source token counts for token `row`: the change (total variation) of its distribution
   * without that token.
   */
  async leaveOneOut(ids, tokens, row, pause = async () => {}) {
    const given = tokens.slice(0, row),
      plain = this.distribution(ids, given),
      scores = [];
    for (let s = 0; s < ids.length - 1; s++) {
      // not the end of the sentence
      await pause();
      const other = this.distribution(
        ids.filter((_, i) => i !== s),
        given,
      );
      scores.push(plain.reduce((sum, p, i) => sum + Math.abs(p - other[i]), 0) / 2);
    }
    return scores;
  }
}

/** The indices of the `count` largest values, largest first; the first of equal ones. */
function best(values, count) {
  const top = [];
  for (let i = 0; i < values.length; i++) {
    if (top.length === count && !(values[i] > values[top.at(-1)])) continue;
    let at = top.length;
    while (at && values[i] > values[top[at - 1]]) at--;
    top.splice(at, 0, i);
    if (top.length > count) top.pop();
  }
  return top;
}
