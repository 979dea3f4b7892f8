"""Flashlane beside another library, a peer: both compute the same attention in one process and take
turns call by call, so that the machine's clock and noise meet both alike.

Where results disagree, an f64 answer by NumPy says which is off. A peer that is as precise as the
next narrower type is "imprecise"; whatever is off by more fails the run.

For a new peer write an Adapter and hand it to main(); compare_pytorch.py is the example.

Either side allocates its result within the time, as the peers that return a result must. With one
thread, time is that of the thread: what other processes take does not count. With more it is wall
time, and other processes do count.
"""

import abc
import argparse
import datetime
import json
import math
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import flashlane_peer
import peer_statistics

# NumPy asks for huge pages for its large arrays, and other libraries do not: neither side may have
# results that cost fewer page faults. NumPy reads this when it is imported, which adapters do.
os.environ["NUMPY_MADVISE_HUGEPAGE"] = "0"

DTYPES = ("f32", "f16", "bf16", "f64")

_MIN_PAIRS = 5  # the least that has a median and a spread
# To find a peer's fastest form: between forms that differ by less than such a measurement tells
# the choice does not matter.
_CHOICE_SECONDS, _CHOICE_ROUNDS = 0.2, 3
# Before each call on several threads. The other library's workers wait for more work on their
# cores for some milliseconds (OpenMP) before they sleep, and would take them from this one's.
_PAUSE_SECONDS = 0.02
# Of a call that is meant to run in its caller alone: time on other threads, at most this part of
# it, beside what the interpreter may do meanwhile.
_ELSEWHERE_PART, _ELSEWHERE_SECONDS = 0.02, 1e-3


class NotOffered(Exception):
    """The peer has no way to compute this shape or dtype; the message says why."""


class Adapter(abc.ABC):
    """One peer. Made once, before any operand, with the number of threads to use."""

    name: str  # as its makers write it
    install: str  # how to get what this adapter imports

    @abc.abstractmethod
    def __init__(self, threads: int): ...

    @abc.abstractmethod
    def describe(self) -> dict:
        """Version, and what else decides how fast it is; goes into the JSON."""

    @abc.abstractmethod
    def forms(self, shape: flashlane_peer.Shape, dtype: str, operands: dict) -> dict[str, Callable]:
        """Every way worth trying to compute attention of operands (peer_operands.make), or its
        gradients (shape.backward), by name; the fastest is measured. What can be prepared once
        belongs here, out of the time. Must read the operands' own memory where it can, and must
        refuse (NotOffered) what it can not do."""

    @abc.abstractmethod
    def to_numpy(self, result: Any, shape: flashlane_peer.Shape) -> tuple:
        """What a form returned: arrays, one for each of shape.results(), of shape.dims() of it and
        stored as peer_operands.STORAGE says."""


def timed(call: Callable, clock: Callable) -> tuple[float, Any]:
    """Seconds and result. Whoever drops the result frees it out of the time."""
    begin = clock()
    result = call()
    return clock() - begin, result


def take_turns(calls: list[Callable], clock: Callable, seconds: float, rounds: int, pause: float):
    """Times of each call, for at least so many seconds and rounds."""
    times = [[] for _ in calls]
    begin = time.perf_counter()
    while len(times[0]) < rounds or time.perf_counter() - begin < seconds:
        for call, of_call in zip(calls, times, strict=True):
            if pause:
                time.sleep(pause)
            of_call.append(timed(call, clock)[0])
    return times


def runs_in_caller(call: Callable) -> bool:
    """Whether the thread's time is all the time that the process spends on the call."""
    begin = time.process_time()
    own = timed(call, time.thread_time)[0]
    elsewhere = time.process_time() - begin - own
    return elsewhere <= _ELSEWHERE_PART * own + _ELSEWHERE_SECONDS


