"""What a model predicts after a prompt, and which of its parts say so.

A prediction of a token is its probability, its rank, and the likeliest other tokens.

`lens` is the logit lens [nostalgebraist 2020]: the next token that each layer's residual stream
predicts. Every block adds to the same residual stream, so ln_f and the head can be applied after
any block:

    ln_f(resid) W_U     for resid = resid_pre.0 (the embeddings), resid_post.0, resid_post.1, ...

In a tied model the first row mostly predicts the current token again; the blocks turn this into the
next one.

`attribute` says where a logit comes from. The residual stream is a sum. The embeddings begin it;
every head, every MLP and every bias adds a vector [D] to it. A token's logit is linear in this sum
once the standard deviation s of ln_f is held at its value:

    logit = ln_f(resid) . u          u = W_U[:, token]
          = resid . d + bias . u     d = (g - mean(g)) / s, with g = weight * u

weight and bias are the parameters of ln_f. For a difference of two logits, u is the difference of
their columns of W_U. (Subtracting the mean of resid is the same as subtracting the mean of g,
because mean(x) . g = x . mean(g).) So each part c contributes c . d, and the contributions add up
to the logit.

This is the direct effect of a part. What later layers do with it counts as their own part.
`ablation` removes a part and runs the rest of the model without it, so it shows both effects.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ..errors import ArgumentError, nearest_names, short_repr
from ..evaluation import measure_rows, measure_tokens
from ..generation import check_prompt_ids
from ..gpt2.checks import check_logits
from ..gpt2.config import Config
from ..gpt2.model import GPT2, transformer, unembed
from ..gpt2.ops import softmax
from ..gpt2.run import Edits, OnProgress, Run, Tape, in_each_layer
from .paths import final_norm, log_probabilities, top_k

# The kinds of activations that nothing here reads; N is a layer. They take most of a tape's memory.
UNREAD = (
    "attn.N.in",
    "attn.N.qkv",
    "attn.N.q",
    "attn.N.k",
    "attn.N.v",
    "attn.N.scores",
    "attn.N.out",
    "resid_mid.N",
    "mlp.N.in",
    "mlp.N.pre",
    "mlp.N.post",
)


@dataclass(frozen=True)
class Prediction:
    """The prediction of one token. Logarithms are natural."""

    token: int
    logit: float
    log_probability: float
    rank: int  # 1 is the likeliest token
    alternatives: list[tuple[int, float]]  # the likeliest other tokens and their log probabilities

    @property
    def probability(self) -> float:
        return math.exp(self.log_probability)


def predict(logits: np.ndarray, tokens: Iterable[int], k: int = 0) -> list[Prediction]:  # [V]
    """How `logits` predict each of `tokens`, with k alternatives.

    Raises TiedGPTError for logits that are not finite.
    """
    log_p = log_probabilities(check_logits(logits))
    likeliest = []
    if k > 0:
        # One more than k, because the token itself may be among them.
        for other in top_k(log_p, k + 1).tolist():
            likeliest.append((other, float(log_p[other])))

    predictions = []
    for token in tokens:
        alternatives = [(other, log_q) for other, log_q in likeliest if other != token]
        prediction = Prediction(
            token=int(token),
            logit=float(logits[token]),
            log_probability=float(log_p[token]),
            rank=1 + int(np.count_nonzero(log_p > log_p[token])),
            alternatives=alternatives[:k],
        )
        predictions.append(prediction)
    return predictions


def surprisal(log_probability: float) -> float:
    """-log2 of a probability, in bits."""
    return -log_probability / math.log(2)


def last_logits(model: GPT2, ids: Any, edit: Edits | None = None) -> np.ndarray:  # [T] -> [V]
    """The logits of the token after a prompt.

    Raises ArgumentError for a prompt that the model cannot read.
    """
    prompt = check_prompt_ids(ids, model.config)
    final = model.final(prompt, edit=edit)  # [T, D]
    return unembed(final[-1], model.W_U)


def last_tape(model: GPT2, ids: Any, n: int, progress: OnProgress = None) -> Tape:
    """The activations of the last n tokens of a prompt [T] that this package reads from a tape.

    All tokens are among the last n if T <= n. The tokens before are read into a cache, so that the
    memory does not grow with the square of T.
    """
    prompt = np.array(check_prompt_ids(ids, model.config))
    tape: Tape = {}
    cache = None
    if len(prompt) > n:
        cache = model.new_cache(capacity=len(prompt))
        model.final(prompt[:-n], cache, progress=progress)
    unrecorded = in_each_layer(UNREAD, model.config)
    run = Run(model.config, cache, tape, unrecorded=unrecorded)
    transformer(prompt[None, -n:], model.tree, run)
    return tape


@dataclass(frozen=True)
class Layer:
    """The predictions of one layer after each token of the prompt."""

    name: str  # as on the tape: "resid_post.0"
    tokens: np.ndarray  # [T, k], likeliest first
    probabilities: np.ndarray  # [T, k]


def lens(
    model: GPT2, ids: Any, k: int = 5, last: int | None = None, tape: Tape | None = None
) -> list[Layer]:
    """The k likeliest next tokens by each layer after each of `ids` [T], or after the `last` ones.

    The last layer's are the model's own. `tape` has the activations of these tokens if the model
    has read them already (`last_tape`). Raises ArgumentError for ids that the model cannot read.
    """
    if tape is None:
        # Without `last`, these are all tokens, because a prompt has at most n_ctx.
        tape = last_tape(model, ids, last or model.config.n_ctx)
    streams = residual_streams(tape)
    first_shown = 0
    if last is not None:
        first_shown = -last  # the tape that is passed in may have more tokens
    shown = [stream[0, first_shown:] for stream in streams.values()]  # [T, D], of each layer

    # The tokens of all layers are rows of one matrix, so the output matrix is read once for all.
    resid = np.concatenate(shown)  # [layers * T, D]
    final = final_norm(model, resid)

    def measure(logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return likeliest(logits, k)

    # measure_rows passes a target with each row, which `measure` above does not use.
    no_targets = np.zeros(len(final), np.int64)
    pieces = measure_rows(model, final, no_targets, measure)
    tokens = np.concatenate([piece_tokens for piece_tokens, _ in pieces])  # [layers * T, k]
    probabilities = np.concatenate([piece_probabilities for _, piece_probabilities in pieces])

    # The first T rows are the tokens of the first layer, the next T of the second, and so on.
    layers = []
    T = len(shown[0])
    for number, name in enumerate(streams):
        rows = slice(number * T, (number + 1) * T)
        layers.append(Layer(name, tokens[rows], probabilities[rows]))
    return layers


def residual_streams(tape: Tape) -> dict[str, np.ndarray]:
    """The residual stream [B, T, D] before the first block and after each one, by name."""
    streams = {"resid_pre.0": tape["embed"]}  # a model without layers records it as "embed" only
    for name, stream in tape.items():
        if name.startswith("resid_post."):
            streams[name] = stream
    return streams


def likeliest(  # [R, V] -> [R, k], [R, k]
    logits: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k likeliest tokens of each row, likeliest first, and their probabilities."""
    tokens = np.stack([top_k(row, k) for row in check_logits(logits)])
    probabilities = softmax(logits, out=logits)  # in their memory: they are not read again
    return tokens, np.take_along_axis(probabilities, tokens, axis=1)


