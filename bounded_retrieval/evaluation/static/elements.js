// The embedded data, and the few ways in which elements are made. Text from outside is only ever set as text: nothing
// here parses markup, and nothing from outside names an element or an attribute.

const data = JSON.parse(document.getElementById("report").textContent);
const queries = data.queries;
const at = (id) => document.getElementById(id);

function element(name, properties, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {})) {
    if (key === "text") made.textContent = value;
    else if (key === "class") made.className = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

const foreign = (name, text, className) => element(name, { text, dir: "auto", class: className || "" });
// Long names may break after their joints.
const code = (text) => element("code", { dir: "auto" }, text.split(/(?<=[_:/.-])/).flatMap((part, place) => (place ? [element("wbr"), part] : [part])));
const small = (...children) => element("span", { class: "small" }, ...children);
const heading = (level, text) => element(`h${level}`, { text });
const number = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3);
const counted = (count, one, many) => `${count.toLocaleString("en")} ${count === 1 ? one : many || `${one}s`}`;
const clipped = (text, most) => (text.length > most ? `${text.slice(0, most)}…` : text);

function facts(pairs) {
  const rows = pairs
    .filter(([, value]) => value !== null)
    .map(([name, value]) => element("div", {}, element("dt", { text: name }), element("dd", {}, value)));
  return element("dl", {}, rows);
}

let captions = 0;

function table(caption, columns, rows, className) {
  const id = `caption-${(captions += 1)}`;
  const head = columns.map((column) => element("th", { scope: "col" }, column));
  const body = rows.map(([first, ...rest]) =>
    element("tr", {}, element("th", { scope: "row" }, first), rest.map((cell) => element("td", {}, cell))));
  return element("div", { class: "scroll", role: "region", tabindex: "0", "aria-labelledby": id },
    element("table", { class: className || "" },
      element("caption", {}, element("span", { id }, caption)),
      element("thead", {}, element("tr", {}, head)),
      element("tbody", {}, body)));
}

// A mark says in words what its colour says.
const relevantMark = (grade) =>
  element("span", { class: "mark relevant", text: grade > 1 ? `★ relevant, grade ${grade}` : "★ relevant" });
const packedMark = () => element("span", { class: "mark packed", text: "■ packed" });

function unitName(unit) {
  const [id, title] = data.units[unit];
  return element("div", { class: "unit" }, title ? foreign("b", title) : "", " ", code(id));
}

function unitText(unit) {
  const [, , text, chars] = data.units[unit];
  if (text === undefined) return "";
  const size = `${chars.toLocaleString("en")} characters`;
  const shown = chars > text.length ? `${text}…` : text;
  return element("details", {}, element("summary", { text: `text, ${size}` }), foreign("p", shown, "excerpt"));
}
