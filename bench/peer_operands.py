"""Operands that both libraries of a comparison read from the same memory; how results differ."""

import flashlane_peer
import numpy as np

# How an element type lies in memory. NumPy has no bf16: its bits, then.
STORAGE = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": np.uint16}

# Unit roundoff.
ROUNDOFF = {"f32": 2.0**-24, "f64": 2.0**-53, "f16": 2.0**-11, "bf16": 2.0**-8}

# How far two correct results may lie apart, in roundoffs of the largest (or the mean) result. With
# 16 bits both round the result, and one perhaps the weights. Otherwise the errors of scores show,
# which are sums of some hundred products, and the more keys there are the smaller is the result
# beside the values: 80 were seen at 8192 keys.
_ROUNDOFFS = {"f32": 256, "f64": 256, "f16": 4, "bf16": 4}

_CACHE_LINE = 64  # what allocators of tensor libraries align to, and NumPy's does not


def _aligned(values: np.ndarray) -> np.ndarray:
    memory = np.empty(values.nbytes + _CACHE_LINE, np.uint8)
    begin = -memory.ctypes.data % _CACHE_LINE
    copy = memory[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def _round_to_bf16(values: np.ndarray) -> np.ndarray:
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)  # to nearest even


def make(shape: flashlane_peer.Shape, dtype: str) -> dict[str, np.ndarray]:
    """q, k and v, standard normal, the same ones every time."""
    normal = np.random.default_rng(1)
    operands = {}
    for name in ("q", "k", "v"):
        values = normal.standard_normal(shape.dims(name), np.float32)
        stored = _round_to_bf16(values) if dtype == "bf16" else values.astype(STORAGE[dtype])
        operands[name] = _aligned(stored)
    return operands


def _widen(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32) if dtype == "f16" else values


def compare(first: np.ndarray, second: np.ndarray, dtype: str) -> dict:
    """The difference of two results, by its maximum and its root mean square: where few values are
    large, the maximum says little about the others."""
    first, second = _widen(first, dtype), _widen(second, dtype)
    difference = first - second
    relative = _ROUNDOFFS[dtype] * ROUNDOFF[dtype]
    found = dict(
        max_difference=float(np.abs(difference).max()),
        max_difference_bound=float(relative * np.abs(second).max()),
        rms_difference=float(np.sqrt(np.square(difference).mean())),
        rms_difference_bound=float(relative * np.sqrt(np.square(second).mean())),
    )
    # Written so that a NaN anywhere is a disagreement.
    found["agrees"] = (
        found["max_difference"] <= found["max_difference_bound"]
        and found["rms_difference"] <= found["rms_difference_bound"]
    )
    return found
