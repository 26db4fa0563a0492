// The charts of a run: drawn again by uPlot, so that they can be zoomed under one cursor. Without this script
// the page shows the same signals as one picture.
"use strict";

(() => {
  const RENEW_MS = 5000;
  const section = document.getElementById("plots");
  if (!section || typeof uPlot === "undefined") return;
  const form = document.getElementById("range");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const sync = uPlot.sync("run");
  const figures = [...section.querySelectorAll("figure[data-signal]")];
  const plots = new Map();

  const asked = () => {
    const fields = new FormData(form);
    const number = (name) => (/^-?\d+$/.test(fields.get(name) || "") ? fields.get(name) : "");
    return { from: number("from"), to: number("to"), time: fields.get("x") === "time", log: fields.get("log") === "yes" };
  };

  function remember() {
    const { from, to, time, log } = asked();
    const query = new URLSearchParams();
    if (from) query.set("from", from);
    if (to) query.set("to", to);
    if (time) query.set("x", "time");
    if (log) query.set("log", "yes");
    history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}`);
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const faint = (css, share) => `color-mix(in srgb, ${css} ${share}%, transparent)`;
  const text = (v) => (v === null || v === undefined ? "" : Number(v.toPrecision(4)).toString());

  // Where a step is on the axis: by time it is looked for among the points.
  function place(view, step, time) {
    if (!time) return step;
    const at = view.step.findIndex((s) => s >= step);
    return view.time[at < 0 ? view.time.length - 1 : at];
  }

  function columns(view, time, log) {
    const positive = (list) => (log ? list.map((v) => (v !== null && v > 0 ? v : null)) : list);
    let x = time ? view.time : view.step;
    // uPlot wants each place once and in order: clocks of trainers may repeat.
    const keep = x.map((v, i) => v !== null && (i === 0 || v > x[i - 1]));
    if (!keep.every(Boolean)) {
      let last = -Infinity;
      const rising = x.map((v) => (v !== null && v > last ? ((last = v), true) : false));
      const pick = (list) => list.filter((_, i) => rising[i]);
      return [x, view.last, view.min, view.max, view.expected, view.low, view.high].map(pick).map((l, i) => (i ? positive(l) : l));
    }
    return [x, ...[view.last, view.min, view.max, view.expected, view.low, view.high].map(positive)];
  }

  // Incidents, restarts and values that are no numbers, behind and before the lines.
  function marks(figure) {
    const tone = (severity) => colour(severity === "page" ? "--bad" : severity === "ticket" ? "--warn" : "--info");
    return {
      drawAxes: [(u) => {
        const { view, time } = figure.shown;
        const { ctx } = u;
        ctx.save();
        for (const incident of view.incidents) {
          const from = u.valToPos(place(view, incident.start_step, time), "x", true);
          const to = incident.end_step === null ? u.bbox.left + u.bbox.width : u.valToPos(place(view, incident.end_step, time), "x", true);
          const left = Math.max(from, u.bbox.left);
          const right = Math.min(Math.max(to, left + 2), u.bbox.left + u.bbox.width);
          if (right <= left) continue;
          ctx.fillStyle = faint(tone(incident.severity), 16);
          ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
        }
        ctx.restore();
      }],
      draw: [(u) => {
        const { view, time } = figure.shown;
        const { ctx } = u;
        const ratio = devicePixelRatio || 1;
        ctx.save();
        ctx.lineWidth = ratio;
        for (const mark of view.marks) {
          if (mark.kind === "evaluation") continue;
          const x = u.valToPos(place(view, mark.step, time), "x", true);
          if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
          const restart = mark.kind === "restart";
          ctx.strokeStyle = colour(restart ? "--text" : "--soft");
          ctx.setLineDash(restart ? [6 * ratio, 4 * ratio] : []);
          ctx.beginPath();
          ctx.moveTo(x, restart ? u.bbox.top : u.bbox.top + u.bbox.height - 6 * ratio);
          ctx.lineTo(x, u.bbox.top + u.bbox.height);
          ctx.stroke();
        }
        ctx.setLineDash([]);
        ctx.fillStyle = colour("--bad");
        view.nonfinite.forEach((count, i) => {
          if (!count) return;
          const x = u.valToPos(time ? view.time[i] : view.step[i], "x", true);
          ctx.fillRect(x - ratio, u.bbox.top, 2 * ratio, 7 * ratio);
        });
        ctx.restore();
      }],
    };
  }

  function zoom(u, figure) {
    const { view, time } = figure.shown;
    const [left, width] = [u.select.left, u.select.width];
    if (width < 4) return;
    const ends = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    const steps = time ? ends.map((at) => view.step[Math.max(0, view.time.findIndex((t) => t >= at))]) : ends.map(Math.round);
    form.elements.from.value = steps[0];
    form.elements.to.value = steps[1];
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    remember();
    renew();
  }

  function options(figure, width, time, log) {
    const [soft, line, value, warm] = ["--soft", "--line", "--link", "--warn"].map(colour);
    const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui" };
    const hidden = { points: { show: false }, stroke: "transparent" };
    return {
      width,
      height: matchMedia("(max-width: 46rem)").matches ? 160 : 190,
      // A drag is one plot's alone: each would zoom otherwise.
      cursor: { sync: { key: sync.key, filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } }, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => whole() } },
      legend: { live: true },
      scales: { x: { time }, y: log ? { distr: 3 } : {} },
      axes: [{ ...axis }, { ...axis, size: 64, values: (_, ticks) => ticks.map((v) => (v === null ? "" : text(v))) }],
      series: [
        { label: time ? "time" : "step" },
        { label: "last", stroke: value, width: 1.5, points: { show: false }, value: (_, v) => text(v) },
        { label: "lowest", ...hidden, value: (_, v) => text(v) },
        { label: "highest", ...hidden, value: (_, v) => text(v) },
        { label: "expected", stroke: warm, width: 1, dash: [5, 4], points: { show: false }, value: (_, v) => text(v) },
        { label: "from", ...hidden, value: (_, v) => text(v) },
        { label: "to", ...hidden, value: (_, v) => text(v) },
      ],
      bands: [
        { series: [6, 5], fill: faint(warm, 14) },
        { series: [3, 2], fill: faint(value, 35) },
      ],
      hooks: { ...marks(figure), setSelect: [(u) => zoom(u, figure)] },
    };
  }

  // Pixels that a plot may be wide.
  const room = (figure) => Math.max(figure.clientWidth || section.clientWidth, 240);

  async function draw(figure) {
    const { from, to, time, log } = asked();
    const points = Math.min(Math.round(room(figure)), 4096);
    const query = new URLSearchParams({ signal: figure.dataset.signal, points: String(points) });
    if (from) query.set("from", from);
    if (to) query.set("to", to);
    const response = await fetch(`${section.dataset.api}/series?${query}`, { cache: "no-cache" });
    if (!response.ok) throw new Error(`the alerter answered ${response.status}`);
    const view = await response.json();
    figure.shown = { view, time, log };
    const data = columns(view, time, log);
    const had = plots.get(figure);
    if (had && had.time === time && had.log === log) {
      had.plot.setData(data);
      return;
    }
    had?.plot.destroy();
    figure.hidden = false;
    // The screen may have been turned while the answer was on its way.
    const plot = new uPlot(options(figure, room(figure), time, log), data, figure);
    plots.set(figure, { plot, time, log });
  }

  // The rest of the page, as it would be made now.
  async function parts() {
    const page = await fetch(location.href, { cache: "no-store" });
    if (!page.ok) throw new Error(`the alerter answered ${page.status}`);
    const fresh = new DOMParser().parseFromString(await page.text(), "text/html");
    for (const part of document.querySelectorAll("[data-renew]")) {
      const now = fresh.querySelector(`[data-renew="${part.dataset.renew}"]`);
      if (now) part.replaceWith(document.adoptNode(now));
    }
  }

  async function renew() {
    try {
      for (const figure of figures) figure.hidden = false;
      await Promise.all(figures.map(draw));
      const drawn = document.getElementById("drawn");
      if (drawn) drawn.hidden = true;
      // `app.js` says how old the page is.
      document.dispatchEvent(new CustomEvent("htmx:after:swap"));
    } catch (error) {
      document.dispatchEvent(new CustomEvent("htmx:error", { detail: error.message }));
    }
  }

  function whole() {
    form.elements.from.value = "";
    form.elements.to.value = "";
    remember();
    renew();
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    remember();
    renew();
  });
  form.addEventListener("change", () => {
    remember();
    renew();
  });
  document.getElementById("whole").addEventListener("click", (event) => {
    event.preventDefault();
    whole();
  });
  dark.addEventListener("change", () => {
    for (const { plot } of plots.values()) plot.destroy();
    plots.clear();
    renew();
  });
  let wide = section.clientWidth;
  addEventListener("resize", () => {
    if (section.clientWidth === wide) return;
    wide = section.clientWidth;
    for (const [figure, { plot }] of plots) plot.setSize({ width: room(figure), height: plot.height });
  });
  for (const scripted of section.querySelectorAll(".scripted")) scripted.classList.add("shown");
  setInterval(() => {
    if (document.hidden) return;
    renew();
    parts().catch(() => {});
  }, RENEW_MS);
  renew();
})();
