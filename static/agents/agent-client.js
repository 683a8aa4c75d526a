/**
 * The browser's half of the socket protocol (docs/protocol.md, version 1): one actor, one connection that comes
 * back by itself, every message once and in order.
 *
 *     import { AgentClient } from "./agent-client.js";
 *
 *     const client = new AgentClient({ kind: "support", name: "+15550001111" });
 *     client.on("message", (message) => show(message));
 *     client.on("delta", ({ stream, text }) => showSoFar(stream, text));
 *     await client.say("Where is my order?");
 *
 * No dependency, no build step; types are in agent-client.d.ts. Everything the server numbers is kept in order by
 * its cursor, and the cursor is what the client resumes from: it does not matter how a connection ended. What is
 * said without a connection waits and is sent with the id it got, which the server takes once.
 */

const PROTOCOL = 1;

// All times in milliseconds.
const ESTABLISH = 20_000; // from opening a socket to the server's "attached"
const PING_ANSWER = 10_000; // a ping without any frame behind it: the link is dead
const PROBE_ANSWER = 4_000; // the same, when there is a reason to doubt the link
const STABLE = 10_000; // a connection that lived this long starts the pauses anew
const SEEN_EVERY = 1_000;

// The server is 256 events or 1 MiB ahead of what was seen: told well before that.
const SEEN_EVENTS = 64;
const SEEN_CHARACTERS = 128 * 1024;

const MAX_FRAME_BYTES = 1024 * 1024;
// The server closes at 256 frames or 1 MiB that wait for it; after a long absence there may be more than that.
const IN_FLIGHT = 32;
const IN_FLIGHT_BYTES = 512 * 1024;

// Streams that ended, remembered so that a late frame does not start them again.
const STREAMS_KEPT = 200;

const NORMAL = 1000;
const ABNORMAL = 1006; // what a browser says of a link that just ended
const TOO_BIG = 1009;
const UNAUTHORIZED = 4401;
const FINAL = { 4403: "denied", 4404: "not_found" };
const TOKENS_REFUSED = 3; // in a row, before the client gives up

// By close code: the first pause and the longest. They double, and each is cut by up to a half at random.
const PAUSES = { 1001: [400, 30_000], 1011: [2_000, 60_000], 1013: [5_000, 120_000] };
const PAUSE = [500, 30_000];

const KINDS = [
  "message",
  "state",
  "delta",
  "event",
  "broadcast",
  "status",
  "connection",
  "gap",
  "reset",
  "error",
];

/** What a call, a say or a stop failed with; `code` is stable (docs/errors.md, and the client's own below). */
export class AgentError extends Error {
  /**
   * The client's own codes: `timeout`, `offline`, `connection_lost` (nobody knows whether it was done),
   * `too_large`, `closed`, and `denied`, `not_found`, `unauthorized` once the server has refused for good.
   */
  constructor(code, message, turn) {
    super(message);
    this.name = "AgentError";
    this.code = code;
    this.turn = turn;
  }
}

export class AgentClient {
  #url;
  #token;
  #askToken;
  #tokensRefused = 0;
  #streams;
  #Socket;
  #heartbeat;
  #callTimeout;
  #listeners = new Map(KINDS.map((kind) => [kind, new Set()]));

  #socket = null;
  #attached = false;
  #attachedAt = 0;
  #failures = 0;
  #connection = { state: "closed" };
  #ended = null; // why the client will not connect again: an AgentError
  #generation = 0; // tells what belongs to a socket that was given up

  #timers = new Map(); // establish, retry, beat, doubt, seen
  #heardAt = 0;

  #cursor;
  #seq;
  #state;
  #status = "";
  #texts = new Map(); // stream -> {text, index, whole, ended}

  #outbox = new Map(); // id -> what was said or called and not answered, in order
  #stops = new Map();
  #seenCursor = 0;
  #seenAt = 0;
  #unseenEvents = 0;
  #unseenCharacters = 0;

