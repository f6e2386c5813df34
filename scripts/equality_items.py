"""What equality.py runs: models, settings and the commands over them, with fixed seeds."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/golden"
MICRO = ("micro-v2-lite", "micro-v2", "micro-v3")
PRESETS = ("deepseek-r1-nvfp4", "deepseek-v3-fp8", "deepseek-v2", "deepseek-v2-lite")
PRESET_FORMATS = ("bf16", "fp8_block", "nvfp4", "fp8", "int8", "w4a8", "w4a8_group")
PROMPT_LENGTHS = (1, 7, 64, 300)
LONG_LENGTHS = (1030, 1900, 2048)  # beyond one chunk of keys, 1024

# The answer's settings, one at a time and where two meet.
SETTINGS = {
    "default": (),
    "f32": ("--dtype", "f32"),
    "kv-f32": ("--kv-cache-dtype", "f32"),
    "kv-bf16": ("--kv-cache-dtype", "bf16"),
    "kv-fp8": ("--kv-cache-dtype", "fp8_e4m3"),
    "f32-kv-bf16": ("--dtype", "f32", "--kv-cache-dtype", "bf16"),
    "f32-kv-fp8": ("--dtype", "f32", "--kv-cache-dtype", "fp8_e4m3"),
    "grouped": ("--moe", "grouped"),
    "sorted": ("--moe", "sorted"),
    "fused": ("--moe", "fused"),
    "f32-grouped": ("--dtype", "f32", "--moe", "grouped"),
    "f32-sorted": ("--dtype", "f32", "--moe", "sorted"),
    "f32-fused": ("--dtype", "f32", "--moe", "fused"),
    "absorbed": ("--attention", "absorbed"),
    "fused-rope": ("--attention", "fused_rope"),
    "f32-absorbed": ("--dtype", "f32", "--attention", "absorbed"),
    "kv-fp8-absorbed": ("--kv-cache-dtype", "fp8_e4m3", "--attention", "absorbed"),
    "kv-fp8-fused-rope": ("--kv-cache-dtype", "fp8_e4m3", "--attention", "fused_rope"),
    "invariant": ("--batch-invariant",),
    "f32-invariant": ("--dtype", "f32", "--batch-invariant"),
    "portable": ("--isa", "portable"),
    "avx2": ("--isa", "avx2"),
    "avx512": ("--isa", "avx512"),
    "f32-portable": ("--dtype", "f32", "--isa", "portable"),
    "f32-avx2": ("--dtype", "f32", "--isa", "avx2"),
    "page-1": ("--block-size", "1"),
    "page-16": ("--block-size", "16"),
    "page-128": ("--block-size", "128"),
    "page-16-absorbed": ("--block-size", "16", "--attention", "absorbed"),
    "threads-2": ("--threads", "2"),
    "f32-threads-2": ("--dtype", "f32", "--threads", "2"),
}
FEW = ("default", "f32", "kv-fp8", "grouped", "sorted", "fused", "absorbed", "portable", "avx2",
       "threads-2")
FEWER = ("default", "f32", "absorbed", "fused", "avx2")


@dataclass
class Item:
    """One run of the program. args name files below the working directory."""

    name: str
    args: tuple
    outputs: dict = field(default_factory=dict)  # result -> file it is read from
    stdin: str = ""
    stdout: bool = True
    temporary: bool = True  # outputs are removed when read
    makes_model: bool = False
    may_fail: bool = False  # a refusal is a result like another

    def prepare(self, work):
        for path in self.outputs.values():
            (work / path).parent.mkdir(parents=True, exist_ok=True)


class Random:
    """A linear congruential generator: the same numbers on any version of Python."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % bound


WORDS = ("the king and his daughter went to a small house by the river where an old fox said that "
         "he would give them gold if they could find three birds before night came").split()


def sentence(words, seed):
    random = Random(seed)
    text = " ".join(WORDS[random.below(len(WORDS))] for _ in range(words))
    return text[0].upper() + text[1:]


def global_last(settings):
    """--threads and --isa stand before the command; the rest after it."""
    first, rest = ["-q"], []
    if "--threads" not in settings:
        first += ["--threads", "1"]
    i = 0
    while i < len(settings):
        flag = settings[i]
        count = 1 if flag == "--batch-invariant" else 2
        (first if flag in ("--threads", "--isa") else rest).extend(settings[i : i + count])
        i += count
    return first, rest


def command(verb, model, settings, *more):
    first, rest = global_last(settings)
    return (*first, *verb.split(), model, *rest, *more)


def served(model, names):
    """Without strategies of experts that the model has no kernels for; refusals() has one of each."""
    missing = ()
    if model.startswith(("micro-v2", "synth-v2")) and "lite" not in model:
        missing = ("--moe fused",)
    if model.endswith("int8"):
        missing = ("--moe fused", "--moe grouped")
    return [n for n in names if not any(m in " ".join(SETTINGS[n]) for m in missing)]


