// Matrix products, which take most of the time of a model: x W^T + b, in WebAssembly with four multiplications at a
// time, or in JavaScript where a page may not use WebAssembly.

/** Compute x W^T + b for each row of x; `weight` stores W in row-major order. */
function linear(x, { weight, bias }) {
  const width = x[0].length;
  const size = weight.length / width;
  const out = fast && width % 4 === 0 && size % 4 === 0 ? fast(x, weight, width, size) : products(x, weight, width, size);
  if (bias) for (const row of out) for (let o = 0; o < size; o++) row[o] += bias[o];
  return out;
}

function products(x, weight, width, size) {
  const out = x.map(() => new Float32Array(size));
  for (let o = 0; o < size; o++)
    x.forEach((row, t) => {
      let sum = 0;
      for (let i = 0; i < width; i++) sum += row[i] * weight[o * width + i];
      out[t][o] = sum;
    });
  return out;
}

const fast = fastProducts();

/** Return a function like `products`, for numbers of columns and rows that 4 divides; null without WebAssembly. */
function fastProducts() {
  let memory, multiply;
  try {
    memory = new WebAssembly.Memory({ initial: 1 });
    ({ multiply } = new WebAssembly.Instance(new WebAssembly.Module(assemble()), { page: { memory } }).exports);
  } catch {
    return null;
  }
  const PAGE = 65536;
  const places = new WeakMap(); // weights -> their place in the memory
  let used = 0; // number of bytes with weights, before the rows of one product
  const room = (numbers) => {
    const missing = used + 4 * numbers - memory.buffer.byteLength;
    if (missing > 0) memory.grow(Math.ceil(missing / PAGE));
    return new Float32Array(memory.buffer, used, numbers);
  };
  return (x, weight, width, size) => {
    if (!places.has(weight)) {
      room(weight.length).set(weight);
      places.set(weight, used);
      used += 4 * weight.length;
    }
    const numbers = room(x.length * (width + size));
    x.forEach((row, t) => numbers.set(row, t * width));
    const first = x.length * width;
    multiply(used, places.get(weight), used + 4 * first, x.length, 4 * width, size);
    return x.map((_, t) => numbers.slice(first + t * size, first + (t + 1) * size));
  };
}

/**
 * Return the bytes of a WebAssembly module with the function multiply(x, w, out, rows, width, size). The first three
 * are addresses, and `width` is the number of bytes of a row:
 *
 *     for (o = 0; o < size; o += 4)
 *       for (t = 0; t < rows; t++) {
 *         a = b = c = d = [0, 0, 0, 0]
 *         for (i = 0; i < width; i += 4) a += x[t][i .. i + 3] * w[o][i .. i + 3], and so on: b has w[o + 1], ...
 *         out[t][o .. o + 3] = the sums of the four numbers of a, b, c and d
 *       }
 */
function assemble() {
  const [x, w, out, rows, width, size] = [0, 1, 2, 3, 4, 5]; // parameters
  const [t, o, at, end, to, ...wRows] = [6, 7, 8, 9, 10, 11, 12, 13, 14]; // local integers; the others are addresses
  const [v, ...sums] = [15, 16, 17, 18, 19]; // local vectors of four numbers
  const NUMBER = 0x7f,
    VECTOR = 0x7b;
  const get = (local) => [0x20, local];
  const set = (value, local) => [value, 0x21, local];
  const integer = (value) => [0x41, value]; // below 64
  const add = (one, other) => [one, other, 0x6a];
  const times = (one, other) => [one, other, 0x6c];
  const increase = (local, by) => set(add(get(local), by), local);
  const repeatWhile = (local, most, ...body) => [0x03, 0x40, body, get(local), get(most), 0x49, 0x0d, 0, 0x0b];
  const zeros = [0xfd, 12, Array(16).fill(0)];
  const load = (address) => [get(address), 0xfd, 0, 4, 0];
  const addProduct = (sum, address) => set([get(sum), load(address), get(v), 0xfd, 0xe6, 1, 0xfd, 0xe4, 1], sum);
  const total = (sum) => [0, 1, 2, 3].map((i) => [get(sum), 0xfd, 0x1f, i]).reduce((one, other) => [one, other, 0x92]);
  const body = [
    set(integer(0), o),
    repeatWhile(
      o,
      size,
      set(integer(0), t),
      set(get(x), at),
      set(add(get(out), times(get(o), integer(4))), to),
      repeatWhile(
        t,
        rows,
        wRows.map((row, i) => set(i ? add(get(wRows[i - 1]), get(width)) : get(w), row)),
        sums.map((sum) => set(zeros, sum)),
        set(add(get(at), get(width)), end),
        repeatWhile(
          at,
          end,
          set(load(at), v),
          sums.map((sum, i) => [addProduct(sum, wRows[i]), increase(wRows[i], integer(16))]),
          increase(at, integer(16)),
        ),
        sums.map((sum, i) => [get(to), total(sum), 0x38, 2, 4 * i]),
        increase(to, times(get(size), integer(4))),
        increase(t, integer(1)),
      ),
      increase(w, times(get(width), integer(4))),
      increase(o, integer(4)),
    ),
  ];
  const text = (name) => [name.length, [...name].map((letter) => letter.charCodeAt(0))];
  const sized = (...content) => {
    const bytes = content.flat(Infinity);
    return [(bytes.length % 128) + 128, Math.floor(bytes.length / 128), bytes]; // the length in two groups of 7 bits
  };
  const code = sized(2, [9, NUMBER], [5, VECTOR], body, 0x0b);
  const sections = [
    [1, sized(1, 0x60, 6, Array(6).fill(NUMBER), 0)], // the type of the function
    [2, sized(1, text("page"), text("memory"), 2, 0, 1)], // the imported memory
    [3, sized(1, 0)],
    [7, sized(1, text("multiply"), 0, 0)], // the exported function
    [10, sized(1, code)],
  ];
  return Uint8Array.from([0, [...text("asm")[1]], 1, 0, 0, 0, sections].flat(Infinity));
}
