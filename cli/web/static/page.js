// The page's script: plain modules, no library, no build step.
import { at, counted, forgive, get, make, named, refuse, Refusal, say, WORDS } from "./common.js";
import { watch } from "./live.js";
import { waterfall } from "./waterfall.js";

const WISHES = ["exclude", "only", "exclude_groups", "only_groups"];
let history = [];
let asked = 0; // so that an answer to an earlier request does not overwrite a later one
let loaded = 0; // likewise of users
let typed = 0; // and of titles
let picked = -1;

// --- the history

function showHistory() {
  at("count").textContent = history.length ? `(${history.length})` : "(empty: answers are the popular items)";
  at("history").replaceChildren(...history.map((item, place) => {
    const row = make("li", `${named(item)} `);
    const away = make("button", "×", { type: "button", "aria-label": `Remove ${named(item)}` });
    away.addEventListener("click", () => {
      history.splice(place, 1);
      showHistory();
      say(`${named(item)} removed`);
      (at("history").querySelectorAll("button")[Math.min(place, history.length - 1)] || at("title")).focus();
    });
    row.append(away);
    return row;
  }));
  at("history").scrollTop = at("history").scrollHeight;
}

async function load(user) {
  const turn = ++loaded;
  forgive();
  try {
    const found = await get(`/api/user?id=${encodeURIComponent(user)}`);
    if (turn !== loaded) return;
    at("user").value = found.user;
    history = found.history;
    showHistory();
    say(`User ${found.user}: ${counted(history.length, "item")}`);
  } catch (error) {
    if (turn === loaded) refuse(error);
  }
}

// --- titles: a combobox, as the ARIA Authoring Practices have it

function closeFound() {
  typed++; // what is still on its way is no longer wanted
  picked = -1;
  at("found").hidden = true;
  at("title").setAttribute("aria-expanded", "false");
  at("title").removeAttribute("aria-activedescendant");
}

async function search() {
  const number = ++typed;
  const text = at("title").value;
  forgive();
  if (!text.trim()) return closeFound();
  let found;
  try {
    found = await get(`/api/titles?typed=${encodeURIComponent(text)}`);
  } catch (error) {
    if (number === typed) { closeFound(); refuse(error); }
    return;
  }
  if (number !== typed) return;
  const rows = found.map((item, place) => {
    const row = make("li", named(item), { role: "option", id: `found-${place}`, "aria-selected": "false" });
    row.addEventListener("mousedown", (event) => { event.preventDefault(); add(item); });
    row.item = item;
    return row;
  });
  at("found").replaceChildren(...(rows.length ? rows : [make("li", "no title has this", { "aria-disabled": "true" })]));
  at("found").hidden = false;
  at("title").setAttribute("aria-expanded", "true");
  say(found.length ? `${counted(found.length, "title")} found` : "No title has this");
  pick(rows.length ? 0 : -1);
}

function pick(place) {
  const rows = [...at("found").querySelectorAll("[role=option]")];
  picked = rows.length ? (place + rows.length) % rows.length : -1;
  rows.forEach((row, number) => row.setAttribute("aria-selected", String(number === picked)));
  if (picked >= 0) at("title").setAttribute("aria-activedescendant", `found-${picked}`);
}

function add(item) {
  history.push(item);
  showHistory();
  at("title").value = "";
  closeFound();
  say(`${named(item)} added`);
}

at("title").addEventListener("input", search);
at("title").addEventListener("blur", closeFound);
at("title").addEventListener("keydown", (event) => {
  const rows = at("found").querySelectorAll("[role=option]");
  if (event.isComposing) return; // the key is for an input method, as of Japanese
  if (event.key === "Enter") {
    event.preventDefault(); // adds a title, never sends
    if (picked >= 0) add(rows[picked].item);
  } else if (event.key === "Escape") closeFound();
  else if (event.key === "ArrowDown" && rows.length) { event.preventDefault(); pick(picked + 1); }
  else if (event.key === "ArrowUp" && rows.length) { event.preventDefault(); pick(picked - 1); }
});

// --- answers

