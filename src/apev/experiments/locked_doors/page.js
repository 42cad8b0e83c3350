"use strict";
// The replay of Locked Doors episodes. Data: the JSON of replays.json in #replay-data; markup: see page.py.
(() => {
  const source = document.getElementById("replay-data");
  if (!source) return;
  const { room, classes, replays } = JSON.parse(source.textContent);
  const $ = (id) => document.getElementById(id);
  const slider = $("replay-slider"), select = $("replay-select"), play = $("replay-play"), svg = $("replay-room");
  const CELL = 40, WALL = 38, SIDE = room.size * CELL + 2 * WALL;
  const MOVES = [[0, -1], [1, 0], [0, 1], [-1, 0]];
  const colour = (door) => `var(--door${door % 4})`;
  const middle = (cell) => WALL + (cell + 0.5) * CELL;
  let replay = null, step = 0, timer = 0;

  const node = (name, attributes = {}, parent = null, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  };
  const element = (name, className, parent, text = "") => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text) made.textContent = text;
    parent.append(made);
    return made;
  };
  const triesDoor = (s) => s.action !== null && (s.event === "bump" || s.event === "exit")
    && (s.event === "exit" || (room.doors[s.action][0] === s.x && room.doors[s.action][1] === s.y));
  const changesMind = (i) => i > 0 && replay.steps[i].believed_door !== replay.steps[i - 1].believed_door;

  // ---- the room: drawn once, then moved ----
  svg.setAttribute("viewBox", `0 0 ${SIDE} ${SIDE}`);
  node("rect", { width: SIDE, height: SIDE, rx: 12, style: "fill:var(--wall)" }, svg);
  node("rect", { x: WALL, y: WALL, width: SIDE - 2 * WALL, height: SIDE - 2 * WALL, rx: 2, style: "fill:var(--floor)" }, svg);
  for (let x = 0; x < room.size; x++)
    for (let y = 0; y < room.size; y++)
      if ((x + y) % 2)
        node("rect", { x: WALL + x * CELL, y: WALL + y * CELL, width: CELL, height: CELL, style: "fill:var(--tile)" }, svg);
  const doors = room.doors.map(([x, y], d) => {
    const [dx, dy] = MOVES[d];
    const place = `translate(${middle(x) + dx * (CELL + WALL) / 2} ${middle(y) + dy * (CELL + WALL) / 2})`;
    const group = node("g", { class: "door", "data-door": d, transform: `${place} rotate(${[0, 90, 0, -90][d]})` }, svg);
    const box = (inset, more) => node("rect", {
      x: -66 + inset, y: -WALL / 2 + inset, width: 132 - 2 * inset, height: WALL - 2 * inset, rx: 8 - inset / 2, ...more }, group);
    const glow = box(3, { fill: "none", stroke: "#fff", "stroke-width": 3.5 });
    const panel = box(7, { style: `fill:${colour(d)}` });
    const label = node("text", { "text-anchor": "middle", y: 5, "font-size": 13, style: "fill:var(--on-door)" }, group, classes[d].toUpperCase());
    const cross = node("g", { "data-tried": d }, group);
    node("circle", { cx: 60, cy: -8, r: 10, fill: "#fff" }, cross);
    node("path", { d: "M56 -12l8 8m0 -8l-8 8", stroke: "#c92a2a", "stroke-width": 3, "stroke-linecap": "round" }, cross);
    return { glow, panel, label, cross };
  });
  const trail = node("g", { "stroke-width": 4, "stroke-linecap": "round", "stroke-linejoin": "round", fill: "none" }, svg);
  const burst = node("path", { stroke: "var(--ink)", "stroke-width": 3, "stroke-linecap": "round", fill: "none" }, svg);
  const agent = node("g", { id: "replay-agent" }, svg);
  const body = node("circle", { r: 14.5, stroke: "#fff", "stroke-width": 3 }, agent);
  const eyes = node("g", {}, agent);
  for (const x of [-5, 5]) {
    node("circle", { cx: x, cy: -5, r: 4, fill: "#fff" }, eyes);
    node("circle", { cx: x, cy: -6.3, r: 1.9, fill: "#15171c" }, eyes);
  }

  // ---- panels ----
  const bars = (list, entries) => {
    list.replaceChildren();
    return entries.map(([name, detail, door]) => {
      const row = element("li", "", list);
      const label = element("span", "name", row, name);
      if (detail) element("small", "", label, ` ${detail}`);
      const fill = element("span", "fill", element("span", "track", row));
      fill.style.background = colour(door);
      return { row, fill, value: element("span", "value", row) };
    });
  };
  const setBar = (bar, share, now) => {
    bar.fill.style.transform = `scaleX(${share})`;
    bar.value.textContent = share.toFixed(2);
    bar.row.classList.toggle("now", now);
  };
  let doorBars = [], memberBars = [];

  const choose = (index) => {
    pause();
    replay = replays[index];
    const last = replay.steps.length - 1;
    slider.max = last;
    $("replay-photo").src = `data:image/png;base64,${replay.picture}`;
    $("replay-photo").alt = `photograph of class ${classes[replay.label]}`;
    $("replay-label").textContent = `the ${classes[replay.label]} door`;
    $("replay-label").style.color = colour(replay.label);
    doorBars = bars($("replay-doors"), classes.map((name, d) => [name, "", d]));
    memberBars = bars($("replay-members"), replay.member_doors.map((d, k) => [`${k + 1}`, classes[d], d]));
    drawStrip(last);
    show(0);
  };

  // The belief in each door over the whole episode, stacked; a diamond where the agent changes its mind.
  const drawStrip = (last) => {
    const strip = $("replay-strip"), span = Math.max(last, 1);
    strip.setAttribute("viewBox", `0 0 ${span} 1`);
    strip.replaceChildren();
    const base = replay.steps.map(() => 1);
    classes.forEach((_, d) => {
      const lower = base.map((y, i) => `${i} ${y}`).reverse();
      replay.steps.forEach((s, i) => { base[i] -= s.doors[d]; });
      const upper = base.map((y, i) => `${i} ${Math.max(y, 0)}`);
      node("path", { d: `M${upper.concat(lower).join("L")}Z`, style: `fill:${colour(d)}` }, strip);
    });
    const holder = $("replay-marks");
    holder.replaceChildren();
    replay.steps.forEach((s, i) => {
      if (!changesMind(i)) return;
      const mark = element("button", "mark", holder);
      mark.type = "button";
      mark.dataset.step = i;
      mark.title = `step ${i}: changes its mind to ${classes[s.believed_door]}`;
      mark.setAttribute("aria-label", mark.title);
      mark.style.cssText = `left:${100 * i / span}%;--colour:${colour(s.believed_door)}`;
      mark.addEventListener("click", () => { pause(); show(i); });
    });
  };

  // ---- one step ----
  const show = (index) => {
    step = Math.min(Math.max(index, 0), replay.steps.length - 1);
    const s = replay.steps[step], past = replay.steps.slice(0, step + 1);
    const tried = new Set(past.filter((p) => p.event === "bump" && triesDoor(p)).map((p) => p.action));
    doors.forEach((door, d) => {
      const open = s.event === "exit" && s.action === d;
      door.glow.style.opacity = d === s.believed_door ? 1 : 0;
      door.panel.style.opacity = tried.has(d) ? 0.4 : open ? 0.3 : 1;
      door.cross.style.display = tried.has(d) ? "" : "none";
      door.label.style.opacity = open ? 0 : 1;
      door.label.style.fill = tried.has(d) ? "#fff" : "var(--on-door)";
    });
    doors.forEach((_, d) => doorBars[d].row.classList.toggle("ruled-out", tried.has(d)));
    drawTrail(past);
    const [ax, ay] = placeOf(s);
    agent.style.transform = `translate(${ax}px, ${ay}px)`;
    agent.dataset.x = s.x;
    agent.dataset.y = s.y;
    body.style.fill = colour(s.believed_door);
    eyes.setAttribute("transform", `rotate(${90 * (s.action ?? s.believed_door)})`);
    drawBurst(s);
    s.doors.forEach((share, d) => setBar(doorBars[d], share, d === s.believed_door));
    const best = s.belief.indexOf(Math.max(...s.belief));
    const settled = s.belief[best] - Math.min(...s.belief) > 0.005;
    s.belief.forEach((share, k) => setBar(memberBars[k], share, settled && k === best));
    sentence(s);
    slider.value = step;
    slider.setAttribute("aria-valuetext", $("replay-step").textContent);
    $("replay-cursor").style.left = `${100 * step / Math.max(replay.steps.length - 1, 1)}%`;
  };

  // A bump leans against the wall; an exit stands in the doorway. Clamped, so that a logged cell outside still shows.
  const placeOf = (s) => {
    const lean = s.event === "bump" ? 9 : 0;
    const [dx, dy] = s.action === null ? [0, 0] : MOVES[s.action];
    if (s.event === "exit") return room.doors[s.action].map((c, i) => middle(c) + MOVES[s.action][i] * (CELL + WALL) / 2);
    const clamp = (c) => Math.min(Math.max(c, 0), room.size - 1);
    return [middle(clamp(s.x)) + dx * lean, middle(clamp(s.y)) + dy * lean];
  };

  // Each piece of the trail has the colour of the door the agent believed in; it keeps right, so a way back stays visible.
  const drawTrail = (past) => {
    trail.replaceChildren();
    let end = null;
    for (let i = 1; i < past.length; i++) {
      if (past[i].event === "bump") continue;
      const from = [middle(past[i - 1].x), middle(past[i - 1].y)], to = placeOf(past[i]);
      const [dx, dy] = MOVES[past[i].action], shift = ([x, y]) => `${x - 4 * dy} ${y + 4 * dx}`;
      const fresh = Math.max(30, 95 - 4 * (past.length - 1 - i));
      const paint = `color-mix(in srgb, ${colour(past[i - 1].believed_door)} ${fresh}%, var(--floor))`;
      node("path", { d: `M${end ?? shift(from)}L${shift(from)}L${shift(to)}`, style: `stroke:${paint}` }, trail);
      end = shift(to);
    }
  };

  const drawBurst = (s) => {
    burst.style.display = s.event === "bump" ? "" : "none";
    if (s.event !== "bump") return;
    const [x, y] = placeOf(s), [dx, dy] = MOVES[s.action];
    const rays = [-0.9, -0.3, 0.3, 0.9].map((turn) => {
      const angle = Math.atan2(dy, dx) + turn * 1.25;
      const [c, n] = [Math.cos(angle), Math.sin(angle)];
      return `M${x + 20 * c} ${y + 20 * n}L${x + 27 * c} ${y + 27 * n}`;
    });
    burst.setAttribute("d", rays.join(""));
  };

  const sentence = (s) => {
    const name = classes[s.believed_door], sure = s.doors[s.believed_door].toFixed(2);
    const turned = changesMind(step), last = step === replay.steps.length - 1;
    const believes = turned ? `belief moves to ${name} (${sure})` : `still believes in ${name} (${sure})`;
    let text;
    if (s.event === "start") text = `the photograph looks like ${name} to the ensemble (${sure})`;
    else if (s.event === "exit") text = `leaves through the ${classes[s.action].toUpperCase()} door, solved in ${step} steps`;
    else if (s.event === "bump" && triesDoor(s)) text = `bumped into the ${classes[s.action].toUpperCase()} door, locked – ${believes}`;
    else if (s.event === "bump") text = `bumped into the wall – ${believes}`;
    else text = `moves ${room.actions[s.action]} – ${believes}`;
    if (last && !replay.success) text += "; the time is up";
    const line = $("replay-step");
    line.replaceChildren();
    element("b", "", line, step === 0 ? "start" : `step ${step}`);
    line.append(`: ${text}`);
    $("replay-turn").hidden = !turned;
  };

  // ---- controls ----
  const pause = () => {
    clearInterval(timer);
    timer = 0;
    play.classList.remove("playing");
    play.setAttribute("aria-label", "play");
  };
  const advance = () => (step + 1 < replay.steps.length ? show(step + 1) : pause());
  const toggle = () => {
    if (timer) return pause();
    if (step + 1 >= replay.steps.length) show(0);
    play.classList.add("playing");
    play.setAttribute("aria-label", "pause");
    timer = setInterval(advance, 480);
  };
  const walk = (by) => { pause(); show(step + by); };
  play.addEventListener("click", toggle);
  $("replay-back").addEventListener("click", () => walk(-1));
  $("replay-next").addEventListener("click", () => walk(1));
  slider.addEventListener("input", () => { pause(); show(Number(slider.value)); });
  select.addEventListener("change", () => choose(Number(select.value)));
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches("select, input, textarea")) return;
    if (event.key === "ArrowRight") walk(1);
    else if (event.key === "ArrowLeft") walk(-1);
    else return;
    event.preventDefault();
  });
  choose(Number(select.value) || 0);
})();
