// Times in the reader's zone; the title keeps UTC.
const format = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
for (const element of document.querySelectorAll("time[datetime]")) {
  const moment = new Date(element.dateTime);
  if (!Number.isNaN(moment.valueOf())) element.textContent = format.format(moment);
}
