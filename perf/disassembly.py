"""Loops of compiled functions, from objdump: what perf/hot_loops.py counts."""

import dataclasses
import re
import subprocess

# The functions that the time goes into, in any instruction set's namespace. What g++ made of their lambdas counts as
# theirs.
HOT = re.compile(
    r"\bN_(?P<target>[A-Z0-9_]+)::(?:[A-Za-z]+<[^()]*>::)?(?P<name>MultiplyPanel|AddProduct|DotTiles::Multiply"
    r"|AmxTiles::Multiply|ScoreStep|AddValueStep|WeighInPlace|WeighToPairs|WeighStep)<")
HEADER = re.compile(r"^[0-9a-f]+ <(?P<name>.*)>:$")
INSTRUCTION = re.compile(r"^ *(?P<at>[0-9a-f]+):\t(?P<text>.*)$")
BRANCH = re.compile(r"^(?:j[a-z]+|b\.[a-z]+|cbn?z|tbn?z|b)\s+(?:.*,\s*)?(?P<to>[0-9a-f]+)(?: <|$)")

# Instructions by kind; the first that matches. Those that do the work come first.
X86_KINDS = (
    ("tile_product", r"tdp"),
    ("dot", r"vdpbf16ps"),
    ("multiply_add", r"vfn?m(?:add|sub)"),
    ("multiply", r"v?mul[ps][sd]"),
    ("prefetch", r"prefetch"),
    ("shuffle", r"v?(?:perm|unpck|punpck|shuf|pshuf|insert|extract|pinsr|pextr|align|palignr|movddup|movs[lh]dup|movlh"
                r"|movhl|broadcast|pbroadcast|blend|pblend|compress|expand)"),
)
ARM_KINDS = (
    ("tile_product", r"bfmmla"),
    ("dot", r"bfdot"),
    ("multiply_add", r"fml[as]|fn?madd|fn?msub"),
    ("multiply", r"fmul"),
    ("prefetch", r"prfm"),
    ("shuffle", r"(?:zip|uzp|trn)[12]|ext|tbl|dup|ins|rev\d*|ld1r"),
)
WORK = ("tile_product", "dot", "multiply_add", "multiply")
COUNTED = ("instructions", "load", "store", "stack", "shuffle", "move")
X86_MEMORY = re.compile(r"(?P<base>[^\s,]*\((?P<register>%\w+)?[^)]*\))")
PADDING = re.compile(r"nop|cs nop|data16|xchg +%ax,%ax")
NOT_MEMORY = re.compile(r"^(?:lea|nop|cs nop|data16|prefetch)")


@dataclasses.dataclass
class Loop:
    """One innermost loop: how many instructions of each kind, and their text."""
    counts: dict
    text: list

    def work(self) -> int:
        return sum(self.counts.get(kind, 0) for kind in WORK)

    def worker(self) -> str:
        """The best kind of instruction that does the work."""
        return next((kind for kind in WORK if self.counts.get(kind)), "none")


def short_name(match: re.Match, whole: str) -> str:
    """`MultiplyPanel<0,4,float>`: without namespaces, suffixes of numbers and the arguments of the function."""
    depth, end = 0, match.end() - 1
    for end in range(match.end() - 1, len(whole)):
        depth += {"<": 1, ">": -1}.get(whole[end], 0)
        if depth == 0:
            break
    arguments = re.sub(r"\((?:[\w]+::)+\w+\)", "", whole[match.end() - 1:end + 1])
    arguments = re.sub(r"(?:\w+::)+", "", arguments)
    return match["name"] + re.sub(r"(\d)ul?\b|\s", r"\1", arguments)