# ---- Models


def write_prompts(work, name, lengths, vocabulary):
    random = Random(1)
    prompts = [[random.below(vocabulary) for _ in range(length)] for length in lengths]
    (work / name).write_text(json.dumps({"prompts": prompts}))


def copy_models(work, checkpoints):
    """Directories of models that are files already, as links and small copies below work/m."""
    models = work / "m"
    models.mkdir()
    for name in MICRO:
        target = models / name
        target.mkdir()
        for path in (GOLDEN / name).iterdir():
            (target / path.name).symlink_to(path)
        for path in (GOLDEN / "micro-v3").glob("tokenizer*"):
            if not (target / path.name).exists():
                (target / path.name).symlink_to(path)
        # The same weights with room for more than one chunk of keys.
        longer = models / f"{name}-long"
        shutil.copytree(target, longer, symlinks=True, ignore=shutil.ignore_patterns("golden*"))
        config = json.loads((target / "config.json").read_text())
        config["max_position_embeddings"] = 4096
        (longer / "config.json").unlink()
        (longer / "config.json").write_text(json.dumps(config))
    (models / "tiny").symlink_to(ROOT / "models/tiny-v3-nvfp4")
    trained = []
    if checkpoints:
        source = Path(checkpoints).resolve() / "tiny-v3"
        if not source.is_dir():
            raise SystemExit(f"equality: {source} is not there, expected the checkpoint tiny-v3")
        (models / "tiny-bf16").symlink_to(source)
        trained.append("tiny-bf16")
    return trained


def quantized():
    """(name, source, flags): each format of `quantize`, each scope where it tells."""
    for name in MICRO:
        for form in ("nvfp4", "fp8_block", "int8"):
            yield f"{name}-{form}", name, ("--format", form, "--scope", "all-linear")
        yield f"{name}-nvfp4-experts", name, ("--format", "nvfp4", "--scope", "experts")
        yield f"{name}-nvfp4-mlp-o", name, ("--format", "nvfp4", "--scope", "mlp-o")
    yield "tiny-dequantized", "tiny", ("--format", "bf16")
    yield "micro-v3-mxfp4", "micro-v3", ("--format", "mxfp4")


def synthesized():
    for version in ("v2-lite", "v2", "v3", "r1"):
        for form in ("bf16", "fp8_block", "nvfp4"):
            yield f"synth-{version}-{form}", ("--version", version, "--format", form, "--hidden",
                                              "128", "--layers", "3")


def make_models():
    for name, source, flags in quantized():
        yield Item(f"quantize/{name}", ("-q", "--threads", "1", "quantize", f"m/{source}",
                                        f"m/{name}", *flags, "--list"),
                   {"checkpoint": f"m/{name}"}, temporary=False, makes_model=True)
    for name, flags in synthesized():
        yield Item(f"synth/{name}", ("-q", "--threads", "1", "synth", f"m/{name}", *flags),
                   {"checkpoint": f"m/{name}"}, temporary=False, makes_model=True)


# ---- Logits, ids, comparisons


def logits(model, names, prompts):
    for setting in served(model, names):
        out = f"out/logits-{model}-{setting}-{prompts}.safetensors"
        yield Item(f"logits/{model}/{setting}" + ("" if prompts == "prompts" else f"-{prompts}"),
                   command("eval", f"m/{model}", SETTINGS[setting], "--ids", f"{prompts}.json",
                           "--logits-out", out),
                   {"logits": out}, stdout=False)


def generate(model, setting, label, *more, words=6, seed=1):
    out = f"out/ids-{model}-{setting}-{label}.json"
    return Item(f"generate/{model}/{setting}-{label}",
                command("run", f"m/{model}", SETTINGS[setting], "-p", sentence(words, seed),
                        "--ids-out", out, "--ignore-eos", *more), {"ids": out})


def sampled(model):
    """Ids under each way of choosing a token; a seed each."""
    ways = {
        "temperature": ("--temperature", "0.8"),
        "top-p": ("--temperature", "1", "--top-p", "0.9"),
        "top-k": ("--temperature", "1.3", "--top-k", "20"),
        "min-p": ("--temperature", "1", "--min-p", "0.05"),
        "penalties": ("--temperature", "0.9", "--presence-penalty", "0.5", "--frequency-penalty",
                      "0.4", "--repetition-penalty", "1.2"),
        "greedy-penalties": ("--temperature", "0", "--repetition-penalty", "1.3"),
        "bias": ("--temperature", "0.7", "--logit-bias", "42=5", "--logit-bias", "300=-4"),
        "stop": ("--temperature", "0.8", "--stop", "the"),
    }
    for seed, (way, flags) in enumerate(ways.items(), 11):
        yield generate(model, "default", way, *flags, "--seed", str(seed), "-n", "40")


