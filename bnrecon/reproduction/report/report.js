// Theme, copying, filters, and tables that sort and search. Without scripts the page reads as well.
const find = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const root = document.documentElement;

// Settings that a browser may not store, as for a local file, are for this visit only.
const stored = {
  get(name) { try { return localStorage.getItem(name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem(name, value); } catch { /* this visit only */ } },
};

function setUpTheme() {
  const button = find("#theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const name = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use ${isDark() ? "light" : "dark"} colours`);
  };
  const before = stored.get("bnrecon-theme");
  if (before === "light" || before === "dark") root.dataset.theme = before;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    stored.set("bnrecon-theme", root.dataset.theme);
    name();
  });
  system.addEventListener("change", name);
  name();
  button.hidden = false;
}

function select(element) {
  const range = document.createRange();
  range.selectNodeContents(element);
  const selection = getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
}

async function copy(code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    return true;
  } catch {
    select(code);
    return document.execCommand("copy");
  }
}

function setUpCopying() {
  for (const button of all("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const done = await copy(find("code", button.parentElement));
      button.textContent = done ? "Copied" : "Press Ctrl+C";
      find(".said").textContent = done ? "Copied" : "Selected; press Ctrl+C to copy";
      setTimeout(() => { button.textContent = "Copy"; find(".said").textContent = ""; }, 2000);
    });
  }
}

async function loadDataTables() {
  const packed = Uint8Array.from(atob(find("#library").textContent), (c) => c.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const source = new Blob([await new Response(unpacked).blob()], { type: "text/javascript" });
  const url = URL.createObjectURL(source);
  try {
    return (await import(url)).default;
  } finally {
    URL.revokeObjectURL(url);
  }
}

// Cells that hold no number come last in either order.
function compare(first, second, sign) {
  const [a, b] = [first, second].map((cell) => (cell === "" ? NaN : Number(cell)));
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
  return a === b ? 0 : sign * (a < b ? -1 : 1);
}

function setUpTable(DataTable, table) {
  const searchable = table.classList.contains("searchable");
  const made = new DataTable(table, {
    paging: false,
    autoWidth: false,
    order: [],
    layout: {
      topStart: searchable ? "info" : null,
      topEnd: searchable ? "search" : null,
      bottomStart: null,
      bottomEnd: null,
    },
    language: { search: "Search this table", searchPlaceholder: "Search this table", zeroRecords: "No row matches" },
    infoCallback: (_settings, _start, _end, most, shown) =>
      (shown === most ? `${most} rows` : `${shown} of ${most} rows`),
  });
  // The field to search in stays where it is while the table scrolls.
  const bar = find(".dt-layout-row:not(.dt-layout-table)", made.table().container());
  if (bar) table.closest(".scroll")?.before(bar);
  return made;
}

function setUpFilters(claims) {
  const form = find("form.filters");
  const matches = (_text, _cells, index) => {
    const { paper, verdict } = claims.row(index).node().dataset;
    const chosen = all("input:checked", form).map((box) => box.value);
    return (!form.paper.value || form.paper.value === paper) && chosen.includes(verdict);
  };
  claims.search.fixed("filters", matches);
  form.addEventListener("change", () => claims.draw());
  form.addEventListener("submit", (event) => event.preventDefault());
  form.reset();
  form.hidden = false;
}

async function setUpTables() {
  const DataTable = await loadDataTables();
  DataTable.type("number", {
    detect: () => false,
    order: { asc: (a, b) => compare(a, b, 1), desc: (a, b) => compare(a, b, -1) },
  });
  for (const table of all("table.data:not(.plain)")) {
    const made = setUpTable(DataTable, table);
    if (table.id === "claims") setUpFilters(made);
  }
  root.dataset.tables = "ready";
}

// The contents name the part that is being read.
function setUpContents() {
  const contents = find("#toc");
  const narrow = matchMedia("(max-width: 62rem)");
  contents.open = !narrow.matches;
  narrow.addEventListener("change", () => { contents.open = !narrow.matches; });
  contents.addEventListener("click", (event) => {
    if (narrow.matches && event.target.closest("a")) contents.open = false;
  });
  const links = all("a", contents);
  const anchors = links.map((link) => document.getElementById(link.hash.slice(1)));
  const mark = () => {
    const above = anchors.filter((anchor) => anchor.getBoundingClientRect().top < innerHeight / 3);
    const current = links[Math.max(above.length - 1, 0)];
    if (current.hasAttribute("aria-current")) return;
    for (const link of links) link.removeAttribute("aria-current");
    current.setAttribute("aria-current", "true");
    if (!narrow.matches) current.scrollIntoView({ block: "nearest" });
  };
  let waiting = false;
  addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; mark(); });
  }, { passive: true });
  mark();
}

// On paper stands what is open, and how tables are read once: it is the same for all of a kind.
function setUpPrinting() {
  const reading = find("details.reading");
  let opened = false;
  addEventListener("beforeprint", () => {
    opened = reading !== null && !reading.open;
    if (opened) reading.open = true;
  });
  addEventListener("afterprint", () => { if (opened) reading.open = false; });
}

setUpTheme();
setUpCopying();
setUpContents();
setUpPrinting();
await setUpTables();
