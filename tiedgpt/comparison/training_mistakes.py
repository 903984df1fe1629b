"""The well-known mistakes around a forward pass: a batch, a KV cache, gradients, a step of AdamW.

A function that returns Results is such a list: it yields what is right, then what comes of each
mistake, with the sentence on it. To add a mistake, add a `yield`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ..gpt2.backward import loss_and_gradients
from ..gpt2.model import GPT2, Array
from ..gpt2.ops import softmax
from .mistakes import embedding_at, hide, is_later, mistakes_in, positions
from .places import Mistake, Place, Wrong, compute_activations, trials_in_all_layers

RIGHT = ""  # the sentence of what is right, the first result of each list
Results = Iterator[tuple[str, Array]]
PADDINGS = (0, -1)  # the first and the last token of the vocabulary


def pattern_without(  # -> [B, H, T, T]
    at: Place, start: int, end: Array | float, first_query: int = 0
) -> Array:
    """The pattern if tokens do not see those from `start` to before `end`, but each sees itself.

    end: a number, or one for each text, [B, 1, 1, 1]. first_query: tokens before it see all.
    """
    T = at.x.shape[-1]
    query, key = np.mgrid[:T, :T]
    is_lost = (query >= first_query) & (key >= start) & (key < end)
    return softmax(hide(at.x, (is_later(at.x) | is_lost) & (key != query)))


# A batch of texts of unequal lengths


def batch_results(model: GPT2, texts: list[list[int]]) -> Results:  # of [B, V]
    """The logits after the last token of each text. The right ones are those of a text alone."""
    yield RIGHT, np.array([model(text)[-1] for text in texts])

    lengths = np.array([len(text) for text in texts])
    T = lengths.max()
    for padding in PADDINGS:
        token = padding % model.config.vocab_size
        padded = np.array([text + [token] * (T - len(text)) for text in texts])
        yield (
            "yours takes the logits of the last column, which is padding in a shorter text",
            model(padded)[:, -1],
        )
        left_padded = np.array([[token] * (T - len(text)) + text for text in texts])
        ways: dict[str, dict[str, Wrong]] = {
            "pads on the left, and tokens see the padding": {
                # Positions begin at each text's first token.
                "embed": lambda at: embedding_at(
                    at, (positions(at) - (T - lengths)[:, None]).clip(0)
                )
            },
            "pads on the left, and counts positions from the padding": {
                # No token sees the padding.
                f"attn.{layer}.pattern": partial(
                    pattern_without, start=0, end=(T - lengths)[:, None, None, None]
                )
                for layer in range(model.config.n_layer)
            },
            # This is what a GPT-2 without a mistake makes of the padded ids.
            "pads on the left, sees the padding, and counts positions from it": {},
        }
        for sentence, planted in ways.items():
            tape = compute_activations(model, left_padded, given={}, planted=planted)
            yield f"yours {sentence}", tape["logits"][:, -1]


# Steps with a KV cache


def positions_of_new(at: Place, start: int, change: Callable[[Array], Array]) -> Array:
    """The embedding if the positions of the tokens after the prompt are changed."""
    places = positions(at)
    places[start:] = change(places[start:])
    return embedding_at(at, places.clip(0))


def mistakes_of_steps(start: int) -> list[Mistake]:
    """Mistakes that are made only after the prompt of `start` tokens, as with a KV cache."""
    mistakes = [
        Mistake(
            f"{sentence} in the steps after the prompt",
            {"embed": partial(positions_of_new, start=start, change=change)},
            only_everywhere=True,
        )
        for sentence, change in (
            ("gives every token position 0", np.zeros_like),
            ("counts positions from 0 again", lambda places: places - start),
            ("counts positions one too high", lambda places: places + 1),
            ("counts positions one too low", lambda places: places - 1),
        )
    ]
    for sentence, first_seen in (
        ("does not see the tokens before it", 0),
        ("does not see the tokens between the prompt and itself", start),
    ):
        mistakes.append(
            Mistake(
                f"has steps after the prompt in which a token {sentence}",
                {
                    "attn.N.pattern": partial(
                        pattern_without, start=first_seen, end=np.inf, first_query=start
                    )
                },
                only_everywhere=True,
            )
        )
    return mistakes


def step_results(model: GPT2, prompt: list[int], next_ids: list[int]) -> Results:  # of [N, V]
    """The logits of tokens that are read one after the other, after a prompt."""
    start = len(prompt)
    ids = np.array([[*prompt, *next_ids]])
    logits = model(ids)[0]
    yield RIGHT, logits[start:]

    names = list(compute_activations(model, ids, given={}, planted={}))
    mistakes = [*mistakes_of_steps(start), *mistakes_in(model.config.n_layer)]
    for trial in trials_in_all_layers(mistakes, names):
        tape = compute_activations(model, ids, {}, trial.planted)
        yield trial.line, tape["logits"][0, start:]
    yield "yours has the logits of the token before each step", logits[start - 1 : -1]
    twice = model([*prompt, prompt[-1], *next_ids])
    yield "yours reads the last token of the prompt twice", twice[start + 1 :]
    without = model([*prompt[:-1], *next_ids])
    yield "yours does not read the last token of the prompt", without[start - 1 :]


# Gradients


def gradient_of(model: GPT2, parameter: str, ids: Any, targets: Any) -> Array:
    _, gradients = loss_and_gradients(model, np.array(ids), np.array(targets))
    return gradients[parameter]


def gradient_results(model: GPT2, parameter: str, ids: Any, targets: Any) -> Results:
    """The gradient of the mean loss, of wte or of lm_head."""
    right = gradient_of(model, parameter, ids, targets)
    yield RIGHT, right

    n = np.array(ids).size
    yield (
        f"yours is {n} times as large: of the sum of the {n} losses, not of their mean",
        right * n,
    )
    yield "yours is 0: nothing flows to it", 0 * right
    yield "yours has the other sign", -right

    # An untied model has an array for each of the two parts of a tied wte's gradient.
    is_tied = model.config.tied
    apart = model.untie("copy") if is_tied else model
    of_lookup = gradient_of(apart, "wte.weight", ids, targets)
    of_head = gradient_of(apart, "lm_head.weight", ids, targets)
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
        is_used = np.isin(np.arange(len(right)), np.array(ids))[:, None]
        yield "yours is 0 in the rows of tokens that are not in the text", right * is_used


def last_lookup(model: GPT2, ids: Any, targets: Any) -> Array:  # -> [V, D]
    """The gradient of wte if the row of a token is set by each lookup, not added to."""
    gradient = np.zeros_like(model.W_E, dtype=np.float64)
    for text, its_targets in zip(ids, targets, strict=True):
        # Each token of one text has a position of its own, whose gradient is that of the lookup.
        by_place = gradient_of(model, "wpe.weight", text, its_targets)
        for place, token in enumerate(text):
            gradient[token] = by_place[place] / len(ids)  # the mean over all texts
    return gradient


# AdamW


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


def adamw_results(parameter: Array, gradient: Array, settings: dict[str, float]) -> Results:
    """The parameter after the first step of AdamW. Matrices decay, and nothing else does."""
    is_matrix = parameter.ndim > 1
    right = partial(step, settings=settings, decays=is_matrix)
    yield RIGHT, right(parameter, gradient)

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
