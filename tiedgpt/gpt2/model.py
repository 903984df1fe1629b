"""GPT-2, from token ids to logits, with one switch: is the output matrix the token embedding?

Letters in shapes, in all files:

    B  batch                                     D  n_embd, the width of the residual stream
    T  time, the tokens of this pass             H  n_head
    S  time, with the tokens in the cache        K  D / H, the width of a head
    V  vocab_size                                F  n_inner, the width of the MLP

Arguments have checkpoint names: `**c_attn` is {"weight": ..., "bias": ...}. `run` (run.py) has what
a pass needs besides weights: the KV cache, a tape that records activations, edits of them, dropout
for training. `run.tap(name, x)` returns x, or the edit of x if there is one. If there is a tape, it
records what it returns.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import COUNT, ArgumentError, short_repr
from .activations import ACTIVATIONS
from .checks import check_cache, check_edits, check_ids, check_parameters, check_vocab_size
from .config import Config
from .ops import layer_norm, linear, softmax
from .parameters import Parameters, nest, parameter_count, parameter_shapes
from .prefill import in_pieces
from .run import Edits, KVCache, OnProgress, Run, Tape

Array = np.ndarray


def split_heads(qkv: Array, H: int) -> Array:  # [B, T, 3 D] -> [3, B, H, T, K]
    """q, k and v of each head, as views of qkv."""
    B, T, _ = qkv.shape
    parts = qkv.reshape(B, T, 3, H, -1)  # the last axis is K
    return parts.transpose(2, 0, 3, 1, 4)


def merge_heads(heads: Array) -> Array:  # [B, H, T, K] -> [B, T, D]
    """The outputs of all heads of a token, one after the other."""
    B, H, T, K = heads.shape
    return heads.swapaxes(1, 2).reshape(B, T, H * K)


def attention_scale(config: Config, layer: int) -> float:
    """The factor of q k^T. In GPT-2 it is 1 / sqrt(K), so that scores do not grow with K."""
    scale = 1.0
    if config.scale_attn_weights:
        scale /= math.sqrt(config.head_width)
    if config.scale_attn_by_inverse_layer_idx:
        scale /= layer + 1  # the layer's number, counted from 1
    return scale


def causal_mask(T: int, dtype: Any) -> Array:  # -> [T, T]
    """What is added to the scores: -inf where the key comes after the query, 0 elsewhere."""
    return np.triu(np.full((T, T), -np.inf, dtype), k=1)


def attend(  # q [B, H, T, K], k and v [B, H, S, K] -> [B, H, T, K]
    q: Array, k: Array, v: Array, layer: int, run: Run
) -> Array:
    """Compare each token's query with the keys of all tokens up to it, and average their values."""
    T = q.shape[2]
    S = k.shape[2]
    scores = (q * attention_scale(run.config, layer)) @ k.swapaxes(2, 3)  # [B, H, T, S]
    # The mask and the softmax overwrite scores, so the tape gets a copy.
    scores = run.tap(f"attn.{layer}.scores", scores, copy=True)
    if T > 1:
        # The queries belong to the last T tokens. All of them see the S - T tokens before.
        scores[..., S - T :] += causal_mask(T, scores.dtype)
    pattern = run.tap(f"attn.{layer}.pattern", softmax(scores, out=scores))
    return run.dropout(f"attn.{layer}.pattern", pattern, run.config.attn_pdrop) @ v


def attention(  # [B, T, D] -> [B, T, D]
    x: Array, c_attn: Parameters, c_proj: Parameters, layer: int, run: Run
) -> Array:
    """All heads: queries, keys and values from x, and the heads' outputs back to width D."""
    x = run.tap(f"attn.{layer}.in", x)
    qkv = run.tap(f"attn.{layer}.qkv", linear(x, **c_attn))  # [B, T, 3 D]
    q, k, v = split_heads(qkv, run.config.n_head)
    q = run.tap(f"attn.{layer}.q", q)
    k = run.tap(f"attn.{layer}.k", k)
    v = run.tap(f"attn.{layer}.v", v)
    if run.cache is not None:  # add k and v to it, and get those of all tokens so far
        k, v = run.cache.extend(layer, k, v)  # [B, H, T, K] -> [B, H, S, K]
    heads = run.tap(f"attn.{layer}.heads", attend(q, k, v, layer, run))
    out = linear(merge_heads(heads), **c_proj)
    out = run.dropout(f"attn.{layer}.out", out, run.config.resid_pdrop)
    return run.tap(f"attn.{layer}.out", out)


def mlp(  # [B, T, D] -> [B, T, D]
    x: Array, c_fc: Parameters, c_proj: Parameters, layer: int, run: Run
) -> Array:
    """Each token by itself: widen to F, apply the activation function, narrow to D."""
    activation = ACTIVATIONS[run.config.activation_function]
    x = run.tap(f"mlp.{layer}.in", x)
    pre = run.tap(f"mlp.{layer}.pre", linear(x, **c_fc))  # [B, T, F]
    post = run.tap(f"mlp.{layer}.post", activation.forward(pre))  # [B, T, F]
    out = linear(post, **c_proj)
    out = run.dropout(f"mlp.{layer}.out", out, run.config.resid_pdrop)
    return run.tap(f"mlp.{layer}.out", out)


