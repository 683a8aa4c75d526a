import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, mock, test } from "node:test";

import {
  AgentClient,
  Socket,
  attached,
  client,
  escapeName,
  frozen,
  listen,
  makeId,
  mergePatch,
  message,
  pass,
  retryPause,
  settle,
} from "./harness.mjs";

beforeEach(frozen);
afterEach(() => mock.timers.reset());

const contents = (notes) => notes.message.map(({ content }) => content);

describe("connecting", () => {
  test("the address has the actor's name in its escape, and never a token", () => {
    client({ name: "日本 +1", token: "secret" });
    assert.equal(Socket.last.url, "ws://site.test/ws/agents/support/~E6~97~A5~E6~9C~AC~20~2B1/");
    client({ url: "https://site.test/prefix/?q#f" });
    assert.equal(Socket.last.url, "wss://site.test/prefix/ws/agents/support/~2B15550001111/");
  });

  test("the first frame is attach, with what the client knows and nothing else", () => {
    client();
    Socket.last.open();
    assert.deepEqual(Socket.last.heard, [{ v: 1, kind: "attach" }]);
    client({ token: "t", cursor: 7, streams: ["messages"] });
    Socket.last.open();
    assert.deepEqual(Socket.last.heard, [
      { v: 1, kind: "attach", token: "t", cursor: 7, streams: ["messages"] },
    ]);
  });

  test("a name that is none is refused before anything is opened", () => {
    for (const name of ["", "a".repeat(256), "a\0", "\ud800", undefined, 5]) {
      assert.throws(() => client({ name }), TypeError);
    }
    assert.equal(Socket.all.length, 0);
    client({ name: "😀".repeat(255) });
  });

  test("a listener for what does not exist is a mistake that shows", () => {
    assert.throws(() => client().on("mesage", () => {}), /mesage/);
  });

  test("with connect: false nothing happens until connect()", () => {
    const made = client({ connect: false });
    assert.equal(Socket.all.length, 0);
    assert.equal(made.connection.state, "closed");
    made.connect();
    made.connect();
    assert.equal(Socket.all.length, 1);
  });

  test("a server that does not answer is given up and tried again", () => {
    const made = client();
    Socket.last.open();
    pass(20_000);
    assert.equal(made.connection.state, "waiting");
    assert.ok(Socket.all[0].closed);
    pass(500);
    assert.equal(Socket.all.length, 2);
  });
});

