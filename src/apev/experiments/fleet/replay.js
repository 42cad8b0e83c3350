"use strict";
// The replay of a fleet: the adaptive policy beside a blind one on the same machine. Data: #replay-data, see replays.py.
(() => {
  const source = document.getElementById("replay-data");
  if (!source) return;
  const { kinds, members, member_kinds: memberKinds, body, offers, seconds, episodes } = JSON.parse(source.textContent);
  const $ = (id) => document.getElementById(id);
  const slider = $("replay-slider"), select = $("replay-select"), play = $("replay-play");
  const SIDES = ["adaptive", "blind"], TRAIL = 22, FINE = 1000;
  const colourOf = (kind) => `var(--kind${kind % 6})`;
  const colour = (member) => colourOf(memberKinds[member] >= 0 ? memberKinds[member] : member);
  let episode = null, length = 1, power = 1, time = 0, timer = 0;

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
  // Long episodes are told slowly at first, where the belief moves: a place on the time line is the root of its share.
  const placeOf = (step) => Math.pow(step / length, 1 / power);
  const stepAt = (place) => length * Math.pow(place, power);
  const surest = (belief) => belief.indexOf(Math.max(...belief));
  const rounded = (value, digits) => value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1");
  const between = (a, b, share) => a + (b - a) * share;
  const kindAt = (now) => (episode.change && now > episode.change.step ? episode.change.kind : episode.kind);

  // ---- a machine: drawn once, then moved ----
  const machine = (side) => {
    const holder = $(`scene-${side}`).querySelector(".drawn");
    const [left, low, right] = body.box;
    const svg = node("svg", { role: "img", "aria-label": `the machine, ${side}` }, holder);
    const floor = node("g", { class: "floor" }, svg);
    if (body.ground) node("rect", { x: 9 * left, y: 0, width: 9 * (right - left), height: -low }, floor);
    else node("circle", { cx: 0, cy: 0, r: 1000, class: "goal" }, floor);
    const metres = node("g", { class: "metres" }, svg);
    const trail = node("path", { class: "trail" }, svg);
    const bones = body.bones.map(() => node("path", { class: "bone", "stroke-width": body.width }, svg));
    const dashes = body.bones.map(() => node("path", { class: "dashes", "stroke-width": body.width * 0.36 }, svg));
    const joint = body.ground ? null : node("circle", { r: body.width * 0.28, class: "pivot" }, svg);
    return { svg, metres, trail, bones, dashes, joint };
  };
  const machines = body ? Object.fromEntries(SIDES.map((side) => [side, machine(side)])) : {};

  const pose = (side, now) => {
    const told = episode[side], at = Math.min(now, told.length), i = Math.floor(at), share = at - i;
    const next = Math.min(i + 1, told.length);
    const points = told.points[i].map((value, k) => between(value, told.points[next][k], share));
    return { points, way: between(told.way[i], told.way[next], share) };
  };
  const drawMachine = (side, now) => {
    const { svg, metres, trail, bones, dashes } = machines[side], { points, way } = pose(side, now);
    const [left, low, right, high] = body.box, highest = Math.max(...points.filter((_, k) => k % 2)) + body.width;
    const zoom = Math.max(1, (highest - low) / (high - low)), tall = zoom * (high - low); // who jumps high is seen from afar
    svg.setAttribute("viewBox", `${zoom * left} ${-low - tall} ${zoom * (right - left)} ${tall}`);
    body.bones.forEach(([from, to], b) => {
      const line = `M${points[2 * from]} ${-points[2 * from + 1]}L${points[2 * to]} ${-points[2 * to + 1]}`;
      bones[b].setAttribute("d", line);
      dashes[b].setAttribute("d", line);
      dashes[b].style.display = (body.wrong[kindAt(now)] || []).includes(b) ? "" : "none";
    });
    let paint = "var(--soft)";
    if (side === "adaptive") {
      const belief = episode.adaptive.belief[Math.floor(now)], best = surest(belief), even = 1 / belief.length;
      const sure = belief.length > 1 ? Math.max(0, (belief[best] - even) / (1 - even)) : 1;
      paint = `color-mix(in srgb, ${colour(best)} ${Math.round(100 * sure)}%, var(--soft))`;
    }
    svg.style.setProperty("--body", paint);
    if (body.trail !== null) {
      const ends = episode[side].points.slice(Math.max(0, Math.floor(now) - TRAIL), Math.floor(now) + 1);
      trail.setAttribute("d", "M" + ends.map((p) => `${p[2 * body.trail]} ${-p[2 * body.trail + 1]}`).join("L"));
    }
    if (body.ground) drawGround(metres, way, zoom);
  };
  // A post every metre, so that the eye sees it move.
  const drawGround = (metres, way, zoom) => {
    const [left, low, right] = body.box;
    metres.replaceChildren();
    for (let m = Math.ceil(way + zoom * left / 1000); m <= way + zoom * right / 1000; m++) {
      const x = 1000 * (m - way);
      node("path", { d: `M${x} 0V${-low}`, class: m % 5 ? "" : "fifth" }, metres);
      node("text", { x: x + 26, y: -low - 50, "font-size": 92 }, metres, `${m} m`);
    }
  };

  // ---- customers: a card a visit ----
  let cards = {};
  const drawCards = (side) => {
    const holder = $(`scene-${side}`).querySelector(".drawn"), told = episode[side];
    holder.replaceChildren();
    const row = element("ol", "visits", holder);
    cards[side] = told.actions.map((action, visit) => {
      const card = element("li", "", row), spent = told.rewards ? told.rewards[visit] : null;
      element("small", "", card, `visit ${visit + 1}`);
      element("b", "", card, offers[action] || `offer ${action}`);
      element("span", spent ? "bought" : "", card, spent === null ? "" : spent > 0 ? `spends ${spent}` : "buys nothing");
      if (side === "adaptive") {
        const bar = element("i", "", card);
        told.belief[visit + 1].forEach((weight, k) => { element("s", "", bar).style.cssText = `flex:${weight};background:${colour(k)}`; });
      }
      return card;
    });
  };
  const drawVisits = (side, step) => cards[side].forEach((card, visit) => {
    card.classList.toggle("ahead", visit >= step);
    card.classList.toggle("now", visit === step - 1);
  });

  // ---- the belief ----
  let bars = [];
  const drawBars = () => {
    const list = $("replay-belief");
    list.replaceChildren();
    bars = members.map((name, k) => {
      const row = element("li", "", list), label = element("span", "name", row, name);
      const truth = element("small", "", label, " (true)");
      const fill = element("span", "fill", element("span", "track", row));
      fill.style.background = colour(k);
      return { row, fill, truth, value: element("span", "value", row) };
    });
  };
  const drawStrip = () => {
    const strip = $("replay-strip"), belief = episode.adaptive.belief;
    strip.setAttribute("viewBox", `0 0 ${FINE} 1`);
    strip.replaceChildren();
    const xs = belief.map((_, i) => (FINE * placeOf(i)).toFixed(1)), base = belief.map(() => 1);
    members.forEach((_, k) => {
      const lower = base.map((y, i) => `${xs[i]} ${y.toFixed(4)}`).reverse();
      belief.forEach((weights, i) => { base[i] -= weights[k]; });
      const upper = base.map((y, i) => `${xs[i]} ${Math.max(y, 0).toFixed(4)}`);
      node("path", { d: `M${upper.concat(lower).join("L")}Z`, style: `fill:${colour(k)}` }, strip);
    });
    const ticks = $("replay-ticks"), marks = $("replay-marks");
    ticks.replaceChildren();
    const shown = power > 1 ? [0, 0.01, 0.05, 0.2, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
    shown.forEach((share) => {
      const step = Math.round(share * length);
      element("span", "tick", ticks, `${step}`).style.left = `${100 * placeOf(step)}%`;
    });
    marks.replaceChildren();
    const mark = (step, title, paint, className) => {
      const made = element("button", className, marks);
      made.type = "button";
      made.dataset.step = step;
      made.title = title;
      made.setAttribute("aria-label", title);
      made.style.cssText = `left:${100 * placeOf(step)}%;--colour:${paint}`;
      made.addEventListener("click", () => { pause(); show(step); });
    };
    if (episode.change) mark(episode.change.step, `step ${episode.change.step}: the machine becomes ${kinds[episode.change.kind]}`, "var(--ink)", "mark change");
    for (const moment of [episode.knows, episode.again]) {
      if (moment) mark(moment.step, `step ${moment.step}: first 95% sure of ${members[moment.member]}`, colour(moment.member), "mark");
    }
  };

  const choose = (index) => {
    pause();
    episode = episodes[index];
    length = Math.max(episode.adaptive.length, episode.blind.length, 1);
    power = length >= 50 && !episode.change ? 2 : 1;
    $("replay-keys").textContent = (power > 1 ? "Time runs slowly at first, where it finds out. " : "")
      + "The strip is the belief over the episode" + (episode.knows ? "; a diamond is the moment at which it is first 95% sure of the kind it ends with" : "")
      + (episode.change ? `, the bar the step at which the machine changes to ${kinds[episode.change.kind]}` : "")
      + ". The arrow keys step.";
    if (offers) SIDES.forEach(drawCards);
    drawBars();
    drawStrip();
    show(0);
  };

  // ---- one moment; `now` may lie between two steps ----
  const earned = (told, step) => (told.rewards ? told.rewards.slice(0, step).reduce((a, b) => a + b, 0) : step >= told.length ? told.return : null);
  const show = (now) => {
    time = Math.min(Math.max(now, 0), length);
    const step = Math.floor(time + 1e-9);
    for (const side of SIDES) {
      const told = episode[side], sum = earned(told, Math.min(step, told.length));
      if (body) drawMachine(side, time);
      else if (offers) drawVisits(side, step);
      const far = body && body.ground ? `${rounded(pose(side, time).way, 1)} m` : "";
      const so = sum === null ? "" : `return ${rounded(sum, Math.abs(sum) < 100 ? 1 : 0)}`;
      $(`scene-${side}`).querySelector(".told").textContent = [far, so].filter(Boolean).join(" · ");
    }
    const belief = episode.adaptive.belief[Math.min(step, episode.adaptive.length)], best = surest(belief);
    belief.forEach((share, k) => {
      bars[k].fill.style.transform = `scaleX(${share})`;
      bars[k].value.textContent = share.toFixed(2);
      bars[k].truth.hidden = memberKinds[k] !== kindAt(time);
      bars[k].row.classList.toggle("now", k === best && share > 1.2 / belief.length);
    });
    sentence(step, belief, best);
    slider.value = Math.round(FINE * placeOf(time));
    slider.setAttribute("aria-valuetext", $("replay-step").textContent);
    $("replay-cursor").style.left = `${100 * placeOf(time)}%`;
  };
  const sentence = (step, belief, best) => {
    const line = $("replay-step"), changed = episode.change && step > episode.change.step;
    const after = changed ? episode.again : episode.knows, sure = belief[best].toFixed(2);
    const unsure = belief[best] < 1.2 / belief.length && belief.length > 1;
    line.replaceChildren();
    element("b", "", line, step === 0 ? "start" : `${offers ? "visit" : "step"} ${step}`);
    if (seconds && step) line.append(` (${(step * seconds).toFixed(1)} s)`);
    line.append(unsure ? ": it could be any kind" : ": it believes in ");
    if (!unsure) element("b", "", line, `${members[best]} (${sure})`).style.color = colour(best);
    const badge = $("replay-knows");
    badge.hidden = !after || step < after.step;
    if (after) {
      const known = memberKinds.includes(kindAt(time)), right = memberKinds[after.member] === kindAt(time);
      badge.textContent = `first 95% sure at ${offers ? "visit" : "step"} ${after.step}` + (known && !right ? ", wrongly" : "");
    }
  };

  // ---- controls ----
  const pause = () => {
    cancelAnimationFrame(timer);
    timer = 0;
    play.classList.remove("playing");
    play.setAttribute("aria-label", "play");
  };
  const toggle = () => {
    if (timer) return pause();
    if (time >= length) show(0);
    play.classList.add("playing");
    play.setAttribute("aria-label", "pause");
    const lasts = 1000 * (offers ? length : Math.min(36, 8 + length / 30));
    let before = null;
    const frame = (clock) => {
      const place = placeOf(time) + (before === null ? 0 : (clock - before) / lasts);
      before = clock;
      show(place >= 1 ? length : stepAt(place));
      if (place >= 1) pause();
      else timer = requestAnimationFrame(frame);
    };
    timer = requestAnimationFrame(frame);
  };
  const walk = (by) => { pause(); show(Math.floor(time + 1e-9) + by); };
  play.addEventListener("click", toggle);
  $("replay-back").addEventListener("click", () => walk(-1));
  $("replay-next").addEventListener("click", () => walk(1));
  slider.addEventListener("input", () => { pause(); show(Math.round(stepAt(slider.value / FINE))); });
  select.addEventListener("change", () => choose(Number(select.value)));
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches("select, textarea")) return;
    if (event.key === "ArrowRight") walk(1);
    else if (event.key === "ArrowLeft") walk(-1);
    else return;
    event.preventDefault();
  });
  choose(Number(select.value) || 0);
})();
