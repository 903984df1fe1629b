"""GPT-2 from token ids to logits, and the switch: does the embedding also unembed?

Read downward; each function stands above those that use it. Letters, here and everywhere:

    B batch    T time, the tokens given    S time with those in the cache    V vocabulary
    D n_embd, the residual stream's width    H heads    K = D / H, a head's width    F the MLP's width

Weights arrive by their checkpoint names: `**c_attn` is {"weight": ..., "bias": ...}. A `tape`, where one
is given, is a dict that receives these activations; nothing recorded is changed afterwards:

    embed  resid_pre.N  resid_mid.N  resid_post.N  final          [B, T, D]    logits [B, T, V]
    attn.N.in  attn.N.out  mlp.N.in  mlp.N.out                    [B, T, D]    attn.N.qkv [B, T, 3 D]
    attn.N.heads [B, H, T, K]    attn.N.pattern [B, H, T, S]      mlp.N.pre  mlp.N.post [B, T, F]

An `rng`, where one is given, is that of training: then, and only then, there is dropout. What it kept is on
the tape as NAME.kept, of NAME's shape, for embed, attn.N.pattern, attn.N.out and mlp.N.out.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import machine
from .cache import KVCache, Piece
from .config import Config
from .errors import ArgumentError, is_count, short_repr
from .ops import ACTIVATIONS, dropout_mask, layer_norm, linear, softmax
from .parameters import Parameters, nest, parameter_shapes

CHUNK = 256  # tokens of each sequence that are read at a time, at most
Tape = dict[str, np.ndarray]


def record(tape: Tape | None, name: str, activation: np.ndarray) -> None:
    """Put an activation on the tape, if there is one."""
    if tape is not None:
        tape[name] = activation


def dropout(  # [...] -> [...]
    x: np.ndarray, p: float, name: str, tape: Tape | None, rng: np.random.Generator | None
) -> np.ndarray:
    """In training, silence each number with probability p and scale up the others to make up for it."""
    if rng is None or p == 0:
        return x
    kept = dropout_mask(x.shape, p, x.dtype, rng)
    record(tape, f"{name}.kept", kept)
    return x * kept


def embed(ids: np.ndarray, wte: np.ndarray, wpe: np.ndarray, start: int) -> np.ndarray:  # [B, T] -> [B, T, D]
    """Each token's vector plus its position's; `start` is the first one's position."""
    return wte[ids] + wpe[start : start + ids.shape[1]]


def causal_mask(T: int, dtype: Any) -> np.ndarray:  # -> [T, T]
    """0 where a token (row) may look, -inf above the diagonal, where the future is."""
    return np.triu(np.full((T, T), -np.inf, dtype), k=1)


def split_heads(qkv: np.ndarray, H: int) -> np.ndarray:  # [B, T, 3 D] -> [3, B, H, T, K]
    """A view of q, k and v, each in heads. In memory a token's q, k and v stay side by side."""
    return qkv.reshape(*qkv.shape[:2], 3, H, -1).transpose(2, 0, 3, 1, 4)


def attention_scale(config: Config, layer: int) -> float:
    """What the scores are multiplied by, so that they do not grow with a head's width."""
    scale = 1.0
    if config.scale_attn_weights:
        scale /= math.sqrt(config.head_width)
    if config.scale_attn_by_inverse_layer_idx:
        scale /= layer + 1
    return scale


