"""The web page in a headless Chromium: all of it with canned answers, and what holds for any model with the real server."""

import os
import subprocess
import sys
import unittest

from served import ROOT, Server


class BrowserTest(unittest.TestCase):
    def check_page(self, *flags):
        done = subprocess.run([sys.executable, os.path.join(ROOT, "tests/page/page_test.py"), *flags],
                              capture_output=True, text=True, timeout=300)
        if done.returncode == 77:
            self.skipTest("there is no Chromium here")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_page_with_canned_answers(self):
        self.check_page()

    def test_page_of_the_server(self):
        server = Server()
        try:
            self.check_page("--url", server.url + "/")
        finally:
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
