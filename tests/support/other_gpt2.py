"""The GPT-2 of the tests, in NumPy. It is independent of tiedgpt: it imports nothing of it.

Right GPT-2s, wrong ones (wrong_gpt2s.py), those of other people (public_ports.py) and solutions of
the exercises are made of it. Each step is a function that a keyword replaces:
OtherGPT2(model, gelu=lambda x, layer: x) has no activation function. The functions get one
sequence. x is [T, D], or [T, F] within the MLP; q, k and v are [H, T, K]; scores are [H, T, S],
with T = S unless keys and values are remembered. The weights of a module are a dict of `weight` and
`bias`.
"""

import numpy as np


def softmax(x, axis=-1):
    exponentials = np.exp(x - x.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def is_later(scores, by=1):  # [H, T, S] -> [T, S]
    """Whether a key comes `by` tokens or more after a query. The queries are the last T tokens."""
    T, S = scores.shape[-2:]
    return np.triu(np.ones((T, S), bool), k=S - T + by)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def layer_norm(x, weight, bias, eps=1e-5):
    mean = x.mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(x.var(axis=-1, keepdims=True) + eps) * weight + bias


STEPS = {
    "weights": lambda name: name,  # a layer norm or linear layer -> the one whose weights it has
    "tokens": lambda ids: ids,  # the rows of wte, one for each id
    "positions": lambda T: np.arange(T),  # the rows of wpe
    "embed": lambda tokens, positions: tokens + positions,
    "order": lambda n_layer: range(n_layer),  # of the blocks
    "norm": layer_norm,
    "linear": lambda x, weight, bias, name: x @ weight + bias,
    # A block. `ln` is the layer norm of this place, `normed` what attention or the MLP has read.
    "before_attention": lambda resid, ln: ln(resid),
    "after_attention": lambda resid, normed, out, ln: resid + out,
    "before_mlp": lambda resid_pre, attention_in, resid_mid, ln: ln(resid_mid),
    "after_mlp": lambda resid, normed, out, ln: resid + out,
    "split": lambda qkv, bias, H: np.split(qkv, 3, axis=-1),  # [T, 3 D] -> q, k, v, each [T, D]
    "to_heads": lambda part, H: part.reshape(len(part), H, -1).transpose(1, 0, 2),  # -> [H, T, K]
    "remember": lambda k, v, layer: (k, v),
    "scores": lambda q, k, layer, H: q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]),
    "pattern": lambda scores: softmax(np.where(is_later(scores), -np.inf, scores)),
    "attend": lambda q, k, v, pattern: pattern @ v,
    "join": lambda heads: heads.transpose(1, 0, 2).reshape(heads.shape[1], -1),  # -> [T, D]
    "gelu": lambda x, layer: gelu(x),
    "before_logits": lambda resid, ln: ln(resid),
    "logits": lambda final, p: final @ p.get("lm_head.weight", p["wte.weight"]).T,
}


