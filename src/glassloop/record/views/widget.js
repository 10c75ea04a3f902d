// The live view of a run in a notebook: a click on a token shows what else was likely there, and a click on one
// of those asks Python for a fork. Texts of records are set as texts, never as HTML.
function make(name, text, className) {
  const element = document.createElement(name);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

function row(cells, name = "td") {
  const made = document.createElement("tr");
  for (const cell of cells) {
    if (!(cell instanceof Node)) made.append(make(name, cell));
    else if (cell.tagName === "TD" || cell.tagName === "TH") made.append(cell);
    else {
      made.append(document.createElement(name));
      made.lastChild.append(cell);
    }
  }
  return made;
}

// The rest of the style comes with the view.
const BUTTONS =
  ".glassloop button{font:inherit;color:inherit;background:none;border:1px solid var(--line);border-radius:4px;padding:0 .4em;cursor:pointer}" +
  ".glassloop button:hover:enabled,.glassloop button:focus-visible{background:var(--soft);border-color:var(--bar)}" +
  ".glassloop button:disabled{opacity:.5;cursor:default}";

function render({ model, el }) {
  const view = document.createElement("div");
  const panel = make("div", "", "glassloop");
  const status = make("p", "", "note");
  status.setAttribute("role", "status");
  el.replaceChildren(make("style", BUTTONS), view, panel, status);

  function show(at) {
    const records = JSON.parse(model.get("records"));
    if (!records[at]) return panel.replaceChildren();
    const [piece, numbers, alternatives] = records[at];
    const table = document.createElement("table");
    table.append(row(["fork with", "model", "after stages"], "th"));
    for (const [text, likely, after, , id] of alternatives) {
      const button = make("button", text);
      button.type = "button";
      button.disabled = model.get("busy");
      button.addEventListener("click", () => model.send({ fork: { at: Number(at), token: id } }));
      table.append(row([button, likely, after]));
    }
    const facts = numbers.map(([name, value]) => name + " " + value).join(" · ");
    panel.replaceChildren(make("strong", piece), make("p", facts, "note"), table);
  }

  function draw() {
    view.innerHTML = model.get("html"); // made by glassloop.html_text, which escapes every text
    const tokens = [...view.querySelectorAll("[data-k]")];
    tokens.forEach((token, at) => {
      token.tabIndex = at ? -1 : 0;
      token.setAttribute("role", "button");
      token.addEventListener("click", () => token.focus());
      token.addEventListener("focus", () => {
        model.set("selected", Number(token.dataset.k));
        model.save_changes();
        show(token.dataset.k);
      });
      token.addEventListener("keydown", (event) => {
        const to = { ArrowRight: at + 1, ArrowLeft: at - 1 }[event.key];
        if (to === undefined || !tokens[to]) return;
        event.preventDefault();
        tokens[at].tabIndex = -1;
        tokens[to].tabIndex = 0;
        tokens[to].focus();
      });
    });
    panel.replaceChildren();
  }

  function tell() {
    status.textContent = model.get("error") || (model.get("busy") ? "Forking …" : "");
    for (const button of panel.querySelectorAll("button")) button.disabled = model.get("busy");
  }

  model.on("change:html", draw);
  model.on("change:error", tell);
  model.on("change:busy", tell);
  draw();
  tell();
}

export default { render };
