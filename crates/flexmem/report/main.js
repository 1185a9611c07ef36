// The page: what is shown, and what happens when one does something.
//
// `App` has the state: the device, the view in moments, the cursor, the search. Whoever changes it asks for a redraw,
// which happens once in the next frame.
import { Chart, bandColour, timeText } from "./chart.js";
import { readReport } from "./data.js";
import { listenToKeys } from "./keys.js";
import { Timeline } from "./levels.js";
import { RegionMap } from "./map.js";
import { fillCycles, fillEvents, fillFigures, fillHolders } from "./tables.js";
import { fillLeftOut, fillMapTable, fillSites, fillTimelineTable } from "./tables.js";
import { byId, element, exact, grouped, lasted, sized } from "./text.js";

const MIN_VIEW_MOMENTS = 8;

class App {
  constructor(report) {
    this.report = report;
    this.clock = report.summary.clock;
    this.query = "";
    this.byTime = false;
    this.withReserved = true;
    /** What was drawn, for tests: that it stays bounded, and that frames come. */
    this.drawn = { frames: 0, points: 0, bucketMoments: 0, mapRows: 0 };
    this.colours = new Map();
    this.readTheme();
    this.chart = new Chart(this);
    this.map = new RegionMap(this);
    this.#controls();
  }

  choose(index) {
    this.summary = this.report.summary.devices[index];
    this.timeline = new Timeline(this.summary, this.report.device(index));
    this.marks = marksOf(this);
    this.view = { from: 0, to: this.timeline.moments };
    byId("by-time").disabled = !this.timeline.hasTime;
    this.byTime &&= this.timeline.hasTime;
    byId("to-oom").disabled = this.summary.out_of_memory.shown.length < 1;
    fillFigures(this);
    fillCycles(this);
    fillEvents(this);
    fillSites(this);
    fillLeftOut(this);
    this.#fillLegend();
    this.moveCursor(this.summary.peak.moment);
  }

  /** Shows a range of moments, moved and widened so that it is within the trace. */
  show(from, to) {
    const all = this.timeline.moments;
    const span = Math.min(all, Math.max(Math.min(MIN_VIEW_MOMENTS, all), to - from));
    const start = Math.min(all - span, Math.max(0, from));
    this.view = { from: start, to: start + span };
    this.redraw(false);
  }

  /** Shows `factor` times as much, around a moment. */
  zoom(factor, around = this.cursor) {
    const { from, to } = this.view;
    const centre = Math.min(to, Math.max(from, around));
    this.show(centre - (centre - from) * factor, centre + (to - centre) * factor);
  }

  /** Sets the cursor; with `follow`, what is shown moves along. */
  moveCursor(moment, follow = false) {
    this.cursor = this.timeline.snap(moment);
    const { from, to } = this.view;
    if (follow && (this.cursor < from || this.cursor >= to)) {
      this.show(this.cursor - (to - from) / 2, this.cursor + (to - from) / 2);
    }
    this.stateIsStale = true;
    this.redraw();
  }

  toMark(direction) {
    const moments = this.marks.map((mark) => mark.moment);
    const found =
      direction > 0
        ? moments.find((moment) => moment > this.cursor)
        : moments.findLast((moment) => moment < this.cursor);
    if (found !== undefined) this.moveCursor(found, true);
  }

  search(text) {
    this.query = text.trim().toLowerCase();
    this.matching =
      this.query === ""
        ? null
        : this.report.summary.sites.map(
            ({ label, stack }) =>
              label.toLowerCase().includes(this.query) ||
              stack.some((frame) => frame.toLowerCase().includes(this.query)),
          );
    fillEvents(this);
    fillCycles(this);
    fillSites(this);
    this.#fillLegend();
    this.stateIsStale = true;
    this.redraw();
  }

  matches(site) {
    return this.matching ? this.matching[site] : true;
  }

  bandMatches(band) {
    if (!this.matching) return true;
    return band < this.summary.bands
      ? this.matching[this.summary.sites[band].site]
      : this.summary.sites.slice(this.summary.bands).some(({ site }) => this.matching[site]);
  }

