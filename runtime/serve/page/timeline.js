// The last rounds as two lanes: what the target verified, and the draft's work for it.
//
// A round ends where its tokens were decided; its verification lies right before that. What the
// target waited for (exposed) lies right before the verification, all other work of the draft
// beside the verification before. Pauses between rounds are cut out.

const NAMES = {
  hit: "hit", zero: "zero drafts", jit: "just in time", lookup: "lookup",
  drafted: "drafted", plain: "plain", missed: "underlined: miss", hidden: "hidden draft", waited: "draft waited for",
};
const TOP = 6, HEIGHT = 28, DRAFT_TOP = 52, DRAFT_HEIGHT = 20, FOOT = 94, GAP = 12;
const ROUND_WIDTH = 30; // pixels, about: it says how many rounds are shown
const find = (id) => document.getElementById(id);

export function kindOf(row) {
  if (row.kind === "jit") return row.hit === null ? "drafted" : "jit";
  if (row.kind === "none") return row.hit === null ? "plain" : "zero";
  return row.kind;
}

export class Timeline {
  constructor(numKept) {
    this.numKept = numKept;
    this.rounds = [];
    this.shown = []; // of the drawing: {round, left, right}
    this.chosen = null;
    this.isHeld = false;
    new ResizeObserver(() => this.draw()).observe(find("drawing"));
    this.listen(find("timeline"));
  }

  listen(place) {
    find("hold").addEventListener("click", () => {
      this.isHeld = !this.isHeld;
      find("hold").setAttribute("aria-pressed", this.isHeld);
      this.choose(null);
    });
    const point = (event) => {
      const x = event.clientX - find("drawing").getBoundingClientRect().left;
      this.choose(this.shown.findIndex(({ left, right }) => left <= x && x < right));
    };
    place.addEventListener("pointermove", point);
    place.addEventListener("pointerdown", point);
    place.addEventListener("pointerleave", () => this.choose(null));
    place.addEventListener("blur", () => this.choose(null));
    place.addEventListener("keydown", (event) => {
      const last = this.shown.length - 1, at = this.chosen ?? last + 1;
      const next = { ArrowLeft: Math.max(0, at - 1), ArrowRight: Math.min(last, at + 1),
        Home: 0, End: last, Escape: null }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      this.choose(next);
    });
  }

  add(rounds) {
    this.rounds = [...this.rounds, ...rounds.filter((round) => round.rows.length)]
      .slice(-this.numKept);
    this.draw();
  }

  clear() {
    this.rounds = [];
    this.choose(null);
  }

  figures() {
    let numRows = 0, numTokens = 0, numHits = 0, numLooked = 0, seconds = 0, numTimed = 0;
    for (const round of this.rounds) {
      for (const row of round.rows) {
        numRows += 1;
        numTokens += row.num_emitted;
        numLooked += row.hit !== null;
        numHits += row.hit === true;
        if (round.round_ms !== null) numTimed += row.num_emitted;
      }
      seconds += (round.round_ms ?? 0) / 1000;
    }
    return {
      length: numRows ? numTokens / numRows : null,
      hitRate: numLooked ? numHits / numLooked : null,
      speed: seconds ? numTimed / seconds : null,
      last: this.rounds.at(-1),
    };
  }

  // A round that is looked at must not run away.
  draw() {
    if (this.chosen === null && !this.isHeld) this.redraw();
  }

  redraw() {
    const width = find("drawing").clientWidth;
    find("quiet").hidden = this.rounds.length > 0;
    const svg = element("svg", { "aria-hidden": "true" });
    const scale = width / visibleMs(this.rounds, width);
    let end = 0;
    this.shown = this.rounds.map((round) => {
      const isCut = round.round_ms === null;
      const left = end + (isCut && end ? GAP : 0);
      end = left + scale * (round.round_ms ?? round.verify_ms + round.exposed_ms);
      return { round, isCut, left, right: end, verify: end - scale * round.verify_ms };
    });
    for (const each of this.shown)
      for (const side of ["left", "right", "verify"]) each[side] += width - end;
    for (const top of [[TOP, HEIGHT], [DRAFT_TOP, DRAFT_HEIGHT]])
      svg.append(rect("ground", 0, width, ...top));
    this.shown.forEach((each, place) => {
      if (each.right > 0) svg.append(...shapes(each, this.shown[place - 1], scale));
    });
    if (this.shown.length) svg.append(...ruler(width, scale));
    find("drawing").replaceChildren(svg);
    legend(this.shown.filter(({ right }) => right > 0));
  }

  choose(place) {
    const each = place === null ? undefined : this.shown[place];
    this.chosen = each ? place : null;
    find("told").hidden = !each;
    find("drawing").querySelector(".chosen")?.remove();
    if (!each) return this.draw();
    const mark = rect("chosen", each.left, each.right, 1, DRAFT_TOP + DRAFT_HEIGHT + 2);
    find("drawing").firstChild.append(mark);
    find("told").textContent = words(each.round);
    const room = find("lanes").clientWidth - find("told").offsetWidth;
    const left = find("drawing").offsetLeft + each.left;
    find("told").style.left = `${Math.max(0, Math.min(room, left))}px`;
  }
}