class Parts:
    """The parts of a block, each a function of activations and weights.

    tape: the activations of the last calls, under the names of tiedgpt's tape.
    """

    def __init__(self, n_head, eps=1e-5, **steps):
        assert steps.keys() <= STEPS.keys()
        vars(self).update(STEPS | steps)  # self.gelu and so on
        self.H = n_head
        self.eps = eps
        self.tape = {}

    def record(self, part, layer, activations):
        for name, activation in activations.items():
            self.tape[f"{part}.{layer}.{name}"] = activation

    def ln(self, weights):
        """The layer norm with these weights, a function of x."""
        return lambda x: self.norm(x, weights["weight"], weights["bias"], self.eps)

    def block(self, resid, weights, layer=0):
        ln_1 = self.ln(weights["ln_1"])
        ln_2 = self.ln(weights["ln_2"])
        attention_in = self.before_attention(resid, ln_1)
        out = self.attention(attention_in, **weights["attn"], layer=layer)
        resid_mid = self.after_attention(resid, attention_in, out, ln_1)
        mlp_in = self.before_mlp(resid, attention_in, resid_mid, ln_2)
        out = self.mlp(mlp_in, **weights["mlp"], layer=layer)
        resid_post = self.after_mlp(resid_mid, mlp_in, out, ln_2)
        self.tape[f"resid_pre.{layer}"] = resid
        self.tape[f"resid_mid.{layer}"] = resid_mid
        self.tape[f"resid_post.{layer}"] = resid_post
        return resid_post

    def attention(self, x, c_attn, c_proj, layer=0):
        qkv = self.linear(x, **c_attn, name=f"h.{layer}.attn.c_attn")
        q, k, v = [self.to_heads(part, self.H) for part in self.split(qkv, c_attn["bias"], self.H)]
        joined = self.join(self.heads(q, k, v, layer))
        out = self.linear(joined, **c_proj, name=f"h.{layer}.attn.c_proj")
        self.record("attn", layer, {"in": x, "qkv": qkv, "out": out})
        return out

    def heads(self, q, k, v, layer=0):
        """Of each head the values [H, T, K] that its tokens have attended to."""
        k, v = self.remember(k, v, layer)
        scores = self.scores(q, k, layer, self.H)
        pattern = self.pattern(scores)
        heads = self.attend(q, k, v, pattern)
        arrays = {"q": q, "k": k, "v": v, "scores": scores, "pattern": pattern, "heads": heads}
        self.record("attn", layer, arrays)
        return heads

    def mlp(self, x, c_fc, c_proj, layer=0):
        pre = self.linear(x, **c_fc, name=f"h.{layer}.mlp.c_fc")
        post = self.gelu(pre, layer)
        out = self.linear(post, **c_proj, name=f"h.{layer}.mlp.c_proj")
        self.record("mlp", layer, {"in": x, "pre": pre, "post": post, "out": out})
        return out


class OtherGPT2(Parts):
    """A function from ids [T] or [B, T] to all activations, under the names of tiedgpt's tape."""

    def __init__(self, model, dtype=np.float32, parameters=lambda p: p, **steps):
        super().__init__(model.config.n_head, **steps)
        p = {name: array.astype(dtype) for name, array in model.parameters.items()}
        self.p = parameters(p)
        self.n_layer = model.config.n_layer

    def __call__(self, ids):
        if ids.ndim == 1:
            return self.forward(ids)
        tapes = [self.forward(sequence) for sequence in ids]
        return {name: np.stack([tape[name] for tape in tapes]) for name in tapes[0]}

    @np.errstate(all="ignore")  # no warnings: some wrong steps make nan
    def forward(self, ids):
        """The activations of one sequence, ids [T]."""
        self.tape = {}
        tokens = self.p["wte.weight"][self.tokens(ids)]
        positions = self.p["wpe.weight"][self.positions(len(ids))]
        resid = self.embed(tokens, positions)
        self.tape["embed"] = resid
        for layer in self.order(self.n_layer):
            resid = self.block(resid, self.weights_of_block(f"h.{layer}"), layer)
        final = self.before_logits(resid, self.ln(self.weights_of("ln_f")))
        self.tape["final"] = final
        self.tape["logits"] = self.logits(final, self.p)
        return self.tape

    def weights_of(self, module):
        source = self.weights(module)
        return {"weight": self.p[f"{source}.weight"], "bias": self.p[f"{source}.bias"]}

    def weights_of_block(self, h):
        def linear_layers(part, *names):
            return {name: self.weights_of(f"{h}.{part}.{name}") for name in names}

        return {
            "ln_1": self.weights_of(f"{h}.ln_1"),
            "attn": linear_layers("attn", "c_attn", "c_proj"),
            "ln_2": self.weights_of(f"{h}.ln_2"),
            "mlp": linear_layers("mlp", "c_fc", "c_proj"),
        }