describe("messages", () => {
  test("come once and in the order of their cursors, whatever is sent twice", () => {
    const [made, socket, notes] = attached();
    socket.say(message(1), message(2), message(1), message(2), message(3), message(3));
    assert.deepEqual(contents(notes), ["m1", "m2", "m3"]);
    assert.equal(made.cursor, 3);
    assert.equal(made.seq, 3);
  });

  test("a connection that ended is resumed from the cursor, and nothing comes twice", () => {
    const [, first, notes] = attached();
    first.say(message(1), { kind: "event", cursor: 2, type: "x", payload: null });
    first.end(1006);
    pass(1_000);
    const second = Socket.last;
    assert.notEqual(first, second);
    second.open();
    assert.deepEqual(second.heard, [{ v: 1, kind: "attach", cursor: 2 }]);
    second.say({ kind: "hello", cursor: 4 }, { kind: "attached", cursor: 2 }, message(3, 2), message(4, 3));
    assert.deepEqual(contents(notes), ["m1", "m2", "m3"]);
    assert.equal(notes.gap.length, 0);
  });

  test("after a long absence the snapshot fills in, and what lies between is a gap", () => {
    const [made, first, notes] = attached();
    first.say(message(1), message(2));
    first.end(1006);
    pass(1_000);
    const newest = [50, 51].map((seq) => message(0, seq).message);
    Socket.last.accept({ cursor: 5_000, snapshot: { messages: newest, state: { a: 1 } } });
    assert.deepEqual(contents(notes), ["m1", "m2", "m50", "m51"]);
    assert.deepEqual(notes.gap, [{ after: 2, before: 50 }]);
    assert.deepEqual(notes.state, [{ a: 1 }]);
    assert.equal(made.cursor, 5_000);
  });

  test("a snapshot that overlaps gives only what is new, without a gap", () => {
    const [, socket, notes] = attached({ seq: 2 }, {
      cursor: 9,
      snapshot: { messages: [1, 2, 3].map((seq) => message(0, seq).message) },
    });
    assert.deepEqual(contents(notes), ["m3"]);
    assert.equal(notes.gap.length, 0);
    socket.say(message(10, 3), message(11, 4));
    assert.deepEqual(contents(notes), ["m3", "m4"]);
  });

  test("a log that is shorter than what was shown is another log", () => {
    const [made, , notes] = attached({ cursor: 100, seq: 40 }, { cursor: 3 });
    assert.equal(notes.reset.length, 1);
    assert.deepEqual(Socket.last.of("attach"), [
      { v: 1, kind: "attach", cursor: 100 },
      { v: 1, kind: "attach" },
    ]);
    Socket.last.say({ kind: "attached", cursor: 3, snapshot: { messages: [message(0, 1).message] } });
    assert.deepEqual(contents(notes), ["m1"]);
    assert.equal(made.cursor, 3);
  });

  test("so is one that has come as far, but not in messages", () => {
    const snapshot = { messages: [message(0, 1).message, message(0, 2).message] };
    const [, , notes] = attached({ cursor: 3, seq: 40 }, { cursor: 5_000, snapshot });
    assert.equal(notes.reset.length, 1);
    assert.deepEqual(contents(notes), ["m1", "m2"]);
  });

  test("what is not a frame, or of a kind to come, changes nothing", () => {
    const [made, socket, notes] = attached();
    for (const data of ["hello", "", "null", "[]", "7", '{"kind":"toString"}', '{"kind":"later","cursor":9}', new ArrayBuffer(3)]) {
      socket.raw(data);
    }
    socket.say(message(1));
    assert.deepEqual(contents(notes), ["m1"]);
    assert.equal(made.connection.state, "open");
  });

  test("a listener that fails harms neither the others nor the cursor, and its error is seen", () => {
    const [made, socket] = attached();
    const got = [];
    made.on("message", () => {
      throw new Error("mine");
    });
    made.on("message", ({ seq }) => got.push(seq));
    socket.say(message(1));
    socket.say(message(2));
    assert.deepEqual(got, [1, 2]);
    assert.throws(() => pass(1), /mine/);
  });

  test("on() gives the function that ends it", () => {
    const [made, socket] = attached();
    const got = [];
    const off = made.on("message", ({ seq }) => got.push(seq));
    socket.say(message(1));
    off();
    socket.say(message(2));
    assert.deepEqual(got, [1]);
  });
});

