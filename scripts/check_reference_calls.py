#!/usr/bin/env python3
"""Every argument of every reference call has a home in a contract, or a reason why it has none.

docs/reference-calls.json holds the signatures of the reference stack. A home is one or more of
these, with "; " between them and words after a comma:

  operand NAME     an operand of kInfo.signature
  axis NAME        an axis of kInfo.signature
  field NAME       a member of Args; NAME.PART for a member of its struct
  function NAME    a function of the contract
  parameter NAME   a parameter of the contract's workspace()
  none: REASON     no home, and why

Contracts are found through kernels.def and kInfo.reference_names. Prints what is wrong, one line
each, and exits with 1 if anything is. scripts/lint.py runs it as one of its rules.
"""

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = Path("docs/reference-calls.json")
NAMES = Path("fathom/bench/suites/reference_names.cc")
VIEW = Path("fathom/tensor/view.h")
# Names that are no kernels, and the struct that stands for them.
INSTEAD = {"weak_ref_tensor": "View", "cutlass_mla_get_workspace_size": "MlaDecode"}


@dataclass
class Struct:
    """What a home may name."""

    bases: list[str] = field(default_factory=list)
    text: str = ""
    members: dict[str, str] = field(default_factory=dict)  # name: type


@dataclass
class Contract:
    operands: set[str] = field(default_factory=set)
    axes: set[str] = field(default_factory=set)
    fields: dict[str, str] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)


def split_top_level(text: str, separator: str = ",") -> list[str]:
    """Splits where no bracket is open."""
    parts, depth, part = [], 0, ""
    for c in text:
        depth += (c in "([{<") - (c in ")]}>")
        if c == separator and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += c
    return [p.strip() for p in [*parts, part] if p.strip()]


def argument_names(signature: str) -> list[str]:
    """The arguments of `f(a, b: int = 1) -> T`, of all calls that the text shows, each name once."""
    names: list[str] = []
    for found in re.finditer(r"[\w\]]\(", signature.split(" -> ")[0]):
        begin = at = found.end()
        depth = 1
        while depth > 0:
            depth += (signature[at] == "(") - (signature[at] == ")")
            at += 1
        for argument in split_top_level(signature[begin:at - 1]):
            name = re.match(r"\w+", argument)
            if name and name.group() not in names:
                names.append(name.group())
    return names


def block_after(text: str, at: int) -> str:
    """What stands between the brace at or after `at` and the one that closes it."""
    begin = text.index("{", at) + 1
    depth, end = 1, begin
    while depth > 0:
        depth += (text[end] == "{") - (text[end] == "}")
        end += 1
    return text[begin:end - 1]


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*", "", text)


def read_members(body: str) -> dict[str, str]:
    """Data members `Type a, b{}, c = {};` of a struct; functions and nested types are skipped."""
    members: dict[str, str] = {}
    for statement in split_top_level(re.sub(r"\)\s*(const\s*)?\{", ") {", body), ";"):
        found = re.match(r"(?:const )?([\w:]+(?:<[^;]*?>)?[*&]?)\s+(\w.*)$", statement, re.S)
        if not found or found.group(1) in {"static", "using", "struct", "template", "return", "constexpr"}:
            continue
        for declared in split_top_level(found.group(2)):
            name = re.match(r"(\w+)\s*([={(]|$)", declared)
            if name and name.group(2) != "(":
                members[name.group(1)] = found.group(1)
    return members


def read_structs(root: Path) -> dict[str, Struct]:
    """Structs of the contracts and of the views they are made of, by name; also `Name::Args`."""
    structs: dict[str, Struct] = {}
    headers = [*sorted((root / "fathom/kernels").rglob("*.h")), *sorted((root / "fathom/tensor").glob("*.h"))]
    for header in headers:
        text = without_comments(header.read_text())
        for found in re.finditer(r"^struct (\w+)(?: final)?(?:\s*:\s*([\w, ]+?))?\s*\{", text, re.M):
            body = block_after(text, found.end() - 1)
            bases = [b.strip().split()[-1] for b in (found.group(2) or "").split(",") if b.strip()]
            structs[found.group(1)] = Struct(bases, body, read_members(body))
    for name, struct in list(structs.items()):
        args = re.search(r"\bstruct Args\s*\{", struct.text)
        if args:
            body = block_after(struct.text, args.end() - 1)
            structs[f"{name}::Args"] = Struct(text=body, members=read_members(body))
    return structs


def lineage(structs: dict[str, Struct], name: str) -> list[Struct]:
    """The struct and what it derives from."""
    if name not in structs:
        return []
    out = [structs[name]]
    for base in structs[name].bases:
        out += lineage(structs, base)
    return out


def read_text_of(structs: dict[str, Struct], contract: str, key: str) -> str:
    """The string literal of kInfo.key, joined; follows `Other::kInfo.key`."""
    text = structs[contract].text
    found = re.search(rf"\.{key}\s*=\s*((?:\"[^\"]*\"\s*)+|(\w+)::kInfo\.{key})", text)
    if not found:
        return ""
    if found.group(2):
        return read_text_of(structs, found.group(2), key)
    return "".join(re.findall(r"\"([^\"]*)\"", found.group(1)))