  constructor({
    kind,
    name,
    url,
    token,
    cursor,
    seq = 0,
    streams,
    heartbeat = 20_000,
    callTimeout = 30_000,
    connect = true,
    WebSocket: Socket = globalThis.WebSocket,
  }) {
    if (typeof kind !== "string" || !kind) throw new TypeError("kind: which agent, such as \"support\"");
    if (!Socket) throw new TypeError("there is no WebSocket here: give the class as the option WebSocket");
    this.kind = kind;
    this.name = name;
    this.#url = socketUrl(url, kind, name);
    this.#askToken = typeof token === "function" ? token : null;
    this.#token = typeof token === "function" ? undefined : token;
    this.#cursor = cursor;
    this.#seq = seq;
    this.#streams = streams;
    this.#heartbeat = heartbeat;
    this.#callTimeout = callTimeout;
    this.#Socket = Socket;
    if (connect) this.connect();
  }

  /** The last event the client has; give it to the next client to resume. `undefined` before the first answer. */
  get cursor() {
    return this.#cursor;
  }

  /** The number of the newest message. */
  get seq() {
    return this.#seq;
  }

  /** The actor's state as far as it is known; `undefined` unless its class shares it. Not to be changed. */
  get state() {
    return this.#state;
  }

  /** The transient mark, such as "thinking"; empty for none. */
  get status() {
    return this.#status;
  }

  /** `{ state: "connecting" | "open" | "waiting" | "closed", code?, reason?, retryAt? }` */
  get connection() {
    return this.#connection;
  }

  /** Calls `listener` for everything of this kind from now on. Returns the function that ends it. */
  on(kind, listener) {
    const listeners = this.#listeners.get(kind);
    if (!listeners) throw new TypeError(`there is no "${kind}" to listen for, only ${KINDS.join(", ")}`);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }

