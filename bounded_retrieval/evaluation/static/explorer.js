// The list of queries and the state that it shows. The state is the address's fragment and nowhere else: every choice
// writes it, and what is shown is read from it, so that a link, a reload and Back all give the same.

const PAGE_ROWS = 50;
const SORTS = {
  file: "file order",
  gain: "gain of one more call, largest first",
  "least-coverage": "coverage, lowest first",
  "most-coverage": "coverage, highest first",
  ndcg: "nDCG@4, lowest first",
};
const NEEDS_DECISION = ["gain", "least-coverage", "most-coverage"];
const OUTCOMES = {
  "packet-all": "packet holds all that is relevant",
  "packet-some": "packet holds some of it",
  "packet-none": "packet holds none of it",
};
const STOPPED = {
  "stopped-improved": "one more call would have improved",
  "stopped-unchanged": "one more call would have changed nothing",
  "stopped-reduced": "one more call would have reduced",
};
const EXACT = 1e-9;
const searched = queries.map((query) => `${query.text}\n${query.id}`.toLowerCase());

let shownState = null;
let visible = [];
let focusNext = null;
let typing = 0;

const runOf = (place, state) => queries[place].runs[queries[place].use[state.policy]];

function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  const named = data.policies.findIndex(({ name }) => name === given.get("policy"));
  const policy = named < 0 ? data.start : named;
  const { decides } = data.policies[policy];
  const known = (key, values, otherwise) => (Object.hasOwn(values, given.get(key) || "") ? given.get(key) : otherwise);
  const sort = known("sort", SORTS, "file");
  return {
    policy,
    reason: known("reason", data.reasons, ""),
    outcome: known("outcome", decides ? { ...OUTCOMES, ...STOPPED } : OUTCOMES, ""),
    text: (given.get("text") || "").slice(0, 200),
    sort: !decides && NEEDS_DECISION.includes(sort) ? "file" : sort,
    page: Math.max(1, Math.floor(Number(given.get("page"))) || 1),
    query: queries.findIndex(({ id }) => id === given.get("query")),
    asked: given.get("query"),
  };
}

function fragment(state) {
  const kept = new URLSearchParams({ policy: data.policies[state.policy].name });
  for (const key of ["reason", "outcome", "text"]) if (state[key]) kept.set(key, state[key]);
  if (state.sort !== "file") kept.set("sort", state.sort);
  if (state.page > 1) kept.set("page", state.page);
  if (state.query >= 0) kept.set("query", queries[state.query].id);
  return `#${kept}`;
}

function go(change, { replace = false, focus = null } = {}) {
  focusNext = focus;
  const typed = typing ? { text: at("text").value } : {};
  clearTimeout(typing);
  typing = 0;
  const target = fragment({ ...readState(), ...typed, ...change });
  if (target === location.hash) show();
  else if (replace) location.replace(target);
  else location.hash = target;
}

const filter = (change, options) => go({ page: 1, query: -1, ...change }, options);

function outcomeOf(run) {
  return run.packet_recall >= 1 - EXACT ? "packet-all" : run.packet_recall > 0 ? "packet-some" : "packet-none";
}

function matches(place, state) {
  const run = runOf(place, state);
  if (state.reason && run.reason !== state.reason) return false;
  if (state.outcome.startsWith("packet-") && outcomeOf(run) !== state.outcome) return false;
  if (state.outcome.startsWith("stopped-") && !(run.stopped && `stopped-${run.more}` === state.outcome)) return false;
  return !state.text || searched[place].includes(state.text.toLowerCase());
}

function sortKey(place, state) {
  const run = runOf(place, state);
  const coverage = run.decision ? run.decision.coverage : null;
  return {
    file: 0,
    gain: run.gain === null || run.gain === undefined ? null : -run.gain,
    "least-coverage": coverage,
    "most-coverage": coverage === null ? null : -coverage,
    ndcg: run["ndcg@4"],
  }[state.sort];
}

