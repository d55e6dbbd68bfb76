// The encoders and decoders of a translator: Transformer and recurrent (Bahdanau et al. 2015).  An encoder
// returns {states, last, maps}. A decoder has start(memory) → state and step(x, state, row) → [features,
// state]; a state is never changed, so the hypotheses of a beam share what they have in common. `edit(map,
// head, row, weights)` changes attention weights in place before they are used. A row of a map is a list of
// vectors, one per head.

import { ACTIVATIONS, add, concat, linear, normalize, sigmoid, softmax } from "./tensors.js";

/** One row of attention: the output of all heads, and the weights of each. */
function attend(query, keys, values, { heads, keyHeads, name, row }, edit) {
  const width = query.length / heads,
    valueWidth = values[0].length / keyHeads,
    scale = 1 / Math.sqrt(width);
  const out = new Float32Array(heads * valueWidth),
    recorded = [];
  for (let h = 0; h < heads; h++) {
    const group = Math.floor((h * keyHeads) / heads),
      weights = new Float64Array(keys.length);
    for (let s = 0; s < keys.length; s++) {
      let sum = 0;
      for (let i = 0, q = h * width, k = group * width; i < width; i++) sum += query[q + i] * keys[s][k + i];
      weights[s] = sum * scale;
    }
    softmax(weights);
    edit(name, h, row, weights);
    recorded.push(Float32Array.from(weights));
    for (let i = 0; i < valueWidth; i++) {
      let sum = 0;
      for (let s = 0; s < keys.length; s++) sum += weights[s] * values[s][group * valueWidth + i];
      out[h * valueWidth + i] = sum;
    }
  }
  return [out, recorded];
}

class Part {
  constructor(tensors, prefix, options) {
    Object.assign(this, { tensors, prefix, options });
  }
  tensor(name) {
    return this.tensors.get(`${this.prefix}.${name}`);
  }
  linear(name, x) {
    return linear(this.tensor(`${name}.weight`), x, this.tensor(`${name}.bias`)?.data);
  }
}

class Transformer extends Part {
  get heads() {
    return { heads: this.options.heads, keyHeads: this.options.key_heads ?? this.options.heads };
  }

  norm(name, x) {
    const weight = this.tensor(`${name}.weight`);
    if (!weight) return x;
    const eps = this.options.norm_eps ?? (this.options.norm_kind === "rms" ? 2 ** -23 : 1e-5);
    return normalize(x, weight.data, this.tensor(`${name}.bias`)?.data, eps);
  }

  residual(name, x, sublayer) {
    if (this.options.norm === "pre") return add(x, sublayer(this.norm(`${name}.norm`, x)));
    return this.norm(`${name}.norm`, add(x, sublayer(x)));
  }

  feed(layer, x) {
    const h = this.linear(`${layer}.feed.W1`, x),
      { activation } = this.options,
      f = ACTIVATIONS[activation];
    if (activation !== "swiglu") return this.linear(`${layer}.feed.W2`, h.map(f));
    const half = h.length / 2;
    return this.linear(
      `${layer}.feed.W2`,
      h.subarray(0, half).map((v, i) => f(v) * h[half + i]),
    );
  }

  position(x, t) {
    if (this.options.position === "none") return x;
    if (this.options.position === "learned")
      return add(x, this.tensor("position.weight").data.subarray(t * x.length, (t + 1) * x.length));
    return x.map((v, i) => {
      const angle = t * 10000 ** (-(i - (i % 2)) / x.length);
      return v + Math.fround(i % 2 ? Math.cos(angle) : Math.sin(angle));
    });
  }
}

export class TransformerEncoder extends Transformer {
  encode(vectors, edit) {
    let states = vectors.map((x, t) => this.position(x, t));
    const maps = {};
    for (let i = 0; i < this.options.layers; i++) {
      const layer = `layers.${i}`,
        at = `${layer}.attention`,
        name = `encoder.${at}.self`;
      const inner =
        this.options.norm === "pre"
          ? states.map((x) => this.norm(`${layer}.around_attention.norm`, x))
          : states;
      const keys = inner.map((x) => this.linear(`${at}.Wk`, x)),
        values = inner.map((x) => this.linear(`${at}.Wv`, x));
      maps[name] = [];
      states = states.map((x, row) => {
        const sublayer = () => {
          const [out, weights] = attend(
            this.linear(`${at}.Wq`, inner[row]),
            keys,
            values,
            { ...this.heads, name, row },
            edit,
          );
          maps[name].push(weights);
          return this.linear(`${at}.Wo`, out);
        };
        return this.residual(
          `${layer}.around_feed`,
          this.residual(`${layer}.around_attention`, x, sublayer),
          (y) => this.feed(layer, y),
        );
      });
    }
    return { states: states.map((x) => this.norm("norm", x)), maps };
  }
}

export class TransformerDecoder extends Transformer {
  start({ states }) {
    const layers = Array.from({ length: this.options.layers }, (_, i) => ({
      keys: [],
      values: [],
      memoryKeys: states.map((x) => this.linear(`layers.${i}.cross.Wk`, x)),
      memoryValues: states.map((x) => this.linear(`layers.${i}.cross.Wv`, x)),
    }));
    return { layers };
  }

