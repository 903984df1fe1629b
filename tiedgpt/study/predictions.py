"""How a model predicts a token: its probability and rank, and the likeliest other tokens.

`lens` is the logit lens [nostalgebraist 2020]: the next token that each layer's residual stream
predicts. Every block adds to the same residual stream, so ln_f and the head can be applied after
any block:

    ln_f(resid) W_U     for resid = resid_pre.0 (the embeddings), resid_post.0, ..., resid_post.{L-1}

In a tied model the first row mostly predicts the current token again; the blocks turn this into the
next one.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ..gpt2.checks import check_prompt_ids
from ..gpt2.model import GPT2, transformer, unembed
from ..gpt2.ops import softmax
from ..gpt2.run import Edits, OnProgress, Run, Tape, in_each_layer
from ..gpt2.tokenizer import Tokenizer
from ..inference.evaluation import measure_rows, measure_tokens
from .paths import check_logits, final_norm, log_probabilities, top_k

# What no reader of a prompt's tape needs. Most of a tape's memory is in these.
UNREAD = tuple(f"attn.N.{name}" for name in ("in", "qkv", "q", "k", "v", "scores", "out"))
UNREAD += ("resid_mid.N", "mlp.N.in", "mlp.N.pre", "mlp.N.post")


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
    """How `logits` predict each of `tokens`, with k alternatives. Raises TiedGPTError for nan and
    inf."""
    log_p = log_probabilities(logits)
    likeliest = [
        (token, float(log_p[token])) for token in (top_k(log_p, k + 1).tolist() if k else ())
    ]
    predictions = []
    for token in map(int, tokens):
        rank = 1 + int(np.count_nonzero(log_p > log_p[token]))
        others = [other for other in likeliest if other[0] != token][:k]
        predictions.append(
            Prediction(token, float(logits[token]), float(log_p[token]), rank, others)
        )
    return predictions


def token_json(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    """A token of a model for a report; its text is None if it only pads the vocabulary."""
    text = tokenizer.token_text(token) if token < tokenizer.vocab_size else None
    return {"id": int(token), "token": text}


def prediction_json(tokenizer: Tokenizer, prediction: Prediction) -> dict[str, Any]:
    """A token that may come next, for a report."""
    numbers = {
        "probability": prediction.probability,
        "logit": prediction.logit,
        "rank": prediction.rank,
    }
    return {**token_json(tokenizer, prediction.token), **numbers}


def surprisal(log_probability: float) -> float:
    """-log2 of a probability, in bits."""
    return -log_probability / math.log(2)


def predicted_json(tokenizer: Tokenizer, prediction: Prediction, unit: str) -> dict[str, Any]:
    """A token that came next and the likeliest others, with log probabilities ("logprob") or
    "bits"."""

    def report(token: int, log_p: float) -> dict[str, Any]:
        return {**token_json(tokenizer, token), unit: surprisal(log_p) if unit == "bits" else log_p}

    others = [report(token, log_p) for token, log_p in prediction.alternatives]
    came = report(prediction.token, prediction.log_probability)
    return {**came, "rank": prediction.rank, "alternatives": others}


def last_logits(model: GPT2, ids: Any, edit: Edits | None = None) -> np.ndarray:  # [T] -> [V]
    """The logits of the token after a prompt. Raises ArgumentError for one that the model cannot
    read."""
    return unembed(model.final(check_prompt_ids(ids, model.config), edit=edit)[-1], model.W_U)


def last_tape(model: GPT2, ids: Any, n: int, progress: OnProgress = None) -> Tape:
    """The activations of the last n tokens of a prompt [T], of all if T <= n, without those of
    UNREAD.

    The tokens before are read into a cache, so that the memory does not grow with the square of T.
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
    """The k likeliest next tokens by each layer after each of `ids` [T], or only after the `last`
    ones.

    The last layer's are the model's own. `tape` has the activations of these tokens if the model
    has read them already (`last_tape`). Raises ArgumentError for ids that the model cannot read.
    """
    if tape is None:
        tape = last_tape(model, ids, last or model.config.n_ctx)
    streams = {"resid_pre.0": tape["embed"]}  # a model without layers records it as "embed" only
    streams |= {name: resid for name, resid in tape.items() if name.startswith("resid_post.")}
    shown = slice(0 if last is None else -last, None)
    resid = np.concatenate(
        [stream[0, shown] for stream in streams.values()]
    )  # the head is read once for all

    def likeliest(
        logits: np.ndarray, _: Any
    ) -> tuple[np.ndarray, np.ndarray]:  # [R, V] -> [R, k], [R, k]
        tokens = np.stack([top_k(row, k) for row in check_logits(logits)])
        return tokens, np.take_along_axis(softmax(logits, out=logits), tokens, axis=1)

    pieces = measure_rows(model, final_norm(model, resid), resid, likeliest)
    by_layer = (
        np.split(np.concatenate(column), len(streams)) for column in zip(*pieces, strict=True)
    )
    return [Layer(*layer) for layer in zip(streams, *by_layer, strict=True)]


def next_tokens(models: Sequence[GPT2], ids: Any, k: int) -> list[list[Prediction]]:
    """How each model predicts the tokens after a prompt [T] that are among the k likeliest of any
    model.

    All lists have the same tokens in the same order: by their best rank, the first model's first.
    """
    rows = [last_logits(model, ids) for model in models]
    by_rank = zip(*(top_k(logits, k).tolist() for logits in rows), strict=True)
    tokens = dict.fromkeys(chain.from_iterable(by_rank))
    return [predict(logits, tokens) for logits in rows]


def token_predictions(
    model: GPT2, ids: Any, stride: int, k: int, progress: OnProgress = None
) -> list[Prediction]:
    """The prediction of each token of a text [N] at evaluation.predicted_places, with k
    alternatives."""

    def measure(logits: np.ndarray, targets: np.ndarray) -> list[Prediction]:
        return [predict(row, [target], k)[0] for row, target in zip(logits, targets, strict=True)]

    return list(chain.from_iterable(measure_tokens(model, ids, stride, measure, progress)))
