"""The official recipe, deepseek-recipe, as an oracle: prompts and answers of V4 as it makes them.

Seeded conversations and answers are made here, rendered and parsed by the package and by fathom, and
compared byte by byte. Only what both define alike is made; docs/chat.md lists where they part. The
package is not part of fathom: it lives in a virtual environment under build/.

  recipe.py PROGRAM ENVIRONMENT [--cases N] [--seed N]

Exit status 77 (skipped) where the package cannot be had, 1 instead where CI is set.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "deepseek-recipe"
VERSION = "0.2.0"
SKIPPED = 77

# Whatever a prompt might trip over: control tokens in words, quotes, line ends, other planes.
PIECES = ["a", "hi", "one two", "\n", "\n\n", " ", "\t", "\r\n", "é", "e\u0301", "漢字", "😀", "𝔘", "\u200d", "\u2028",
          "\u00a0", "\ufeff", "\x7f", "\x01", "<", ">", "</", "<b>", "&amp;", "{", "}", "\"", "'", "\\", "%s", "{content}",
          "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<tool_result>", "</tool_result>", "</parameter>",
          "<tool_calls>", "<invoke name=\"f\">"]
FORGED = ["<think>", "</think>", "｜DSML｜", "<｜DSML｜tool_calls>", "<｜latest_reminder｜>"]
# Both print these alike; of numbers with an exponent Python's form counts, which the package does not have.
NUMBERS = [0, 1, -5, 123456789012, 2**63 - 1, -(2**63), 0.5, 1.0, -2.25, 123456.789, 0.0001]


class Maker:
    """Draws texts, values and conversations."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, share):
        return self.random.random() < share

    def text(self, least=0, most=6, pieces=None):
        return "".join(self.random.choice(pieces or PIECES + FORGED) for _ in range(self.random.randint(least, most)))

    def value(self, depth=0, pieces=None):
        kind = self.random.randrange(7 if depth < 3 else 5)
        if kind == 0:
            return self.random.choice(NUMBERS)
        if kind == 1:
            return self.random.choice([True, False, None])
        if kind < 5:
            return self.text(pieces=pieces)
        if kind == 5:
            return [self.value(depth + 1, pieces) for _ in range(self.random.randrange(4))]
        return {self.text(0, 2, pieces) + str(i): self.value(depth + 1, pieces) for i in range(self.random.randrange(4))}

    def arguments(self):
        if self.chance(0.1):
            return self.random.choice(["", "no json", "null", "[1]", "\"x\"", "{\"a\": 1} x", "{'a': 1}", "{\"a\": NaN}"])
        names = ["x", "path", "", "é", "arguments", "input", "a b"]
        members = {self.random.choice(names) + "1" * self.random.randrange(2): self.value()
                   for _ in range(self.random.randint(1, 4))}
        return json.dumps(members, ensure_ascii=self.chance(0.5), indent=self.random.choice([None, 2]))

    def tools(self):
        tools = []
        for name in self.random.sample(["f", "get_weather", "run-it", "Tool2"], self.random.randint(1, 3)):
            function = {"name": name}
            if self.chance(0.7):
                function["description"] = self.text()
            if self.chance(0.8):
                properties = {name: {"type": "string", "default": self.value()} for name in ("z", "a")}
                function["parameters"] = {"type": "object", "properties": properties, "required": ["z"]}
            if self.chance(0.5):
                function = dict(reversed(list(function.items())))
            tools.append({"type": "function", "function": function})
        return tools

    def content(self, is_user=False):
        text = self.text(1)
        if is_user and self.chance(0.2):
            return [{"type": "text", "text": text}, {"type": "text", "text": self.text(1)}]
        return text

    def assistant(self, thinking, ids):
        message = {"role": "assistant", "content": self.text(1)}
        if thinking:
            message["reasoning_content"] = self.text()
        if self.chance(0.4):
            calls = []
            for _ in range(self.random.randint(1, 3)):
                ids.append(f"call{len(ids):03}")  # the package puts calls in the order of their ids
                function = {"name": self.random.choice(["f", "get_weather"]), "arguments": self.arguments()}
                calls.append({"id": ids[-1], "type": "function", "function": function})
            message["tool_calls"] = calls
        return message

    def conversation(self, thinking, may_continue):
        """Turns in order: the package moves system messages, and merges less than the encoder, elsewhere."""
        messages = []
        if self.chance(0.6):
            messages.append({"role": "system", "content": self.text(1)})
        if self.chance(0.2):
            messages.append({"role": "latest_reminder", "content": self.text(1)})
        ids = []
        for _ in range(self.random.randint(0, 3)):
            messages += [{"role": "user", "content": self.content(True)} for _ in range(self.random.randint(1, 2))]
            for _ in range(self.random.randint(1, 3)):
                assistant = self.assistant(thinking, ids)
                messages.append(assistant)
                calls = [call["id"] for call in assistant.get("tool_calls", [])]
                if not calls:
                    break
                self.random.shuffle(calls)
                messages += [{"role": "tool", "tool_call_id": id, "content": self.content(True)} for id in calls]
                if self.chance(0.3):
                    messages.append({"role": "user", "content": self.content(True)})
            if messages[-1]["role"] == "assistant" and self.chance(0.2):
                messages.append({"role": "latest_reminder", "content": self.text(1)})
        if messages and messages[-1]["role"] == "tool" and self.chance(0.5):
            return messages
        messages.append({"role": "user", "content": self.content(True)})
        if may_continue and not ids and self.chance(0.4):
            prefix = {"role": "assistant", "content": self.text(0, 3), "prefix": True}
            if thinking:
                prefix["reasoning_content"] = self.text(1, 3)
            elif not prefix["content"]:
                prefix["content"] = "x"
            messages.append(prefix)
        return messages

    def cut(self, text):
        pieces = []
        while text:
            size = self.random.choice([1, 2, 3, 7, 30, 1000])
            pieces.append(text[:size])
            text = text[size:]
        return pieces


