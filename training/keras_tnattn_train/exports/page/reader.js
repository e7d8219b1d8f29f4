// Reads a folder that keras_tnattn_train.exports.pages wrote. `ort` is onnxruntime-web.

import { sha256 } from "./sha256.js";
import { unpackedModel, unpackedWords } from "./unpacking.js";

const FORMAT = 1;

async function fetched(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: ${response.status} ${response.statusText}`);
  return response;
}

async function unpacked(path) {
  const bytes = new Uint8Array(await (await fetched(path)).arrayBuffer());
  const packed = bytes[0] === 0x1f && bytes[1] === 0x8b; // some servers have unpacked it already
  const stream = new Blob([bytes]).stream();
  return new Response(packed ? stream.pipeThrough(new DecompressionStream("gzip")) : stream);
}

export class Words {
  constructor({ vocabulary, between, max_words: maxWords }) {
    const words = unpackedWords(vocabulary);
    this.ids = new Map(words.map((word, n) => [word, n + 2]));
    this.between = new RegExp(between, "u");
    this.maxWords = maxWords;
  }

  split(text) {
    const visible = text.replace(/\p{Default_Ignorable_Code_Point}/gu, "");
    return visible.toLowerCase().split(this.between).filter((word) => word);
  }

  of(text) {
    return this.split(text).slice(0, this.maxWords).map((word) => this.ids.get(word) ?? 1);
  }
}

export class Classifier {
  constructor(content, session) {
    this.classNames = content.class_names;
    this.words = new Words(content.words);
    this.card = content.card;
    this.byLength = content.by_length;
    this.session = session;
    this.queue = Promise.resolve(); // a session runs one call at a time
  }

  async labels(texts) {
    const rows = await this.probabilities(texts);
    return rows.map((row) => this.classNames[row.indexOf(Math.max(...row))]);
  }

  probabilities(texts) {
    this.queue = this.queue.catch(() => {}).then(() => this.run(texts));
    return this.queue;
  }

  async run(texts) {
    const rows = texts.map((text) => this.words.of(text));
    const longest = Math.max(1, ...rows.map((row) => row.length));
    const length = this.byLength ? longest : this.words.maxWords;
    const ids = new Int32Array(rows.length * length);
    rows.forEach((row, n) => ids.set(row, n * length));
    const input = new ort.Tensor("int32", ids, [rows.length, length]);
    const outputs = await this.session.run({ [this.session.inputNames[0]]: input });
    const { data } = outputs[this.session.outputNames[0]];
    const count = this.classNames.length;
    return rows.map((_, n) => Array.from(data.slice(n * count, (n + 1) * count)));
  }
}

async function content(folder, name, read) {
  const response = await unpacked(`${folder}/${name}`);
  try {
    return read(new Uint8Array(await response.arrayBuffer()));
  } catch (error) {
    throw new Error(`${name} is damaged: ${error.message}; copy it again`);
  }
}

function check(bytes, expected) {
  if (sha256(bytes) !== expected) throw new Error("its checksum differs");
}

// What `sealed` of keras_tnattn_runtime.reader wrote: the checksum is that of what follows it.
function unsealed(bytes) {
  const text = JSON.parse(new TextDecoder().decode(bytes));
  check(bytes.subarray(`{"sha256":"${text.sha256}",`.length), text.sha256);
  return text;
}

async function session(folder, { name, bytes, parts, sha256: expected }) {
  const model = await content(folder, name, (packed) => {
    const whole = unpackedModel(packed, bytes, parts);
    check(whole, expected);
    return whole;
  });
  return ort.InferenceSession.create(model);
}

export async function load(folder) {
  const text = await content(folder, "text.json.gz", unsealed);
  if (text.format !== FORMAT) {
    throw new Error(`text.json.gz has version ${text.format} and not ${FORMAT}; export again`);
  }
  ort.env.wasm.numThreads = 1; // more need headers that not every server sends
  ort.env.wasm.wasmPaths = new URL("./", import.meta.url).href;
  const sessions = {};
  for (const [key, file] of Object.entries(text.files)) {
    sessions[key] = await session(folder, file);
  }
  if (text.task === "translate") {
    const { Translator } = await import("./translator.js");
    return new Translator(text, sessions);
  }
  if (text.task === "search") {
    const { Search } = await import("./search.js");
    return new Search(text, sessions);
  }
  return new Classifier(text, sessions.model);
}
