// Asks the server for its last rounds while somebody looks, and starts the chat.

import { headers, startChat } from "./chat.js";
import { Timeline } from "./timeline.js";

const NUM_ROUNDS = 128; // kept here, and asked for at most
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const find = (id) => document.getElementById(id);
const timeline = new Timeline(NUM_ROUNDS);
let after = 0;
let numDone = 0;

async function look() {
  const response = await fetch(`stats?after=${after}&last=${NUM_ROUNDS}`, { headers: headers() });
  if (response.status === 401) throw new Error("asks for the API key");
  if (!response.ok) throw new Error("no answer from the server");
  const stats = await response.json();
  const numNow = Object.values(stats.rounds_by_mode).reduce((sum, num) => sum + num, 0);
  if (numNow < numDone) { // another process: its rounds are numbered from 1
    after = 0;
    timeline.clear();
  } else if (stats.rounds.length) {
    after = stats.rounds.at(-1).number;
    timeline.add(stats.rounds);
  }
  numDone = numNow;
  tell(stats);
  return stats.rounds.length > 0;
}

function tell(stats) {
  const { length, hitRate, speed, last } = timeline.figures();
  find("model").textContent = stats.model;
  find("state").textContent = stats.status;
  find("mode-name").textContent = stats.mode;
  find("plan").textContent = last ? planOf(last) : "";
  find("why").textContent = stats.why;
  find("length").textContent = length === null ? "-" : length.toFixed(2);
  find("hits").textContent = hitRate === null ? "-" : `${Math.round(100 * hitRate)} %`;
  find("speed").textContent = speed === null ? "-" : speed.toFixed(0);
  find("load").textContent = `${stats.running}, ${stats.waiting}`;
}

function planOf(round) {
  if (round.mode === "ar") return "";
  const parts = [`K ${round.num_draft}`];
  if (round.mode === "ssd") parts.push(`W ${round.num_branches}`, `fallback ${round.fallback}`);
  return [...parts, `drafter ${round.drafter}`].join(", ");
}

async function watch() {
  let isBusy = false;
  let pause = 0;
  if (!document.hidden) { // nobody watches a hidden page: it asks for nothing
    try {
      isBusy = await look();
    } catch (error) {
      find("state").textContent = error instanceof TypeError ? "no answer from the server"
        : error.message; // fetch itself knows only that nothing came
      pause = 2000;
    }
  }
  setTimeout(watch, pause || (isBusy && !calm.matches ? 250 : 1000));
}

startChat();
watch();
