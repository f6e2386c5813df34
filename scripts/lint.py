#!/usr/bin/env python3
"""Rules of the house that a script can check. Prints file:line: rule: what to do; exit 1 on any.

The table of allowed includes below is the data that the build and the documents refer to.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import check_reference_calls

ROOT = Path(__file__).resolve().parent.parent

BELOW_LAYERS = {"kernels", "weights", "trace", "device", "tensor", "formats", "base"}
ALLOWED = {
    "base": set(),
    "os": {"base"},
    "text": {"base"},
    "formats": {"base"},
    "tensor": {"formats", "base"},
    "device": {"tensor", "os", "base", "formats"},
    "trace": {"device", "tensor", "formats", "base"},
    "kernels": {"trace", "device", "tensor", "formats", "os", "base"},
    "weights": {"device", "tensor", "formats", "text", "os", "base"},
    "tokenizer": {"text", "os", "base"},
    "layers": BELOW_LAYERS | {"os"},
    "models": BELOW_LAYERS | {"os", "layers", "text"},
}
ALLOWED["runtime"] = ALLOWED["models"] | {"models", "tokenizer"}
ALLOWED["bench"] = ALLOWED["runtime"] | {"runtime", "api"}
ALLOWED["report"] = ALLOWED["bench"] | {"bench"}
ALLOWED["api"] = ALLOWED["runtime"] | {"runtime"}
ALLOWED["grammar"] = {"runtime", "tokenizer", "text", "os", "base"}
ALLOWED["serve"] = {"api", "runtime", "grammar", "tokenizer", "text", "os", "base"}

# A header of a library, and the only files that may include it.
LIBRARIES = {
    r"nlohmann/": r"fathom/text/json\.cc",
    r"CLI/": r"cli/",
    r"yaml-cpp/": r"cli/",
    r"(fmt|spdlog)/": r".*\.cc",
    r"editline/|histedit": r"cli/",
    r"(boost|openssl)/|zlib\.h|zstd\.h": r"fathom/serve/http/",
    r"prometheus/": r"fathom/serve/metrics/",
    r"xgrammar/": r"fathom/grammar/",
    r"(cuda|cublas|nvtx|nccl)": r".*(\.cu|\.cuh|_cuda\.cc)|fathom/device/.*|fathom/kernels/cuda/.*",
}
BANNED_NAMES = {"util", "utils", "common", "misc", "helpers", "helper", "manager", "stuff"}
BANNED_CODE = [
    (r"\bgetenv\b", "read the environment in cli/flags.cc only", r"cli/flags\.cc|fathom/base/fail_point\.cc"),
    (r"\bthrow\b", "return a Status", r"fathom/base/rng\.h"),
    (r"\bstd::regex\b", "no regex engine at run time", None),
    (r"\b(stoi|stol|stoll|stof|stod|atoi|atof|sscanf|alloca)\s*\(", "use from_chars or parse by hand", None),
]
BANNED_ANYWHERE = re.compile("|".join(["TO" + "DO", "FIX" + "ME", r"\bX" + "XX" + r"\b", "HA" + r"CK\b"]))
MAX_LINES, WARN_LINES = 600, 500
MAX_FILES, WARN_FILES = 15, 13
SOURCE = {".h", ".cc", ".cu", ".cuh", ".py", ".cmake"}

problems: list[str] = []
warnings: list[str] = []


def problem(path: Path, line: int, text: str) -> None:
    problems.append(f"{path}:{line}: {text}")


def tracked() -> list[Path]:
    out = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                         cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(p) for p in out.splitlines() if (ROOT / p).is_file()]


def strip_comments(line: str) -> str:
    return re.sub(r'"(\\.|[^"\\])*"', '""', line).split("//")[0]


def check_includes(path: Path, lines: list[str]) -> None:
    parts = path.parts
    module = parts[1] if parts[0] == "fathom" and len(parts) > 2 else None
    is_test = path.stem.endswith("_test") or parts[0] == "tests"
    for number, line in enumerate(lines, 1):
        found = re.match(r'\s*#include\s+["<]([^">]+)[">]', line)
        if not found:
            continue
        target = found.group(1)
        if module and target.startswith("fathom/") and not is_test:
            other = target.split("/")[1]
            if other != module and other not in ALLOWED[module]:
                problem(path, number, f"include: {module} may not include {other}")
        for pattern, allowed in LIBRARIES.items():
            if re.match(pattern, target) and not is_test and not re.match(allowed + "$" if allowed.endswith(")") else allowed, str(path)):
                problem(path, number, f"include: {target} belongs behind {allowed}")


def check_source(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    generated = "generated" in path.parts or path.stem.endswith("_table")
    exempt = path.parts[0] == "tests" or path.stem.endswith("_test") or generated
    if len(lines) > MAX_LINES and not exempt:
        problem(path, 1, f"size: {len(lines)} lines, at most {MAX_LINES}; split by concept")
    elif len(lines) > WARN_LINES and not generated:
        warnings.append(f"{path}:1: size: {len(lines)} lines")
    if path.suffix in {".h", ".cuh"} and "#pragma once" not in text:
        problem(path, 1, "header: needs #pragma once")
    if path.suffix in {".h", ".cc", ".cu", ".cuh"}:
        check_includes(path, lines)
        for number, line in enumerate(lines, 1):
            code = strip_comments(line)
            # Device code speaks the vocabulary of fathom/kernels/cuda, and the parts of its own kernel,
            # without a prefix.
            device_words = path.suffix in (".cu", ".cuh") and code.startswith(
                ("using namespace cuda;", f"using namespace {path.parent.name};"))
            if re.match(r"using namespace", code) and not device_words:
                problem(path, number, "code: no using namespace at file scope")
            for pattern, advice, allowed in BANNED_CODE:
                if re.search(pattern, code) and not (allowed and re.match(allowed, str(path))):
                    problem(path, number, f"code: {pattern}: {advice}")
    for number, line in enumerate(lines, 1):
        if BANNED_ANYWHERE.search(line):
            problem(path, number, "marker: no unfinished work on the main branch")


def check_names(path: Path) -> None:
    for part in [*path.parts[:-1], path.stem]:
        if part.lower() in BANNED_NAMES:
            problem(path, 1, f"name: {part} says nothing; name the concept")


def check_folders(paths: list[Path]) -> None:
    exempt = {"docs", "tests", "results", "models"}
    counts = Counter(p.parent for p in paths
                     if p.suffix in SOURCE and p.parts[0] not in exempt and not p.stem.endswith("_test"))
    for folder, count in counts.items():
        # A header and its source are one thing to a reader: count stems.
        stems = {p.stem for p in paths if p.parent == folder and p.suffix in SOURCE
                 and not p.stem.endswith("_test")}
        if len(stems) > MAX_FILES:
            problem(folder, 1, f"folder: {len(stems)} sources, at most {MAX_FILES}; split by concept")
        elif len(stems) > WARN_FILES:
            warnings.append(f"{folder}: folder: {len(stems)} sources ({count} files)")


def defined_types(text: str) -> list[tuple[str, int]]:
    """Types that a formatted file defines in named namespaces, qualified, each with its line."""
    types: list[tuple[str, int]] = []
    spaces: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r"(?:inline )?namespace ?([\w:]*) ?\{", line):
            spaces.append(found.group(1))
        elif re.match(r"\}\s*// namespace", line) and spaces:
            spaces.pop()
        elif "" not in spaces:
            found = re.match(r"(?:struct|class|enum|enum class|union) (\w+)(?: final)?\s*(?::[^:;].*)?\{", line)
            if found:
                types.append(("::".join([*spaces, found.group(1)]), number))
    return types


def check_types(paths: list[Path]) -> None:
    """Two types of one name in one program are one type to the linker."""
    seen: dict[str, Path] = {}
    for path in paths:
        if path.parts[0] not in {"fathom", "cli"} or path.suffix not in {".h", ".cuh", ".cc", ".cu"}:
            continue
        for name, line in defined_types((ROOT / path).read_text(encoding="utf-8")):
            if seen.setdefault(name, path) != path:
                problem(path, line, f"type: {name} is defined in {seen[name]} too; name the difference")


def check_kernels(paths: list[Path]) -> None:
    known = set(paths)
    listed: dict[Path, list[str]] = {}
    text = (ROOT / "fathom/kernels/kernels.def").read_text()
    for found in re.finditer(r"^FATHOM_KERNEL\(([^)]*)\)", text, re.M):
        family, group, contract, name, backends = [p.strip() for p in found.group(1).split(",")]
        folder = Path("fathom/kernels") / family / group
        listed.setdefault(folder, []).append(name)
        needed = [f"{group}.h", f"{group}_cases.cc"]
        if "CUDA" in backends:
            needed.append(f"{group}_cuda.cu")
        for file in needed:
            if folder / file not in known:
                problem(folder / file, 1, f"kernels.def: {name} needs this file")
        header = ROOT / folder / f"{group}.h"
        if header.is_file() and not re.search(rf"^///.*\n(?:///.*\n)*struct {contract} ", header.read_text(), re.M):
            problem(folder / f"{group}.h", 1, f"kernels.def: contract {contract} needs its /// comment")
    for path in paths:
        parts = path.parts
        if parts[:2] == ("fathom", "kernels") and len(parts) == 5:
            folder = path.parent
            if parts[2] not in {"core", "conformance", "simd", "cpu", "cuda"} and folder not in listed:
                problem(path, 1, "kernels.def: this group has no line in kernels.def")


def run_side_by_side(commands: list[tuple[list[str], str]]) -> list[subprocess.CompletedProcess[str]]:
    """The results of commands, each with its standard input, in their order; one a processor at a time."""
    def run(command: tuple[list[str], str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command[0], cwd=ROOT, input=command[1], capture_output=True, text=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(run, commands))


def check_format(paths: list[Path]) -> None:
    files = [str(p) for p in paths if p.suffix in {".h", ".cc", ".cu", ".cuh"}]
    shares = [files[i::8] for i in range(8)]
    for run in run_side_by_side([(["clang-format", "--dry-run", "-Werror", *share], "") for share in shares]):
        for line in run.stderr.splitlines():
            found = re.match(r"(.+?):(\d+):\d+: error: ", line)
            if found:
                problem(Path(found.group(1)), int(found.group(2)), "format: run scripts/format.sh")


def check_headers_alone(paths: list[Path]) -> None:
    """Every header compiles alone. Those that a source of the CPU build includes first are compiled
    so by that build; `#pragma once` is looked for in the text."""
    first = set()
    for path in paths:
        if path.suffix == ".cc" and "cuda" not in str(path):
            found = re.search(r'^#include [<"](.+)[>"]', (ROOT / path).read_text(), re.M)
            first.add(found.group(1) if found else "")
    headers = [p for p in paths if p.suffix == ".h" and p.parts[0] in {"fathom", "cli"} and str(p) not in first
               and not re.search(r"(avx2|avx512|amx|neon|_loops)\.h$|/simd/", str(p))]
    compiler = ["g++", "-std=c++20", "-fsyntax-only", "-I.", "-x", "c++", "-"]
    runs = run_side_by_side([(compiler, f'#include "{h}"\n') for h in headers])
    for header, run in zip(headers, runs):
        if run.returncode != 0:
            first_error = next((l for l in run.stderr.splitlines() if "error" in l), "does not compile")
            problem(header, 1, f"header: does not compile alone: {first_error}")


def check_calls() -> None:
    for text in check_reference_calls.check(ROOT):
        problem(check_reference_calls.DATA, 1, f"reference calls: {text}")


def main() -> int:
    paths = tracked()
    for path in paths:
        if "corpus" in path.parts or "golden" in path.parts:
            continue
        check_names(path)
        if path.suffix in SOURCE:
            check_source(path)
    check_folders(paths)
    check_types(paths)
    check_kernels(paths)
    check_calls()
    check_format(paths)
    if "--fast" not in sys.argv:
        check_headers_alone(paths)
    for text in warnings:
        print(f"warning: {text}")
    for text in problems:
        print(text)
    print(f"lint: {len(paths)} files, {len(problems)} problems, {len(warnings)} warnings")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
