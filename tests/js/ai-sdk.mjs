// Reads a list of UIMessages a line, answers a line each: null, or why the AI SDK itself refuses it.
//
// Its validator, its conversion for models, and a whole generateText with a model that only says "ok": that is
// where calls without results are refused. Runs in the folder into which npm installed the package `ai`.

import readline from "node:readline";
import { isDeepStrictEqual } from "node:util";
import { convertToModelMessages, generateText, validateUIMessages } from "ai";
import { MockLanguageModelV4 } from "ai/test";

globalThis.AI_SDK_LOG_WARNINGS = false;

const model = new MockLanguageModelV4({
  doGenerate: async () => ({
    content: [{ type: "text", text: "ok" }],
    finishReason: { unified: "stop", raw: "stop" },
    usage: {
      inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
      outputTokens: { total: 1, text: 1, reasoning: 0 },
    },
    warnings: [],
  }),
  // Addresses go to the model as they are: nothing is downloaded here.
  supportedUrls: { "*/*": [/.*/], "*": [/.*/] },
});

async function refusal(messages) {
  const validated = await validateUIMessages({ messages });
  if (!isDeepStrictEqual(validated, messages)) {
    throw new Error("the validator knows less: " + JSON.stringify(validated));
  }
  const converted = await convertToModelMessages(validated);
  const conversation = converted.filter((message) => message.role !== "system");
  if (conversation.length === 0) return;
  await generateText({ model, messages: conversation, maxRetries: 0 });
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  let answer = null;
  try {
    await refusal(JSON.parse(line));
  } catch (error) {
    answer = `${error.name}: ${error.message}`.slice(0, 2000);
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
