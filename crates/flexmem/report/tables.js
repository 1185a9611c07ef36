// The figures and the lists, and every chart as a table.
import { byId, counted, element, exact, grouped, lasted, sizeCell, sized, table } from "./text.js";

const ROWS = 100;
const TIMELINE_ROWS = 60;

/** How many rows there are of how many. */
function extent(shown, all, noun) {
  return shown === all ? counted(all, noun) : `${grouped(shown)} of ${counted(all, noun)}`;
}

/** The first rows that match the search, and a caption that says how many there are. */
function limited(app, items, sitesOf, textOf, noun) {
  const matching = items.filter(
    (item) =>
      app.query === "" ||
      sitesOf(item).some((site) => app.matches(site)) ||
      textOf(item).toLowerCase().includes(app.query),
  );
  return { rows: matching.slice(0, ROWS), caption: extent(Math.min(ROWS, matching.length), items.length, noun) };
}

/** Figures of a device, as in the JSON. `data-figure` names the field, `data-value` has its value. */
export function fillFigures(app) {
  const { summary: device } = app;
  const figures = [
    ["Peak in use", "peak.live_bytes", device.peak.live_bytes, `after event ${grouped(device.peak.moment)}`],
    ["Reserved at the peak", "peak.reserved_bytes", device.peak.reserved_bytes, ""],
    ["Most reserved", "peak_reserved_bytes", device.peak_reserved_bytes, ""],
    ["Capacity", "capacity_bytes", device.capacity_bytes, ""],
    ["In use at the end", "end.live_bytes", device.end.live_bytes, counted(device.end.live_blocks, "block")],
    ["Before the first event", "baseline_bytes", device.baseline_bytes, counted(device.baseline_blocks, "block")],
    ["Events", "events", device.events, "", true],
    ["Allocations", "allocations", device.allocations, "", true],
    ["Frees", "frees", device.frees, "", true],
    ["Failed requests", "out_of_memory.count", device.out_of_memory.count, "", true],
    [
      "Under pressure",
      "pressure.count",
      device.pressure.count,
      `${sized(device.pressure.reclaimed_bytes)} reclaimed`,
      true,
    ],
    [
      "Collections",
      "collections.count",
      device.collections.count,
      `${sized(device.collections.reclaimed_bytes)} reclaimed`,
      true,
    ],
  ];
  byId("figures").replaceChildren(
    ...figures
      .filter(([, , value]) => value !== null)
      .map(([title, field, value, more, isCount]) => {
        const given = element("dd", "", isCount ? grouped(value) : sized(value));
        given.dataset.figure = field;
        given.dataset.value = value;
        if (!isCount) given.title = `${grouped(value)} bytes`;
        const small = [isCount ? "" : `${grouped(value)} bytes`, more].filter(Boolean);
        given.append(...small.map((text) => element("small", "", text)));
        return element("div", "", element("dt", "", title), given);
      }),
  );
  byId("notes").replaceChildren(...notes(app).map(([text, className]) => element("li", className, text)));
}

function notes(app) {
  const {
    report: { summary },
    summary: device,
  } = app;
  const found = [];
  if (device.from_state) found.push(["No history was recorded: this is one moment.", "bad"]);
  if (device.baseline_bytes > 0) {
    found.push(["Recording began in mid-life, so there may have been a higher peak before.", ""]);
  }
  if (summary.growing) {
    found.push(["The file was still being written: this is how far it was when it was read.", ""]);
  }
  if (device.lost_places > 0) {
    found.push([
      `Events are missing in ${counted(device.lost_places, "place")}: ` +
        `${device.lost_events ? `at least ${grouped(device.lost_events)}` : "how many is not known"}.`,
      "bad",
    ]);
  }
  if (device.contradictions > 0) {
    found.push([
      `${counted(device.contradictions, "event")} contradict others; the figures are near, not exact.`,
      "bad",
    ]);
  }
  if (device.capacity_bytes !== null && device.peak.live_bytes > device.capacity_bytes) {
    found.push(["More is in use than the device has: one of the two figures is wrong.", "bad"]);
  }
  if (summary.settings.length > 0) {
    const settings = summary.settings.map(([key, value]) => `${key}: ${value}`).join("\n");
    const title = element("summary", "", counted(summary.settings.length, "setting"));
    found.push([element("details", "", title, element("pre", "", settings)), "faint"]);
  }
  return found;
}

