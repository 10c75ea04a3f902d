// The exported page: a click on a token shows its record, and a click on a run shows its text. All numbers are
// in the page as the engine gave them; texts are set as texts, never as HTML.
"use strict";
const records = JSON.parse(document.getElementById("records").textContent);
const panel = document.getElementById("panel");
const texts = [...document.querySelectorAll("[data-run]")];
const buttons = [...document.querySelectorAll("[data-shows]")];

function make(name, text, ...classes) {
  const element = document.createElement(name);
  element.textContent = text;
  element.classList.add(...classes);
  return element;
}

function row(cells, name = "td") {
  const made = document.createElement("tr");
  for (const cell of cells) made.append(cell instanceof Node ? cell : make(name, cell));
  return made;
}

function bar(share) {
  const cell = document.createElement("td");
  const whole = make("span", "", "bar");
  const fill = make("span", "", "fill");
  fill.style.width = share + "%";
  whole.append(fill);
  whole.ariaHidden = "true";
  cell.append(whole);
  return cell;
}

function show(token) {
  for (const other of document.querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
  token.setAttribute("aria-current", "true");
  const [piece, numbers, alternatives] = records[token.dataset.k];
  const why = document.getElementById("why-" + token.dataset.k);
  const sentence = why && why.querySelector("p");
  const parts = [make("h2", piece), make("p", sentence ? sentence.textContent : token.title.slice(piece.length + 2))];
  if (alternatives.length) {
    const table = document.createElement("table");
    table.append(row(["token", "model", make("td", ""), "after stages"], "th"));
    for (const [text, model, after, share] of alternatives) table.append(row([text, model, bar(share), after]));
    parts.push(make("h2", "What else was likely"), table);
  }
  if (why) for (const child of why.querySelector("div").children) if (child !== sentence) parts.push(child.cloneNode(true));
  const facts = document.createElement("table");
  for (const [name, value] of numbers) facts.append(row([make("th", name), value]));
  parts.push(make("h2", "The record"), facts);
  panel.replaceChildren(...parts);
}

function choose(number) {
  for (const text of texts) text.hidden = text.dataset.run !== number;
  for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.shows === number));
}

for (const text of texts) {
  const tokens = [...text.querySelectorAll("[data-k]")];
  // One token of a text is in the order of the Tab key; the arrow keys go on from there.
  tokens.forEach((token, at) => { token.tabIndex = at ? -1 : 0; });
  text.addEventListener("click", (event) => {
    const token = event.target.closest("[data-k]");
    if (token) token.focus();
  });
  text.addEventListener("focusin", (event) => {
    const token = event.target.closest("[data-k]");
    if (token) show(token);
  });
  text.addEventListener("keydown", (event) => {
    const at = tokens.indexOf(event.target.closest("[data-k]"));
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (at < 0 || to === undefined || !tokens[to]) return;
    event.preventDefault();
    tokens[at].tabIndex = -1;
    tokens[to].tabIndex = 0;
    tokens[to].focus();
  });
}
for (const button of buttons) button.addEventListener("click", () => choose(button.dataset.shows));
choose("0");
// page.html#12 opens with token 12 of the first run.
const linked = texts[0].querySelectorAll("[data-k]")[/^#\d{1,6}$/.test(location.hash) ? location.hash.slice(1) : -1];
if (linked) linked.focus();
