// Translates with the files beside this one: word pieces, and greedy or beam search.

const [PAD, UNK, START, END] = [0, 1, 2, 3];
const JOINER = "\uffed";
const CHUNK = 16; // how many places more the states get at once
const ALONE = /[\p{P}\p{S}\p{Nd}]/u;
const BERT_MARK =
  /[!-/:-@[-`{-~\p{P}\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u{20000}-\u{2a6df}\u{2a700}-\u{2ceaf}\u{2f800}-\u{2fa1f}]/u;

function split(token, alone) {
  const parts = [];
  let joins = false;
  for (const c of token) {
    if (joins && !alone.test(c)) parts[parts.length - 1] += c;
    else parts.push(c);
    joins = !alone.test(c);
  }
  return parts;
}

function withoutAccents(text) {
  return text.normalize("NFD").replace(/\p{Mn}/gu, "");
}

function caseFolded(text) {
  // Upper case would make an i of the i without a dot.
  const fold = (x) => x.normalize("NFKC").split("ı").map((part) => part.toUpperCase().toLowerCase())
    .join("ı").replaceAll("ς", "σ");
  return fold(fold(text.replace(/\p{Default_Ignorable_Code_Point}/gu, ""))).normalize("NFKC");
}

export class Pieces {
  constructor({ vocabulary, kind, case: letters, keep_accents: keepAccents, form }) {
    Object.assign(this, { vocabulary, kind, letters, keepAccents, form });
    this.byPiece = new Map(vocabulary.map((piece, n) => [piece, n]));
    this.longest = Math.max(...vocabulary.map((piece) => piece.length));
  }

  ids(text) {
    const ids = this.words(text).flatMap((word) => this.pieces(word));
    const known = ids.some((n) => n > END);
    return [START, ...ids.filter((n) => known || n !== UNK), END];
  }

  words(text) {
    return this.kind === "bert" ? this.bertWords(text) : this.joinedWords(text);
  }

  text(ids) {
    const end = ids.indexOf(END);
    const pieces = (end < 0 ? ids : ids.slice(0, end)).filter((n) => n !== PAD && n !== START);
    const text = pieces.map((n) => ` ${this.vocabulary[n]}`).join("");
    return text.replaceAll(" ##", "").replace(new RegExp(` ?${JOINER} ?`, "gu"), "")
      .replace(/^[ \t\n\v\f\r]+|[ \t\n\v\f\r]+$/gu, "");
  }

  joinedWords(text) {
    text = text.replaceAll(JOINER, "\u25a0").normalize(this.form);
    if (this.letters === "turkish") text = text.replaceAll("I", "ı").replaceAll("İ", "i");
    if (this.letters !== "keep") text = text.split("\0")[0].toLowerCase();
    if (!this.keepAccents) text = withoutAccents(text);
    const words = [];
    for (const token of text.normalize(this.form).split(/[\p{Z}\p{Cc}]+/u)) {
      const parts = split(token, ALONE);
      parts.forEach((part, n) => {
        if (!ALONE.test(part)) return words.push(part);
        const next = parts[n + 1];
        return words.push((n ? JOINER : "") + part + (next && !ALONE.test(next) ? JOINER : ""));
      });
    }
    return words;
  }

  bertWords(text) {
    if (this.letters === "lower") text = withoutAccents(caseFolded(text));
    const tokens = text.replace(/[\p{Cc}\p{Cf}]/gu, " ").split(" ");
    return tokens.flatMap((token) => split(token, BERT_MARK));
  }

  pieces(word) {
    if (new TextEncoder().encode(word).length > 100) return [UNK];
    const ids = [];
    for (let start = 0, end; start < word.length; start = end) {
      const mark = start ? "##" : "";
      end = Math.min(word.length, start + this.longest);
      while (end > start && !this.byPiece.has(mark + word.slice(start, end))) end -= 1;
      if (end === start) return [UNK];
      ids.push(this.byPiece.get(mark + word.slice(start, end)));
    }
    return ids;
  }
}

function rows(tensor, numbers) {
  const size = tensor.data.length / tensor.dims[0];
  const data = new tensor.data.constructor(numbers.length * size);
  numbers.forEach((n, i) => data.set(tensor.data.subarray(n * size, (n + 1) * size), i * size));
  return new ort.Tensor(tensor.type, data, [numbers.length, ...tensor.dims.slice(1)]);
}

function longer(tensor) {
  const [places, size] = tensor.dims.slice(-2);
  const outer = tensor.data.length / (places * size || 1);
  const data = new tensor.data.constructor(outer * (places + CHUNK) * size);
  for (let i = 0; i < outer; i += 1) {
    const part = tensor.data.subarray(i * places * size, (i + 1) * places * size);
    data.set(part, i * (places + CHUNK) * size);
  }
  return new ort.Tensor(tensor.type, data, [...tensor.dims.slice(0, -2), places + CHUNK, size]);
}

function mostProbable(logits, count) {
  const largest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const sum = logits.reduce((a, b) => a + Math.exp(b - largest), 0);
  const shift = largest + Math.log(sum);
  const best = [];
  logits.forEach((x, token) => {
    if (best.length === count && x <= best[count - 1].x) return;
    let n = best.length;
    while (n && best[n - 1].x < x) n -= 1;
    best.splice(n, 0, { x, token, cost: shift - x });
    best.length = Math.min(best.length, count);
  });
  return best;
}

export class Translator {
  constructor(content, { encode, step }) {
    this.source = new Pieces(content.source);
    this.target = new Pieces(content.target);
    Object.assign(this, { card: content.card, encode, step, grows: content.grows });
    this.beamSize = content.beam_size;
    this.extraTokens = content.extra_tokens;
    this.norm = (length) => ((5 + length) / 6) ** content.length_penalty;
    this.queue = Promise.resolve(); // a session runs one call at a time
  }

  nBest(text, beamSize = this.beamSize) {
    this.queue = this.queue.catch(() => {}).then(() => this.run(text, beamSize));
    return this.queue;
  }

  async run(text, beamSize) {
    const source = this.source.ids(text);
    const best = await this.search(source, beamSize);
    if (source.length === 2) return [{ text: "", score: best[0].score }];
    return best.map(({ ids, score }) => ({ text: this.target.text(ids), score }));
  }

  async search(source, beams) {
    const ids = new ort.Tensor("int32", Int32Array.from(source), [1, source.length]);
    const encoded = await this.encode.run({ source: ids });
    const names = Object.keys(encoded).sort();
    const context = names.filter((name) => name.startsWith("context"));
    let state = names.filter((name) => name.startsWith("state")).map((name) => encoded[name]);
    const limit = source.length + this.extraTokens;
    let [live, best, room] = [[{ ids: [START], sum: 0 }], [], 1];
    for (let position = 0; position < limit && live.length; position += 1) {
      if (position + 2 > room) {
        room += CHUNK;
        state = state.map((tensor, n) => (this.grows[n] ? longer(tensor) : tensor));
      }
      const flat = new Int32Array(live.length * room);
      live.forEach((hypothesis, n) => flat.set(hypothesis.ids, n * room));
      const feeds = { ids: new ort.Tensor("int32", flat, [live.length, room]) };
      feeds.position = new ort.Tensor("int32", Int32Array.of(position), []);
      context.forEach((name) => { feeds[name] = encoded[name]; });
      state.forEach((tensor, n) => { feeds[`state_${String(n).padStart(3, "0")}`] = tensor; });
      const wanted = this.step.inputNames.map((name) => [name, feeds[name]]);
      const outputs = await this.step.run(Object.fromEntries(wanted));
      const size = outputs.logits.dims[1];
      const [ended, going] = [[], []];
      live.forEach(({ ids: before, sum }, parent) => {
        const logits = outputs.logits.data.subarray(parent * size, (parent + 1) * size);
        for (const { token, cost } of mostProbable(logits, beams)) {
          const next = { parent, ids: [...before, token], sum: sum + cost };
          (token === END ? ended : going).push(next);
        }
      });
      live = going.sort((a, b) => a.sum - b.sum).slice(0, beams);
      const last = position + 1 === limit;
      const norm = this.norm(position + 2);
      const candidates = (last ? [...ended, ...live] : ended)
        .map(({ ids: whole, sum }) => ({ ids: whole, score: sum / norm }));
      best = [...best, ...candidates].sort((a, b) => a.score - b.score).slice(0, beams);
      // A sum only grows: this is the best score that a hypothesis can still reach.
      const reachable = live.length ? live[0].sum / this.norm(limit + 1) : Infinity;
      if (best.length === beams && best[beams - 1].score <= reachable) break;
      const parents = live.map(({ parent }) => parent);
      state = Object.keys(outputs).filter((name) => name.startsWith("next")).sort()
        .map((name) => rows(outputs[name], parents));
    }
    return best;
  }
}