def args_of(structs: dict[str, Struct], contract: str) -> dict[str, str]:
    if f"{contract}::Args" in structs:
        return structs[f"{contract}::Args"].members
    for struct in lineage(structs, contract):
        found = re.search(r"using Args\s*=\s*(\w+)(::Args)?;", struct.text)
        if found:
            return args_of(structs, found.group(1)) if found.group(2) else structs[found.group(1)].members
    return {}


def read_contract(structs: dict[str, Struct], name: str) -> Contract:
    contract = Contract(fields=dict(args_of(structs, name)))
    signature = read_text_of(structs, name, "signature")
    for operand, axes in re.findall(r"(\w+)\??\[([^\]]*)\]", signature):
        contract.operands.add(operand)
        contract.axes.update(re.findall(r"[A-Za-z]\w*", axes))
    if "kInfo" not in structs[name].text:  # View: its own members
        contract.fields = dict(structs[name].members)
    for struct in lineage(structs, name):
        contract.functions.update(re.findall(r"\bstatic [\w:<> ]+? (\w+)\(", struct.text))
        found = re.search(r"\bworkspace\(([^)]*)\)", struct.text)
        if found:
            contract.parameters.update(p.split()[-1] for p in split_top_level(found.group(1)))
    return contract


def contracts_by_reference_name(root: Path, structs: dict[str, Struct]) -> dict[str, str]:
    text = re.sub(r"//[^\n]*", "", (root / "fathom/kernels/kernels.def").read_text())
    out: dict[str, str] = {}
    for line in re.findall(r"FATHOM_KERNEL\(([^)]*)\)", text):
        contract = line.split(",")[2].strip()
        if contract not in structs:
            continue
        found = re.search(r"\.reference_names\s*=\s*\{([^}]*)\}", structs[contract].text)
        for name in re.findall(r"\"(\w+)\"", found.group(1) if found else ""):
            out[name] = contract
    return out


def wrong_home(home: str, contract: Contract, structs: dict[str, Struct]) -> str:
    """Empty if the home is right; else what is wrong with it."""
    if home.startswith("none:"):
        return "" if len(home) > len("none: ") + 8 else "'none:' needs a reason"
    known = {"operand": contract.operands, "axis": contract.axes, "field": set(contract.fields),
             "function": contract.functions, "parameter": contract.parameters}
    for part in home.split("; "):
        found = re.fullmatch(r"(\w+) (\w+)(?:\.(\w+))?(?:, .+)?", part)
        if not found or found.group(1) not in known:
            return f"'{part}' is no home; write operand, axis, field, function or parameter NAME, or none: REASON"
        kind, name, member = found.groups()
        if name not in known[kind]:
            return f"the contract has no {kind} {name}"
        if member and (kind != "field" or member not in structs.get(contract.fields[name], Struct()).members):
            return f"field {name} has no member {member}"
    return ""


def check_call(call: dict, contract: Contract, structs: dict[str, Struct]) -> list[str]:
    wrong: list[str] = []
    names = argument_names(call["signature"])
    for name in names:
        if name not in call["arguments"]:
            wrong.append(f"argument {name} has no home")
    for name in call["arguments"]:
        if name not in names:
            wrong.append(f"argument {name} is not in the signature")
    returns = call["signature"].partition(" -> ")[2]
    if returns and returns != "None" and not call["outputs"]:
        wrong.append(f"the call returns {returns} and no output has a home")
    for kind in ("arguments", "outputs"):
        for name, home in call[kind].items():
            why = wrong_home(home, contract, structs)
            if why:
                wrong.append(f"{name}: {why}")
            elif kind == "outputs" and home.startswith("none:"):
                wrong.append(f"{name}: an output needs a home")
    return wrong


def check(root: Path = ROOT) -> list[str]:
    """Everything that is wrong, as lines."""
    structs = read_structs(root)
    contracts = contracts_by_reference_name(root, structs)
    calls = {c["name"]: c for c in json.loads((root / DATA).read_text())["calls"]}
    listed = (root / NAMES).read_text()
    table = block_after(listed, listed.index("ReferenceName kNames[]"))
    names = re.findall(r"^    \{\"(\w+)\"", table, re.M)
    wrong = [f"{name} has no entry" for name in names if name not in calls]
    wrong += [f"{name} is not among the names of {NAMES}" for name in calls if name not in names]
    for name, call in calls.items():
        struct = INSTEAD.get(name) or contracts.get(name)
        if struct is None or struct not in structs:
            wrong.append(f"{name}: no contract of kernels.def has this reference name")
            continue
        contract = read_contract(structs, struct)
        wrong += [f"{name} ({struct}): {line}" for line in check_call(call, contract, structs)]
    return wrong


def main() -> int:
    wrong = check()
    for line in wrong:
        print(f"{DATA}: {line}")
    print(f"reference calls: {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