  /** Asks for a frame; the map changes with the cursor, not with what the chart shows. */
  redraw(withMap = true) {
    this.chart.isStale = true;
    this.mapIsStale ||= withMap;
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.stateIsStale) this.#updateState();
      this.chart.draw();
      if (this.mapIsStale) this.map.draw();
      this.mapIsStale = false;
      fillTimelineTable(this);
    });
  }

  #updateState() {
    this.stateIsStale = false;
    this.state = this.timeline.stateAt(this.cursor);
    this.map.update(this.state);
    fillHolders(this);
    fillMapTable(this);
    const top = this.state.held[0];
    const most = top ? ` Most is held by ${this.label(top.site)}: ${sized(top.bytes)}.` : "";
    byId("cursor-text").textContent =
      `After event ${grouped(this.cursor)}${this.timeSuffix(this.cursor)}: in use ` +
      `${exact(this.state.liveBytes)} in ${grouped(this.state.liveBlocks)} blocks, reserved ` +
      `${exact(this.state.reservedBytes)}.${most}`;
  }

  #fillLegend() {
    const { summary } = this;
    const names = summary.sites.slice(0, summary.bands).map(({ site }) => this.label(site));
    if (summary.sites.length > summary.bands || this.report.summary.sites_left_out > 0) names.push("all other sites");
    byId("legend").replaceChildren(
      ...names.map((name, band) => element("li", this.bandMatches(band) ? "" : "dimmed", this.swatch(band), name)),
    );
  }

  label(site) {
    return this.report.summary.sites[site].label;
  }

  swatch(band) {
    const made = element("span", "swatch");
    made.style.backgroundColor = bandColour(band, this.summary.bands, this.isDark);
    return made;
  }

  address(relative) {
    return `0x${(this.timeline.columns.firstAddress + BigInt(Math.round(relative))).toString(16)}`;
  }

  lengthText(nanoseconds) {
    return lasted(nanoseconds);
  }

  timeText(moment) {
    return timeText(this.timeline.timeAt(moment), this.clock);
  }

  timeSuffix(moment) {
    const text = this.timeText(moment);
    return text && `, ${text}`;
  }

  /** What stands below the chart. */
  momentText(moment) {
    return this.byTime
      ? this.timeText(Math.max(0, moment - 0.5)).replace("at ", "")
      : grouped(Math.round(Math.min(moment, this.summary.events)));
  }

  /** A colour of the style sheet. */
  colour(name) {
    if (!this.colours.has(name)) {
      this.colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    }
    return this.colours.get(name);
  }

  readTheme() {
    const chosen = document.documentElement.dataset.theme;
    this.isDark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    this.colours.clear();
    byId("theme").textContent = this.isDark ? "Light" : "Dark";
  }

  toggleTheme() {
    document.documentElement.dataset.theme = this.isDark ? "light" : "dark";
    this.#themeChanged();
  }

  #themeChanged() {
    this.readTheme();
    this.#fillLegend();
    fillSites(this);
    fillCycles(this);
    this.stateIsStale = true;
    this.redraw();
  }

  #controls() {
    const onClick = (id, action) => byId(id).addEventListener("click", action);
    onClick("zoom-in", () => this.zoom(1 / 1.5));
    onClick("zoom-out", () => this.zoom(1.5));
    onClick("zoom-all", () => this.show(0, this.timeline.moments));
    onClick("to-peak", () => this.moveCursor(this.summary.peak.moment, true));
    onClick("to-oom", () => this.moveCursor(this.summary.out_of_memory.shown[0].moment, true));
    onClick("theme", () => this.toggleTheme());
    onClick("help-button", () => byId("help").showModal());
    const onChange = (id, action) =>
      byId(id).addEventListener("change", (event) => {
        action(event.target);
        this.redraw();
      });
    onChange("by-time", (box) => (this.byTime = box.checked));
    onChange("with-reserved", (box) => (this.withReserved = box.checked));
    onChange("device", (list) => this.choose(list.selectedIndex));
    byId("search").addEventListener("input", (event) => this.search(event.target.value));
    byId("timeline-details").addEventListener("toggle", () => fillTimelineTable(this));
    byId("map-details").addEventListener("toggle", () => fillMapTable(this));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#themeChanged());
    new ResizeObserver(() => this.redraw()).observe(byId("timeline"));
    listenToKeys(this);
  }
}

