// The jobs with a bare Durable Object: SQLite, one alarm, hibernating sockets, and no SDK.
import { DurableObject } from "cloudflare:workers";
import { facts, timers } from "./facts.js";

class Actor extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    this.sql = ctx.storage.sql;
    this.sql.exec(`CREATE TABLE IF NOT EXISTS messages
      (seq INTEGER PRIMARY KEY AUTOINCREMENT, role TEXT NOT NULL, content TEXT NOT NULL)`);
    this.sql.exec(`CREATE TABLE IF NOT EXISTS tasks
      (id TEXT PRIMARY KEY, method TEXT NOT NULL, payload TEXT, due REAL NOT NULL)`);
  }

  append(role, content) {
    return this.sql
      .exec("INSERT INTO messages (role, content) VALUES (?, ?) RETURNING seq", role, content).one().seq;
  }

  merge(patch) {
    const state = this.ctx.storage.kv.get("state") ?? {};
    this.ctx.storage.kv.put("state", { ...state, ...patch });
  }

  schedule(id, method, payload, due) {
    this.sql.exec("INSERT OR REPLACE INTO tasks VALUES (?, ?, ?, ?)", id, method, payload, due);
  }

  async arm() {
    const { due } = this.sql.exec("SELECT min(due) AS due FROM tasks").one();
    if (due !== null) await this.ctx.storage.setAlarm(due);
  }

  async alarm() {
    const due = this.sql.exec("SELECT * FROM tasks WHERE due <= ? ORDER BY due", Date.now()).toArray();
    for (const { id, method, payload } of due) {
      this.sql.exec("DELETE FROM tasks WHERE id = ?", id);
      await this[method](payload);
    }
    await this.arm();
  }
}

export class Ingest extends Actor {
  async receive({ from, text }) {
    facts.receive(text);
    const seq = this.append("user", text);
    this.merge({ last: text, from });
    this.schedule(`process ${seq}`, "process", text, Date.now());
    await this.arm();
  }

  async process(text) {
    facts.answer(text);
  }
}

export class Answer extends Ingest {
  async process(text) {
    this.append("assistant", "Thank you. We look into it.");
    this.merge({ answered: true });
    this.schedule("nudge", "nudge", null, Date.now() + 86400_000);
    facts.answer(text);
  }

  async nudge() {}
}

export class Timed extends Actor {
  async receive({ from, text }) {
    const { at, names } = timers(text, from);
    for (const timer of names) {
      facts.set(timer, at);
      this.schedule(timer, "fire", timer, Math.ceil(at * 1000)); // alarms have whole milliseconds
    }
    await this.arm();
  }

  async fire(timer) {
    facts.fire(timer);
    this.merge({ fired: timer });
  }
}

export class Echo extends Actor {
  fetch() {
    const [client, server] = Object.values(new WebSocketPair());
    this.ctx.acceptWebSocket(server);
    return new Response(null, { status: 101, webSocket: client });
  }

  webSocketMessage(socket, frame) {
    const seq = String(this.append("user", frame));
    for (const each of this.ctx.getWebSockets()) each.send(seq);
  }
}

export default {
  async fetch(request, env) {
    const [, what, kind, name] = new URL(request.url).pathname.split("/");
    if (what === "facts") return facts.response();
    if (what === "texts") {
      const message = await request.json();
      await env[kind].get(env[kind].idFromName(message.from)).receive(message);
      return new Response("ok");
    }
    return env[kind].get(env[kind].idFromName(name)).fetch(request);
  },
};