def next_tokens(models: Sequence[GPT2], ids: Any, k: int) -> list[list[Prediction]]:
    """How each model predicts the tokens that are among the k likeliest of any of the models.

    `ids` [T] is the prompt. All lists have the same tokens in the same order: by their best rank,
    the first model's first.
    """
    logits_of_models = [check_logits(last_logits(model, ids)) for model in models]
    likeliest_of_models = [top_k(logits, k).tolist() for logits in logits_of_models]
    tokens_by_rank: list[int] = []
    for tokens_of_one_rank in zip(*likeliest_of_models, strict=True):
        tokens_by_rank.extend(tokens_of_one_rank)
    tokens = list(dict.fromkeys(tokens_by_rank))  # each token once, at its best rank
    return [predict(logits, tokens) for logits in logits_of_models]


def token_predictions(
    model: GPT2, ids: Any, stride: int, k: int, progress: OnProgress = None
) -> list[Prediction]:
    """The prediction of each token of a text [N] that a score predicts, with k alternatives.

    The model reads the text in windows of its context, which begin `stride` tokens apart. A token
    is predicted once, if it is not the first token of every window that it is in.
    """

    def measure(logits: np.ndarray, targets: np.ndarray) -> list[Prediction]:  # [R, V], [R]
        predictions = []
        for row, target in zip(logits, targets, strict=True):
            predictions += predict(row, [target], k)
        return predictions

    pieces = measure_tokens(model, ids, stride, measure, progress)
    return list(chain.from_iterable(pieces))