/** The marks of a device, in the order of the trace. */
function marksOf(app) {
  const { out_of_memory: failures, pressure, collections } = app.summary;
  const by = (site) => (site ? ` by ${app.label(site)}` : "");
  const marks = [
    ...failures.shown.map((failure) => ({
      kind: "out of memory",
      moment: failure.moment,
      isFailure: true,
      sites: [failure.site],
      requested: failure.requested_bytes,
      reclaimed: null,
      duration: 0,
      detail:
        [
          `in use ${sized(failure.live_bytes)}`,
          failure.free_bytes === null ? "" : `free ${sized(failure.free_bytes)}`,
          failure.largest_free_bytes === null ? "" : `largest free block ${sized(failure.largest_free_bytes)}`,
        ]
          .filter(Boolean)
          .join(", ") + by(failure.site),
    })),
    ...pressure.shown.map((event) => ({
      kind: "pressure",
      moment: event.moment,
      isFailure: event.end === "out of memory",
      sites: [event.site],
      requested: event.requested_bytes,
      reclaimed: event.reclaimed_bytes,
      duration: event.duration_ns,
      detail: `${event.end}${event.tried.length ? `, tried ${event.tried.join(", ")}` : ""}${by(event.site)}`,
    })),
    ...collections.shown.map((collection) => ({
      kind: "collection",
      moment: collection.moment,
      isFailure: false,
      sites: collection.parts.map(({ site }) => site),
      requested: null,
      reclaimed: collection.reclaimed_bytes,
      duration: collection.duration_ns,
      detail:
        `generation ${collection.generation}, ${grouped(collection.objects)} objects` +
        collection.parts
          .slice(0, 3)
          .map((part) => `; ${sized(part.bytes)} ${part.type_name ?? ""}${by(part.site)}`)
          .join(""),
    })),
  ];
  for (const mark of marks) {
    const sizes = [
      mark.requested === null ? "" : `asked for ${exact(mark.requested)}`,
      mark.reclaimed === null ? "" : `reclaimed ${exact(mark.reclaimed)}`,
    ].filter(Boolean);
    mark.text = `${mark.kind} at event ${grouped(mark.moment)}: ${[...sizes, mark.detail].join(", ")}`;
  }
  return marks.sort((one, other) => one.moment - other.moment);
}

/** Fills in what does not change, and shows the busiest device. */
function start(report) {
  const { summary } = report;
  document.title = `Memory of ${summary.file}`;
  byId("title").textContent = `Memory of ${summary.file}`;
  const sources = summary.sources.map(({ producer, kind, name }) => `${kind} ${name}, by ${producer}`);
  byId("source").textContent = [`A ${summary.kind}`, ...sources].join("; ");
  if (summary.devices.length < 1) {
    byId("status").textContent = "The trace has no device.";
    return null;
  }
  const app = new App(report);
  byId("device").replaceChildren(
    ...summary.devices.map((device) =>
      element(
        "option",
        "",
        `${device.device}${device.name ? `: ${device.name}` : ""}, peak ${sized(device.peak.live_bytes)}`,
      ),
    ),
  );
  app.choose(0);
  byId("status").hidden = true;
  return app;
}

async function main() {
  try {
    const report = await readReport(byId("data").textContent);
    byId("data").remove();
    const app = start(report);
    globalThis.flexmemReport = { summary: report.summary, app, isReady: true };
  } catch (error) {
    byId("status").textContent = `The page cannot be shown: ${error.message}. It needs a browser of 2023 or later.`;
    throw error;
  }
}

main();
