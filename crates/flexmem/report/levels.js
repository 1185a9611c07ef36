// What was in use when. A level is the chart at one resolution: `count` buckets of `width` moments each, the first
// from the moment `start`, with what was in use at the least, the most and the end of each, and by band.
//
// The base level covers the whole trace and comes with the page. Where its buckets have more than one moment, and the
// page knows every block, a level of single moments is made from the blocks for what is shown closely.

const WINDOW_MOMENTS = 16384;

/** What is known of a device, at any moment. */
export class Timeline {
  constructor(summary, columns) {
    this.summary = summary;
    this.columns = columns;
    this.base = columns.base;
    this.moments = summary.events + 1;
    this.knowsAllBlocks = summary.map.left_out === 0;
    this.bandOfSite = new Map(summary.sites.slice(0, summary.bands).map((use, band) => [use.site, band]));
    this.hasTime = summary.first_time_ns !== null && summary.last_time_ns > summary.first_time_ns;
    this.times = this.#risingTimes();
    this.window = null;
  }

  /** The times of the ends of the buckets, made to rise. Threads may have recorded theirs a little out of order. */
  #risingTimes() {
    let latest = 0;
    return this.columns.time.map((time) => (latest = Math.max(latest, time)));
  }

  /** The band of a site; the last is that of all others. */
  band(site) {
    return this.bandOfSite.get(site) ?? this.summary.bands;
  }

  /** The finest level that covers a range of moments. */
  level(from, to) {
    if (this.base.isExact || !this.knowsAllBlocks || to - from > WINDOW_MOMENTS / 2) return this.base;
    const start = Math.max(0, Math.floor(from / (WINDOW_MOMENTS / 4)) * (WINDOW_MOMENTS / 4));
    if (this.window?.start !== start) {
      this.window = this.#exactLevel(start, Math.min(WINDOW_MOMENTS, this.moments - start));
    }
    return this.window;
  }

  /** A level of single moments, from the blocks. */
  #exactLevel(start, count) {
    const bands = Array.from({ length: this.summary.bands + 1 }, () => new Float64Array(count));
    const last = new Float64Array(count);
    const blocks = new Float64Array(count);
    const { born, died, size, site } = this.columns.blocks;
    const end = start + count;
    for (let block = 0; block < born.length && born[block] < end; block += 1) {
      if (died[block] <= start) continue;
      const first = Math.max(born[block], start) - start;
      const band = bands[this.band(site[block])];
      band[first] += size[block];
      last[first] += size[block];
      blocks[first] += 1;
      if (died[block] < end) {
        band[died[block] - start] -= size[block];
        last[died[block] - start] -= size[block];
        blocks[died[block] - start] -= 1;
      }
    }
    const reserved = new Float64Array(count);
    reserved[0] = this.reservedAt(start);
    for (const [at, change] of this.#regionChanges()) {
      if (at > start && at < end) reserved[at - start] += change;
    }
    for (const values of [...bands, last, blocks, reserved]) {
      for (let at = 1; at < count; at += 1) values[at] += values[at - 1];
    }
    return {
      start,
      width: 1,
      count,
      isExact: true,
      least: last,
      most: last,
      last,
      blocks,
      reserved,
      bandLast: bands,
      bandMost: bands,
    };
  }

  /** What was reserved: as at the end of the bucket, but for the regions that came or went until then. */
  reservedAt(moment) {
    const bucket = this.bucket(this.base, moment);
    const bucketEnd = this.end(this.base, bucket);
    let bytes = this.base.reserved[bucket];
    if (moment === bucketEnd) return bytes;
    for (const [at, change] of this.#regionChanges()) {
      if (at > moment && at <= bucketEnd) bytes -= change;
    }
    return bytes;
  }

  #regionChanges() {
    if (!this.changes) {
      const { born, died, size } = this.columns.regions;
      this.changes = [];
      for (let region = 0; region < born.length; region += 1) {
        if (born[region] > 0) this.changes.push([born[region], size[region]]);
        if (died[region] < this.moments) this.changes.push([died[region], -size[region]]);
      }
    }
    return this.changes;
  }

  /** The bucket of a level that a moment is in. */
  bucket(level, moment) {
    return Math.min(level.count - 1, Math.max(0, Math.floor((moment - level.start) / level.width)));
  }

  /** The last moment of a bucket. */
  end(level, bucket) {
    return Math.min(this.moments - 1, level.start + (bucket + 1) * level.width - 1);
  }

  /** The nearest moment of which everything is known exactly. */
  snap(moment) {
    const whole = Math.min(this.moments - 1, Math.max(0, Math.round(moment)));
    if (this.base.isExact || this.knowsAllBlocks) return whole;
    return this.end(this.base, this.bucket(this.base, whole));
  }

  /** How far the cursor goes in one step. */
  get step() {
    return this.base.isExact || this.knowsAllBlocks ? 1 : this.base.width;
  }

  /** The time of a moment since the first event, in ns, or null. Within a bucket it is interpolated. */
  timeAt(moment) {
    if (this.summary.first_time_ns === null) return null;
    const position = Math.min(this.times.length - 1, Math.max(0, (moment + 1) / this.base.width - 1));
    const before = Math.floor(position);
    const next = Math.min(this.times.length - 1, before + 1);
    return this.times[before] + (this.times[next] - this.times[before]) * (position - before);
  }

  /** The moment at a time. */
  momentAt(time) {
    let low = 0;
    let high = this.times.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.times[middle] < time) low = middle + 1;
      else high = middle;
    }
    const before = Math.max(0, low - 1);
    const span = this.times[low] - this.times[before];
    const position = span > 0 ? before + (time - this.times[before]) / span : low;
    return Math.min(this.moments, Math.max(0, (position + 1) * this.base.width - 1));
  }

  /** The device at a moment that `snap` gave: sums, what each site holds, and the live blocks by address. */
  stateAt(moment) {
    const { born, died, size, site, address } = this.columns.blocks;
    const live = [];
    const held = new Map();
    let shownBytes = 0;
    for (let block = 0; block < born.length && born[block] <= moment; block += 1) {
      if (died[block] <= moment) continue;
      live.push(block);
      shownBytes += size[block];
      const use = held.get(site[block]) ?? { site: site[block], bytes: 0, blocks: 0 };
      use.bytes += size[block];
      use.blocks += 1;
      held.set(site[block], use);
    }
    live.sort((one, other) => address[one] - address[other]);
    const bucket = this.bucket(this.base, moment);
    const known = this.base.isExact || !this.knowsAllBlocks;
    return {
      moment,
      time: this.timeAt(moment),
      liveBytes: known ? this.base.last[bucket] : shownBytes,
      liveBlocks: known ? this.base.blocks[bucket] : live.length,
      reservedBytes: this.reservedAt(moment),
      shownBytes,
      live,
      held: [...held.values()].sort((one, other) => other.bytes - one.bytes || one.site - other.site),
    };
  }
}
