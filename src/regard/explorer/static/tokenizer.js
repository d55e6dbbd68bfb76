// Text to token ids and back, as regard.data.tokenizer: bpe, byte-bpe, character and word.

export const PAD = 0,
  UNK = 1,
  BOS = 2,
  EOS = 3;
const NAMES = ["<pad>", "<unk>", "<s>", "</s>"];
// Letters, digits or other characters, each run with the space before it; all whitespace is covered.
const PIECES =
  / ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{M}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

/** GPT-2's table of byte-level BPE: a byte is itself where it prints, else a character from 256 on. */
function byteCharacters() {
  const table = [];
  for (let byte = 0, next = 256; byte < 256; byte++) {
    const prints = (byte > 32 && byte < 127) || (byte > 160 && byte < 173) || byte > 173;
    table.push(String.fromCharCode(prints ? byte : next++));
  }
  return table;
}

const BYTES = byteCharacters();
const BYTE_OF = new Map(BYTES.map((character, byte) => [character, byte]));

/** Split ">>de<< Hello" into ["de", "Hello"]; the code is null if the text does not start with one. */
export function splitLanguage(text, codes) {
  const match = /^>>([^ ]*)<<(?: |$)/u.exec(text);
  return match && codes.includes(match[1]) ? [match[1], text.slice(match[0].length)] : [null, text];
}

export class Tokenizer {
  /** From the object in a tokenizer file. */
  constructor(file) {
    const { model } = file,
      parts = JSON.stringify(file.pre_tokenizer ?? ""),
      normalizer = JSON.stringify(file.normalizer ?? "");
    this.kind =
      model.type === "WordLevel"
        ? "word"
        : !file.pre_tokenizer
          ? "character"
          : parts.includes("ByteLevel")
            ? "byte-bpe"
            : "bpe";
    this.lowercase = normalizer.includes("Lowercase");
    this.prefix = normalizer.includes("Prepend") ? " " : "";
    this.ids = new Map(Object.entries(model.vocab));
    this.pieces = [];
    for (const [piece, id] of this.ids) this.pieces[id] = piece;
    this.size = this.pieces.length;
    this.languages = this.pieces
      .filter((piece) => piece.startsWith("< >>"))
      .map((piece) => piece.slice(4, -4));
    this.languageIds = new Set(this.languages.map((code) => this.ids.get(`< >>${code}<< >`)));
    this.ranks = new Map(
      (model.merges ?? []).map(([left, right], rank) => [
        this.ids.get(left) * this.size + this.ids.get(right),
        [rank, this.ids.get(left + right)],
      ]),
    );
    // U+FFFD in bytes.
    this.pieces[UNK] = this.kind === "word" ? "<unk>" : this.kind === "byte-bpe" ? "ï¿½" : "\ufffd";
  }

  /** The token ids of a text, without BOS and EOS, and for each the [start, end) of its characters. */
  encode(text) {
    const [code, rest] = splitLanguage(text, this.languages),
      ids = [],
      spans = [];
    const skipped = text.length - rest.length;
    if (code !== null) {
      ids.push(this.ids.get(`< >>${code}<< >`));
      spans.push(null);
    }
    const { normal, origin } = this.normalize(rest);
    const pieces =
      this.kind === "word"
        ? normal.matchAll(/[^ ]+/gu)
        : this.kind === "character"
          ? [[normal]]
          : normal.matchAll(PIECES);
    for (const match of pieces) {
      let at = match.index ?? 0;
      for (const [id, length] of this.piece(match[0])) {
        ids.push(id);
        spans.push([origin[at] + skipped, origin[at + length - 1] + 1 + skipped]);
        at += length;
      }
    }
    return { ids, spans };
  }

  /** The text as the model of the tokenizer reads it, and the index in the text of each of its characters. */
  normalize(text) {
    let normal = text ? this.prefix : "";
    const origin = normal ? [0] : [];
    let at = 0;
    for (const given of text) {
      const character = this.knownSpace(given);
      const lower = this.lowercase ? character.toLowerCase() : character;
      for (let i = 0; i < lower.length; i++) origin.push(at + Math.min(i, character.length - 1));
      normal += lower;
      at += character.length;
    }
    if (origin.length > 1 && this.prefix) origin[0] = -1; // the space in front: before the first character
    return { normal, origin };
  }

  /** A space for whitespace that the vocabulary lacks, such as a tab; other characters as they are. */
  knownSpace(character) {
    const spelled = this.kind === "bpe" || this.kind === "character";
    return spelled && /[\p{White_Space}\x1c-\x1f]/u.test(character) && !this.ids.has(character) ? " " : character;
  }

