// The playground: the state is what stands in the fields; the fragment of the address holds it, compressed.
// What comes from a link or from the server is put into the page as text; HTML comes from the server's templates alone.

const PATH = "/playground", FIELDS = ["subject", "groups", "action", "resource", "more", "answer"];
const EVALUATE_MS = 25, REMEMBER_MS = 500, STATES = 100, MOST_STATE = 2_000_000;
const SIGNS = { pass: "✔", fail: "✘", invalid: "!", new: "" };
const token = document.querySelector('meta[name="lockkeeper-token"]').content;
const at = (id) => document.getElementById(id);
const documents = at("documents"), list = at("requests"), gutter = at("gutter"), status = at("status");

// The state.

function read() {
  const requests = [...list.children].map((row) => Object.fromEntries(FIELDS.map((name) => [name, field(row, name).value])));
  return { system: at("system").value, at: at("at").value, documents: documents.value, requests };
}

function write(state) {
  at("system").value = state.system;
  at("at").value = state.at || "";
  documents.value = state.documents;
  list.replaceChildren(...state.requests.map(newRow));
  listActions();
  changed(0);
}

const field = (row, name) => row.querySelector(`[name="${name}"]`);

function newRow(values) {
  const row = at("request").content.cloneNode(true).firstElementChild;
  for (const name of FIELDS) if (values[name]) field(row, name).value = values[name];
  toggle(row, Boolean(values.groups || values.more));
  return row;
}

function toggle(row, wide) {
  row.classList.toggle("wide", wide);
  row.querySelector(".toggle").setAttribute("aria-expanded", wide);
}

function isState(value) {
  const texts = (one, names) => names.every((name) => one[name] === undefined || typeof one[name] === "string");
  return value && typeof value.system === "string" && typeof value.documents === "string" && texts(value, ["at"]) &&
    Array.isArray(value.requests) && value.requests.every((one) => one && texts(one, FIELDS));
}

// The fragment: base64url of deflated JSON.

