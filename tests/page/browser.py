"""Drives a headless Chromium over its DevTools protocol: a WebSocket client of the few frames that it needs."""

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

KEYS = {"Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowRight": 39, "Tab": 9}


def find_chromium():
    return next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


class Browser:
    """One page. eval() gives the value of an expression; wait() polls one until it is true."""

    def __init__(self, chromium):
        self.folder = tempfile.mkdtemp(prefix="fathom-page-")
        self.process = subprocess.Popen(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0",
             f"--user-data-dir={self.folder}", "--no-first-run", "--disable-background-networking", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file = Path(self.folder) / "DevToolsActivePort"
        for _ in range(300):
            if port_file.exists() and len(port_file.read_text().split()) == 2:
                break
            time.sleep(0.1)
        port = int(port_file.read_text().split()[0])
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json"))
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        path = address.split(str(port), 1)[1]
        nonce = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {nonce}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.rest = b""
        while b"\r\n\r\n" not in self.rest:
            self.rest += self.socket.recv(4096)
        self.rest = self.rest.split(b"\r\n\r\n", 1)[1]
        self.last_id = 0
        self.events = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def close(self):
        self.process.kill()
        self.process.wait()
        self.socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def read(self, size):
        while len(self.rest) < size:
            more = self.socket.recv(1 << 16)
            if not more:
                raise ConnectionError("the browser has gone")
            self.rest += more
        out, self.rest = self.rest[:size], self.rest[size:]
        return out

    def send_frame(self, data):
        mask = os.urandom(4)
        n = len(data)
        size = bytes([0x80 | n]) if n < 126 else b"\xfe" + struct.pack(">H", n) if n < 65536 else b"\xff" + struct.pack(">Q", n)
        self.socket.sendall(b"\x81" + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def read_message(self):
        out = b""
        while True:
            first, second = self.read(2)
            n = second & 127
            if n >= 126:
                n = int.from_bytes(self.read(2 if n == 126 else 8), "big")
            out += self.read(n)
            if first & 0x80:
                return json.loads(out)

    def call(self, method, **params):
        self.last_id += 1
        self.send_frame(json.dumps({"id": self.last_id, "method": method, "params": params}).encode())
        while True:
            message = self.read_message()
            if message.get("id") == self.last_id:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def eval(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression, seconds=15):
        end = time.time() + seconds
        while time.time() < end:
            if self.eval(f"!!({expression})"):
                return
            time.sleep(0.03)
        raise AssertionError(f"still false after {seconds} s: {expression}\npage: {self.eval('document.body.innerText')[:3000]}")

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def reload(self):
        self.eval("window.__old = 1")
        self.call("Page.reload")
        self.wait("!window.__old && document.readyState === 'complete'")

    def size(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, name, ctrl=False, shift=False):
        code = KEYS.get(name, ord(name.upper()[0]))
        event = {"key": name, "windowsVirtualKeyCode": code, "code": name if name in KEYS else "Key" + name.upper(),
                 "modifiers": 2 * ctrl + 8 * shift}
        text = {"text": "\r"} if name == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **event, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def click(self, selector):
        """A real click at the middle of an element, once it stands still: a page that draws an answer moves it, draws
        it anew and scrolls it below the header. Comes back when the page has drawn what follows."""
        x, y = self.eval("(async selector => {"
                         " const place = e => { const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; };"
                         " const frame = () => new Promise(requestAnimationFrame);"
                         " for (const end = performance.now() + 15000; ; ) {"
                         " const e = document.querySelector(selector);"
                         " if (e) { e.scrollIntoView({block: 'nearest'}); const was = place(e);"
                         " await frame(); await frame();"
                         " const now = place(e); const hit = document.elementFromPoint(...now);"
                         " if (e.isConnected && now[0] === was[0] && now[1] === was[1]) {"
                         " if (hit && (e.contains(hit) || hit.contains(e))) return now;"
                         " e.scrollIntoView({block: 'center'}); } }"
                         " else await frame();"
                         " if (performance.now() > end) throw new Error(`no place to click on ${selector} for 15 s`); }"
                         f"}})({json.dumps(selector)})")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="none" if kind == "mouseMoved" else "left", clickCount=1)
        self.eval("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")

    def screenshot(self, path):
        Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
