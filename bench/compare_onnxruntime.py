"""Flashlane beside ONNX Runtime's CPU provider: models of a single operator.

  python3 bench/compare_onnxruntime.py --rows f32

What is compared, and how: peer_comparison.py.
"""

import math
import sys

import peer_comparison


class OnnxRuntime(peer_comparison.Adapter):
    name = "ONNX Runtime"
    install = "onnxruntime, onnx and NumPy: pip install onnxruntime onnx numpy"

    def __init__(self, threads: int):
        import onnx
        import onnxruntime

        self._onnx = onnx
        self._runtime = onnxruntime
        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = threads
        self._options.inter_op_num_threads = 1
        self._options.log_severity_level = 4  # what it does not implement arrives as an exception

    def describe(self) -> dict:
        return dict(version=self._runtime.__version__, provider="CPUExecutionProvider")

    def to_numpy(self, result, shape):
        array = result.numpy()
        if array.ndim == 3:
            by_head = (*array.shape[:2], -1, shape.head_dim_v)
            array = array.reshape(by_head).transpose(0, 2, 1, 3)
        return (array.reshape(shape.dims("out")),)

    def _session(self, operator, domain, arrays, attributes):
        """A session whose model is one operator with one output. Raises NotOffered."""
        helper = self._onnx.helper
        declared = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in arrays.items()
            if array is not None
        ]
        names = [name if array is not None else "" for name, array in arrays.items()]
        out = helper.make_tensor_value_info("out", declared[0].type.tensor_type.elem_type, None)
        node = helper.make_node(operator, names, ["out"], domain=domain, **attributes)
        model = helper.make_model(
            helper.make_graph([node], operator, declared, [out]),
            # The first opset that has Attention, and the version of the files that came with it.
            opset_imports=[helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)],
            ir_version=11,
        )
        try:
            return self._runtime.InferenceSession(
                model.SerializeToString(), self._options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions have no common base
            reason = str(error).splitlines()[0]
        # Out here: an exception that is kept as another's context keeps frames with all they hold.
        raise peer_comparison.NotOffered(reason)

    def _form(self, operator, domain, arrays, attributes):
        session = self._session(operator, domain, arrays, attributes)
        binding = session.io_binding()
        # Values that share the arrays' memory; the binding keeps them.
        for name, array in arrays.items():
            if array is not None:
                value = self._runtime.OrtValue.ortvalue_from_numpy(array)
                binding.bind_ortvalue_input(name, value)

        def run():
            binding.bind_output("out")  # anew, so that each call allocates
            session.run_with_iobinding(binding)
            return binding.get_outputs()[0]

        try:
            run()  # some of what it does not implement shows only now
            return run
        except Exception as error:
            reason = str(error).splitlines()[0]
        raise peer_comparison.NotOffered(reason)

    def _candidates(self, shape, operands):
        """(form, operator, domain, inputs, attributes): the operators that can say `shape`."""
        import numpy as np

        scale = {} if math.isnan(shape.softmax_scale) else dict(scale=shape.softmax_scale)
        softcap = dict(softcap=shape.softcap) if shape.softcap else {}
        causal = shape.hides_keys() and shape.first_position() == 0
        q, k, v = (operands[name] for name in ("q", "k", "v"))
        group = shape.num_heads // shape.num_kv_heads
        hides_some = shape.hides_keys() or shape.has("bias") or shape.has_mask
        if shape.seqlen_q == 1 and not hides_some:
            # Query heads of a group as rows of one head. No copies: they would be what is measured.
            q, group = q.reshape(shape.batch, shape.num_kv_heads, group, shape.head_dim), 1
        k_all, v_all = (np.repeat(x, group, axis=1) if group > 1 else x for x in (k, v))

        options = dict(is_causal=int(causal), **scale, **softcap)
        mask = {name: operands[name] for name in ("bias", "mask") if shape.has(name)}
        if shape.hides_keys() and not causal:
            visible = np.ones((shape.seqlen_q, shape.seqlen_k), bool)
            mask["causal"] = np.tril(visible, shape.first_position())
        if len(mask) + causal > 1:
            raise peer_comparison.NotOffered("it has one mask only")
        yield "Attention", "Attention", "", dict(q=q, k=k, v=v, **mask), options
        if group > 1:
            expanded = dict(q=q, k=k_all, v=v_all, **mask)
            yield "Attn expanded", "Attention", "", expanded, options

        # The older operators want heads beside each other within a row. Not counted: the copies.
        def rows(x):
            return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(x.shape[0], x.shape[2], -1)

        if not softcap and not shape.has_mask and "causal" not in mask:
            inputs = dict(q=rows(q), k=rows(k_all), v=rows(v_all), input_bias=None)
            padding = shape.has_padding_mask
            inputs["key_mask"] = operands["mask"][:, 0, 0].astype(np.int32) if padding else None
            inputs["bias"] = operands.get("bias")
            options = dict(num_heads=q.shape[1], unidirectional=int(causal), **scale)
            yield "MultiHead", "MultiHeadAttention", "com.microsoft", inputs, options
        one_width = shape.head_dim == shape.head_dim_v
        if causal and not mask and shape.seqlen_q == shape.seqlen_k and one_width:
            # Nothing comes from a cache. The operator wants the lengths less one.
            last = np.full(shape.batch, shape.seqlen_k - 1, np.int32)
            total = np.array([shape.seqlen_k], np.int32)
            inputs = dict(q=rows(q), k=rows(k), v=rows(v), past_k=None, past_v=None)
            inputs.update(last=last, total=total)
            options = dict(num_heads=shape.num_heads, kv_num_heads=shape.num_kv_heads)
            options.update(scale, **softcap)
            yield "GroupQuery", "GroupQueryAttention", "com.microsoft", inputs, options

    def forms(self, shape, dtype, operands):
        if shape.backward:
            raise peer_comparison.NotOffered("it has no gradients")
        if dtype == "bf16":
            raise peer_comparison.NotOffered("its CPU operators have no bf16")
        if shape.has("alibi_slopes"):
            raise peer_comparison.NotOffered("it has ALiBi as a dense bias only")
        if shape.window_size_left >= 0 or shape.window_size_right >= 0 or shape.k_len >= 0:
            raise peer_comparison.NotOffered("it has windows and lengths as dense masks only")
        found, reasons = {}, []
        for form, *model in self._candidates(shape, operands):
            try:
                found[form] = self._form(*model)
            except peer_comparison.NotOffered as reason:  # an operator without this dtype
                reasons.append(str(reason))  # the exception would keep the session
        if not found:
            raise peer_comparison.NotOffered(reasons[0])
        return found


if __name__ == "__main__":
    sys.exit(peer_comparison.main(OnnxRuntime))
