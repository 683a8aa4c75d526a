/**
 * The elements of a conversation: the same as templates/conversations/_chat_message.html makes on the server.
 * Whatever anybody wrote becomes text nodes, never HTML.
 */

const SHOWN = 10_000; // characters of a tool's arguments

/** An element with attributes and children; text is text. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** A message of the log. `tools` is the name of each tool call by its id; calls of this message are added. */
export function messageElement(message, tools) {
  const { seq, role, content, metadata = {} } = message;
  const id = typeof metadata.id === "string" && metadata.id ? metadata.id : undefined;
  const item = element("li", { class: "chat-message", "data-role": role, "data-seq": seq, "data-id": id });
  if (role === "user" || role === "assistant") {
    item.append(byline(message.name || (role === "user" ? "You" : "Agent"), message.at, Boolean(metadata.interrupted)));
  }
  if (role === "tool") {
    const name = message.name || tools.get(message.tool_call_id) || message.tool_call_id || "a tool";
    item.append(fold(["Result of ", element("b", {}, name)], content));
  } else if (role === "system") {
    item.append(fold(["System"], content));
  } else if (content) {
    item.append(element("div", { class: "chat-text", dir: "auto" }, content));
  }
  for (const call of message.tool_calls ?? []) {
    tools.set(call.id, call.name);
    item.append(fold(["Uses ", element("b", {}, call.name)], argumentsOf(call.args)));
  }
  return item;
}

/** A reply that is still being written. Not announced: the message that it becomes is. */
export function streamElement(stream) {
  return element(
    "li",
    { class: "chat-message", "data-role": "assistant", "data-stream": stream, "aria-busy": "true" },
    byline("Agent"),
    element("div", { class: "chat-text", dir: "auto" }),
  );
}

/** Something the person said that is not in the log yet. */
export function pendingElement({ id, text }) {
  return element(
    "li",
    { class: "chat-message", "data-role": "user", "data-pending": id },
    byline("You"),
    element("div", { class: "chat-text", dir: "auto" }, text),
    element("p", { class: "chat-state" }),
  );
}

/** Shows moments in the reader's own time zone; the server gave them in UTC. */
export function localise(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.valueOf())) continue;
    const today = at.toDateString() === new Date().toDateString();
    const clock = { hour: "2-digit", minute: "2-digit" };
    time.textContent = today
      ? at.toLocaleTimeString([], clock)
      : at.toLocaleString([], { day: "numeric", month: "short", ...clock });
    time.title = at.toLocaleString();
  }
}

function byline(who, at, interrupted = false) {
  const line = element("p", { class: "chat-by" }, element("bdi", {}, who));
  if (interrupted) line.append(" ", element("span", { class: "chat-mark" }, "interrupted"));
  if (at) line.append(" ", element("time", { datetime: at }));
  return line;
}

function fold(title, body) {
  return element(
    "details",
    { class: "chat-fold" },
    element("summary", {}, ...title),
    element("pre", {}, body),
  );
}

function argumentsOf(args) {
  const text = typeof args === "string" ? args : JSON.stringify(args, null, 2);
  return text.length <= SHOWN ? text : `${text.slice(0, SHOWN)}\n…`;
}
