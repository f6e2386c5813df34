#!/usr/bin/env python3
"""A server that answers as `fathom serve` does, from canned text: what page_test.py drives the page with.

What a message contains picks what comes back:
  "hostile"  HTML and links that must stay text        "slow"     many words, 30 ms apart
  "cut"      the connection breaks within the answer   "context"  400 context_length_exceeded
  "drain"    503 draining                              "length"   finish_reason length
  "fault"    an error event within the stream          "long"     ten thousand words at once
GET /mock?key=K&health=draining&thinking=0&metrics=0 changes the server; GET /mock gives the last body of
a chat request.
"""

import argparse
import base64
import hashlib
import json
import math
import re
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PAGE = Path(__file__).resolve().parents[2] / "fathom/serve/page/page.html"

REASONING = ("The question asks how the compressed cache of latent attention works. "
             "First the shapes, then the cost.\n\n* latent rank 512\n* rope part 64\n")
ANSWER = """## Latent attention in short

The keys and values of *all* heads come from **one latent vector** a token, so the cache holds
576 numbers instead of 32,768. In decode, `W_uk` is folded into the query:

1. project the query, \\(q_c = W_{uk}^T q\\)
2. take scores against the latent rows
   - softmax over tokens
   - weighted sum, still in latent space
3. bring the result back with `W_uv`

| Cache | Numbers a token | Bytes in BF16 |
|:--|--:|--:|
| multi-head | 32,768 | 65,536 |
| latent | 576 | 1,152 |

```python
def scores(q_latent, cache):  # [heads, rank], [tokens, rank]
    for t, row in enumerate(cache):
        yield sum(a * b for a, b in zip(q_latent, row)) * 0.1352, f"token {t}"
```

> The latent row is read once for all heads: that is why decode is bound by memory.

See [the paper](https://arxiv.org/abs/2405.04434) for the derivation.
"""
HOSTILE = """<img src=x onerror="window.__pwned=1"> and <script>window.__pwned=2</script>

<svg onload="window.__pwned=3"></svg> [run](javascript:window.__pwned=4) [data](data:text/html,<script>1</script>)
[ok](https://example.org/a_(b)) <a href="#" onclick="window.__pwned=5">x</a> **bold <b>not</b>**

| <img src=x onerror=window.__pwned=6> | b |
|--|--|
| `<script>` | <iframe srcdoc="<script>parent.__pwned=7</script>"></iframe> |

```html"><img src=x onerror=window.__pwned=8>
<script>window.__pwned=9</script>
```

* <style>body{display:none}</style>
  # </textarea><base href="https://example.org/">
"""
GIB = 2**30
OPS = [
    # op, layer_kind, kernel, shape, dtype, calls, us, bytes, flops, bound, roof_us
    ("experts_gate_up", "moe", "grouped_gemm_fp8_block", "8x4096x7168", "fp8_block", 58, 2710.4, 9.7e9, 3.1e10, "memory", 2015.0),
    ("experts_down", "moe", "grouped_gemm_fp8_block", "8x7168x2048", "fp8_block", 58, 1398.2, 4.9e9, 1.6e10, "memory", 1012.0),
    ("mla_decode", "mla", "mla_decode_split_kv", "1x128x576x8192", "bf16", 61, 905.1, 5.8e8, 8.3e9, "memory", 121.0),
    ("q_b_proj", "mla", "gemv_fp8_block", "1x24576x1536", "fp8_block", 61, 612.0, 2.3e9, 4.6e9, "memory", 480.0),
    ("o_proj", "mla", "gemv_fp8_block", "1x7168x16384", "fp8_block", 61, 1490.8, 7.2e9, 1.4e10, "memory", 1495.0),
    ("router", "moe", "route_rows", "1x256x7168", "f32", 58, 188.7, 4.3e8, 2.1e8, "latency", 89.0),
    ("rms_norm", "any", "rms_norm_rows", "1x7168", "bf16", 123, 96.3, 3.5e6, 2.6e6, "latency", 1.0),
    ("lm_head", "head", "gemv_bf16", "1x129280x7168", "bf16", 1, 402.5, 1.85e9, 1.9e9, "memory", 386.0),
]


class State:
    def __init__(self):
        self.key = ""
        self.health = "ready"
        self.thinking = True
        self.metrics = True
        self.body = None
        self.started = time.time()
        self.generated = 0
        self.prompts = 0
        self.running = 0
        self.ttft = []
        self.itl = []
        self.gone = 0


def policy_of(html):
    def source(tag):
        found = re.search(f"<{tag}>(.*?)</{tag}>", html, re.S)
        digest = hashlib.sha256(found.group(1).encode()).digest()
        return "'sha256-" + base64.b64encode(digest).decode() + "'"
    return (f"default-src 'none'; script-src {source('script')}; style-src {source('style')}; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'")