def attention(  # [B, T, D] -> [B, T, D]
    x: np.ndarray,
    c_attn: dict[str, np.ndarray],
    c_proj: dict[str, np.ndarray],
    config: Config,
    layer: int,
    cache: KVCache | None = None,
    tape: Tape | None = None,
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """Every token asks (q) all tokens before it (k) and takes a mixture of what they say (v)."""
    T = x.shape[1]
    record(tape, f"attn.{layer}.in", x)
    qkv = linear(x, **c_attn)
    record(tape, f"attn.{layer}.qkv", qkv)
    q, k, v = split_heads(qkv, config.n_head)  # each [B, H, T, K]
    if cache is not None:
        k, v = cache.extend(layer, k, v)  # [B, H, S, K]

    scores = (q * attention_scale(config, layer)) @ k.swapaxes(-1, -2)  # [B, H, T, S]
    if T > 1:  # only the last T columns, the new tokens, hold a future to hide
        scores[..., -T:] += causal_mask(T, scores.dtype)
    pattern = softmax(scores, out=scores)
    record(tape, f"attn.{layer}.pattern", pattern)
    pattern = dropout(pattern, config.attn_pdrop, f"attn.{layer}.pattern", tape, rng)

    heads = pattern @ v  # [B, H, T, K]
    record(tape, f"attn.{layer}.heads", heads)
    out = linear(heads.swapaxes(1, 2).reshape(x.shape), **c_proj)
    out = dropout(out, config.resid_pdrop, f"attn.{layer}.out", tape, rng)
    record(tape, f"attn.{layer}.out", out)
    return out


def mlp(  # [B, T, D] -> [B, T, D]
    x: np.ndarray,
    c_fc: dict[str, np.ndarray],
    c_proj: dict[str, np.ndarray],
    config: Config,
    layer: int,
    tape: Tape | None = None,
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """Each token by itself: widen to F, apply the nonlinearity, narrow to D."""
    record(tape, f"mlp.{layer}.in", x)
    pre = linear(x, **c_fc)  # [B, T, F]
    record(tape, f"mlp.{layer}.pre", pre)
    post = ACTIVATIONS[config.activation_function](pre)
    record(tape, f"mlp.{layer}.post", post)
    out = linear(post, **c_proj)
    out = dropout(out, config.resid_pdrop, f"mlp.{layer}.out", tape, rng)
    record(tape, f"mlp.{layer}.out", out)
    return out


def transformer_block(  # [B, T, D] -> [B, T, D]
    resid_pre: np.ndarray,
    block: dict[str, Any],
    config: Config,
    layer: int,
    cache: KVCache | None = None,
    tape: Tape | None = None,
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """The residual stream is read twice, and twice something is added to it."""
    eps = config.layer_norm_epsilon
    record(tape, f"resid_pre.{layer}", resid_pre)

    attn_in = layer_norm(resid_pre, **block["ln_1"], eps=eps)
    resid_mid = resid_pre + attention(
        attn_in, **block["attn"], config=config, layer=layer, cache=cache, tape=tape, rng=rng
    )
    record(tape, f"resid_mid.{layer}", resid_mid)

    mlp_in = layer_norm(resid_mid, **block["ln_2"], eps=eps)
    resid_post = resid_mid + mlp(mlp_in, **block["mlp"], config=config, layer=layer, tape=tape, rng=rng)
    record(tape, f"resid_post.{layer}", resid_post)
    return resid_post


def transformer(  # [B, T] -> [B, T, D]
    ids: np.ndarray,
    tree: dict[str, Any],
    config: Config,
    cache: KVCache | None = None,
    tape: Tape | None = None,
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """All of GPT-2 but the head: the residual stream after the last block and the final layer norm.

    `tree` is the parameters as `nest` gives them: tree["h"][layer]["attn"]["c_attn"]["weight"].
    """
    start = cache.length if cache is not None else 0
    resid = embed(ids, tree["wte"]["weight"], tree["wpe"]["weight"], start)
    resid = dropout(resid, config.embd_pdrop, "embed", tape, rng)
    record(tape, "embed", resid)
    for layer, block in enumerate(tree["h"]):
        resid = transformer_block(resid, block, config, layer, cache, tape, rng)
    if cache is not None:
        cache.length += ids.shape[1]
    final = layer_norm(resid, **tree["ln_f"], eps=config.layer_norm_epsilon)
    record(tape, "final", final)
    return final


def unembedding(parameters: Parameters, tied: bool) -> np.ndarray:  # -> W_U [D, V]
    """THE SWITCH: which matrix unembeds? Nothing else in the forward pass knows.

    Tied, it is the embedding again: one [V, D] matrix read by row on the way in and by column on the way
    out. Untied, it is a matrix of its own, which checkpoints keep as lm_head.weight, [V, D] like wte.
    """
    if tied:
        wte = parameters["wte.weight"]
        return wte.T  # logits = final @ wte.T
    W_U = parameters["lm_head.weight"].T
    return W_U  # logits = final @ W_U


def unembed(final: np.ndarray, W_U: np.ndarray) -> np.ndarray:  # [..., D] -> [..., V]
    """One logit for each token of the vocabulary: how well `final` points along its column of W_U."""
    logits = final.reshape(-1, final.shape[-1]) @ W_U
    return logits.reshape(*final.shape[:-1], W_U.shape[1])


class GPT2:
    """A configuration and its parameters, callable.

    Raises ArgumentError when the parameters are not those of the configuration (names, shapes, one float
    dtype for all). Nothing here changes a parameter; `tie` and `untie` return new models that share the
    arrays they have in common.
    """

    def __init__(self, config: Config, parameters: Parameters) -> None:
        shapes = parameter_shapes(config)
        for name in shapes.keys() | parameters.keys():
            if name not in parameters:
                raise ArgumentError(f"parameter {name} is missing; expected shape {shapes[name]}")
            if name not in shapes:
                raise ArgumentError(f"parameter {short_repr(name)} is not one of a {config.head} GPT-2's")
            if parameters[name].shape != shapes[name]:
                raise ArgumentError(
                    f"parameter {name} has shape {parameters[name].shape}; expected {shapes[name]}"
                )
        dtypes = {array.dtype for array in parameters.values()}
        if len(dtypes) != 1 or not dtypes <= {np.dtype(np.float32), np.dtype(np.float64)}:
            raise ArgumentError(
                f"parameters must be all float32 or all float64, got {', '.join(sorted(map(str, dtypes)))}"
            )
        self.config = config
        self.parameters = {name: parameters[name] for name in shapes}
        self.dtype = dtypes.pop()
        self.tree = nest(self.parameters)

    @classmethod
    def random(cls, config: Config, seed: int = 0) -> "GPT2":
        """A model before training, initialised as GPT-2 was [Radford et al. 2019, section 2.3].

        Normal weights of standard deviation config.initializer_range; the two projections that write to
        the residual stream are scaled by 1 / sqrt(2 L), for 2 L of them add up there.
        """
        rng = _random_generator(seed)
        parameters = {}
        for name, shape in parameter_shapes(config).items():
            if name.endswith(".bias"):
                parameters[name] = np.zeros(shape, np.float32)
            elif "ln_" in name:
                parameters[name] = np.ones(shape, np.float32)
            else:
                std = config.initializer_range
                if name.endswith("c_proj.weight"):
                    std /= math.sqrt(2 * config.n_layer)
                parameters[name] = _normal(rng, shape, std)
        return cls(config, parameters)

    @property
    def W_E(self) -> np.ndarray:  # [V, D]
        """The embedding matrix, wte."""
        return self.parameters["wte.weight"]

    @property
    def W_U(self) -> np.ndarray:  # [D, V]
        """The unembedding matrix; when tied, a view of W_E.T."""
        return unembedding(self.parameters, self.config.tied)

    def __call__(self, ids: Any, cache: KVCache | None = None, tape: Tape | None = None) -> np.ndarray:
        """Logits for the token after each of `ids`: [T] -> [T, V], [B, T] -> [B, T, V].

        With a cache, `ids` continue the tokens it holds and are added to it. Raises ArgumentError for
        ids that are not whole numbers in [0, V), an empty sequence, or one longer than the context.
        """
        hidden = self.hidden(ids, cache, tape)
        logits = unembed(hidden, self.W_U)
        record(tape, "logits", logits.reshape(-1, *logits.shape[-2:]))
        return logits

    def hidden(
        self,
        ids: Any,
        cache: KVCache | None = None,
        tape: Tape | None = None,
        progress: Callable[[int], Any] | None = None,
    ) -> np.ndarray:
        """What the head reads: [T] -> [T, D], [B, T] -> [B, T, D]. Takes and raises what a call does.

        Unless there is a tape to fill, a text of more than 256 tokens, or of 128 and more for each core, is
        read in pieces, by way of a cache: a piece's scores stay in the processor's own memory, of those that
        the mask hides few are computed, and threads share the pieces. Meanwhile BLAS has one thread for the
        whole process; and the number of cores changes the result, by rounding. `progress` is called with the
        number of tokens in each piece.
        """
        ids = check_ids(ids, self.config)
        batch = np.atleast_2d(ids)
        if cache is not None:
            self._check_cache(batch, cache)
        B, T = batch.shape
        threads, step = machine.share(T, CHUNK, B * T) if tape is None else (1, T)
        if step < T:
            cache = self.new_cache(B, T) if cache is None else cache
            final = self._read_in_pieces(batch, step, cache, threads, progress)
        else:
            final = transformer(batch, self.tree, self.config, cache, tape)
            if progress:
                progress(T)
        return final.reshape(*ids.shape, -1)

    def _read_in_pieces(
        self,
        ids: np.ndarray,
        step: int,
        cache: KVCache,
        threads: int,
        progress: Callable[[int], Any] | None,
    ) -> np.ndarray:  # [B, T] -> [B, T, D]
        """Read `step` tokens at a time. The cache is longer by T when all are read, and not before."""
        starts = range(0, ids.shape[1], step)
        pieces: list[Piece] = []
        for start in starts:
            pieces.append(Piece(cache, cache.length + start, pieces[-1] if pieces else None))

        def read(piece: Piece, start: int) -> np.ndarray:
            return transformer(ids[:, start : start + step], self.tree, self.config, piece)

        finals = []
        with machine.team(threads) as shared_map:
            try:
                for final in shared_map(read, pieces, starts):
                    finals.append(final)
                    if progress:
                        progress(final.shape[1])
            except BaseException:  # Ctrl-C, too
                for piece in reversed(pieces):
                    piece.give_up()
                raise
        cache.length += ids.shape[1]
        return np.concatenate(finals, axis=1)

    def new_cache(self, batch: int = 1, capacity: int | None = None) -> KVCache:
        """An empty cache for `batch` sequences of up to `capacity` tokens (the whole context if None)."""
        return KVCache(self.config, batch, self.config.n_ctx if capacity is None else capacity, self.dtype)

    def tie(self) -> "GPT2":
        """This model with wte.T as its unembedding; its own W_U, if it has one, is left behind."""
        parameters = {name: array for name, array in self.parameters.items() if name != "lm_head.weight"}
        return GPT2(self.config.with_head("tied"), parameters)

    def untie(self, init: str = "copy", seed: int = 0) -> "GPT2":
        """This model with a W_U of its own; wte is untouched.

        init: "copy" starts W_U as wte.T (the logits do not change by a bit), "random" as GPT-2 starts its
        weights (standard deviation config.initializer_range, from `seed`), "zeros" as 0 (all tokens
        equally likely). Raises ArgumentError for another.
        """
        # It lies in memory as wte does: BLAS sums in another order where it does not.
        by_column = self.W_E.flags.f_contiguous and not self.W_E.flags.c_contiguous
        lm_head = machine.aligned(self.W_E.shape, self.dtype, "F" if by_column else "C")
        if init == "copy":
            lm_head[...] = self.W_E
        elif init == "random":
            # Not the numbers that `random` draws from this seed, of which wte has the first.
            rng = _random_generator(seed, 1)
            lm_head[...] = _normal(rng, self.W_E.shape, self.config.initializer_range)
        elif init == "zeros":
            lm_head[...] = 0
        else:
            raise ArgumentError(f'init must be "copy", "random" or "zeros", got {short_repr(init)}')
        return GPT2(self.config.with_head("untied"), {**self.parameters, "lm_head.weight": lm_head})

    def astype(self, dtype: Any) -> "GPT2":
        """This model computing in float32 or float64: the second is the referee of the first."""
        return GPT2(self.config, {name: array.astype(dtype) for name, array in self.parameters.items()})

    def _check_cache(self, ids: np.ndarray, cache: KVCache) -> None:
        """Whether `cache` is one of this model's, for so many sequences, with room for `ids` [B, T]."""
        ours = self.new_cache(cache.batch, 0)
        if cache.keys.dtype != ours.keys.dtype or cache.keys[..., :0, :].shape != ours.keys.shape:
            raise ArgumentError("the cache was made for another model: make one with this model's new_cache")
        B, T = ids.shape
        if cache.batch != B:
            raise ArgumentError(f"ids are {B} sequences, the cache holds {cache.batch}")
        if cache.length + T > min(cache.capacity, self.config.n_ctx):
            raise ArgumentError(
                f"{T} tokens after {cache.length} in the cache are more than its capacity of "
                f"{cache.capacity} and the context of {self.config.n_ctx} allow"
            )


def as_array(ids: Any) -> np.ndarray:
    """Lists of ids as an array. Raises ArgumentError for rows of different lengths."""
    try:
        return np.asarray(ids)
    except ValueError as error:
        raise ArgumentError(f"ids must be [T] or [B, T], and are neither: {error}") from error


def check_ids(ids: Any, config: Config) -> np.ndarray:
    """ids as an array, if a model of this configuration can read them. Raises ArgumentError."""
    array = as_array(ids)
    if array.size == 0 or array.ndim not in (1, 2):
        raise ArgumentError(f"ids must be [T] or [B, T] with at least one token, got shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"ids must be whole numbers, got {array.dtype}")
    V = config.vocab_size
    outside = array[(array < 0) | (array >= V)]
    if outside.size:  # NumPy would read a negative id from the end of wte
        raise ArgumentError(f"token id {outside[0]} is outside the vocabulary of {V} (0 to {V - 1})")
    if array.shape[-1] > config.n_ctx:
        raise ArgumentError(f"{array.shape[-1]} tokens are more than the context of {config.n_ctx}")
    return array


def _random_generator(seed: Any, stream: int = 0) -> np.random.Generator:
    if not is_count(seed):
        raise ArgumentError(f"seed must be a whole number of at least 0, got {short_repr(seed)}")
    return np.random.default_rng([seed, stream])


def _normal(rng: np.random.Generator, shape: tuple[int, ...], std: float) -> np.ndarray:
    return rng.standard_normal(shape, np.float32) * np.float32(std)