  /** Connects, if it is not connected: after `connect: false`, or at once instead of after the pause. */
  connect() {
    if (this.#ended?.code === "closed") throw this.#ended;
    if (this.#ended) {
      // Given up, perhaps for its tokens: the last of them was refused, and all tries are used up.
      this.#tokensRefused = 0;
      if (this.#askToken) this.#token = undefined;
    }
    this.#ended = null;
    if (this.#socket || this.#connection.state === "connecting") return;
    this.#watchPage(true);
    this.#open();
  }

  /**
   * Says something to the agent. Resolves with `{ id, duplicate }` when it is safe in the actor's inbox, which may
   * be after many reconnections. The same `id` twice is one message.
   */
  say(text, { id = makeId(), metadata } = {}) {
    if (typeof text !== "string") return Promise.reject(new TypeError("say takes a text"));
    const said = { kind: "say", id, text, ...(metadata === undefined ? {} : { metadata }) };
    return this.#post(said).then((ack) => ({ id, duplicate: Boolean(ack.duplicate) }));
  }

  /** Calls an exposed method; resolves with what it returns, rejects with an AgentError. */
  call(method, ...args) {
    return this.callWith(method, { args });
  }

  /** As `call`, with named arguments and a time-out of its own (milliseconds). */
  callWith(method, { args = [], kwargs, timeout = this.#callTimeout } = {}) {
    const call = { kind: "call", id: makeId(), method, args, ...(kwargs ? { kwargs } : {}) };
    return this.#post(call, timeout).then((result) => result.value);
  }

  /**
   * Asks the running turn to stop (only `turn`, if given). Resolves with whether there was one. Never kept for
   * later: without a connection it rejects with the code `offline`.
   */
  stop(turn, { timeout = PING_ANSWER } = {}) {
    if (!this.#attached) return Promise.reject(new AgentError("offline", "there is no connection to stop over"));
    const id = makeId();
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#stops.delete(id);
        reject(new AgentError("timeout", "the stop was not answered"));
      }, timeout);
      this.#stops.set(id, { resolve, reject, timer });
      this.#send({ kind: "stop", id, ...(turn ? { turn } : {}) });
    });
  }

  /** Ends the connection for good. What was said and not taken yet rejects with the code `closed`. */
  close() {
    this.#end(new AgentError("closed", "the client was closed"), NORMAL);
  }

  // The connection

  async #open() {
    this.#clear("retry");
    const generation = ++this.#generation;
    this.#tell({ state: "connecting" });
    this.#after("establish", ESTABLISH, () => this.#lost(ABNORMAL, "no answer"));
    if (this.#askToken && this.#token === undefined) {
      try {
        this.#token = await this.#askToken();
      } catch (error) {
        if (generation === this.#generation) this.#lost(ABNORMAL, `no token: ${error?.message ?? error}`);
        return;
      }
      if (generation !== this.#generation) return;
    }
    let socket;
    try {
      socket = new this.#Socket(this.#url);
    } catch (error) {
      this.#lost(ABNORMAL, String(error?.message ?? error));
      return;
    }
    this.#socket = socket;
    const current = (handler) => (event) => {
      if (this.#socket === socket) handler(event);
    };
    socket.onopen = current(() => this.#attach());
    socket.onmessage = current(({ data }) => {
      this.#heardAt = Date.now();
      this.#clear("doubt");
      this.#receive(data);
    });
    socket.onclose = current(({ code, reason }) => this.#lost(code, reason));
    socket.onerror = () => {}; // the close that follows says what there is to say
  }

  #attach() {
    this.#send({
      kind: "attach",
      ...(this.#token === undefined ? {} : { token: this.#token }),
      ...(this.#cursor === undefined ? {} : { cursor: this.#cursor }),
      ...(this.#streams ? { streams: this.#streams } : {}),
    });
  }

  /** The link is gone, or as good as gone: forget the socket and come back after a pause, unless that is final. */
  #lost(code = ABNORMAL, reason = "") {
    const lived = this.#attached ? Date.now() - this.#attachedAt : 0;
    this.#drop();
    if (lived >= STABLE) this.#failures = 0;
    this.#interrupted(code);
    if (FINAL[code]) {
      this.#end(new AgentError(FINAL[code], reason || `the server refused (${code})`), code);
      return;
    }
    if (code === UNAUTHORIZED) {
      this.#tokensRefused += 1;
      if (!this.#askToken || this.#tokensRefused >= TOKENS_REFUSED) {
        this.#end(new AgentError("unauthorized", reason || "sign in again"), code);
        return;
      }
      this.#token = undefined;
    }
    const pause = code === UNAUTHORIZED && this.#tokensRefused === 1 ? 0 : retryPause(code, this.#failures);
    this.#failures += 1;
    this.#tell({ state: "waiting", code, reason, retryAt: Date.now() + pause });
    this.#after("retry", pause, () => this.#open());
  }

  /** Lets go of the socket; nothing that it still says is heard. */
  #drop() {
    this.#clear("establish", "retry", "beat", "doubt", "seen");
    this.#generation += 1;
    this.#attached = false;
    const socket = this.#socket;
    this.#socket = null;
    try {
      socket?.close(NORMAL);
    } catch {
      // A socket that never opened may refuse; it is not heard any more.
    }
  }

  #end(error, code) {
    if (this.#ended?.code === "closed") return;
    this.#ended = error;
    this.#drop();
    this.#watchPage(false);
    const waiting = [...this.#outbox.values(), ...this.#stops.values()];
    this.#outbox.clear();
    this.#stops.clear();
    for (const { reject, timer } of waiting) {
      clearTimeout(timer);
      reject(error);
    }
    this.#setStatus("");
    this.#tell({ state: "closed", code, reason: error.code });
  }

  /** What was under way when the connection ended: said again later, or nobody knows what became of it. */
  #interrupted(code) {
    for (const { reject, timer } of this.#stops.values()) {
      clearTimeout(timer);
      reject(new AgentError("connection_lost", "the connection ended before the stop was answered"));
    }
    this.#stops.clear();
    const sent = [...this.#outbox.values()].filter((post) => post.sent);
    if (code === TOO_BIG && sent.length) {
      const largest = sent.reduce((a, b) => (b.bytes > a.bytes ? b : a));
      this.#settle(largest.id, (post) => post.reject(new AgentError("too_large", "the server takes no frame so big")));
    }
    for (const post of sent) {
      post.sent = false;
      if (post.once) {
        const error = new AgentError("connection_lost", "the connection ended before the answer came");
        this.#settle(post.id, () => post.reject(error));
      }
    }
    this.#setStatus("");
  }

  #tell(connection) {
    this.#connection = connection;
    this.#emit("connection", connection);
  }

  // A link that is dead and does not say so

  #beat = () => {
    if (Date.now() - this.#heardAt >= this.#heartbeat) this.#probe(PING_ANSWER);
    this.#after("beat", this.#heartbeat, this.#beat);
  };

  #probe(patience) {
    if (!this.#attached || this.#timers.has("doubt")) return;
    this.#send({ kind: "ping" });
    this.#after("doubt", patience, () => this.#lost(ABNORMAL, "no answer to a ping"));
  }

  /** The page was asleep, or the network changed: no need to wait for a timer to find out. */
  #woken = () => {
    if (globalThis.document?.visibilityState === "hidden") return;
    if (this.#timers.has("retry")) this.#open();
    else this.#probe(PROBE_ANSWER);
  };

  #doubted = () => this.#probe(PROBE_ANSWER);

  #watchPage(on) {
    const change = on ? "addEventListener" : "removeEventListener";
    const page = globalThis.document;
    if (page?.[change]) for (const event of ["visibilitychange", "resume"]) page[change](event, this.#woken);
    if (typeof globalThis.window?.[change] !== "function") return;
    for (const event of ["online", "pageshow", "focus"]) globalThis.window[change](event, this.#woken);
    globalThis.window[change]("offline", this.#doubted);
  }

  // What comes in

  #receive(data) {
    let frame;
    try {
      frame = JSON.parse(data);
    } catch {
      return; // not of this protocol: a class that speaks raw frames
    }
    if (frame === null || typeof frame !== "object") return;
    const handler = this.#handlers[frame.kind];
    if (handler) handler(frame, typeof data === "string" ? data.length : 0);
  }

  #handlers = {
    hello: () => {},
    attached: (frame) => this.#onAttached(frame),
    message: (frame, size) =>
      this.#numbered(frame, size, () => this.#onMessage(frame.message, { cursor: frame.cursor, snapshot: false })),
    state: (frame, size) => this.#numbered(frame, size, () => this.#onState(frame)),
    event: ({ cursor, type, payload }, size) =>
      this.#numbered({ cursor }, size, () => this.#emit("event", { type, payload, cursor })),
    broadcast: (frame, size) => this.#onBroadcast(frame, size),
    delta: (frame) => this.#onDelta(frame),
    status: ({ status, turn }) => this.#setStatus(status ?? "", turn),
    ack: (frame) => this.#onAck(frame),
    result: (frame) => this.#settle(frame.id, (post) => post.resolve(frame)),
    error: (frame) => this.#onError(frame),
    pong: () => {},
  };

  #onAttached({ cursor, snapshot }) {
    this.#clear("establish");
    this.#attached = true;
    this.#attachedAt = this.#heardAt = Date.now();
    this.#tokensRefused = 0;
    const newest = snapshot?.messages?.at(-1)?.seq;
    if (cursor < this.#cursor || newest < this.#seq) {
      // Shorter than what we have: the actor was erased, or its database restored. What was shown is void.
      this.#forgetTexts();
      this.#seq = 0;
      this.#state = undefined;
      this.#cursor = undefined;
      this.#emit("reset", {});
      if (!snapshot) {
        this.#attach();
        return;
      }
    }
    this.#forgetTexts();
    this.#cursor = this.#seenCursor = cursor;
    this.#unseenEvents = this.#unseenCharacters = 0;
    if (snapshot) this.#onSnapshot(snapshot, cursor);
    this.#after("beat", this.#heartbeat, this.#beat);
    this.#tell({ state: "open" });
    this.#flush();
  }

  #onSnapshot({ messages, state }, cursor) {
    if (messages?.length) {
      // Messages between ours and the oldest of these were not sent; whoever shows a log says so there.
      const before = messages[0].seq;
      if (this.#seq && before > this.#seq + 1) this.#emit("gap", { after: this.#seq, before });
      for (const message of messages) this.#onMessage(message, { cursor, snapshot: true });
    }
    if (state !== undefined) {
      this.#state = state;
      this.#emit("state", state, { cursor });
    }
  }

  /** Events in the order of their numbers, each once. */
  #numbered({ cursor }, size, then) {
    if (this.#cursor !== undefined && cursor <= this.#cursor) return;
    this.#cursor = cursor;
    then();
    this.#seen(size);
  }

  #onMessage(message, facts) {
    if (message.seq <= this.#seq) return;
    this.#seq = message.seq;
    const stream = message.metadata?.stream;
    if (stream) this.#endStream(stream);
    this.#emit("message", message, stream ? { ...facts, stream } : facts);
  }

  #onState({ cursor, patch, snapshot }) {
    if (snapshot !== undefined) this.#state = snapshot;
    else this.#state = mergePatch(this.#state, patch);
    this.#emit("state", this.#state, snapshot === undefined ? { cursor, patch } : { cursor });
  }

  #onBroadcast({ cursor, data, base64 }, size) {
    const value = base64 === undefined ? data : bytesOf(base64);
    if (cursor === undefined || cursor === null) this.#emit("broadcast", value, {});
    else this.#numbered({ cursor }, size, () => this.#emit("broadcast", value, { cursor }));
  }

