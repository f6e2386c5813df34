"""scripts/equality.py compare: what it calls equal, expected and unexpected, and its exit code."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/equality.py"


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for record, ids, table in (("before", "1 2", "a,b\n1,2\n"), ("after", "1 3", "a,b\n1,5\n")):
            self.write(record, "generate/same", "stdout", "text\n")
            self.write(record, "generate/ids", "ids", ids)
            self.write(record, "trace/table", "ops.csv", table)
        self.write("before", "kernels/gone", "stdout", "text\n")

    def write(self, record, item, result, text):
        folder = self.root / record / item
        folder.mkdir(parents=True)
        (folder / "command").write_text("fathom x\n")
        (folder / result).write_text(text)

    def compare(self, *rules):
        (self.root / "expect").write_text("\n".join(rules) + "\n")
        return subprocess.run(
            [sys.executable, SCRIPT, "compare", self.root / "before", self.root / "after",
             "--expect", self.root / "expect"], capture_output=True, text=True)

    ALL = ("# What the new order of sums changes.",
           "differ generate/ids ids # sums in another order",
           "drop trace/* ops.csv b # another unit",
           "only-before kernels/gone # the kernel is deleted")

    def test_exactly_what_is_listed_differs(self):
        done = self.compare(*self.ALL)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("1 equal, 3 differ as expected, 0 differ unexpectedly, "
                      "0 expected to differ but equal", done.stdout)
        self.assertIn("1  sums in another order", done.stdout)

    def test_a_difference_that_is_not_listed_fails(self):
        done = self.compare(*self.ALL[2:])
        self.assertEqual(done.returncode, 1)
        self.assertIn("DIFFERENT generate/ids", done.stdout)
        self.assertIn("2 differ as expected, 1 differ unexpectedly", done.stdout)

    def test_a_listed_item_that_is_equal_fails(self):
        done = self.compare(self.ALL[1].replace("generate/ids ids", "generate/*"), *self.ALL[2:])
        self.assertEqual(done.returncode, 1)
        self.assertIn("EQUAL generate/same", done.stdout)
        self.assertIn("0 equal, 3 differ as expected, 0 differ unexpectedly, "
                      "1 expected to differ but equal", done.stdout)

    def test_a_listed_result_that_is_equal_fails(self):
        done = self.compare(*self.ALL, "differ generate/same stdout # nothing")
        self.assertEqual(done.returncode, 1)
        self.assertIn("EQUAL generate/same", done.stdout)

    def test_a_rule_that_nothing_needs_fails(self):
        done = self.compare(*self.ALL, "differ chat/* # nothing")
        self.assertEqual(done.returncode, 1)
        self.assertIn("UNNEEDED", done.stdout)

    def test_a_rule_has_a_reason(self):
        done = self.compare("differ generate/ids")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("expect:1: 'differ generate/ids' has no reason", done.stderr)


if __name__ == "__main__":
    unittest.main()
