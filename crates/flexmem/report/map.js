// The map: every region at the cursor's moment, one behind the other in rows, with the blocks in it.
//
// It is painted cell by cell, a cell being a pixel wide and a row high, so its cost depends on its size. A cell with
// parts of several blocks has the colour of the largest part, the fainter the less of it is in use.
import { bandColour, fitCanvas, placeTip } from "./chart.js";
import { byId, counted, element, exact, grouped, sized } from "./text.js";

const ROW = 14;
const GAP = 3;
const MAX_ROWS = 26;
/** Blocks outside of known regions belong together if they are no farther apart. */
const NEAR_BYTES = 32 * 2 ** 20;
const MAX_CHOICES = 300;

/** The regions at a moment; around blocks that are in none of them, regions are made up. */
export function regionsAt(timeline, state) {
  const { born, died, address, size } = timeline.columns.regions;
  const known = [];
  for (let region = 0; region < born.length; region += 1) {
    if (born[region] <= state.moment && state.moment < died[region]) {
      known.push({ start: address[region], end: address[region] + size[region], isKnown: true, born: born[region] });
    }
  }
  known.sort((one, other) => one.start - other.start);
  const blocks = timeline.columns.blocks;
  const made = [];
  let at = 0;
  for (const block of state.live) {
    const start = blocks.address[block];
    const end = start + blocks.size[block];
    while (at < known.length && known[at].end <= start) at += 1;
    if (at < known.length && known[at].start <= start) continue;
    const latest = made.at(-1);
    if (latest && start - latest.end < NEAR_BYTES && !(at > 0 && known[at - 1].end > latest.end)) {
      latest.end = Math.max(latest.end, end);
    } else {
      made.push({ start, end, isKnown: false, born: 0 });
    }
  }
  return [...known, ...made].filter(({ start, end }) => end > start).sort((one, other) => one.start - other.start);
}

/** The map. `app` is the page. */
export class RegionMap {
  constructor(app) {
    this.app = app;
    this.canvas = byId("map");
    this.choice = byId("region");
    this.selected = null;
    this.choice.addEventListener("change", () => this.app.redraw());
    this.canvas.addEventListener("pointermove", (event) => this.#hover(event));
    this.canvas.addEventListener("pointerdown", (event) => this.#hover(event));
    this.canvas.addEventListener("pointerleave", () => (byId("map-tip").hidden = true));
  }

  /** Takes the state at the cursor. */
  update(state) {
    this.state = state;
    this.regions = regionsAt(this.app.timeline, state);
    this.selected = null;
    const value = this.choice.value;
    const options = this.regions.slice(0, MAX_CHOICES).map((region, index) => {
      const option = element("option", "", `${index + 1}: ${this.#name(region)}`);
      option.value = this.app.address(region.start);
      return option;
    });
    const all = element("option", "", `all ${counted(this.regions.length, "region")}`);
    all.value = "";
    this.choice.replaceChildren(all, ...options);
    this.choice.value = options.some((option) => option.value === value) ? value : "";
    byId("map-text").textContent = this.#summary();
  }

  #name(region) {
    const what = region.isKnown ? "" : ", not a known region";
    return `${sized(region.end - region.start)} at ${this.app.address(region.start)}${what}`;
  }

  #summary() {
    const { state } = this;
    const missing = state.liveBlocks - state.live.length;
    const missed =
      missing > 0
        ? ` ${counted(missing, "small block")} with ${exact(state.liveBytes - state.shownBytes)} are not on the map.`
        : "";
    return (
      `${counted(state.live.length, "block")} with ${exact(state.shownBytes)} in ` +
      `${counted(this.regions.length, "region")} after event ${grouped(state.moment)}.${missed}`
    );
  }