async function pack(text) {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

async function unpack(text) {
  const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const parts = [];
  for (let size = 0, part; !(part = await reader.read()).done; parts.push(part.value)) {
    if ((size += part.value.length) > MOST_STATE) throw new Error("too large");
  }
  return new Blob(parts).text();
}

async function load() {
  const packed = location.hash.match(/^#p=([\w-]+)$/)?.[1];
  if (!packed) return false;
  try {
    const state = JSON.parse(await unpack(packed));
    if (!isState(state)) throw new Error("no state");
    write(state);
    return true;
  } catch {
    notice = "The link is damaged or not whole; ask for it again. This is an example. ";
    return false;
  }
}

let written = "", notice = "";
async function writeFragment(text) {
  const packed = await pack(text);
  if (text === JSON.stringify(read())) history.replaceState(null, "", (written = `#p=${packed}`));
}

// Undo.

const states = [];
let current = -1, remembering;

function remember() {
  clearTimeout(remembering);
  const text = JSON.stringify(read());
  if (text !== states[current]) {
    states.length = current + 1;
    states.push(text);
    if (states.length > STATES) states.shift();
    current = states.length - 1;
    writeFragment(text);
  }
  at("undo").disabled = current <= 0;
  at("redo").disabled = current >= states.length - 1;
}

function go(step) {
  remember();
  const text = states[current + step];
  if (text === undefined) return;
  current += step;
  write(JSON.parse(text));
  writeFragment(text);
}

// What comes of it. An answer that comes after that to a later question is of no use.

const newest = new WeakMap();
function asking(of) {
  const number = (newest.get(of) ?? 0) + 1;
  newest.set(of, number);
  return () => newest.get(of) === number;
}

let evaluating, running, missed = 0;

function changed(remember_ms = REMEMBER_MS) {
  if (remember_ms) notice = "", asking(at("example"));  // an example that comes later must not take what is typed
  number();
  clearTimeout(evaluating);
  evaluating = setTimeout(evaluate, EVALUATE_MS);
  clearTimeout(remembering);
  if (remember_ms) remembering = setTimeout(remember, remember_ms);
  else remember();
}

async function post(path, value, signal) {
  const headers = { "content-type": "application/json", "x-lockkeeper-token": token };
  return fetch(PATH + path, { method: "POST", headers, body: JSON.stringify(value), signal });
}

async function evaluate() {
  running?.abort();
  running = new AbortController();
  const { signal } = running, draft = read();
  try {
    const response = await post("/evaluate", draft, signal);
    const result = await response.json();
    if (response.status === 429) throw new Error("busy");
    if (signal.aborted) return;
    missed = 0;
    if (result.problem) refused(result.problem);
    else show(result);
  } catch (error) {
    if (error.name === "AbortError") return;
    say("The server does not answer; trying again.", "bad");
    evaluating = setTimeout(evaluate, Math.min(500 * 2 ** missed++, 8000));
  }
}

function refused(problem) {
  document.body.classList.add("stale");
  showProblems([problem]);
  const line = problem.line ? `line ${problem.line}: ` : "";
  say(`Not evaluated: ${line}${problem.message}`, "bad");
}

function show({ problems, answers }) {
  document.body.classList.remove("stale");
  showProblems(problems);
  answers.forEach((answer, index) => showAnswer(list.children[index], answer, index));
  const good = answers.filter((answer) => answer.passed).length;
  const errors = problems.filter((one) => one.level === "error").length;
  const findings = errors ? ` ${errors} ${errors === 1 ? "error" : "errors"} in the documents.` : "";
  say(notice + (answers.length ? `${good} of ${answers.length} as wanted.${findings}` : `No requests yet: add one.${findings}`),
    notice || errors || good < answers.length ? "bad" : answers.length ? "good" : "");
  for (const row of list.querySelectorAll('[data-open="true"]')) open(row);
}

function showAnswer(row, answer, index) {
  if (!row) return;
  const state = answer.passed === null ? "invalid" : answer.passed ? "pass" : "fail";
  row.dataset.state = state;
  row.querySelector(".sign").textContent = SIGNS[state];
  row.querySelector(".outcome").textContent = answer.outcome || "not valid";
  row.querySelector(".message").textContent = answer.message;
  const meaning = { pass: "as wanted", fail: "not as wanted", invalid: "cannot be evaluated" }[state];
  row.querySelector(".answer").setAttribute("aria-label", `Request ${index + 1}: ${answer.outcome} ${meaning}. Why`);
}

function number() {
  [...list.children].forEach((row, index) => row.setAttribute("aria-label", `Request ${index + 1}`));
}

async function open(row) {
  const isNewest = asking(row);
  row.dataset.open = "true";
  row.querySelector(".answer").setAttribute("aria-expanded", "true");
  const detail = row.querySelector(".detail");
  const response = await post("/open", { draft: read(), number: [...list.children].indexOf(row) });
  const isPage = response.headers.get("content-type").startsWith("text/html");
  const text = isPage ? await response.text() : (await response.json()).problem.message;
  if (row.dataset.open !== "true" || !isNewest()) return;
  if (isPage) detail.innerHTML = text;
  else detail.textContent = text;
  detail.hidden = false;
  mark();
}

function close(row) {
  row.dataset.open = "";
  row.querySelector(".answer").setAttribute("aria-expanded", "false");
  row.querySelector(".detail").hidden = true;
  mark();
}

function say(text, kind) {
  status.textContent = text;
  status.className = `status ${kind}`;
}

// The documents: line numbers, findings, and the line in which a statement decides.

let problemLines = new Set();

function showProblems(problems) {
  problemLines = new Set(problems.map((one) => one.line).filter(Boolean));
  at("problems").replaceChildren(...problems.map((one) => {
    const item = document.createElement("li");
    item.className = one.level;
    if (one.line) {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "link", textContent: `line ${one.line}` });
      button.dataset.line = one.line;
      item.append(button, " ");
    }
    item.append(one.message);
    return item;
  }));
  mark();
}

function mark() {
  const count = documents.value.split("\n").length;
  while (gutter.childElementCount > count) gutter.lastElementChild.remove();
  while (gutter.childElementCount < count) {
    gutter.append(Object.assign(document.createElement("span"), { textContent: gutter.childElementCount + 1 }));
  }
  const shown = [...list.querySelectorAll('[data-open="true"] .detail [data-line]')];
  const decides = new Set(shown.map((button) => Number(button.dataset.line)));
  [...gutter.children].forEach((line, index) => {
    line.className = [problemLines.has(index + 1) && "problem", decides.has(index + 1) && "decides"].filter(Boolean).join(" ");
  });
  gutter.scrollTop = documents.scrollTop;
}

