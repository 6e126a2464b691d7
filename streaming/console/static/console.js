// Times in the reader's zone, with its name, for they are copied elsewhere; the title keeps UTC.
const format = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

function showTimes(part) {
  for (const element of part.querySelectorAll("time[datetime]")) {
    const moment = new Date(element.dateTime);
    if (!Number.isNaN(moment.valueOf())) element.textContent = format.format(moment);
  }
}

// What is live: a part of the page that the server renders anew. It stays as it is while somebody is in it.
const SILENT_MS = 15000; // the server says something each second, and a stream that ended is opened again in two

function follow(live, pause, silent) {
  const events = new EventSource(live.dataset.events);
  let paused = false;
  let heard = Date.now();
  setInterval(() => { silent.hidden = Date.now() - heard < SILENT_MS; }, 1000);
  events.addEventListener("overview", (event) => {
    heard = Date.now();
    if (paused || live.contains(document.activeElement) || !document.getSelection().isCollapsed) return;
    live.innerHTML = event.data;
    showTimes(live);
  });
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
  });
}

// A draft is sent without leaving its page: browsers do not go back to the answer to a form that was posted. What was
// typed is kept with the page in the history of the tab, and is sent again when its viewer comes back to it; another
// one, who has signed in since then, may not see the documents in it.
const viewer = () => document.querySelector(".viewer .name")?.textContent ?? "";

function keep(form, isSent) {
  const draft = new URLSearchParams(new FormData(form));
  draft.delete("token");
  history.replaceState({ draft: String(draft), viewer: viewer(), isSent }, "");
}

async function send(form) {
  const sent = new URLSearchParams(new FormData(form));
  keep(form, true);
  let text;
  try {
    const answer = await fetch(form.action, { method: "POST", body: sent, headers: { accept: "text/html" } });
    text = await answer.text();
  } catch {
    showProblem(form, "The console does not answer. Press the button again.");
    return;
  }
  if (String(new URLSearchParams(new FormData(form))) !== String(sent)) return; // somebody writes on
  const page = new DOMParser().parseFromString(text, "text/html");
  if (page.querySelector("form.draft-form")) {
    document.querySelector("main").replaceWith(page.querySelector("main"));
    followDraft();
  } else {
    showProblem(form, (page.querySelector(".empty") ?? page.body).textContent);
  }
  document.querySelector("main").focus();
}

function showProblem(form, message) {
  const problem = document.createElement("p");
  problem.className = "hint";
  problem.setAttribute("role", "alert");
  problem.textContent = message;
  while (form.nextElementSibling) form.nextElementSibling.remove(); // the answer to another draft
  form.after(problem);
}

function followDraft() {
  const form = document.querySelector("form.draft-form");
  showTimes(document);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
  form.addEventListener("change", () => keep(form, false));
  if (!document.querySelector("[data-submit]")) return form;
  // A draft that is not compared yet is sent again, unless somebody writes on.
  const again = setTimeout(() => form.requestSubmit(), 1500);
  form.addEventListener("input", () => clearTimeout(again));
  return form;
}

showTimes(document);
const live = document.getElementById("live");
if (live) follow(live, document.getElementById("pause"), document.getElementById("silent"));
if (document.querySelector("[data-reload]")) setTimeout(() => location.reload(), 1500);

if (document.querySelector("form.draft-form")) {
  const form = followDraft();
  // A link to the very address that is open keeps the state of its page in the history.
  const isNew = performance.getEntriesByType("navigation")[0]?.type === "navigate";
  if (!isNew && history.state?.draft && history.state.viewer === viewer()) {
    const typed = new URLSearchParams(history.state.draft);
    form.elements.system.value = typed.get("system");
    form.elements.documents.value = typed.get("documents");
    form.elements.prune.checked = typed.has("prune");
    if (history.state.isSent) form.requestSubmit();
  }
}
