/** Types of agent-client.js; what the frames hold is in docs/protocol.md, how to use it in docs/chat.md. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };

export interface ToolCall {
  id: string;
  name: string;
  args: Json;
}

export interface Message {
  seq: number;
  role: "system" | "user" | "assistant" | "tool";
  content: string;
  /** Content blocks, when there is more than text. */
  parts?: JsonObject[];
  name?: string;
  tool_calls?: ToolCall[];
  tool_call_id?: string;
  metadata?: JsonObject;
  /** ISO 8601, UTC. */
  at: string;
}

export interface MessageFacts {
  /** Of the event, or of the snapshot that the message came with. */
  cursor: number;
  snapshot: boolean;
  /** The stream that became this message. */
  stream?: string;
}

export interface Delta {
  stream: string;
  index: number;
  /** Everything this stream said so far. */
  text: string;
  /** What this frame added. */
  added: string;
  /** What it had said before is void. With `done`: all of it is, and no message follows. */
  reset: boolean;
  /** It ends here; its message follows. */
  done: boolean;
  /** False when a part was lost on the way; the message will have all of it. */
  whole: boolean;
}

export type ErrorCode =
  | "timeout"
  | "offline"
  | "connection_lost"
  | "too_large"
  | "closed"
  | "denied"
  | "not_found"
  | "unauthorized"
  | (string & {});

export class AgentError extends Error {
  constructor(code: ErrorCode, message: string, turn?: string);
  /** Stable: the server's (docs/errors.md), or one of the client's own. */
  readonly code: ErrorCode;
  /** For staff: the turn that failed. */
  readonly turn?: string;
}

export interface Connection {
  state: "connecting" | "open" | "waiting" | "closed";
  /** The close code that led here. */
  code?: number;
  /** For "closed": the AgentError's code; else the server's words. */
  reason?: string;
  /** For "waiting": when it is tried again, in milliseconds as Date.now() counts. */
  retryAt?: number;
}

export interface Listeners<State = Json> {
  /** Each message of the log once, in order. */
  message: (message: Message, facts: MessageFacts) => void;
  /** The whole state after a change; `patch` is the change, absent for a snapshot. */
  state: (state: State, facts: { cursor: number; patch?: Json }) => void;
  delta: (delta: Delta) => void;
  event: (event: { type: string; payload: Json; cursor: number }) => void;
  /** Without a cursor it was sent at once, and is not repeated. */
  broadcast: (data: string | Uint8Array, facts: { cursor?: number }) => void;
  status: (status: string, facts: { turn?: string }) => void;
  connection: (connection: Connection) => void;
  /** After a long absence: the messages between these two numbers were not sent. */
  gap: (gap: { after: number; before: number }) => void;
  /** The log is another one now (erased, or restored): what was shown is void. */
  reset: (nothing: Record<string, never>) => void;
  /** The server did not understand a frame that nobody waits for an answer to. */
  error: (error: AgentError) => void;
}

export interface AgentClientOptions {
  kind: string;
  name: string;
  /** The site, such as "https://example.org/"; the page's own by default. */
  url?: string;
  /**
   * Made by `connect_token`; not needed by a page with a session. As a function it is asked before the first
   * connection, and again whenever the server says that the token is not valid (any more).
   */
  token?: string | (() => string | Promise<string>);
  /** Resume after this event. Without it, the newest messages and the state come first. */
  cursor?: number;
  /** The newest message that is already there: it, and those before it, are not given again. */
  seq?: number;
  /** Only these; everything by default. */
  streams?: ("messages" | "state" | "events" | "deltas")[];
  /** Milliseconds of silence before the link is tested. Default: 20,000. */
  heartbeat?: number;
  /** Milliseconds that a call may take, waiting for a connection included. Default: 30,000. */
  callTimeout?: number;
  /** False: not before `connect()`. */
  connect?: boolean;
  /** Where there is none built in. */
  WebSocket?: new (url: string) => WebSocket;
}

export class AgentClient<State = Json> {
  constructor(options: AgentClientOptions);
  readonly kind: string;
  readonly name: string;
  readonly cursor: number | undefined;
  readonly seq: number;
  readonly state: State | undefined;
  readonly status: string;
  readonly connection: Connection;

  on<Kind extends keyof Listeners>(kind: Kind, listener: Listeners<State>[Kind]): () => void;
  connect(): void;
  say(text: string, options?: { id?: string; metadata?: JsonObject }): Promise<{ id: string; duplicate: boolean }>;
  call<Result = Json>(method: string, ...args: Json[]): Promise<Result>;
  callWith<Result = Json>(
    method: string,
    options?: { args?: Json[]; kwargs?: JsonObject; timeout?: number },
  ): Promise<Result>;
  stop(turn?: string, options?: { timeout?: number }): Promise<boolean>;
  close(): void;
}

export function makeId(): string;
export function retryPause(code: number, failures: number, random?: () => number): number;
export function escapeName(name: string): string;
export function mergePatch(target: Json | undefined, patch: Json): Json;
