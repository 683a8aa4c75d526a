/** What the tests of agent-client.js stand on: the module, a socket that a test plays the server of, a clock. */

import { readFileSync } from "node:fs";
import { mock } from "node:test";

const file = new URL("../../static/agents/agent-client.js", import.meta.url);
// Not by its name: a Node before 20.19 takes a .js file outside of a package for CommonJS.
export const { AgentClient, AgentError, escapeName, makeId, mergePatch, retryPause } = await import(
  `data:text/javascript,${encodeURIComponent(readFileSync(file, "utf8"))}`
);

/** The client's end of a link. The test is the other end: it opens, says, hears and closes. */
export class Socket {
  static all = [];

  static get last() {
    return Socket.all.at(-1);
  }

  constructor(url) {
    this.url = url;
    this.readyState = 0;
    this.heard = []; // frames that the client sent
    this.closed = false;
    Socket.all.push(this);
  }

  send(text) {
    if (this.readyState !== 1) throw new Error("not open");
    this.heard.push(JSON.parse(text));
  }

  close() {
    this.closed = true;
    this.readyState = 3;
  }

  // The server's side

  open() {
    this.readyState = 1;
    this.onopen({});
  }

  say(...frames) {
    for (const frame of frames) this.onmessage({ data: JSON.stringify({ v: 1, ...frame }) });
  }

  raw(data) {
    this.onmessage({ data });
  }

  end(code, reason = "") {
    this.readyState = 3;
    this.onclose({ code, reason });
  }

  of(kind) {
    return this.heard.filter((frame) => frame.kind === kind);
  }

  /** Opens and answers the attach. */
  accept({ cursor = 0, snapshot } = {}) {
    this.open();
    this.say({ kind: "hello", actor: {}, connection: "c", cursor, protocol: 1 });
    this.say({ kind: "attached", cursor, ...(snapshot ? { snapshot } : {}) });
    return this;
  }
}

/** A clock that stands still until a test moves it. */
export function frozen() {
  Socket.all = [];
  mock.timers.reset();
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: 1_000_000 });
}

export const pass = (milliseconds) => mock.timers.tick(milliseconds);

/** Lets promises that are settled run what waits for them. */
export const settle = () => new Promise((resolve) => setImmediate(resolve));

export function client(options = {}) {
  const made = new AgentClient({
    kind: "support",
    name: "+15550001111",
    url: "http://site.test/",
    WebSocket: Socket,
    ...options,
  });
  return made;
}

/** A client that the server has let in, with what it emits noted down. */
export function attached(options = {}, answer = {}) {
  const made = client(options);
  const notes = listen(made);
  Socket.last.accept(answer);
  return [made, Socket.last, notes];
}

export function listen(made) {
  const notes = {};
  for (const kind of ["message", "state", "delta", "event", "broadcast", "status", "connection", "gap", "reset", "error"]) {
    notes[kind] = [];
    made.on(kind, (value) => notes[kind].push(value));
  }
  return notes;
}

export const message = (cursor, seq = cursor, more = {}) => ({
  kind: "message",
  cursor,
  message: { seq, role: "assistant", content: `m${seq}`, at: "2026-01-01T00:00:00Z", ...more },
});
