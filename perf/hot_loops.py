#!/usr/bin/env python3
"""Looks at the machine code of the innermost loops of the products and weights, where the time goes, on every
instruction set that a build is compiled for, whether this machine has it or not.

  perf/hot_loops.py --expect BUILD OBJECT...   each loop multiplies by the instruction that its target is there for
                                               (bfdot, vdpbf16ps, tdpbf16ps, ...), and a register tile stays in
                                               registers
  perf/hot_loops.py --check BUILD OBJECT...    instructions per multiply, by kind, and cycles as llvm-mca predicts them
                                               are those of perf/baseline or up to 2 % more
  perf/hot_loops.py --record BUILD OBJECT...   writes the baseline anew
  perf/hot_loops.py --list BUILD OBJECT...

BUILD is --machine, --compiler, --highway, as a build tree's tests have them: `ctest --preset release -R hot_loops -V`
shows the whole command. Counts are those of one compiler: where there is no baseline of this one, --check says so and
exits with 77, which CTest knows as skipped. `--part`: the objects hold some of the functions only.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys

import disassembly
import gate

GATE = gate.Gate("hot_loops", "hot_loops")
COLUMNS = disassembly.COUNTED + disassembly.WORK

# What a function must multiply by, on the targets that match. Where the kernels take another unit, the function is not
# compiled for that target, and nothing is asked.
EXPECTED = (
    ("SSE2", "MultiplyPanel|AddProduct|ScoreStep|AddValueStep", "multiply"),
    ("AVX2|AVX3.*|NEON.*", "MultiplyPanel|AddProduct", "multiply_add"),
    ("AVX2|AVX3.*|NEON.*", "(ScoreStep|AddValueStep)<Fma", "multiply_add"),
    ("AVX3_ZEN4|AVX3_SPR|NEON_BF16", "DotTiles::Multiply|(ScoreStep|AddValueStep)<Pair", "dot"),
    ("AVX3_ZEN4|AVX3_SPR", "AmxTiles::Multiply", "tile_product"),
)
# What must be there at all if the target is.
REQUIRED = (
    ("AVX3_ZEN4|NEON_BF16", "DotTiles::Multiply"),
    ("AVX3_ZEN4|AVX3_SPR", "AmxTiles::Multiply"),
    (".*", "MultiplyPanel"),
)
REGISTER_TILES = r"MultiplyPanel|DotTiles::Multiply|AmxTiles::Multiply"

# Cores of whose pipes llvm-mca knows; AMX wherever its function is compiled.
CORES = (
    (".*", "AmxTiles.*", "sapphirerapids"),
    ("SSE2", ".*", "sandybridge"),
    ("AVX2", ".*", "haswell"),
    ("AVX3_ZEN4", ".*", "znver4"),
    ("AVX3_SPR", ".*", "sapphirerapids"),
    ("AVX3.*", ".*", "skylake-avx512"),
    ("NEON_BF16", ".*", "neoverse-v1"),
    ("NEON.*", ".*", "neoverse-n1"),
)
OLDEST_MCA = 17  # the first that knows all of them


def core_of(target: str, name: str) -> str:
    return next(core for targets, names, core in CORES if re.fullmatch(targets, target) and re.fullmatch(names, name))


# ---- cycles

def find_mca() -> tuple:
    """(program, version) of the newest llvm-mca, or (None, why there is none)."""
    places = [str(path) for path in pathlib.Path("/usr/lib").glob("llvm-*/bin/llvm-mca")]
    newest = (None, 0, "")
    for program in places + [found for found in [shutil.which("llvm-mca")] if found]:
        text = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        if match := re.search(r"version (\d+)[\d.]*", text):
            if int(match[1]) > newest[1]:
                newest = (program, int(match[1]), match[0].split()[1])
    if newest[1] < OLDEST_MCA:
        return None, f"no llvm-mca of version {OLDEST_MCA} or newer is installed"
    return newest[0], newest[2]


def predict(program: str, machine: str, found: dict) -> None:
    """Adds counts["cycles"], per iteration, to every loop that llvm-mca can read."""
    by_core = {}
    for target, functions in found.items():
        for name, loops in functions.items():
            by_core.setdefault(core_of(target, name), []).extend(loops)
    triple = "aarch64-linux-gnu" if machine == "aarch64" else "x86_64-linux-gnu"
    for core, loops in by_core.items():
        source = []
        for number, loop in enumerate(loops):
            lines = [re.sub(r"[0-9a-f]+ <.*>$", "target", text) for text in loop.text]
            source += [f"# LLVM-MCA-BEGIN {number}", *lines, f"# LLVM-MCA-END {number}"]
        answer = subprocess.run(
            [program, f"-mtriple={triple}", f"-mcpu={core}", "-iterations=100", "-json"],
            input="\n".join(source) + "\n", capture_output=True, text=True, check=False)
        if answer.returncode:
            raise SystemExit(f"hot_loops: llvm-mca -mcpu={core}: {answer.stderr[:300]}")
        for region in json.loads(answer.stdout)["CodeRegions"]:
            loops[int(region["Name"])].counts["cycles"] = region["SummaryView"]["TotalCycles"] / 100


# ---- expectations

def surprises(found: dict) -> list:
    """What is not as the kernels' sources promise, whatever the compiler."""
    wrong = []
    for targets, name in REQUIRED:
        for target, functions in found.items():
            if re.fullmatch(targets, target) and not any(function.startswith(name) for function in functions):
                wrong.append(f"{target}: there is no {name}")
    for target, functions in found.items():
        for function, loops in functions.items():
            if re.match(REGISTER_TILES, function) and (loops[0].counts["stack"] or loops[0].counts["store"]):
                wrong.append(f"{target} {function}: its register tile is stored inside of the loop: {show(loops[0])}")
            for targets, name, worker in EXPECTED:
                if re.fullmatch(targets, target) and re.match(name, function) and loops[0].worker() != worker:
                    wrong.append(f"{target} {function}: multiplies by {loops[0].worker()}, not by {worker}")
    return wrong