  /** The tokens of a piece of text as [id, UTF-16 length] pairs. */
  piece(text) {
    if (this.kind === "word") return [[this.ids.get(text) ?? UNK, text.length]];
    const characters =
      this.kind === "byte-bpe"
        ? [...text].flatMap((c) =>
            [...new TextEncoder().encode(c)].map((byte, i, all) => [
              BYTES[byte],
              i === all.length - 1 ? c.length : 0,
            ]),
          )
        : [...text].map((c) => [c, c.length]);
    const symbols = characters.map(([character, length]) => [this.ids.get(character) ?? UNK, length]);
    while (symbols.length > 1) {
      let best = null,
        at = -1;
      for (let i = 0; i + 1 < symbols.length; i++) {
        const merge = this.ranks.get(symbols[i][0] * this.size + symbols[i + 1][0]);
        if (merge && (best === null || merge[0] < best[0])) {
          best = merge;
          at = i;
        }
      }
      if (best === null) break;
      symbols.splice(at, 2, [best[1], symbols[at][1] + symbols[at + 1][1]]);
    }
    return symbols;
  }

  /** Whether a token is part of a text: special and language tokens are not. */
  isText(id) {
    return (id > EOS || id === UNK) && !this.languageIds.has(id);
  }

  decode(ids) {
    const kept = ids.filter((id) => this.isText(id)).map((id) => this.pieces[id]);
    if (this.kind === "word") return kept.join(" ");
    const text = this.kind === "byte-bpe" ? fromBytes(kept) : kept.join("");
    return this.prefix && text.startsWith(" ") ? text.slice(1) : text;
  }

  /** Tokens for display: spaces as ▁, special tokens by name. */
  tokens(ids) {
    return ids.map((id) => {
      if (id <= EOS) return NAMES[id];
      if (this.languageIds.has(id)) return this.pieces[id].slice(2, -2);
      return (this.kind === "byte-bpe" ? fromBytes([this.pieces[id]]) : this.pieces[id]).replaceAll(" ", "▁");
    });
  }

  /**
   * The words of a text and the tokens of each, as an axis of an attention map; `spans` are those of
   * `encode`.
   */
  sideOfText(text, ids, spans) {
    const [, rest] = splitLanguage(text, this.languages),
      skipped = text.length - rest.length;
    return side(
      this.tokens(ids),
      rest,
      spans.map((span) => span && [span[0] - skipped, span[1] - skipped]),
    );
  }

  /** The same for generated tokens. */
  sideOfTokens(ids) {
    let text = "";
    const spans = [];
    if (this.kind === "byte-bpe") {
      const data = ids.map((id) => (this.isText(id) ? bytes([this.pieces[id]]) : []));
      let count = 0; // characters so far: each has one lead byte
      for (const tokenBytes of data) {
        const first = count + (tokenBytes.length && !isLead(tokenBytes[0]) ? -1 : 0);
        for (const byte of tokenBytes) if (isLead(byte)) count++;
        spans.push(tokenBytes.length ? [Math.max(0, first), Math.max(1, count)] : null);
      }
      const characters = [...decodeUtf8(data.flat())],
        starts = [0];
      for (const character of characters) starts.push(starts.at(-1) + character.length);
      text = characters.join("");
      for (const span of spans)
        if (span)
          span.forEach((c, i) => {
            span[i] = starts[Math.min(c, characters.length)];
          });
    } else {
      for (const id of ids) {
        const piece = this.isText(id) ? (this.kind === "word" ? " " : "") + this.pieces[id] : "";
        spans.push(piece ? [text.length, text.length + piece.length] : null);
        text += piece;
      }
    }
    return side(this.tokens(ids), text, spans);
  }
}

const isLead = (byte) => (byte & 0xc0) !== 0x80;
const bytes = (pieces) => [...pieces.join("")].map((character) => BYTE_OF.get(character));
const decodeUtf8 = (data) => new TextDecoder().decode(new Uint8Array(data));
const fromBytes = (pieces) => decodeUtf8(bytes(pieces));

/** A token of space alone belongs to the next word; a token of no word is an entry of its own. */
function side(tokens, text, spans) {
  const words = [...text.matchAll(/[^\p{White_Space}\x1c-\x1f]+/gu)].map((m) => ({
    text: m[0],
    start: m.index,
    end: m.index + m[0].length,
    tokens: [],
  }));
  const alone = [];
  tokens.forEach((name, t) => {
    const span = spans[t];
    let first = span ? words.findIndex((word) => word.end > span[0]) : -1;
    if (first < 0) {
      alone.push({ text: name, tokens: [t], special: true });
      return;
    }
    do words[first++].tokens.push(t);
    while (first < words.length && words[first].start < span[1]);
  });
  const entries = words
    .filter((word) => word.tokens.length)
    .map((word) => ({ text: word.text, tokens: word.tokens, special: false }));
  return { tokens, words: [...entries, ...alone].sort((a, b) => a.tokens[0] - b.tokens[0]) };
}
