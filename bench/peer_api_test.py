"""Flashlane through bench/flashlane_peer.py against attention in plain Python.

peer_api_test.py LIBRARY
"""

import array
import math
import random
import sys
import unittest

import flashlane_peer
import peer_statistics

# Unlike sizes throughout, so that no two can be exchanged unseen.
SHAPE = dict(
    batch=2,
    num_heads=4,
    num_kv_heads=2,
    seqlen_q=3,
    seqlen_k=7,
    head_dim=5,
    head_dim_v=6,
)
VARIANTS = {
    "full": {},
    "causal": dict(causal=1),
    "causal at end": dict(causal=1, bottom_right=1),
    "q_start": dict(causal=1, q_start=2),
    "windows": dict(window_size_left=1, window_size_right=2, q_start=2),
    "k_len": dict(k_len=4),
    "softcap": dict(softcap=0.7),
    "scale": dict(softmax_scale=1.5),
    "bias": dict(has_bias=1),
    "mask": dict(has_mask=1),
    "padding mask": dict(has_padding_mask=1),
    "alibi": dict(has_alibi=1, q_start=2),
}
# array's code and what a value of size 1 may be off after some dozen roundings.
DTYPES = {"f32": ("f", 64 * 2.0**-24), "f64": ("d", 64 * 2.0**-53)}
INVALID_ARGUMENT = 1  # of StatusCode


def sees(s, i: int, j: int) -> bool:
    """Whether query row i sees key j."""
    keys = s.seqlen_k if s.k_len < 0 else s.k_len
    a = i + (keys - s.seqlen_q if s.bottom_right else s.q_start)
    left = s.window_size_left < 0 or j + s.window_size_left >= a
    right = s.window_size_right < 0 or j <= a + s.window_size_right
    return j < keys and (not s.causal or j <= a) and left and right


def added(s, arrays, b: int, h: int, i: int, j: int) -> float:
    """What the optional operands add to a score."""
    place = i * s.seqlen_k + j
    term = arrays["bias"][place] if s.has_bias else 0
    if s.has_mask and not arrays["mask"][place]:
        return -math.inf
    if s.has_padding_mask and not arrays["mask"][b * s.seqlen_k + j]:
        return -math.inf
    return term + (arrays["alibi_slopes"][h] * (j - i - s.q_start) if s.has_alibi else 0)


