"use strict";
// The documents of the report. All text goes into the page as text; the one exception is the
// Markdown that was rendered when the report was made, and of that only what is listed below.

const RENDERED_TAGS = new Set(
  "P BR HR H4 H5 H6 UL OL LI PRE CODE BLOCKQUOTE EM STRONG S A DIV TABLE THEAD TBODY TR TH TD".split(" "));
const RENDERED_ATTRIBUTES = new Set("href rel target class tabindex role aria-label start".split(" "));
const CLAMP_FROM = 2500; // characters of a message that is folded at first

const byId = (id) => document.getElementById(id);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

function el(tag, properties, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// --- the data: gzipped JSON in base64, in blocks that run nothing ---------------------------

async function unpack(id) {
  const binary = atob(byId(id).textContent);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

const blocks = new Map(); // number → promise of its documents; the last few are kept

function block(number) {
  if (!blocks.has(number)) {
    if (blocks.size > 8) blocks.delete(blocks.keys().next().value);
    blocks.set(number, unpack(`block-${number}`));
  }
  return blocks.get(number);
}

async function body(doc) {
  return (await block(doc.block))[doc.at];
}

// --- verdicts --------------------------------------------------------------------------------

const MISSED = "missed", HARM = "harm", GOOD = "good", PARTLY = "partly", NONE = "none";

function outcome(weight, met) {
  if (met === null || met === undefined) return NONE;
  if (weight < 0) return met > 0 ? HARM : GOOD;
  if (met >= 1) return GOOD;
  return met > 0 ? PARTLY : MISSED;
}

function verdictTag(weight, met, points) {
  const kind = outcome(weight, met);
  const words = {
    [GOOD]: weight < 0 ? "✓ avoided" : "✓ met", [MISSED]: "✗ not met", [HARM]: "✗ harm done",
    [PARTLY]: "◐ partly met", [NONE]: "– no verdict",
  };
  const label = points === null ? words[kind] : kind === NONE ? words[kind] : `${number(points, 2)} of ${number(weight, 2)} points`;
  const tone = kind === GOOD ? "good" : kind === NONE || kind === PARTLY ? "" : "bad";
  return el("span", { class: `tag ${tone}` }, label);
}

const number = (value, digits) => value === null ? "–" : Number(value.toFixed(digits)).toString().replace("-", "−");
const score = (value) => value === null ? "–" : value.toFixed(3).replace("-", "−");

// --- state and start -------------------------------------------------------------------------

let index;
let shown = []; // the documents that pass the filters, in order
let rows = []; // their links, by document number
let texts = null; // document number → lower-case text, once somebody searched
let opened = null;
let counter = 0; // of searches, so that a slow one does not overwrite a later one

const chosen = { run: 0, suite: 0, answer: 0 }; // numbers
const docsOfSuite = () => index.docs.filter((doc) => doc.suites.includes(chosen.suite));

function switchSections() {
  for (const part of all("[data-run]")) {
    part.hidden = Number(part.dataset.run) !== chosen.run || Number(part.dataset.suite) !== chosen.suite;
  }
  for (const part of all("[data-suite]:not([data-run])")) {
    part.hidden = Number(part.dataset.suite) !== chosen.suite;
  }
}

function option(value, label) {
  return el("option", { value }, label);
}

function fillFilters() {
  const docs = docsOfSuite();
  for (const facet of index.facets) {
    const select = byId(`facet-${facet.key}`);
    const present = new Set(docs.map((doc) => doc.facets[facet.number]).filter((v) => v >= 0));
    const values = [...present].sort((a, b) => a - b);
    select.replaceChildren(option("", "All"), ...values.map((v) => option(v, facet.values[v])));
    select.closest("label").hidden = values.length < 2;
  }
  byId("more").hidden = all("#more label").every((label) => label.hidden);
  const categories = [...new Set(docs.flatMap((doc) => doc.categories))].sort((a, b) => a - b);
  byId("filter-category").replaceChildren(
    option("", "All"), ...categories.map((c) => option(c, index.categories[c])));
}

// --- the list --------------------------------------------------------------------------------

function flagged(doc, run, i, bit) {
  return run.flags ? (run.flags[i] & bit) !== 0 : false;
}

function passesVerdict(doc, wanted, category) {
  const run = doc.runs[chosen.run];
  const places = doc.weights.map((_, i) => i).filter((i) => category === "" || doc.categories[i] === category);
  if (!places.length) return false;
  if (wanted === "") return true;
  if (!run) return false;
  if (wanted === "excluded") return Boolean(run.excluded);
  if (wanted === "empty") return run.status !== 0;
  if (wanted === "contradiction") return places.some((i) => flagged(doc, run, i, 1));
  if (wanted === "split") return places.some((i) => flagged(doc, run, i, 2));
  if (wanted === "differs") {
    return places.some((i) => new Set(doc.runs.filter(Boolean).map((r) => r.met[i])).size > 1);
  }
  const kinds = places.map((i) => outcome(doc.weights[i], run.met[i]));
  if (wanted === MISSED) return kinds.some((kind) => kind === MISSED || kind === PARTLY);
  if (wanted === "all") return kinds.every((kind) => kind === GOOD);
  return kinds.includes(wanted);
}

function haystack(texts) {
  const parts = [...texts.messages.map((m) => m[1]), ...texts.criteria];
  for (const answer of texts.runs.filter(Boolean).flat()) {
    parts.push(answer.answer, answer.remark || "");
    for (const note of answer.notes) {
      parts.push(note.reason || "", ...(note.breakdown || []).map((b) => `${b[0]} ${b[2]}`), ...(note.votes || []));
    }
  }
  return parts.join("\n").toLowerCase();
}

async function searchable() {
  if (texts) return texts;
  const found = [];
  for (let n = 0; n < index.blocks; n++) {
    byId("count").textContent = `Reading the texts … ${Math.round((100 * n) / index.blocks)} %`;
    found.push(...(await unpack(`block-${n}`)).map(haystack));
  }
  texts = found;
  return texts;
}

async function applyFilters() {
  const mine = ++counter;
  const words = byId("filter-text").value.trim().toLowerCase();
  const searched = words ? await searchable() : null;
  if (mine !== counter) return;
  const low = parseFloat(byId("filter-low").value);
  const high = parseFloat(byId("filter-high").value);
  const wanted = byId("filter-verdict").value;
  const category = byId("filter-category").value === "" ? "" : Number(byId("filter-category").value);
  const facets = index.facets.map((facet) => [facet.number, byId(`facet-${facet.key}`).value])
    .filter(([, value]) => value !== "");
  shown = docsOfSuite().filter((doc) => {
    const run = doc.runs[chosen.run];
    if (facets.some(([n, value]) => doc.facets[n] !== Number(value))) return false;
    if (!isNaN(low) && !(run && run.score !== null && run.score >= low)) return false;
    if (!isNaN(high) && !(run && run.score !== null && run.score <= high)) return false;
    if ((wanted || category !== "") && !passesVerdict(doc, wanted, category)) return false;
    return !searched || searched[doc.number].includes(words) || doc.id.toLowerCase().includes(words);
  });
  const order = byId("order").value;
  const value = (doc) => (doc.runs[chosen.run] ? doc.runs[chosen.run].score : null);
  const spread = (doc) => {
    const scores = doc.runs.filter((run) => run && run.score !== null).map((run) => run.score);
    return scores.length > 1 ? Math.max(...scores) - Math.min(...scores) : -1;
  };
  if (order === "low") shown.sort((a, b) => (value(a) ?? 9) - (value(b) ?? 9));
  if (order === "high") shown.sort((a, b) => (value(b) ?? -9) - (value(a) ?? -9));
  if (order === "spread") shown.sort((a, b) => spread(b) - spread(a));
  drawList();
}

function drawList() {
  rows = new Map();
  const items = shown.map((doc) => {
    const run = doc.runs[chosen.run];
    const missed = run ? doc.weights.filter((w, i) => [MISSED, HARM, PARTLY].includes(outcome(w, run.met[i]))).length : 0;
    const state = !run ? "not in this run" : index.statuses[run.status] ||
      (run.excluded ? "excluded" : run.score === null ? "no score" : `${missed} of ${doc.weights.length} criteria lost`);
    const link = el("a", { href: `#doc=${encodeURIComponent(doc.key)}`, tabindex: "-1" },
      el("span", { class: "title", dir: "auto" }, doc.title),
      el("span", { class: "score" }, run ? score(run.score) : "–"),
      el("span", { class: "meta" }, `${doc.subtitle} · ${state}`));
    rows.set(doc.number, link);
    return el("li", null, link);
  });
  byId("list").replaceChildren(...items);
  byId("nothing").hidden = items.length > 0;
  const total = docsOfSuite().length;
  byId("count").textContent = items.length === total ? `${total} documents` : `${items.length} of ${total} documents`;
  markOpen();
}

function markOpen() {
  for (const [n, link] of rows) {
    if (opened && n === opened.number) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  enterAt((opened && rows.get(opened.number)) || rows.values().next().value);
}

// The Tab key enters the list at one link and leaves it again; the arrows go through it.
function enterAt(link) {
  for (const other of all("a[tabindex='0']", byId("list"))) other.tabIndex = -1;
  if (link) link.tabIndex = 0;
}

// --- one document ----------------------------------------------------------------------------

function rendered(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html").body;
  for (const node of all("*", parsed)) {
    if (!RENDERED_TAGS.has(node.tagName)) node.replaceWith(node.textContent);
    else for (const { name } of [...node.attributes]) {
      if (!RENDERED_ATTRIBUTES.has(name)) node.removeAttribute(name);
    }
  }
  return el("div", { class: "rendered", dir: "auto" }, ...parsed.childNodes);
}

function folded(node, length) {
  if (length < CLAMP_FROM) return node;
  node.classList.add("clamped");
  const button = el("button", {
    type: "button", "aria-expanded": "false",
    onclick: () => {
      const folded = node.classList.toggle("clamped");
      button.textContent = folded ? "Show all" : "Show less";
      button.setAttribute("aria-expanded", String(!folded));
    },
  }, "Show all");
  return el("div", null, node, button);
}

const written = (text) => el("div", { class: "written", dir: "auto" }, text);

function message([role, text]) {
  return el("div", { class: `message ${role}` }, el("div", { class: "role" }, role), folded(written(text), text.length));
}

// One of several answers to a document; most runs have one.
function answerChoice(doc, answers) {
  if (answers.length < 2) return null;
  const select = el("select", {
    onchange: (e) => {
      chosen.answer = Number(e.target.value);
      show(doc, false);
    },
  }, ...answers.map((_, n) => option(n, `${n + 1} of ${answers.length}`)));
  select.value = String(chosen.answer);
  return el("label", { class: "note" }, "Answer ", select);
}

function answerCard(doc, answers) {
  const texts = answers[chosen.answer];
  const card = el("section", { class: "card", "aria-labelledby": "answer-title" });
  const place = el("div");
  const draw = (asWritten) => place.replaceChildren(
    texts.html && !asWritten ? rendered(texts.html) : written(texts.answer));
  card.append(el("div", { class: "head" }, el("h3", { id: "answer-title" }, "Answer")));
  const choice = answerChoice(doc, answers);
  if (choice) card.firstChild.append(choice);
  if (texts.status !== 0) card.append(el("p", { class: "warning" }, `No answer to grade: ${index.statuses[texts.status]}.`));
  if (texts.answer && texts.html) {
    const button = el("button", {
      type: "button", "aria-pressed": "false",
      onclick: () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        draw(on);
      },
    }, "As written");
    card.firstChild.append(button);
  }
  draw(false);
  card.append(place);
  return card;
}

function criterion(doc, texts, i) {
  const mine = texts.runs[chosen.run] && texts.runs[chosen.run][chosen.answer];
  const weight = doc.weights[i];
  const met = mine ? mine.met[i] : null;
  const points = doc.points && met !== null && met !== undefined ? met * weight : null;
  const kind = outcome(weight, met);
  const line = el("div", { class: "line" },
    verdictTag(weight, met, points),
    doc.points ? null : el("span", { class: `tag weight ${weight < 0 ? "minus" : ""}` }, `weight ${number(weight, 2)}`),
    el("span", { class: "muted" }, index.categories[doc.categories[i]]));
  const noted = mine ? mine.notes[i] : null;
  if (noted && noted.contradicts) line.append(el("span", { class: "tag bad" }, "reason contradicts verdict"));
  if (noted && noted.split) line.append(el("span", { class: "tag bad" }, "judges disagree"));
  const item = el("li", { class: `criterion ${kind === GOOD ? "good" : kind === NONE ? "" : "bad"}` },
    line, folded(el("div", { class: "text", dir: "auto" }, texts.criteria[i]), texts.criteria[i].length));
  if (noted && noted.reason) item.append(el("div", { class: "reason", dir: "auto" }, noted.reason));
  for (const [name, points, why] of (noted && noted.breakdown) || []) {
    item.append(el("div", { class: "reason", dir: "auto" }, `${points === null ? "–" : number(points, 2)} · ${name}\n${why}`));
  }
  if (noted && noted.failure) item.append(el("div", { class: "reason" }, `No verdict: ${noted.failure}`));
  for (const vote of (noted && noted.votes) || []) item.append(el("div", { class: "reason", dir: "auto" }, vote));
  if (index.runs.length > 1) {
    item.append(el("div", { class: "line" }, ...doc.runs.flatMap((other, n) => !other || n === chosen.run ? [] : [
      el("span", { class: "muted" }, `${index.runs[n]}:`),
      verdictTag(weight, other.met[i], doc.points && other.met[i] !== null ? other.met[i] * weight : null)])));
  }
  return item;
}

function runScores(doc) {
  if (index.runs.length < 2) return null;
  return el("dl", { class: "facts" }, ...index.runs.flatMap((label, n) => [
    el("dt", null, label),
    el("dd", null, doc.runs[n] ? score(doc.runs[n].score) : "not in this run")]));
}

async function show(doc, focus) {
  const texts = await body(doc);
  const answers = texts.runs[chosen.run];
  if (opened !== doc || !answers || !answers[chosen.answer]) chosen.answer = 0;
  opened = doc;
  const mine = answers && answers[chosen.answer];
  const run = doc.runs[chosen.run];
  const place = shown.indexOf(doc);
  const step = (by, label) => {
    const other = shown[place + by];
    return place >= 0 && other ? el("a", { class: "button", href: `#doc=${encodeURIComponent(other.key)}` }, label) : null;
  };
  const facts = index.facets.filter((facet) => doc.facets[facet.number] >= 0)
    .flatMap((facet) => [el("dt", null, facet.label), el("dd", null, facet.values[doc.facets[facet.number]])]);
  const heading = el("h3", { tabindex: "-1", id: "detail-title" }, doc.id);
  const head = el("section", { class: "card", "aria-labelledby": "detail-title" },
    el("div", { class: "head" }, heading,
      el("a", { class: "button back", href: "#documents" }, "Back to the list"), step(-1, "Previous"), step(1, "Next")),
    el("p", { class: "figure" }, run ? score(run.score) : "–"),
    el("p", { class: "note" }, !run ? `${index.runs[chosen.run]} does not have this document.` :
      run.excluded ? "Excluded: a criterion has no verdict." : run.score === null ? "No score: the rubric has no points to gain." : `Score in ${index.runs[chosen.run]}` + (answers.length > 1 ? `, the mean of ${answers.length} answers` : "")),
    runScores(doc),
    el("details", null, el("summary", null, "About this document"), el("dl", { class: "facts" }, ...facts)));
  const conversation = el("section", { class: "card", "aria-labelledby": "conversation-title" },
    el("div", { class: "head" }, el("h3", { id: "conversation-title" }, "Conversation")), ...texts.messages.map(message));
  const list = el("ol", { class: "criteria" });
  const draw = (lostFirst) => {
    const order = doc.weights.map((_, i) => i);
    const lost = (i) => [MISSED, HARM, PARTLY].includes(mine && outcome(doc.weights[i], mine.met[i])) ? Math.abs(doc.weights[i]) : -1;
    if (lostFirst) order.sort((a, b) => lost(b) - lost(a) || a - b);
    list.replaceChildren(...order.map((i) => criterion(doc, texts, i)));
  };
  draw(false);
  const sort = el("button", {
    type: "button", "aria-pressed": "false",
    onclick: () => {
      const on = sort.getAttribute("aria-pressed") !== "true";
      sort.setAttribute("aria-pressed", String(on));
      draw(on);
    },
  }, "Lost ones first");
  const criteria = el("section", { class: "card", "aria-labelledby": "criteria-title" },
    el("div", { class: "head" }, el("h3", { id: "criteria-title" }, `Criteria (${doc.weights.length})`), sort), list);
  if (mine && mine.remark) criteria.append(el("div", { class: "reason", dir: "auto" }, mine.remark));
  byId("detail").replaceChildren(head, conversation, ...(mine ? [answerCard(doc, answers)] : []), criteria);
  byId("browser").classList.add("open");
  markOpen();
  if (focus) {
    heading.focus({ preventScroll: true });
    byId("browser").scrollIntoView({ block: "start" });
  }
}

function closeDocument() {
  const last = opened;
  opened = null;
  byId("browser").classList.remove("open");
  markOpen();
  if (last && rows.has(last.number)) rows.get(last.number).focus();
}

function follow() {
  const match = location.hash.match(/^#doc=(.*)$/);
  if (match) {
    const doc = index.byKey.get(decodeURIComponent(match[1]));
    if (!doc) return;
    if (!doc.suites.includes(chosen.suite)) chooseSuite(doc.suites[0]);
    show(doc, true);
  } else if (location.hash === "#documents" && opened) closeDocument();
}

// --- wiring ----------------------------------------------------------------------------------

function chooseSuite(n) {
  chosen.suite = n;
  if (byId("suite")) byId("suite").value = String(n);
  switchSections();
  fillFilters();
  applyFilters();
}

function chooseRun(n) {
  chosen.run = n;
  switchSections();
  applyFilters();
  if (opened) show(opened, false);
}

function resetFilters() {
  byId("filters").reset();
  applyFilters();
}

function wire() {
  if (byId("run")) byId("run").addEventListener("change", (e) => chooseRun(Number(e.target.value)));
  if (byId("suite")) byId("suite").addEventListener("change", (e) => chooseSuite(Number(e.target.value)));
  let timer;
  for (const kind of ["input", "change"]) {
    byId("filters").addEventListener(kind, () => {
      clearTimeout(timer);
      timer = setTimeout(applyFilters, 120);
    });
  }
  byId("filters").addEventListener("submit", (e) => e.preventDefault());
  byId("clear").addEventListener("click", resetFilters);
  document.addEventListener("click", (e) => {
    const button = e.target.closest("button[data-facet]");
    if (!button) return;
    byId("filters").reset();
    const { facet, value } = button.dataset;
    if (facet === "category") byId("filter-category").value = String(index.categories.indexOf(value));
    else byId(`facet-${facet}`).value = String(index.facets.find((f) => f.key === facet).values.indexOf(value));
    applyFilters();
    byId("documents").scrollIntoView();
    const first = byId("list").querySelector("a");
    (first || byId("list")).focus({ preventScroll: true });
  });
  addEventListener("hashchange", follow);
  document.addEventListener("keydown", (e) => {
    if (e.target.closest("input, select, textarea") || e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === "Escape" && opened) location.hash = "#documents";
  });
  byId("list").addEventListener("keydown", (e) => {
    const links = all("a", byId("list"));
    const at = links.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[e.key];
    if (to === undefined || !links[to]) return;
    e.preventDefault();
    enterAt(links[to]);
    links[to].focus();
  });
}

async function start() {
  index = await unpack("index");
  index.docs.forEach((doc, n) => { doc.number = n; });
  index.facets.forEach((facet, n) => { facet.number = n; });
  index.byKey = new Map(index.docs.map((doc) => [doc.key, doc]));
  wire();
  switchSections();
  fillFilters();
  await applyFilters();
  follow();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

if (byId("index")) start();
