/**
 * The chat page (templates/conversations/chat.html), live: what the server rendered stays, everything behind it
 * comes over the socket. What the person says is shown at once and kept in this tab until the server has it: it
 * survives a bad network and a reload, and is said again with the same id.
 */

import { AgentClient, makeId } from "../agents/agent-client.js";
import { element, localise, messageElement, pendingElement, streamElement } from "./chat-log.js";

const BANNER_AFTER = 800; // milliseconds without a connection before the page says so
const PAGES = 40; // of what was missed, loaded without being asked for
const NEAR = 80; // pixels from the end that still count as being there

// Why something was not sent, by the error's code; for the others the server's own words do.
const REASONS = {
  too_large: "it is too long.",
  limit_exceeded: "it is too long.",
  inbox_full: "too much waits for this agent. Try again later.",
  unauthorized: "you are signed out.",
  denied: "you may not write here.",
  not_found: "there is no such agent any more.",
};

const $ = (id) => document.getElementById(id);
const { kind, name, cursor, seq } = $("chat").dataset;
const log = $("log");
const coming = $("coming");
const scroll = $("scroll");
const form = $("say");
const input = $("text");
const stop = $("stop");

const tools = new Map(); // names of tool calls by their id
const pending = new Map(); // what was said and is not in the log: id -> {id, text, state, item}
const streams = new Map(); // stream -> its element
const KEPT = `chat ${kind}/${name}`;

const client = new AgentClient({ kind, name, cursor: Number(cursor), seq: Number(seq) });

// The log

client.on("message", (message, { stream }) => {
  const item = messageElement(message, tools);
  localise(item);
  settle(message);
  endStream(stream);
  log.append(item);
  if (message.parts) showParts(message.seq, item);
  if (message.role === "assistant" && !message.tool_calls?.length) showStatus("");
  $("empty").hidden = true;
  arrived();
});

client.on("gap", ({ after, before }) => {
  const title = `Messages ${after + 1} to ${before - 1} are not shown`;
  const place = element("li", { class: "chat-more" }, element("a", { href: "" }, title));
  log.append(place);
  fill(place, after, before);
});

/** After a very long absence: the messages between two numbers, from the newest page back. */
async function fill(place, after, before) {
  try {
    for (let page = 0; page < PAGES && before > after + 1; page++) {
      const items = [...(await older(`?before=${before}`)).querySelectorAll("#log > li")];
      const missed = items.filter((item) => Number(item.dataset.seq) > after);
      if (!place.isConnected) return; // the log is another one by now
      place.after(...missed.map((item) => document.adoptNode(item)));
      before = missed.length < items.length ? after + 1 : Number(missed[0].dataset.seq);
    }
    if (before <= after + 1) place.remove();
  } catch {
    // The link stays: it loads the page again.
  }
}

/** A page of older messages, as the server renders it; throws where there is none. */
async function older(address) {
  const answer = await fetch(address);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (!answer.ok || !page.querySelector("#log > li")) throw new Error("not a page of the log");
  localise(page);
  return page;
}

client.on("reset", () => {
  log.replaceChildren();
  for (const stream of [...streams.keys()]) endStream(stream);
  $("earlier")?.remove();
  $("empty").hidden = false;
});

/** Pictures, files and reasoning have many shapes: the server knows them all and renders the message. */
async function showParts(number, item) {
  try {
    const answer = await fetch(`?message=${number}`, { headers: { Accept: "text/html" } });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const rendered = page.querySelector("li.chat-message");
    if (!rendered) return;
    localise(rendered);
    item.replaceWith(document.adoptNode(rendered));
  } catch {
    // Its text is shown; the rest comes when the page is loaded again.
  }
}

// Replies that are being written

client.on("delta", ({ stream, text, reset, done }) => {
  if (reset && done && !text) {
    endStream(stream);
    return;
  }
  let item = streams.get(stream);
  if (!item) {
    item = streamElement(stream);
    streams.set(stream, item);
    coming.insertBefore(item, coming.querySelector("[data-pending]"));
    $("empty").hidden = true;
  }
  item.querySelector(".chat-text").textContent = text;
  if (done) item.removeAttribute("aria-busy");
  showRunning();
});

function endStream(stream) {
  streams.get(stream)?.remove();
  streams.delete(stream);
  showRunning();
}

client.on("status", showStatus);

function showStatus(status) {
  $("status").textContent = status ? `${status} …` : "";
  $("status").dataset.running = status;
  showRunning();
}

/** There is something to stop while a reply is being written, or the agent says what it does. */
function showRunning() {
  if (!stop) return;
  const running = Boolean($("status").dataset.running) || [...streams.values()].some((item) => item.ariaBusy === "true");
  if (!running && document.activeElement === stop) input.focus();
  stop.hidden = !running;
  if (!running) stopping(false);
}

function stopping(yes) {
  stop.disabled = yes;
  stop.textContent = yes ? "Stopping …" : "Stop";
}

async function stopTurn() {
  if (!stop || stop.hidden || stop.disabled) return; // an agent that hears nothing has no such button
  stopping(true);
  try {
    if (!(await client.stop())) {
      // What the page took for running has ended meanwhile.
      showStatus("");
      stopping(false);
    }
  } catch (error) {
    stopping(false);
    $("status").textContent = `Not stopped: ${error.message}`;
  }
}

// What the person says

function say(said) {
  show(said);
  showState(said, "pending");
  client.say(said.text, { id: said.id }).then(
    () => pending.has(said.id) && showState(said, "delivered"),
    (error) => pending.has(said.id) && showState(said, "failed", REASONS[error.code] ?? error.message),
  );
}

