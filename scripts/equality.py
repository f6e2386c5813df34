#!/usr/bin/env python3
"""Whether two builds of the program give the same results on the CPU, bit for bit.

  equality.py record BINARY OUT_DIR [--checkpoints DIR] [--only PATTERN] [--jobs N]
      runs the program over the items of equality_items.py and stores what each gave.
  equality.py compare BEFORE AFTER [--expect FILE] [--only PATTERN] [--verbose]
      says of each item whether both records have it equal, else the first difference; exit 0 if
      exactly the items differ that FILE lists.

An item is a directory of a record with one text file a result: stdout, exit code, a digest a row of
logits, ids, the rows of a recording. Times, places in the source (file, line, function) and thread
counts of the machine are left out when they are stored; everything else counts.

FILE has one rule a line, each with its reason behind #; a line that begins with # is a comment:
  differ PATTERN [RESULT] # REASON          items that match differ, in this result (default: any)
  only-before PATTERN # REASON              these items are missing in AFTER
  only-after PATTERN # REASON               these items are missing in BEFORE
  drop PATTERN RESULT COLUMN # REASON       this column of a CSV result is not compared
  rename PATTERN /REGEX/TEXT/ # REASON      in BEFORE, each match of REGEX is read as TEXT
PATTERN is a glob over the item's name, such as trace/*. An item that is listed as differing and is
equal is an error, and so is a rule that nothing needed: a list holds what differs, and no more. Four
counts come last: equal, differ as expected, differ unexpectedly, expected to differ but equal; and
how many items differ for each reason.
"""

import argparse
import csv
import fnmatch
import hashlib
import io
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import equality_items

SOURCE_PLACE = re.compile(r"\b(?:fathom|cli)/[\w/.]+\.(?:cc|cuh|cu|h)\b(?::\d+)?")
TIMED_COLUMNS = {
    "start_us", "us", "file", "function", "total_us", "share_of_time", "avg_us", "p50_us",
    "p99_us", "pct_of_roof", "wall_us", "gap_us",
}
TIMEOUT_S = 300


# ---- Reading what the program wrote


def normal_text(text):
    return SOURCE_PLACE.sub("SOURCE", text)


def normal_csv(name, text):
    rows = list(csv.reader(io.StringIO(text)))
    if not rows:
        return text
    if name == "summary.csv":  # what took longest comes first there
        rows[1:] = sorted(rows[1:], key=lambda row: [t for n, t in zip(rows[0], row)
                                                     if n not in TIMED_COLUMNS])
    kept = [i for i, name in enumerate(rows[0]) if name not in TIMED_COLUMNS]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        writer.writerow([row[i] if i < len(row) else "" for i in kept])
    return normal_text(out.getvalue())