def norm(x: Array, parameters: Parameters, config: Config) -> Array:  # [..., D] -> [..., D]
    """A layer norm with its weight and bias, and the epsilon of the model."""
    return layer_norm(x, **parameters, eps=config.layer_norm_epsilon)


def transformer_block(  # [B, T, D] -> [B, T, D]
    resid: Array, block: dict[str, Any], layer: int, run: Run
) -> Array:
    """Attention and the MLP each read the residual stream and add their output to it."""
    resid = run.tap(f"resid_pre.{layer}", resid)
    normed = norm(resid, block["ln_1"], run.config)
    resid = resid + attention(normed, **block["attn"], layer=layer, run=run)
    resid = run.tap(f"resid_mid.{layer}", resid)
    normed = norm(resid, block["ln_2"], run.config)
    resid = resid + mlp(normed, **block["mlp"], layer=layer, run=run)
    return run.tap(f"resid_post.{layer}", resid)


def transformer(ids: Array, tree: dict[str, Any], run: Run) -> Array:  # [B, T] -> [B, T, D]
    """GPT-2 without its output matrix: the embeddings, the blocks, the final layer norm."""
    token_embedding = tree["wte"]["weight"][ids]
    position_embedding = tree["wpe"]["weight"][run.positions(ids.shape[1])]
    resid = token_embedding + position_embedding
    resid = run.tap("embed", run.dropout("embed", resid, run.config.embd_pdrop))
    for layer, block in enumerate(tree["h"]):
        resid = transformer_block(resid, block, layer, run)
    return run.tap("final", norm(resid, tree["ln_f"], run.config))


def unembedding(parameters: Parameters, tied: bool) -> Array:  # -> W_U [D, V]
    """The switch. Tied, the token embedding wte [V, D] is also the output matrix."""
    if tied:
        return parameters["wte.weight"].T
    return parameters["lm_head.weight"].T


def unembed(final: Array, W_U: Array) -> Array:  # [..., D] -> [..., V]
    """A logit for each token of the vocabulary: the dot product of `final` with a column of W_U."""
    D, V = W_U.shape
    # One product for all rows: np.matmul of [B, 1, D] would run B of them, and read W_U B times.
    logits = final.reshape(-1, D) @ W_U
    return logits.reshape(*final.shape[:-1], V)


