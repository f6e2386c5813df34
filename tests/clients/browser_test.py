"""The page of the real server in a headless Chromium (tests/page has the checks with canned answers)."""

import os
import subprocess
import sys
import unittest

from served import ROOT, Server


class BrowserTest(unittest.TestCase):
    def test_page(self):
        server = Server()
        try:
            done = subprocess.run(
                [sys.executable, os.path.join(ROOT, "tests/page/page_test.py"), "--url", server.url + "/"],
                capture_output=True, text=True, timeout=300)
            if done.returncode == 77:
                self.skipTest("there is no Chromium here")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        finally:
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