def generations(model, settings):
    for setting in served(model, settings):
        yield generate(model, setting, "greedy", "--temperature", "0", "-n", "40")
        yield generate(model, setting, "seeded", "--temperature", "0.9", "--top-p", "0.95",
                       "--seed", "5", "-n", "40")


def chunked_prefill(model):
    for words in (3, 40, 200):
        for tokens in (1, 16, 50):
            for setting in ("default", "invariant", "page-16"):
                yield generate(model, setting, f"{words}-words-steps-of-{tokens}", "--temperature",
                               "0", "-n", "8", "--max-num-batched-tokens", str(tokens),
                               words=words)


def chats(model, settings):
    """Two questions: the second finds pages of the first."""
    text = "Tell me a story about a fox and a king who lived by the river.\nAnd then?\n"
    for setting in settings:
        yield Item(f"chat/{model}/{setting}",
                   command("chat", f"m/{model}", SETTINGS[setting], "--temperature", "0.8",
                           "--seed", "9", "-n", "40"), stdin=text)


def comparisons():
    for model in MICRO:
        for setting in ("default", "f32", "f32-absorbed", "f32-fused"):
            yield Item(f"vectors/{model}/{setting}",
                       command("eval", f"m/{model}", SETTINGS[setting], "--vectors",
                               f"m/{model}/golden.json"), may_fail=True)
    text = "text.txt"
    for model in ("tiny", "micro-v2-lite-nvfp4", "micro-v3-fp8_block"):
        yield Item(f"perplexity/{model}",
                   command("eval", f"m/{model}", (), "--ppl", text))
    yield Item("compare/micro-v3-nvfp4",
               command("eval", "m/micro-v3-nvfp4", (), "--ids", "prompts.json", "--compare",
                       "m/micro-v3"))


# ---- Recordings


def trace(name, model, settings, *more):
    out = f"out/trace-{name.replace('/', '-')}"
    return Item(f"trace/{name}", command("trace", model, settings, *more, "--out-dir", out),
                {"ops.csv": f"{out}/ops.csv", "summary.csv": f"{out}/summary.csv"}, stdout=False)


def recordings(model, settings):
    """Real runs with the statistics of what every op wrote, decode steps included. Not of runs that
    absorb in prefill, whose documents the program refuses to write: no op reaches merge_state."""
    absorbing = ("absorbed", "--batch-invariant")
    for setting in served(model, settings):
        if any(flag in SETTINGS[setting] for flag in absorbing):
            continue
        yield trace(f"{model}/{setting}", f"m/{model}", SETTINGS[setting], "--prompt-tokens", "64",
                    "--gen", "4", "--probe")


def recorded_shapes(model):
    for tokens, batch, chunk in ((2, 1, 1), (7, 3, 512), (64, 2, 16), (300, 1, 64)):
        yield trace(f"{model}/{tokens}-tokens-{batch}-requests-chunks-of-{chunk}", f"m/{model}", (),
                    "--prompt-tokens", str(tokens), "--batch", str(batch), "--chunk", str(chunk),
                    "--gen", "2", "--probe")


def presets_in(form):
    """V2-Lite's dense layers are too narrow for groups of 128."""
    return ("deepseek-v3",) if form == "w4a8_group" else ("deepseek-v3", "deepseek-v2-lite")


def dry_runs():
    for preset in PRESETS:
        for device in ("cpu", "h200"):
            name = f"dry/{preset}/{device}"
            yield dry(name, preset, device)
            for flags in (("--moe", "grouped"), ("--moe", "sorted"), ("--moe", "fused"),
                          ("--attention", "absorbed"), ("--attention", "fused_rope"),
                          ("--kv-cache-dtype", "fp8_e4m3"), ("--batch", "32")):
                if preset == "deepseek-v2" and "fused" in flags:
                    continue
                yield dry(f"{name}{''.join(flags)}", preset, device, *flags)
    for form in PRESET_FORMATS:
        for preset in presets_in(form):
            for device in ("cpu", "h200"):
                yield dry(f"dry/{preset}/{device}--format{form}", preset, device, "--format", form)
    for isa in ("portable", "avx2"):
        yield dry(f"dry/deepseek-r1-nvfp4/{isa}", "deepseek-r1-nvfp4", "cpu", isa=isa)


def dry(name, preset, device, *more, isa="avx512"):
    out = f"out/{name.replace('/', '-')}"
    return Item(name, ("-q", "--isa", isa, "trace", "--dry", "--as", preset, "--device", device,
                       *more, "--out-dir", out),
                {n: f"{out}/{n}" for n in ("ops.csv", "summary.csv", "config.md")}, stdout=False,
                may_fail=device != "cpu")  # a program without CUDA knows no GPU