function listed(state) {
  const rows = queries.map((_, place) => place).filter((place) => matches(place, state));
  const keys = new Map(rows.map((place) => [place, sortKey(place, state)]));
  const last = (key) => (key === null || key === undefined ? Infinity : key);
  const order = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
  return rows.sort((one, other) => order(last(keys.get(one)), last(keys.get(other))) || one - other);
}

function show() {
  const state = readState();
  const before = shownState;
  shownState = state;
  visible = listed(state);
  state.page = Math.min(state.page, Math.max(1, Math.ceil(visible.length / PAGE_ROWS)));
  showChoices(state);
  const open = state.query >= 0;
  at("list").hidden = open;
  at("filters").hidden = open;
  at("opened").hidden = !open;
  if (open) showOpened(state, before);
  else showList(state, before);
  focusNext = null;
}

function showOpened(state, before) {
  at("opened").replaceChildren(bar(state), openedQuery(state.query, state.policy));
  document.title = `${clipped(queries[state.query].text, 60)} – ${pageTitle}`;
  if (!before || before.query !== state.query) at("opened-heading").focus();
}

function bar(state) {
  const place = visible.indexOf(state.query);
  const step = (text, to) => {
    const button = element("button", { type: "button", text });
    if (place < 0 || to < 0 || to >= visible.length) button.disabled = true;
    else button.addEventListener("click", () => go({ query: visible[to] }));
    return button;
  };
  const close = element("button", { type: "button", id: "close", text: "Close, back to the list" });
  close.addEventListener("click", closeQuery);
  const words = place < 0 ? "not among the queries that the filters keep" : `${place + 1} of ${visible.length.toLocaleString("en")} listed`;
  return element("div", { class: "bar" }, close, step("Previous query", place - 1), step("Next query", place + 1), element("span", { text: words }));
}

function closeQuery() {
  const place = visible.indexOf(shownState.query);
  go({ query: -1, page: place < 0 ? 1 : Math.floor(place / PAGE_ROWS) + 1 });
}

function showList(state, before) {
  document.title = pageTitle;
  at("opened").replaceChildren();
  const first = (state.page - 1) * PAGE_ROWS;
  const rows = visible.slice(first, first + PAGE_ROWS);
  const pages = Math.max(1, Math.ceil(visible.length / PAGE_ROWS));
  at("list-caption").replaceChildren("Queries under ", code(data.policies[state.policy].name));
  at("list-head").replaceChildren(element("tr", {}, columns(state).map((column) => element("th", { scope: "col" }, column))));
  at("rows").replaceChildren(...rows.map((place) => queryRow(place, state)));
  at("pages").hidden = pages < 2;
  at("earlier").disabled = state.page <= 1;
  at("later").disabled = state.page >= pages;
  at("where").textContent = `Page ${state.page} of ${pages}`;
  const unknown = state.asked !== null && state.query < 0 ? "There is no query of the id in the address. " : "";
  const total = queries.length.toLocaleString("en");
  const range = pages > 1 ? `, ${first + 1} to ${first + rows.length} shown` : "";
  at("count").textContent = `${unknown}${visible.length.toLocaleString("en")} of ${total} queries${range}`;
  focusList(before);
}

function focusList(before) {
  const closed = before && before.query >= 0 ? at(`open-${before.query}`) || at("queries-heading") : null;
  const target = focusNext ? at(focusNext) : closed;
  if (target) target.focus();
}

function columns(state) {
  const decisions = data.policies[state.policy].decides ? ["coverage", "one more call"] : [];
  return ["query", "stop reason", ...decisions, "packet holds", "nDCG@4"];
}

function queryRow(place, state) {
  const query = queries[place];
  const run = runOf(place, state);
  const open = element("button", { type: "button", class: "open", id: `open-${place}`, text: clipped(query.text, 300), dir: "auto" });
  open.addEventListener("click", () => go({ query: place, page: state.page }));
  const relevant = new Set(query.relevant.map(([unit]) => unit));
  const held = run.packed.filter((unit) => relevant.has(unit)).length;
  const word = { "packet-all": "all", "packet-some": "some", "packet-none": "none" }[outcomeOf(run)];
  const decisions = data.policies[state.policy].decides
    ? [number(run.decision ? run.decision.coverage : null), moreCell(run)]
    : [];
  const cells = [code(run.reason), ...decisions, element("span", {}, word, small(`${held} of ${relevant.size}`)), number(run["ndcg@4"])];
  return element("tr", {},
    element("th", { scope: "row" }, open, small(code(query.id))),
    cells.map((cell) => element("td", {}, cell)));
}

