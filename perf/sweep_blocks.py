#!/usr/bin/env python3
"""Measures the flash kernel with other block sizes than those of kernels/block_sizes.h.

  perf/sweep_blocks.py --function ChooseFlashBlocks --constant kBlockK --values 96 192 384 \\
      --rows 'attention/flash/f32/best/(prefill_2k_gqa|full_2k_d64)/threads:1' --json perf/results/NAME.json

Each value is written into a copy of the tree (nothing here is touched), built there with the release preset, and measured
by attention_bench; the values take turns, --rounds times, so that a slow minute of the machine does not fall on one
of them. Printed and stored: the median over the rounds of each row's peak_fraction, and its worst and best. About a
minute of building per value on two cores.
"""

import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def with_value(text: str, function: str, constant: str, value: str) -> str:
    """block_sizes.h with `constant` = value inside `function` (or at the top level if that is empty)."""
    begin = text.index(f" {function}(") if function else 0
    pattern = re.compile(rf"(\b{constant}\b = )[^;]+;")
    changed, count = pattern.subn(rf"\g<1>{value};", text[begin:], count=1)
    if count != 1:
        raise SystemExit(f"sweep_blocks: no constant {constant} in {function or 'block_sizes.h'}")
    return text[:begin] + changed


def build(folder: pathlib.Path) -> pathlib.Path:
    """Builds attention_bench in `folder`; returns its path."""
    binary = folder / "build" / "release"
    for command in (
        ["cmake", "--preset", "release", "-S", str(folder)],
        ["cmake", "--build", str(binary), "--target", "attention_bench"],
    ):
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return binary / "bench" / "attention_bench"


def measure(program: pathlib.Path, rows: str, seconds: float) -> dict:
    """One run: the machine's description and per row its counters."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        subprocess.run(
            [str(program), f"--benchmark_filter={rows}", f"--seconds_per_row={seconds}",
             f"--benchmark_out={out.name}", "--benchmark_out_format=json"],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.load(open(out.name, encoding="utf-8"))


def copy_tree(folder: pathlib.Path) -> None:
    """The files that git tracks, and the dependencies that are built from source."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, names.decode().split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    if (ROOT / "build" / "deps").exists():
        (folder / "build").mkdir(exist_ok=True)
        (folder / "build" / "deps").symlink_to(ROOT / "build" / "deps")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--function", default="", help="function of block_sizes.h that holds the constant")
    parser.add_argument("--constant", required=True)
    parser.add_argument("--values", required=True, nargs="+")
    parser.add_argument("--rows", required=True, help="regular expression of attention_bench rows")
    parser.add_argument("--seconds", type=float, default=1.0, help="per row and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, help="file to write")
    options = parser.parse_args()

    text = (ROOT / "kernels" / "block_sizes.h").read_text(encoding="utf-8")
    fractions: dict = {}
    context: dict = {}
    with tempfile.TemporaryDirectory() as work:
        programs = {}
        folder = pathlib.Path(work) / "tree"
        copy_tree(folder)
        for value in options.values:
            (folder / "kernels" / "block_sizes.h").write_text(
                with_value(text, options.function, options.constant, value), encoding="utf-8")
            programs[value] = shutil.copy2(build(folder), pathlib.Path(work) / f"bench_{len(programs)}")
        for _ in range(options.rounds):
            for value, program in programs.items():
                result = measure(program, options.rows, options.seconds)
                context = {key: result["context"][key] for key in ("date", "mhz_per_cpu", "num_cpus", "caches")}
                for row in result["benchmarks"]:
                    if row.get("kept", 0) > 0:
                        rows = fractions.setdefault(row["name"], {})
                        rows.setdefault(value, []).append(row["peak_fraction"])

    summary = {
        row: {value: {"median": round(statistics.median(seen), 4), "min": round(min(seen), 4),
                      "max": round(max(seen), 4), "runs": len(seen)} for value, seen in values.items()}
        for row, values in fractions.items()
    }
    for row, values in summary.items():
        print(row)
        for value, entry in values.items():
            print(f"  {options.constant} = {value:<12} {entry['median']:.3f}  ({entry['min']:.3f} to {entry['max']:.3f})")
    if options.json:
        cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"))
        document = {"cpu": cpu.group(1) if cpu else "unknown", "context": context, "function": options.function,
                    "constant": options.constant, "peak_fraction": summary}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
