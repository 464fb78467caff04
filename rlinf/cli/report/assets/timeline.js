// The timeline: a lane per process, coloured by what it does, pale where it waits; zoomable.

(function () {
  const data = run.timeline;
  const place = document.getElementById("timeline");
  if (!data) return;
  const ROW = 18, GAP = 6, TOP = 24, LEFT = 150, RIGHT = 8;
  const view = { begin: 0, end: data.length };
  let selection = null;

  const tools = element("div", "zoom", "", place);
  const canvas = element("canvas", "", "", place);
  canvas.height = TOP + data.lanes.length * (ROW + GAP);
  const legend = element("div", "legend", "", place);
  const tip = element("div", "tip", "", place);
  tip.hidden = true;
  const pen = canvas.getContext("2d");

  // -- places ---------------------------------------------------------------------------------

  const width = () => canvas.clientWidth - LEFT - RIGHT;
  const x = (time) => LEFT + (time - view.begin) / (view.end - view.begin) * width();
  const timeAt = (left) => view.begin + (left - LEFT) / width() * (view.end - view.begin);

  /** Number of the first piece of a lane that ends after a moment. */
  function firstAfter(pieces, time) {
    let low = 0, high = pieces.length / 4;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (pieces[4 * middle] + pieces[4 * middle + 1] <= time) low = middle + 1; else high = middle;
    }
    return low;
  }

  function duration(time) {
    if (time >= 1e6) return +(time / 1e6).toPrecision(4) + " s";
    return time >= 1000 ? +(time / 1000).toPrecision(4) + " ms" : time + " µs";
  }

  // -- drawing --------------------------------------------------------------------------------

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const height = TOP + data.lanes.length * (ROW + GAP);
    canvas.style.height = height + "px";
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = height * ratio;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, canvas.clientWidth, height);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.fillStyle = colour("--dim");
    const unit = view.end - view.begin >= 2e6 ? 1e6 : 1e3;
    for (const value of ticks(view.begin / unit, view.end / unit, Math.max(2, Math.floor(width() / 110)))) {
      const at = x(value * unit);
      pen.textAlign = at > canvas.clientWidth - 50 ? "right" : "center";
      pen.fillText(+value.toPrecision(6) + (unit === 1e6 ? " s" : " ms"), at, 9);
      pen.fillRect(at, TOP - 6, 1, 4);
    }
    data.lanes.forEach((lane, row) => drawLane(lane, TOP + row * (ROW + GAP), colour));
    pen.fillStyle = colour("--path");
    for (let i = 0; i < data.path.length; i += 3) {
      const [row, begin, length] = data.path.slice(i, i + 3);
      if (begin + length < view.begin || begin > view.end) continue;
      const left = Math.max(LEFT, x(begin)), right = Math.min(LEFT + width(), x(begin + length));
      pen.fillRect(left, TOP + row * (ROW + GAP) + ROW + 1, Math.max(0.8, right - left), 2.5);
    }
    pen.fillStyle = colour("--ink");
    for (const [, begin, length] of data.steps) {
      for (const time of [begin, begin + length]) {
        if (time >= view.begin && time <= view.end) pen.fillRect(x(time), TOP - 4, 1, height - TOP);
      }
    }
    if (selection) {
      pen.fillStyle = colour("--raw");
      pen.fillRect(Math.min(selection[0], selection[1]), TOP - 4, Math.abs(selection[1] - selection[0]), height);
    }
  }

  function drawLane(lane, top, colour) {
    pen.fillStyle = colour("--ink");
    pen.textAlign = "left";
    pen.fillText(lane.name, 0, top + ROW / 2, LEFT - 10);
    pen.fillStyle = colour("--idle");
    pen.fillRect(LEFT, top, width(), ROW);
    const wait = colour("--wait"), pieces = lane.pieces;
    for (let i = 4 * firstAfter(pieces, view.begin); i < pieces.length && pieces[i] < view.end; i += 4) {
      const left = Math.max(LEFT, x(pieces[i]));
      const right = Math.min(LEFT + width(), x(pieces[i] + pieces[i + 1]));
      pen.fillStyle = pieces[i + 3] ? wait : data.colours[pieces[i + 2]];
      pen.fillRect(left, top, Math.max(0.6, right - left), ROW);
    }
  }

  function drawLegend() {
    const busy = new Map();
    for (const lane of data.lanes) for (let i = 0; i < lane.pieces.length; i += 4) {
      if (!lane.pieces[i + 3]) busy.set(lane.pieces[i + 2], (busy.get(lane.pieces[i + 2]) || 0) + lane.pieces[i + 1]);
    }
    const entries = [...busy].sort((a, b) => b[1] - a[1]).slice(0, 9).map(([name]) => [data.names[name], data.colours[name]]);
    for (const [name, colour] of [...entries, ["waiting", "var(--wait)"], ["critical path", "var(--path)"]]) {
      const entry = element("span", "", "", legend);
      element("i", "", "", entry).style.background = colour;
      entry.append(name);
    }
  }

  // -- moving about ---------------------------------------------------------------------------

  function show(begin, end) {
    const shortest = Math.min(50, data.length), length = Math.min(data.length, Math.max(shortest, end - begin));
    view.begin = Math.max(0, Math.min(begin, data.length - length));
    view.end = view.begin + length;
    draw();
  }

  function zoom(factor, around = (view.begin + view.end) / 2) {
    show(around - (around - view.begin) * factor, around + (view.end - around) * factor);
  }

  function button(text, action) {
    const made = element("button", "", text, tools);
    made.type = "button";
    made.addEventListener("click", action);
  }
  button("all", () => show(0, data.length));
  for (const [name, begin, length] of data.steps) button(name, () => show(begin, begin + length));
  button("+", () => zoom(0.5));
  button("−", () => zoom(2));
  element("span", "", "drag over a range to look closer, double-click to see all, ctrl + wheel to zoom", tools);

  canvas.addEventListener("wheel", (event) => {
    const span = view.end - view.begin;
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY / 300), timeAt(event.offsetX));
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) show(view.begin + event.deltaX / width() * span, view.end + event.deltaX / width() * span);
    else return;
    event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("dblclick", () => show(0, data.length));
  canvas.addEventListener("pointerdown", (event) => {
    if (event.offsetX < LEFT) return;
    selection = [event.offsetX, event.offsetX];
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => {
    const range = selection;
    selection = null;
    if (range && Math.abs(range[1] - range[0]) > 4) show(timeAt(Math.min(...range)), timeAt(Math.max(...range)));
    else draw();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (selection) { selection[1] = Math.max(LEFT, Math.min(LEFT + width(), event.offsetX)); draw(); }
    hover(event.offsetX, event.offsetY);
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });

  function hover(left, top) {
    const lane = data.lanes[Math.floor((top - TOP) / (ROW + GAP))];
    tip.hidden = true;
    if (!lane || left < LEFT || left > LEFT + width()) return;
    const time = timeAt(left), number = 4 * firstAfter(lane.pieces, time), pieces = lane.pieces;
    const inside = number < pieces.length && pieces[number] <= time;
    const words = inside
      ? `${lane.name}: ${pieces[number + 3] ? "waiting for " : ""}${data.names[pieces[number + 2]]}, ${duration(pieces[number + 1])}`
      : `${lane.name}: idle`;
    tip.textContent = `${words} (at ${duration(Math.round(time))})`;
    tip.hidden = false;
    tip.style.left = Math.min(left + 14, canvas.clientWidth - tip.offsetWidth) + "px";
    tip.style.top = canvas.offsetTop + top + 16 + "px";
  }

  drawLegend();
  draw();
  window.addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
