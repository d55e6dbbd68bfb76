// A finished run: its description for the page, thumbnails and heads, as regard.explorer.run.

const THUMBNAIL = 40; // largest side of a thumbnail in cells; larger maps are max-pooled
const SIDES = { encoder: ["source", "source"], decoder: ["target", "inputs"], cross: ["target", "source"] };

const kindOf = (name) =>
  name.endsWith(".cross") ? "cross" : name.startsWith("encoder.") ? "encoder" : "decoder";

export class Run {
  /** `maps`: by name a list of rows; a row of a decoder sees no later keys, whose weights are 0. */
  constructor(text, output, sides, maps, inside) {
    Object.assign(this, { text, output, sides, ...inside });
    this.maps = Object.entries(maps).map(([name, rows]) => matrix(name, rows));
  }

  describe(id) {
    const layers = {};
    const maps = this.maps.map(({ name, heads, rows, columns }, index) => {
      const kind = kindOf(name),
        [rowSide, columnSide] = SIDES[kind];
      layers[kind] = (layers[kind] ?? -1) + 1;
      return {
        name,
        kind,
        layer: layers[kind],
        heads,
        rows,
        columns,
        rowSide,
        columnSide,
        thumbnail: [Math.min(rows, THUMBNAIL), Math.min(columns, THUMBNAIL)],
        entropy: this.measureHeads(index, entropy),
        distance: this.measureHeads(index, (w) => distance(w, rows, columns, kind)),
        rowsEditable: true,
      };
    });
    return { id, model: 0, task: "translate", text: this.text, output: this.output, sides: this.sides, maps };
  }

  measureHeads(index, measure) {
    const { heads, columns } = this.maps[index];
    return Array.from(
      { length: heads },
      (_, h) => Math.round(measure(this.head(index, h), columns) * 1e4) / 1e4,
    );
  }

  /** The weights of a head, or of the mean of all ("mean"), rows × columns. */
  head(index, which) {
    const { data, heads, rows, columns } = this.maps[index],
      size = rows * columns;
    if (which !== "mean") return data.slice(which * size, (which + 1) * size);
    const mean = new Float32Array(size);
    for (let i = 0; i < size; i++) {
      let sum = 0;
      for (let h = 0; h < heads; h++) sum += data[h * size + i];
      mean[i] = sum / heads;
    }
    return mean;
  }

  thumbnails() {
    return this.maps.map(({ heads, rows, columns }, index) =>
      Array.from({ length: heads }, (_, h) => {
        const small = pool(this.head(index, h), rows, columns),
          peak = Math.max(1e-12, ...small);
        return Uint8Array.from(small, (w) => Math.round((w / peak) * 255));
      }),
    );
  }
}

/** Rows of weights, measureHeads a list of vectors by head, as one array, heads × rows × columns. */
function matrix(name, rows) {
  const heads = rows[0].length,
    columns = rows.at(-1)[0].length,
    data = new Float32Array(heads * rows.length * columns);
  rows.forEach((row, r) => row.forEach((weights, h) => data.set(weights, (h * rows.length + r) * columns)));
  return { name, heads, rows: rows.length, columns, data };
}

/** Mean entropy of the rows in bits. */
function entropy(weights, columns) {
  let sum = 0;
  for (const w of weights) if (w > 0) sum -= w * Math.log2(w);
  return sum / (weights.length / columns);
}

/** Mean distance in tokens between query and key, by weight; of cross-attention from the diagonal. */
function distance(weights, rows, columns, kind) {
  const scale = kind === "cross" ? (columns - 1) / Math.max(1, rows - 1) : 1;
  let sum = 0,
    total = 0;
  for (let i = 0; i < weights.length; i++) {
    sum += weights[i] * Math.abs(Math.floor(i / columns) * scale - (i % columns));
    total += weights[i];
  }
  return sum / Math.max(total, 1e-12);
}

/** The largest weight of measureHeads cell of a grid of at most 40 × 40. */
function pool(weights, rows, columns) {
  const height = Math.min(rows, THUMBNAIL),
    width = Math.min(columns, THUMBNAIL),
    out = new Float32Array(height * width);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const bottom = Math.ceil(((y + 1) * rows) / height),
        right = Math.ceil(((x + 1) * columns) / width);
      for (let r = Math.floor((y * rows) / height); r < bottom; r++) {
        for (let c = Math.floor((x * columns) / width); c < right; c++)
          out[y * width + x] = Math.max(out[y * width + x], weights[r * columns + c]);
      }
    }
  }
  return out;
}