/** A site with its colour, and its stack to unfold. */
export function siteCell(app, site) {
  const { label, stack } = app.report.summary.sites[site];
  const name = [app.swatch(app.timeline.band(site)), label];
  if (stack.length < 1) return element("span", "", ...name);
  return element("details", "", element("summary", "", ...name), element("pre", "", stack.join("\n")));
}

/** Who holds what at the cursor. */
export function fillHolders(app) {
  const { state } = app;
  const held = limited(
    app,
    state.held,
    ({ site }) => [site],
    () => "",
    "site",
  );
  const rows = held.rows.map(({ site, bytes, blocks }) => ({
    cells: [
      siteCell(app, site),
      sizeCell(bytes),
      `${((100 * bytes) / (state.liveBytes || 1)).toFixed(1)} %`,
      grouped(blocks),
    ],
  }));
  const unknown = state.liveBytes - state.shownBytes;
  const missed = unknown > 0 ? `; ${exact(unknown)} in blocks that are left out` : "";
  byId("holders").replaceChildren(
    table(
      `${held.caption}, after event ${grouped(state.moment)}${missed}`,
      [["Site"], ["Held", true], ["Share", true], ["Blocks", true]],
      rows,
    ),
  );
}

/** All sites of the device. */
export function fillSites(app) {
  const { summary: device } = app;
  const sites = limited(
    app,
    device.sites,
    ({ site }) => [site],
    () => "",
    "site",
  );
  const rows = sites.rows.map((use) => ({
    cells: [
      siteCell(app, use.site),
      sizeCell(use.peak_bytes),
      sizeCell(use.at_peak_bytes),
      sizeCell(use.at_end_bytes),
      sizeCell(use.allocated_bytes),
      grouped(use.allocations),
    ],
  }));
  byId("sites").replaceChildren(
    table(
      sites.caption,
      [
        ["Site"],
        ["Its peak", true],
        ["At the peak", true],
        ["At the end", true],
        ["Allocated", true],
        ["Blocks", true],
      ],
      rows,
    ),
  );
}

/** What happened besides allocating, with a button that goes there. */
export function fillEvents(app) {
  const events = limited(
    app,
    app.marks,
    ({ sites }) => sites,
    ({ text }) => text,
    "event",
  );
  const rows = events.rows.map((mark) => {
    const go = element("button", "", grouped(mark.moment));
    go.type = "button";
    go.setAttribute("aria-label", `Go to event ${grouped(mark.moment)}`);
    go.addEventListener("click", () => app.moveCursor(mark.moment, true));
    return {
      className: mark.isFailure ? "bad" : "",
      cells: [
        go,
        mark.kind,
        mark.detail,
        sizeCell(mark.requested),
        sizeCell(mark.reclaimed),
        mark.duration ? lasted(mark.duration) : "",
      ],
    };
  });
  byId("events").replaceChildren(
    table(
      events.caption,
      [["Event"], ["What"], ["How"], ["Asked for", true], ["Reclaimed", true], ["Took", true]],
      rows,
    ),
  );
}

/** Who makes the cycles that collections free. */
export function fillCycles(app) {
  const { cycles } = app.summary;
  const found = limited(
    app,
    cycles.shown,
    ({ site }) => [site],
    ({ type_name: name }) => name ?? "",
    "type and site",
  );
  if (cycles.count === 0) {
    byId("cycles").replaceChildren(element("p", "faint", "The trace names none."));
    return;
  }
  const rows = found.rows.map((cycle) => ({
    cells: [
      cycle.type_name ?? "not known",
      siteCell(app, cycle.site),
      sizeCell(cycle.bytes),
      grouped(cycle.blocks),
      grouped(cycle.times),
    ],
  }));
  byId("cycles").replaceChildren(
    table(
      `${grouped(rows.length)} of ${grouped(cycles.count)} pairs of type and site, ` +
        `${exact(cycles.reclaimed_bytes)} in all`,
      [["Type"], ["Allocated in"], ["Reclaimed", true], ["Blocks", true], ["Times", true]],
      rows,
    ),
  );
}