  #onDelta({ stream, index, text = "", reset = false, done = false }) {
    let known = this.#texts.get(stream);
    if (known?.ended) return; // it is a message already
    if (reset && done && !text) {
      this.#discard(stream); // it ended without a message
      return;
    }
    if (!known || reset) {
      // Who comes in the middle gets the text so far as a reset; without one, the beginning is missing.
      known = { text: "", index: index - 1, whole: reset || index === 0, ended: false };
      this.#texts.set(stream, known);
      this.#forgetStreams();
    }
    if (index <= known.index) return;
    if (index > known.index + 1) known.whole = false;
    known.index = index;
    known.text += text;
    this.#emit("delta", { stream, index, text: known.text, added: text, reset, done, whole: known.whole });
  }

  /** The server gives those in progress whole after "attached"; the others ended while we were away. */
  #forgetTexts() {
    for (const [stream, { ended }] of [...this.#texts]) if (!ended) this.#discard(stream);
  }

  #discard(stream) {
    if (!this.#texts.delete(stream)) return;
    this.#emit("delta", { stream, index: 0, text: "", added: "", reset: true, done: true, whole: true });
  }

  #endStream(stream) {
    this.#texts.delete(stream);
    this.#texts.set(stream, { ended: true });
    this.#forgetStreams();
  }

  #forgetStreams() {
    for (const stream of this.#texts.keys()) {
      if (this.#texts.size <= STREAMS_KEPT) break;
      this.#texts.delete(stream);
    }
  }

  #setStatus(status, turn) {
    if (status === this.#status && !status) return;
    this.#status = status;
    this.#emit("status", status, { turn });
  }

  #onAck(frame) {
    const stop = this.#stops.get(frame.id);
    if (stop) {
      this.#stops.delete(frame.id);
      clearTimeout(stop.timer);
      stop.resolve(Boolean(frame.stopped));
    } else {
      this.#settle(frame.id, (post) => post.resolve(frame));
    }
  }

  #onError({ id, code, message, turn }) {
    const error = new AgentError(code, message, turn);
    const stop = this.#stops.get(id);
    if (stop) {
      this.#stops.delete(id);
      clearTimeout(stop.timer);
      stop.reject(error);
    } else if (!this.#settle(id, (post) => post.reject(error))) {
      this.#emit("error", error);
    }
  }

  // What goes out

  #send(frame) {
    this.#sendText(JSON.stringify({ v: PROTOCOL, ...frame }));
  }

  #sendText(text) {
    if (this.#socket?.readyState === 1) this.#socket.send(text);
  }

  /** A frame that has an answer. Without `timeout` it may be sent again until it has one. */
  #post(frame, timeout) {
    if (this.#ended) return Promise.reject(this.#ended);
    const { id } = frame;
    const earlier = this.#outbox.get(id);
    if (earlier) return earlier.promise;
    const text = JSON.stringify({ v: PROTOCOL, ...frame });
    const bytes = sizeOf(text);
    if (bytes > MAX_FRAME_BYTES) {
      return Promise.reject(new AgentError("too_large", `a frame may have 1 MiB, this one has ${bytes} bytes`));
    }
    const post = { id, text, bytes, sent: false, once: timeout !== undefined, timer: undefined };
    post.promise = new Promise((resolve, reject) => Object.assign(post, { resolve, reject }));
    if (timeout !== undefined) {
      const late = new AgentError("timeout", `${frame.method} was not answered within ${timeout} ms`);
      post.timer = setTimeout(() => this.#settle(id, () => post.reject(late)), timeout);
    }
    this.#outbox.set(id, post);
    this.#flush();
    return post.promise;
  }

  #settle(id, then) {
    const post = this.#outbox.get(id);
    if (!post) return false;
    this.#outbox.delete(id);
    clearTimeout(post.timer);
    then(post);
    this.#flush();
    return true;
  }

  /** Sends what waits, in order, as much as the server lets wait on its side. */
  #flush() {
    if (!this.#attached) return;
    let frames = 0;
    let bytes = 0;
    for (const post of this.#outbox.values()) {
      frames += 1;
      bytes += post.bytes;
      if (frames > IN_FLIGHT || (frames > 1 && bytes > IN_FLIGHT_BYTES)) return;
      if (post.sent) continue;
      post.sent = true;
      this.#sendText(post.text);
    }
  }

  /** Tells the server how far we are, not more often than it needs to know. */
  #seen(size) {
    this.#unseenEvents += 1;
    this.#unseenCharacters += size;
    const urgent = this.#unseenEvents >= SEEN_EVENTS || this.#unseenCharacters >= SEEN_CHARACTERS;
    const due = this.#seenAt + SEEN_EVERY - Date.now();
    // Not a timer alone: those of a page in the background may come a minute late.
    if (urgent || due <= 0) this.#sendSeen();
    else if (!this.#timers.has("seen")) this.#after("seen", due, () => this.#sendSeen());
  }

  #sendSeen() {
    this.#clear("seen");
    if (!this.#attached || this.#cursor === this.#seenCursor) return;
    this.#seenAt = Date.now();
    this.#seenCursor = this.#cursor;
    this.#unseenEvents = this.#unseenCharacters = 0;
    this.#send({ kind: "seen", cursor: this.#cursor });
  }

  // Small things

  #after(timer, pause, then) {
    clearTimeout(this.#timers.get(timer));
    this.#timers.set(
      timer,
      setTimeout(() => {
        this.#timers.delete(timer);
        then();
      }, pause),
    );
  }

  #clear(...timers) {
    for (const timer of timers) {
      clearTimeout(this.#timers.get(timer));
      this.#timers.delete(timer);
    }
  }

  #emit(kind, ...values) {
    for (const listener of [...this.#listeners.get(kind)]) {
      try {
        listener(...values);
      } catch (error) {
        // A listener's mistake is its own: the others, and the cursor, go on.
        setTimeout(() => {
          throw error;
        }, 0);
      }
    }
  }
}