def reference(s, arrays) -> list[float]:
    """Attention as flashlane/attention.h states it."""
    q, k, v = (arrays[name] for name in ("q", "k", "v"))
    scale = 1 / math.sqrt(s.head_dim) if math.isnan(s.softmax_scale) else s.softmax_scale
    out = []
    for row in range(s.batch * s.num_heads * s.seqlen_q):
        head, i = divmod(row, s.seqlen_q)
        b, h = divmod(head, s.num_heads)
        keys = (b * s.num_kv_heads + h * s.num_kv_heads // s.num_heads) * s.seqlen_k
        weights = {}
        for j in (j for j in range(s.seqlen_k) if sees(s, i, j)):
            pairs = range(s.head_dim)
            x = scale * sum(q[row * s.head_dim + d] * k[(keys + j) * s.head_dim + d] for d in pairs)
            x = s.softcap * math.tanh(x / s.softcap) if s.softcap else x
            weights[j] = math.exp(x + added(s, arrays, b, h, i, j))
        for d in range(s.head_dim_v):
            products = (w * v[(keys + j) * s.head_dim_v + d] for j, w in weights.items())
            out.append(sum(products) / sum(weights.values()))
    return out


class PeerApiTest(unittest.TestCase):
    library: flashlane_peer.Flashlane

    def make_call(self, dtype="f32", target=None, **members):
        """A call on random operands; the arrays must be kept as long as it."""
        shape = flashlane_peer.Shape(**{**SHAPE, **members})
        code = DTYPES[dtype][0]
        arrays = {}
        numbers = random.Random(1)
        for name in ("q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv"):
            count = math.prod(shape.dims(name))
            arrays[name] = array.array(code, (numbers.uniform(-1, 1) for _ in range(count)))
        for name in filter(shape.has, ("bias", "mask", "alibi_slopes")):
            values = [numbers.uniform(-1, 1) for _ in range(math.prod(shape.dims(name)))]
            if name == "mask":  # key 0 is visible to all
                arrays[name] = array.array("B", (x > 0 or i % 7 == 0 for i, x in enumerate(values)))
            else:
                arrays[name] = array.array(code if name == "bias" else "f", values)
        pointers = {name: values.buffer_info()[0] for name, values in arrays.items()}
        call = flashlane_peer.Call(
            shape=shape, dtype=dtype.encode(), num_threads=1, target=target, **pointers
        )
        return call, arrays

    def test_result(self):
        for dtype, (_, bound) in DTYPES.items():
            for name, members in VARIANTS.items():
                with self.subTest(dtype=dtype, variant=name):
                    call, arrays = self.make_call(dtype, **members)
                    self.library.attention(call)
                    expected = reference(call.shape, arrays)
                    error = max(abs(x - y) for x, y in zip(arrays["out"], expected, strict=True))
                    self.assertLessEqual(error, bound)

    def test_gradients(self):
        """Of sum(dout * out), beside the differences of that sum."""
        step = 1e-4
        for name in ("full", "causal", "windows", "k_len", "softcap", "scale", "bias", "mask"):
            with self.subTest(variant=name):
                call, arrays = self.make_call("f64", **VARIANTS[name])
                self.library.attention(call)  # keeps out and lse
                call.shape.backward = 1
                self.library.attention(call)
                s = call.shape
                for operand in ("q", "k", "v"):
                    values = arrays[operand]
                    for place in range(0, len(values), 7):
                        sums, at = [], values[place]
                        for moved in (at + step, at - step):
                            values[place] = moved
                            out = reference(s, arrays)
                            pairs = zip(out, arrays["dout"], strict=True)
                            sums.append(sum(x * y for x, y in pairs))
                        values[place] = at
                        expected = (sums[0] - sums[1]) / (2 * step)
                        self.assertAlmostEqual(arrays["d" + operand][place], expected, delta=1e-6)

    def test_refusals(self):
        for members, word in (
            (dict(num_kv_heads=3), "3"),
            (dict(window_size_left=-2), "window"),
            (dict(target=b"FANCY"), "FANCY"),
        ):
            with self.subTest(**members):
                call, arrays = self.make_call(**members)
                before = arrays["out"][:]
                with self.assertRaisesRegex(flashlane_peer.FlashlaneError, word) as caught:
                    self.library.attention(call)
                self.assertEqual(caught.exception.code, INVALID_ARGUMENT)
                self.assertEqual(arrays["out"], before)
        call, _ = self.make_call()
        call.dtype = b"f8"
        with self.assertRaisesRegex(flashlane_peer.FlashlaneError, "f8"):
            self.library.attention(call)

    def test_flops(self):
        for members, pairs in ((VARIANTS["full"], 21), (VARIANTS["causal"], 6), ({"k_len": 2}, 6)):
            call, _ = self.make_call(**members)
            self.assertEqual(self.library.flops(call), 2 * (5 + 6) * pairs * 2 * 4)
        call, _ = self.make_call(backward=1)
        self.assertEqual(self.library.flops(call), 2 * (3 * 5 + 2 * 6) * 21 * 2 * 4)
        for members in (dict(num_kv_heads=3), dict(num_kv_heads=3, backward=1)):
            call, _ = self.make_call(**members)
            self.assertEqual(self.library.flops(call), 0)

    def test_shapes(self):
        shapes = dict(self.library.shapes())
        shape = shapes["prefill_2k_gqa"]
        self.assertEqual(shape.dims("q"), (1, 32, 2048, 128))
        self.assertEqual(shape.dims("v"), (1, 8, 2048, 128))
        self.assertTrue(shape.causal and not shape.bottom_right)
        self.assertEqual((shape.window_size_left, shape.k_len, shape.softcap), (-1, -1, 0))
        self.assertTrue(math.isnan(shape.softmax_scale))
        self.assertTrue(shapes["chunk_128x8k"].bottom_right)
        self.assertEqual(shapes["window_256_16k"].window_size_left, 255)
        self.assertEqual(shapes["softcap_1k_d256"].softcap, 50)
        self.assertEqual(shapes["bias_2k_d64"].dims("bias"), (1, 1, 2048, 2048))
        self.assertEqual(shapes["mask_2k_d64"].dims("mask"), (1, 1, 2048, 2048))
        self.assertEqual(shapes["padmask_8x512"].dims("mask"), (8, 1, 1, 512))
        self.assertEqual(shapes["alibi_2k"].dims("alibi_slopes"), (8,))
        self.assertEqual(shapes["bwd_1k_d64"].results(), ("dq", "dk", "dv"))
        self.assertEqual(shapes["bwd_1k_d64"].dims("dk"), (2, 8, 1024, 64))
        self.assertFalse(shapes["prefill_2k_gqa"].backward)
        operands = ("bias", "mask", "alibi_slopes")
        for name, shape in shapes.items():  # a row's name says what it measures
            self.assertEqual("bias" in name, shape.has("bias"), name)
            self.assertEqual("mask" in name, shape.has("mask"), name)
            self.assertEqual("alibi" in name, shape.has("alibi_slopes"), name)
            self.assertLessEqual(sum(map(shape.has, operands)), 1, name)

    def test_by_default(self):
        names = [name for name, _ in self.library.shapes()]
        for name, dtypes in (
            ("prefill_2k_gqa", ["f32", "bf16"]),
            ("mla_1k", ["f32"]),
            ("bias_2k_d64", []),
            ("decode_16x4k", ["f32", "bf16"]),
            ("decode_16x4k_g16", []),
        ):
            index = names.index(name)
            chosen = [dtype for dtype in ("f32", "bf16") if self.library.by_default(index, dtype)]
            self.assertEqual(chosen, dtypes, name)
        self.assertFalse(self.library.by_default(len(names), "f32"))
        self.assertFalse(self.library.by_default(0, "f8"))

    def test_hidden_keys(self):
        shapes = dict(self.library.shapes())
        for name, hides in (
            ("full_2k_d64", False),
            ("causal_2k_d64", True),
            ("chunk_128x8k", True),
            ("decode_16x4k", False),
            ("draft_8x4k", True),
        ):
            self.assertEqual(shapes[name].hides_keys(), hides, name)

    def test_describe(self):
        text = self.library.describe()
        self.assertRegex(text["version"], r"^flashlane \d+\.\d+\.\d+$")
        self.assertTrue(text["cpu"] and all(text["targets"]) and text["chosen_target"])


class StatisticsTest(unittest.TestCase):
    def test_ratios(self):
        # The peer takes 3, 4, 10, 4, 5 and Flashlane 2, 2, 2, 1, 5 seconds.
        summary = peer_statistics.summarise([3, 4, 10, 4, 5], [2, 2, 2, 1, 5], flops=8e9)
        self.assertEqual(summary["speedup"], 4 / 2)  # of the medians
        self.assertEqual(summary["paired_speedup"], 2)  # of 1, 1.5, 2, 4, 5
        self.assertAlmostEqual(summary["paired_speedup_p10"], 1.2)
        self.assertAlmostEqual(summary["paired_speedup_p90"], 4.6)
        self.assertEqual(summary["peer_gflops"], 2)
        self.assertEqual(summary["flashlane_gflops"], 4)
        self.assertEqual(summary["pairs"], 5)


if __name__ == "__main__":
    PeerApiTest.library = flashlane_peer.Flashlane(sys.argv.pop(1))
    unittest.main()