function goToLine(line) {
  const lines = documents.value.split("\n"), start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
  documents.focus();
  documents.setSelectionRange(start, start + (lines[line - 1] ?? "").length);
  documents.scrollTop = Math.max(0, (line - 6) * 20);
}

let listed = "";
async function listActions() {
  const system = at("system").value, isNewest = asking(at("actions"));
  if (system === listed) return;  // each undo writes all fields
  const response = await fetch(`${PATH}/actions/${encodeURIComponent(system)}`);
  const names = response.ok ? await response.json() : [];
  if (!isNewest()) return;
  listed = response.ok ? system : "";
  at("actions").replaceChildren(...names.map((name) => Object.assign(document.createElement("option"), { value: name })));
}

// What people do.

async function example(name) {
  const isNewest = asking(at("example"));
  const response = await fetch(`${PATH}/examples/${encodeURIComponent(name)}`);
  const state = response.ok ? await response.json() : null;
  if (!isNewest()) return;
  if (state) write(state);
  at("example").value = name;
}

async function save() {
  const { problem, text } = await (await post("/save", read())).json();
  if (problem) return say(`Not saved: ${problem.message}`, "bad");
  const file = new Blob([text], { type: "application/yaml" });
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(file), download: "cases.yaml" });
  link.click();
  URL.revokeObjectURL(link.href);
  say("Saved as cases.yaml: lockkeeper policy test cases.yaml", "good");
}

async function share() {
  remember();
  await writeFragment(JSON.stringify(read()));
  const size = `${(location.href.length / 1024).toFixed(1)} kB`;
  try {
    await navigator.clipboard.writeText(location.href);
    say(`Link copied (${size}). It holds all that you see; no server has it.`, "good");
  } catch {
    say(`Copy the address of this page (${size}): it holds all that you see.`, "");
  }
}

async function openFiles(files) {
  const texts = await Promise.all([...files].map((file) => file.text()));
  if (texts.length) documents.value = texts.map((text) => text.trimEnd()).join("\n---\n") + "\n";
  changed(1);
}

function add(values, after) {
  const row = newRow(values);
  if (after) after.after(row);
  else list.append(row);
  field(row, "subject").focus();
  changed(1);
}

const onRow = {
  answer: (row) => (row.dataset.open === "true" ? close(row) : open(row)),
  toggle: (row) => toggle(row, !row.classList.contains("wide")),
  copy: (row) => add(read().requests[[...list.children].indexOf(row)], row),
  remove: (row) => {
    const next = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    (next ? field(next, "subject") : at("add")).focus();
    changed(1);
  },
};

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.line) return goToLine(Number(button.dataset.line));
  const row = button.closest(".request");
  for (const [name, act] of Object.entries(onRow)) if (row && button.classList.contains(name)) act(row);
});
document.addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || event.altKey) return;
  const key = event.key.toLowerCase(), step = key === "y" || (key === "z" && event.shiftKey) ? 1 : key === "z" ? -1 : 0;
  if (step) event.preventDefault(), go(step);
});
documents.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.isComposing) return;
  event.preventDefault();
  const before = documents.value.slice(0, documents.selectionStart), line = before.slice(before.lastIndexOf("\n") + 1);
  const indent = line.match(/^ */)[0] + (/:\s*$/.test(line) ? "  " : "");
  documents.setRangeText(`\n${indent}`, documents.selectionStart, documents.selectionEnd, "end");
  mark();
  changed();
});
documents.addEventListener("input", () => (mark(), changed()));
documents.addEventListener("scroll", () => (gutter.scrollTop = documents.scrollTop));
list.addEventListener("input", () => changed());
at("at").addEventListener("input", () => changed());
at("system").addEventListener("change", () => (listActions(), changed(1)));
addEventListener("beforeprint", () => (at("printed").textContent = documents.value));
at("example").addEventListener("change", (event) => event.target.value && example(event.target.value));
at("tools").addEventListener("submit", (event) => event.preventDefault());
at("undo").addEventListener("click", () => go(-1));
at("redo").addEventListener("click", () => go(1));
at("add").addEventListener("click", () => add({}));
at("save").addEventListener("click", save);
at("share").addEventListener("click", share);
at("open").addEventListener("click", () => at("files").click());
at("files").addEventListener("change", (event) => openFiles(event.target.files));
addEventListener("hashchange", () => location.hash !== written && load());

if (!(await load())) await example(at("example").options[1].value);
