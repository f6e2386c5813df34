#!/usr/bin/env python3
"""What a long prompt does to the streams beside it, on a server that runs.

Opens --streams answers, waits until all have tokens, sends one prompt of --prompt-len random tokens, and
measures the times between two tokens of the streams before the prompt came, while it was computed, and
after its first token. Prints JSON, times in milliseconds. Only the standard library is needed.
"""

import argparse
import asyncio
import json
import random
import time
import urllib.parse


class Stream:
    """One answer of /v1/completions, with the time of each piece."""

    def __init__(self, host, port):
        self.host, self.port = host, port
        self.times = []
        self.first = asyncio.Event()

    async def run(self, prompt, max_tokens):
        body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "stream": True,
                           "ignore_eos": True, "temperature": 0}).encode()
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 22)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise RuntimeError((head + await reader.read(2000)).decode(errors="replace"))
        while True:
            size = int(await reader.readline(), 16)
            chunk = await reader.readexactly(size + 2)
            if size == 0:
                break
            if b'"text"' in chunk:
                self.times.append(time.monotonic())
                self.first.set()
        writer.close()


def gaps(streams, begin, end):
    out = []
    for s in streams:
        out += [b - a for a, b in zip(s.times, s.times[1:]) if begin <= a and b <= end]
    return sorted(out)


def figures(values):
    if not values:
        return {"count": 0}
    at = lambda p: round(values[min(len(values) - 1, int(len(values) * p))] * 1e3, 2)  # noqa: E731
    return {"count": len(values), "median": at(0.5), "p99": at(0.99), "max": at(1.0)}


async def run(args):
    url = urllib.parse.urlsplit(args.url)
    rng = random.Random(args.seed)

    def prompt(length):
        return [rng.randrange(10, args.vocab) for _ in range(length)]

    streams = [Stream(url.hostname, url.port) for _ in range(args.streams)]
    tasks = [asyncio.create_task(s.run(prompt(16), args.tokens)) for s in streams]
    await asyncio.gather(*(s.first.wait() for s in streams))
    await asyncio.sleep(args.settle)
    long = Stream(url.hostname, url.port)
    sent = time.monotonic()
    task = asyncio.create_task(long.run(prompt(args.prompt_len), 1))
    await long.first.wait()
    got = time.monotonic()
    await asyncio.sleep(args.settle)
    end = time.monotonic()
    for t in tasks:
        t.cancel()
    await task
    print(json.dumps({
        "streams": args.streams, "prompt_len": args.prompt_len, "first_token_s": round(got - sent, 3),
        "gaps_ms": {"before": figures(gaps(streams, 0, sent)), "during": figures(gaps(streams, sent, got)),
                    "after": figures(gaps(streams, got, end))}}, indent=2))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2000, help="of each stream, enough to outlast the prompt")
    parser.add_argument("--prompt-len", type=int, default=32768)
    parser.add_argument("--vocab", type=int, default=1000, help="ids of random prompts are below it")
    parser.add_argument("--settle", type=float, default=2.0, help="seconds before and after the prompt")
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
