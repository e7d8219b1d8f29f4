// Searches the sentences beside this file by the vectors that a model has for them.

import { Pieces } from "./pieces.js";
import { unpackedWords } from "./unpacking.js";

export class Search {
  constructor(content, { model }) {
    const { start, end, max_length: maxLength, ...rules } = content.pieces;
    this.pieces = new Pieces({ ...rules, vocabulary: unpackedWords(rules.vocabulary) });
    Object.assign(this, { start, end, maxLength, card: content.card, session: model });
    this.sentences = content.sentences;
    const bytes = Uint8Array.from(atob(content.vectors), (c) => c.charCodeAt(0));
    this.vectors = new Int16Array(bytes.buffer);
    this.queue = Promise.resolve(); // a session runs one call at a time
  }

  ids(text) {
    return [this.start, ...this.pieces.inner(text).slice(0, this.maxLength - 2), this.end];
  }

  vector(text) {
    const ids = this.ids(text);
    const input = new ort.Tensor("int32", Int32Array.from(ids), [1, ids.length]);
    this.queue = this.queue.catch(() => {}).then(async () => {
      const outputs = await this.session.run({ [this.session.inputNames[0]]: input });
      return outputs[this.session.outputNames[0]].data;
    });
    return this.queue;
  }

  async nearest(text, count = 10) {
    const vector = await this.vector(text);
    const length = Math.hypot(...vector);
    const scores = this.sentences.map((_, n) => {
      let [product, square] = [0, 0];
      for (let k = 0; k < vector.length; k += 1) {
        const x = this.vectors[n * vector.length + k];
        product += vector[k] * x;
        square += x * x;
      }
      return product / (length * Math.sqrt(square) || 1);
    });
    const order = [...scores.keys()].sort((a, b) => scores[b] - scores[a]);
    return order.slice(0, count).map((n) => ({ text: this.sentences[n], score: scores[n] }));
  }
}
