// The files of a saved model: the tokenizer, and the weights.

/** A byte-level BPE, unigram or word tokenizer, read from tokenizer.json. */
class Tokenizer {
  constructor({ model, normalizer, pre_tokenizer: split, post_processor: post, decoder, added_tokens: added }) {
    const parts = split?.pretokenizers ?? [split];
    const steps = normalizer?.normalizers ?? (normalizer ? [normalizer] : []);
    const hasParts = model.type === "WordPiece" && Object.keys(model.vocab).some((token) => /^##./.test(token));
    const isKnown = !hasParts && steps.every(({ type }) => ["Lowercase", "Prepend"].includes(type));
    const kind = [model.type, ...parts.map((part) => part?.type)].join();
    if (!isKnown || !["BPE,Split,ByteLevel", "Unigram,Split", "WordPiece,Split"].includes(kind))
      throw new Error(`This kind of tokenizer (${model.type}) is not supported in the page.`);
    this.words = model.type === "WordPiece";
    this.pattern = new RegExp(parts[0].pattern.Regex, "gu");
    this.lowers = steps.some(({ type }) => type === "Lowercase");
    this.prefix = steps.map(({ prepend = "" }) => prepend).join(""); // added before the first word of a text
    this.strips = decoder?.decoders?.some(({ type }) => type === "Strip");
    this.added = added;
    this.special = new Set(added.filter((token) => token.special).map(({ id }) => id));
    this.scores = model.type === "Unigram" ? new Map(model.vocab) : null; // token -> log-probability
    this.unknown = this.scores && Math.min(...this.scores.values()) - 10; // the score of a character without a token
    const vocabulary = this.scores ? model.vocab.map(([token], id) => [token, id]) : Object.entries(model.vocab);
    this.ids = new Map([...vocabulary, ...added.map(({ content, id }) => [content, id])]);
    this.tokens = new Map([...this.ids].map(([token, id]) => [id, token]));
    this.ranks = new Map((model.merges ?? []).map((pair, rank) => [[pair].flat().join(" "), rank]));
    this.other = this.ids.get(model.unk_token); // the id of all words that are not in the vocabulary
    this.template = post.processors.find(({ type }) => type === "TemplateProcessing");
    // As in GPT-2, non-printable bytes are represented by characters from U+0100 on.
    let next = 256;
    const letter = (byte) => ((byte > 32 && byte < 127) || (byte > 160 && byte !== 173) ? byte : next++);
    this.letters = Array.from({ length: 256 }, (_, byte) => String.fromCharCode(letter(byte)));
    this.bytes = new Map(this.letters.map((character, byte) => [character, byte]));
  }

  /** Encode one text, or a pair of texts, with special tokens. */
  encode(text, second = null, isPlain = false) {
    const texts = { A: text, B: second };
    return this.template[second === null ? "single" : "pair"].flatMap(({ Sequence, SpecialToken }) =>
      Sequence ? this.encodePlain(texts[Sequence.id], isPlain) : this.ids.get(SpecialToken.id),
    );
  }

  /** Encode a text without adding special tokens; with `isPlain`, "</s>" in the text is treated as ordinary text. */
  encodePlain(text, isPlain = false) {
    const token = isPlain ? null : this.added.find(({ content }) => text.includes(content));
    const split = (word) => {
      if (this.words) return this.ids.get(word) ?? this.other;
      return this.scores ? this.likeliest(word) : this.merge(word);
    };
    // letter by letter: in whole words, JavaScript treats the Greek letter sigma differently
    const plain = this.lowers ? Array.from(text, (letter) => letter.toLowerCase()).join("") : text;
    if (!token) return ((plain && this.prefix + plain).match(this.pattern) ?? []).flatMap(split);
    const at = text.indexOf(token.content);
    const before = text.slice(0, at);
    const rest = this.encodePlain(text.slice(at + token.content.length));
    return [...this.encodePlain(token.lstrip ? before.trimEnd() : before), token.id, ...rest];
  }

  /** Apply the BPE merges to a word in the order in which they were learned, and return the token ids. */
  merge(word) {
    const parts = Array.from(new TextEncoder().encode(word), (byte) => this.letters[byte]);
    for (;;) {
      const ranks = parts.slice(1).map((part, i) => this.ranks.get(`${parts[i]} ${part}`) ?? Infinity);
      const first = Math.min(...ranks);
      if (first === Infinity) return parts.map((part) => this.ids.get(part));
      const i = ranks.indexOf(first);
      parts.splice(i, 2, parts[i] + parts[i + 1]);
    }
  }

  /** Return the ids of the most probable tokens of a word for a unigram model (Viterbi's algorithm). */
  likeliest(word) {
    const letters = [...word];
    const best = [{ score: 0 }, ...letters.map(() => ({ score: -Infinity }))]; // by number of letters read
    letters.forEach((letter, start) => {
      for (let piece = "", end = start + 1; end <= letters.length; end++) {
        piece += letters[end - 1];
        const score = best[start].score + (this.scores.get(piece) ?? (end === start + 1 ? this.unknown : -Infinity));
        if (score > best[end].score) best[end] = { score, start, piece };
      }
    });
    const ids = [];
    for (let end = letters.length; end > 0; end = best[end].start) {
      const { piece } = best[end];
      const hex = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
      const tokens = this.scores.has(piece) ? [piece] : Array.from(new TextEncoder().encode(piece), hex);
      ids.unshift(...tokens.map((token) => this.ids.get(token)));
    }
    return ids;
  }

  /** Return the bytes of a token. */
  bytesOf(id) {
    const token = this.tokens.get(id);
    const [, byte] = (this.scores && /^<0x(..)>$/.exec(token)) || [];
    if (byte) return [parseInt(byte, 16)];
    if (this.scores || this.words) return [...new TextEncoder().encode(token)];
    return Array.from(token, (letter) => this.bytes.get(letter)).filter((byte) => byte !== undefined);
  }

  /** Return the text of ids other than special tokens, with its leading space. */
  textOf(ids) {
    const shown = ids.filter((id) => !this.special.has(id));
    if (this.words) return shown.map((id) => ` ${this.tokens.get(id)}`).join("");
    const bytes = shown.flatMap((id) => this.bytesOf(id));
    return new TextDecoder().decode(Uint8Array.from(bytes));
  }

  /** Decode ids, skipping special tokens. */
  decode(ids) {
    return this.strips || this.words ? this.textOf(ids).replace(/^ /, "") : this.textOf(ids);
  }
}

/** Return the value of a float16, given its bits: 1 for the sign, 5 for the exponent, 10 for the fraction. */
function fromHalf(bits) {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const size = exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
  return bits >> 15 ? -size : size;
}

/** Return the tensors of a .safetensors file by name, converted to float32. Supports float32, float16 and bfloat16. */
function readSafetensors(buffer) {
  const start = 8 + Number(new DataView(buffer).getBigUint64(0, true));
  const { __metadata__, ...tensors } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
  const read = ([name, { dtype, data_offsets: offsets }]) => {
    const bytes = buffer.slice(...offsets.map((offset) => start + offset));
    if (dtype === "F32") return [name, new Float32Array(bytes)];
    if (dtype === "F16") return [name, Float32Array.from(new Uint16Array(bytes), fromHalf)];
    if (dtype !== "BF16") throw new Error(`${name} is stored as ${dtype}, which is not supported in the page.`);
    // bfloat16 is the upper half of a float32
    const doubled = Uint32Array.from(new Uint16Array(bytes), (half) => half << 16);
    return [name, new Float32Array(doubled.buffer)];
  };
  return Object.fromEntries(Object.entries(tensors).map(read));
}

/** Fetch the files of the saved model in the folder at this URL. */
async function fetchModel(folder) {
  const names = ["config.json", "tokenizer.json", "model.safetensors", "generation_config.json"];
  const [config, tokenizer, weights, generation] = await Promise.all(names.map((name) => fetch(folder + name)));
  const missing = [config, tokenizer, weights, generation].find((answer) => !answer.ok);
  if (missing) throw new Error(`The server answered ${missing.status} for ${missing.url}.`);
  return {
    config: await config.json(),
    tokenizer: await tokenizer.json(),
    weights: await weights.arrayBuffer(),
    generation: await generation.json(),
  };
}

/** Build a model from the content of its files. `weights` may also be in base64, as in a saved page. */
function readModel({ config, tokenizer, weights, generation }) {
  const decode = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer;
  const tensors = readSafetensors(typeof weights === "string" ? decode(weights) : weights);
  return new Transformer(config, tensors, new Tokenizer(tokenizer), generation);
}