def read_tensors(path):
    """(name, dtype, shape, bytes) of each tensor of a safetensors file, by name."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    for name in sorted(header):
        begin, end = header[name]["data_offsets"]
        entry = header[name]
        yield name, entry["dtype"], entry["shape"], data[8 + size + begin : 8 + size + end]


def digest(data):
    return hashlib.sha256(data).hexdigest()[:32]


def logits_text(path):
    """A line a row: tensor, row, digest of its bits, its first value."""
    lines = []
    for name, dtype, shape, data in read_tensors(path):
        if dtype != "F32" or len(shape) != 2:
            raise ValueError(f"{path}: {name} is {dtype} {shape}, expected F32 of two dimensions")
        width = shape[1]
        for row in range(shape[0]):
            part = data[row * width * 4 : (row + 1) * width * 4]
            (first,) = struct.unpack("<f", part[:4])
            lines.append(f"{name}[{row}] {digest(part)}, the first {first:.9g}")
    return "\n".join(lines) + "\n"


def checkpoint_text(directory):
    """A line a file, and of safetensors files a line a tensor."""
    lines = []
    for path in sorted(directory.iterdir()):
        if path.suffix == ".safetensors":
            for name, dtype, shape, data in read_tensors(path):
                lines.append(f"{path.name} {name} {dtype} {shape} {digest(data)}")
        elif path.is_file():
            lines.append(f"{path.name} {digest(path.read_bytes())}")
    return "\n".join(lines) + "\n"


# ---- record


def collect(item, work, done):
    """The results of an item that ran: file name -> text."""
    results = {"exit": f"{done.returncode}\n"}
    stdout = done.stdout.decode("utf-8", "backslashreplace")
    if item.stdout:
        results["stdout"] = normal_text(stdout)
    if done.returncode != 0 and done.stderr:
        results["stderr"] = normal_text(done.stderr.decode("utf-8", "backslashreplace"))
    for name, path in item.outputs.items():
        path = work / path
        if not path.exists():
            continue
        if name == "logits":
            results[name] = logits_text(path)
        elif name == "checkpoint":
            results[name] = checkpoint_text(path)
        elif name.endswith(".csv"):
            results[name] = normal_csv(name, path.read_text())
        else:
            results[name] = normal_text(path.read_text())
        if item.temporary:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return results


def run_item(item, binary, work, out):
    item.prepare(work)
    # FATHOM_* of the caller would be flags.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FATHOM_")}
    started = time.monotonic()
    try:
        done = subprocess.run([str(binary), *item.args], cwd=work, input=item.stdin.encode(),
                              capture_output=True, env=environment, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        sys.exit(f"equality: {item.name} ran for more than {TIMEOUT_S} s: {' '.join(item.args)}")
    if done.returncode < 0:
        sys.exit(f"equality: {item.name} ended by signal {-done.returncode}: {' '.join(item.args)}")
    folder = out / item.name
    folder.mkdir(parents=True)
    (folder / "command").write_text("fathom " + " ".join(item.args) + "\n")
    for name, text in collect(item, work, done).items():
        (folder / name).write_text(text)
    return item, done.returncode, time.monotonic() - started


def record(args):
    binary = Path(args.binary).resolve()
    out = Path(args.out_dir)
    if out.exists() and any(out.iterdir()):
        sys.exit(f"equality: {out} is not empty, expected a new directory")
    if not os.access(binary, os.X_OK):
        sys.exit(f"equality: {binary} is no program")
    work = out / "work"
    work.mkdir(parents=True)
    stages = equality_items.stages(work, args.checkpoints)
    slowest, refused, count = [], [], 0
    started = time.monotonic()
    for stage, jobs in stages:
        wanted = [i for i in stage if i.makes_model or fnmatch.fnmatch(i.name, args.only)]
        with ThreadPoolExecutor(min(args.jobs, jobs)) as pool:
            for item, code, seconds in pool.map(
                lambda i: run_item(i, binary, work, out), wanted):
                count += 1
                slowest.append((seconds, item.name))
                if code != 0 and not item.may_fail:
                    refused.append(f"{item.name}: exit {code}")
    shutil.rmtree(work)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"equality: {count} items in {time.monotonic() - started:.0f} s "
          f"({usage.ru_utime + usage.ru_stime:.0f} s of CPU), in {out}")
    if args.verbose:
        for seconds, name in sorted(slowest, reverse=True)[:25]:
            print(f"  {seconds:6.2f} s  {name}")
    for line in refused:
        print(f"equality: recorded as refused: {line}")
    return 0


# ---- compare


class Rules:
    """What --expect lists. Each rule counts how often it was needed."""

    def __init__(self, path):
        self.rules = []
        if path is None:
            return
        for number, line in enumerate(Path(path).read_text().splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            line, _, reason = (part.strip() for part in line.partition(" #"))
            if not reason:
                sys.exit(f"equality: {path}:{number}: '{line}' has no reason, expected # and one")
            kind, _, rest = line.partition(" ")
            words = rest.split(None, 1 if kind == "rename" else 2)
            counts = {"differ": (1, 2), "only-before": (1,), "only-after": (1,), "drop": (3,),
                      "rename": (2,)}
            if len(words) not in counts.get(kind, ()):
                sys.exit(f"equality: {path}:{number}: '{line}' is no rule; see --help")
            if kind == "rename":
                parts = re.split(r"(?<!\\)/", words[1])
                if len(parts) != 4 or parts[0] or parts[3]:
                    sys.exit(f"equality: {path}:{number}: expected /REGEX/TEXT/, found {words[1]}")
                words = [words[0], re.compile(parts[1].replace("\\/", "/"), re.MULTILINE), parts[2]]
            self.rules.append({"kind": kind, "words": words, "place": f"{path}:{number}",
                               "line": line, "reason": reason, "used": 0})

    def matching(self, kind, item):
        return [r for r in self.rules
                if r["kind"] == kind and fnmatch.fnmatch(item, r["words"][0])]

    def needed(self, kind, item, result=None):
        """The first rule that lists this; it is needed."""
        for rule in self.matching(kind, item):
            if len(rule["words"]) > 1 and rule["words"][1] != result:
                continue
            rule["used"] += 1
            return rule
        return None

    def rename(self, item, text, used):
        for rule in self.matching("rename", item):
            text, found = rule["words"][1].subn(rule["words"][2], text)
            rule["used"] += found
            used += [rule] * min(found, 1)
        return text

    def drop(self, item, result, text, used):
        for rule in self.matching("drop", item):
            _, name, column = rule["words"]
            if name != result or not result.endswith(".csv"):
                continue
            rows = list(csv.reader(io.StringIO(text)))
            if not rows or column not in rows[0]:
                continue
            rule["used"] += 1
            used.append(rule)
            at = rows[0].index(column)
            out = io.StringIO()
            csv.writer(out, lineterminator="\n").writerows(r[:at] + r[at + 1 :] for r in rows)
            text = out.getvalue()
        return text


def items_of(root):
    if not root.is_dir():
        sys.exit(f"equality: {root} is no record")
    found = {str(p.parent.relative_to(root)) for p in root.rglob("command")}
    if not found:
        sys.exit(f"equality: {root} holds no items")
    return found


def first_difference(before, after, is_csv):
    a, b = before.splitlines(), after.splitlines()
    for number, (x, y) in enumerate(zip(a, b), 1):
        if x == y:
            continue
        if is_csv:
            names, old, new = (next(csv.reader([t])) for t in (a[0], x, y))
            if number > 1 and len(old) == len(new) == len(names):
                parts = [f"{n}: {o!r} -> {w!r}" for n, o, w in zip(names, old, new) if o != w]
                return f"line {number}: " + "; ".join(parts)
        return f"line {number}:\n      before {x[:300]}\n      after  {y[:300]}"
    if len(a) != len(b):
        longer = a if len(a) > len(b) else b
        return (f"{len(a)} lines before, {len(b)} after; the first more is "
                f"{longer[min(len(a), len(b))][:300]}")
    return "line ends differ"


def compare_item(item, before, after, rules):
    """(differences that no rule lists, rules for the others) of one item that both records have."""
    unexpected, needed = [], []
    names = {p.name for root in (before, after) for p in (root / item).iterdir() if p.is_file()}
    for name in sorted(names - {"command"}):
        texts = []
        for root in (before, after):
            path = root / item / name
            texts.append(path.read_text() if path.exists() else None)
        if texts[0] == texts[1]:
            continue
        if None not in texts:
            used = []
            texts[0] = rules.rename(item, texts[0], used)
            texts = [rules.drop(item, name, t, used) for t in texts]
            if texts[0] == texts[1]:
                needed += used
                continue
        if rule := rules.needed("differ", item, name):
            needed.append(rule)
        elif texts[0] is None or texts[1] is None:
            unexpected.append(f"{name}: only in {'AFTER' if texts[0] is None else 'BEFORE'}")
        else:
            unexpected.append(f"{name}: {first_difference(*texts, name.endswith('.csv'))}")
    return unexpected, needed


def compare(args):
    before, after = Path(args.before), Path(args.after)
    rules = Rules(args.expect)
    old, new = (
        {i for i in items_of(root) if fnmatch.fnmatch(i, args.only)} for root in (before, after))
    equal = expected = unexpected = listed_but_equal = 0
    reasons = Counter()
    for item in sorted(old | new):
        if item in new and item in old:
            lines, needed = compare_item(item, before, after, rules)
            shown = (after / item / "command").read_text().strip()[:400]
        else:
            kind = "only-before" if item in old else "only-after"
            rule = rules.needed(kind, item)
            lines, needed, shown = ([], [rule], "") if rule else ([kind], [], "")
        if lines:
            unexpected += 1
            print("\n".join([f"DIFFERENT {item}", f"      {shown}", *(f"    {l}" for l in lines)]))
            continue
        missed = [r for kind in ("differ", "only-before", "only-after")
                  for r in rules.matching(kind, item) if r not in needed]
        for rule in missed:
            print(f"EQUAL {item}, not as {rule['place']} has it: {rule['line']}")
        reasons.update({rule["reason"] for rule in needed})
        equal += not needed and not missed
        expected += bool(needed) and not missed
        listed_but_equal += bool(missed)
        if args.verbose:
            print(f"{'expected ' if needed else 'equal    '} {item}")
    unused = [r for r in rules.rules if r["used"] == 0] if args.only == "*" else []
    for rule in unused:
        print(f"UNNEEDED {rule['place']}: {rule['line']}")
    for reason, count in reasons.most_common():
        print(f"  {count:5}  {reason}")
    print(f"equality: {equal} equal, {expected} differ as expected, {unexpected} differ "
          f"unexpectedly, {listed_but_equal} expected to differ but equal"
          + (f", {len(unused)} rules not needed" if unused else ""))
    return 1 if unexpected or listed_but_equal or unused else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("record")
    sub.add_argument("binary")
    sub.add_argument("out_dir")
    sub.add_argument("--checkpoints", help="directory of more checkpoints: tiny-v3")
    sub.add_argument("--only", default="*", help="glob over item names; models are always made")
    sub.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    sub.add_argument("--verbose", action="store_true", help="name the slowest items")
    sub.set_defaults(function=record)
    sub = commands.add_parser("compare")
    sub.add_argument("before")
    sub.add_argument("after")
    sub.add_argument("--expect", help="file of what is known to differ, a rule and its reason a line")
    sub.add_argument("--only", default="*", help="glob over item names")
    sub.add_argument("--verbose", action="store_true", help="name equal items as well")
    sub.set_defaults(function=compare)
    args = parser.parse_args()
    return args.function(args)


if __name__ == "__main__":
    sys.exit(main())
