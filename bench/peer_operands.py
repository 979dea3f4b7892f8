"""Operands that both libraries of a comparison read from the same memory; how results differ."""

import math

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

# The type as whose results those of a peer pass for imprecise. What is off by more is wrong.
_COARSER = {"f64": "f32", "f32": "f16", "f16": "bf16"}

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
    """q, k, v, dout and bias, standard normal; a mask that shows three keys of four; the usual
    slopes of ALiBi. The same ones every time."""
    generator = np.random.default_rng(1)
    operands = {}
    more = (["bias"] if shape.has("bias") else []) + (["dout"] if shape.backward else [])
    for name in ("q", "k", "v", *more):
        values = generator.standard_normal(shape.dims(name), np.float32)
        stored = _round_to_bf16(values) if dtype == "bf16" else values.astype(STORAGE[dtype])
        operands[name] = _aligned(stored)
    if shape.has("mask"):
        operands["mask"] = _aligned(generator.random(shape.dims("mask"), np.float32) < 0.75)
    if shape.has("alibi_slopes"):
        heads = np.arange(1, shape.num_heads + 1, dtype=np.float32)
        operands["alibi_slopes"] = _aligned(np.exp2(-8 * heads / shape.num_heads))
    return operands


def _widen(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32) if dtype == "f16" else values


def _distance(first: np.ndarray, second: np.ndarray, dtype: str) -> dict:
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


def _worst(distances: list[dict]) -> dict:
    """Of several results the one that is furthest off, beside what is allowed."""
    worst = max(distances, key=lambda of: of["max_difference"] / (of["max_difference_bound"] or 1))
    return dict(worst, agrees=all(of["agrees"] for of in distances))


def compare(first: tuple, second: tuple, dtype: str) -> dict:
    """The difference of two calls' results, by its maximum and its root mean square: where few
    values are large, the maximum says little about the others."""
    pairs = zip(first, second, strict=True)
    return _worst([_distance(_widen(x, dtype), _widen(y, dtype), dtype) for x, y in pairs])


def _scores(shape: flashlane_peer.Shape, operands: dict, dtype: str, head: tuple, rows: slice):
    """Of some rows of head (b, h), -inf where a key is hidden."""
    b, h = head
    keys = np.arange(shape.seqlen_k)
    a = (np.arange(shape.seqlen_q)[rows] + shape.first_position())[:, None]
    q = _widen(operands["q"][b, h, rows], dtype).astype(np.float64)
    k = _widen(operands["k"][b, h * shape.num_kv_heads // shape.num_heads], dtype)
    given = shape.softmax_scale
    scores = q @ k.astype(np.float64).T
    scores *= 1 / math.sqrt(shape.head_dim) if math.isnan(given) else given
    if shape.softcap:
        scores = shape.softcap * np.tanh(scores / shape.softcap)
    if shape.has("alibi_slopes"):
        scores += float(operands["alibi_slopes"][h]) * (keys - a)
    if shape.has("bias"):
        scores += _widen(operands["bias"][0, 0, rows], dtype)
    live = shape.seqlen_k if shape.k_len < 0 else shape.k_len
    visible = np.broadcast_to(keys < live, scores.shape)
    if shape.causal:
        visible = visible & (keys <= a)
    if shape.window_size_left >= 0:
        visible = visible & (keys + shape.window_size_left >= a)
    if shape.window_size_right >= 0:
        visible = visible & (keys <= a + shape.window_size_right)
    if shape.has_mask:
        visible = visible & operands["mask"][0, 0, rows]
    if shape.has_padding_mask:
        visible = visible & operands["mask"][b, 0]
    return np.where(visible, scores, -np.inf)


def _weights(scores: np.ndarray) -> np.ndarray:
    """The softmax of each row; zeros where it sees no key."""
    largest = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
    sums = weights.sum(axis=1, keepdims=True)
    return weights / np.where(sums == 0, 1, sums)


def exact(shape: flashlane_peer.Shape, operands: dict, dtype: str) -> tuple:
    """The results as flashlane/attention.h or backward.h states them, in f64, by neither library.
    Slow."""
    if shape.backward:
        return _exact_gradients(shape, operands, dtype)
    return (_exact_out(shape, operands, dtype),)


def _exact_gradients(shape: flashlane_peer.Shape, operands: dict, dtype: str) -> tuple:
    """Of calls without softcap, whose bias has no gradient asked for."""
    dq, dk, dv = (np.zeros(shape.dims(name)) for name in ("dq", "dk", "dv"))
    given = shape.softmax_scale
    scale = 1 / math.sqrt(shape.head_dim) if math.isnan(given) else given
    step = max(1, (1 << 22) // shape.seqlen_k)  # rows whose scores take 32 MiB
    for b, h in np.ndindex(shape.batch, shape.num_heads):
        kv = h * shape.num_kv_heads // shape.num_heads
        k, v = (_widen(operands[name][b, kv], dtype).astype(np.float64) for name in ("k", "v"))
        for begin in range(0, shape.seqlen_q, step):
            rows = slice(begin, begin + step)
            q, dout = (
                _widen(operands[name][b, h, rows], dtype).astype(np.float64)
                for name in ("q", "dout")
            )
            weights = _weights(_scores(shape, operands, dtype, (b, h), rows))
            dweights = dout @ v.T
            dscores = weights * (dweights - (weights * dweights).sum(axis=1, keepdims=True))
            dq[b, h, rows] = scale * dscores @ k
            dk[b, kv] += scale * dscores.T @ q
            dv[b, kv] += weights.T @ dout
    return dq, dk, dv


def _exact_out(shape: flashlane_peer.Shape, operands: dict, dtype: str) -> np.ndarray:
    out = np.zeros(shape.dims("out"))
    step = max(1, (1 << 22) // shape.seqlen_k)  # rows whose scores take 32 MiB
    for b, h in np.ndindex(shape.batch, shape.num_heads):
        v = _widen(operands["v"][b, h * shape.num_kv_heads // shape.num_heads], dtype)
        v = v.astype(np.float64)
        for begin in range(0, shape.seqlen_q, step):
            rows = slice(begin, begin + step)
            out[b, h, rows] = _weights(_scores(shape, operands, dtype, (b, h), rows)) @ v
    return out


def judge(peer: tuple, ours: tuple, truth: tuple, dtype: str) -> dict:
    """Of two results that disagree, which is off: by how much either is, and a verdict."""

    def distance(results, within):
        pairs = zip(results, truth, strict=True)
        return _worst([_distance(_widen(x, dtype), y, within) for x, y in pairs])

    to_peer, to_ours = distance(peer, dtype), distance(ours, dtype)
    coarser = _COARSER.get(dtype)
    if not to_ours["agrees"]:
        verdict = "Flashlane is wrong"
    elif to_peer["agrees"]:
        verdict = "both are right"
    elif coarser and distance(peer, coarser)["agrees"]:
        verdict = "peer is imprecise"
    else:
        verdict = "peer is wrong"
    return dict(
        verdict=verdict,
        peer_error=to_peer["max_difference"],
        flashlane_error=to_ours["max_difference"],
        error_bound=to_ours["max_difference_bound"],
    )