describe("coming back", () => {
  test("the pause doubles from its first to its longest, and up to half of it is chance", () => {
    const longest = (code, failures) => retryPause(code, failures, () => 1);
    assert.deepEqual([0, 1, 2, 3].map((n) => longest(1006, n)), [500, 1000, 2000, 4000]);
    assert.equal(longest(1006, 1_000), 30_000);
    assert.equal(retryPause(1006, 0, () => 0), 250);
    assert.ok(longest(1001, 0) < longest(1006, 0));
    assert.ok(longest(1011, 0) > longest(1006, 0));
    assert.equal(longest(1013, 0), 5_000);
    assert.equal(longest(1013, 99), 120_000);
  });

  test("failures in a row make it longer, a connection that lived makes it short again", () => {
    const made = client();
    const pauses = [];
    made.on("connection", ({ state, retryAt }) => state === "waiting" && pauses.push(retryAt - Date.now()));
    for (let i = 0; i < 4; i += 1) {
      Socket.last.end(1006);
      pass(30_000 / 2 ** (3 - i) + 10_000);
    }
    assert.ok(pauses[3] > pauses[0] * 2, pauses.join());
    Socket.last.accept();
    Socket.last.end(1006); // at once: no reason to hurry
    assert.ok(pauses[4] > pauses[0] * 2, pauses.join());
    pass(30_000);
    Socket.last.accept();
    pass(10_000);
    Socket.last.end(1006);
    assert.ok(pauses[5] <= 500, pauses.join());
  });

  for (const [code, reason] of [[4403, "denied"], [4404, "not_found"]]) {
    test(`after ${code} it does not come back, and everything that waits fails with ${reason}`, async () => {
      const made = client();
      const said = made.say("hello");
      Socket.last.open();
      Socket.last.end(code);
      await assert.rejects(said, { code: reason });
      await assert.rejects(made.say("again"), { code: reason });
      pass(3_600_000);
      assert.equal(Socket.all.length, 1);
      assert.deepEqual(made.connection, { state: "closed", code, reason });
    });
  }

  test("after 4401 a token callback is asked again at once, and not for ever", async () => {
    let asked = 0;
    const made = client({ token: async () => `token ${++asked}` });
    await settle();
    Socket.last.open();
    assert.equal(Socket.last.heard[0].token, "token 1");
    Socket.last.end(4401);
    pass(1);
    await settle();
    Socket.last.open();
    assert.equal(Socket.last.heard[0].token, "token 2");
    Socket.last.end(4401);
    pass(2_000);
    await settle();
    Socket.last.open();
    Socket.last.end(4401);
    assert.equal(asked, 3);
    assert.equal(made.connection.reason, "unauthorized");
  });

  test("connected again after it gave up, a client asks for a token anew and has as many tries", async () => {
    let asked = 0;
    const made = client({ token: async () => `token ${++asked}` });
    const refused = async () => {
      await settle();
      Socket.last.open();
      Socket.last.end(4401);
      pass(5_000);
    };
    for (let tries = 0; tries < 3; tries++) await refused();
    assert.equal(made.connection.reason, "unauthorized");
    made.connect(); // the person signed in again
    await refused();
    assert.equal(made.connection.state, "connecting", "one refusal is not the end");
    await settle();
    Socket.last.accept();
    assert.equal(made.connection.state, "open");
    assert.equal(Socket.last.heard[0].token, "token 5");
    assert.equal(asked, 5);
  });

  test("a token lives over reconnections until the server refuses it", async () => {
    let asked = 0;
    client({ token: () => `token ${++asked}` });
    await settle();
    Socket.last.accept();
    Socket.last.end(1001);
    pass(1_000);
    await settle();
    Socket.last.accept();
    assert.equal(Socket.last.heard[0].token, "token 1");
  });

  test("a token callback that fails is asked again after a pause", async () => {
    let asked = 0;
    const made = client({
      token: async () => {
        asked += 1;
        if (asked === 1) throw new Error("503");
        return "t";
      },
    });
    await settle();
    assert.equal(Socket.all.length, 0);
    assert.match(made.connection.reason, /503/);
    pass(500);
    await settle();
    assert.equal(Socket.all.length, 1);
  });

  test("with a session alone, 4401 means to sign in again", () => {
    const made = client();
    Socket.last.open();
    Socket.last.end(4401, "the session ended");
    assert.equal(made.connection.reason, "unauthorized");
    pass(600_000);
    assert.equal(Socket.all.length, 1);
    made.connect(); // the person did
    assert.equal(Socket.all.length, 2);
  });

  test("close() ends it for good", async () => {
    const [made, socket] = attached();
    const said = made.say("hello");
    made.close();
    assert.ok(socket.closed);
    await assert.rejects(said, { code: "closed" });
    pass(600_000);
    assert.equal(Socket.all.length, 1);
    assert.throws(() => made.connect(), { code: "closed" });
  });

  test("a link that is silent is asked, and replaced when it does not answer", () => {
    const [made, socket] = attached();
    pass(20_000);
    assert.equal(socket.of("ping").length, 1);
    socket.say({ kind: "pong" });
    pass(20_000);
    assert.equal(socket.of("ping").length, 2);
    assert.equal(made.connection.state, "open");
    pass(10_000);
    assert.equal(made.connection.state, "waiting");
    socket.onmessage({ data: JSON.stringify(message(1)) }); // too late: it is not heard any more
    pass(1_000);
    Socket.last.accept();
    assert.equal(made.connection.state, "open");
    assert.equal(made.seq, 0);
  });

  test("a link that talks is not asked", () => {
    const [, socket] = attached();
    for (let i = 1; i < 10; i += 1) {
      pass(15_000);
      socket.say({ kind: "status", status: `s${i}` });
    }
    assert.equal(socket.of("ping").length, 0);
  });

  test("a page that wakes up does not wait for a timer", () => {
    const page = new EventTarget();
    globalThis.document = Object.assign(new EventTarget(), { visibilityState: "visible" });
    globalThis.window = page;
    try {
      const [made, socket] = attached();
      page.dispatchEvent(new Event("online"));
      assert.equal(socket.of("ping").length, 1);
      pass(4_000);
      assert.equal(made.connection.state, "waiting");
      globalThis.document.dispatchEvent(new Event("visibilitychange"));
      assert.equal(Socket.all.length, 2);
      made.close();
      page.dispatchEvent(new Event("online"));
      assert.equal(Socket.all.length, 2);
    } finally {
      delete globalThis.document;
      delete globalThis.window;
    }
  });
});