  step(x, state, row, edit) {
    x = this.position(x, row);
    const layers = [],
      maps = {};
    state.layers.forEach((before, i) => {
      const layer = `layers.${i}`,
        cache = { ...before };
      const attention = (at, name) => (y) => {
        const cross = at.endsWith("cross");
        if (!cross) {
          cache.keys = [...before.keys, this.linear(`${at}.Wk`, y)];
          cache.values = [...before.values, this.linear(`${at}.Wv`, y)];
        }
        const [keys, values] = cross ? [cache.memoryKeys, cache.memoryValues] : [cache.keys, cache.values];
        const [out, weights] = attend(
          this.linear(`${at}.Wq`, y),
          keys,
          values,
          { ...this.heads, name, row },
          edit,
        );
        maps[name] = weights;
        return this.linear(`${at}.Wo`, out);
      };
      x = this.residual(
        `${layer}.around_attention`,
        x,
        attention(`${layer}.attention`, `decoder.${layer}.attention.self`),
      );
      x = this.residual(`${layer}.around_cross`, x, attention(`${layer}.cross`, `decoder.${layer}.cross`));
      x = this.residual(`${layer}.around_feed`, x, (y) => this.feed(layer, y));
      layers.push(cache);
    });
    return [this.norm("norm", x), { layers }, maps];
  }
}

/** One step of torch's RNN, GRU or LSTM cell: [h] or [h, c]. */
function cell(kind, input, recurrent, state) {
  const [h, c] = state,
    n = h.length,
    next = new Float32Array(n),
    memory = new Float32Array(n);
  for (let i = 0; i < n; i++) {
    if (kind === "gru") {
      const reset = sigmoid(input[i] + recurrent[i]),
        update = sigmoid(input[n + i] + recurrent[n + i]);
      const candidate = Math.tanh(input[2 * n + i] + reset * recurrent[2 * n + i]);
      next[i] = (1 - update) * candidate + update * h[i];
    } else if (kind === "lstm") {
      const gate = (g) => input[g * n + i] + recurrent[g * n + i];
      memory[i] = sigmoid(gate(1)) * c[i] + sigmoid(gate(0)) * Math.tanh(gate(2));
      next[i] = sigmoid(gate(3)) * Math.tanh(memory[i]);
    } else next[i] = Math.tanh(input[i] + recurrent[i]);
  }
  return kind === "lstm" ? [next, memory] : [next];
}

class Recurrence extends Part {
  /** One step of a layer; `direction` is "" or "_reverse". */
  run(layer, x, state, direction = "") {
    const get = (name) => this.tensor(`stack.layers.${layer}.${name}_l0${direction}`);
    const input = linear(get("weight_ih"), x, get("bias_ih").data),
      recurrent = linear(get("weight_hh"), state[0], get("bias_hh").data);
    return cell(this.options.cell, input, recurrent, state);
  }
}

export class RecurrentEncoder extends Recurrence {
  encode(vectors) {
    let states = vectors;
    const last = [],
      directions = this.options.bidirectional ? ["", "_reverse"] : [""];
    for (let layer = 0; layer < this.options.layers; layer++) {
      const width = this.tensor(`stack.layers.${layer}.weight_hh_l0`).columns;
      const passes = directions.map((direction) => {
        let state = Array.from(
          { length: this.options.cell === "lstm" ? 2 : 1 },
          () => new Float32Array(width),
        );
        const out = [],
          order = [...states.keys()];
        for (const t of direction ? order.reverse() : order) {
          state = this.run(layer, states[t], state, direction);
          out[t] = state[0];
        }
        return { out, state };
      });
      states = states.map((_, t) => concat(...passes.map(({ out }) => out[t])));
      last.push(passes[0].state.map((_, part) => concat(...passes.map(({ state }) => state[part]))));
    }
    return { states, last, maps: {} };
  }
}

export class BahdanauDecoder extends Recurrence {
  start({ states, last }) {
    const projected = states.map((x) => linear(this.tensor("attention.energy.Wk.weight"), x));
    return { states, projected, hidden: this.initial(states, last) };
  }

  initial(states, last) {
    const { initial_state: of, layers } = this.options,
      parts = this.options.cell === "lstm" ? 2 : 1;
    if (of === "copy") return last;
    const mean = () => states.reduce(add).map((v) => v / states.length);
    const flat = this.linear(
      "initial_state.map",
      of === "mean" ? mean() : last ? last.at(-1)[0] : states.at(-1),
    ).map(Math.tanh);
    const width = flat.length / (layers * parts);
    return Array.from({ length: layers }, (_, i) =>
      Array.from({ length: parts }, (_, p) =>
        flat.slice((i * parts + p) * width, (i * parts + p + 1) * width),
      ),
    );
  }

  step(x, state, row, edit) {
    const { states, projected, hidden } = state,
      name = "decoder.attention.cross",
      v = this.tensor("attention.energy.v").data;
    const query = linear(this.tensor("attention.energy.Wq.weight"), hidden.at(-1)[0]);
    const weights = softmax(
      Float64Array.from(projected, (key) =>
        key.reduce((sum, k, i) => sum + v[i] * Math.tanh(query[i] + k), 0),
      ),
    );
    edit(name, 0, row, weights);
    const context = states[0].map((_, i) => weights.reduce((sum, w, s) => sum + w * states[s][i], 0));
    let y = concat(x, context);
    const next = hidden.map((before, layer) => {
      const after = this.run(layer, y, before);
      y = after[0];
      return after;
    });
    return [concat(y, context, x), { ...state, hidden: next }, { [name]: [Float32Array.from(weights)] }];
  }
}

export const ENCODERS = { transformer: TransformerEncoder, recurrent: RecurrentEncoder };
export const DECODERS = { transformer: TransformerDecoder, bahdanau: BahdanauDecoder };