class Comparison:
    """All rows of one run of a program."""

    def __init__(self, adapter: Adapter, library: flashlane_peer.Flashlane, options):
        self._adapter = adapter
        self._library = library
        self._options = options
        self._pause = _PAUSE_SECONDS if options.threads > 1 else 0

    def _flashlane(self, shape, dtype, operands) -> tuple[Callable, int]:
        import numpy as np
        import peer_operands

        target = self._options.target
        call = flashlane_peer.Call(
            shape=shape,
            dtype=dtype.encode(),
            num_threads=self._options.threads,
            target=target.encode() if target else None,
            **{name: array.ctypes.data for name, array in operands.items()},
        )
        storage = peer_operands.STORAGE[dtype]
        kept = {}
        if shape.backward:  # what the forward call computes is kept, out of the time
            kept["out"] = np.empty(shape.dims("out"), storage)
            kept["lse"] = np.empty(shape.dims("lse"), np.float64 if dtype == "f64" else np.float32)
            call.out, call.lse = (kept[name].ctypes.data for name in ("out", "lse"))
            call.shape.backward = 0
            self._library.attention(call)
            call.shape.backward = 1

        def run():
            results = []
            for name in shape.results():
                results.append(np.empty(shape.dims(name), storage))
                setattr(call, name, results[-1].ctypes.data)
            self._library.attention(call)
            return tuple(results)

        run.kept = kept  # lives as long as what reads it
        run()  # names the results' memory, without which a call is not legal
        return run, self._library.flops(call)

    def measure(self, shape, dtype) -> dict:
        """One row. Raises NotOffered."""
        import peer_operands

        operands = peer_operands.make(shape, dtype)
        forms = self._adapter.forms(shape, dtype, operands)
        flashlane, flops = self._flashlane(shape, dtype, operands)
        ours = flashlane()
        differences = {
            name: peer_operands.compare(self._adapter.to_numpy(form(), shape), ours, dtype)
            for name, form in forms.items()
        }
        del ours
        in_caller = self._options.threads == 1 and all(
            runs_in_caller(call) for call in (flashlane, *forms.values())
        )
        clock = time.thread_time if in_caller else time.perf_counter
        form = self._fastest(forms, clock)
        peer_times, flashlane_times = take_turns(
            [forms[form], flashlane], clock, self._options.seconds, _MIN_PAIRS, self._pause
        )
        row = dict(
            form=form,
            clock=clock.__name__,
            **peer_statistics.summarise(peer_times, flashlane_times, flops),
            **differences[form],
        )
        if not row["agrees"]:
            truth = peer_operands.exact(shape, operands, dtype)
            theirs = self._adapter.to_numpy(forms[form](), shape)
            row.update(peer_operands.judge(theirs, flashlane(), truth, dtype))
        return row

    def _fastest(self, forms: dict[str, Callable], clock: Callable) -> str:
        if len(forms) == 1:
            return next(iter(forms))
        times = take_turns(
            list(forms.values()), clock, _CHOICE_SECONDS, _CHOICE_ROUNDS, self._pause
        )
        return min(
            zip(times, forms, strict=True), key=lambda of: peer_statistics.percentile(of[0], 0.5)
        )[1]


_COLUMNS = (
    ("row", "<26", "row"),
    ("form", "<13", "form"),
    ("peer", ">8.1f", "peer_gflops"),
    ("flashlane", ">9.1f", "flashlane_gflops"),
    ("speedup", ">7.2f", "speedup"),
    ("paired", ">7.2f", "paired_speedup"),
    ("p10", ">6.2f", "paired_speedup_p10"),
    ("p90", ">6.2f", "paired_speedup_p90"),
    ("pairs", ">6d", "pairs"),
    ("max diff", ">9.1e", "max_difference"),
)


def print_header(peer: str) -> None:
    print(f"peer = {peer}; peer and flashlane in Gflop/s; speedup = time of {peer} / time of")
    print("Flashlane: of the medians; paired: the median of neighbouring calls, p10, p90 likewise")
    print(" ".join(f"{title:{spec.split('.')[0].rstrip('d')}}" for title, spec, _ in _COLUMNS))


def failed(row: dict) -> bool:
    """Whether one side computed something else. An imprecise peer is the peer's affair."""
    return row.get("verdict", "").endswith("wrong")


def print_row(row: dict) -> None:
    if "reason" in row:
        print(f"{row['row']:<26} not compared: {row['reason']}", flush=True)
        return
    line = " ".join(f"{row[key]:{spec}}" for _, spec, key in _COLUMNS)
    if row["clock"] != time.thread_time.__name__:
        line += "  wall time"
    if not row["agrees"]:
        line += (
            f"  {'FAILED: ' if failed(row) else ''}{row['verdict']}: off an f64 answer by"
            f" {row['peer_error']:.1e} (peer), {row['flashlane_error']:.1e} (Flashlane);"
            f" allowed {row['error_bound']:.1e}"
        )
    print(line, flush=True)


