"""GPT-2, from token ids to logits, with one switch: is the output matrix the token embedding?

Letters in shapes, in all files:

    B batch    T time, the tokens of this pass    S time, with the tokens in the cache    V vocab_size
    D n_embd, the width of the residual stream    H n_head    K = D / H, the width of a head    F n_inner

Arguments have checkpoint names: `**c_attn` is {"weight": ..., "bias": ...}. `run` (run.py) has what
a pass needs besides weights: the KV cache, a tape that records activations, edits of them, dropout
for training. `run.tap(name, x)` returns x, or the edit of x if there is one, and records it if
there is a tape.
"""

import math
from typing import Any

import numpy as np

from ..errors import COUNT, ArgumentError, short_repr
from ..fast.memory import aligned
from ..fast.products import product
from .activations import ACTIVATIONS
from .checks import check_cache, check_edits, check_ids, check_lengths, check_parameters
from .config import Config
from .ops import layer_norm, linear, softmax
from .parameters import Parameters, nest, parameter_count, parameter_shapes
from .prefill import in_pieces, in_query_blocks
from .run import Edits, KVCache, OnProgress, Run, Tape

Array = np.ndarray


def split_heads(qkv: Array, H: int) -> Array:  # [B, T, 3 D] -> [3, B, H, T, K]
    """q, k and v of each head, as views of qkv."""
    return qkv.reshape(*qkv.shape[:2], 3, H, -1).transpose(2, 0, 3, 1, 4)


def merge_heads(heads: Array) -> Array:  # [B, H, T, K] -> [B, T, D]
    """The outputs of all heads of a token, one after the other."""
    B, H, T, K = heads.shape
    return heads.swapaxes(1, 2).reshape(B, T, H * K)


def attention_scale(config: Config, layer: int) -> float:
    """The factor of q k^T. In GPT-2 it is 1 / sqrt(K), so that scores do not grow with K."""
    scale = 1 / math.sqrt(config.head_width) if config.scale_attn_weights else 1.0
    return scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale


def hide_future(scores: Array, start: int | Array) -> Array:  # [B, H, T, S], changed in place
    """The causal mask: a token's scores of later tokens become -inf. The first row has position
    `start`."""
    T, S = scores.shape[-2:]
    if isinstance(start, np.ndarray):  # [B], sequences of unequal lengths
        later = np.arange(S) > (start[:, None] + np.arange(T))[..., None]  # [B, T, S]
        np.copyto(scores, -np.inf, where=later[:, None])
    elif T > 1:  # the last T columns are the tokens given
        scores[..., -T:] += np.triu(np.full((T, T), -np.inf, scores.dtype), k=1)
    return scores


@in_query_blocks  # a long prompt is read in blocks of queries (prefill.py)
def attend(
    q: Array, k: Array, v: Array, run: Run
) -> Array:  # k, v [B, H, S, K] -> [B, H, T, K], as q
    """Compare the query of each token with the keys of all tokens up to it, and average their
    values."""
    scores = (q * attention_scale(run.config, run.layer)) @ k.swapaxes(-1, -2)  # [B, H, T, S]
    scores = hide_future(run.tap("attn.N.scores", scores), run.start)
    pattern = run.tap("attn.N.pattern", softmax(scores, out=scores))
    return run.dropout("attn.N.pattern", pattern, run.config.attn_pdrop) @ v


def attention(
    x: Array, c_attn: Parameters, c_proj: Parameters, run: Run
) -> Array:  # [B, T, D] -> [B, T, D]
    """All heads: queries, keys and values from x, and the heads' outputs back to width D."""
    x = run.tap("attn.N.in", x)
    qkv = run.tap("attn.N.qkv", linear(x, **c_attn))  # [B, T, 3 D]
    q, k, v = map(
        run.tap, ("attn.N.q", "attn.N.k", "attn.N.v"), split_heads(qkv, run.config.n_head)
    )
    k, v = run.extend_cache(k, v)  # [B, H, T, K] -> [B, H, S, K]
    heads = run.tap("attn.N.heads", attend(q, k, v, run))
    out = linear(merge_heads(heads), **c_proj)
    return run.tap("attn.N.out", run.dropout("attn.N.out", out, run.config.resid_pdrop))


