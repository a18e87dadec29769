// On a narrow screen a table that is wider than the screen, or has five columns, becomes a list, and the text of long sections
// and descriptions is closed until it is asked for, by a click or by a link that leads into it.
document.addEventListener("DOMContentLoaded", () => {
  if (window.innerWidth >= 700) return;
  const folded = (parts, words) => {
    const fold = document.createElement("details");
    fold.innerHTML = `<summary>${words}</summary>`;
    parts[0].before(fold);
    fold.append(...parts);
  };
  for (const table of document.querySelectorAll("article table")) {
    const around = table.closest("details");
    const closed = around && !around.open;
    if (closed) around.open = true;
    const room = document.querySelector("article").clientWidth;
    const wide = table.scrollWidth > room || table.offsetWidth > room;
    if (closed) around.open = false;
    const names = [...table.querySelectorAll("thead th")].map((cell) => cell.innerText || cell.textContent);
    if (!wide && names.length < 5) continue;
    const rows = [...table.querySelectorAll("tbody tr")];
    for (const row of rows) [...row.children].forEach((cell, i) => (cell.dataset.label = names[i] ? `${names[i].trim()}: ` : ""));
    table.classList.add("stacked");
    if (!around && names.length && rows.length > 4) folded([table.closest(".table-wrapper") ?? table], `Show the table (${rows.length} lines)`);
  }
  if (document.body.scrollHeight >= 8000) {
    for (const section of [...document.querySelectorAll("article section section")].reverse()) {
      const text = [...section.children].filter((part) => !/^(SPAN|H\d)$/.test(part.tagName));
      const height = text.reduce((sum, part) => sum + part.offsetHeight, 0);
      if (height >= 500) folded(text, "Show this section");
    }
  }
  if (document.body.scrollHeight >= 8000) {
    for (const said of document.querySelectorAll("article section > dl.py > dd")) {
      if (said.offsetHeight >= 120 && said.children.length) folded([...said.children], "Show what it says");
    }
  }
  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let place = target; place; place = place.parentElement) if (place.tagName === "DETAILS") place.open = true;
    const own = target.querySelector(":scope > details");
    if (own) own.open = true;
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", open);
  open();
});
