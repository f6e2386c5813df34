#!/usr/bin/env python3
"""Runs the commands of docs/tour.md and puts what they print behind them.

    record_tour.py PROGRAM           rewrite the page
    record_tour.py PROGRAM --check   exit 1 where the page is not what the commands print

A block ```console holds lines "$ COMMAND", each with its output; all blocks run in one empty folder, in
order, with PROGRAM as `fathom`. A comment right above a block says what of it is not the same each time:

    <!-- figures -->        numbers are those of the machine
    <!-- words -->          all of it: a model's words depend on the instruction set
    <!-- types [...] -->    words, too: what is typed into the command, a JSON list of lines; a line
                            in a list of its own is pasted

What differs only in those is kept as it is.
"""

import json
import os
import pty
import re
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tour.md"
BLOCK = re.compile(r"(?:<!-- (?P<note>.*?) -->\n\n)?```console\n(?P<text>.*?)```", re.DOTALL)
PORT_OF_PAGE = "8000"
LIMIT_S = 120


class Tour:
    def __init__(self, program: Path, folder: str):
        self.folder = folder
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = str(s.getsockname()[1])
        self.environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}",
                            "TERM": "xterm", "LC_ALL": "C.UTF-8", "COLUMNS": "120"}
        for name in list(self.environment):
            if name.startswith("FATHOM_") or name == "NO_COLOR":
                del self.environment[name]

    def run(self, note: str, text: str) -> str:
        """The block with the output of its commands as it is now."""
        commands = re.findall(r"^\$ (.*(?:\\\n.*)*)", text, re.MULTILINE)
        if note.startswith("types "):
            return f"$ {commands[0]}\n{self.type(commands[0], json.loads(note[6:]))}"
        # One shell for all, so that jobs and variables live on.
        script = "exec 2>&1\n"
        for number, command in enumerate(commands):
            script += f"printf '\\001{number}\\n'\n{command}\n"
        script = script.replace(PORT_OF_PAGE, self.port)
        shell = subprocess.run(["bash", "-e", "-c", script], cwd=self.folder, env=self.environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=LIMIT_S,
                               check=False)
        out = shell.stdout.decode().replace(self.port, PORT_OF_PAGE)
        if shell.returncode != 0:
            sys.exit(f"tour.md: exit code {shell.returncode}:\n{text}\n{out}")
        parts = re.split(r"\001\d+\n", out)[1:]
        return "".join(f"$ {c}\n{with_newline(p)}" for c, p in zip(commands, parts))

    def type(self, command: str, lines: list) -> str:
        """What a terminal shows while lines are typed into a command, each when it is asked for."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execvpe("bash", ["bash", "-c", f"stty cols 120; exec {command}"], self.environment)
        shown = b""
        at = 0
        for line in lines:
            # Behind a newline: the line that is typed may be drawn again.
            while b"\n> " not in plain(shown[at:]):
                shown += read(terminal, command)
            at = len(shown)
            keys = line if isinstance(line, str) else f"\033[200~{line[0]}\033[201~"
            os.write(terminal, keys.replace("\n", "\r").encode() + b"\r")
        try:
            while True:
                shown += read(terminal, command)
        except OSError:  # its end
            pass
        if os.waitpid(pid, 0)[1] != 0:
            sys.exit(f"tour.md: {command} did not end well:\n{shown.decode()}")
        text = plain(shown).decode()
        return with_newline("\n".join(map(as_seen, text.split("\n"))))


def plain(shown: bytes) -> bytes:
    return re.sub(rb"\033\[[0-9;?]*[A-Za-z]", b"", shown)


def as_seen(line: str) -> str:
    """A line of a terminal after all its returns to the beginning."""
    seen = ""
    for part in line.split("\r"):
        seen = part + seen[len(part):]
    return seen.rstrip()


def read(terminal: int, command: str) -> bytes:
    if not select.select([terminal], [], [], LIMIT_S)[0]:
        sys.exit(f"tour.md: {command} is silent")
    got = os.read(terminal, 65536)
    if not got:
        raise OSError("the end")
    return got


def with_newline(text: str) -> str:
    return text if text.endswith("\n") or not text else text + "\n"


def what_stays(note: str, text: str) -> str:
    """What of a block is the same on every machine."""
    if note == "figures":
        return re.sub(r"[ #.=-]+", " ", re.sub(r"\d[\d.,e+-]*( ?[kKMGTu]?i?(B|s))?\b", "N", text))
    if note == "words" or note.startswith("types "):
        return "".join(re.findall(r"^\$ .*\n|^/.*\n", text, re.MULTILINE))
    return text


def main() -> int:
    program = Path(sys.argv[1]).resolve()
    check = sys.argv[2:] == ["--check"]
    page = PAGE.read_text()
    stale = []
    with tempfile.TemporaryDirectory(prefix="fathom-tour-") as folder:
        tour = Tour(program, folder)

        def renew(match: re.Match) -> str:
            note, text = match["note"] or "", match["text"]
            now = tour.run(note, text)
            recorded = any(not line.startswith("$ ") for line in text.splitlines())
            if recorded and what_stays(note, now) == what_stays(note, text):
                return match[0]
            stale.append((text, now))
            return match[0].replace(text, now)

        renewed = BLOCK.sub(renew, page)
    if check:
        for text, now in stale:
            print(f"docs/tour.md has\n{text}\nand the commands print\n{now}\n"
                  f"scripts/record_tour.py build/release/fathom writes it again")
        return 1 if stale else 0
    PAGE.write_text(renewed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