def mlp(
    x: Array, c_fc: Parameters, c_proj: Parameters, run: Run
) -> Array:  # [B, T, D] -> [B, T, D]
    """Each token by itself: widen to F, apply the activation, narrow to D."""
    x = run.tap("mlp.N.in", x)
    pre = run.tap("mlp.N.pre", linear(x, **c_fc))  # [B, T, F]
    post = run.tap("mlp.N.post", ACTIVATIONS[run.config.activation_function].forward(pre))
    out = linear(post, **c_proj)
    return run.tap("mlp.N.out", run.dropout("mlp.N.out", out, run.config.resid_pdrop))


def transformer_block(
    resid: Array, block: dict[str, Any], run: Run
) -> Array:  # [B, T, D] -> [B, T, D]
    """Attention and the MLP each read the residual stream and add their output to it."""
    eps = run.config.layer_norm_epsilon
    resid = run.tap("resid_pre.N", resid)
    resid = resid + attention(layer_norm(resid, **block["ln_1"], eps=eps), **block["attn"], run=run)
    resid = run.tap("resid_mid.N", resid)
    resid = resid + mlp(layer_norm(resid, **block["ln_2"], eps=eps), **block["mlp"], run=run)
    return run.tap("resid_post.N", resid)


def transformer(ids: Array, tree: dict[str, Any], run: Run) -> Array:  # [B, T] -> [B, T, D]
    """GPT-2 without its output matrix: token and position embeddings, the blocks, the final layer
    norm."""
    resid = tree["wte"]["weight"][ids] + tree["wpe"]["weight"][run.positions(ids.shape[1])]
    resid = run.tap("embed", run.dropout("embed", resid, run.config.embd_pdrop))
    for layer, block in enumerate(tree["h"]):
        run.layer = layer
        resid = transformer_block(resid, block, run)
    return run.tap("final", layer_norm(resid, **tree["ln_f"], eps=run.config.layer_norm_epsilon))


def unembedding(parameters: Parameters, tied: bool) -> Array:  # -> W_U [D, V]
    """The switch. Tied, the token embedding wte [V, D] is also the output matrix."""
    return parameters["wte.weight"].T if tied else parameters["lm_head.weight"].T


def unembed(final: Array, W_U: Array) -> Array:  # [..., D] -> [..., V]
    """One logit per token of the vocabulary: the dot product of `final` with that token's column of
    W_U."""
    return product(final.reshape(-1, final.shape[-1]), W_U).reshape(*final.shape[:-1], W_U.shape[1])


