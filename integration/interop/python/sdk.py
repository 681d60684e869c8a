"""Reads, changes or measures an AgentFS with the official Python SDK. JSON in and out.

sdk.py view FILE                one object: the tree, tool calls and key-value pairs
sdk.py change FILE              applies the operations on standard input, an array of objects
sdk.py measure FILE             answers one line for each line on standard input
"""

import asyncio
import base64
import hashlib
import json
import stat
import sys
import time

from agentfs_sdk import AgentFS, AgentFSOptions


async def view(agent):
    nodes = []
    pending = [("/", None)]
    while pending:
        path, _ = pending.pop()
        s = await agent.fs.stat(path)
        node = {
            "path": path, "ino": s.ino, "mode": s.mode, "nlink": s.nlink, "uid": s.uid, "gid": s.gid,
            "size": s.size, "mtime": s.mtime,
        }
        if s.is_directory():
            for name in await agent.fs.readdir(path):
                pending.append((path.rstrip("/") + "/" + name, None))
        elif s.is_symbolic_link():
            # The SDK has no way to read a link's target but its database.
            cursor = await agent.get_database().execute("SELECT target FROM fs_symlink WHERE ino = ?", (s.ino,))
            node["target"] = (await cursor.fetchone())[0]
        elif stat.S_ISREG(s.mode):
            content = await agent.fs.read_file(path, encoding=None)
            node["read"] = len(content)
            node["sha256"] = hashlib.sha256(content).hexdigest()
        nodes.append(node)
    calls = [
        {
            "id": c.id, "name": c.name, "parameters": c.parameters, "result": c.result, "error": c.error,
            "status": c.status, "startedAt": c.started_at, "completedAt": c.completed_at, "durationMs": c.duration_ms,
        }
        for c in await agent.tools.get_recent(-1)
    ]
    return {"chunkSize": agent.fs.get_chunk_size(), "nodes": nodes, "toolCalls": calls, "kv": await agent.kv.list("")}


async def change(agent, operations):
    fs = agent.fs
    for o in operations:
        match o["op"]:
            case "write":
                await fs.write_file(o["path"], base64.b64decode(o.get("content", "")))
            case "mkdir":
                await fs.mkdir(o["path"])
            case "rmdir":
                await fs.rmdir(o["path"])
            case "unlink":
                await fs.unlink(o["path"])
            case "rm":
                await fs.rm(o["path"], recursive=True)
            case "rename":
                await fs.rename(o["path"], o["to"])
            case "copy":
                await fs.copy_file(o["path"], o["to"])
            case "kv":
                await agent.kv.set(o["key"], o["value"])
            case "tool":
                await agent.tools.record(
                    o["name"], o["startedAt"], o["completedAt"], o.get("parameters"), o.get("result"), o.get("error")
                )
            case "tool-pending":
                await agent.tools.start(o["name"], o.get("parameters"))
            case other:
                raise ValueError("no operation " + other)
    return {}


async def measure(agent):
    """A line: {"op": "put" or "get", "directory", "first", "count", "size"}; the answer has its seconds."""
    for line in sys.stdin:
        o = json.loads(line)
        content = bytes(o["size"])
        began = time.perf_counter()
        for i in range(o["first"], o["first"] + o["count"]):
            path = f"{o['directory']}/f{i:07d}"
            if o["op"] == "put":
                await agent.fs.write_file(path, content)
            elif len(await agent.fs.read_file(path, encoding=None)) != o["size"]:
                raise ValueError("read another size")
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)


async def main():
    command, path = sys.argv[1:3]
    agent = await AgentFS.open(AgentFSOptions(path=path))
    try:
        if command == "view":
            answer = await view(agent)
        elif command == "change":
            answer = await change(agent, json.load(sys.stdin))
        else:
            return await measure(agent)
    finally:
        await agent.close()
    json.dump(answer, sys.stdout)


asyncio.run(main())