def plans():
    for preset in PRESETS:
        for flags in ((), ("--device", "h200"), ("--device", "8xh200", "--max-num-seqs", "256"),
                      ("--max-model-len", "4096"), ("--dtype", "f32"),
                      ("--attention", "absorbed"), ("--moe", "fused")):
            if preset == "deepseek-v2" and "fused" in flags:
                continue
            label = "".join(flags) or "default"
            yield Item(f"inspect/{preset}/{label}",
                       ("-q", "--threads", "1", "--isa", "avx512", "inspect", "--as", preset,
                        *flags))
        for op in ("q_b_proj", "q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "gate_up_proj",
                   "down_proj", "gate", "lm_head", "mla_decode", "attention", "embed_tokens"):
            yield Item(f"explain/{preset}/{op}",
                       ("-q", "--threads", "1", "--isa", "avx512", "inspect", "--as", preset,
                        "--explain", op), may_fail=True)
    for form in PRESET_FORMATS:
        preset = presets_in(form)[-1]
        yield Item(f"inspect/{preset}/--format{form}",
                   ("-q", "--threads", "1", "--isa", "avx512", "inspect", "--as", preset,
                    "--format", form))
    for model in (*MICRO, "tiny", "micro-v3-nvfp4", "micro-v2-lite-fp8_block", "synth-r1-nvfp4"):
        yield Item(f"inspect/{model}/default",
                   ("-q", "--threads", "1", "--isa", "avx512", "inspect", f"m/{model}"))


def refusals():
    for model, setting in (("micro-v2", "fused"), ("micro-v3-int8", "grouped"),
                           ("micro-v3-int8", "fused")):
        yield Item(f"refused/{model}/{setting}",
                   command("eval", f"m/{model}", SETTINGS[setting], "--ids", "prompts.json",
                           "--logits-out", "out/none"), may_fail=True)


def lists():
    for label, flags in {"cases": ("--list",), "reference": ("--list", "--reference"),
                         "catalogue": ("--catalogue",), "decode": ("--list", "--suite", "decode"),
                         "reference23": ("--list", "--suite", "reference23")}.items():
        yield Item(f"kernels/{label}",
                   ("-q", "--threads", "1", "--isa", "avx512", "bench", "kernel", *flags))


# ---- All of it


def stages(work, checkpoints):
    """(items, most jobs) in turn: models first, runs of two threads alone at the end."""
    trained = copy_models(work, checkpoints)
    (work / "out").mkdir()
    write_prompts(work, "prompts.json", PROMPT_LENGTHS, 4096)
    write_prompts(work, "bytes.json", PROMPT_LENGTHS, 256)
    write_prompts(work, "short.json", (1, 7, 64), 4096)
    write_prompts(work, "long.json", LONG_LENGTHS, 4096)
    (work / "text.txt").write_text(sentence(700, 3) + ".\n")
    made = [name for name, _, _ in quantized() if not name.endswith("mxfp4")]
    synths = [name for name, _ in synthesized()]
    runs = []
    for model in MICRO:
        runs += logits(model, SETTINGS, "prompts")
        runs += logits(f"{model}-long", ("default", "f32", "absorbed", "page-16", "kv-fp8"), "long")
        runs += generations(model, SETTINGS)
        runs += recordings(model, SETTINGS)
        runs += recorded_shapes(model)
    for model in made:
        if model.startswith("micro"):
            runs += logits(model, FEW, "prompts")
            runs += generations(model, FEWER)
            runs += recordings(model, FEWER)
    for model in synths:
        runs += logits(model, FEW, "bytes")
        runs += generations(model, FEWER)
        runs += recordings(model, FEWER)
    for model in ["tiny", *trained]:
        runs += logits(model, ("default", "f32", "absorbed", "fused", "grouped", "kv-fp8", "avx2",
                               "threads-2"), "prompts")
        runs += logits(model, ("portable",), "short")
        runs += recordings(model, ("default", "f32", "fused-rope", "invariant"))
        runs += generations(model, ("default", "invariant", "kv-fp8", "fused"))
    runs += logits("tiny-dequantized", ("default",), "prompts")
    runs += sampled("tiny")
    runs += sampled("micro-v2")
    runs += chunked_prefill("micro-v3")
    runs += chats("tiny", ("default", "f32", "invariant", "kv-fp8", "page-16", "threads-2"))
    runs += comparisons()
    runs += dry_runs()
    runs += plans()
    runs += refusals()
    runs += lists()
    alone = [i for i in runs if i.args[:3] == ("-q", "--threads", "2")]
    together = [i for i in runs if i.args[:3] != ("-q", "--threads", "2")]
    names = [i.name for i in runs]
    if len(set(names)) != len(names):
        raise SystemExit("equality: two items have one name")
    return [(list(make_models()), 64), (together, 64), (alone, 1)]
