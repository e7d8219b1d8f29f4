// Restores what keras_tnattn_train.exports.packing wrote.

function* bitsOf(bytes) {
  for (const byte of bytes) for (let n = 7; n >= 0; n -= 1) yield (byte >> n) & 1;
}

function* placesLeft(order, count) {
  const bits = bitsOf(Uint8Array.from(atob(order), (c) => c.charCodeAt(0)));
  const whole = 2 ** 52;
  for (let base = count; base > 0;) {
    const bases = [];
    let values = 1;
    while (base > 0 && values * base <= whole) {
      values *= base;
      bases.push(base);
      base -= 1;
    }
    let value = 0;
    for (let most = values - 1; most > 0; most = Math.floor(most / 2)) {
      value = 2 * value + bits.next().value;
    }
    const digits = bases.reverse().map((each) => {
      const digit = value % each;
      value = Math.floor(value / each);
      return digit;
    });
    yield* digits.reverse();
  }
}

export function unpackedWords(packed) {
  if (Array.isArray(packed)) return packed;
  const { first, words, order } = packed;
  const mark = first.codePointAt(0);
  const sorted = [];
  let word = [];
  for (const c of words) {
    const shared = c.codePointAt(0) - mark;
    if (shared >= 0 && shared < 26) {
      word = word.slice(0, shared);
      sorted.push(word);
    } else {
      word.push(c);
    }
  }
  const size = Math.max(1, Math.floor(Math.sqrt(sorted.length)));
  const left = [];
  for (let n = 0; n < sorted.length; n += size) left.push(sorted.slice(n, n + size));
  const ordered = [];
  for (let place of placesLeft(order, sorted.length)) {
    let n = 0;
    while (place >= left[n].length) {
      place -= left[n].length;
      n += 1;
    }
    ordered.push(left[n].splice(place, 1)[0].join(""));
  }
  return ordered;
}

// No array is more times larger than its code, as in keras_small.coding.arrays.
const MOST_TIMES_LARGER = 256;
const BUCKET = 12; // bits of a number below 2^24 by which its symbol is looked up

function intervals(first, codes, bits) {
  const parts = Array.from(codes, (code) => {
    const exponent = Math.max(0, (code >> 4) - 1);
    return (code - 16 * exponent) << exponent;
  });
  const sum = parts.reduce((a, b) => a + b, 0);
  if (!(sum > 0 && sum <= 2 ** 18 && first + parts.length <= 2 ** bits)) {
    throw new Error("it has a table without frequencies");
  }
  const used = [...parts.keys()].filter((n) => parts[n]).map((n) => first + n);
  if (parts.length < 2) parts.push(0); // as the coder needs two symbols
  const scale = Math.fround((2 ** 24 - parts.length) / sum);
  const left = Uint32Array.of(...parts, 0);
  let before = 0;
  parts.forEach((part, n) => {
    left[n] = Math.trunc(Math.fround(before * scale)) + n;
    before += part;
  });
  left[parts.length] = 2 ** 24;
  const symbols = new Uint8Array(2 ** (24 - BUCKET));
  for (let bucket = 0, n = 0; bucket < symbols.length; bucket += 1) {
    while (left[n + 1] <= bucket << BUCKET) n += 1;
    symbols[bucket] = n;
  }
  return { first, left, symbols, used };
}

// Decodes asymmetric numeral systems with a state of 64 bits, here two numbers of 32 bits.
class Decoder {
  constructor(words) {
    this.words = words;
    this.next = words.length;
    while (this.next && !words[this.next - 1]) this.next -= 1;
    [this.high, this.low] = [0, 0];
    for (let n = 0; n < 2 && this.next; n += 1) {
      [this.high, this.low] = [this.low, words[this.next -= 1]];
    }
  }

