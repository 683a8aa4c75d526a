/**
 * A transcript in the admin that goes on while it is read (templates/conversations/transcript.html). The socket
 * says that there is more; the server renders it, as it rendered what is there.
 */

import { AgentClient } from "../agents/agent-client.js";

const GATHER = 150; // milliseconds in which several messages are one look
const NEAR = 120; // pixels from the end of the page that still count as being there

const place = document.getElementById("content-main");
const log = place.querySelector(".agents-log");
const { kind, name, cursor, seq } = place.dataset;
const streams = new Map(); // stream -> its element
const badge = document.createElement("span");
let looking;

badge.className = "agents-badge";
badge.setAttribute("role", "status");
document.querySelector("#content h1 small")?.append(" ", badge);
log.setAttribute("role", "log");

const client = new AgentClient({ kind, name, cursor: Number(cursor), seq: Number(seq) });

client.on("connection", ({ state }) => {
  badge.textContent = { open: "live", closed: "not live" }[state] ?? "connecting …";
  badge.dataset.tone = state === "open" ? "good" : "";
});

client.on("message", (message, { stream }) => {
  looking ??= setTimeout(look, GATHER);
  if (stream) streams.get(stream)?.setAttribute("data-over", "");
});
client.on("gap", () => location.reload());
client.on("reset", () => location.reload());

client.on("delta", ({ stream, text, reset, done }) => {
  if (reset && done && !text) {
    streams.get(stream)?.remove();
    streams.delete(stream);
    return;
  }
  const stays = isAtEnd();
  if (!streams.has(stream)) {
    const item = document.createElement("li");
    item.className = "agents-message";
    item.dataset.role = "assistant";
    item.setAttribute("aria-live", "off"); // the message that it becomes is announced
    const words = document.createElement("div");
    words.className = "agents-text";
    words.dir = "auto";
    item.append(words);
    streams.set(stream, item);
    log.append(item);
  }
  streams.get(stream).firstChild.textContent = text;
  if (stays) toEnd();
});

/** Takes over what the newest page has and this one has not. */
async function look() {
  looking = undefined;
  try {
    const answer = await fetch(location.pathname);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const items = page.querySelectorAll(".agents-log > li.agents-message");
    if (!answer.ok || !items.length) return;
    const known = [...log.querySelectorAll(":scope > li[id]")].at(-1);
    if (known && numberOf(items[0]) > numberOf(known) + 1) {
      location.reload(); // more has come than a page holds
      return;
    }
    const stays = isAtEnd();
    log.querySelector(".agents-none")?.remove();
    const first = [...streams.values()].find((item) => item.isConnected) ?? null;
    for (const item of items) {
      const mine = document.getElementById(item.id);
      if (mine) freshen(mine, item);
      else log.insertBefore(document.adoptNode(item), first);
    }
    for (const [stream, item] of streams) {
      if (!item.hasAttribute("data-over")) continue;
      item.remove();
      streams.delete(stream);
    }
    const beside = page.querySelector(".agents-transcript > aside");
    const aside = place.querySelector("aside");
    // What somebody is typing there stays.
    const typing = [...(aside?.querySelectorAll("textarea") ?? [])].some((field) => field.value);
    if (beside && !typing && !aside?.contains(document.activeElement)) aside?.replaceWith(document.adoptNode(beside));
    if (stays) toEnd();
  } catch {
    // The site is away for a moment: the next message looks again.
  }
}

/** Turns that came behind a message that is shown already; one that is open stays so. */
function freshen(mine, fresh) {
  const turns = [...fresh.querySelectorAll(".agents-turn")].slice(mine.querySelectorAll(".agents-turn").length);
  if (!turns.length) return;
  let place = mine.querySelector(".agents-turns");
  if (!place) {
    place = document.createElement("div");
    place.className = "agents-turns";
    mine.append(place);
  }
  for (const turn of turns) place.append(document.adoptNode(turn));
}

function numberOf(item) {
  return Number(item.id.slice(1)); // "m17"
}

function isAtEnd() {
  const end = log.getBoundingClientRect().bottom;
  return end <= window.innerHeight + NEAR;
}

function toEnd() {
  log.lastElementChild?.scrollIntoView({ block: "end" });
}