function moreCell(run) {
  const gain = run.gain === null || run.more === "unchanged" ? "" : ` ${signed(run.gain)}`;
  return element("span", { class: `more ${run.more}` }, `${run.more}${gain}`, run.stopped ? small("stopped before it") : "");
}

function showChoices(state) {
  const options = (select, choices, chosen) => {
    select.replaceChildren(...choices);
    select.value = chosen;
  };
  const option = (value, text, disabled) => {
    const made = element("option", { value, text });
    made.disabled = Boolean(disabled);
    return made;
  };
  const { decides } = data.policies[state.policy];
  const counts = new Map();
  queries.forEach((_, place) => {
    const { reason } = runOf(place, state);
    counts.set(reason, (counts.get(reason) || 0) + 1);
  });
  const reasons = Object.keys(data.reasons).filter((reason) => counts.has(reason) || reason === state.reason);
  options(at("policy"), data.policies.map(({ name }, place) => option(`${place}`, name)), `${state.policy}`);
  options(at("reason"), [option("", "any"), ...reasons.map((reason) => option(reason, `${reason} (${counts.get(reason) || 0})`))], state.reason);
  const group = (label, choices, disabled) =>
    element("optgroup", { label }, Object.entries(choices).map(([value, text]) => option(value, text, disabled)));
  options(at("outcome"), [option("", "any"), group("every run", OUTCOMES), group("runs stopped early", STOPPED, !decides)], state.outcome);
  options(at("sort"), Object.entries(SORTS).map(([value, text]) => option(value, text, !decides && NEEDS_DECISION.includes(value))), state.sort);
  if (!typing) at("text").value = state.text;
}

function afterPolicy(value) {
  const kept = { ...readState(), policy: Number(value) };
  const occurs = queries.some((_, place) => runOf(place, kept).reason === kept.reason);
  return { policy: kept.policy, page: 1, reason: occurs ? kept.reason : "" };
}

function listen() {
  at("policy").addEventListener("change", ({ target }) => go(afterPolicy(target.value)));
  for (const key of ["reason", "outcome", "sort"]) {
    at(key).addEventListener("change", ({ target }) => filter({ [key]: target.value }));
  }
  at("text").addEventListener("input", () => {
    clearTimeout(typing);
    // Typing makes no entries for Back, and is announced once it pauses.
    typing = setTimeout(() => filter({}, { replace: true }), 150);
  });
  at("choices").addEventListener("submit", (event) => event.preventDefault());
  at("clear").addEventListener("click", () => filter({ reason: "", outcome: "", text: "", sort: "file" }));
  at("earlier").addEventListener("click", () => go({ page: shownState.page - 1 }, { focus: "queries-heading" }));
  at("later").addEventListener("click", () => go({ page: shownState.page + 1 }, { focus: "queries-heading" }));
  window.addEventListener("hashchange", show);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && shownState.query >= 0 && event.target.nodeName !== "SELECT") closeQuery();
  });
}

function linkUp() {
  // In-page links must not overwrite the state in the fragment.
  for (const link of document.querySelectorAll("[data-jump]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const target = at(`${link.dataset.jump}-heading`) || at(link.dataset.jump);
      target.focus();
      target.scrollIntoView();
    });
  }
  for (const figure of document.querySelectorAll("[data-opens]")) {
    const link = element("a", { href: `#${figure.dataset.opens}` });
    link.append(...figure.childNodes);
    link.addEventListener("click", () => {
      focusNext = "queries-heading";
      if (link.hash === location.hash) show();
    });
    figure.replaceChildren(link);
  }
}

const pageTitle = document.title;
history.scrollRestoration = "manual";
linkUp();
listen();
at("unscripted").hidden = true;
at("explorer").hidden = false;
show();
