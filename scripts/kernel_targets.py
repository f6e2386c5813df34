#!/usr/bin/env python3
"""Times of `fathom bench kernel --suite v4` and `v32` beside the targets of the design.

    kernel_targets.py DIR [DIR ...]      directories of --out-dir, or their all_kernels.csv

kernel_targets.csv holds the targets: microseconds on one H200, cold L2, graph replay (the design's
performance.md, section 3.2), and for each row the kernels whose times add up to it, each with the
axes of its shape; `t` in an axis is the number of tokens. Prints a Markdown table; a row that is not
ok has its status in place of a time.
"""
import csv
import sys
from pathlib import Path

TARGETS = Path(__file__).with_name("kernel_targets.csv")


def read_rows(paths: list[str]) -> list[dict[str, str]]:
    rows = []
    for path in map(Path, paths):
        with open(path / "all_kernels.csv" if path.is_dir() else path, newline="") as f:
            rows += csv.DictReader(f)
    for row in rows:
        row["axes"] = dict(axis.split("=", 1) for axis in row["shape"].split(";") if axis)
    return rows


def axes_at(text: str, tokens: int) -> dict[str, str]:
    """"R=6t;K=4096" at two tokens: R 12, K 4096."""
    axes = dict(axis.split("=", 1) for axis in text.split(";"))
    return {name: str(int(value[:-1] or 1) * tokens) if value.endswith("t") else value
            for name, value in axes.items()}


def find(rows: list[dict[str, str]], part: str, tokens: int) -> dict[str, str] | None:
    """The first row of the part; the others are the same call in a larger cache."""
    kernel, shape = part.split(" ", 1)
    wanted = axes_at(shape, tokens)
    for row in rows:
        if row["kernel"] == kernel and wanted.items() <= row["axes"].items():
            return row
    return None


def measured(rows: list[dict[str, str]], parts: str, tokens: int) -> tuple[float | None, str]:
    """Microseconds of all parts together, or why there are none."""
    total = 0.0
    for part in parts.split(" + "):
        row = find(rows, part, tokens)
        if row is None:
            return None, "no row"
        if row["status"] != "ok":
            return None, row["status"]
        total += float(row["us_median"])
    return total, ""


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip())
        return 0 if sys.argv[1:] == ["--help"] else 64
    rows = read_rows(sys.argv[1:])
    print("| op | shape | measured us | target us | ratio | note |\n|---|---|---:|---:|---:|---|")
    with open(TARGETS, newline="") as f:
        for target in csv.DictReader(f):
            for column, limit in target.items():
                if not column[1:].isdigit() or not limit:
                    continue
                tokens = int(column[1:])
                us, why = measured(rows, target["parts"], tokens)
                print(f"| {target['row']} | {tokens} tokens | {why if us is None else f'{us:.2f}'} | {limit} | "
                      f"{'-' if us is None else f'{us / float(limit):.2f}'} | {target['note']} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
