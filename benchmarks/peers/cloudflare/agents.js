// The jobs with Cloudflare's Agents SDK: its state, its queue, its schedules, its sockets.
import { Agent, getAgentByName, routeAgentRequest } from "agents";
import { facts, timers } from "./facts.js";

class Actor extends Agent {
  initialState = {};

  onStart() {
    this.sql`CREATE TABLE IF NOT EXISTS messages
      (seq INTEGER PRIMARY KEY AUTOINCREMENT, role TEXT NOT NULL, content TEXT NOT NULL)`;
  }

  append(role, content) {
    return this.sql`INSERT INTO messages (role, content) VALUES (${role}, ${content}) RETURNING seq`[0].seq;
  }
}

export class Ingest extends Actor {
  async receive({ from, text }) {
    facts.receive(text);
    this.append("user", text);
    this.setState({ ...this.state, last: text, from });
    await this.queue("process", text);
  }

  async process(text) {
    facts.answer(text);
  }
}

export class Answer extends Ingest {
  async process(text) {
    this.append("assistant", "Thank you. We look into it.");
    const { nudge } = this.state;
    if (nudge) await this.cancelSchedule(nudge);
    const { id } = await this.schedule(86400, "nudge");
    this.setState({ ...this.state, answered: true, nudge: id });
    facts.answer(text);
  }

  async nudge() {}
}

export class Timed extends Actor {
  async receive({ from, text }) {
    const { at, names } = timers(text, from);
    for (const timer of names) {
      facts.set(timer, at);
      await this.schedule(new Date(at * 1000), "fire", timer);
    }
  }

  async fire(timer) {
    facts.fire(timer);
    this.setState({ ...this.state, fired: timer });
  }
}

export class Echo extends Actor {
  onMessage(connection, frame) {
    this.broadcast(String(this.append("user", frame)));
  }
}

export default {
  async fetch(request, env) {
    const [, what, kind] = new URL(request.url).pathname.split("/");
    if (what === "facts") return facts.response();
    if (what === "texts") {
      const message = await request.json();
      const actor = await getAgentByName(env[kind], message.from);
      await actor.receive(message);
      return new Response("ok");
    }
    return (await routeAgentRequest(request, env)) ?? new Response("not found", { status: 404 });
  },
};
