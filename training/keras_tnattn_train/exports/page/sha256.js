// SHA-256 (FIPS 180-4). Browsers offer theirs to pages of https and of this machine only.

const PRIMES = [];
for (let n = 2; PRIMES.length < 64; n += 1) if (PRIMES.every((p) => n % p)) PRIMES.push(n);
const fraction = (x) => Math.floor((x - Math.floor(x)) * 2 ** 32) | 0;
const FIRST = PRIMES.slice(0, 8).map((p) => fraction(Math.sqrt(p)));
const ROUNDS = Int32Array.from(PRIMES, (p) => fraction(Math.cbrt(p)));

const turned = (x, n) => (x >>> n) | (x << (32 - n));

function padded(bytes) {
  const { length } = bytes;
  const whole = new Uint8Array(64 * Math.ceil((length + 9) / 64));
  whole.set(bytes);
  whole[length] = 0x80;
  const view = new DataView(whole.buffer);
  view.setUint32(whole.length - 8, Math.floor(length / 2 ** 29));
  view.setUint32(whole.length - 4, (length << 3) >>> 0);
  return view;
}

export function sha256(bytes) {
  const view = padded(bytes);
  const hash = Int32Array.from(FIRST);
  const w = new Int32Array(64);
  for (let start = 0; start < view.byteLength; start += 64) {
    for (let n = 0; n < 16; n += 1) w[n] = view.getInt32(start + 4 * n);
    for (let n = 16; n < 64; n += 1) {
      const x = w[n - 15];
      const y = w[n - 2];
      const small = turned(x, 7) ^ turned(x, 18) ^ (x >>> 3);
      w[n] = w[n - 16] + small + w[n - 7] + (turned(y, 17) ^ turned(y, 19) ^ (y >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = hash;
    for (let n = 0; n < 64; n += 1) {
      const sum = turned(e, 6) ^ turned(e, 11) ^ turned(e, 25);
      const one = (h + sum + ((e & f) ^ (~e & g)) + ROUNDS[n] + w[n]) | 0;
      const two = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = (d + one) | 0;
      d = c;
      c = b;
      b = a;
      a = (one + two) | 0;
    }
    [a, b, c, d, e, f, g, h].forEach((x, n) => { hash[n] += x; });
  }
  return Array.from(hash, (x) => (x >>> 0).toString(16).padStart(8, "0")).join("");
}