class GPT2:
    """A configuration and its parameters, callable: `model(ids)` returns logits.

    Raises ArgumentError when the parameters are not those of the configuration (names, shapes, one
    float dtype for all). No method changes a parameter: `tie` and `untie` return new models that
    share arrays.
    """

    def __init__(self, config: Config, parameters: Parameters) -> None:
        check_parameters(parameters, config)
        dtypes = sorted(map(str, {array.dtype for array in parameters.values()}))
        if dtypes not in (["float32"], ["float64"]):
            raise ArgumentError(
                f"parameters must be all float32 or all float64, got {', '.join(dtypes)}"
            )
        self.dtype = np.dtype(dtypes[0])
        self.config = config
        # All models list their parameters in the order of the table.
        self.parameters = {name: parameters[name] for name in parameter_shapes(config)}
        self.tree = nest(self.parameters)

    @classmethod
    def random(cls, config: Config, seed: int = 0) -> "GPT2":
        """An untrained model, initialised as transformers and nanoGPT do it.

        Weights are normal with standard deviation config.initializer_range. In the two projections
        of each block that write to the residual stream it is divided by sqrt(2 L), as in
        Radford et al. 2019, section 2.3. (OpenAI drew wpe with 0.01.) Raises ArgumentError for a
        seed that is not a whole number of at least 0.
        """
        # This is stream 0 of the seed. `untie` and `resize` draw from streams 1 and 2, so that the
        # same seed gives them other numbers.
        rng = np.random.default_rng([COUNT.check("seed", seed), 0])
        parameters = {}
        for name, shape in parameter_shapes(config).items():
            is_gain = name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight"))
            if is_gain:
                parameters[name] = np.ones(shape, np.float32)
            elif name.endswith(".bias"):
                parameters[name] = np.zeros(shape, np.float32)
            else:
                std = config.initializer_range
                if name.endswith("c_proj.weight"):
                    std /= math.sqrt(2 * config.n_layer)
                parameters[name] = rng.standard_normal(shape, np.float32) * np.float32(std)
        return cls(config, parameters)

    @property
    def tied(self) -> bool:
        """Whether the output matrix is the token embedding. To change it: `tie`, `untie`."""
        return self.config.tied

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
        edit: Edits | None = None,
    ) -> Array:
        """The logits of the token after each of `ids`: [T] -> [T, V], [B, T] -> [B, T, V].

        With a cache, `ids` continue the tokens in it and are added to it. Texts of unequal lengths
        are padded on the right, with any token: no token sees those after it, so the logits up to
        a text's end are those of the text alone. `edit` maps activations to functions of them:
        {"attn.3.out": np.zeros_like} removes a layer's attention. `tape`, a dict, receives the
        activations by name. On a tape and in an edit, each array has the axis B, also for ids [T]:
        tape["logits"] is then [1, T, V]. Raises ArgumentError for ids outside [0, V), none, or more
        than the context has room for.
        """
        logits = unembed(self.final(ids, cache, tape, edit), self.W_U)
        if tape is not None:
            tape["logits"] = logits.reshape(-1, *logits.shape[-2:])  # [B, T, V], also for ids [T]
        return logits

    def final(
        self,
        ids: Any,
        cache: KVCache | None = None,
        tape: Tape | None = None,
        edit: Edits | None = None,
        progress: OnProgress = None,
    ) -> Array:
        """The input of the output matrix, ids [T] -> [T, D], [B, T] -> [B, T, D]; see __call__.

        Without a tape and edits, a long text is read in pieces by several threads (prefill.py), so
        the number of cores changes the rounding. `progress` is called with the number of tokens in
        each piece.
        """
        ids = check_ids(ids, self.config)
        batch = np.atleast_2d(ids)
        edit = check_edits(edit, self.config)
        if cache is not None:
            check_cache(cache, batch, self.config, self.dtype)

        # This is transformer(batch, self.tree, run). A long text is read in pieces.
        run = Run(self.config, cache, tape, edit)
        final = in_pieces(transformer, batch, self.tree, run, progress)

        if cache is not None:
            cache.length += batch.shape[1]
        return final.reshape(*ids.shape, self.config.n_embd)

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> KVCache:
        """An empty cache for `batch` texts of up to `capacity` tokens; None is the context."""
        if capacity is None:
            capacity = self.config.n_ctx
        COUNT.check("batch", batch)
        COUNT.check("capacity", capacity)
        return KVCache(self.config, batch, capacity, self.dtype)

    def tie(self) -> "GPT2":
        """This model with wte.T as its output matrix, without the W_U of an untied model."""
        parameters = dict(self.parameters)
        parameters.pop("lm_head.weight", None)
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
        lm_head = np.empty_like(self.W_E)
        if init == "copy":
            lm_head[...] = self.W_E
        elif init == "random":
            # This is stream 1 of the seed. `random` draws wte from stream 0, so that the same seed
            # gives W_U other numbers than wte.
            rng = np.random.default_rng([COUNT.check("seed", seed), 1])
            std = np.float32(self.config.initializer_range)
            lm_head[...] = rng.standard_normal(lm_head.shape, np.float32) * std
        elif init == "zeros":
            lm_head[...] = 0
        else:
            raise ArgumentError(f'init must be "copy", "random" or "zeros", got {short_repr(init)}')
        parameters = {**self.parameters, "lm_head.weight": lm_head}
        return GPT2(self.config.with_head("untied"), parameters)

    def resize(self, vocab_size: int, init: str = "mean", seed: int = 0) -> "GPT2":
        """This model with another number of tokens. If it has fewer, the last ones are removed.

        New rows of wte, and of W_U.T if it is untied, are the mean of the old ones, so the logit of
        a new token is the mean of all logits. (A row of zeros has the logit 0, and GPT-2's logits
        are often all below 0.) init: "mean" leaves them so; "random" adds normal random numbers
        (from `seed`), so that new tokens differ. Raises ArgumentError for another init, a number
        that is not 1 or more, and a size without the model's end-of-text token.
        """
        vocab_size = check_vocab_size(vocab_size, self.config)
        if init not in ("mean", "random"):
            raise ArgumentError(f'init must be "mean" or "random", got {short_repr(init)}')
        # This is stream 2 of the seed. `random` and `untie` draw from streams 0 and 1, so that the
        # same seed gives new rows other numbers.
        rng = np.random.default_rng([COUNT.check("seed", seed), 2])
        std = 0.0
        if init == "random":
            std = self.config.initializer_range
        parameters = dict(self.parameters)
        kept = min(self.config.vocab_size, vocab_size)
        for name in ("wte.weight", "lm_head.weight"):
            if name not in parameters:
                continue
            matrix = parameters[name]  # [V, D]
            resized = np.empty((vocab_size, self.config.n_embd), self.dtype)
            resized[:kept] = matrix[:kept]
            if vocab_size > kept:
                # In float32, the sum of 50,000 rows would lose digits.
                resized[kept:] = matrix.mean(axis=0, dtype=np.float64)
                resized[kept:] += std * rng.standard_normal(resized[kept:].shape)
            parameters[name] = resized
        return GPT2(replace(self.config, vocab_size=vocab_size), parameters)

    def astype(self, dtype: Any) -> "GPT2":
        """This model in float32 or float64. The float64 model is the reference for the other."""
        parameters = {name: array.astype(dtype) for name, array in self.parameters.items()}
        return GPT2(self.config, parameters)

    def __repr__(self) -> str:
        sizes = []
        for name in ("n_layer", "n_head", "n_embd", "n_ctx", "vocab_size"):
            sizes.append(f"{name}={getattr(self.config, name)}")
        shape = ", ".join(sizes)
        total = parameter_count(self.config).total
        return f"GPT2({self.config.head}, {total:,} parameters, {shape}, {self.dtype})"