describe("saying", () => {
  test("is answered when the server has it, with the id that the client gave", async () => {
    const [made, socket] = attached();
    const said = made.say("hello", { id: "a1", metadata: { x: 1 } });
    assert.deepEqual(socket.of("say"), [{ v: 1, kind: "say", id: "a1", text: "hello", metadata: { x: 1 } }]);
    socket.say({ kind: "ack", id: "a1" });
    assert.deepEqual(await said, { id: "a1", duplicate: false });
  });

  test("waits without a connection, and goes out in order with the same ids until it is taken", async () => {
    const made = client();
    const all = ["one", "two", "three"].map((text, n) => made.say(text, { id: `id${n}` }));
    Socket.last.accept();
    assert.deepEqual(Socket.last.of("say").map(({ id }) => id), ["id0", "id1", "id2"]);
    Socket.last.say({ kind: "ack", id: "id0" });
    Socket.last.end(1006);
    pass(1_000);
    Socket.last.accept();
    assert.deepEqual(Socket.last.of("say").map(({ id, text }) => [id, text]), [["id1", "two"], ["id2", "three"]]);
    Socket.last.say({ kind: "ack", id: "id1", duplicate: true }, { kind: "ack", id: "id2" });
    assert.deepEqual(await Promise.all(all), [
      { id: "id0", duplicate: false },
      { id: "id1", duplicate: true },
      { id: "id2", duplicate: false },
    ]);
    Socket.last.end(1006);
    pass(1_000);
    Socket.last.accept();
    assert.equal(Socket.last.of("say").length, 0);
  });

  test("nothing is sent before the server has answered the attach", () => {
    const made = client();
    made.say("hello");
    Socket.last.open();
    assert.deepEqual(Socket.last.heard.map(({ kind }) => kind), ["attach"]);
  });

  test("the same id twice is one frame and one promise", () => {
    const [made, socket] = attached();
    made.say("hello", { id: "a" });
    made.say("hello", { id: "a" });
    assert.equal(socket.of("say").length, 1);
  });

  test("what the server refuses fails with its code, and is not said again", async () => {
    const [made, socket, notes] = attached();
    const said = made.say("hello", { id: "a" });
    socket.say({ kind: "error", id: "a", code: "inbox_full", message: "later", turn: "t1" });
    await assert.rejects(said, { code: "inbox_full", message: "later", turn: "t1" });
    socket.end(1006);
    pass(1_000);
    Socket.last.accept();
    assert.equal(Socket.last.of("say").length, 0);
    assert.equal(notes.error.length, 0);
  });

  test("an error that answers nothing is told to whoever listens", () => {
    const [, socket, notes] = attached();
    socket.say({ kind: "error", code: "bad_frame", message: "no" }, { kind: "error", id: "x", code: "y", message: "z" });
    assert.deepEqual(notes.error.map(({ code }) => code), ["bad_frame", "y"]);
  });

  test("a frame of 1 MiB goes out, one byte more does not", async () => {
    const [made, socket] = attached();
    const empty = JSON.stringify({ v: 1, kind: "say", id: "a", text: "" }).length;
    made.say("x".repeat(1024 * 1024 - empty), { id: "a" });
    assert.equal(socket.of("say").length, 1);
    await assert.rejects(made.say("x".repeat(1024 * 1024 - empty + 1), { id: "b" }), { code: "too_large" });
    await assert.rejects(made.say("€".repeat(350_000), { id: "c" }), { code: "too_large" });
    assert.equal(socket.of("say").length, 1);
  });

  test("after 1009 the largest frame is not sent again, the others are", async () => {
    const [made] = attached();
    const large = made.say("x".repeat(1000), { id: "large" });
    made.say("small", { id: "small" });
    Socket.last.end(1009);
    await assert.rejects(large, { code: "too_large" });
    pass(1_000);
    Socket.last.accept();
    assert.deepEqual(Socket.last.of("say").map(({ id }) => id), ["small"]);
  });

  test("a thousand that waited don't flood the server: 32 frames and 512 KiB are on their way", () => {
    const made = client();
    for (let i = 0; i < 1_000; i += 1) made.say("x", { id: `i${i}` });
    Socket.last.accept();
    const said = () => Socket.last.of("say");
    assert.equal(said().length, 32);
    for (let i = 0; i < 1_000; i += 1) Socket.last.say({ kind: "ack", id: `i${i}` });
    assert.equal(said().length, 1_000);
    assert.deepEqual(said().map(({ id }) => id), Array.from({ length: 1_000 }, (_, i) => `i${i}`));
    for (const id of ["a", "b", "c"]) made.say("y".repeat(200 * 1024), { id });
    assert.equal(said().length, 1_002);
    Socket.last.say({ kind: "ack", id: "a" });
    assert.equal(said().length, 1_003);
  });
});