def metrics_text(state):
    out = []

    def add(name, kind, rows):
        out.append(f"# TYPE fathom:{name} {kind}")
        for suffix, labels, value in rows:
            words = "".join(f',{k}="{v}"' for k, v in labels.items())
            out.append(f'fathom:{name}{suffix}{{model_name="mock",engine="0"{words}}} {value}')

    def histogram(name, values, bounds):
        rows = [("_bucket", {"le": b}, sum(v <= b for v in values)) for b in bounds]
        add(name, "histogram", [*rows, ("_bucket", {"le": "+Inf"}, len(values)), ("_sum", {}, sum(values)), ("_count", {}, len(values))])

    age = time.time() - state.started
    add("num_requests_running", "gauge", [("", {}, state.running + 3)])
    add("num_requests_waiting", "gauge", [("", {}, 1)])
    add("kv_cache_usage_perc", "gauge", [("", {}, 0.37)])
    add("prompt_tokens_total", "counter", [("", {}, state.prompts + int(age * 410))])
    add("generation_tokens_total", "counter", [("", {}, state.generated + int(96 * age + 60 * math.sin(age)))])
    add("prefix_cache_queries_total", "counter", [("", {}, 20000 + state.prompts)])
    add("prefix_cache_hits_total", "counter", [("", {}, 14200)])
    add("num_preemptions_total", "counter", [("", {}, 2)])
    add("request_success_total", "counter", [("", {"finished_reason": "stop"}, 41), ("", {"finished_reason": "length"}, 3)])
    add("request_errors_total", "counter", [("", {"code": "context_length_exceeded"}, 1), ("", {"code": "queue_full"}, 0)])
    histogram("time_to_first_token_seconds", [0.09, 0.12, 0.2, 0.31, 0.7, *state.ttft], [.05, .1, .25, .5, .75, 1, 2.5])
    histogram("inter_token_latency_seconds", [0.011, 0.012, 0.013, 0.02, 0.04] * 20 + state.itl, [.005, .01, .025, .05, .1, 1])
    add("step_seconds", "histogram", [("_sum", {"phase": "decode"}, age * 0.6), ("_count", {"phase": "decode"}, int(age * 70))])
    add("device_memory_bytes", "gauge", [("", {"device": "cuda:0", "kind": k}, v) for k, v in
                                         [("weights", 61.2 * GIB), ("kv_cache", 9.5 * GIB), ("workspace", 1.4 * GIB), ("graphs", 0.4 * GIB)]])
    add("kernel_fallback_info", "gauge", [("", {"op": "router", "wanted": "route_rows_warp", "used": "route_rows", "reason": "256 experts"}, 1)])
    return "\n".join(out) + "\n"


def server_info(state):
    info = {
        "version": "0.1.0", "commit": "mock", "uptime_s": time.time() - state.started,
        "model": {"name": "mock-v3", "path": "/models/mock-v3", "architecture": "DeepseekV3ForCausalLM",
                  "formats": "fp8_block", "parameters": 671e9, "bytes": int(61.2 * GIB), "max_model_len": 8192},
        "device": {"name": "a canned device", "detail": "132 SMs, 78 GiB"},
        "mode": {"decode": "graphs", "weights": "fp8_block", "kv": "bf16", "kernels": "tuned"},
        "memory_plan": [{"kind": "weights", "device": "cuda:0", "bytes": int(61.2 * GIB), "note": "256 experts of 58 layers"},
                        {"kind": "kv_cache", "device": "cuda:0", "bytes": int(9.5 * GIB), "note": "142,080 tokens"}],
        "sampling_defaults": {"temperature": 0.6, "top_p": 0.95},
        "structured_output": True, "step_measurement": True,
    }
    if state.thinking:
        info["model"]["thinking"] = {"default": "on", "efforts": ["high", "max"]}
    return info


