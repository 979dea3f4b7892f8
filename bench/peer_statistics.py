"""From the times of two libraries that took turns to a row of the table."""

import statistics


def percentile(values: list[float], fraction: float) -> float:
    """Between the two nearest values, linearly."""
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def summarise(peer: list[float], flashlane: list[float], flops: float) -> dict:
    """Seconds of the calls of either, call i of the one next to call i of the other. A speedup is
    the peer's time by Flashlane's: above 1 Flashlane is the faster one."""
    ratios = [p / f for p, f in zip(peer, flashlane, strict=True)]
    peer_seconds, flashlane_seconds = statistics.median(peer), statistics.median(flashlane)
    return dict(
        pairs=len(ratios),
        peer_seconds=peer_seconds,
        flashlane_seconds=flashlane_seconds,
        peer_gflops=flops / peer_seconds * 1e-9,
        flashlane_gflops=flops / flashlane_seconds * 1e-9,
        speedup=peer_seconds / flashlane_seconds,
        paired_speedup=statistics.median(ratios),
        paired_speedup_p10=percentile(ratios, 0.1),
        paired_speedup_p90=percentile(ratios, 0.9),
    )