describe("calling", () => {
  test("resolves with the value, rejects with the code", async () => {
    const [made, socket] = attached();
    const good = made.call("history", 5, { a: 1 });
    const [frame] = socket.of("call");
    assert.deepEqual(frame, { v: 1, kind: "call", id: frame.id, method: "history", args: [5, { a: 1 }] });
    socket.say({ kind: "result", id: frame.id, value: [1, 2] });
    assert.deepEqual(await good, [1, 2]);
    const bad = made.callWith("secret", { kwargs: { last: 3 } });
    const second = socket.of("call")[1];
    assert.deepEqual(second.kwargs, { last: 3 });
    socket.say({ kind: "error", id: second.id, code: "private_method", message: "no" });
    await assert.rejects(bad, { name: "AgentError", code: "private_method" });
  });

  test("waits for a connection as long as its time-out, and is sent once", async () => {
    const made = client({ callTimeout: 5_000 });
    const call = made.call("a");
    pass(3_000);
    Socket.last.accept();
    assert.equal(Socket.last.of("call").length, 1);
    pass(2_000);
    await assert.rejects(call, { code: "timeout" });
    Socket.last.say({ kind: "result", id: Socket.last.of("call")[0].id, value: 1 }); // too late
    const never = made.callWith("b", { timeout: 100 });
    Socket.last.end(1006);
    await assert.rejects(never, { code: "connection_lost" });
    pass(1_000);
    Socket.last.accept();
    assert.equal(Socket.last.of("call").length, 0);
  });

  test("a call that was never sent is sent by the next connection", async () => {
    const made = client();
    const call = made.call("a");
    Socket.last.end(1006);
    pass(1_000);
    Socket.last.accept();
    Socket.last.say({ kind: "result", id: Socket.last.of("call")[0].id, value: null });
    assert.equal(await call, null);
  });
});

describe("stopping", () => {
  test("says whether there was something to stop", async () => {
    const [made, socket] = attached();
    const stops = [made.stop(), made.stop("turn-1")];
    const [any, one] = socket.of("stop");
    assert.equal(any.turn, undefined);
    assert.equal(one.turn, "turn-1");
    socket.say({ kind: "ack", id: one.id, stopped: false }, { kind: "ack", id: any.id, stopped: true });
    assert.deepEqual(await Promise.all(stops), [true, false]);
  });

  test("goes out although a thousand things wait before it", () => {
    const [made, socket] = attached();
    for (let i = 0; i < 1_000; i += 1) made.say("x");
    made.stop();
    assert.equal(socket.heard.at(-1).kind, "stop");
  });

  test("is never kept for later", async () => {
    const made = client();
    await assert.rejects(made.stop(), { code: "offline" });
    Socket.last.accept();
    const lost = made.stop();
    Socket.last.end(1006);
    await assert.rejects(lost, { code: "connection_lost" });
    pass(1_000);
    Socket.last.accept();
    assert.equal(Socket.last.of("stop").length, 0);
    const late = made.stop();
    pass(10_000);
    await assert.rejects(late, { code: "timeout" });
  });
});