const number = (field) => {
  const text = at(field).value.trim();
  if (!text) return null;
  if (!/^-?\d{1,15}$/.test(text)) throw new Refusal("bad_input", `${field}: is '${text}' (accepted: a whole number)`);
  return Number(text);
};

async function ask(event) {
  event.preventDefault();
  const turn = ++asked;
  forgive();
  let answers;
  at("send").disabled = true;
  say("Asking…");
  try {
    const body = {
      history: history.map((item) => item.id), top_k: number("top_k"), deadline_ms: number("deadline_ms"),
      exclude_history: at("exclude_history").checked,
      ...Object.fromEntries(WISHES.map((field) => [field, at(field).value.trim() || null])),
    };
    answers = await get("/api/recommend", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
  } catch (error) {
    if (turn === asked) refuse(error);
    return;
  } finally {
    if (turn === asked) at("send").disabled = false;
  }
  if (turn !== asked) return;
  show(answers);
}

function show(answers) {
  const good = answers.filter((answer) => !answer.error);
  const lists = good.map((answer) => new Set(answer.items.map((item) => item.id)));
  const both = (item) => lists.length > 1 && lists.every((list) => list.has(item.id));
  at("answers").replaceChildren(...answers.map((answer) => card(answer, both)));
  if (!good.length) refuse({ kind: answers[0].error.kind, message: answers[0].error.message });
  else say(good.map((answer) => `${WORDS[answer.decoder]}: ${counted(answer.items.length, "item")} in ${answer.ms.toFixed(1)} ms`).join("; "));
}

function card(answer, both) {
  const made = make("section", undefined, { class: "answer", "aria-label": WORDS[answer.decoder], "data-decoder": answer.decoder });
  made.append(make("h2", `${WORDS[answer.decoder]} `));
  made.firstChild.append(make("span", answer.ensemble, { class: "note" }));
  if (answer.error) {
    made.append(make("p", `${WORDS[answer.error.kind] || WORDS.failed}: ${answer.error.message}`, { class: "error" }));
  } else {
    made.append(list(answer.items, both), make("p", notes(answer), { class: "note" }));
  }
  const way = make("div", undefined, { class: "way" });
  made.append(way);
  waterfall(answer, way);
  return made;
}

function list(items, both) {
  const table = make("table");
  const head = make("tr");
  head.append(make("th", "Item"), make("th", "Log-probability", { class: "score" }), make("th", ""));
  table.append(head);
  for (const item of items) {
    const row = make("tr", undefined, { "data-item": item.id });
    row.append(make("td", named(item)), make("td", item.score.toFixed(3), { class: "score" }),
      make("td", both(item) ? "in both" : "", { class: "both" }));
    table.append(row);
  }
  return table;
}

function notes(answer) {
  const told = [`answered by ${answer.by === "model" ? "the model" : "popularity"}`, `${answer.prompt_tokens} prompt tokens`,
    `${answer.valid} semantic IDs valid`, `catalogue version ${answer.catalogue_version}`];
  if (answer.dropped) told.push(`${counted(answer.dropped, "unknown item")} dropped`);
  if (answer.cut) told.push(`${counted(answer.cut, "older item")} cut off`);
  return told.join(", ");
}

async function begin() {
  at("ask").addEventListener("submit", ask);
  at("load").addEventListener("click", () => load(at("user").value));
  at("any").addEventListener("click", () => load(""));
  at("clear").addEventListener("click", () => { history = []; showHistory(); say("The history is empty"); });
  at("user").addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); load(at("user").value); }
  });
  showHistory();
  const about = await get("/api/about");
  at("name").textContent = about.name;
  at("about").textContent = `${counted(about.items, "item")}${about.titles ? "" : " without titles"}, ${counted(about.users, "user")}`;
  if (!about.users) for (const id of ["user", "load", "any"]) at(id).disabled = true;
  if (!about.titles) at("title").placeholder = "no titles here: type an item id";
  at("groups").hidden = !about.groups.length;
  for (const field of ["exclude_groups", "only_groups"]) at(field).placeholder = `names, as ${about.groups.join(",")}`;
  if (about.metrics) {
    watch();
  }
}

begin().catch(refuse);