class GPT2:
    """A configuration and its parameters, callable: `model(ids)` returns logits.

    Raises ArgumentError when the parameters are not those of the configuration (names, shapes, one
    float dtype for all). No method changes a parameter: `tie` and `untie` return new models that
    share arrays.
    """

    def __init__(self, config: Config, parameters: Parameters) -> None:
        self.dtype = check_parameters(parameters, config)
        self.config = config
        self.parameters = {name: parameters[name] for name in parameter_shapes(config)}
        self.tree = nest(self.parameters)

    @classmethod
    def random(cls, config: Config, seed: int = 0) -> "GPT2":
        """An untrained model, initialised as GPT-2 was [Radford et al. 2019, section 2.3].

        Weights are normal with standard deviation config.initializer_range, divided by sqrt(2 L)
        for the two projections of each block that write to the residual stream.
        """
        rng = np.random.default_rng([COUNT.check("seed", seed), 0])
        parameters = {}
        for name, shape in parameter_shapes(config).items():
            if len(shape) == 1:  # biases, and the gains of the layer norms
                parameters[name] = np.full(
                    shape, 1 if "ln_" in name and "weight" in name else 0, np.float32
                )
            else:
                depth = math.sqrt(2 * config.n_layer) if name.endswith("c_proj.weight") else 1.0
                std = np.float32(config.initializer_range / depth)
                parameters[name] = rng.standard_normal(shape, np.float32) * std
        return cls(config, parameters)

    @property
    def W_E(self) -> Array:  # [V, D]
        """The token embedding, wte."""
        return self.parameters["wte.weight"]

    @property
    def W_U(self) -> Array:  # [D, V]
        """The output matrix. Tied, it is a view of W_E.T."""
        return unembedding(self.parameters, self.config.tied)

    def __call__(
        self,
        ids: Any,
        cache: KVCache | None = None,
        tape: Tape | None = None,
        lengths: Any = None,
        edit: Edits | None = None,
    ) -> Array:
        """The logits of the token after each of `ids`: [T] -> [T, V], [B, T] -> [B, T, V].

        With a cache, `ids` continue the tokens in it and are added to it. For sequences of unequal
        lengths, pad `ids` on the right with any token and give their `lengths` [B]; logits after a
        length have no meaning. `edit` maps activations to functions of them: {"attn.3.out":
        np.zeros_like} removes a layer's attention. Raises ArgumentError for ids outside [0, V),
        none, or more than the context has room for.
        """
        logits = unembed(self.final(ids, cache, tape, lengths, edit), self.W_U)
        if tape is not None:
            tape["logits"] = logits.reshape(-1, *logits.shape[-2:])
        return logits

    def final(
        self,
        ids: Any,
        cache: KVCache | None = None,
        tape: Tape | None = None,
        lengths: Any = None,
        edit: Edits | None = None,
        progress: OnProgress = None,
    ) -> Array:
        """The input of the output matrix: [T] -> [T, D], [B, T] -> [B, T, D]. Otherwise as
        __call__.

        Without a tape and edits, a long text is read in pieces by several threads (prefill.py), so
        the number of cores changes the rounding. `progress` is called with the number of tokens in
        each piece.
        """
        ids = check_ids(ids, self.config)
        batch = np.atleast_2d(ids)
        lengths, edit = check_lengths(lengths, batch), check_edits(edit, self.config)
        if cache is not None:
            check_cache(cache, batch, self.config, self.dtype)
        run = Run(self.config, cache, tape, edits=edit)
        final = in_pieces(transformer, batch, self.tree, run, progress)
        if cache is not None:
            cache.length = cache.length + (batch.shape[1] if lengths is None else lengths)
        return final.reshape(*ids.shape, -1)

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> KVCache:
        """An empty cache for `batch` sequences of up to `capacity` tokens (the whole context if
        None)."""
        return KVCache(
            self.config, batch, self.config.n_ctx if capacity is None else capacity, self.dtype
        )

    def tie(self) -> "GPT2":
        """This model with wte.T as its output matrix, without the W_U of an untied model."""
        parameters = {
            name: array for name, array in self.parameters.items() if name != "lm_head.weight"
        }
        return GPT2(self.config.with_head("tied"), parameters)

    def untie(self, init: str = "copy", seed: int = 0) -> "GPT2":
        """This tied model with its own W_U.

        init: "copy" starts W_U as wte.T (the logits stay the same), "random" as normal random
        numbers (from `seed`), "zeros" as 0. Raises ArgumentError for another init, and for a model
        that is untied already.
        """
        if not self.config.tied:
            raise ArgumentError(
                "the model is untied already; to start W_U anew, use model.tie().untie(init)"
            )
        lm_head = aligned(self.W_E.shape, self.dtype)
        if init == "copy":
            lm_head[...] = self.W_E
        elif init == "random":  # stream 1, because `random` drew wte from stream 0 of the same seed
            rng = np.random.default_rng([COUNT.check("seed", seed), 1])
            std = np.float32(self.config.initializer_range)
            lm_head[...] = rng.standard_normal(lm_head.shape, np.float32) * std
        elif init == "zeros":
            lm_head[...] = 0
        else:
            raise ArgumentError(f'init must be "copy", "random" or "zeros", got {short_repr(init)}')
        return GPT2(self.config.with_head("untied"), {**self.parameters, "lm_head.weight": lm_head})

    def astype(self, dtype: Any) -> "GPT2":
        """This model in float32 or float64. The float64 model is the reference for the float32
        model."""
        return GPT2(
            self.config, {name: array.astype(dtype) for name, array in self.parameters.items()}
        )

    def __repr__(self) -> str:
        names = ("n_layer", "n_head", "n_embd", "n_ctx", "vocab_size")
        shape = ", ".join(f"{name}={getattr(self.config, name)}" for name in names)
        total = parameter_count(self.config).total
        return f"GPT2({self.config.head}, {total:,} parameters, {shape}, {self.dtype})"
