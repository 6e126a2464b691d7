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

showTimes(document);
const live = document.getElementById("live");
if (live) follow(live, document.getElementById("pause"), document.getElementById("silent"));
if (document.querySelector("[data-reload]")) setTimeout(() => location.reload(), 1500);

// A draft that is not compared yet is sent again, unless somebody writes on.
const waiting = document.querySelector("[data-submit]");
if (waiting) {
  const form = document.querySelector("form.draft-form");
  const again = setTimeout(() => form.requestSubmit(), 1500);
  form.addEventListener("input", () => clearTimeout(again));
}
