"""The OpenAPI description, fuzzed: no request that follows or breaks it gets a 5xx or harms the server."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from served import Server

CASES = os.environ.get("FATHOM_SCHEMA_CASES", "25")


class SchemaTest(unittest.TestCase):
    def test_description_lists_the_routes(self):
        server = Server()
        try:
            document = json.loads(server.get("/openapi.json")[1])
            for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses",
                         "/tokenize", "/v1/models", "/metrics", "/health"):
                self.assertIn(path, document["paths"])
        finally:
            server.stop()

    def test_no_request_breaks_the_server(self):
        server = Server("--max-model-len", "256", "--max-num-seqs", "4")
        try:
            with tempfile.TemporaryDirectory() as folder:
                done = subprocess.run(
                    [os.path.join(os.path.dirname(sys.executable), "schemathesis"), "run",
                     server.url + "/openapi.json", "--url", server.url, "--checks", "not_a_server_error",
                     "--phases", "examples,fuzzing", "--max-examples", CASES, "--seed", "1",
                     "--request-timeout", "60", "--exclude-path-regex", "health_generate|profile|/step"],
                    capture_output=True, text=True, timeout=1200, cwd=folder)
            self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])
            self.assertEqual(server.get("/health")[0], 200)
        finally:
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
