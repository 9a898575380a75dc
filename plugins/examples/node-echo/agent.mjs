// An agent in one file and without a dependency: it speaks the Agent Client Protocol,
// one JSON-RPC message a line, and answers with the task. With the plugin.json beside
// it, subspan drives it through the built-in ACP bridge:
//
//   cp -r node-echo "$XDG_DATA_HOME/subspan/plugins/" && subspan plugins trust node-echo
//
// Standard output belongs to the protocol; print with console.error.
import { createInterface } from "node:readline";
import { randomUUID } from "node:crypto";

const sessions = new Map(); // id -> { cancelled }

const send = (message) => process.stdout.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
const fail = (code, message) => Object.assign(new Error(message), { code });

function session(id) {
  const s = sessions.get(id);
  if (!s) throw fail(-32002, `no session ${id}`);
  return s;
}

const methods = {
  initialize: () => ({
    protocolVersion: 1,
    agentInfo: { name: "node-echo", version: "1.0.0" },
    agentCapabilities: { loadSession: false },
    authMethods: [],
  }),
  "session/new": () => {
    const sessionId = randomUUID();
    sessions.set(sessionId, { cancelled: false });
    return { sessionId };
  },
  "session/prompt": async ({ sessionId, prompt }) => {
    const s = session(sessionId);
    s.cancelled = false;
    for (const block of prompt) {
      if (s.cancelled) return { stopReason: "cancelled" };
      if (block.type !== "text") continue;
      send({
        method: "session/update",
        params: { sessionId, update: { sessionUpdate: "agent_message_chunk", content: { type: "text", text: block.text } } },
      });
      await new Promise(setImmediate); // let a cancel in
    }
    return { stopReason: s.cancelled ? "cancelled" : "end_turn" };
  },
  "session/cancel": ({ sessionId }) => {
    session(sessionId).cancelled = true;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  let message;
  try {
    message = JSON.parse(line);
  } catch {
    continue; // no message of ours
  }
  const { id, method, params } = message;
  if (!method) continue; // an answer; this agent asks nothing
  // Not awaited: a cancel has to be read while a prompt runs.
  Promise.resolve()
    .then(() => {
      const handler = methods[method];
      if (!handler) throw fail(-32601, `no method ${method}`);
      return handler(params ?? {});
    })
    .then((result) => id !== undefined && send({ id, result: result ?? null }))
    .catch((err) => id !== undefined && send({ id, error: { code: err.code ?? -32603, message: err.message } }));
}
