// One query opened: what was looked for, what came back, what was decided, what was packed, here and under the others.

function openedQuery(place, policy) {
  const query = queries[place];
  const view = viewOf(query, policy);
  return element("article", { "aria-labelledby": "opened-heading" },
    element("h3", { id: "opened-heading", tabindex: "-1", text: query.text, dir: "auto" }),
    facts([
      ["query", element("span", {}, code(query.id), `, ${place + 1} of ${queries.length.toLocaleString("en")} in the file`)],
      ["policy looked at", element("span", {}, code(view.name), `: ${data.policies[policy].actions}`)],
    ]),
    decisionPart(view),
    packedPart(view),
    relevantPart(view),
    termsPart(view),
    channelsPart(view),
    othersPart(view));
}

function viewOf(query, policy) {
  return {
    query,
    policy,
    name: data.policies[policy].name,
    decides: data.policies[policy].decides,
    run: query.runs[query.use[policy]],
    grades: new Map(query.relevant),
    held: new Map(query.matched),
  };
}

function decisionPart(view) {
  const { run } = view;
  const [means, meansNot] = data.reasons[run.reason];
  const stopped = element("span", {}, code(run.reason), ` ${means} `, element("b", { text: meansNot }));
  return element("section", {},
    heading(4, "Decision"),
    facts([
      ...decided(view),
      ["run ended by", stopped],
      ["spent", `${counted(run.calls, "call")}, ${run.dense_calls} dense`],
      ["measured", measured(run)],
      ["one more call", view.decides ? moreWords(run) : null],
    ]));
}

function measured(run) {
  return `nDCG@4 ${number(run["ndcg@4"])}, recall@4 ${number(run["recall@4"])}, packet recall ${number(run.packet_recall)}`;
}

function decided({ run, decides }) {
  if (!decides) return [["after the first search", "This policy takes no decision; its actions are fixed."]];
  const { decision } = run;
  if (decision === null) return [["after the first search", "No assessment was made: there was none to ask, or it failed."]];
  const compared = `${number(decision.coverage)}, threshold ${decision.threshold}: `
    + (decision.sufficient ? "sufficient by the declared test" : "not sufficient by the declared test");
  return [
    ["coverage", element("span", {}, compared, coverageBar(decision))],
    ["because", element("span", { text: decision.reasons.join("; ") || "no reason was given", dir: "auto" })],
    ["missing then", wordList(decision.missing_terms, "no term")],
    ["chosen", run.stopped ? "stop after the first search" : run.dense_calls ? "go on: one dense search" : "pack what was found"],
  ];
}

function moreWords(run) {
  const by = run.gain === null ? "" : ` by ${number(Math.abs(run.gain))}`;
  const [would, did] = {
    improved: [`have raised nDCG@4${by}`, `raised nDCG@4${by}`],
    unchanged: ["have left nDCG@4 as it was", "left nDCG@4 as it was"],
    reduced: [`have lowered nDCG@4${by}`, `lowered nDCG@4${by}`],
  }[run.more];
  return run.calls > 1 ? `made; compared with stopping, it ${did}` : `not made; it would ${would}`;
}

function coverageBar({ coverage, threshold }) {
  const shape = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const across = (share) => 1 + 118 * Math.min(1, Math.max(0, share));
  const bar = shape("svg", { class: "coverage", viewBox: "0 0 120 14", "aria-hidden": "true", focusable: "false" });
  bar.append(
    shape("rect", { class: "all", x: 1, y: 4, width: 118, height: 6 }),
    shape("rect", { class: "reached", x: 1, y: 4, width: across(coverage) - 1, height: 6 }),
    shape("path", { d: `M${across(threshold)} 0V14` }));
  return bar;
}

function wordList(words, none) {
  return words.length ? element("ul", { class: "words" }, words.map((word) => element("li", {}, code(word)))) : none;
}

function packedPart(view) {
  const { run, grades } = view;
  const rows = run.packed.map((unit, place) => [
    `${place + 1}`,
    element("div", {}, unitName(unit), unitText(unit)),
    grades.has(unit) ? relevantMark(grades.get(unit)) : "not judged relevant",
    `${run.ranking.indexOf(unit) + 1} of ${run.ranking.length}`,
  ]);
  const caption = element("span", {}, "Units in the packet under ", code(view.name));
  return element("section", {},
    heading(4, "Packed"),
    element("p", { text: packedWords(view) }),
    rows.length ? table(caption, ["place", "unit", "judged", "ranked"], rows) : "");
}

function packedWords({ query, run, grades }) {
  const held = run.packed.filter((unit) => grades.has(unit)).length;
  const dropped = run.ranking.length - run.packed.length;
  const left = dropped ? ` ${counted(dropped, "ranked unit")} had no room in it, or did not pass the recheck.` : "";
  if (!run.packed.length) return `The packet is empty.${left}`;
  return `The packet holds ${held} of the ${counted(query.relevant.length, "unit")} judged relevant.${left}`;
}

