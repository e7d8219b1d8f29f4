// Cuts sentences into word pieces, and joins them again.

const [PAD, UNK, START, END] = [0, 1, 2, 3];
const JOINER = "\uffed";
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
  constructor({ vocabulary, kind, case: letters, keep_accents: keepAccents, form, unknown = UNK }) {
    Object.assign(this, { vocabulary, kind, letters, keepAccents, form, unknown });
    this.byPiece = new Map(vocabulary.map((piece, n) => [piece, n]));
    this.longest = Math.max(...vocabulary.map((piece) => piece.length));
  }

  ids(text) {
    const ids = this.inner(text);
    const known = ids.some((n) => n > END);
    return [START, ...ids.filter((n) => known || n !== UNK), END];
  }

  inner(text) {
    return this.words(text).flatMap((word) => this.pieces(word));
  }

  words(text) {
    if (this.kind === "tokenizers") return this.cleanWords(text);
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

  // As the package tokenizers: the case of each character alone, and nothing else is replaced.
  cleanWords(text) {
    text = text.replace(/(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}\ufffd]/gu, "");
    if (!this.keepAccents) text = withoutAccents(text);
    if (this.letters === "lower") text = Array.from(text, (c) => c.toLowerCase()).join("");
    return text.split(/\p{White_Space}+/u).flatMap((token) => split(token, BERT_MARK));
  }

  pieces(word) {
    const size = this.kind === "tokenizers" ? [...word] : new TextEncoder().encode(word);
    if (size.length > 100) return [this.unknown];
    const ids = [];
    for (let start = 0, end; start < word.length; start = end) {
      const mark = start ? "##" : "";
      end = Math.min(word.length, start + this.longest);
      while (end > start && !this.byPiece.has(mark + word.slice(start, end))) end -= 1;
      if (end === start) return [this.unknown];
      ids.push(this.byPiece.get(mark + word.slice(start, end)));
    }
    return ids;
  }
}