def recipe_prompt(recipe, line):
    """The prompt of the package for a request, and the bytes of its control tokens."""
    body = {"model": "DeepSeek-V4-Pro", "messages": line["messages"]}
    if line["thinking"] != "default":
        body["thinking"] = {"type": "enabled" if line["thinking"] == "on" else "disabled"}
    for theirs, ours in (("tools", "tools"), ("response_format", "response_format"), ("reasoning_effort", "effort")):
        if ours in line:
            body[theirs] = line[ours]
    converted = recipe.ChatCompletionRequest(body).convert(recipe.ConversionOptions())
    rendered = recipe.DeepseekV4Encoding().render_conversation(converted.conversation)
    prompt = rendered.prompt
    at, byte, places = 0, 0, []
    for begin, end in rendered.special_ranges:
        byte += len(prompt[at:begin].encode())
        places.append([byte, byte + len(prompt[begin:end].encode())])
        at, byte = end, places[-1][1]
    return {"prompt": prompt, "control": places}


def make_prompt(maker):
    thinking = maker.random.choice(["on", "off", "default"])
    line = {"format": "v4-0731", "thinking": thinking}
    if maker.chance(0.7):
        line["effort"] = maker.random.choice(["none", "minimal", "low", "medium", "high", "xhigh", "max"])
    if maker.chance(0.5):
        line["tools"] = maker.tools()
    thinks = thinking == "on" or (thinking == "default" and line.get("effort") != "none")
    line["messages"] = maker.conversation(thinks, may_continue="tools" not in line)
    kind = maker.random.randrange(6)
    if kind == 0:
        schema = {"type": "object", "properties": {"b": {"const": maker.value()}, "a": {}}}
        line["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    elif kind == 1 and not line["messages"][-1].get("prefix"):
        line["response_format"] = {"type": "json_object"}
        line["messages"][-1 if line["messages"][-1]["role"] == "user" else 0]["content"] = "json"
    return line


# The package is of July 31. The preview differs in the words for the effort: none, or those of "high".
def as_preview(recipe, line):
    wanted = "high" if line.get("effort") == "max" else "low"
    thinking = line["thinking"]
    if thinking == "default":
        thinking = "off" if line.get("effort") == "none" else "on"
    return {**line, "format": "v4"}, recipe_prompt(recipe, {**line, "effort": wanted, "thinking": thinking})


# Texts of an answer hold no markup, and reasoning and content of the package's own no markers.
ANSWER_PIECES = [piece for piece in PIECES if not piece.startswith(("<｜", "<tool_calls"))] + ["｜", "<｜", "DSM"]


def answer_text(maker):
    text = maker.text(0, 8, ANSWER_PIECES)
    # The package drops one line end too few behind what a marker begins with.
    return text + "." if text.rstrip("\n").endswith(("<", "</", "｜", "DSM")) else text


def make_answer(maker):
    """A well-formed answer, and how it begins."""
    begin = maker.random.choice(["reasoning", "content", "within reasoning", "within content"])
    text = answer_text(maker) + "</think>" if "reasoning" in begin else ""
    text += answer_text(maker)
    if maker.chance(0.6):
        text += "\n\n<｜DSML｜tool_calls>\n"
        for _ in range(maker.random.randint(1, 3)):
            text += f'<｜DSML｜invoke name="{maker.random.choice(["f", "get_weather", "é"])}">\n'
            parameters = []
            for name in maker.random.sample(["x", "path", "", "é", "input"], maker.random.randrange(4)):
                value = maker.value(0, ANSWER_PIECES)
                is_text = isinstance(value, str)
                printed = value if is_text else json.dumps(value, ensure_ascii=False)
                parameters.append(f'<｜DSML｜parameter name="{name}" string="{"true" if is_text else "false"}">{printed}'
                                  "</｜DSML｜parameter>")
            text += "\n".join(parameters) + "\n</｜DSML｜invoke>\n"
        text += "</｜DSML｜tool_calls>"
    return text, begin


def recipe_answer(recipe, pieces, begin):
    stage = {"reasoning": recipe.ThinkingInitialStage.ReasoningStart, "content": None,
             "within reasoning": recipe.ThinkingInitialStage.ReasoningContinuation,
             "within content": recipe.ThinkingInitialStage.ContentContinuation}[begin]
    conversation = recipe.Conversation([recipe.UserMessage("u")], thinking_mode=stage is not None)
    request = recipe.ConversationRequest(conversation, recipe.ModelVersion.DeepseekV4Pro)
    processor = recipe.StreamProcessor(recipe.ChatCompletionRequest.chunk_generator(request, "id", "m"),
                                       recipe.ParsingOptions(thinking_initial_stage=stage))
    response = recipe.ChatCompletionResponse("id", "m", 0, 0, 0)
    chunks = processor.push(recipe.InferenceChunk.ready())
    for piece in pieces:
        chunks += processor.push(recipe.InferenceChunk.text(piece, 1))
    chunks += processor.push(recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop)) + processor.finish()
    for chunk in chunks:
        response.accumulate(chunk)
    message = json.loads(response.to_json())["choices"][0]["message"]
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls") or []]
    return {"reasoning": message.get("reasoning_content") or "", "content": message.get("content") or "",
            "calls": calls, "repaired": False}


