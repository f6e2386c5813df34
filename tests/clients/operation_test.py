"""Metrics, limits, drains and what the server refuses: the program as an operator sees it."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from served import KEY, MODEL, PROGRAM, Server


def post(url, path, body, headers=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        url + path, data, {"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class MetricsTest(unittest.TestCase):
    def test_text_parses_and_counts(self):
        server = Server()
        try:
            post(server.url, "/v1/completions", {"prompt": "Once", "max_tokens": 5})
            post(server.url, "/v1/completions", {"prompt": 7, "max_tokens": 5})
            families = {f.name: f for f in text_string_to_metric_families(server.get("/metrics")[1])}
            tokens = families["fathom:generation_tokens"].samples
            self.assertGreaterEqual(sum(s.value for s in tokens), 1)
            self.assertEqual(families["fathom:time_to_first_token_seconds"].type, "histogram")
            errors = families["fathom:request_errors"].samples
            self.assertGreaterEqual(sum(s.value for s in errors), 1)
            series = sum(len(f.samples) for f in families.values())
            self.assertLess(series, 600)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_prefix_of_other_dashboards(self):
        server = Server("--metrics-prefix", "vllm")
        try:
            names = {f.name: f.type for f in text_string_to_metric_families(server.get("/metrics")[1])}
            for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
                self.assertEqual(names["vllm:" + name], "gauge")
        finally:
            server.stop()


class AccessTest(unittest.TestCase):
    def test_key_guards_all_but_health(self):
        server = Server(env={"FATHOM_API_KEY": KEY})
        try:
            for path in ("/health", "/health/live", "/ready", "/ping", "/"):
                self.assertEqual(server.get(path)[0], 200, path)
            for path in ("/v1/models", "/metrics", "/server_info", "/nothing"):
                self.assertEqual(server.get(path)[0], 401, path)
            self.assertEqual(server.get("/nothing", KEY)[0], 404)
            self.assertEqual(server.get("/v1/models", KEY)[0], 200)
            self.assertNotIn(KEY, server.get("/server_info", KEY)[1])
            self.assertNotIn(KEY, server.read_log())
        finally:
            server.stop()

    def test_no_key_no_foreign_address(self):
        done = subprocess.run([PROGRAM, "serve", MODEL, "--host", "0.0.0.0", "--port", "0"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 64)
        self.assertIn("--api-key-file", done.stderr)

    def test_foreign_host_header(self):
        server = Server()
        try:
            request = urllib.request.Request(server.url + "/v1/models", headers={"Host": "evil.example"})
            with self.assertRaises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=10)
            self.assertEqual(caught.exception.code, 403)
        finally:
            server.stop()


class DrainTest(unittest.TestCase):
    def stream(self, server, max_tokens, out):
        body = json.dumps({"prompt": "Once", "max_tokens": max_tokens, "ignore_eos": True,
                           "stream": True}).encode()
        request = urllib.request.Request(server.url + "/v1/completions", body,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            for line in reply:
                out.append(line.decode())

    def test_running_requests_end(self):
        server = Server()
        lines = []
        thread = threading.Thread(target=self.stream, args=(server, 300, lines))
        thread.start()
        self.assertTrue(server.wait_for(lambda: len(lines) > 5))
        server.process.send_signal(signal.SIGTERM)
        thread.join(60)
        self.assertIn("data: [DONE]\n", lines)
        self.assertEqual(server.process.wait(30), 0)
        server.stop()

    def test_deadline_ends_the_rest(self):
        server = Server("--drain-timeout", "0.2")
        lines = []
        thread = threading.Thread(target=self.stream, args=(server, 1900, lines))
        thread.start()
        self.assertTrue(server.wait_for(lambda: len(lines) > 5))
        begin = time.monotonic()
        self.assertEqual(server.stop(), 0)
        self.assertLess(time.monotonic() - begin, 6)
        thread.join(60)
        text = "".join(lines)
        self.assertTrue("draining" in text or "\"finish_reason\":\"length\"" in text, text[-300:])


class StartTest(unittest.TestCase):
    def test_missing_model(self):
        done = subprocess.run([PROGRAM, "serve", "/nowhere", "--port", "0"], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 65)
        self.assertIn("/nowhere", done.stderr)

    def test_port_is_taken(self):
        taken = socket.create_server(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        done = subprocess.run([PROGRAM, "serve", MODEL, "--port", port], capture_output=True,
                              text=True, timeout=60)
        taken.close()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(port, done.stderr)

    def test_unix_socket(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "socket")
            process = subprocess.Popen([PROGRAM, "serve", MODEL, "--uds", path],
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            try:
                for line in process.stdout:
                    if line.startswith("ready"):
                        break
                client = socket.socket(socket.AF_UNIX)
                client.connect(path)
                client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                reply = b""
                while piece := client.recv(4096):
                    reply += piece
                client.close()
                self.assertTrue(reply.startswith(b"HTTP/1.1 200"), reply)
            finally:
                process.terminate()
                self.assertEqual(process.wait(30), 0)
                process.stdout.close()
            self.assertFalse(os.path.exists(path))


if __name__ == "__main__":
    unittest.main()
