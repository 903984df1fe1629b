"""The well-known mistakes around a forward pass: a batch, a KV cache, gradients, a step of AdamW.

For each there is what is right, and the wrong results, each with what follows "yours".
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ..gpt2.backward import loss_and_gradients
from ..gpt2.model import GPT2, Array
from ..gpt2.ops import softmax
from .mistakes import embedding_at, hide, is_later, positions
from .places import Place, Wrong, compute_activations

PADDINGS = (0, -1)  # the first and the last token of the vocabulary


# A batch of texts of unequal lengths


def last_of_each(model: GPT2, texts: list[list[int]]) -> Array:  # -> [B, V]
    """The logits after the last token of each text, which is read alone."""
    return np.array([model(text)[-1] for text in texts])


def left_padded(texts: list[list[int]], padding: int) -> Array:  # -> [B, T]
    T = max(len(text) for text in texts)
    return np.array([[padding] * (T - len(text)) + text for text in texts])


def own_positions(at: Place, lengths: Array) -> Array:  # -> [B, T, D]
    """The embedding with positions that begin at each text's first token."""
    T = at.ids.shape[1]
    places = positions(at) - (T - lengths)[:, None]  # [B, T]
    return embedding_at(at, places.clip(0))


def without_padding(at: Place, lengths: Array) -> Array:  # -> [B, H, T, T]
    """The pattern without the tokens before each text's first one."""
    T = at.x.shape[-1]
    key = np.arange(T)
    is_padding = key < (T - lengths)[:, None]  # [B, T]
    scores = np.where(is_padding[:, None, None, :], -np.inf, hide(at.x, is_later(at.x)))
    # A padding token sees itself, so that its pattern is no nan.
    scores = np.where(np.eye(T, dtype=bool), at.x, scores)
    return softmax(scores.astype(at.x.dtype))


def wrong_batches(model: GPT2, texts: list[list[int]]) -> Iterator[tuple[str, Array]]:
    lengths = np.array([len(text) for text in texts])
    T = lengths.max()
    for padding in PADDINGS:
        token = padding % model.config.vocab_size
        padded = np.array([text + [token] * (T - len(text)) for text in texts])
        yield (
            "yours takes the logits of the last column, which is padding in a shorter text",
            model(padded)[:, -1],
        )
        ids = left_padded(texts, token)
        ways: dict[str, dict[str, Wrong]] = {
            "pads on the left, and tokens see the padding": {
                "embed": partial(own_positions, lengths=lengths)
            },
            "pads on the left, and counts positions from the padding": {
                f"attn.{layer}.pattern": partial(without_padding, lengths=lengths)
                for layer in range(model.config.n_layer)
            },
            "pads on the left, sees the padding, and counts positions from it": {},
        }
        for sentence, planted in ways.items():
            tape = compute_activations(model, ids, given={}, planted=planted)
            yield f"yours {sentence}", tape["logits"][:, -1]


# Steps with a KV cache


def wrong_steps(model: GPT2, prompt: list[int], next_ids: list[int]) -> Iterator[tuple[str, Array]]:
    """Logits [N, V] of steps, wrong in ways that tokens.py has not."""
    before = model([*prompt, *next_ids])
    yield "yours has the logits of the token before each step", before[len(prompt) - 1 : -1]
    twice = model([*prompt, prompt[-1], *next_ids])
    yield "yours reads the last token of the prompt twice", twice[len(prompt) + 1 :]
    without = model([*prompt[:-1], *next_ids])
    yield "yours does not read the last token of the prompt", without[len(prompt) - 1 :]


# Gradients


def gradient_of(  # -> the shape of the parameter
    model: GPT2, parameter: str, ids: Any, targets: Any, dtype: type
) -> Array:
    _, gradients = loss_and_gradients(model.astype(dtype), np.array(ids), np.array(targets))
    return gradients[parameter]


