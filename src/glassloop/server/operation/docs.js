// The forms of /docs: each sends its request and shows the answer as it comes.
"use strict";

const MOST_SHOWN = 200000; // characters of an answer

for (const form of document.querySelectorAll("form")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  for (const button of form.querySelectorAll("button[data-body]")) {
    button.addEventListener("click", () => {
      form.elements.body.value = button.dataset.body;
    });
  }
}

for (const opened of document.querySelectorAll("details")) {
  opened.addEventListener("toggle", () => {
    if (opened.open && opened.querySelector("input[data-id]")) fillLatest();
  });
}

if (location.hash) {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
}

async function fillLatest() {
  const answer = await fetch("/api/runs?limit=1");
  if (answer.ok) fill((await answer.json()).runs);
}

// Puts the ids of a run and its tree where none was typed.
function fill(runs) {
  if (!Array.isArray(runs) || !runs.length) return;
  for (const input of document.querySelectorAll("input[data-id]")) {
    if (!input.dataset.typed) input.value = runs[0][input.dataset.id] ?? "";
    input.addEventListener("input", () => (input.dataset.typed = "yes"), { once: true });
  }
}

async function send(form) {
  const button = form.querySelector("button[type=submit]");
  if (form.running) {
    form.running.abort();
    return;
  }
  form.running = new AbortController();
  button.textContent = "Stop";
  const status = form.querySelector("output p");
  const shown = form.querySelector("output pre");
  form.querySelector("output").hidden = false;
  status.textContent = "Sent …";
  shown.textContent = "";
  const began = performance.now();
  const seconds = () => ((performance.now() - began) / 1000).toFixed(2) + " s";
  try {
    const answer = await fetch(address(form), { ...request(form), signal: form.running.signal });
    const type = answer.headers.get("content-type") ?? "";
    const what = `${answer.status} ${answer.statusText}`.trim();
    status.textContent = `${what}, ${type || "no body"}`;
    if (type.startsWith("application/octet-stream")) await offer(answer, shown);
    else await show(answer, type, shown);
    status.textContent = `${what}, ${type || "no body"}, ${seconds()}`;
  } catch (error) {
    status.textContent = error.name === "AbortError" ? `Stopped after ${seconds()}` : String(error);
  } finally {
    form.running = null;
    button.textContent = "Send";
  }
}

function address(form) {
  const path = form.dataset.path.replace(/\{(\w+)\}/g, (_, name) =>
    encodeURIComponent(form.elements["path-" + name].value),
  );
  const query = form.elements.query?.value;
  return query ? `${path}?${query}` : path;
}

function request(form) {
  const made = { method: form.dataset.method };
  if (form.elements.file) {
    made.headers = { "content-type": "application/octet-stream" };
    made.body = form.elements.file.files[0];
  } else if (form.elements.body) {
    made.headers = { "content-type": "application/json" };
    made.body = form.elements.body.value;
  }
  return made;
}

async function show(answer, type, shown) {
  if (!answer.body) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    text += value;
    shown.textContent = text.slice(0, MOST_SHOWN);
    shown.scrollTop = shown.scrollHeight;
  }
  if (type.startsWith("application/json")) {
    const value = JSON.parse(text);
    shown.textContent = JSON.stringify(value, null, 2).slice(0, MOST_SHOWN);
    shown.scrollTop = 0;
    fill(value.runs);
  }
  if (text.length > MOST_SHOWN) shown.textContent += "\n… (cut here)";
}

async function offer(answer, shown) {
  const file = await answer.blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = "run.glass";
  link.textContent = `Save ${file.size} bytes`;
  shown.replaceChildren(link);
}
