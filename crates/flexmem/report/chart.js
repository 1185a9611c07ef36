// The chart of memory over time. Each column of pixels shows the moment of its range at which most was in use, so no
// peak is lost however far one zooms out; what is drawn depends on the width of the chart, not on the trace.
import { byId, element, exact, grouped, lasted, sized } from "./text.js";

const LEFT = 64;
const BOTTOM = 22;
const TOP = 16;

/** The colour of a band; the last band is that of all other sites. */
export function bandColour(band, bands, isDark) {
  if (band >= bands) return isDark ? "#5b6570" : "#aab2bb";
  const hue = Math.round((band * 137.508 + 210) % 360);
  const light = (isDark ? [58, 48, 66] : [56, 44, 68])[band % 3];
  return `hsl(${hue} ${isDark ? 48 : 58}% ${light}%)`;
}

/** Fits a canvas to its place on the page; its size in CSS pixels. */
export function fitCanvas(canvas) {
  const ratio = Math.min(2, globalThis.devicePixelRatio || 1);
  const { clientWidth: width, clientHeight: height } = canvas;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height };
}

/** Puts a tip beside a point of a canvas, within the canvas. */
export function placeTip(tip, canvas, x, y, ...children) {
  tip.replaceChildren(...children);
  tip.hidden = false;
  const left = x + 14 + tip.offsetWidth > canvas.clientWidth ? x - 14 - tip.offsetWidth : x + 14;
  tip.style.left = `${Math.max(0, Math.min(left, canvas.clientWidth - tip.offsetWidth))}px`;
  tip.style.top = `${Math.max(0, Math.min(y + 14, canvas.clientHeight - tip.offsetHeight))}px`;
}

/** The chart. `app` is the page: what is shown of which device, the theme, the search. */
export class Chart {
  constructor(app) {
    this.app = app;
    this.canvas = byId("timeline");
    this.still = document.createElement("canvas"); // The chart without cursor, drawn again when what is shown changes.
    this.isStale = true;
    this.pointers = new Map();
    this.#listen();
  }

  get plotWidth() {
    return Math.max(50, this.canvas.clientWidth - LEFT - 4);
  }

  /** The moment at a distance from the left edge of the plot. */
  momentAt(x) {
    const { view, timeline, byTime } = this.app;
    const part = x / this.plotWidth;
    if (!byTime) return view.from + (view.to - view.from) * part;
    const [from, to] = [timeline.timeAt(view.from - 0.5), timeline.timeAt(view.to - 0.5)];
    return timeline.momentAt(from + (to - from) * part) + 0.5;
  }

  xOf(moment) {
    const { view, timeline, byTime } = this.app;
    if (!byTime) return ((moment - view.from) / (view.to - view.from)) * this.plotWidth;
    const [from, to] = [timeline.timeAt(view.from - 0.5), timeline.timeAt(view.to - 0.5)];
    return ((timeline.timeAt(moment) - from) / (to - from || 1)) * this.plotWidth;
  }

