// What the keyboard does. The list of keys is in page.html.
import { byId } from "./text.js";

/** Whether keys belong to what is focused: one types there, or chooses. */
function isTaken(target) {
  return target.matches("input, select, textarea, dialog, dialog *");
}

/** Listens to the keyboard for the page. */
export function listenToKeys(app) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && event.target === byId("search")) {
      byId("search").value = "";
      app.search("");
      byId("timeline").focus();
      return;
    }
    if (isTaken(event.target)) return;
    const action = actions(app, event)[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  });
}

function actions(app, event) {
  const { timeline, view } = app;
  const isOnMap = event.target === byId("map");
  const isOnChart = event.target === byId("timeline") || event.target === document.body;
  const far = Math.max(timeline.step, Math.round((view.to - view.from) / 10));
  const move = (steps) => () => {
    if (isOnMap) app.map.select(steps);
    else app.moveCursor(app.cursor + steps * (event.shiftKey ? far : timeline.step), true);
  };
  const onCharts =
    isOnMap || isOnChart
      ? {
          ArrowLeft: move(-1),
          ArrowRight: move(1),
          Home: isOnMap ? move(-Infinity) : () => app.moveCursor(0, true),
          End: isOnMap ? move(Infinity) : () => app.moveCursor(timeline.moments - 1, true),
        }
      : {};
  return {
    ...onCharts,
    "+": () => app.zoom(1 / 1.5),
    "=": () => app.zoom(1 / 1.5),
    "-": () => app.zoom(1.5),
    0: () => app.show(0, timeline.moments),
    "[": () => app.toMark(-1),
    "]": () => app.toMark(1),
    p: () => app.moveCursor(app.summary.peak.moment, true),
    d: () => app.toggleTheme(),
    "/": () => byId("search").focus(),
    "?": () => byId("help").showModal(),
  };
}
