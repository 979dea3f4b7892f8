#!/usr/bin/env python3
"""Counts the instructions that register tiles and small calls take, under valgrind, and compares with perf/baseline.

  perf/instruction_counts.py --check BUILD PROGRAM    no case takes over 2 % more than its baseline
  perf/instruction_counts.py --record BUILD PROGRAM   writes the baseline anew

PROGRAM is tests/gates/count_instructions of a release build, BUILD is --machine, --compiler, --highway:
`ctest --preset release -R instruction_counts -V` shows the whole command. Counts do not depend on the machine's speed
or load. They are those of one compiler: where there is no baseline of this one, and where there is no valgrind, --check
says so and exits with 77, which CTest knows as skipped. valgrind 3.19 does not run AVX-512; perf/hot_loops.py looks at
those loops.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import gate

GATE = gate.Gate("instruction_counts", "instructions")
TARGETS = ("AVX2", "SSE2")
COUNTED = "flashlane_counted"


def total(profile: pathlib.Path) -> int:
    match = re.search(r"^(?:summary|totals): (\d+)", profile.read_text(encoding="utf-8"), re.MULTILINE)
    if not match:
        raise SystemExit(f"instruction_counts: no total in {profile.name}")
    return int(match[1])


def count(program: str, target: str) -> dict:
    """{case: instructions} of one target."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "profile"
        run = subprocess.run(
            ["valgrind", "-q", "--tool=callgrind", f"--toggle-collect={COUNTED}", f"--dump-after={COUNTED}",
             f"--callgrind-out-file={out}", program, target], capture_output=True, text=True, check=False)
        if run.returncode:
            raise SystemExit(f"instruction_counts: {target}: {run.stderr.strip()[-600:]}")
        names = run.stdout.split()
        # One profile after each case, and one at the end.
        profiles = [out.with_name(f"profile.{number + 1}") for number in range(len(names))]
        if not names or not all(profile.exists() for profile in profiles):
            raise SystemExit(f"instruction_counts: {target}: valgrind wrote no profile of each of {len(names)} cases")
        return {name: total(profile) for name, profile in zip(names, profiles)}


def runnable(program: str) -> list:
    """Those of TARGETS that this machine has and valgrind runs."""
    run = subprocess.run(["valgrind", "-q", "--tool=none", program, "--list"], capture_output=True, text=True,
                         check=True)
    return [target for target in TARGETS if target in run.stdout.split()]


def compare(now: dict, then: dict) -> tuple:
    """(what is worse, what is better), each a list of lines."""
    worse, better = [], []
    for target, cases in now.items():
        for name, number in cases.items():
            before = then.get(target, {}).get(name)
            if before is None:
                better.append(f"{target} {name}: {number}, which the baseline does not have")
                continue
            line = f"{target} {name}: {number} instructions, {number / before - 1:+.1%} of {before}"
            if number > before * (1 + gate.LIMIT):
                worse.append(line)
            elif number < before * (1 - gate.LIMIT):
                better.append(line)
        worse += [f"{target} {name}: is not counted any more" for name in then.get(target, {}) if name not in cases]
    return worse, better


def check(options: argparse.Namespace) -> int:
    stored = GATE.stored(options)
    if stored is None:
        return gate.SKIPPED
    targets = [target for target in runnable(options.program) if target in stored["targets"]]
    for target in stored["targets"]:
        if target not in targets:
            print(f"instruction_counts: {target} is not compared: this machine or its valgrind does not run it")
    worse, better = compare({target: count(options.program, target) for target in targets}, stored["targets"])
    for line in better:
        print(f"better or new: {line}")
    if not targets:
        worse.append("nothing to compare: this machine runs none of the baseline's targets")
    cases = sum(len(stored["targets"][target]) for target in targets)
    return GATE.verdict(f"{cases} cases of {', '.join(targets)}", worse)


def record(options: argparse.Namespace) -> None:
    stored = {"machine": options.machine, "compiler": options.compiler, "highway": options.highway,
              "targets": {target: count(options.program, target) for target in runnable(options.program)}}
    GATE.write(options, json.dumps(stored, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true")
    action.add_argument("--record", action="store_true")
    GATE.add_arguments(parser)
    parser.add_argument("program")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        return GATE.skip("no valgrind is installed")
    if options.check:
        return check(options)
    record(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
