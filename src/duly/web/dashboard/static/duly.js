// What pages do beyond being read: times in the viewer's zone, refreshing while somebody looks, keys, copying, charts.
"use strict";

(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // ------------------------------------------------------------------ times
  const shape = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "local";

  function localize(within) {
    for (const one of all("time[datetime]:not([data-done])", within)) {
      const at = new Date(one.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      one.dataset.done = "";
      if ("when" in one.dataset) one.textContent = shape.format(at);
      else one.title = `${shape.format(at)} (${zone}) · ${one.title}`;
    }
    for (const one of all("input[data-zone]", within)) one.value = zone;
  }

  // Where the dashboard begins: this script lies in static/ below it. Cookies are sent no further.
  const home = new URL("..", document.currentScript.src).pathname;

  // Calendars are drawn on the server, which knows the viewer's zone from this cookie; one that was drawn before it was there is drawn anew.
  if (!document.cookie.includes(`duly_zone=${zone};`) && !document.cookie.endsWith(`duly_zone=${zone}`)) {
    document.cookie = `duly_zone=${zone}; path=${home}; max-age=31536000; SameSite=Lax`;
    const drawn = document.querySelector("[data-zone-is]");
    if (drawn && drawn.dataset.zoneIs !== zone && document.cookie.includes(`duly_zone=${zone}`)) location.reload();
  }

  // ------------------------------------------------------------------ refreshing
  const control = document.getElementById("live-switch");
  let wanted = true;
  try { wanted = sessionStorage.getItem("live") !== "no"; } catch { /* storage is forbidden here */ }

  function tellLive(problem) {
    if (!control) return;
    control.hidden = !document.querySelector("[data-live]");
    control.setAttribute("aria-pressed", String(wanted));
    control.textContent = problem || (wanted ? "Live" : "Paused");
    control.title = problem ? "The server does not answer; it is asked again." : wanted ? "Refreshes by itself while the page is seen" : "Nothing changes by itself";
    control.classList.toggle("trouble", Boolean(problem));
  }

  // Somebody is at it: a form is open, something is chosen, or text is marked.
  function inUse(part) {
    const active = document.activeElement;
    if (part.contains(active) && active.matches("input, select, textarea, summary")) return true;
    if (part.querySelector(":popover-open, details[open], input:checked[name=ids]")) return true;
    const marked = document.getSelection();
    return Boolean(marked && !marked.isCollapsed && part.contains(marked.anchorNode));
  }

  document.addEventListener("htmx:beforeRequest", (event) => {
    const part = event.target.closest && event.target.closest("[data-live]");
    if (part && (document.hidden || !wanted || inUse(part))) event.preventDefault();
  });
  document.addEventListener("htmx:sendError", () => tellLive("No answer"));
  document.addEventListener("htmx:responseError", (event) => {
    if (event.detail.xhr.status === 401) location.reload();
    else tellLive(`Error ${event.detail.xhr.status}`);
  });
  let focused = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const active = document.activeElement;
    focused = active && event.target.contains(active) ? active.getAttribute("href") : null;
  });
  document.addEventListener("htmx:afterSwap", () => {
    if (focused) all("[data-live] a[href]").find((a) => a.getAttribute("href") === focused)?.focus({ preventScroll: true });
    focused = null;
    tellLive();
    dress(document);
  });
  control?.addEventListener("click", () => {
    wanted = !wanted;
    try { sessionStorage.setItem("live", wanted ? "yes" : "no"); } catch { /* kept for this page only */ }
    tellLive();
  });

  // ------------------------------------------------------------------ keys
  function step(by) {
    const rows = all("a[data-row]").filter((a) => a.offsetParent !== null);
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement);
    const to = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + by, 0), rows.length - 1)];
    to.focus();
    to.scrollIntoView({ block: "nearest" });
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    const dialog = document.getElementById("keys");
    if (event.key === "/") document.querySelector("[data-slash]")?.focus();
    else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "?" && dialog && !dialog.open) dialog.showModal();
    else return;
    event.preventDefault();
  });

  // ------------------------------------------------------------------ copying, choosing
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const label = button.firstChild;
    try {
      await navigator.clipboard.writeText(button.parentElement.querySelector("pre").textContent);
      label.textContent = "Copied";
    } catch {
      label.textContent = "Mark it and copy";
    }
    setTimeout(() => { label.textContent = "Copy"; }, 1500);
  });
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.matches("[data-all]")) for (const one of all("input[name=ids]", box.form)) one.checked = box.checked;
    if (!box.matches("[data-all], input[name=ids]")) return;
    const chosen = all("input[name=ids]:checked", box.form).length;
    for (const button of all("button[data-chosen]", box.form)) {
      button.disabled = !chosen;
      button.textContent = chosen ? `${button.dataset.chosen} ${chosen} ${chosen === 1 ? "job" : "jobs"}…` : `${button.dataset.chosen} chosen…`;
    }
  });

  // ------------------------------------------------------------------ charts
  function draw(figure) {
    const { x, series } = JSON.parse(figure.dataset.chart);
    const look = getComputedStyle(document.documentElement);
    const ink = look.getPropertyValue("--soft").trim(), line = look.getPropertyValue("--line").trim();
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui" };
    const bars = uPlot.paths.bars({ size: [0.8, 40] });
    const target = figure.querySelector("[data-plot]");
    target.textContent = "";
    const plot = new uPlot({
      width: target.clientWidth, height: 170, legend: { live: true }, cursor: { y: false, points: { show: false } },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high, 1) * 1.1] } },
      axes: [{ ...axis, values: (_, at) => at.map((one) => clock.format(new Date(one * 1000))) }, { ...axis, size: 44 }],
      series: [{ label: "Time", value: (_, at) => (at == null ? "–" : shape.format(new Date(at * 1000))) }, ...series.map((one) => {
        const colour = look.getPropertyValue(`--${one.colour}`).trim();
        return { label: one.label, stroke: colour, fill: one.bars ? colour : undefined, width: one.bars ? 0 : 1.5, paths: one.bars ? bars : undefined, points: { show: false }, value: (_, v) => (v == null ? "–" : `${v.toLocaleString()}${one.unit || ""}`) };
      })],
    }, [x, ...series.map((one) => one.values)], target);
    figure.classList.add("drawn");
    plots.push([plot, target]);
  }
  let plots = [];

  function dress(within) {
    localize(within);
    for (const one of all("[data-copy][hidden]", within)) one.hidden = false;
    for (const one of all("[data-scripted][hidden]", within)) one.hidden = false;
    for (const button of all("button[data-chosen]", within)) button.disabled = !button.form?.querySelector("input[name=ids]:checked");
    plots = plots.filter(([plot, target]) => target.isConnected || (plot.destroy(), false));
    if (window.uPlot) for (const one of all("figure[data-chart]:not(.drawn)", within)) draw(one);
    for (const one of all("[data-end]", within)) one.scrollTop = one.scrollHeight;
  }

  window.addEventListener("resize", () => { for (const [plot, target] of plots) plot.setSize({ width: target.clientWidth, height: 170 }); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const one of all("figure.drawn")) one.classList.remove("drawn");
    for (const [plot] of plots) plot.destroy();
    plots = [];
    dress(document);
  });
  dress(document);
  tellLive();
})();
