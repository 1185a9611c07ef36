// What the page was made from: unpacks the figures and the columns. The reverse of page.rs and columns.rs.

/** Undoes base64 and deflate. */
export async function unpack(base64) {
  const text = atob(base64.trim());
  const packed = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) packed[at] = text.charCodeAt(at);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * A column as numbers: exact up to 2^53. Addresses are larger, so they are taken relative to `base`, a BigInt.
 */
export function column(bytes, count, base = 0n) {
  const values = new Float64Array(count);
  let at = 0;
  let sum = 0;
  let high = BigInt.asIntN(64, -base); // Added to `sum`, as long as that alone cannot hold it.
  for (let index = 0; index < count; index += 1) {
    const start = at;
    let value = 0;
    let scale = 1;
    for (; bytes[at] >= 0x80; at += 1, scale *= 128) value += (bytes[at] & 0x7f) * scale;
    value += bytes[at] * scale;
    at += 1;
    if (at - start < 7) {
      sum += value % 2 ? -(value + 1) / 2 : value / 2;
    } else {
      high = BigInt.asIntN(64, high + BigInt(sum) + wide(bytes.subarray(start, at)));
      sum = 0;
    }
    if (high !== 0n && at - start >= 7 && high < 1n << 52n && high > -(1n << 52n)) {
      sum = Number(high);
      high = 0n;
    }
    if (high !== 0n) values[index] = Number(BigInt.asUintN(64, high + BigInt(sum)));
    else values[index] = sum < 0 ? sum + 2 ** 64 : sum;
  }
  return values;
}

/** One difference of any size. */
function wide(bytes) {
  let value = 0n;
  for (let at = bytes.length - 1; at >= 0; at -= 1) value = (value << 7n) | BigInt(bytes[at] & 0x7f);
  return value & 1n ? -((value + 1n) >> 1n) : value >> 1n;
}

/** The lowest of a column of addresses, as a BigInt. */
export function lowest(bytes, count) {
  let least = null;
  let value = 0n;
  let start = 0;
  for (let at = 0, index = 0; index < count; at += 1) {
    if (bytes[at] >= 0x80) continue;
    value = BigInt.asUintN(64, value + wide(bytes.subarray(start, at + 1)));
    if (least === null || value < least) least = value;
    start = at + 1;
    index += 1;
  }
  return least ?? 0n;
}

/** The report: the figures, and for each device what `device` gives for its columns, made when it is first needed. */
export async function readReport(base64) {
  const bytes = await unpack(base64);
  const jsonBytes = new DataView(bytes.buffer).getUint32(0, true);
  const { summary, devices } = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + jsonBytes)));
  let at = 4 + jsonBytes;
  const places = devices.map(
    (columns) =>
      new Map(
        columns.map((place) => {
          const found = { count: place.count, bytes: bytes.subarray(at, at + place.bytes) };
          at += place.bytes;
          return [place.name, found];
        }),
      ),
  );
  const made = [];
  return {
    summary,
    device(index) {
      made[index] ??= deviceColumns(summary.devices[index], places[index]);
      return made[index];
    },
  };
}

function deviceColumns(summary, places) {
  const read = (name, base) => {
    const place = places.get(name);
    return column(place.bytes, place.count, base);
  };
  const bands = Array.from({ length: summary.bands + 1 }, (_, band) => band);
  const starts = ["blockAddress", "regionAddress"].map((name) => places.get(name)).filter(({ count }) => count > 0);
  const base = starts
    .map(({ bytes, count }) => lowest(bytes, count))
    .reduce((one, other) => (one < other ? one : other), starts.length ? 1n << 64n : 0n);
  const born = read("blockBorn");
  const died = read("blockLifetime").map((lifetime, block) => (lifetime === 0 ? Infinity : born[block] + lifetime));
  const bandLast = bands.map((band) => read(`bandLast${band}`));
  return {
    time: read("time"),
    base: {
      start: 0,
      width: summary.bucket_moments,
      count: summary.buckets,
      isExact: summary.bucket_moments === 1,
      least: read("least"),
      most: read("most"),
      last: read("last"),
      blocks: read("blocks"),
      reserved: read("reserved"),
      bandLast,
      bandMost: summary.bucket_moments === 1 ? bandLast : bands.map((band) => read(`bandMost${band}`)),
    },
    firstAddress: base,
    blocks: { born, died, address: read("blockAddress", base), size: read("blockSize"), site: read("blockSite") },
    regions: {
      born: read("regionBorn"),
      died: read("regionDied"),
      address: read("regionAddress", base),
      size: read("regionSize"),
    },
  };
}
