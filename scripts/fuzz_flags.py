#!/usr/bin/env python3
"""Runs every command with drawn flags and says where one ends as none should.

The flags come from `fathom help --json`: words, numbers, files and folders that fit and that do
not, empty, huge, of other alphabets, repeated. What counts as a finding: a signal, no end within
the time limit, an exit code that docs/cli.md does not list or that means a fault of the engine,
and a failure that says nothing. A run is repeated by its command, its number and the seed.

    scripts/fuzz_flags.py [--runs 1000] [--seed 1] [--only COMMAND]... [--at N] [--program FILE]

Files are written into a temporary folder only. Work is bounded by small defaults, by limits of
memory and of file sizes, and by the values that are drawn for the flags that make work.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTED = {0, 1, 64, 65, 69, 74, 78, 130}  # docs/cli.md, without 70: a fault of the engine
INVALID = ["", " ", "-1", "x", "0x10", "1e400", "nan", "-inf", "9" * 25, "-" + "9" * 25, "ü漢\U0001f600",
           b"\xff\xfe", "a" * 100_000, "1,2,,3", "{", "%s%n", "../..", "-", "--", "\x1b[31m", "true", "1.5"]
NUMBERS = ["0", "1", "2", "3", "16", "64", "0.5", "1000000", "2147483647", "2147483648", "9223372036854775807"]
TEXTS = ["hi", "", "\n", "ü漢\U0001f600", b"\xff\xfe", "a" * 5_000, "<|im_end|>", "-", "%s"]
FILES = ["text.txt", "ids.json", "chat.json", "prompts.jsonl", "rows", "rows/all_kernels.csv", "trace", "flags.yaml",
         "absent", "absent/file", "/dev/null", "/dev/full", ".", "empty", "new-file", "new-dir/file", "model/config.json",
         "model/model.safetensors"]
# Flags whose large valid values would only cost time: small ones and those that must be refused.
BOUNDED = {
    "max-tokens": ["0", "1", "3"], "gen": ["0", "1", "2"], "prompt-tokens": ["0", "1", "9"], "depth": ["0", "1", "9"],
    "repetitions": ["0", "1", "2"], "reps": ["0", "1", "2"], "min-time": ["0", "0.001"], "budget": ["0", "0.1", "1"],
    "hidden": ["0", "1", "64", "96", "256"], "experts": ["0", "1", "4", "7"], "layers": ["0", "1", "2", "3", "0-1", "1-0"],
    "ppl": ["text.txt", "empty", "absent", "ids.json"],
    "num-prompts": ["0", "1", "2"], "num-warmups": ["0", "1"], "duration": ["0", "0.1"], "think-time": ["0", "0.01"],
    "request-rate": ["inf", "50", "0"], "sessions": ["0", "1", "2"], "turns": ["0", "1", "2"], "timeout": ["0.1", "2"],
    "input-len": ["0", "1", "9"], "output-len": ["0", "1", "3"], "shared-prefix-len": ["0", "1", "30"],
    "task-len": ["0", "1", "9"], "tool-result-len": ["0", "1", "9"], "tool-result-max": ["0", "1", "20"],
    "tool-result-sigma": ["0", "1"], "burstiness": ["0.5", "1", "0"], "drain-timeout": ["0", "1"], "batch": ["0", "1", "2", "1,2"],
    "suite": ["decode", "none", "streaming"], "as": ["deepseek-v2-lite", "deepseek-r1-nvfp4", "none"], "port": ["0", "70000"],
    "base-url": ["SERVER", "SERVER", "http://127.0.0.1:1", "https://[::1", "ftp://x", "http://"], "url": ["SERVER", "http://127.0.0.1:1"],
    "host": ["127.0.0.1", "::1", "999.1.1.1", "no such host"], "kv-events": ["inproc://x", "tcp://127.0.0.1:*", "off"],
    "kv-events-replay": ["inproc://y", "tcp://127.0.0.1:*"], "uds": ["socket", "absent/socket", "text.txt"], "seq": ["1", "9"],
    "kv-len": ["0", "1", "9"], "threads": ["0", "1", "2", "3", "300"],
}
WORDS = {  # what a value's name stands for
    "FORMAT": ["bf16", "nvfp4", "mxfp4", "fp8_block", "int8", "w4a8"], "VERSION": ["v2-lite", "v3", "v3.2", "v4", "v9"],
    "NAME": ["all", "v3", "deepseek_v3", "rmsnorm", "none"], "OP": ["q_b_proj", "gate", "none", "*"],
    "OP=VARIANT": ["q_b_proj=portable", "gate=none", "none=portable", "=", "x=", "=x", "*=portable"],
    "OPTION=VALUE": ["dtype=f32", "moe=sorted", "x=1", "=", "dtype="], "ID=BIAS": ["1=2", "1=-100", "99999=1", "1=nan", "=", "1"],
    "DEVICE": ["cpu", "cuda", "h100", "8xh200", "0xh200", "h999"], "PHASE": ["decode", "prefill", "verify", "x"],
    "FORM": ["md", "csv", "json", "jsonl", "xml"], "IDS": ["1", "1,2,3", "1 2", "99999", "-5"], "JSON": ["{}", "{\"a\":1}", "[]", "{"],
    "NAMES": ["rmsnorm", "rmsnorm,softmax", "all", "none"], "PATTERN": ["*", "rms*", "zzz", "[", "model.layers.*"],
    "PERCENT": ["0", "5", "-5", "5%"], "PERCENT%": ["0%", "5%", "5", "-5%"], "ROUTE": ["/v1/completions", "/v1/messages", "/x"],
    "NAME:MS": ["ttft:500", "tpot:1", "x:1", "ttft:"], "COMMAND": ["run", "bench", "bench kernel", "none"], "A-B": ["0-1", "1-0", "0-9", "-"],
    "GB": ["0", "0.001", "1", "-1"], "MIB": ["0", "1", "-1"], "PREFIX": ["/x", "x", "/"], "F": ["0", "0.1", "1", "1.5"],
    "ORIGIN": ["*", "http://x", "x"], "KEY": ["secret"],
}
BASE = {  # what a run of a command begins with
    "run": ["model", "--max-tokens", "3"], "chat": ["model", "--max-tokens", "3"], "inspect": ["model"],
    "doctor": ["--no-measure"], "tokenize": ["model"], "eval": ["model", "--ppl", "text.txt"],
    "synth": ["new-dir", "--layers", "2", "--hidden", "64", "--experts", "8"], "quantize": ["model", "new-dir"], "verify": ["model"],
    "bench kernel": ["--suite", "decode", "--kernels", "rmsnorm", "--min-time", "0.001", "--reps", "1", "--budget", "1"],
    "bench model": ["model", "-p", "8", "-n", "2", "-r", "1"],
    "bench serve": ["--base-url", "SERVER", "--num-prompts", "1", "--input-len", "4", "--output-len", "2", "--num-warmups", "0",
                    "--sessions", "1", "--turns", "1", "--timeout", "3", "--think-time", "0"],
    "bench compare": ["rows", "rows"], "trace": ["model", "--prompt-tokens", "4", "--gen", "2"], "trace diff": ["trace", "trace"],
    "roofline": ["rows"], "serve": ["model", "--port", "0", "--kv-pool", "request"], "presets": [], "version": [], "help": [], "completion": ["bash"],
}


def values_of(command, flag):
    name = flag["name"]
    if name == "prompt":  # tokens of a benchmark, text elsewhere
        return ["0", "1", "9"] if command == "bench model" else TEXTS
    if name in BOUNDED:
        return BOUNDED[name]
    if flag["words"]:
        return flag["words"]
    kind = flag["value"].strip("[=]").split("|")[0]
    if kind in ("FILE", "DIR", "PATH", "DST", "SRC", "INPUT", "BEFORE", "AFTER", "A", "B"):
        return FILES
    if kind in ("MODEL", "PRESET"):
        return ["model", "absent", "text.txt", ".", "tiny-v3-nvfp4", "org/name@x"]
    return WORDS.get(kind, TEXTS if kind == "TEXT" else NUMBERS)


def draw(rng, command, flags):
    base = list(BASE[command])
    if command != "bench kernel" and rng.random() < 0.03:
        base = []  # a benchmark without a choice takes an hour
    words = command.split() + base
    named = [f for f in flags if not f["positional"] and f["name"] not in ("help", "help-all", "version")]
    invalid = rng.choice([0, 0, 0.1, 0.4])
    for _ in range(rng.choice([1, 1, 2, 2, 3, 4, 6, 9])):
        if rng.random() < invalid / 8:
            words.append(rng.choice(["--frobnicate", "-zz", "--temprature=1", "extra", "--", "-", b"--\xff", ""]))
            continue
        flag = rng.choice(named)
        spelled = "--" + flag["name"] if rng.random() < 0.9 else "--" + flag["name"].replace("-", "_")
        for _ in range(2 if rng.random() < 0.1 else 1):
            if not flag["value"] and rng.random() >= invalid / 4:
                words.append(spelled)
                continue
            value = rng.choice(INVALID if rng.random() < invalid else values_of(command, flag))
            joined = rng.random() < 0.5 or "[=" in flag["value"]
            words += [os.fsencode(spelled) + b"=" + os.fsencode(value)] if joined else [spelled, value]
    return words


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 << 20, 256 << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Runner:
    def __init__(self, program, folder, timeout):
        self.program, self.folder, self.timeout = program, folder, timeout
        self.env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8", "TERM": "dumb"}
        self.server = ""

    def fill(self):
        """The files that the drawn values name, as new."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        shutil.copytree(ROOT / "models/tiny-v3-nvfp4", self.folder / "model")
        texts = {"text.txt": "The quick brown fox.\n", "ids.json": '{"prompts": [[1, 2, 3]]}', "empty": "", "flags.yaml": "threads: 1\n",
                 "chat.json": '[{"role": "user", "content": "hi"}]', "prompts.jsonl": '{"id": "a", "prompt": "hi"}\n'}
        for name, text in texts.items():
            (self.folder / name).write_text(text)
        shutil.copytree(self.made / "rows", self.folder / "rows")
        shutil.copytree(self.made / "trace", self.folder / "trace")

    def prepare(self):
        self.made = self.folder.with_name(self.folder.name + "-made")
        self.made.mkdir(parents=True)
        model = str(ROOT / "models/tiny-v3-nvfp4")
        for args in (["bench", "kernel", "--suite", "decode", "--kernels", "rmsnorm", "--min-time", "0.001", "--reps", "1", "--out-dir", "rows"],
                     ["trace", model, "--prompt-tokens", "4", "--gen", "2", "--out-dir", "trace"]):
            subprocess.run([self.program, *args, "-q"], cwd=self.made, env=self.env, check=True, stdout=subprocess.DEVNULL)
        self.fill()

    def start_server(self):
        self.server_process = subprocess.Popen([self.program, "serve", str(ROOT / "models/tiny-v3-nvfp4"), "--port", "0"], cwd=self.made,
                                               env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.server_process.stderr:
            if "http://" in line:
                self.server = "http://" + line.split("http://")[1].split()[0].rstrip("/,;")
                break
        threading.Thread(target=self.server_process.stderr.read, daemon=True).start()

    def run(self, words, serves):
        """(exit code or None, standard error)"""
        argv = [self.program] + [self.server if w == "SERVER" else w for w in words]
        argv = [os.fsencode(w).replace(b"SERVER", self.server.encode()) for w in argv]
        out = self.made / "stdout"
        err = self.made / "stderr"
        with open(out, "wb") as out_file, open(err, "wb") as err_file:
            child = subprocess.Popen(argv, cwd=self.folder, env=self.env, stdin=subprocess.PIPE, stdout=out_file, stderr=err_file,
                                     preexec_fn=limit, start_new_session=True)
            try:
                child.stdin.write(b"hi\n")
                child.stdin.close()
            except BrokenPipeError:
                pass
            end = time.monotonic() + self.timeout
            asked = False
            while child.poll() is None and time.monotonic() < end:
                if serves and not asked and b"ready " in out.read_bytes():
                    child.send_signal(signal.SIGTERM)
                    asked = True
                time.sleep(0.005)
            code = child.poll()
            if code is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        return code, err.read_bytes().decode(errors="replace")


def judge(code, err):
    if code is None:
        return "hang"
    if code < 0:
        return f"signal {-code}"
    if code not in DOCUMENTED:
        return f"exit code {code}"
    if "internal" in err.lower() or "terminate called" in err:
        return "internal error"
    if 64 <= code < 130 and "fathom: error: " not in err:
        return "no message"
    return ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000, help="runs a command")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="this command (repeat)")
    parser.add_argument("--at", type=int, help="only the run of this number; prints what it said")
    parser.add_argument("--timeout", type=float, default=20)
    parser.add_argument("--program", default=str(ROOT / "build/release/fathom"))
    args = parser.parse_args()
    program = os.path.abspath(args.program)
    listed = json.loads(subprocess.run([program, "help", "--json"], capture_output=True, check=True).stdout)["commands"]
    flags_of = {c["command"].removeprefix("fathom").strip(): c["flags"] for c in listed}
    missing = [c for c in flags_of if flags_of[c] and c and c not in BASE]
    if missing:
        sys.exit(f"{sys.argv[0]}: BASE lacks {', '.join(missing)}")
    everywhere = flags_of[""]
    temporary = Path(tempfile.mkdtemp(prefix="fathom-fuzz-"))
    runner = Runner(program, temporary / "at", args.timeout)
    findings = 0
    try:
        runner.prepare()
        runner.start_server()
        for command in args.only or BASE:
            codes = Counter()
            begin = time.monotonic()
            found = 0
            for i in range(args.runs) if args.at is None else [args.at]:
                if i % 20 == 0 or args.at is not None:
                    runner.fill()
                rng = random.Random(f"{args.seed} {command} {i}")
                words = draw(rng, command, flags_of[command] + everywhere)
                code, err = runner.run(words, command == "serve")
                codes["hang" if code is None else code] += 1
                what = judge(code, err)
                if what or args.at is not None:
                    shown = " ".join(repr(w if len(w) < 80 else w[:60] + type(w)()) for w in words)
                    print(f"{command} {i}: {what or f'exit code {code}'}: {shown}\n    {err.strip()[:600]}", flush=True)
                    found += bool(what)
            findings += found
            counts = ", ".join(f"{code}: {n}" for code, n in sorted(codes.items(), key=str))
            print(f"{command}: {sum(codes.values())} runs, {found} findings, {time.monotonic() - begin:.0f} s; exit codes {counts}", flush=True)
    finally:
        if runner.server:
            runner.server_process.terminate()
            runner.server_process.wait()
        shutil.rmtree(temporary, ignore_errors=True)
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