/** An id for something said: 128 random bits. (`crypto.randomUUID` is there only on secure pages.) */
export function makeId() {
  const bytes = globalThis.crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** How long to wait before the next connection, by the close code of the last and how many failed in a row. */
export function retryPause(code, failures, random = Math.random) {
  const [first, longest] = PAUSES[code] ?? PAUSE;
  return Math.min(first * 2 ** Math.min(failures, 30), longest) * (0.5 + random() / 2);
}

/** An actor's name as URLs carry it: `agents.names.escape_name`. Throws TypeError for what is no name. */
export function escapeName(name) {
  const characters = typeof name === "string" ? [...name] : [];
  if (!characters.length || characters.length > 255) {
    throw new TypeError("name: an actor's name has 1 to 255 characters");
  }
  return characters
    .map((character, index) => {
      if (/[A-Za-z0-9_-]/.test(character) || (character === "." && index > 0)) return character;
      if (/[\0\ud800-\udfff]/u.test(character)) throw new TypeError("name: no U+0000, no half of a character");
      const bytes = new TextEncoder().encode(character);
      return Array.from(bytes, (byte) => `~${byte.toString(16).toUpperCase().padStart(2, "0")}`).join("");
    })
    .join("");
}

/** A JSON merge patch (RFC 7396): a new value, what the patch leaves alone is shared with the old one. */
export function mergePatch(target, patch) {
  if (!isObject(patch)) return patch;
  const merged = {};
  if (isObject(target)) for (const key of Object.keys(target)) put(merged, key, target[key]);
  for (const key of Object.keys(patch)) {
    if (patch[key] === null) delete merged[key];
    else put(merged, key, mergePatch(Object.hasOwn(merged, key) ? merged[key] : undefined, patch[key]));
  }
  return merged;
}

// "__proto__" is a key like any other in JSON, and only there.
function put(object, key, value) {
  Object.defineProperty(object, key, { value, enumerable: true, configurable: true, writable: true });
}

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

function sizeOf(text) {
  // A UTF-16 unit takes at most three bytes: most texts need no counting.
  return text.length * 3 <= MAX_FRAME_BYTES ? text.length : new TextEncoder().encode(text).length;
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

function socketUrl(url, kind, name) {
  const site = new URL(url ?? "/", globalThis.location?.href);
  site.protocol = site.protocol.replace(/^http/, "ws");
  site.pathname = `${site.pathname.replace(/\/+$/, "")}/ws/agents/${encodeURIComponent(kind)}/${escapeName(name)}/`;
  site.search = site.hash = "";
  return site.href;
}