def x86_kinds(text: str, frame: set) -> list:
    mnemonic, _, operands = text.partition(" ")
    kinds = [next((kind for kind, pattern in X86_KINDS if re.match(pattern, mnemonic)), "")]
    memory = None if NOT_MEMORY.match(text) else X86_MEMORY.search(operands)
    if memory:
        stores = re.match(r"v?(?:mov|extract|pextr)|tilestored|vcvtps2ph|vpmov|vpcompress", mnemonic)
        last = operands.rstrip().endswith(memory["base"]) or re.search(r"\)(?:\{%k\d\})?$", operands.rstrip())
        kinds.append("store" if stores and last and not mnemonic.startswith("tileload") else "load")
        if memory["register"] in frame:
            kinds.append("stack")
    elif re.match(r"v?mov(?:ap|up|dq)", mnemonic):
        kinds.append("move")
    return kinds


def arm_kinds(text: str, frame: set) -> list:
    mnemonic, _, operands = text.partition("\t")
    kinds = [next((kind for kind, pattern in ARM_KINDS if re.fullmatch(pattern, mnemonic)), "")]
    memory = re.search(r"\[(\w+)", operands) if re.match(r"ld|st|prfm", mnemonic) else None
    if memory and not mnemonic.startswith("prfm"):
        kinds.append("store" if mnemonic.startswith("st") else "load")
        if memory[1] in frame:
            kinds.append("stack")
    elif mnemonic == "mov" and re.match(r"v\d+\.\d+[bhsd], v\d+\.\d+[bhsd]$", operands):
        kinds.append("move")
    elif mnemonic == "mov" and re.match(r"v\d+\.", operands):
        kinds.append("shuffle")
    return kinds


def count(lines: list, machine: str, frame: set) -> dict:
    counts = dict.fromkeys(COUNTED, 0)
    for line in lines:
        counts["instructions"] += 1
        for kind in (arm_kinds if machine == "aarch64" else x86_kinds)(line, frame):
            if kind:
                counts[kind] = counts.get(kind, 0) + 1
    return counts


def innermost_loops(code: list, machine: str) -> list:
    """`code` is (address, text) of one function. A loop reaches from the target of a backward branch to the last such
    branch; those that hold another are left out, and those that do no work."""
    ends = {}
    for at, text in code:
        branch = BRANCH.match(text)
        if branch and code[0][0] <= int(branch["to"], 16) <= at:
            ends[int(branch["to"], 16)] = max(at, ends.get(int(branch["to"], 16), 0))
    texts = [text for _, text in code]
    frame = {"%rsp", "sp"}
    if any(re.match(r"mov\s+%rsp,%rbp", text) for text in texts):
        frame.add("%rbp")
    if any(re.match(r"mov\tx29, sp|add\tx29, sp", text) for text in texts):
        frame.add("x29")
    loops = []
    for begin, end in ends.items():
        if not any(begin < other <= end for other in ends):
            lines = [text for at, text in code if begin <= at <= end and not PADDING.match(text)]
            loops.append(Loop(count(lines, machine, frame), lines))
    return [loop for loop in loops if loop.work()]


def hot_loops(objdump: str, files: list, machine: str) -> dict:
    """{target: {function: [Loop]}}, the loops with the most work first, equal ones once. A function that several files
    have is taken from the first."""
    found, owner, code, key = {}, {}, [], None

    def close(file: str) -> None:
        if key and code and owner.setdefault(key, file) == file:
            found.setdefault(key, []).extend(innermost_loops(code, machine))

    for file in files:
        listing = subprocess.run([objdump, "-d", "-C", "--no-show-raw-insn", file], check=True, capture_output=True,
                                 text=True).stdout
        for line in listing.splitlines():
            if header := HEADER.match(line):
                close(file)
                match = HOT.search(header["name"])
                key, code = (match["target"], short_name(match, header["name"])) if match else None, []
            elif key and (instruction := INSTRUCTION.match(line)):
                text = re.sub(r"\s*(?:#|//) .*$", "", instruction["text"]).strip()
                code.append((int(instruction["at"], 16), text))
        close(file)
        key = None
    result = {}
    for (target, name), loops in sorted(found.items()):
        distinct = {tuple(sorted(loop.counts.items())): loop for loop in loops}
        ordered = sorted(distinct.values(), key=lambda loop: (-loop.work(), loop.counts["instructions"]))
        if ordered:
            result.setdefault(target, {})[name] = ordered
    return result
