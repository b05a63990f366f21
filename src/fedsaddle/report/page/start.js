// Draws everything; the theme; tables that sort.
function sortable(table) {
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = el("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "descending";
      table.querySelectorAll("thead th").forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const [one, other] = [key(a), key(b)];
        if (one === "" || other === "") return (one === "") - (other === "");  // what is not known comes last
        const order = Number.isNaN(Number(one)) || Number.isNaN(Number(other)) ? one.localeCompare(other) : one - other;
        return down ? order : -order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}

function themed() {
  const button = document.getElementById("theme"), root = document.documentElement;
  const next = { automatic: "light", light: "dark", dark: "automatic" };
  let now = "automatic";
  const wear = (theme) => {
    if (theme === "automatic") delete root.dataset.theme; else root.dataset.theme = theme;
    redraw();
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    now = next[now];
    button.textContent = `theme: ${now}`;
    wear(now);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details.printed:not([open])")];
    opened.forEach((each) => { each.open = true; });
    wear("light");
  });
  addEventListener("afterprint", () => {
    opened.forEach((each) => { each.open = false; });
    wear(now);
  });
}

function start() {
  const nav = document.querySelector("nav");
  document.querySelectorAll("main > section").forEach((each) => nav.append(
    el("a", { href: `#${each.id}` }, each.querySelector("h2").textContent)));
  document.querySelectorAll("[data-swatch]").forEach((place) => place.prepend(swatch(Number(place.dataset.swatch))));
  document.querySelectorAll("table.sortable").forEach(sortable);
  drawCurves();
  drawFairness();
  drawParticipation();
  drawTraffic();
  drawScores();
  themed();
  let waiting = 0;
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 120);
  });
}

start();
