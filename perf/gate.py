"""What the gates share: whose baseline, and by how much it may be exceeded."""

import argparse
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 0.02
SKIPPED = 77  # CTest's SKIP_RETURN_CODE


class Gate:
    """A program and its baselines, perf/baseline/<what>-<machine>-<compiler>.json."""

    def __init__(self, name: str, what: str):
        self.name, self.what = name, what

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--machine", choices=("x86_64", "aarch64"), required=True)
        parser.add_argument("--compiler", required=True, help="'GNU 12.2.0'")
        parser.add_argument("--highway", required=True, help="its version")
        parser.add_argument("--baseline", type=pathlib.Path, default=ROOT / "perf" / "baseline")

    def path(self, options: argparse.Namespace) -> pathlib.Path:
        return options.baseline / f"{self.what}-{options.machine}-{options.compiler.replace(' ', '-')}.json"

    def stored(self, options: argparse.Namespace) -> dict | None:
        """The baseline of this compiler and Highway; None, after it has been said why, where there is none."""
        path = self.path(options)
        if not path.exists():
            there = ", ".join(sorted(other.stem for other in options.baseline.glob(f"{self.what}-*"))) or "none"
            self.skip(f"not compared: no baseline of {options.compiler} on {options.machine} (there is: {there})")
            return None
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["highway"] != options.highway:
            self.skip(f"not compared: the baseline is of Highway {stored['highway']}, this is {options.highway}")
            return None
        return stored

    def write(self, options: argparse.Namespace, text: str) -> None:
        path = self.path(options)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"{self.name}: wrote {path.name}")

    def skip(self, why: str) -> int:
        print(f"{self.name}: SKIPPED, {why}")
        return SKIPPED

    def verdict(self, compared: str, worse: list) -> int:
        print("\n".join(worse))
        print(f"{self.name}: {compared}, {len(worse)} worse by more than {LIMIT:.0%}")
        if worse:
            print(f"{self.name}: if that is meant, write the baseline anew: ninja -C <this build> baselines")
        return 1 if worse else 0
