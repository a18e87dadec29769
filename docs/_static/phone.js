// On a narrow screen the text of long sections is closed until it is asked for, by a click or by a link that leads into it.
document.addEventListener("DOMContentLoaded", () => {
  if (window.innerWidth >= 700 || document.body.scrollHeight < 8000) return;
  for (const section of [...document.querySelectorAll("article section section")].reverse()) {
    const text = [...section.children].filter((part) => !/^(SPAN|H\d)$/.test(part.tagName));
    const height = text.reduce((sum, part) => sum + part.offsetHeight, 0);
    if (height < 500) continue;
    const fold = document.createElement("details");
    fold.innerHTML = "<summary>Show this section</summary>";
    text[0].before(fold);
    fold.append(...text);
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