# The parts of a logit


def attribute(
    model: GPT2, ids: Any, token: int, against: int | None = None, tape: Tape | None = None
) -> dict[str, float]:
    """What each part of the model adds to the logit of `token` after a prompt `ids` [T].

    With `against`, it is the logit of `token` less that of `against`. The parts are in the order of
    the forward pass: wte, wpe; for each layer N attn.N.head.0, attn.N.head.1, ..., attn.N.bias,
    mlp.N, mlp.N.bias (the biases are those of c_proj); and ln_f.bias. tape: the activations of the
    last token, if the model has read the prompt. Raises ArgumentError for a prompt or a token that
    the model cannot read.
    """
    u = unembedding_of(model, token)
    if against is not None:
        u = u - unembedding_of(model, against)

    if tape is None:
        tape = last_tape(model, ids, n=1)  # of the last token only; it checks the ids
    *_, last_stream = residual_streams(tape).values()  # after the last block
    resid = last_stream[0, -1].astype(np.float64)  # [D], the input of ln_f
    g = model.parameters["ln_f.weight"] * u
    d = (g - g.mean()) / math.sqrt(resid.var() + model.config.layer_norm_epsilon)

    # The last token's two embeddings, then what each layer adds
    parts = {"wte": model.W_E[ids[-1]] @ d}
    parts["wpe"] = model.parameters["wpe.weight"][len(ids) - 1] @ d
    for layer, block in enumerate(model.tree["h"]):
        attn_proj = block["attn"]["c_proj"]
        mlp_proj = block["mlp"]["c_proj"]
        heads = tape[f"attn.{layer}.heads"][0, :, -1]  # [H, K], of the last token
        # c_proj multiplies the heads' outputs, one after the other. So each head has K of its rows.
        directions = (attn_proj["weight"] @ d).reshape(heads.shape)  # [H, K]
        head_parts = (heads * directions).sum(axis=1)  # [H]
        for head, part in enumerate(head_parts):
            parts[f"attn.{layer}.head.{head}"] = part
        parts[f"attn.{layer}.bias"] = attn_proj["bias"] @ d
        mlp_out = tape[f"mlp.{layer}.out"][0, -1]  # [D], with the bias
        parts[f"mlp.{layer}"] = (mlp_out - mlp_proj["bias"]) @ d
        parts[f"mlp.{layer}.bias"] = mlp_proj["bias"] @ d
    parts["ln_f.bias"] = model.parameters["ln_f.bias"] @ u
    return {name: float(part) for name, part in parts.items()}


def unembedding_of(model: GPT2, token: int) -> np.ndarray:  # -> [D] float64
    """The token's column of W_U. Raises ArgumentError for a token that is not in the vocabulary."""
    [token] = check_prompt_ids([token], model.config)
    return model.W_U[:, token].astype(np.float64)


def ablation(config: Config, names: Iterable[str]) -> Edits:
    """Edits that set parts of the model to 0, for `model(ids, edit=...)`.

    Names: attn.N.head.H, attn.N and mlp.N, the last two with c_proj's bias. Raises ArgumentError
    for others.
    """
    # The name of a part -> the activation that it is in, and its place on axis 1 there
    removable: dict[str, tuple[str, int | slice]] = {}
    for layer in range(config.n_layer):
        # These activations are [B, T, D]: the part has all places on axis 1.
        removable[f"attn.{layer}"] = (f"attn.{layer}.out", slice(None))
        removable[f"mlp.{layer}"] = (f"mlp.{layer}.out", slice(None))
        for head in range(config.n_head):  # a head has one place, on axis 1 of [B, H, T, K]
            removable[f"attn.{layer}.head.{head}"] = (f"attn.{layer}.heads", head)

    places_by_activation = defaultdict(list)  # several heads of a layer are in one activation
    for name in names:
        if name not in removable:
            alike = nearest_names(name, removable) or "none, for it has no layers"
            raise ArgumentError(
                f"{short_repr(name)} is not a part that can be removed; the nearest are {alike}"
            )
        activation, place = removable[name]
        places_by_activation[activation].append(place)
    return {
        activation: partial(set_to_zero, places)
        for activation, places in places_by_activation.items()
    }


def set_to_zero(places: list[int | slice], x: np.ndarray) -> np.ndarray:  # [B, ...] -> [B, ...]
    """An edit: set these places on axis 1 to 0. `x` is a copy that the edit may change."""
    for place in places:
        x[:, place] = 0
    return x