function show(said) {
  pending.set(said.id, said);
  if (said.item) return;
  said.item = pendingElement(said);
  coming.append(said.item);
  $("empty").hidden = true;
}

function showState(said, state, reason) {
  said.state = state;
  said.reason = reason;
  said.item.dataset.state = state;
  const line = said.item.querySelector(".chat-state");
  if (state !== "failed") {
    const sending = client.connection.state === "open" ? "Sending …" : "Waiting for the connection …";
    line.textContent = state === "delivered" ? "Delivered" : sending;
    line.removeAttribute("role");
  } else {
    line.setAttribute("role", "alert");
    const again = element("button", { type: "button", class: "chat-link" }, "Try again");
    again.addEventListener("click", () => {
      say(said);
      input.focus();
    });
    const discard = element("button", { type: "button", class: "chat-link" }, "Discard");
    discard.addEventListener("click", () => {
      forget(said);
      input.focus();
    });
    line.replaceChildren(`Not sent: ${reason} `, again, " ", discard);
  }
  keep();
}

/** A message of the log takes the place of what was said with its id. */
function settle({ role, content, metadata }) {
  if (role !== "user") return;
  // An agent that does not keep the id: what was delivered comes in order.
  const said = pending.get(metadata?.id) ?? [...pending.values()].find((one) => one.state === "delivered" && one.text === content);
  if (said) forget(said);
}

function forget(said) {
  pending.delete(said.id);
  said.item.remove();
  keep();
}

/** For a reload of this tab: the server takes the same id once. */
function keep() {
  try {
    const kept = [...pending.values()].map(({ id, text, state, reason }) => ({ id, text, state, reason }));
    if (kept.length) sessionStorage.setItem(KEPT, JSON.stringify(kept));
    else sessionStorage.removeItem(KEPT);
  } catch {
    // No room, or not allowed: then it lives as long as the page.
  }
}

function restore() {
  let kept = [];
  try {
    kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");
  } catch {
    return;
  }
  for (const { id, text, state, reason } of kept) {
    if (log.querySelector(`[data-id="${CSS.escape(id)}"]`)) continue;
    const said = { id, text };
    if (state === "failed") {
      show(said);
      showState(said, state, reason); // to try it again is the person's to decide
    } else {
      say(said);
    }
  }
  keep();
}

form?.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = input.value.trim();
  if (!text) return;
  form.querySelector(".chat-error")?.remove();
  say({ id: makeId(), text });
  input.value = "";
  fit();
  toEnd();
  input.focus();
});

input?.addEventListener("keydown", (event) => {
  // Enter sends, but not where it ends a word of an input method, nor on a phone, where it is the only new line.
  const plain = event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229;
  if (!plain || matchMedia("(pointer: coarse)").matches) return;
  event.preventDefault();
  form.requestSubmit();
});

input?.addEventListener("input", fit);

/** As high as its text, where the style sheet cannot say so (field-sizing). */
function fit() {
  if (CSS.supports("field-sizing", "content")) return;
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}

stop?.addEventListener("click", stopTurn);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing) stopTurn();
});

// The connection

let bannerTimer;

client.on("connection", (connection) => {
  for (const said of pending.values()) if (said.state === "pending") showState(said, "pending");
  $("connection").textContent = { open: "Connected", closed: "Not connected" }[connection.state] ?? "Connecting …";
  $("connection").dataset.state = connection.state;
  $("connection").hidden = false;
  if (connection.state === "open") {
    clearTimeout(bannerTimer);
    bannerTimer = undefined;
    $("banner").hidden = true;
    $("banner").replaceChildren();
  } else if (connection.state === "closed") {
    clearTimeout(bannerTimer);
    showBanner(connection);
  } else {
    bannerTimer ??= setTimeout(() => showBanner(client.connection), BANNER_AFTER);
  }
});

function showBanner({ state, reason }) {
  const banner = $("banner");
  banner.hidden = false;
  if (state !== "closed") {
    const now = element("button", { type: "button", class: "chat-link" }, "Try now");
    now.addEventListener("click", () => client.connect());
    banner.replaceChildren("No connection. What you write is kept and sent when it is back. ", now);
  } else if (reason === "unauthorized") {
    banner.replaceChildren("You are signed out. ", element("a", { href: "" }, "Sign in again"));
  } else {
    banner.replaceChildren(
      reason === "not_found" ? "There is no such agent any more." : "You may not see this conversation any more.",
    );
  }
}

// Where the reader is: the newest end is where a reversed column starts, and where it stays by itself.

function arrived() {
  if (-scroll.scrollTop > NEAR) $("jump").hidden = false;
}

function toEnd() {
  scroll.scrollTop = 0;
  $("jump").hidden = true;
}

$("jump").addEventListener("click", () => {
  toEnd();
  (input ?? scroll).focus();
});
scroll.addEventListener("scroll", () => {
  if (-scroll.scrollTop <= NEAR) $("jump").hidden = true;
});

$("earlier")?.addEventListener("click", async (event) => {
  event.preventDefault();
  const link = event.currentTarget;
  try {
    const page = await older(link.href);
    log.prepend(...[...page.querySelectorAll("#log > li")].map((item) => document.adoptNode(item)));
    const more = page.getElementById("earlier");
    if (more) link.href = more.href;
    else link.remove();
  } catch {
    location.assign(link.href);
  }
});

localise(document);
restore();