function relevantPart(view) {
  const { query, run } = view;
  const rows = query.relevant.map(([unit, grade]) => [
    element("div", {}, unitName(unit), unitText(unit)),
    `${grade}`,
    ...["lexical", "dense"].map((channel) => rankIn(query, channel, unit)),
    fateOf(run, unit),
  ]);
  return element("section", {},
    heading(4, "Judged relevant"),
    table("Units judged relevant, and where they came back", ["unit", "grade", "lexical rank", "dense rank", "in this run"], rows));
}

function rankIn(query, channel, unit) {
  const row = (query.channels[channel] || []).find(([found]) => found === unit);
  return row ? `${row[1]}` : "not returned";
}

function fateOf(run, unit) {
  const rank = run.ranking.indexOf(unit) + 1;
  if (!rank) return "not found";
  return run.packed.includes(unit) ? element("span", {}, packedMark(), ` ranked ${rank}`) : `ranked ${rank}, not packed`;
}

function termsPart({ query, held }) {
  const terms = query.terms.map((term, index) => {
    const units = [...held.values()].filter((found) => found.includes(index)).length;
    const words = units ? `in ${units} of ${counted(held.size, "unit")}` : "✗ in no unit";
    return element("li", { class: units ? "" : "missing" }, code(term), ` ${words}`);
  });
  const missing = query.terms.filter((_, index) => ![...held.values()].some((found) => found.includes(index)));
  return element("section", {},
    heading(4, "Terms"),
    missing.length
      ? element("p", {}, "No unit that was looked at, under any policy, holds: ", wordList(missing, ""))
      : element("p", { text: "Each term is in some unit that was looked at, under one policy or another." }),
    element("ul", { class: "terms", "aria-label": "Terms looked for" }, terms));
}

function channelsPart(view) {
  const tables = Object.entries(view.query.channels).map(([channel, rows]) =>
    rows.length
      ? table(`${channel} search`, ["rank", "score", "unit", "judged", "terms held", "in this run"],
        rows.map((row) => channelRow(view, row)))
      : element("p", { text: `The ${channel} search returned nothing.` }));
  return element("section", {},
    heading(4, "What each channel returned"),
    element("p", { text: "All rows that any policy could take; “in this run” says what the policy looked at made of them." }),
    tables);
}

function channelRow({ run, grades, held, query }, [unit, rank, score]) {
  return [
    `${rank}`,
    score === null ? "no score" : number(score),
    element("div", {}, unitName(unit), unitText(unit)),
    grades.has(unit) ? relevantMark(grades.get(unit)) : "not judged relevant",
    held.has(unit) ? termsHeld(query, held.get(unit)) : "not looked at",
    fateOf(run, unit),
  ];
}

function termsHeld(query, found) {
  const missing = query.terms.filter((_, index) => !found.includes(index));
  const words = (list) => list.join(", ");
  return element("div", {},
    `${found.length} of ${query.terms.length}`,
    found.length ? small("holds ", foreign("span", words(found.map((index) => query.terms[index])))) : "",
    missing.length ? small("lacks ", foreign("span", words(missing))) : "");
}

function othersPart(view) {
  const cards = new Map();
  data.policies.forEach(({ name }, place) => {
    const run = view.query.runs[view.query.use[place]];
    const alike = JSON.stringify([run.ranking, run.packed, run.reason, run.calls, run.dense_calls]);
    if (!cards.has(alike)) cards.set(alike, { run, names: [], own: false });
    const card = cards.get(alike);
    card.names.push(name);
    card.own ||= place === view.policy;
  });
  // The policy looked at comes first, so that the others stand beside it.
  const ordered = [...cards.values()].sort((one, other) => Number(other.own) - Number(one.own));
  return element("section", {},
    heading(4, "What every policy ranked and packed"),
    element("p", { text: "Policies whose runs were the same share one list." }),
    element("div", { class: "cards" }, ordered.map((card) => runCard(view, card))));
}

function runCard({ grades }, { run, names, own }) {
  const ranking = run.ranking.map((unit) =>
    element("li", { class: run.packed.includes(unit) ? "in" : "out" },
      element("div", { class: "marks" },
        run.packed.includes(unit) ? packedMark() : element("span", { class: "mark", text: "not packed" }),
        grades.has(unit) ? relevantMark(grades.get(unit)) : ""),
      unitName(unit)));
  return element("section", { class: own ? "card own" : "card" },
    element("h5", {}, names.map((name, place) => [place ? ", " : "", code(name)])),
    own ? element("p", { class: "small", text: "with the policy looked at" }) : "",
    facts([
      ["ended by", code(run.reason)],
      ["nDCG@4", number(run["ndcg@4"])],
      ["packet recall", number(run.packet_recall)],
      ["calls", run.dense_calls ? `${run.calls} (${run.dense_calls} dense)` : `${run.calls}`],
    ]),
    ranking.length ? element("ol", {}, ranking) : element("p", { text: "Nothing was found." }));
}
