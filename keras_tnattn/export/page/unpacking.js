// Restores what keras_tnattn.export.packing wrote.

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

export function unpackedWords({ first, words, order }) {
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

export function unpackedModel(packed, bytes, tensors) {
  const model = new Uint8Array(bytes);
  const total = tensors.reduce((sum, [, count]) => sum + count, 0);
  const planes = bytes - 4 * total;
  let [from, to, done] = [0, 0, 0];
  for (const [place, count] of [...tensors, [bytes, 0]]) {
    model.set(packed.subarray(from, from + place - to), to);
    from += place - to;
    for (let n = 0; n < count; n += 1) {
      for (let k = 0; k < 4; k += 1) model[place + 4 * n + k] = packed[planes + k * total + done + n];
    }
    done += count;
    to = place + 4 * count;
  }
  return model;
}
