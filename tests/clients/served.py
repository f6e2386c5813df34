"""A `fathom serve` of the small model for the time of a test module."""

import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("FATHOM_PROGRAM", os.path.join(ROOT, "build/release/fathom"))
MODEL = os.path.join(ROOT, "models/tiny-v3-nvfp4")
KEY = "test-key-of-the-clients"


class Server:
    """Starts the program on a free port and waits until it says that it is ready."""

    def __init__(self, *flags, model=MODEL, env=None):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)
        command = [PROGRAM, "serve", model, "--port", "0", *flags]
        self.begin = time.monotonic()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, **(env or {})})
        self.url = None
        for line in self.process.stdout:
            found = re.match(r"ready (http\S+)", line)
            if found:
                self.url = found.group(1)
                break
        self.ready_after = time.monotonic() - self.begin
        if self.url is None:
            self.process.wait()
            raise RuntimeError(f"{' '.join(command)} ended with {self.process.returncode}:\n{self.read_log()}")

    def read_log(self):
        with open(self.log.name, encoding="utf-8") as f:
            return f.read()

    def get(self, path, key=None):
        """Status and text of a GET; errors of HTTP are answers too."""
        request = urllib.request.Request(self.url + path)
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name):
        """The sum of a metric's samples."""
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(name + "{") or line.startswith(name + " "):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def wait_for(self, condition, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.02)
        return False

    def stop(self, sig=signal.SIGTERM):
        """Sends a signal; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
            self.process.wait(60)
        self.process.stdout.close()
        self.log.close()
        os.unlink(self.log.name)
        return self.process.returncode
