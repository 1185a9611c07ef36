// Numbers and elements as people read them. Everything that comes from a trace reaches the page as text, here.

const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** Grouped digits: 12,345. */
export function grouped(number) {
  return number.toLocaleString("en-US");
}

/** A size as people say it: 1.50 GiB. */
export function sized(bytes) {
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 1000 ? 0 : value >= 100 ? 1 : 2;
  return `${value.toFixed(digits)} ${unit === 0 && bytes === 1 ? "byte" : UNITS[unit]}`;
}

/** A size with its exact figure. */
export function exact(bytes) {
  return bytes < 1024 ? sized(bytes) : `${sized(bytes)} (${grouped(bytes)} bytes)`;
}

/** A length of time. */
export function lasted(nanoseconds) {
  if (nanoseconds < 1e3) return `${Math.round(nanoseconds)} ns`;
  if (nanoseconds < 1e6) return `${(nanoseconds / 1e3).toFixed(1)} µs`;
  if (nanoseconds < 1e9) return `${(nanoseconds / 1e6).toFixed(1)} ms`;
  return `${(nanoseconds / 1e9).toFixed(3)} s`;
}

/** "1 block", "2,000 blocks". */
export function counted(number, noun, plural = `${noun}s`) {
  return `${grouped(number)} ${number === 1 ? noun : plural}`;
}

/** An element with a class and children: elements, or texts that are never taken for HTML. */
export function element(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

/** The element with an id of the page. */
export function byId(id) {
  return document.getElementById(id);
}

/**
 * A table. `columns` are [title, is a number]; cells are texts, elements, or for numbers [text, exact text].
 */
export function table(caption, columns, rows) {
  const head = element(
    "tr",
    "",
    ...columns.map(([title, isNumber]) => {
      const cell = element("th", isNumber ? "number" : "name", title);
      cell.scope = "col";
      return cell;
    }),
  );
  const body = rows.map(({ cells, className = "" }) =>
    element(
      "tr",
      className,
      ...cells.map((value, column) => {
        const isNumber = columns[column][1];
        const cell = element("td", isNumber ? "number" : "name", Array.isArray(value) ? value[0] : value);
        if (Array.isArray(value)) cell.title = value[1];
        return cell;
      }),
    ),
  );
  return element(
    "table",
    "",
    element("caption", "", caption),
    element("thead", "", head),
    element("tbody", "", ...body),
  );
}

/** A cell with a size, and its exact figure when it is pointed at. */
export function sizeCell(bytes) {
  return bytes === null || bytes === undefined ? "" : [sized(bytes), `${grouped(bytes)} bytes`];
}
