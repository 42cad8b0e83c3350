// Replays of mazes: the board, the trail walked so far, and the belief in every member as stacked areas.
(function () {
  const holder = document.getElementById("maze-data");
  if (!holder) return;
  const replays = JSON.parse(holder.textContent).replays;
  const byId = (id) => document.getElementById(id);
  const [board, chart, slider, select, told, play] =
    ["maze-board", "maze-belief", "maze-step", "maze-select", "maze-told", "maze-play"].map(byId);
  const colour = (k, n) => `hsl(${Math.round((360 * k) / n)} 62% 52%)`;
  const tag = (name, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    return node;
  };
  let replay, timer;

  function draw() {
    const t = Number(slider.value), size = replay.grid.length, members = replay.belief[0].length;
    board.replaceChildren();
    board.setAttribute("viewBox", `0 0 ${size} ${size}`);
    board.append(tag("rect", { width: size, height: size, fill: "#c89664" }));
    replay.grid.forEach((row, y) => [...row].forEach((open, x) => {
      if (open === ".") board.append(tag("rect", { x, y: size - 1 - y, width: 1.02, height: 1.02, fill: "#f4efe6" }));
    }));
    const middle = ([x, y]) => [x + 0.5, size - y - 0.5];
    for (let s = 1; s <= t; s++) {
      const [x1, y1] = middle(replay.cells[s - 1]), [x2, y2] = middle(replay.cells[s]);
      const stroke = colour(replay.trusted[s - 1], members);
      board.append(tag("line", { x1, y1, x2, y2, stroke, "stroke-width": 0.28, "stroke-linecap": "round", opacity: 0.85 }));
      if (replay.trusted[s] !== replay.trusted[s - 1])
        board.append(tag("circle", { cx: x2, cy: y2, r: 0.42, fill: "none", stroke: "#222", "stroke-width": 0.08 }));
    }
    const [gx, gy] = middle(replay.goal), [mx, my] = middle(replay.cells[t]);
    board.append(tag("circle", { cx: gx, cy: gy, r: 0.36, fill: "#ffc400", stroke: "#7a5a00", "stroke-width": 0.08 }));
    board.append(tag("circle", { cx: mx, cy: my, r: 0.34, fill: "#555", stroke: "#fff", "stroke-width": 0.08 }));

    const steps = replay.belief.length, width = 300, height = 110;
    chart.replaceChildren();
    chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const at = (s) => (steps < 2 ? 0 : (s * width) / (steps - 1));
    let below = new Array(steps).fill(0);
    for (let k = 0; k < members; k++) {
      const above = below.map((low, s) => low + replay.belief[s][k]);
      const top = above.map((v, s) => `${at(s).toFixed(1)},${(height * (1 - v)).toFixed(1)}`);
      const bottom = below.map((v, s) => `${at(s).toFixed(1)},${(height * (1 - v)).toFixed(1)}`).reverse();
      chart.append(tag("polygon", { points: [...top, ...bottom].join(" "), fill: colour(k, members) }));
      below = above;
    }
    chart.append(tag("line", { x1: at(t), x2: at(t), y1: 0, y2: height, stroke: "#111", "stroke-width": 1.5 }));
    const share = Math.round(100 * replay.belief[t][replay.trusted[t]]);
    const cut = replay.length >= steps ? ` It goes on like this for ${replay.length - steps + 1} steps.` : " Time is up.";
    const end = t < steps - 1 ? "" : replay.success && replay.length < steps ? " It has found the cheese." : cut;
    told.textContent = `Step ${t} of ${steps - 1}. Member ${replay.trusted[t] + 1} of ${members} is believed most, ${share}%.${end}`;
  }

  function stop() { clearInterval(timer); timer = undefined; play.textContent = "Play"; }
  function show(index) {
    stop();
    replay = replays[index];
    slider.max = replay.cells.length - 1;
    slider.value = 0;
    draw();
  }
  select.addEventListener("change", () => show(Number(select.value)));
  slider.addEventListener("input", () => { stop(); draw(); });
  play.addEventListener("click", () => {
    if (timer) return stop();
    if (slider.value === slider.max) slider.value = 0;
    play.textContent = "Pause";
    timer = setInterval(() => {
      if (slider.value === slider.max) return stop();
      slider.value = Number(slider.value) + 1;
      draw();
    }, 120);
  });
  show(0);
})();