def around_difference(expected, found):
    """The first place where two replies differ, from either."""
    texts = [json.dumps(reply, ensure_ascii=False) for reply in (expected, found)]
    at = len(os.path.commonprefix(texts))
    return "\n".join(f"  {name}: ...{text[max(0, at - 80):at + 80]}" for name, text in zip((PACKAGE, "fathom"), texts))


def compare(program, seed, cases):
    import deepseek_recipe as recipe

    maker = Maker(seed)
    pairs = []
    for _ in range(cases):
        line = make_prompt(maker)
        expected = recipe_prompt(recipe, line)
        pairs += [(line, expected), as_preview(recipe, line)]
    for _ in range(cases):
        text, begin = make_answer(maker)
        line = {"format": "v4", "answer": maker.cut(text), "thinking": "on" if "reasoning" in begin else "off",
                "continues": begin.startswith("within")}
        pairs.append((line, recipe_answer(recipe, maker.cut(text), begin)))

    lines = "".join(json.dumps(line) + "\n" for line, _ in pairs)
    result = subprocess.run([program], input=lines.encode(), capture_output=True, check=False)
    replies = [json.loads(text) for text in result.stdout.decode().split("\n") if text]
    if result.returncode != 0 or len(replies) != len(pairs):
        print(f"{program}: status {result.returncode}, {len(replies)} replies for {len(pairs)} lines\n"
              f"{result.stderr.decode()}")
        return 1
    differing = [(pair, reply) for pair, reply in zip(pairs, replies) if reply != pair[1]]
    for (line, expected), reply in differing[:5]:
        print(f"{json.dumps(line, ensure_ascii=False)}\n{around_difference(expected, reply)}")
    print(f"{2 * cases} prompts and {cases} answers of seed {seed} against {PACKAGE} {VERSION}: {len(differing)} differ")
    return 1 if differing else 0


def install(environment):
    """The Python of the environment with the package in it; nothing if it cannot be had."""
    python = environment / "bin" / "python"
    probe = f"import importlib.metadata as m; assert m.version('{PACKAGE}') == '{VERSION}'; import deepseek_recipe"

    def has_package():
        return python.exists() and subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode == 0

    if has_package():
        return python
    # Made elsewhere and moved to its place, so that half an environment is never taken for a whole one.
    environment.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=environment.parent) as folder:
        fresh = Path(folder) / "environment"
        wanted = ["--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "15", "--no-deps",
                  "--only-binary", ":all:", f"{PACKAGE}=={VERSION}"]
        for command in ([sys.executable, "-m", "venv", fresh], [fresh / "bin" / "python", "-m", "pip", "install", *wanted]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"{' '.join(map(str, command))}: status {done.returncode}\n{(done.stdout + done.stderr)[-1500:]}")
                return None
        shutil.rmtree(environment, ignore_errors=True)
        fresh.rename(environment)
    return python if has_package() else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("program")
    parser.add_argument("environment", type=Path)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=27)
    arguments = parser.parse_args()
    if "FATHOM_IN_ENVIRONMENT" in os.environ:
        return compare(arguments.program, arguments.seed, arguments.cases)
    python = install(arguments.environment)
    if python is None:
        ci = bool(os.environ.get("CI"))
        print(f"{'failed' if ci else 'skipped'}: {PACKAGE} {VERSION} cannot be had from PyPI (see above); "
              "prompts and answers were not compared with it")
        return 1 if ci else SKIPPED
    environment = {**os.environ, "FATHOM_IN_ENVIRONMENT": "1"}
    return subprocess.run([python, __file__, *sys.argv[1:]], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
