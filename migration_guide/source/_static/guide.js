// Says of each table and block of code that is wider than the page that it scrolls, and lets keys scroll it.
const wide = document.querySelectorAll(".table-wrapper, div.highlight pre, div.cell_output pre");

function mark() {
  for (const box of wide) {
    const scrolls = box.scrollWidth > box.clientWidth + 1;
    box.classList.toggle("scrolls", scrolls);
    if (scrolls) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

addEventListener("load", mark);
addEventListener("resize", mark);