  symbol({ first, left, symbols }) {
    const number = this.low & 0xffffff;
    let n = symbols[number >> BUCKET];
    while (number >= left[n + 1]) n += 1;
    // The state becomes floor(state / 2^24) * (left[n + 1] - left[n]) + number - left[n].
    const times = left[n + 1] - left[n];
    const lower = ((this.high & 0xffff) * 256 + (this.low >>> 24)) * times + number - left[n];
    const carry = Math.floor(lower / 2 ** 24);
    const upper = (this.high >>> 16) * times + carry;
    this.low = (((upper & 0xff) << 24) | (lower - carry * 2 ** 24)) >>> 0;
    this.high = Math.floor(upper / 256);
    if (!this.high && this.next) {
      [this.high, this.low] = [this.low, this.words[this.next -= 1]];
    }
    return first + n;
  }

  end() {
    if (this.high || this.low || this.next) throw new Error("its code has other symbols");
  }
}

// The integers of a matrix, by the classes of its rows and columns.
function matrixOf(tables, decoder, rows, columns) {
  const [byRow, byColumn] = [rows, columns].map((size, n) => {
    const places = new Map(tables[n].used.map((each) => [each, []]));
    for (let place = 0; place < size; place += 1) {
      const found = places.get(decoder.symbol(tables[n]));
      if (!found) throw new Error("its code has other symbols");
      found.push(place);
    }
    return [...places.values()];
  });
  const integers = new Uint8Array(rows * columns);
  let n = 1;
  for (const some of byRow) {
    for (const others of byColumn) {
      const table = tables[n += 1];
      for (const row of some) {
        for (const column of others) integers[row * columns + column] = decoder.symbol(table);
      }
    }
  }
  return integers;
}

// Of a width of 1 the bytes are integers of some bits in rows of `columns` columns.
export function decoded(code, { bits, width, size, columns }) {
  const tables = [];
  let [at, count] = [0, width === 1 ? 2 : width];
  for (let n = 0; n < count; n += 1) {
    const end = at + 3 + code[at + 1];
    if (!(end <= code.length)) throw new Error("it ends within a table");
    tables.push(intervals(code[at], code.subarray(at + 2, end), width === 1 && n < 2 ? 8 : bits));
    at = end;
    if (width === 1 && n === 1) count += tables[0].used.length * tables[1].used.length;
  }
  const decoder = new Decoder(
    new Uint32Array(code.slice(at, code.length - ((code.length - at) % 4)).buffer),
  );
  const bytes = new Uint8Array(size);
  if (width === 1) {
    const integers = matrixOf(tables, decoder, (size * 8) / bits / columns, columns);
    let [word, filled, place] = [0, 0, 0]; // they follow each other bit by bit, the lowest first
    for (const integer of integers) {
      word |= integer << filled;
      for (filled += bits; filled >= 8; filled -= 8, word >>= 8) bytes[place++] = word;
    }
  } else {
    tables.forEach((table, plane) => {
      for (let place = plane; place < size; place += width) bytes[place] = decoder.symbol(table);
    });
  }
  decoder.end();
  return bytes;
}

export function unpackedModel(packed, bytes, parts) {
  const total = (numbers) => numbers.reduce((a, b) => a + b, 0);
  const sizes = parts.map(({ tensors }) => total(tensors.map(([, size]) => size)));
  const codes = total(parts.map((part) => part.bytes));
  const expected = bytes - total(sizes) + codes;
  if (packed.length !== expected) {
    throw new Error(`it has ${packed.length} bytes and not ${expected}`);
  }
  if (parts.some((part, n) => sizes[n] > MOST_TIMES_LARGER * part.bytes)) {
    throw new Error("it has tensors that are too large for their codes");
  }
  const model = new Uint8Array(bytes);
  let [from, to] = [0, 0];
  const tensors = parts.flatMap((part) => part.tensors).sort(([a], [b]) => a - b);
  for (const [place, size] of [...tensors, [bytes, 0]]) {
    model.set(packed.subarray(from, from + place - to), to);
    [from, to] = [from + place - to, place + size];
  }
  parts.forEach((part, n) => {
    const whole = decoded(packed.subarray(from, from += part.bytes), { ...part, size: sizes[n] });
    let at = 0;
    for (const [place, size] of part.tensors) model.set(whole.subarray(at, at += size), place);
  });
  return model;
}
