"""GPT-2 for llama.cpp and for OpenVINO, which benchmark.py measures: a GGUF file, and a graph."""

from typing import Any

# tiedgpt's names of a layer's modules -> those in a GGUF file
GGUF_NAMES = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """A parameter's name in a GGUF file: blk.0.attn_qkv.weight for h.0.attn.c_attn.weight."""
    module, _, kind = name.rpartition(".")
    if not module.startswith("h."):
        return f"{GGUF_NAMES[module]}.{kind}"
    _, layer, module = module.split(".", 2)
    return f"blk.{layer}.{GGUF_NAMES[module]}.{kind}"


def write_gguf(directory: str, file: str) -> None:
    """Write a tied checkpoint as a GGUF file."""
    import gguf
    import numpy as np

    from tiedgpt import load_model

    model = load_model(directory, head="tied")
    config = model.config
    writer = gguf.GGUFWriter(file, "gpt2")
    writer.add_context_length(config.n_ctx)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_head_count(config.n_head)
    writer.add_feed_forward_length(config.n_inner)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    # llama.cpp expects a vocabulary. Any will do, because no text is tokenized.
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{token}" for token in range(config.vocab_size)])
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(config.vocab_size - 1)
    writer.add_eos_token_id(config.vocab_size - 1)
    for name, array in model.parameters.items():
        if name.startswith("h."):
            array = array.T  # GGUF stores a matrix as [out, in]; a vector stays as it is
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Graph:
    """GPT-2 as a graph of OpenVINO's operations, for inference only.

    One graph reads a prompt. The other one has a cache and reads the tokens after the prompt. So
    OpenVINO fuses the operations of each as those of its own models. Shapes: B texts of T tokens,
    S of them with those in the cache, H heads of K numbers.
    """

    def __init__(self, model: Any, has_cache: bool) -> None:
        import numpy as np
        import openvino.opset13 as ops

        self.np = np
        self.ops = ops
        self.config = model.config
        self.parameters = model.parameters
        self.has_cache = has_cache
        self.ids = ops.parameter([-1, -1], np.int64, name="ids")  # [B, T]
        # For each text, its place in the cache. Without this input, attention is not fused with it.
        self.places = ops.parameter([-1], np.int32, name="places")  # [B]
        self.written: list[Any] = []  # the operations that write to the cache, for `model`

    def model(self) -> Any:
        """The next token's logits [B, V] for ids [B, T]."""
        import openvino

        ops = self.ops
        x = self.embedded()
        for layer in range(self.config.n_layer):
            name = f"h.{layer}"
            x = ops.add(x, self.attention(self.norm(x, f"{name}.ln_1"), name))
            hidden = self.linear(self.norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc")
            hidden = ops.gelu(hidden, "tanh")
            x = ops.add(x, self.linear(hidden, f"{name}.mlp.c_proj"))
        # Only the last token of axis 1 (T) needs logits.
        last = ops.gather(self.norm(x, "ln_f"), ops.constant(-1), ops.constant(1))  # [B, D]
        # False, True: the second matrix is transposed, as W_U = wte^T.
        logits = ops.matmul(last, self.weight("wte.weight"), False, True)
        inputs = [self.ids, self.places] if self.has_cache else [self.ids]
        return openvino.Model([ops.result(logits)], self.written, inputs)

    def weight(self, name: str) -> Any:
        return self.ops.constant(self.np.ascontiguousarray(self.parameters[name]))

    def linear(self, x: Any, name: str) -> Any:
        # False, False: no matrix is transposed.
        product = self.ops.matmul(x, self.weight(f"{name}.weight"), False, False)
        return self.ops.add(product, self.weight(f"{name}.bias"))

    def norm(self, x: Any, name: str) -> Any:
        last_axis = self.ops.constant([-1])
        # x less its mean, divided by sqrt(variance + epsilon); without True, it is not divided.
        normed = self.ops.mvn(x, last_axis, True, self.config.layer_norm_epsilon, "inside_sqrt")
        scaled = self.ops.multiply(normed, self.weight(f"{name}.weight"))
        return self.ops.add(scaled, self.weight(f"{name}.bias"))

    def length(self, array: Any, axis: int) -> Any:
        """How long an axis is: a number that the graph computes."""
        shape = self.ops.shape_of(array)
        return self.ops.gather(shape, self.ops.constant(axis), self.ops.constant(0))

    def embedded(self) -> Any:  # [B, T, D]
        """The embeddings of the tokens and of their positions, which come after the cache's."""
        ops = self.ops
        zero, one = ops.constant(0), ops.constant(1)
        start = zero
        if self.has_cache:
            # The keys of layer l are number 2 l, its values number 2 l + 1.
            self.cached = [self.cache(f"{n}") for n in range(2 * self.config.n_layer)]
            start = self.length(self.cached[0], axis=2)  # how many tokens are in the cache
        end = ops.add(start, self.length(self.ids, axis=1))
        self.positions = ops.range(start, end, one, "i64")  # [T]
        self.all_positions = ops.range(zero, end, one, "i64")  # [S]
        tokens = ops.gather(self.weight("wte.weight"), self.ids, zero)
        return ops.add(tokens, ops.gather(self.weight("wpe.weight"), self.positions, zero))

    def cache(self, name: str) -> Any:  # [B, H, S - T, K]
        """The keys or the values of a layer. At first there are none."""
        import openvino

        ops = self.ops
        H, K = self.config.n_head, self.config.head_width
        B = ops.unsqueeze(self.length(self.ids, axis=0), ops.constant(0))  # as an array [1]
        shape = ops.concat([B, ops.constant(self.np.array([H, 0, K]))], 0)
        empty = ops.broadcast(ops.constant(self.np.float32(0)), shape)  # [B, H, 0, K]
        shape_of_state = openvino.PartialShape([-1, H, -1, K])  # -1: B and the tokens, which change
        state = ops.read_value(empty, name, openvino.Type.f32, shape_of_state)
        return ops.gather(state, self.places, ops.constant(0))

    def attention(self, x: Any, name: str) -> Any:
        ops = self.ops
        H, K = self.config.n_head, self.config.head_width
        qkv = self.linear(x, f"{name}.attn.c_attn")
        # True: an axis of length 0 in the new shape is as long as in the old one, here B and T.
        split = ops.reshape(qkv, ops.constant([0, 0, 3, H, K]), True)
        heads = ops.transpose(split, ops.constant([2, 0, 3, 1, 4]))  # [3, B, H, T, K]
        q, k, v = (ops.gather(heads, ops.constant(n), ops.constant(0)) for n in range(3))
        if self.has_cache:
            layer = int(name.removeprefix("h."))
            k = self.extend(2 * layer, k)
            v = self.extend(2 * layer + 1, v)
            positions = ops.unsqueeze(self.positions, ops.constant(1))  # [T, 1]
            mask = ops.less_equal(self.all_positions, positions)  # [T, S], True: it is attended to
            attended = ops.scaled_dot_product_attention(q, k, v, mask)
        else:
            attended = ops.scaled_dot_product_attention(q, k, v, causal=True)
        merged = ops.transpose(attended, ops.constant([0, 2, 1, 3]))
        merged = ops.reshape(merged, ops.constant([0, 0, H * K]), True)
        return self.linear(merged, f"{name}.attn.c_proj")

    def extend(self, n: int, new: Any) -> Any:  # [B, H, T, K] -> [B, H, S, K]
        """Add new keys or values to number n of the cache; all of them."""
        extended = self.ops.concat([self.cached[n], new], 2)
        self.written.append(self.ops.assign(extended, f"{n}"))
        return extended