def step(phase):
    names = ["op", "layer_kind", "kernel", "shape", "dtype", "calls", "us", "bytes", "flops", "bound", "roof_us"]
    ops = [dict(zip(names, row)) for row in OPS]
    whole = sum(op["us"] for op in ops)
    for op in ops:
        op["share"] = op["us"] / whole
        op["pct_of_roof"] = 100 * op["roof_us"] / op["us"]
    return {"phase": phase, "tokens": 1 if phase == "decode" else 512, "step_us": whole + 210.0, "ops": ops}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def give(self, status, body, kind="application/json", headers=()):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def error(self, status, code, message, headers=()):
        self.give(status, {"error": {"message": message, "type": "x", "param": None, "code": code}}, headers=headers)

    def locked(self):
        state = self.server.state
        if not state.key or self.headers.get("Authorization") == "Bearer " + state.key:
            return False
        self.error(401, "invalid_api_key", "this server needs an API key: Authorization: Bearer KEY")
        return True

    def do_GET(self):
        state, url = self.server.state, urlsplit(self.path)
        path = url.path.removeprefix(self.server.root)
        if path == "/mock":
            for name, (value,) in parse_qs(url.query, keep_blank_values=True).items():
                setattr(state, name, value if name in ("key", "health") else value == "1")
            return self.give(200, {"body": state.body, "gone": state.gone})
        if path == "/":
            html = PAGE.read_text(encoding="utf-8")
            return self.give(200, html, "text/html; charset=utf-8", [("Content-Security-Policy", policy_of(html))])
        if path == "/health":
            return self.give(200 if state.health == "ready" else 503, {"status": state.health})
        if self.locked():
            return None
        if path == "/v1/models":
            return self.give(200, {"object": "list", "data": [{"id": "mock-v3", "object": "model", "max_model_len": 8192}]})
        if path == "/server_info":
            return self.give(200, server_info(state))
        if path == "/server_info/step":
            return self.give(200, step(parse_qs(url.query)["phase"][0]))
        if path == "/metrics" and state.metrics:
            return self.give(200, metrics_text(state), "text/plain; version=0.0.4")
        return self.error(404, "route_not_found", f"no route {path}")

    def do_POST(self):
        state = self.server.state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.locked():
            return None
        state.body = body
        said = [m["content"] for m in body["messages"] if m["role"] == "user"][-1]
        if "context" in said:
            return self.error(400, "context_length_exceeded", "`max_tokens` 9000 + prompt 412 tokens exceeds max_model_len 8192")
        if "drain" in said or state.health == "draining":
            return self.error(503, "draining", "the server is shutting down and takes no new requests", [("Retry-After", "5")])
        return self.stream(body, said)

    def stream(self, body, said):
        state = self.server.state
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def event(data):
            text = "data: " + (data if isinstance(data, str) else json.dumps(data)) + "\n\n"
            self.wfile.write(f"{len(text.encode()):x}\r\n{text}\r\n".encode())
            self.wfile.flush()

        def delta(finish=None, **parts):
            event({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": parts, "finish_reason": finish}]})

        text, pause = ANSWER, 0.004
        if "hostile" in said:
            text, pause = HOSTILE, 0
        if "slow" in said:
            text, pause = "word " * 400, 0.03
        if "long" in said:
            text, pause = (ANSWER + "\n") * 60, 0
        goes_on = body["messages"][-1].get("prefix")
        if goes_on:
            text, pause = "and this is the rest.", 0.01
        pieces = re.findall(r"\S*\s*", text)
        state.running += 1
        start = time.time()
        try:
            delta(role="assistant", content="")
            off = body.get("thinking", {}).get("type") == "disabled"
            if state.thinking and not off and not goes_on:
                for piece in re.findall(r"\S*\s*", REASONING):
                    delta(reasoning_content=piece)
                    time.sleep(pause)
            state.ttft.append(time.time() - start)
            for i, piece in enumerate(pieces):
                if piece:
                    delta(content=piece)
                    time.sleep(pause)
                if "cut" in said and not goes_on and i == 12:
                    self.close_connection = True
                    return self.connection.shutdown(2)
                if "fault" in said and i == 12:
                    event({"error": {"message": "the engine stopped", "type": "server_error", "param": None, "code": "engine_fault"}})
                    event("[DONE]")
                    return self.wfile.write(b"0\r\n\r\n")
            delta(finish="length" if "length" in said and not goes_on else "stop")
            n = len(pieces)
            usage = {"prompt_tokens": 1204, "completion_tokens": n, "total_tokens": 1204 + n,
                     "prompt_tokens_details": {"cached_tokens": 1024}, "completion_tokens_details": {"reasoning_tokens": 28}}
            timings = {"queue_ms": 1.5, "prompt_ms": 180.0, "predicted_ms": 1000.0 * n / 38.4, "predicted_per_second": 38.4, "cache_n": 1024}
            event({"object": "chat.completion.chunk", "choices": [], "usage": usage, "timings": timings})
            event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
            state.generated += n
            state.prompts += 1204
        except OSError:  # the client stopped
            state.gone += 1
            self.close_connection = True
        finally:
            state.running -= 1


def start(port=0, root=""):
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.state = State()
    server.root = root
    return server


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--port", type=int, default=8100)
    flags.add_argument("--root", default="", help="a path before all routes: /fathom")
    args = flags.parse_args()
    server = start(args.port, args.root)
    print(f"http://127.0.0.1:{server.server_port}{args.root}/")
    server.serve_forever()


if __name__ == "__main__":
    main()