  #shownRegions() {
    if (!this.choice.value) return this.regions;
    return this.regions.filter((region) => this.app.address(region.start) === this.choice.value);
  }

  /** Lays the regions out: where each begins, counted in bytes from the first. */
  #layOut() {
    const regions = this.#shownRegions();
    const starts = [];
    let total = 0;
    for (const region of regions) {
      starts.push(total);
      total += region.end - region.start;
    }
    const width = Math.max(50, Math.floor(this.canvas.clientWidth));
    const rows = total === 0 ? 1 : Math.min(MAX_ROWS, Math.max(10, regions.length));
    this.layout = { regions, starts, total, width, rows, perCell: total / (width * rows) || 1 };
    this.canvas.style.height = `${rows * (ROW + GAP) + GAP}px`;
  }

  draw() {
    if (!this.state) return;
    this.#layOut();
    const { context, height } = fitCanvas(this.canvas);
    const { width, rows, total } = this.layout;
    context.clearRect(0, 0, width + 2, height);
    if (total > 0) {
      const cells = this.#cells();
      for (let row = 0; row < rows; row += 1) this.#drawRow(context, cells, row);
      this.#drawEdges(context);
    }
    if (this.selected !== null) this.#outline(context, this.selected);
    this.app.drawn.mapRows = rows;
  }

  /** How much of each cell is in use, and by which block most. */
  #cells() {
    const { regions, starts, width, rows, perCell } = this.layout;
    const blocks = this.app.timeline.columns.blocks;
    const count = width * rows;
    const cells = {
      covered: new Float32Array(count),
      block: new Int32Array(count).fill(-1),
      most: new Float32Array(count),
    };
    let region = 0;
    for (const block of this.state.live) {
      const address = blocks.address[block];
      while (region < regions.length && regions[region].end <= address) region += 1;
      if (region === regions.length) break;
      if (address < regions[region].start) continue;
      const from = (starts[region] + address - regions[region].start) / perCell;
      const to = Math.min(count, from + blocks.size[block] / perCell);
      for (let cell = Math.floor(from); cell < to; cell += 1) {
        const part = Math.min(cell + 1, to) - Math.max(cell, from);
        cells.covered[cell] += part;
        if (part > cells.most[cell]) {
          cells.most[cell] = part;
          cells.block[cell] = block;
        }
      }
    }
    return cells;
  }

  #drawRow(context, { covered, block }, row) {
    const { width } = this.layout;
    const { timeline, summary, isDark } = this.app;
    const sites = timeline.columns.blocks.site;
    const y = GAP + row * (ROW + GAP);
    context.fillStyle = this.app.colour("--empty");
    context.fillRect(0, y, width, ROW);
    const shade = (cell) => Math.min(8, Math.ceil(covered[cell] * 8));
    for (let x = 0; x < width;) {
      const cell = row * width + x;
      let end = x + 1;
      while (end < width && block[row * width + end] === block[cell] && shade(row * width + end) === shade(cell))
        end += 1;
      if (block[cell] >= 0) {
        const site = sites[block[cell]];
        context.globalAlpha = (this.app.matches(site) ? 1 : 0.15) * Math.max(0.25, shade(cell) / 8);
        context.fillStyle = bandColour(timeline.band(site), summary.bands, isDark);
        context.fillRect(x, y, end - x > 4 ? end - x - 0.5 : end - x, ROW);
      }
      x = end;
    }
    context.globalAlpha = 1;
  }

  /** Where a region begins. Not for small ones: they would hide what is in them. */
  #drawEdges(context) {
    const { regions, starts, perCell, width } = this.layout;
    context.fillStyle = this.app.colour("--ink");
    regions.forEach((region, index) => {
      const cell = starts[index] / perCell;
      if ((region.end - region.start) / perCell < 6) return;
      const row = Math.floor(cell / width + 1e-9);
      context.fillRect(Math.max(0, cell - row * width), GAP + row * (ROW + GAP) - 1, 1.5, ROW + 2);
    });
  }

  #outline(context, block) {
    const place = this.#placeOf(block);
    if (place === null) return;
    context.strokeStyle = this.app.colour("--ink");
    context.lineWidth = 2;
    const { width, perCell } = this.layout;
    const length = this.app.timeline.columns.blocks.size[block] / perCell;
    for (let from = place, left = length; left > 0;) {
      const row = Math.floor(from / width + 1e-9);
      const part = Math.min(left, (row + 1) * width - from);
      context.strokeRect(from - row * width, GAP + row * (ROW + GAP) - 1, Math.max(3, part), ROW + 2);
      from = (row + 1) * width;
      left -= part > 0 ? part : left;
    }
  }

  /** The cell in which a block begins. */
  #placeOf(block) {
    const { regions, starts, perCell } = this.layout;
    const address = this.app.timeline.columns.blocks.address[block];
    const index = regions.findIndex((region) => region.start <= address && address < region.end);
    return index < 0 ? null : (starts[index] + address - regions[index].start) / perCell;
  }

  /** What lies at a place of the map: a block, or what is free between two. */
  #at(x, y) {
    const { regions, starts, perCell, width, rows } = this.layout;
    const row = Math.floor((y - GAP / 2) / (ROW + GAP));
    if (row < 0 || row >= rows || x < 0 || x >= width) return null;
    const offset = (row * width + x) * perCell;
    let index = starts.findLastIndex((start) => start <= offset);
    if (index < 0) index = 0;
    const region = regions[index];
    if (!region) return null;
    const address = region.start + offset - starts[index];
    const { live } = this.state;
    const blocks = this.app.timeline.columns.blocks;
    let low = 0;
    let high = live.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (blocks.address[live[middle]] <= address + perCell) low = middle + 1;
      else high = middle;
    }
    const before = low > 0 ? live[low - 1] : null;
    const end = before === null ? region.start : blocks.address[before] + blocks.size[before];
    if (before !== null && end > address) return { block: before, region };
    const next = low < live.length ? Math.min(region.end, blocks.address[live[low]]) : region.end;
    return { block: null, region, freeBytes: next - Math.max(region.start, end) };
  }

  /** What is known of a block, in lines. */
  describe(block) {
    const { blocks } = this.app.timeline.columns;
    const { state } = this;
    const born = blocks.born[block];
    const since = born === 0 ? "there before the first event" : `since event ${grouped(born)}`;
    const time = this.app.timeline.timeAt(born);
    const age =
      born > 0 && time !== null && state.time !== null && this.app.clock !== "steps"
        ? `, for ${this.app.lengthText(Math.max(0, state.time - time))}`
        : "";
    return [
      exact(blocks.size[block]),
      this.app.label(blocks.site[block]),
      `${since}, ${counted(state.moment - born, "event")} ago${age}`,
      `at ${this.app.address(blocks.address[block])}`,
    ];
  }

  #hover(event) {
    const found = this.state && this.#at(event.offsetX, event.offsetY);
    const tip = byId("map-tip");
    if (!found) {
      tip.hidden = true;
      return;
    }
    const lines = found.block === null ? [`free: ${exact(found.freeBytes)}`] : this.describe(found.block);
    lines.push(`in the region of ${this.#name(found.region)}`);
    placeTip(tip, this.canvas, event.offsetX, event.offsetY, ...lines.map((line) => element("p", "", line)));
  }

  /** Goes to a block before or behind the selected one, and says what it is. */
  select(steps) {
    const { live } = this.state;
    const shown = live.filter((block) => this.app.matches(this.app.timeline.columns.blocks.site[block]));
    if (!shown.length) return;
    const at = this.selected === null ? -1 : shown.indexOf(this.selected);
    const next = at < 0 ? (steps > 0 ? 0 : shown.length - 1) : Math.min(shown.length - 1, Math.max(0, at + steps));
    this.selected = shown[next];
    byId("map-text").textContent =
      `Block ${grouped(next + 1)} of ${grouped(shown.length)}: ` + `${this.describe(this.selected).join("; ")}.`;
    this.app.redraw();
  }
}
