"""A GPT-2 in NumPy that is independent of tiedgpt: it imports nothing of it.

Each step is a method. A subclass makes a mistake by overriding the method of one step. A tape is a
dict of activations by name. S is the number of keys, T that of queries; here both are the tokens.
"""

import numpy as np


class OtherGPT2:
    """A function from ids [T] or [B, T] to a tape, with the names that tiedgpt's tape has.

    The methods get one sequence, so the residual stream and a method's `x` are [T, D]. A method
    that gets `tape` adds the activations that it computes to it.
    """

    def __init__(self, parameters, n_layer, n_head, dtype=np.float32):
        self.parameters = {name: array.astype(dtype) for name, array in parameters.items()}
        self.n_layer = n_layer
        self.n_head = n_head

    def __call__(self, ids):
        if ids.ndim == 1:
            return self.forward(ids)
        tapes = [self.forward(sequence) for sequence in ids]
        batch = {}
        for name in tapes[0]:
            batch[name] = np.stack([tape[name] for tape in tapes])
        return batch

    @np.errstate(all="ignore")  # no warnings: some mistakes of subclasses make nan
    def forward(self, ids):
        """The tape of one sequence, ids [T]."""
        tape = {}
        resid = self.embed(ids)
        tape["embed"] = resid
        for layer in self.layers():
            resid = self.block(resid, layer, tape)
        final = self.final_norm(resid)
        tape["final"] = final
        tape["logits"] = self.logits(final)
        return tape

    def layers(self):
        """The numbers of the blocks, in the order in which the blocks run."""
        return range(self.n_layer)

    def weights(self, layer, name):
        """(the weight, the bias) of a part of a block, such as "attn.c_proj" or "ln_1"."""
        weight = self.parameters[f"h.{layer}.{name}.weight"]
        bias = self.parameters[f"h.{layer}.{name}.bias"]
        return weight, bias

    # The embedding and the head

    def embed(self, ids):
        wpe = self.parameters["wpe.weight"]
        return self.token_vectors(ids) + wpe[self.positions(len(ids))]

    def token_vectors(self, ids):
        return self.parameters["wte.weight"][ids]

    def positions(self, T):
        """The rows of wpe that are added to the T tokens."""
        return np.arange(T)

    def final_norm(self, resid):
        weight = self.parameters["ln_f.weight"]
        bias = self.parameters["ln_f.bias"]
        return self.layer_norm(resid, weight, bias)

    def logits(self, final):
        wte = self.parameters["wte.weight"]
        head = self.parameters.get("lm_head.weight", wte)  # a tied model has no lm_head
        return final @ head.T

    # The block

    def block(self, resid_pre, layer, tape):
        normed = self.layer_norm(resid_pre, *self.weights(layer, "ln_1"))
        resid_mid = resid_pre + self.attention(normed, layer, tape)
        normed = self.layer_norm(resid_mid, *self.weights(layer, "ln_2"))
        resid_post = resid_mid + self.mlp(normed, layer, tape)
        self.record_stream(tape, layer, resid_pre, resid_mid, resid_post)
        return resid_post

    def record_stream(self, tape, layer, resid_pre, resid_mid, resid_post):
        tape[f"resid_pre.{layer}"] = resid_pre
        tape[f"resid_mid.{layer}"] = resid_mid
        tape[f"resid_post.{layer}"] = resid_post

    def layer_norm(self, x, weight, bias):
        mean = x.mean(axis=-1, keepdims=True)
        variance = x.var(axis=-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-5) * weight + bias

    def linear(self, x, layer, name):
        weight, bias = self.weights(layer, name)
        return x @ weight + bias

    # Attention

    def attention(self, x, layer, tape):
        qkv = self.linear(x, layer, "attn.c_attn")
        q, k, v = self.split_heads(qkv, layer)
        scores = self.scores(q, k, layer)
        pattern = self.pattern(scores)
        heads = pattern @ v
        out = self.linear(self.join_heads(heads), layer, "attn.c_proj")

        tape[f"attn.{layer}.in"] = x
        tape[f"attn.{layer}.qkv"] = qkv
        tape[f"attn.{layer}.q"] = q
        tape[f"attn.{layer}.k"] = k
        tape[f"attn.{layer}.v"] = v
        tape[f"attn.{layer}.scores"] = scores
        tape[f"attn.{layer}.pattern"] = pattern
        tape[f"attn.{layer}.heads"] = heads
        tape[f"attn.{layer}.out"] = out
        return out

    def split_heads(self, qkv, layer):  # [T, 3 D] -> three times [H, T, K]
        q, k, v = np.split(qkv, 3, axis=-1)
        return self.heads_of(q), self.heads_of(k), self.heads_of(v)

    def heads_of(self, part):  # [T, D] -> [H, T, K]
        T, D = part.shape
        return part.reshape(T, self.n_head, D // self.n_head).transpose(1, 0, 2)

    def scores(self, q, k, layer):
        K = q.shape[-1]
        return q @ k.transpose(0, 2, 1) / np.sqrt(K)

    def pattern(self, scores):
        return self.softmax(self.hide_later(scores))

    def hide_later(self, scores):
        return np.where(self.is_later(scores), -np.inf, scores)

    def is_later(self, scores):  # [H, T, S] -> [T, S]
        """Whether a key comes after a query. The queries are those of the last T of S tokens."""
        T, S = scores.shape[-2:]
        past = S - T  # the number of tokens before the first query
        return np.triu(np.ones((T, S), bool), k=past + 1)

    def softmax(self, x):
        exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
        return exponentials / exponentials.sum(axis=-1, keepdims=True)

    def join_heads(self, heads):  # [H, T, K] -> [T, D]
        H, T, K = heads.shape
        return heads.transpose(1, 0, 2).reshape(T, H * K)

    # The MLP

    def mlp(self, x, layer, tape):
        pre = self.linear(x, layer, "mlp.c_fc")
        post = self.activation(pre, layer)
        out = self.linear(post, layer, "mlp.c_proj")

        tape[f"mlp.{layer}.in"] = x
        tape[f"mlp.{layer}.pre"] = pre
        tape[f"mlp.{layer}.post"] = post
        tape[f"mlp.{layer}.out"] = out
        return out

    def activation(self, x, layer):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
