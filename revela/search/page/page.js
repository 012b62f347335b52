"use strict";
const state = document.getElementById("state");
const lists = document.getElementById("lists");
const input = document.getElementById("query");
const weight = document.getElementById("weight");
const names = new Map(); // of a ranking by its model; null is BM25
let latest = 0;

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Texts become text nodes only: markup in them is shown, never interpreted.
function highlighted(text, query) {
  const asked = new Set((query.toLowerCase().match(/[\p{L}\p{N}_]{2,}/gu) || []));
  const made = element("span", "text");
  for (const part of text.split(/([\p{L}\p{N}_]{2,})/u)) {
    made.append(asked.has(part.toLowerCase()) ? element("mark", "", part) : part);
  }
  return made;
}

function section(title, hits, query, model) {
  const made = element("section");
  const list = element("ol");
  made.append(element("h2", "", title), list);
  if (!hits.length) made.append(element("p", "", "nothing found"));
  for (const hit of hits) {
    const button = element("button");
    const source = element("span", "source");
    source.append(element("b", "", `${hit.document} [${hit.position}]  ${hit.title}`),
                  element("span", "", hit.score.toFixed(3)));
    button.append(source, highlighted(hit.text, query));
    button.title = "Show similar chunks";
    button.addEventListener("click", () => near(hit, model));
    const item = element("li");
    item.append(button);
    list.append(item);
  }
  return made;
}

async function ask(path, parameters, show) {
  const turn = ++latest;
  state.className = "";
  state.textContent = "searching …";
  try {
    const response = await fetch(path + "?" + new URLSearchParams(parameters));
    const body = await response.text();
    if (turn !== latest) return;
    if (!response.ok) throw new Error(body.slice(0, 300));
    state.textContent = "";
    lists.replaceChildren(...show(JSON.parse(body)));
  } catch (error) {
    if (turn !== latest) return;
    state.className = "error";
    state.textContent = error.message;
  }
}

function search(query) {
  if (!query.trim()) {
    latest++;
    state.className = state.textContent = "";
    lists.replaceChildren();
    return;
  }
  ask("search", { query, weight: weight.value }, (found) => found.map((list) => {
    if (!names.has(list.model)) names.set(list.model, list.name);
    return section(list.name, list.hits, query, list.model);
  }));
}

function near(hit, model) {
  const parameters = { chunk: hit.chunk };
  if (model !== null) parameters.model = model;
  ask("near", parameters, (hits) => [
    section("This chunk", [hit], "", model),
    section(`Similar chunks, by ${names.get(model)}`, hits, hit.text, model),
  ]);
}

document.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const query = input.value;
  history.pushState(null, "", query ? "#" + encodeURIComponent(query) : location.pathname);
  search(query);
});

weight.addEventListener("change", () => search(input.value));

function fromAddress() {
  input.value = decodeURIComponent(location.hash.slice(1));
  search(input.value);
}
addEventListener("popstate", fromAddress);
fromAddress();
