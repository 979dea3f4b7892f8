"""Flashlane through ctypes: the library that bench/peer_api.h describes."""

import ctypes
import math
import pathlib

DEFAULT_LIBRARY = (
    pathlib.Path(__file__).resolve().parents[1] / "build/release/bench/libflashlane_peer.so"
)

# Longer than any message of Flashlane; a longer one would be cut.
_TEXT_BYTES = 4096


class Shape(ctypes.Structure):
    """FlashlanePeerShape. The keyword arguments are its members; without one, a window, k_len,
    softcap and scale of their own are absent."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "batch num_heads num_kv_heads seqlen_q seqlen_k head_dim head_dim_v causal "
            "bottom_right q_start window_size_left window_size_right k_len "
            "has_bias has_mask has_padding_mask has_alibi backward"
        ).split()
    ] + [("softcap", ctypes.c_double), ("softmax_scale", ctypes.c_double)]

    def __init__(self, **members):
        absent = dict(window_size_left=-1, window_size_right=-1, k_len=-1, softmax_scale=math.nan)
        super().__init__(**{**absent, **members})

    def dims(self, operand: str) -> tuple[int, ...]:
        """Sizes of "q", "k", "v", "out", their gradients ("dq"), "lse", "bias", "mask" (of either
        kind) or "alibi_slopes"."""
        if operand == "lse":
            return self.batch, self.num_heads, self.seqlen_q
        if operand in ("dq", "dk", "dv", "dout"):
            operand = operand[1:]
        if operand == "alibi_slopes":
            return (self.num_heads,)
        if operand == "mask" and self.has_padding_mask:
            return self.batch, 1, 1, self.seqlen_k
        if operand in ("bias", "mask"):
            return 1, 1, self.seqlen_q, self.seqlen_k
        heads = self.num_heads if operand in ("q", "out") else self.num_kv_heads
        rows = self.seqlen_q if operand in ("q", "out") else self.seqlen_k
        width = self.head_dim if operand in ("q", "k") else self.head_dim_v
        return self.batch, heads, rows, width

    def results(self) -> tuple[str, ...]:
        """The names of what a call computes."""
        return ("dq", "dk", "dv") if self.backward else ("out",)

    def has(self, operand: str) -> bool:
        """Whether it has "bias", "mask" (of either kind) or "alibi_slopes"."""
        masked = self.has_mask or self.has_padding_mask
        return bool(dict(bias=self.has_bias, mask=masked, alibi_slopes=self.has_alibi)[operand])

    def hides_keys(self) -> bool:
        """Whether causality hides any; it does not from a single query at the end."""
        return bool(self.causal) and self.first_position() < self.seqlen_k - 1

    def first_position(self) -> int:
        """Where query 0 stands among the keys."""
        keys = self.seqlen_k if self.k_len < 0 else self.k_len
        return keys - self.seqlen_q if self.bottom_right else self.q_start


class Call(ctypes.Structure):
    """FlashlanePeerCall."""

    _fields_ = [
        ("shape", Shape),
        ("dtype", ctypes.c_char_p),
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("alibi_slopes", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("dout", ctypes.c_void_p),
        ("dq", ctypes.c_void_p),
        ("dk", ctypes.c_void_p),
        ("dv", ctypes.c_void_p),
        ("num_threads", ctypes.c_int64),
        ("target", ctypes.c_char_p),
    ]


class FlashlaneError(RuntimeError):
    """A call that Flashlane refused: code and message of its Status."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


class Flashlane:
    """The loaded library."""

    def __init__(self, path=DEFAULT_LIBRARY):
        library = ctypes.CDLL(str(path))
        text = [ctypes.c_char_p, ctypes.c_size_t]
        self._attention = library.FlashlanePeerAttention
        self._attention.argtypes = [ctypes.POINTER(Call), *text]
        self._flops = library.FlashlanePeerFlops
        self._flops.argtypes = [ctypes.POINTER(Call)]
        self._flops.restype = ctypes.c_uint64
        self._shape_at = library.FlashlanePeerShapeAt
        self._shape_at.argtypes = [ctypes.c_int64, ctypes.POINTER(Shape)]
        self._shape_at.restype = ctypes.c_char_p
        self._by_default = library.FlashlanePeerByDefault
        self._by_default.argtypes = [ctypes.c_int64, ctypes.c_char_p]
        self._describe = library.FlashlanePeerDescribe
        self._describe.argtypes = text
        self._describe.restype = None
        self._message = ctypes.create_string_buffer(_TEXT_BYTES)

    def attention(self, call: Call) -> None:
        """Runs the call; the memory it names must outlive it."""
        code = self._attention(ctypes.byref(call), self._message, _TEXT_BYTES)
        if code:
            raise FlashlaneError(code, self._message.value.decode())

    def flops(self, call: Call) -> int:
        """Flops of a call; 0 if it is not legal."""
        return self._flops(ctypes.byref(call))

    def shapes(self) -> list[tuple[str, Shape]]:
        """bench/shapes.h: the names and the shapes."""
        found = []
        while True:
            shape = Shape()
            name = self._shape_at(len(found), ctypes.byref(shape))
            if name is None:
                return found
            found.append((name.decode(), shape))

    def by_default(self, index: int, dtype: str) -> bool:
        """Whether attention_bench measures shapes()[index] by default, with one thread."""
        return bool(self._by_default(index, dtype.encode()))

    def describe(self) -> dict:
        """Version, CPU, the targets it can run and the chosen one."""
        self._describe(self._message, _TEXT_BYTES)
        version, cpu, targets, chosen = self._message.value.decode().split("\n")
        return dict(version=version, cpu=cpu, targets=targets.split(","), chosen_target=chosen)