def wrong_gradients(
    model: GPT2, parameter: str, ids: Any, targets: Any
) -> Iterator[tuple[str, Array]]:
    """Wrong gradients of wte or of lm_head."""
    gradient = gradient_of(model, parameter, ids, targets, np.float64)
    n = np.array(ids).size
    yield (
        f"yours is {n} times as large: of the sum of the {n} losses, not of their mean",
        (gradient * n),
    )
    yield "yours is 0: nothing flows to it", 0 * gradient
    yield "yours has the other sign", -gradient

    # An untied model has an array for each of the two parts of a tied wte's gradient.
    is_tied = model.config.tied
    apart = model.untie("copy") if is_tied else model
    of_lookup = gradient_of(apart, "wte.weight", ids, targets, np.float64)
    of_head = gradient_of(apart, "lm_head.weight", ids, targets, np.float64)
    if is_tied:
        yield "yours is that of the embedding, without the output matrix's", of_lookup
        yield "yours is that of the output matrix, without the embedding's", of_head
    else:
        other = of_head if parameter == "wte.weight" else of_lookup
        yield "yours is that of the other matrix", other
        yield (
            "yours is the sum of both matrices' gradients, as if they were tied",
            (of_lookup + of_head),
        )
    if parameter == "wte.weight":
        last = last_lookup(apart, ids, targets)
        if is_tied:
            last = last + of_head
        yield "yours has one lookup of each token, the last: rows are set, not added", last
    if is_tied or parameter == "lm_head.weight":
        is_used = np.isin(np.arange(len(gradient)), np.array(ids))[:, None]
        yield "yours is 0 in the rows of tokens that are not in the text", gradient * is_used


def last_lookup(model: GPT2, ids: Any, targets: Any) -> Array:  # -> [V, D]
    """The gradient of wte if the row of a token is set by each lookup, not added to."""
    gradient = np.zeros_like(model.W_E, dtype=np.float64)
    for text, its_targets in zip(ids, targets, strict=True):
        # Each token of one text has a position of its own, whose gradient is that of the lookup.
        by_place = gradient_of(model, "wpe.weight", text, its_targets, np.float64)
        for place, token in enumerate(text):
            gradient[token] = by_place[place] / len(ids)  # the mean over all texts
    return gradient


# AdamW


def after_step(parameter: Array, gradient: Array, settings: dict[str, float]) -> Array:
    """The parameter after the first step of AdamW. Matrices decay, and nothing else does."""
    return step(parameter, gradient, settings, decays=parameter.ndim > 1)


def step(
    parameter: Array,
    gradient: Array,
    settings: dict[str, float],
    decays: bool,
    corrects: bool = True,
    eps_inside: bool = False,
) -> Array:
    m = (1 - settings["beta1"]) * gradient
    v = (1 - settings["beta2"]) * gradient * gradient
    if corrects:
        m = m / (1 - settings["beta1"])
        v = v / (1 - settings["beta2"])
    if eps_inside:
        change = m / np.sqrt(v + settings["eps"])
    else:
        change = m / (np.sqrt(v) + settings["eps"])
    decay = settings["weight_decay"] if decays else 0.0
    return parameter - settings["lr"] * decay * parameter - settings["lr"] * change


def wrong_updates(
    parameter: Array, gradient: Array, settings: dict[str, float]
) -> Iterator[tuple[str, Array]]:
    is_matrix = parameter.ndim > 1
    right = partial(step, settings=settings, decays=is_matrix)
    yield "yours is as it was: no step is made", parameter
    yield "yours lacks the weight decay", step(parameter, gradient, settings, decays=False)
    yield (
        "yours decays biases and layer norms, too",
        step(parameter, gradient, settings, decays=True),
    )
    with_decay = gradient + settings["weight_decay"] * parameter
    yield (
        "yours adds the weight decay to the gradient (L2), as Adam does",
        step(parameter, with_decay, settings, decays=False),
    )
    yield "yours lacks the bias correction", right(parameter, gradient, corrects=False)
    yield "yours has eps inside the root", right(parameter, gradient, eps_inside=True)
    yield (
        "yours makes two steps, as if the matrix were in the optimizer twice",
        right(right(parameter, gradient), gradient),
    )
    yield "yours goes up the gradient", right(parameter, -gradient)
    decay = settings["weight_decay"] if is_matrix else 0.0
    plain = parameter * (1 - settings["lr"] * decay) - settings["lr"] * gradient
    yield "yours is a step of plain gradient descent", plain