def select(library: flashlane_peer.Flashlane, pattern: re.Pattern | None) -> list[tuple]:
    """(row, shape, dtype) of all rows that match from their beginning on (f16/ is not to select
    bf16/) or, without a pattern, of those that attention_bench measures by default with one
    thread."""
    rows = []
    for dtype in DTYPES:
        for index, (name, shape) in enumerate(library.shapes()):
            row = f"{dtype}/{name}"
            if pattern.match(row) if pattern else library.by_default(index, dtype):
                rows.append((row, shape, dtype))
    return rows


def machine(library: flashlane_peer.Flashlane) -> dict:
    """What the numbers were measured on; nothing that tells whose machine it is."""
    import numpy

    return dict(
        **library.describe(),
        cpus=len(os.sched_getaffinity(0)),
        load_average=os.getloadavg(),
        system=platform.system(),
        python=platform.python_version(),
        numpy=numpy.__version__,
    )


def _regex(text: str) -> re.Pattern:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error


def parse(adapter: type[Adapter], arguments: list[str] | None):
    parser = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"Flashlane beside {adapter.name}, on the shapes of bench/shapes.h.\n\n"
        f"Needs {adapter.install}\n"
        "and the library: ninja -C build/release flashlane_peer",
    )
    parser.add_argument(
        "--rows",
        metavar="REGEX",
        type=_regex,
        help="rows to measure, from the beginning of their names: f32/, .*d64, . for all (--list)",
    )
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    parser.add_argument("--seconds", type=float, default=3, help="per row, at least (default 3)")
    parser.add_argument("--threads", type=int, default=1, help="of either side (default 1)")
    parser.add_argument("--target", help="Flashlane's vector target (default: the best)")
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    parser.add_argument("--library", default=flashlane_peer.DEFAULT_LIBRARY, help="flashlane_peer")
    options = parser.parse_args(arguments)
    if options.threads < 1:
        parser.error("--threads: at least 1")
    if not (math.isfinite(options.seconds) and options.seconds >= 0):
        parser.error("--seconds: a number, 0 or more")
    return options


def write_json(path: str, about: dict, rows: list[dict]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(dict(about, rows=rows), file, indent=1)
        file.write("\n")


def main(adapter: type[Adapter], arguments: list[str] | None = None) -> int:
    """The program. Its status is 1 if one side was wrong, 2 if a comparison was not possible."""
    options = parse(adapter, arguments)
    try:
        library = flashlane_peer.Flashlane(options.library)
    except (OSError, AttributeError) as error:  # none there, or an older one
        print(f"{error}\nbuild it: ninja -C build/release flashlane_peer", file=sys.stderr)
        return 2
    selected = select(library, options.rows)
    if not selected:
        print(f"--rows {options.rows.pattern}: no row matches; --rows . --list", file=sys.stderr)
        return 2
    if options.list:
        print(*(row for row, _, _ in selected), sep="\n")
        return 0
    try:
        peer = adapter(options.threads)
        import peer_operands  # noqa: F401 - NumPy may be missing
    except ImportError as error:
        print(f"{error}\n{adapter.name} needs {adapter.install}", file=sys.stderr)
        return 2
    about = dict(
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        machine=machine(library),
        peer=dict(name=adapter.name, **peer.describe()),
        settings=dict(threads=options.threads, target=options.target, seconds=options.seconds),
    )
    comparison = Comparison(peer, library, options)
    print_header(adapter.name)
    rows = []
    for row, shape, dtype in selected:
        try:
            rows.append(dict(row=row, **comparison.measure(shape, dtype)))
        except NotOffered as reason:
            rows.append(dict(row=row, reason=str(reason)))
        except flashlane_peer.FlashlaneError as error:
            print(f"{row}: Flashlane refuses it: {error}", file=sys.stderr)
            return 2
        print_row(rows[-1])
        if options.json:  # after every row: a long run that is ended leaves what it has
            write_json(options.json, about, rows)
    compared = [row for row in rows if "reason" not in row]
    if not compared:
        print("nothing was compared", file=sys.stderr)
        return 2
    return 1 if any(map(failed, compared)) else 0
