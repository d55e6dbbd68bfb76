// Weights from a safetensors file, and the functions of a network on vectors of float32.

/** The tensors of a file by name; matrices in int8 are multiplied by the scales of their rows. */
export function readTensors(buffer) {
  const size = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
  delete header.__metadata__;
  const floats = (name) => {
    const [start, end] = header[name].data_offsets;
    return new Float32Array(buffer.slice(8 + size + start, 8 + size + end));
  };
  const tensors = new Map();
  for (const [
    name,
    {
      dtype,
      shape,
      data_offsets: [start, end],
    },
  ] of Object.entries(header)) {
    if (name.endsWith(".scale") && name.slice(0, -6) in header) continue;
    const rows = shape[0],
      columns = shape.length > 1 ? shape[1] : 1;
    let data;
    if (dtype === "I8") {
      const values = new Int8Array(buffer, 8 + size + start, end - start),
        scale = floats(`${name}.scale`);
      data = new Float32Array(values.length);
      for (let r = 0, i = 0; r < rows; r++)
        for (let c = 0; c < columns; c++, i++) data[i] = values[i] * scale[r];
    } else data = floats(name);
    tensors.set(name, { data, rows, columns });
  }
  return tensors;
}

/** W x + b into a new vector. */
export function linear({ data, rows, columns }, x, bias = null) {
  const out = new Float32Array(rows),
    end = columns - 3;
  for (let r = 0; r < rows; r++) {
    let i = r * columns,
      c = 0,
      s0 = 0,
      s1 = 0,
      s2 = 0,
      s3 = 0;
    for (; c < end; c += 4, i += 4) {
      s0 += data[i] * x[c];
      s1 += data[i + 1] * x[c + 1];
      s2 += data[i + 2] * x[c + 2];
      s3 += data[i + 3] * x[c + 3];
    }
    for (; c < columns; c++, i++) s0 += data[i] * x[c];
    out[r] = s0 + s1 + s2 + s3 + (bias ? bias[r] : 0);
  }
  return out;
}

export function concat(...vectors) {
  const out = new Float32Array(vectors.reduce((sum, v) => sum + v.length, 0));
  let at = 0;
  for (const v of vectors) {
    out.set(v, at);
    at += v.length;
  }
  return out;
}

export const add = (x, y) => x.map((value, i) => value + y[i]);

/** Softmax in place. */
export function softmax(x) {
  let top = -Infinity,
    sum = 0;
  for (let i = 0; i < x.length; i++) if (x[i] > top) top = x[i];
  for (let i = 0; i < x.length; i++) sum += x[i] = Math.exp(x[i] - top);
  for (let i = 0; i < x.length; i++) x[i] /= sum;
  return x;
}

/** Log probabilities of scores, without PAD and BOS (ids 0 and 2), which are never generated. */
export function logProbabilities(scores) {
  const out = Float64Array.from(scores);
  out[0] = out[2] = -Infinity;
  let top = -Infinity,
    sum = 0;
  for (const x of out) if (x > top) top = x;
  for (const x of out) sum += Math.exp(x - top);
  const total = top + Math.log(sum);
  for (let i = 0; i < out.length; i++) out[i] -= total;
  return out;
}

/** LayerNorm, or RMSNorm where there is no bias. */
export function normalize(x, weight, bias, eps) {
  let mean = 0,
    square = 0;
  if (bias) {
    for (const v of x) mean += v;
    mean /= x.length;
  }
  for (const v of x) square += (v - mean) ** 2;
  const scale = 1 / Math.sqrt(square / x.length + eps);
  return x.map((v, i) => (v - mean) * scale * weight[i] + (bias ? bias[i] : 0));
}

export const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const swish = (x) => x * sigmoid(x);

/** The error function to 1.5e-7 (Abramowitz & Stegun 7.1.26). */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const tail =
    t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - tail * Math.exp(-x * x));
}

export const ACTIVATIONS = {
  relu: (x) => (x > 0 ? x : 0),
  gelu: (x) => (x / 2) * (1 + erf(x / Math.SQRT2)),
  "gelu-tanh": (x) => (x / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  swish,
  swiglu: swish,
};
