// Translates with the files beside this one, by greedy or beam search.

import { Pieces } from "./pieces.js";

const [START, END] = [2, 3];
const CHUNK = 16; // how many places more the states get at once

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
