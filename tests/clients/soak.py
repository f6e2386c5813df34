#!/usr/bin/env python3
"""Long load on a server of the small model: streams that come and go, idle connections, storms.

Starts `fathom serve`, holds --streams requests open at all times and --idle connections that say
nothing, for --minutes; then cuts --storm requests at random points; then sends SIGTERM. Prints a line
of figures every ten seconds and a JSON summary at the end. Exit 1 if a promise is broken: an answer that
nobody asked for, memory that grows after the first minute, pages that do not come back, a health
check that takes longer than 50 ms at the 99th percentile, an exit code that is not 0.
"""

import argparse
import asyncio
import json
import os
import random
import resource
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from served import Server  # noqa: E402


def rss_mb(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        for line in f:
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    return 0.0


class Load:
    def __init__(self, port, seed):
        self.port = port
        self.random = random.Random(seed)
        self.done = 0
        self.tokens = 0
        self.errors = {}
        self.health = []
        self.stop = False

    def error(self, what):
        self.errors[what] = self.errors.get(what, 0) + 1

    def request(self):
        body = json.dumps({
            "prompt": "Once upon a time " * self.random.randint(1, 20), "stream": True,
            "max_tokens": self.random.randint(4, 64), "seed": self.random.randint(0, 10**9)}).encode()
        return (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body)) + body

    async def read_stream(self, reader):
        """One reply; False if it was no good one."""
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        if status != 200:
            length = next(int(l.split(b":")[1]) for l in head.split(b"\r\n")
                          if l.lower().startswith(b"content-length"))
            body = await reader.readexactly(length)
            self.error(f"{status} {json.loads(body)['error']['code']}")
            return False
        data = b""
        while True:
            size = int(await reader.readline(), 16)
            chunk = await reader.readexactly(size + 2)
            if size == 0:
                break
            data += chunk[:-2]
        if b"data: [DONE]" not in data or b'"error"' in data:
            self.error("broken stream")
            return False
        self.tokens += data.count(b"data: ") - 1
        return True

    async def stream_forever(self):
        while not self.stop:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
                while not self.stop:
                    writer.write(self.request())
                    await self.read_stream(reader)
                    self.done += 1
                writer.close()
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                if not self.stop:
                    self.error(f"{type(error).__name__}")
                    await asyncio.sleep(0.1)

    async def idle(self, count):
        """Connections that say nothing, or begin a request and trickle it; made again when closed."""
        writers = []
        while not self.stop:
            writers = [w for w in writers if not w.is_closing()]
            while len(writers) < count and not self.stop:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writers.append(writer)
                except OSError as error:
                    self.error(f"idle {type(error).__name__}")
                    break
                if len(writers) % 200 == 0:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(1)
        for writer in writers:
            writer.close()

    async def watch_health(self):
        while not self.stop:
            begin = time.monotonic()
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                line = await reader.readline()
                if b" 200 " not in line:
                    self.error("health " + line.decode().strip())
                writer.close()
            except OSError as error:
                self.error(f"health {type(error).__name__}")
            self.health.append(time.monotonic() - begin)
            await asyncio.sleep(0.1)

    async def storm(self, count, width=1000):
        """Requests whose clients leave at random points."""
        gate = asyncio.Semaphore(width)

        async def one():
            async with gate:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    data = self.request()
                    writer.write(data[:self.random.randint(1, len(data))] if self.random.random() < 0.3 else data)
                    await asyncio.sleep(self.random.random() * 0.3)
                    writer.transport.abort()
                except OSError as error:
                    self.error(f"storm {type(error).__name__}")

        await asyncio.gather(*(one() for _ in range(count)))


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * p))] if values else 0.0


async def run(args, server):
    load = Load(int(server.url.rsplit(":", 1)[1]), args.seed)
    tasks = [asyncio.create_task(load.stream_forever()) for _ in range(args.streams)]
    tasks += [asyncio.create_task(load.idle(args.idle)), asyncio.create_task(load.watch_health())]
    begin = time.monotonic()
    memory = []
    while time.monotonic() - begin < args.minutes * 60:
        await asyncio.sleep(10)
        now = time.monotonic() - begin
        memory.append((now, rss_mb(server.process.pid)))
        print(f"{now:6.0f} s: {load.done} answers, {load.tokens} tokens, {memory[-1][1]:.1f} MB, "
              f"health p99 {percentile(load.health, .99) * 1e3:.1f} ms, errors {load.errors}", flush=True)
    load.stop = True
    await asyncio.gather(*tasks, return_exceptions=True)
    steady = [mb for at, mb in memory if at > 60] or [memory[-1][1]]
    result = {
        "minutes": args.minutes, "streams": args.streams, "idle": args.idle, "answers": load.done,
        "tokens": load.tokens, "errors": load.errors,
        "health_p99_ms": percentile(load.health, .99) * 1e3,
        "rss_mb_after_a_minute": steady[0], "rss_mb_at_the_end": steady[-1]}
    before = load.errors.copy()
    await load.storm(args.storm)
    left = time.monotonic()
    freed = server.wait_for(lambda: server.metric("fathom:num_requests_running") == 0 and
                            server.metric("fathom:num_requests_waiting") == 0, 30)
    result["storm"] = {"cut": args.storm, "freed": freed, "seconds_to_free": time.monotonic() - left,
                       "errors": {k: v - before.get(k, 0) for k, v in load.errors.items()
                                  if v != before.get(k, 0)}}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--storm", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = Server("--max-queue", "4096", "--max-connections", "16384", "--queue-timeout", "0",
                    "--idle-timeout", "900", "--max-model-len", "1024")
    try:
        result = asyncio.run(run(args, server))
    finally:
        code = server.stop()
    result["exit_code"] = code
    grown = result["rss_mb_at_the_end"] - result["rss_mb_after_a_minute"]
    result["ok"] = bool(not result["errors"] and result["storm"]["freed"] and code == 0 and
                        result["health_p99_ms"] < 50 and grown < 16)
    print(json.dumps(result, indent=2))
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()
