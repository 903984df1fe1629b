"""A GPT-2 in NumPy that is independent of tiedgpt: it imports nothing of it.

Each step is a function that a keyword replaces. OtherGPT2(model, gelu=lambda x, layer: x) has no
activation function. The functions get one sequence. x is [T, D], or [T, F] within the MLP; q, k and
v are [H, T, K]; scores are [H, T, S], with T = S unless keys and values are remembered.
"""

import numpy as np


def softmax(x, axis=-1):
    exponentials = np.exp(x - x.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def is_later(scores, by=1):  # [H, T, S] -> [T, S]
    """Whether a key comes `by` tokens or more after a query. The queries are the last T tokens."""
    T, S = scores.shape[-2:]
    return np.triu(np.ones((T, S), bool), k=S - T + by)


def gelu(x, layer=None):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def norm(x, weight, bias, name=None, eps=1e-5):
    mean = x.mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(x.var(axis=-1, keepdims=True) + eps) * weight + bias


def to_heads(part, H):  # [T, D] -> [H, T, K]
    return part.reshape(len(part), H, -1).transpose(1, 0, 2)


STEPS = {
    "weights": lambda name: name,  # a layer norm or linear layer -> the one whose weights it has
    "tokens": lambda ids: ids,  # the rows of wte, one for each id
    "positions": lambda T: np.arange(T),  # the rows of wpe
    "embed": lambda tokens, positions: tokens + positions,
    "order": lambda n_layer: range(n_layer),  # of the blocks
    "norm": norm,
    "linear": lambda x, weight, bias, name: x @ weight + bias,
    # A block. `ln` is the layer norm of this place, `normed` what attention or the MLP has read.
    "before_attention": lambda resid, ln: ln(resid),
    "after_attention": lambda resid, normed, out, ln: resid + out,
    "before_mlp": lambda resid_pre, attention_in, resid_mid, ln: ln(resid_mid),
    "after_mlp": lambda resid, normed, out, ln: resid + out,
    "split": lambda qkv, bias, H: np.split(qkv, 3, axis=-1),  # [T, 3 D] -> q, k, v, each [T, D]
    "to_heads": to_heads,
    "remember": lambda k, v, layer: (k, v),
    "scores": lambda q, k, layer, H: q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]),
    "pattern": lambda scores: softmax(np.where(is_later(scores), -np.inf, scores)),
    "attend": lambda q, k, v, pattern: pattern @ v,
    "join": lambda heads: heads.transpose(1, 0, 2).reshape(heads.shape[1], -1),  # -> [T, D]
    "gelu": gelu,
    "logits": lambda final, p: final @ p.get("lm_head.weight", p["wte.weight"]).T,
}


class OtherGPT2:
    """A function from ids [T] or [B, T] to all activations, under the names of tiedgpt's tape."""

    def __init__(self, model, dtype=np.float32, parameters=lambda p: p, **steps):
        p = {name: array.astype(dtype) for name, array in model.parameters.items()}
        self.p = parameters(p)
        self.n_layer = model.config.n_layer
        self.H = model.config.n_head
        assert steps.keys() <= STEPS.keys()
        vars(self).update(STEPS | steps)  # self.gelu and so on

    def __call__(self, ids):
        if ids.ndim == 1:
            return self.forward(ids)
        tapes = [self.forward(sequence) for sequence in ids]
        return {name: np.stack([tape[name] for tape in tapes]) for name in tapes[0]}

    @np.errstate(all="ignore")  # no warnings: some wrong steps make nan
    def forward(self, ids):
        """The activations of one sequence, ids [T]."""
        tape = {}
        tokens = self.p["wte.weight"][self.tokens(ids)]
        positions = self.p["wpe.weight"][self.positions(len(ids))]
        resid = self.embed(tokens, positions)
        tape["embed"] = resid
        for layer in self.order(self.n_layer):
            resid = self.block(resid, layer, tape)
        tape["final"] = self.ln("ln_f")(resid)
        tape["logits"] = self.logits(tape["final"], self.p)
        return tape

    def weight_and_bias(self, name):
        source = self.weights(name)
        return self.p[f"{source}.weight"], self.p[f"{source}.bias"]

    def ln(self, name):
        return lambda x: self.norm(x, *self.weight_and_bias(name), name)

    def block(self, resid, layer, tape):
        ln_1 = self.ln(f"h.{layer}.ln_1")
        ln_2 = self.ln(f"h.{layer}.ln_2")
        attention_in = self.before_attention(resid, ln_1)
        out = self.attention(attention_in, layer, tape)
        resid_mid = self.after_attention(resid, attention_in, out, ln_1)
        mlp_in = self.before_mlp(resid, attention_in, resid_mid, ln_2)
        out = self.mlp(mlp_in, layer, tape)
        resid_post = self.after_mlp(resid_mid, mlp_in, out, ln_2)
        tape[f"resid_pre.{layer}"] = resid
        tape[f"resid_mid.{layer}"] = resid_mid
        tape[f"resid_post.{layer}"] = resid_post
        return resid_post

    def attention(self, x, layer, tape):
        c_attn = f"h.{layer}.attn.c_attn"
        c_proj = f"h.{layer}.attn.c_proj"
        weight, bias = self.weight_and_bias(c_attn)
        qkv = self.linear(x, weight, bias, c_attn)
        q, k, v = [self.to_heads(part, self.H) for part in self.split(qkv, bias, self.H)]
        k, v = self.remember(k, v, layer)
        scores = self.scores(q, k, layer, self.H)
        pattern = self.pattern(scores)
        heads = self.attend(q, k, v, pattern)
        out = self.linear(self.join(heads), *self.weight_and_bias(c_proj), c_proj)
        activations = (x, qkv, q, k, v, scores, pattern, heads, out)
        names = ("in", "qkv", "q", "k", "v", "scores", "pattern", "heads", "out")
        for name, activation in zip(names, activations, strict=True):
            tape[f"attn.{layer}.{name}"] = activation
        return out

    def mlp(self, x, layer, tape):
        c_fc = f"h.{layer}.mlp.c_fc"
        c_proj = f"h.{layer}.mlp.c_proj"
        pre = self.linear(x, *self.weight_and_bias(c_fc), c_fc)
        post = self.gelu(pre, layer)
        out = self.linear(post, *self.weight_and_bias(c_proj), c_proj)
        for name, activation in zip(("in", "pre", "post", "out"), (x, pre, post, out), strict=True):
            tape[f"mlp.{layer}.{name}"] = activation
        return out
