"""Flashlane beside PyTorch's scaled_dot_product_attention on the CPU. Of backward shapes both sides
have the forward's results, and only the gradients are timed.

  python3 bench/compare_pytorch.py                             the default rows, about five minutes
  python3 bench/compare_pytorch.py --rows 'bf16/.*2k' --seconds 10 --json result.json

What is compared, and how: peer_comparison.py.
"""

import math
import sys

import peer_comparison


class PyTorch(peer_comparison.Adapter):
    name = "PyTorch"
    install = "torch and NumPy: pip install torch numpy"

    def __init__(self, threads: int):
        import torch

        self._torch = torch
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)  # else the forward pass would keep the lse for a backward

    def describe(self) -> dict:
        torch = self._torch
        return dict(
            version=torch.__version__,
            cpu_capability=torch.backends.cpu.get_cpu_capability(),
            parallel_backend="OpenMP" if torch.backends.openmp.is_available() else "native",
        )

    def _tensor(self, array, dtype: str):
        if dtype == "bf16":
            return self._torch.from_numpy(array.view("int16")).view(self._torch.bfloat16)
        return self._torch.from_numpy(array)

    def to_numpy(self, result, shape):
        results = result if shape.backward else (result,)
        return tuple(self._array(of.detach(), shape) for of in results)

    def _array(self, result, shape):
        if result.dtype == self._torch.bfloat16:
            return result.contiguous().view(self._torch.int16).numpy().view("uint16")
        return result.numpy()

    def _gradient(self, attention, tensors, dout):
        """The gradients of what `attention` makes of the tensors; its own run is not timed."""
        for tensor in tensors:
            tensor.requires_grad_()
        with self._torch.enable_grad():
            out = attention()
        gradient = self._torch.autograd.grad
        return lambda: gradient(out, tensors, dout, retain_graph=True)

    def _mask(self, shape, dtype, operands) -> dict:
        """The arguments that say which keys are visible, and what is added to scores."""
        if shape.has("alibi_slopes"):
            raise peer_comparison.NotOffered("it has ALiBi as a dense bias only")
        given = [operands[name] for name in ("bias", "mask") if shape.has(name)]
        if len(given) + shape.hides_keys() > 1:
            raise peer_comparison.NotOffered("it has one mask only")
        if given:
            boolean = shape.has("mask")
            return dict(attn_mask=self._tensor(given[0], "bool" if boolean else dtype))
        if not shape.hides_keys():
            return {}
        if shape.first_position() == 0:
            return dict(is_causal=True)  # which means top-left
        ones = self._torch.ones(shape.seqlen_q, shape.seqlen_k, dtype=self._torch.bool)
        return dict(attn_mask=ones.tril(shape.first_position()))

    def forms(self, shape, dtype, operands):
        if shape.window_size_left >= 0 or shape.window_size_right >= 0:
            raise peer_comparison.NotOffered("it has windows as dense masks only")
        if shape.softcap != 0:
            raise peer_comparison.NotOffered("it has no softcap")
        if shape.k_len >= 0:
            raise peer_comparison.NotOffered("it has no k_len")
        attention = self._torch.nn.functional.scaled_dot_product_attention
        arguments = self._mask(shape, dtype, operands)
        if not math.isnan(shape.softmax_scale):
            arguments["scale"] = shape.softmax_scale
        q, k, v = (self._tensor(operands[name], dtype) for name in ("q", "k", "v"))
        group = shape.num_heads // shape.num_kv_heads
        found = {}
        if shape.backward:
            if group > 1:
                arguments["enable_gqa"] = True
            dout = self._tensor(operands["dout"], dtype)
            call = self._gradient(lambda: attention(q, k, v, **arguments), (q, k, v), dout)
            return dict(gradient=call)
        if group == 1:
            found["plain"] = lambda: attention(q, k, v, **arguments)
        else:
            found["enable_gqa"] = lambda: attention(q, k, v, enable_gqa=True, **arguments)
        if group > 1 and shape.seqlen_q == 1 and arguments.keys() <= {"scale"}:
            # Query heads of a group as rows of one head. No copies: they would be what is measured.
            rows = q.view(shape.batch, shape.num_kv_heads, group, shape.head_dim)
            dims = shape.dims("out")
            found["heads as rows"] = lambda: attention(rows, k, v, **arguments).view(dims)
            return found
        # Copies that spare PyTorch a slow way. Their own cost is not counted.
        k_all, v_all = (x.repeat_interleave(group, dim=1) if group > 1 else x for x in (k, v))
        if group > 1:
            found["expanded"] = lambda: attention(q, k_all, v_all, **arguments)
        pad = shape.head_dim - shape.head_dim_v
        if pad > 0:  # its fused kernel wants heads of one width
            padded = self._torch.nn.functional.pad(v_all, (0, pad))
            width = shape.head_dim_v
            found["padded v"] = lambda: attention(q, k_all, padded, **arguments)[..., :width]
        return found


if __name__ == "__main__":
    sys.exit(peer_comparison.main(PyTorch))