/** The chart as a table: what it shows, in equal parts. */
export function fillTimelineTable(app) {
  if (!byId("timeline-details").open) return;
  const { timeline, view, summary } = app;
  const level = timeline.level(view.from, view.to);
  const first = timeline.bucket(level, view.from);
  const last = timeline.bucket(level, Math.ceil(view.to) - 1);
  const size = Math.ceil((last - first + 1) / TIMELINE_ROWS);
  const rows = [];
  for (let start = first; start <= last; start += size) {
    const end = Math.min(last, start + size - 1);
    let [most, least] = [start, Infinity];
    for (let bucket = start; bucket <= end; bucket += 1) {
      if (level.most[bucket] > level.most[most]) most = bucket;
      least = Math.min(least, level.least[bucket]);
    }
    let top = 0;
    level.bandMost.forEach((values, band) => (top = values[most] > level.bandMost[top][most] ? band : top));
    const name = top < summary.bands ? app.label(summary.sites[top].site) : "all other sites";
    const moment = timeline.end(level, end);
    rows.push({
      cells: [
        `${grouped(level.start + start * level.width)} to ${grouped(moment)}`,
        app.timeText(moment),
        sizeCell(level.most[most]),
        sizeCell(least),
        sizeCell(level.last[end]),
        sizeCell(level.reserved[end]),
        `${name}: ${sized(level.bandMost[top][most])}`,
      ],
    });
  }
  byId("timeline-table").replaceChildren(
    table(
      "What the chart shows, in equal parts",
      [
        ["Events"],
        ["Time"],
        ["At most", true],
        ["At least", true],
        ["At the end", true],
        ["Reserved", true],
        ["Largest part at most"],
      ],
      rows,
    ),
  );
}

/** The map as a table: the largest blocks. */
export function fillMapTable(app) {
  if (!byId("map-details").open) return;
  const { blocks } = app.timeline.columns;
  const bySize = [...app.state.live].sort((one, other) => blocks.size[other] - blocks.size[one]);
  const found = limited(
    app,
    bySize,
    (block) => [blocks.site[block]],
    () => "",
    "block",
  );
  const rows = found.rows.map((block) => ({
    cells: [
      app.address(blocks.address[block]),
      sizeCell(blocks.size[block]),
      grouped(blocks.born[block]),
      grouped(app.state.moment - blocks.born[block]),
      siteCell(app, blocks.site[block]),
    ],
  }));
  byId("map-table").replaceChildren(
    table(
      `${found.caption}, the largest first`,
      [["Address"], ["Size", true], ["Since event", true], ["Events ago", true], ["Site"]],
      rows,
    ),
  );
}

/** What the page does not show. */
export function fillLeftOut(app) {
  const {
    report: { summary },
    summary: device,
    timeline,
  } = app;
  const lines = [];
  const { map } = device;
  if (map.left_out > 0) {
    lines.push(
      `The map knows ${grouped(map.shown)} of ${counted(map.blocks, "block")}. Left out are the ` +
        `${grouped(map.left_out)} with the smallest product of size and time, ${exact(map.left_out_bytes)} added up ` +
        `over time, none larger than ${exact(map.largest_left_out_bytes)}. The chart has them.`,
    );
  }
  if (map.regions_left_out > 0)
    lines.push(`${counted(map.regions_left_out, "region")} of ${grouped(map.regions)}, the smallest.`);
  if (!timeline.base.isExact) {
    const closely = timeline.knowsAllBlocks ? "; closely, it shows single events" : "";
    lines.push(
      `The chart has ${grouped(device.buckets)} points of ${grouped(device.bucket_moments)} events each, with ` +
        `the least, the most and the last of each${closely}.`,
    );
  }
  if (summary.sites_left_out > 0) {
    lines.push(
      `${counted(summary.sites_left_out, "site")} beyond the ${grouped(summary.sites.length - 1)} with the highest ` +
        "peaks are one: other sites.",
    );
  }
  const others = device.sites.length - device.bands;
  if (others > 0)
    lines.push(`The chart tells ${grouped(device.bands)} sites apart; ${grouped(others)} more are its last band.`);
  const lists = {
    "failed requests": device.out_of_memory,
    "pressure events": device.pressure,
    collections: device.collections,
    "cycle makers": device.cycles,
  };
  for (const [name, { shown, count }] of Object.entries(lists)) {
    if (count > shown.length)
      lines.push(`${grouped(count - shown.length)} of ${grouped(count)} ${name}, those that reclaimed least.`);
  }
  if (summary.devices_left_out > 0) lines.push(`${counted(summary.devices_left_out, "device")}.`);
  if (!lines.length) lines.push("Nothing.");
  lines.push(`Lists show the first ${ROWS} that match the search.`);
  byId("left-out").replaceChildren(...lines.map((line) => element("li", "", line)));
}