// So much that a usual round is about ROUND_WIDTH wide, rounded so that the scale seldom jumps.
function visibleMs(rounds, width) {
  const times = rounds.map((round) => round.round_ms ?? round.verify_ms).sort((a, b) => a - b);
  const wanted = (times[times.length >> 1] || 10) * Math.max(1, width / ROUND_WIDTH);
  const ten = 10 ** Math.floor(Math.log10(wanted));
  return [1, 1.5, 2, 3, 5, 7, 10].find((step) => step * ten >= wanted) * ten;
}

function shapes({ round, isCut, left, right, verify }, before, scale) {
  const found = [];
  const draft = (name, from, to) =>
    to > from && found.push(rect(name, from, to, DRAFT_TOP, DRAFT_HEIGHT));
  const hidden = scale * Math.max(0, round.draft_ms - round.exposed_ms);
  const waited = verify - scale * round.exposed_ms;
  const from = before && !isCut ? before.verify : waited - hidden;
  draft("hidden", from, Math.min(waited, from + hidden));
  draft("waited", waited, verify);
  const height = HEIGHT / round.rows.length;
  round.rows.forEach((row, place) => {
    const top = TOP + place * height;
    found.push(rect(kindOf(row), verify, right - 1, top, height - (height > 4 ? 1 : 0)));
    if (row.hit === false && height > 6) found.push(rect("missed", verify, right - 1, top + height - 3, 3));
    if (height > 12 && right - verify > 14)
      found.push(text("count", (verify + right) / 2, top + height / 2 + 3, row.num_emitted));
  });
  if (isCut) found.push(line("pause", left - GAP / 2, left - GAP / 2, TOP, DRAFT_TOP + DRAFT_HEIGHT));
  return found;
}

function ruler(width, scale) {
  const room = 160 / scale, ten = 10 ** Math.floor(Math.log10(room));
  const ms = [5, 2, 1].find((step) => step * ten <= room) * ten;
  const label = text("axis", width - ms * scale - 8, FOOT, `${ms} ms`);
  label.setAttribute("text-anchor", "end");
  return [line("scale", width - ms * scale, width - 1, FOOT - 4, FOOT - 4), label];
}

function legend(shown) {
  const kinds = new Set(shown.flatMap(({ round }) => round.rows.map(kindOf)));
  if (shown.some(({ round }) => round.rows.some((row) => row.hit === false))) kinds.add("missed");
  if (shown.some(({ round }) => round.draft_ms > round.exposed_ms)) kinds.add("hidden");
  if (shown.some(({ round }) => round.exposed_ms > 0)) kinds.add("waited");
  const wanted = Object.keys(NAMES).filter((kind) => kinds.has(kind));
  const place = find("legend");
  if (place.dataset.kinds === wanted.join()) return;
  place.dataset.kinds = wanted.join();
  place.replaceChildren(...wanted.map((kind) => {
    const item = document.createElement("li"), svg = element("svg", { "aria-hidden": "true" });
    svg.append(rect(kind, 0, 12, 0, 12));
    item.append(svg, NAMES[kind]);
    return item;
  }));
}

function words(round) {
  const time = round.round_ms === null ? "behind a pause" : `${round.round_ms.toFixed(1)} ms`;
  const hidden = Math.max(0, round.draft_ms - round.exposed_ms);
  const drafted = round.draft_ms
    ? `, draft ${round.draft_ms.toFixed(1)} ms (${hidden.toFixed(1)} of it hidden)` : "";
  return [
    `Round ${round.number}, ${round.mode}, ${time}: verification ${round.verify_ms.toFixed(1)} ms${drafted}`,
    ...round.rows.map((row) => `${round.rows.length > 1 ? `row ${row.slot}: ` : ""}${wordsOf(row)}`),
  ].join("\n");
}

function wordsOf(row) {
  const kind = kindOf(row), how = { lookup: "copied by lookup", drafted: "drafted before" }[kind];
  const outcome = { true: "hit, ", false: "miss, " }[row.hit] ?? "";
  const parts = [kind === "hit" ? "hit" : outcome + (how ?? NAMES[kind])];
  if (row.is_behind) parts.push("the draft catches up");
  if (row.num_drafted) parts.push(`accepted ${row.accepted} of ${row.num_drafted}`);
  if (row.hit !== null)
    parts.push(row.rank === null ? "bonus token unranked" : `bonus token's rank ${row.rank}`);
  parts.push(`${row.num_emitted} ${row.num_emitted === 1 ? "token" : "tokens"} emitted`);
  return parts.join("; ");
}

function element(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function rect(kind, from, to, y, height) {
  return element("rect", { class: kind, x: from, y, width: Math.max(0.5, to - from), height, rx: 2 });
}

function line(kind, x1, x2, y1, y2) {
  return element("line", { class: kind, x1, x2, y1, y2 });
}

function text(kind, x, y, content) {
  const made = element("text", { class: kind, x, y });
  made.textContent = content;
  return made;
}
