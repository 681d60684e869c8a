// Reads or changes an AgentFS with the official TypeScript SDK. JSON in and out.
//
// sdk.mjs view FILE      one object: the tree, tool calls and key-value pairs
// sdk.mjs change FILE    applies the operations on standard input, an array of objects

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

import { AgentFS } from "agentfs-sdk";

async function view(agent) {
  const nodes = [];
  const pending = ["/"];
  while (pending.length > 0) {
    const path = pending.pop();
    const s = await agent.fs.stat(path);
    const node = {
      path, ino: s.ino, mode: s.mode, nlink: s.nlink, uid: s.uid, gid: s.gid, size: s.size, mtime: s.mtime,
    };
    if (s.isDirectory()) {
      for (const name of await agent.fs.readdir(path)) {
        pending.push(path.replace(/\/$/, "") + "/" + name);
      }
    } else if (s.isSymbolicLink()) {
      node.target = await agent.fs.readlink(path);
    } else if (s.isFile()) {
      const content = await agent.fs.readFile(path);
      node.read = content.length;
      node.sha256 = createHash("sha256").update(content).digest("hex");
    }
    nodes.push(node);
  }
  // The SDK lists calls by name only.
  const names = await agent.getDatabase().prepare("SELECT DISTINCT name FROM tool_calls").all();
  const toolCalls = [];
  for (const { name } of names) {
    for (const c of await agent.tools.getByName(name)) {
      toolCalls.push({
        id: c.id, name: c.name, parameters: c.parameters ?? null, result: c.result ?? null, error: c.error ?? null,
        status: c.status, startedAt: c.started_at, completedAt: c.completed_at ?? null, durationMs: c.duration_ms ?? null,
      });
    }
  }
  return { chunkSize: agent.fs.getChunkSize(), nodes, toolCalls, kv: await agent.kv.list("") };
}

async function change(agent, operations) {
  for (const o of operations) {
    switch (o.op) {
      case "write": await agent.fs.writeFile(o.path, Buffer.from(o.content ?? "", "base64")); break;
      case "mkdir": await agent.fs.mkdir(o.path); break;
      case "rmdir": await agent.fs.rmdir(o.path); break;
      case "unlink": await agent.fs.unlink(o.path); break;
      case "rm": await agent.fs.rm(o.path, { recursive: true }); break;
      case "rename": await agent.fs.rename(o.path, o.to); break;
      case "copy": await agent.fs.copyFile(o.path, o.to); break;
      case "symlink": await agent.fs.symlink(o.target, o.path); break;
      case "pwrite": await (await agent.fs.open(o.path)).pwrite(o.offset, Buffer.from(o.content, "base64")); break;
      case "truncate": await (await agent.fs.open(o.path)).truncate(o.size); break;
      case "kv": await agent.kv.set(o.key, o.value); break;
      case "tool":
        await agent.tools.record(o.name, o.startedAt, o.completedAt, o.parameters, o.result, o.error);
        break;
      case "tool-pending": await agent.tools.start(o.name, o.parameters); break;
      default: throw new Error("no operation " + o.op);
    }
  }
  return {};
}

const [command, path] = process.argv.slice(-2);
const agent = await AgentFS.open({ path });
let answer;
try {
  answer = command === "view" ? await view(agent) : await change(agent, JSON.parse(readFileSync(0, "utf8")));
} finally {
  // Unlike Python's, this SDK's close leaves the last writes in the log beside the file. What its fsync does:
  await agent.getDatabase().exec("PRAGMA wal_checkpoint(TRUNCATE)");
  await agent.close();
}
process.stdout.write(JSON.stringify(answer));