describe("streams", () => {
  const delta = (index, text, more = {}) => ({ kind: "delta", stream: "s", index, text, ...more });
  const last = (notes) => notes.delta.at(-1);

  test("are put together, each part once", () => {
    const [, socket, notes] = attached();
    socket.say(delta(0, "Once "), delta(1, "upon "), delta(1, "upon "), delta(0, "Once "), delta(2, "a time", { done: true }));
    assert.deepEqual(notes.delta.map(({ text }) => text), ["Once ", "Once upon ", "Once upon a time"]);
    assert.deepEqual(last(notes), {
      stream: "s", index: 2, text: "Once upon a time", added: "a time", reset: false, done: true, whole: true,
    });
  });

  test("start again when they are reset", () => {
    const [, socket, notes] = attached();
    socket.say(delta(0, "wrong"), delta(0, "", { reset: true }), delta(1, "right"));
    assert.equal(last(notes).text, "right");
    assert.ok(last(notes).whole);
  });

  test("who comes late gets the text so far, and goes on from there", () => {
    const [, socket, notes] = attached();
    socket.say(delta(41, "the text so far", { reset: true }), delta(41, "again"), delta(42, ", and on"));
    assert.equal(last(notes).text, "the text so far, and on");
    assert.ok(last(notes).whole);
  });

  test("a part that was lost shows, and the message has everything", () => {
    const [, socket, notes] = attached();
    socket.say(delta(0, "a"), delta(2, "c"));
    assert.equal(last(notes).whole, false);
    socket.say(message(1, 1, { content: "abc", metadata: { stream: "s" } }));
    assert.deepEqual(contents(notes), ["abc"]);
  });

  test("those that end without a message, also while the client is away, are taken back", () => {
    const [, socket, notes] = attached();
    socket.say(delta(0, "a"), delta(0, "", { reset: true, done: true }));
    assert.deepEqual([last(notes).text, last(notes).reset, last(notes).done], ["", true, true]);
    socket.say(delta(0, "again"));
    assert.equal(last(notes).text, "again");
    socket.end(1006);
    pass(1_000);
    Socket.last.accept();
    assert.deepEqual([last(notes).text, last(notes).reset, last(notes).done], ["", true, true]);
    Socket.last.say(delta(4, "again, and more", { reset: true }));
    assert.equal(last(notes).text, "again, and more");
  });

  test("a part that comes after its message does not start it again", () => {
    const [, socket, notes] = attached();
    socket.say(delta(0, "a"), message(1, 1, { metadata: { stream: "s" } }), delta(1, "b"), delta(2, "c", { reset: true }));
    assert.equal(notes.delta.length, 1);
  });
});

describe("state, events, broadcasts, status", () => {
  test("the state is the snapshot and its patches, and listeners get a new object", () => {
    const [made, socket, notes] = attached({}, { cursor: 1, snapshot: { state: { a: { b: 1, c: 2 }, list: [1] } } });
    const before = made.state;
    socket.say({ kind: "state", cursor: 2, patch: { a: { b: null, d: 3 }, list: [2, null] } });
    assert.deepEqual(made.state, { a: { c: 2, d: 3 }, list: [2, null] });
    assert.deepEqual(before, { a: { b: 1, c: 2 }, list: [1] });
    socket.say({ kind: "state", cursor: 2, patch: { a: null } }); // sent twice: done once
    socket.say({ kind: "state", cursor: 3, snapshot: { fresh: true } });
    assert.deepEqual(notes.state, [before, { a: { c: 2, d: 3 }, list: [2, null] }, { fresh: true }]);
  });

  test("events and broadcasts are numbered too; those sent at once are not", () => {
    const [made, socket, notes] = attached();
    socket.say(
      { kind: "event", cursor: 1, type: "tick", payload: { n: 1 } },
      { kind: "event", cursor: 1, type: "tick", payload: { n: 1 } },
      { kind: "broadcast", cursor: 2, data: "text" },
      { kind: "broadcast", cursor: 2, data: "text" },
      { kind: "broadcast", data: "now" },
      { kind: "broadcast", base64: "AP/+" },
    );
    assert.deepEqual(notes.event, [{ type: "tick", payload: { n: 1 }, cursor: 1 }]);
    assert.deepEqual(notes.broadcast, ["text", "now", new Uint8Array([0, 255, 254])]);
    assert.equal(made.cursor, 2);
  });

  test("a status ends with the connection", () => {
    const [made, socket, notes] = attached();
    socket.say({ kind: "status", status: "thinking", turn: "t" });
    assert.equal(made.status, "thinking");
    socket.end(1006);
    assert.deepEqual(notes.status, ["thinking", ""]);
  });

  test("the server learns how far we are: at once, then once a second, sooner when much comes", () => {
    const [, socket] = attached();
    const seen = () => socket.of("seen").map(({ cursor }) => cursor);
    socket.say(message(1));
    assert.deepEqual(seen(), [1]);
    socket.say(message(2), message(3));
    assert.deepEqual(seen(), [1]);
    pass(1_000);
    assert.deepEqual(seen(), [1, 3]);
    for (let n = 4; n <= 67; n += 1) socket.say(message(n));
    assert.deepEqual(seen(), [1, 3, 67]);
    socket.say(message(68, 68, { content: "x".repeat(128 * 1024) }));
    assert.deepEqual(seen(), [1, 3, 67, 68]);
    pass(10_000);
    assert.deepEqual(seen(), [1, 3, 67, 68]);
  });
});