def show(loop: disassembly.Loop) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in loop.counts.items() if number)


# ---- baseline

def record(options: argparse.Namespace, found: dict, mca: str) -> None:
    head = {"machine": options.machine, "compiler": options.compiler, "highway": options.highway, "llvm_mca": mca,
            "columns": list(COLUMNS) + ["cycles"]}
    targets = []
    for target, functions in found.items():
        rows = []
        for function, loops in functions.items():
            numbers = [[loop.counts.get(kind, 0) for kind in COLUMNS] + [loop.counts.get("cycles")] for loop in loops]
            rows.append(f"      {json.dumps(function)}: {json.dumps(numbers, separators=(',', ':'))}")
        targets.append(f"    {json.dumps(target)}: {{\n" + ",\n".join(rows) + "\n    }")
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    GATE.write(options, "{\n" + ",\n".join(lines) + ',\n  "loops": {\n' + ",\n".join(targets) + "\n  }\n}\n")


def worse(now: dict, then: dict, with_cycles: bool) -> list:
    """Kinds of which a multiply takes more than it did. A kind that was not there at all may not come."""
    work_now = sum(now.get(kind, 0) for kind in disassembly.WORK)
    work_then = sum(then.get(kind, 0) for kind in disassembly.WORK)
    kinds = disassembly.COUNTED + (("cycles",) if with_cycles else ())
    kinds = [kind for kind in kinds if now.get(kind) is not None and then.get(kind) is not None]
    found = [kind for kind in kinds if now[kind] / work_now > then[kind] / work_then * (1 + gate.LIMIT) + 1e-9]
    if disassembly.Loop(now, []).worker() != disassembly.Loop(then, []).worker():
        found.append("the instruction that multiplies")
    return found


def compare(found: dict, stored: dict, part: bool, with_cycles: bool) -> tuple:
    """(what is worse, number of loops that were compared). Loops of a function are told apart by their rank in work."""
    bad, compared = [], 0
    for target, functions in stored["loops"].items():
        for function, rows in functions.items():
            loops = found.get(target, {}).get(function)
            if loops is None:
                if not part:
                    bad.append(f"{target} {function}: has no loop that multiplies any more")
                continue
            for loop, row in zip(loops, rows):
                compared += 1
                then = dict(zip(stored["columns"], row))
                if kinds := worse(loop.counts, then, with_cycles):
                    bad.append(f"{target} {function}: more per multiply: {', '.join(kinds)}\n    now  {show(loop)}\n"
                               f"    then {show(disassembly.Loop(then, []))}")
            if len(loops) < len(rows) and not part:
                bad.append(f"{target} {function}: {len(loops)} distinct loops that multiply, there were {len(rows)}")
    return bad, compared


def check(options: argparse.Namespace, found: dict, mca: str) -> int:
    stored = GATE.stored(options)
    if stored is None:
        return gate.SKIPPED
    with_cycles = mca == stored["llvm_mca"]
    if not with_cycles:
        print(f"hot_loops: cycles are not compared: the baseline's are of llvm-mca {stored['llvm_mca']}, here: {mca}")
    bad, compared = compare(found, stored, options.part, with_cycles)
    for target, functions in found.items():
        if new := [function for function in functions if function not in stored["loops"].get(target, {})]:
            print(f"hot_loops: {target}: not in the baseline: {', '.join(new)}")
    if not compared:
        bad.append("nothing to compare: are these the objects of the kernels?")
    return GATE.verdict(f"{compared} loops compared with {GATE.path(options).name}", bad)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    for name in ("expect", "check", "record", "list"):
        action.add_argument(f"--{name}", action="store_true")
    GATE.add_arguments(parser)
    parser.add_argument("--objdump", default="objdump")
    parser.add_argument("--part", action="store_true")
    parser.add_argument("objects", nargs="+")
    options = parser.parse_args()

    if not shutil.which(options.objdump):
        return GATE.skip(f"there is no objdump for {options.machine}")
    found = disassembly.hot_loops(options.objdump, options.objects, options.machine)
    if options.expect:
        wrong = surprises(found) if found else ["no hot loops at all: are these the objects of the kernels?"]
        print("\n".join(wrong))
        print(f"hot_loops: {', '.join(found)}: {len(wrong)} surprises")
        return 1 if wrong else 0
    program, mca = find_mca()
    if program:
        predict(program, options.machine, found)
    if options.check:
        return check(options, found, mca)
    if options.record:
        record(options, found, mca)
    else:
        for target, functions in found.items():
            for function, loops in functions.items():
                print(f"{target} {function}", *(f"\n    {show(loop)}" for loop in loops), sep="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
