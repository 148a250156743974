// The chat: answers stream in from /v1/chat/completions. What a model says is never markup here:
// all of it goes through text nodes.

const find = (id) => document.getElementById(id);
const messages = []; // of the conversation, as the API takes them
let running = null; // the AbortController of the answer on its way

export function startChat() {
  find("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!running) send();
  });
  find("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    find("form").requestSubmit();
  });
  find("stop").addEventListener("click", () => running?.abort());
  find("clear").addEventListener("click", () => {
    running?.abort();
    end();
    messages.length = 0;
    find("said").replaceChildren();
    complain("");
    find("prompt").focus();
  });
  learnLimits();
}

// Also finds out whether a key is asked for, before anything is typed for nothing.
async function learnLimits() {
  try {
    const response = await fetch("v1/models", { headers: headers() });
    if (response.status === 401) find("key-label").hidden = false;
    if (!response.ok) return;
    const most = (await response.json()).data[0].max_model_len, field = find("max-tokens");
    field.max = most;
    field.value = Math.min(field.value, most >> 1); // leaves room for what is asked
  } catch { /* the line on the engines says that the server does not answer */ }
}

export function headers() {
  const key = find("key").value; // held by the field alone
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function send() {
  const content = find("prompt").value;
  if (!content.trim()) return;
  const control = new AbortController();
  const question = { role: "user", content }, answer = { role: "assistant", content: "" };
  const asked = bubble(question), told = bubble(answer);
  begin(control);
  try {
    const ending = await stream([...messages, question], answer, told, control.signal);
    if (running === control) keep(question, answer, ending);
  } catch (error) {
    if (running !== control) return; // cleared meanwhile
    if (answer.content) keep(question, answer, control.signal.aborted ? "stopped" : "broken off");
    else { // nothing was answered, so nothing was asked
      asked.remove();
      told.remove();
      find("prompt").value = content;
    }
    if (!control.signal.aborted) complain(error.message);
  } finally {
    if (running === control) end();
  }
}

async function stream(conversation, answer, told, signal) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify({
      messages: conversation,
      stream: true,
      stream_options: { include_usage: true },
      temperature: find("temperature").valueAsNumber,
      max_tokens: find("max-tokens").valueAsNumber,
    }),
  });
  if (!response.ok) {
    if (response.status === 401) find("key-label").hidden = false;
    const { error } = await response.json().catch(() => ({}));
    throw new Error(error?.message ?? `the server answered with status ${response.status}`);
  }
  const shown = told.appendChild(document.createTextNode(""));
  let firstAt = 0, reason = "", usage = null;
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    usage = event.usage ?? usage;
    const [choice] = event.choices;
    reason = choice?.finish_reason ?? reason;
    const piece = choice?.delta?.content ?? "";
    if (!piece) continue;
    firstAt ||= performance.now();
    answer.content += piece;
    follow(() => shown.appendData(piece));
  }
  const seconds = (performance.now() - firstAt) / 1000, num = usage?.completion_tokens ?? 0;
  const speed = num > 1 ? `, ${(num / seconds).toFixed(0)} tokens/s` : "";
  return `${num} tokens${speed}${reason === "stop" ? "" : `, ended by ${reason}`}`;
}

// Server-sent events as this server writes them: one line of data each.
async function* events(response) {
  let rest = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the server broke the answer off");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.slice("data: ".length);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

function keep(question, answer, ending) {
  messages.push(question, answer);
  const note = document.createElement("p");
  note.className = "note";
  note.textContent = ending;
  follow(() => find("said").append(note));
}

function bubble({ role, content }) {
  const made = document.createElement("div"), who = document.createElement("span");
  made.className = `turn ${role}`;
  who.className = "unseen";
  who.textContent = role === "user" ? "You: " : "Model: ";
  made.append(who, content);
  find("said").append(made);
  find("said").scrollTop = find("said").scrollHeight;
  return made;
}

// Keeps the end in view, unless somebody has scrolled back to read.
function follow(change) {
  const place = find("said");
  const isAtEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 40;
  change();
  if (isAtEnd) place.scrollTop = place.scrollHeight;
}

function begin(control) {
  running = control;
  complain("");
  find("prompt").value = "";
  find("said").setAttribute("aria-busy", "true"); // read out when it is complete
  find("send").hidden = true;
  find("stop").hidden = false;
}

function end() {
  running = null;
  if (document.activeElement === find("stop")) find("prompt").focus(); // it is about to go
  find("said").setAttribute("aria-busy", "false");
  find("send").hidden = false;
  find("stop").hidden = true;
}

function complain(words) {
  find("error").textContent = words;
  find("error").hidden = !words;
}