describe("merge patches (RFC 7396, appendix A)", () => {
  const cases = [
    [{ a: "b" }, { a: "c" }, { a: "c" }],
    [{ a: "b" }, { b: "c" }, { a: "b", b: "c" }],
    [{ a: "b" }, { a: null }, {}],
    [{ a: "b", b: "c" }, { a: null }, { b: "c" }],
    [{ a: ["b"] }, { a: "c" }, { a: "c" }],
    [{ a: "c" }, { a: ["b"] }, { a: ["b"] }],
    [{ a: { b: "c" } }, { a: { b: "d", c: null } }, { a: { b: "d" } }],
    [{ a: [{ b: "c" }] }, { a: [1] }, { a: [1] }],
    [["a", "b"], ["c", "d"], ["c", "d"]],
    [{ a: "b" }, ["c"], ["c"]],
    [{ a: "foo" }, null, null],
    [{ a: "foo" }, "bar", "bar"],
    [{ e: null }, { a: 1 }, { e: null, a: 1 }],
    [[1, 2], { a: "b", c: null }, { a: "b" }],
    [{}, { a: { bb: { ccc: null } } }, { a: { bb: {} } }],
  ];
  for (const [target, patch, result] of cases) {
    test(`${JSON.stringify(target)} + ${JSON.stringify(patch)}`, () => {
      assert.deepEqual(mergePatch(target, patch), result);
    });
  }

  test("__proto__ is a key like any other", () => {
    const merged = mergePatch(JSON.parse('{"__proto__": {"a": 1}}'), JSON.parse('{"__proto__": {"b": 2}, "constructor": 3}'));
    assert.equal(JSON.stringify(merged), '{"__proto__":{"a":1,"b":2},"constructor":3}');
    assert.equal({}.b, undefined);
    assert.equal(JSON.stringify(mergePatch({}, JSON.parse('{"toString": {"a": 1}}'))), '{"toString":{"a":1}}');
  });
});

test("names are escaped as the server does it", () => {
  const cases = JSON.parse(process.env.NAMES ?? '[["a.b-c_D9", "a.b-c_D9"], [".", "~2E"], ["~", "~7E"]]');
  for (const [name, escaped] of cases) assert.equal(escapeName(name), escaped);
});

test("ids are long, and none comes twice", () => {
  const ids = new Set(Array.from({ length: 1_000 }, makeId));
  assert.equal(ids.size, 1_000);
  for (const id of ids) assert.match(id, /^[0-9a-f]{32}$/);
});

test("everything that the types promise is there", async () => {
  const { readFileSync } = await import("node:fs");
  const types = readFileSync(new URL("../../static/agents/agent-client.d.ts", import.meta.url), "utf8");
  const harness = await import("./harness.mjs");
  for (const [, name] of types.matchAll(/export (?:class|function) (\w+)/g)) assert.equal(typeof harness[name], "function", name);
  const made = new AgentClient({ kind: "k", name: "n", url: "http://x/", connect: false, WebSocket: Socket });
  const [, body] = types.match(/class AgentClient[^{]*{([\s\S]*?)\n}/);
  for (const [, name] of body.matchAll(/^ {2}(?:readonly )?(?!constructor)(\w+)/gm)) assert.ok(name in made, name);
  const [, listeners] = types.match(/interface Listeners[^{]*{([\s\S]*?)\n}/);
  const kinds = [...listeners.matchAll(/^ {2}(\w+):/gm)].map(([, kind]) => kind);
  for (const kind of kinds) made.on(kind, () => {});
  assert.throws(() => made.on("x", () => {}), (error) => kinds.every((kind) => error.message.includes(kind)));
  assert.ok(listen(made));
});