  /** The bucket with the most in use, for each column of pixels. */
  #columns(level) {
    const { timeline } = this.app;
    const chosen = new Int32Array(Math.floor(this.plotWidth));
    for (let x = 0; x < chosen.length; x += 1) chosen[x] = this.#bucketAt(level, timeline, x);
    return chosen;
  }

  #bucketAt(level, timeline, x) {
    const first = timeline.bucket(level, this.momentAt(x));
    const last = Math.max(first, timeline.bucket(level, Math.ceil(this.momentAt(x + 1)) - 1));
    let best = first;
    for (let bucket = first + 1; bucket <= last; bucket += 1) {
      if (level.most[bucket] > level.most[best]) best = bucket;
    }
    return best;
  }

  draw() {
    const { context, width, height } = fitCanvas(this.canvas);
    if (this.isStale) this.#drawStill();
    context.clearRect(0, 0, width, height);
    context.drawImage(this.still, 0, 0, width, height);
    const x = LEFT + this.xOf(this.app.cursor + 0.5);
    if (x >= LEFT && x <= LEFT + this.plotWidth) {
      context.fillStyle = this.app.colour("--ink");
      context.fillRect(Math.round(x) - 0.5, TOP, 1, height - TOP - BOTTOM);
      context.fillRect(Math.round(x) - 3.5, TOP, 7, 3);
    }
    this.app.drawn.frames += 1;
  }

  #drawStill() {
    this.isStale = false;
    const ratio = this.canvas.width / this.canvas.clientWidth;
    this.still.width = this.canvas.width;
    this.still.height = this.canvas.height;
    const context = this.still.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const { view, timeline } = this.app;
    const level = timeline.level(view.from, view.to);
    const chosen = this.#columns(level);
    const scale = this.#scale(level, chosen);
    this.app.drawn.points = 0;
    this.app.drawn.bucketMoments = level.width;
    this.#drawAxes(context, scale);
    this.#drawBands(context, level, chosen, scale);
    this.#drawLines(context, level, chosen, scale);
    this.#drawMarks(context, scale);
  }

  #scale(level, chosen) {
    let top = 1;
    for (const bucket of chosen) {
      top = Math.max(top, level.most[bucket], this.app.withReserved ? level.reserved[bucket] : 0);
    }
    const height = this.canvas.clientHeight - TOP - BOTTOM;
    const capacity = this.app.summary.capacity_bytes;
    if (capacity !== null && capacity < top * 1.4) top = Math.max(top, capacity);
    top *= 1.04;
    return { top, height, y: (bytes) => TOP + height - (bytes / top) * height };
  }

  #drawAxes(context, { top, height, y }) {
    context.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    context.fillStyle = this.app.colour("--faint");
    context.strokeStyle = this.app.colour("--line");
    context.lineWidth = 1;
    const rough = top / 5;
    const unit = 2 ** Math.floor(Math.log2(rough));
    const step = rough / unit > 1.5 ? unit * 2 : unit;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let bytes = 0; bytes <= top; bytes += step) {
      const at = Math.round(y(bytes)) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, at);
      context.lineTo(LEFT + this.plotWidth, at);
      context.stroke();
      context.fillText(sized(bytes), LEFT - 6, Math.max(at, 8));
    }
    const labels = Math.max(2, Math.floor(this.plotWidth / 120));
    context.textBaseline = "top";
    for (let label = 0; label <= labels; label += 1) {
      context.textAlign = label === 0 ? "left" : label === labels ? "right" : "center";
      const x = (label / labels) * this.plotWidth;
      context.fillText(this.app.momentText(this.momentAt(x)), LEFT + x, TOP + height + 5);
    }
  }

  #drawBands(context, level, chosen, { y }) {
    const base = new Float64Array(chosen.length);
    const bands = this.app.summary.bands;
    for (let band = 0; band <= bands; band += 1) {
      const values = level.bandMost[band];
      context.beginPath();
      context.moveTo(LEFT, y(base[0]));
      for (let x = 0; x < chosen.length; x += 1) {
        const edge = y(base[x] + values[chosen[x]]);
        context.lineTo(LEFT + x, edge);
        context.lineTo(LEFT + x + 1, edge);
      }
      for (let x = chosen.length - 1; x >= 0; x -= 1) {
        context.lineTo(LEFT + x + 1, y(base[x]));
        context.lineTo(LEFT + x, y(base[x]));
        base[x] += values[chosen[x]];
      }
      context.globalAlpha = this.app.bandMatches(band) ? 1 : 0.15;
      context.fillStyle = bandColour(band, bands, this.app.isDark);
      context.fill();
      this.app.drawn.points += 4 * chosen.length;
    }
    context.globalAlpha = 1;
  }

  #drawLines(context, level, chosen, { y, top }) {
    const line = (colour, dash, value) => {
      context.strokeStyle = this.app.colour(colour);
      context.setLineDash(dash);
      context.beginPath();
      for (let x = 0; x < chosen.length; x += 1) context.lineTo(LEFT + x + 0.5, y(value(chosen[x])));
      context.stroke();
      context.setLineDash([]);
      this.app.drawn.points += chosen.length;
    };
    if (this.app.withReserved) line("--accent", [], (bucket) => level.reserved[bucket]);
    const capacity = this.app.summary.capacity_bytes;
    if (capacity !== null && capacity <= top) line("--bad", [6, 4], () => capacity);
  }

  #drawMarks(context, { height }) {
    const taken = new Set();
    for (const mark of this.app.marks) {
      const x = Math.round(this.xOf(mark.moment + 0.5));
      const key = `${mark.kind}${x}`;
      if (x < 0 || x > this.plotWidth || taken.has(key)) continue;
      taken.add(key);
      const isFailure = mark.kind === "out of memory";
      context.fillStyle = this.app.colour(
        { "out of memory": "--bad", pressure: "--warn", collection: "--accent" }[mark.kind],
      );
      context.globalAlpha = isFailure ? 0.8 : 0.35;
      if (isFailure || mark.kind === "pressure") context.fillRect(LEFT + x - 0.5, TOP, 1, height);
      context.globalAlpha = 1;
      context.beginPath();
      const y = { "out of memory": 1, pressure: 5, collection: 9 }[mark.kind];
      context.moveTo(LEFT + x - 4, y);
      context.lineTo(LEFT + x + 4, y);
      context.lineTo(LEFT + x, y + 6);
      context.fill();
      this.app.drawn.points += 3;
    }
  }

  /** What the tip says at a place of the plot. */
  tip(x) {
    const { timeline, view, summary } = this.app;
    const level = timeline.level(view.from, view.to);
    const bucket = this.#bucketAt(level, timeline, x);
    const first = level.start + bucket * level.width;
    const end = timeline.end(level, bucket);
    const range = first === end ? `event ${grouped(end)}` : `events ${grouped(first)} to ${grouped(end)}`;
    const lines = [element("p", "", `${range}${this.app.timeSuffix(end)}`)];
    if (first === end) lines.push(element("p", "", `in use ${exact(level.last[bucket])}`));
    else {
      lines.push(
        element(
          "p",
          "",
          `at most ${exact(level.most[bucket])}, at least ${exact(level.least[bucket])}, ` +
            `at the end ${exact(level.last[bucket])}`,
        ),
      );
    }
    lines.push(element("p", "", `reserved ${sized(level.reserved[bucket])}`));
    const parts = level.bandMost
      .map((values, band) => ({ band, bytes: values[bucket] }))
      .filter(({ bytes }) => bytes > 0);
    parts.sort((one, other) => other.bytes - one.bytes);
    for (const { band, bytes } of parts.slice(0, 6)) {
      const name = band < summary.bands ? this.app.label(summary.sites[band].site) : "all other sites";
      lines.push(element("p", "", this.app.swatch(band), `${sized(bytes)}  ${name}`));
    }
    const near = this.app.marks.filter((mark) => Math.abs(this.xOf(mark.moment + 0.5) - x) < 4);
    for (const mark of near.slice(0, 3)) lines.push(element("p", "", mark.text));
    return lines;
  }

  #listen() {
    const { canvas, pointers } = this;
    const tip = byId("timeline-tip");
    canvas.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, event.offsetX);
      this.travelled = pointers.size > 1 ? Infinity : 0;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (pointers.has(event.pointerId)) this.#drag(event);
      else if (event.offsetX >= LEFT) {
        placeTip(tip, canvas, event.offsetX, event.offsetY, ...this.tip(event.offsetX - LEFT));
      }
    });
    const release = (event) => {
      if (pointers.delete(event.pointerId) && event.type === "pointerup" && this.travelled < 5) {
        this.app.moveCursor(Math.floor(this.momentAt(event.offsetX - LEFT)));
      }
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => (tip.hidden = true));
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
          this.#pan((event.deltaX || event.deltaY) / this.plotWidth);
        } else {
          this.app.zoom(1.002 ** event.deltaY, this.momentAt(event.offsetX - LEFT));
        }
      },
      { passive: false },
    );
  }

  #pan(part) {
    const { view } = this.app;
    this.app.show(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));
  }

  #drag(event) {
    const { pointers } = this;
    const before = [...pointers.values()];
    const moved = event.offsetX - pointers.get(event.pointerId);
    pointers.set(event.pointerId, event.offsetX);
    const after = [...pointers.values()];
    this.travelled += Math.abs(moved);
    byId("timeline-tip").hidden = true;
    if (pointers.size === 2) {
      const spread = ([one, other]) => Math.max(10, Math.abs(one - other));
      this.app.zoom(spread(before) / spread(after), this.momentAt((after[0] + after[1]) / 2 - LEFT));
    } else if (this.travelled >= 5) {
      this.#pan(-moved / this.plotWidth);
    }
  }
}

/** A time since the first event as people read it. */
export function timeText(time, clock) {
  if (time === null) return "";
  return clock === "steps" ? `step ${grouped(Math.round(time))}` : `at ${lasted(time)}`;
}
