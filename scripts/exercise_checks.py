"""The checks of the twelve exercises in exercises.md.

CHECKS has them by number. A check calls the reader's functions through `Mine`, and raises Wrong if
one of them is wrong. Some compare arrays (check_numbers); the others put the reader's function into
a forward pass of a small random model, and look for the mistake as `tiedgpt.compare` does
(check_in_model).

For that, a function such as `heads(at)` computes an activation of the model with the reader's
function. `at` is the place of this activation in the forward pass (comparison/places.py):

    at.x                        the activation that this one is computed from
    at.right                    what the model itself computes here
    at["attn.N.in"]             an earlier activation of the same layer, whose number N stands for
    at["h.N.attn.c_attn.bias"]  a parameter of this layer

The kind of an activation is its name with N for the number of its layer. The checks in the model
read one text, so an activation is [B, ...] with B = 1; the reader's functions know no axis B.
Shapes: T tokens, V tokens of vocabulary, D numbers for each token, H heads of K = D / H numbers.

`wrong_results` are the results of known mistakes: what is said of a mistake -> its result.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tiedgpt import GPT2
from tiedgpt.comparison.compare import no_progress
from tiedgpt.comparison.conventions import shape_error
from tiedgpt.comparison.diagnosis import diagnose
from tiedgpt.comparison.mistakes import mistakes_in
from tiedgpt.comparison.places import (
    Comparison,
    Mistake,
    Place,
    ReportRow,
    compute_activations,
    distance,
    kind_of,
)
from tiedgpt.errors import did_you_mean, short_repr
from tiedgpt.gpt2.model import causal_mask
from tiedgpt.gpt2.ops import cross_entropy, layer_norm_backward, softmax
from tiedgpt.gpt2.run import BLOCK_SHAPES, activation_shapes
from tiedgpt.testing import TINY, random_model

Array = np.ndarray
Compute = Callable[[Place], Array]  # from a place to its activation
# The ids of all checks in a model, one sequence [1, T]
IDS = np.random.default_rng(0).integers(TINY.vocab_size, size=(1, 21))
NO_KNOWN_MISTAKE = "this is none of the known mistakes"


class Wrong(Exception):
    """A function of the reader's is wrong. The message is one line or more."""


class Mine:
    """The reader's functions. `file` is where they are, for messages."""

    def __init__(self, names: Mapping[str, Any], file: str = "mine.py") -> None:
        self.functions = {name: value for name, value in names.items() if callable(value)}
        self.file = file

    def call(self, name: str, *arguments: Any) -> Any:
        """The result of the function `name`. Raises Wrong if it is not there or returns None.

        It gets read-only copies of arrays, so that it cannot change those of the check.
        """
        if name not in self.functions:
            hint = did_you_mean(name, self.functions)
            raise Wrong(f"{self.file} has no function {name}{hint}")
        copies = [read_only(argument) for argument in arguments]
        result = self.functions[name](*copies)
        if result is None:
            raise Wrong(f"{name} returned None: does it end with return?")
        return result

    def array(self, name: str, shape: tuple[int, ...], *arguments: Any) -> Array:
        """The result of the function `name`, an array of this shape. Raises Wrong for another."""
        return as_array(name, self.call(name, *arguments), shape)


def read_only(value: Any) -> Any:
    """A copy of an array that cannot be changed; another value as it is."""
    if isinstance(value, Array):
        value = value.copy()
        value.flags.writeable = False
    return value


def read_only_model(head: str = "tied") -> GPT2:
    """The small random model, with parameters that the reader's functions cannot change.

    Its epsilon is not GPT-2's 1e-5, so that a function that does not use the given one is wrong.
    """
    model = random_model(replace(TINY.with_head(head), layer_norm_epsilon=1e-4))
    return GPT2(model.config, {name: read_only(array) for name, array in model.parameters.items()})


def as_array(name: str, result: Any, shape: tuple[int, ...]) -> Array:
    """The result of the function `name` as an array of this shape. Raises Wrong."""
    try:
        array = np.asarray(result)
    except ValueError:  # lists of unequal lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "fiu":  # floats and integers
        raise Wrong(f"{name} returned {short_repr(result)}; expected an array of shape {shape}")
    if array.shape != shape:
        raise Wrong(str(shape_error(f"the result of {name}", array.shape, shape)))
    return array


def without_batch(activation: Array) -> Array:  # [1, ...] -> [...]
    """The activation of the only text."""
    return activation[0]


def parameters_of_layer(at: Place) -> dict[str, Any]:
    """The parameters of the layer of a place: {"ln_1": {"weight": array, "bias": array}, ...}."""
    parameters: dict[str, Any] = at.model.tree["h"][at.layer]
    return parameters


def number_at(name: str, index: Iterable[int], number: float | None, right: float | None) -> str:
    """The line of a message that tells a wrong number and the right one."""
    return f"{name}: {list(index)} is {number:.9g}, expected {right:.9g}"


def check_numbers(
    name: str, result: Array, right: Array, wrong_results: Mapping[str, Array]
) -> None:
    """Compare an array with the right one. If it differs, compare it with those of known mistakes.

    What is said of a mistake follows the word "yours". Raises Wrong.
    """
    tolerance = 1e-5 * np.abs(right).max()
    is_wrong = distance(name, result, right) > tolerance
    if not is_wrong.any():
        return
    first_wrong = int(is_wrong.argmax())  # the place of the first True in the flattened array
    index = np.unravel_index(first_wrong, is_wrong.shape)
    wrong_number = number_at(name, [int(n) for n in index], result[index], right[index])
    for sentence, wrong in wrong_results.items():
        if distance(name, result, wrong).max() <= tolerance:
            raise Wrong(f"{wrong_number}\nyours {sentence}")
    raise Wrong(f"{wrong_number}\n{NO_KNOWN_MISTAKE}")


def check_in_model(
    name: str,
    kinds: list[str],
    compute: Compute,
    source: str | None = None,
    ndim: int = 2,
    mistakes: Sequence[Mistake] = (),
) -> None:
    """Compare a forward pass that uses the reader's function `name` with one that does not.

    kinds: the activations that the function computes. compute: calls it for one of them, without
    the axis B. source: the kind that the function reads, if it is not the one just before. ndim:
    the number of axes of the function's result. mistakes: of this exercise alone. Raises Wrong.
    """
    model = read_only_model()
    names = [each for each in activation_shapes(model.config) if kind_of(each) in kinds]
    planted = dict.fromkeys(names, lambda at: compute(at)[None])  # [None] adds the axis B
    activations = compute_activations(model, IDS, given={}, planted=planted)
    if source is not None:
        # The reader's function has its own activations between its source and its result. Our model
        # cannot stand for them, so they are not compared.
        order = list(BLOCK_SHAPES)  # the kinds, in the order of the forward pass
        hidden = order[order.index(source) + 1 : order.index(kinds[0])]
        activations = {each: x for each, x in activations.items() if kind_of(each) not in hidden}
    comparison = Comparison(model, IDS, activations)
    rows, _ = comparison.rows(given={}, planted={})
    differing = [row for row in rows if row.differs]
    if not differing:
        return

    # The forward pass is wrong: which known mistake gives the same activations?
    tried = [*mistakes, *mistakes_in(model.config.n_layer)]
    diagnosis = diagnose(comparison, tried, no_progress, most_trials=None)
    raise Wrong("\n".join(lines_on(name, differing[0], ndim, diagnosis.sentences)))


def lines_on(name: str, first: ReportRow, ndim: int, sentences: list[str]) -> list[str]:
    """The first wrong number of a function's result, and what is said of the mistake.

    A sentence of the diagnosis is "mlp.0.post: yours is relu, in every layer". The reader has one
    function, so the place and the layers are left out, and what is then the same is said once.
    """
    assert first.first_wrong is not None
    # Drop the first axes, which the function's result lacks: B, and H if it computes a single head.
    index = first.first_wrong[-ndim:]
    lines = [number_at(name, index, first.yours, first.expected)]
    for sentence in sentences:
        _, _, mistake = sentence.partition(": ")
        lines.append(re.sub(r", (in every layer|everywhere)$", "", mistake))
    return list(dict.fromkeys(lines))


# Exercise 1

NEW_ID = 9  # what a pair becomes
MERGES = [  # ids, and the pair to merge in them
    ([5, 6, 7, 5, 6], (5, 6)),
    ([5], (5, 6)),
    ([], (5, 6)),
    ([6, 5, 5, 6, 6], (5, 6)),
    ([1, 2, 3], (5, 6)),
    # As a text, 15 ends with a 5 and 60 begins with a 6.
    ([15, 6, 5, 60, 5, 6], (5, 6)),
    # In these, pairs could overlap.
    ([5, 5, 5], (5, 5)),
    ([5, 5, 5, 5, 5, 5], (5, 5)),
    ([1, 5, 5, 5, 5, 5, 2], (5, 5)),
]


def merged(ids: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    """The right result: ids with each occurrence of the pair replaced, from left to right."""
    new_ids = []
    n = 0
    while n < len(ids):
        if tuple(ids[n : n + 2]) == pair:
            new_ids.append(new_id)
            n += 2
        else:
            new_ids.append(ids[n])
            n += 1
    return new_ids


def merged_with_overlaps(ids: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    new_ids = []
    for n in range(len(ids)):
        if tuple(ids[n : n + 2]) == pair:
            new_ids.append(new_id)
        else:
            new_ids.append(ids[n])
    return new_ids


def merged_from_the_right(ids: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    first, second = pair
    reversed_ids = ids[::-1]
    reversed_result = merged(reversed_ids, (second, first), new_id)
    return reversed_result[::-1]


def first_pair_merged(ids: list[int], pair: tuple[int, int], new_id: int) -> list[int]:
    for n in range(len(ids)):
        if tuple(ids[n : n + 2]) == pair:
            return ids[:n] + [new_id] + ids[n + 2 :]
    return ids


def check_merge(mine: Mine) -> None:
    for ids, pair in MERGES:
        given = list(ids)  # a copy, which the reader's function may change
        result = mine.call("merge", given, pair, NEW_ID)
        if not isinstance(result, list):
            raise Wrong(f"merge returned {short_repr(result)}; expected a list")
        is_changed = given != ids
        if is_changed or result is given:
            raise Wrong("merge changes the list that it gets, or returns it; expected a new list")
        expected = merged(ids, pair, NEW_ID)
        if result != expected:
            raise Wrong(
                f"merge({ids}, {pair}, {NEW_ID}) is {short_repr(result)}, expected {expected}\n"
                f"{mistake_in_merge(result, ids, pair)}"
            )


def mistake_in_merge(result: list[int], ids: list[int], pair: tuple[int, int]) -> str:
    """The sentence on the mistake that has this result, or NO_KNOWN_MISTAKE."""
    right = merged(ids, pair, NEW_ID)
    wrong_results = {
        "yours merges from right to left": merged_from_the_right(ids, pair, NEW_ID),
        "yours lets pairs overlap": merged_with_overlaps(ids, pair, NEW_ID),
        "yours loses the last token": right[:-1],
        "yours merges nothing": ids,
        "yours merges the first pair only": first_pair_merged(ids, pair, NEW_ID),
    }
    for sentence, wrong in wrong_results.items():
        if result == wrong:
            return sentence
    return NO_KNOWN_MISTAKE


# Exercise 2


def check_layer_norm(mine: Mine) -> None:
    def normed(at: Place) -> Array:
        x = without_batch(at.x)
        return mine.array("layer_norm", x.shape, x, at.weight, at.bias, at.eps)

    check_in_model("layer_norm", ["attn.N.in", "mlp.N.in", "final"], normed)


# Exercise 3


def check_softmax_and_cross_entropy(mine: Mine) -> None:
    def pattern(at: Place) -> Array:
        scores = without_batch(at["attn.N.scores"])  # [H, T, T]
        T = scores.shape[-1]
        masked_scores = scores + causal_mask(T, scores.dtype)
        return mine.array("softmax", scores.shape, masked_scores)

    check_softmax_of_large_numbers(mine)
    check_in_model("softmax", ["attn.N.pattern"], pattern, ndim=3)

    T = 9
    V = 31
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((T, V))
    targets = rng.integers(V, size=T)
    targets[0] = logits[0].argmax()  # so that one loss is small, even of large numbers
    check_cross_entropy(mine, "cross_entropy", logits, targets)
    check_cross_entropy(mine, "cross_entropy of large numbers", 1000 * logits, targets)


def check_softmax_of_large_numbers(mine: Mine) -> None:
    """Check numbers whose exponentials are inf or 0, unless the maximum is subtracted before."""
    large = np.array([[1000.0, 999.0, -np.inf], [-1000.0, -1000.0, -1001.0]])
    too_large = np.exp(large)
    powers = np.exp(large - large.max(axis=-1, keepdims=True))
    wrong_results = {
        "does not subtract the maximum before exp": too_large / too_large.sum(-1, keepdims=True),
        "is over axis 0, not over the last axis": softmax(large.T).T,
        "divides by the sum over axis 0, not over the last axis": powers / powers.sum(axis=0),
    }
    result = mine.array("softmax", large.shape, large)
    check_numbers("softmax of large numbers", result, softmax(large), wrong_results)


def check_cross_entropy(mine: Mine, name: str, logits: Array, targets: Array) -> None:
    """Check the losses of logits [T, V] and targets [T]. name: what messages call this case."""
    right = cross_entropy(logits, targets)
    rows = np.arange(len(targets))
    target_logits = logits[rows, targets]
    target_probabilities = softmax(logits)[rows, targets]
    sums_of_exponentials = np.exp(logits).sum(axis=-1)
    wrong_results = {
        "lacks the minus sign": -right,
        "is in bits, not in nats": right / np.log(2),
        "is minus the logit of the target": -target_logits,
        "is the probability of the target": np.exp(-right),
        "is the mean": np.full_like(right, right.mean()),
        "is the log of softmax, which rounds to 0": -np.log(target_probabilities),
        "does not subtract the maximum before exp": np.log(sums_of_exponentials) - target_logits,
    }
    result = mine.array("cross_entropy", right.shape, logits, targets)
    check_numbers(name, result, right, wrong_results)


# Exercises 4 and 5


def check_head(mine: Mine) -> None:
    def heads(at: Place) -> Array:
        """The outputs of all heads, [H, T, K]. The reader's function computes one of them."""
        x = without_batch(at["attn.N.in"])  # [T, D]
        T = len(x)
        K = at.K
        W_q, W_k, W_v = np.split(at["h.N.attn.c_attn.weight"], 3, axis=1)  # each [D, D]
        b_q, b_k, b_v = np.split(at["h.N.attn.c_attn.bias"], 3)  # each [D]
        outputs = []
        for head in range(at.H):
            columns = slice(head * K, (head + 1) * K)  # those of this head
            output = mine.array(
                "head",
                (T, K),
                x,
                W_q[:, columns],
                b_q[columns],
                W_k[:, columns],
                b_k[columns],
                W_v[:, columns],
                b_v[columns],
            )
            outputs.append(output)
        return np.stack(outputs)

    check_in_model("head", ["attn.N.heads"], heads, source="attn.N.in")


def check_attention(mine: Mine) -> None:
    def out(at: Place) -> Array:
        x = without_batch(at["attn.N.in"])
        attn = parameters_of_layer(at)["attn"]
        return mine.array("attention", x.shape, x, attn["c_attn"], attn["c_proj"], at.H)

    check_in_model("attention", ["attn.N.out"], out, source="attn.N.in")


# Exercises 6 and 7


def check_gelu(mine: Mine) -> None:
    def post(at: Place) -> Array:
        x = without_batch(at.x)
        return mine.array("gelu", x.shape, x)

    check_in_model("gelu", ["mlp.N.post"], post)


def check_transformer_block(mine: Mine) -> None:
    def resid_post(at: Place) -> Array:
        # at.x would be resid_mid.N, but a whole block is computed from resid_pre.N.
        resid = without_batch(at["resid_pre.N"])
        block = parameters_of_layer(at)
        return mine.array("transformer_block", resid.shape, resid, block, at.H, at.eps)

    check_in_model("transformer_block", ["resid_post.N"], resid_post, source="resid_pre.N")


# Exercise 8


def check_output_matrix(mine: Mine) -> None:
    """Check both heads. The parameters have both matrices, so `tied` alone says which is meant."""
    parameters = read_only_model("untied").parameters
    check_one_head(mine, parameters, tied=True, name="wte.weight", other="lm_head.weight")
    check_one_head(mine, parameters, tied=False, name="lm_head.weight", other="wte.weight")


def check_one_head(
    mine: Mine, parameters: dict[str, Array], tied: bool, name: str, other: str
) -> None:
    """Check that W_U is a view of the transpose of the parameter `name`, not of `other`."""
    call = f"output_matrix(parameters, {tied})"
    right = parameters[name].T
    W_U = mine.array("output_matrix", right.shape, parameters, tied)
    if np.array_equal(W_U, parameters[other].T):
        raise Wrong(f"{call} is the transpose of {other}")
    reshaped = parameters[name].reshape(right.shape)
    check_numbers(call, W_U, right, {"is reshaped, not transposed": reshaped})
    if not np.shares_memory(W_U, right):
        raise Wrong(f"{call} is a copy; expected a view")


# Exercise 9

PIECES = np.array([7, 1, 1, 6, 1, 5])  # the lengths of the pieces in which a text comes


def check_cached_attention(mine: Mine) -> None:
    def out(at: Place) -> Array:
        """The output of attention. The reader's function gets one piece in a call."""
        x = without_batch(at["attn.N.in"])
        attn = parameters_of_layer(at)["attn"]
        c_attn = attn["c_attn"]
        c_proj = attn["c_proj"]
        cache: dict[Any, Any] = {}  # the reader's function fills it
        outputs = []
        ends = np.cumsum(PIECES)
        for piece in np.split(x, ends[:-1]):  # np.split takes the places where to cut
            output = mine.array("cached_attention", piece.shape, piece, c_attn, c_proj, at.H, cache)
            outputs.append(output)
        return np.concatenate(outputs)

    mistakes = []
    for sentence, is_visible in visible_with_wrong_caches().items():
        pattern = partial(pattern_with, is_visible)
        mistakes.append(Mistake(sentence, {"attn.N.pattern": pattern}))
    check_in_model("cached_attention", ["attn.N.out"], out, source="attn.N.in", mistakes=mistakes)


def pattern_with(is_visible: Array, at: Place) -> Array:
    """The pattern if the token of a row sees that of a column where this is True, [T, T]."""
    return softmax(np.where(is_visible, at["attn.N.scores"], -np.inf))


def visible_with_wrong_caches() -> dict[str, Array]:
    """A mistake with a cache -> whether it lets the token of a row see that of a column, [T, T]."""
    T = PIECES.sum()
    is_past = np.tri(T, dtype=bool)  # [T, T], what the right mask lets a token see
    piece = np.repeat(np.arange(len(PIECES)), PIECES)  # [T], the number of each token's piece

    # How many pieces the column's token comes before the row's; negative if it comes later. The
    # tokens of its own piece are seen without the cache.
    pieces_before = piece[:, None] - piece  # [T, T]
    is_same_piece = pieces_before == 0
    is_in_first_piece = piece == 0  # [T], of the column

    # With a mask that begins anew in each piece, the first token of each piece gets the first row
    # of the mask, the second token the second row.
    starts = np.cumsum(PIECES) - PIECES  # of the pieces
    index_in_piece = np.arange(T) - starts[piece]  # [T]
    begins_anew = is_past[index_in_piece]
    return {
        "forgets the tokens before the piece": is_past & is_same_piece,
        "keeps the first piece only": is_past & (is_same_piece | is_in_first_piece),
        "keeps the last piece only": is_past & (pieces_before <= 1),
        "lets a token see the later ones of its piece": pieces_before >= 0,
        "has a mask that begins at position 0 in each piece": begins_anew,
    }


# Exercise 10


def check_top_p(mine: Mine) -> None:
    rng = np.random.default_rng(10)
    for p in (0.5, 0.9, 1.0, 0.01):  # with 1.0 all tokens are kept, with 0.01 one
        probabilities = softmax(rng.standard_normal(29))
        check_one_top_p(mine, probabilities, p)
    # Sums of these are exactly p. The token with which the sum reaches p is the last that is kept.
    exact = np.array([0.0625, 0.5, 0.125, 0.0625, 0.25])
    check_one_top_p(mine, exact, 0.5)
    check_one_top_p(mine, exact, 0.75)


def check_one_top_p(mine: Mine, probabilities: Array, p: float) -> None:
    """Check the probabilities [V] that are left by top-p with this p."""
    order = np.argsort(-probabilities)  # the tokens, the likeliest first
    rank = np.argsort(order)  # of each token, from 0 for the likeliest
    # A token is kept if the sum of the likelier ones has not reached p.
    ordered = probabilities[order]
    sums_of_likelier = np.cumsum(ordered) - ordered
    count = np.count_nonzero(sums_of_likelier < p)

    def divided(is_kept: Array) -> Array:
        """The probabilities if these tokens are kept; nan if none is."""
        kept = probabilities * is_kept
        return kept / kept.sum()

    right = divided(rank < count)  # the `count` likeliest tokens are kept
    wrong_results = {
        "does not divide by the sum": probabilities * (rank < count),
        "keeps all tokens": probabilities,
        "drops the token with which the sum reaches p": divided(rank < count - 1),
        "keeps a token too many": divided(rank <= count),
        "keeps the likeliest token only": divided(rank < 1),
        "keeps the tokens whose own probability is p or more": divided(probabilities >= p),
    }
    result = mine.array("top_p", probabilities.shape, probabilities, p)
    check_numbers(f"top_p(probabilities, {p})", result, right, wrong_results)


# Exercise 11


def check_layer_norm_backward(mine: Mine) -> None:
    T = 11
    D = 17
    eps = 0.1  # so large that it matters
    rng = np.random.default_rng(11)
    x = 3 + rng.standard_normal((T, D))
    dout = rng.standard_normal((T, D))
    weight = 2 + rng.standard_normal(D)

    result = mine.call("layer_norm_backward", dout, x, weight, eps)
    if not isinstance(result, tuple) or len(result) != 3:
        raise Wrong(f"layer_norm_backward returned {short_repr(result)}; expected 3 arrays")
    dx = as_array("layer_norm_backward[0]", result[0], (T, D))
    dweight = as_array("layer_norm_backward[1]", result[1], (D,))
    dbias = as_array("layer_norm_backward[2]", result[2], (D,))

    grad = {"weight": np.empty(D), "bias": np.empty(D)}  # layer_norm_backward fills it
    right_dx = layer_norm_backward(dout, x, weight, eps, grad)
    check_numbers("dx", dx, right_dx, wrong_dx(dout, x, weight, eps))

    s = np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    n = (x - x.mean(axis=-1, keepdims=True)) / s  # the normalised x
    wrong_results = {
        "takes x in place of the normalised x": (dout * x).sum(axis=0),
        "is that of the bias": grad["bias"],
        "is a mean over the tokens, not a sum": grad["weight"] / T,
        "lacks dout": n.sum(axis=0),
    }
    check_numbers("dweight", dweight, grad["weight"], wrong_results)
    wrong_results = {
        "is a mean over the tokens, not a sum": grad["bias"] / T,
        "has the weight in it": (dout * weight).sum(axis=0),
    }
    check_numbers("dbias", dbias, grad["bias"], wrong_results)


def wrong_dx(dout: Array, x: Array, weight: Array, eps: float) -> dict[str, Array]:
    """A known mistake -> the gradient of a layer norm's input that has it.

    The right one is (dn - through_mean - through_s) / s.
    """
    D = x.shape[-1]
    s = np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    n = (x - x.mean(axis=-1, keepdims=True)) / s
    dn = dout * weight
    through_mean = dn.mean(axis=-1, keepdims=True)
    through_s = n * (dn * n).mean(axis=-1, keepdims=True)
    ones = np.ones(D)
    # layer_norm_backward writes the gradients of the weight and the bias here.
    unused = {"weight": np.empty(D), "bias": np.empty(D)}
    return {
        "lacks the gradient through the standard deviation": (dn - through_mean) / s,
        "lacks the gradient through the mean": (dn - through_s) / s,
        "lacks the gradients through the mean and the standard deviation": dn / s,
        "is not divided by the standard deviation": dn - through_mean - through_s,
        "is divided by the variance": (dn - through_mean - through_s) / s**2,
        "lacks eps": layer_norm_backward(dout, x, weight, 0.0, unused),
        "lacks the weight": layer_norm_backward(dout, x, ones, eps, unused),
    }


# Exercise 12


def check_tied_gradient(mine: Mine) -> None:
    T = 13
    D = 7
    V = 11  # fewer than T, so some tokens occur several times
    rng = np.random.default_rng(12)
    ids = rng.integers(V, size=T)
    dresid = rng.standard_normal((T, D))
    final = rng.standard_normal((T, D))
    dlogits = rng.standard_normal((T, V))

    # The tied matrix gets the sum of two gradients. That of the embedding adds up, for each token,
    # all places where it occurs.
    of_head = dlogits.T @ final
    of_embedding = np.zeros((V, D))
    np.add.at(of_embedding, ids, dresid)

    one_of_embedding = np.zeros((V, D))
    one_of_embedding[ids] = dresid  # the last one of a token counts
    overwritten = of_head.copy()
    overwritten[ids] = dresid
    wrong_results = {
        "adds one gradient only for a token that occurs several times": of_head + one_of_embedding,
        "lacks the gradient of the embedding": of_head,
        "lacks the gradient of the output matrix": of_embedding,
        "lacks the gradient of the output matrix, and has one gradient only for a repeated token": (
            one_of_embedding
        ),
        "overwrites the gradient of the output matrix with that of the embedding": overwritten,
        "subtracts the two gradients": of_head - of_embedding,
        "is the mean of the two gradients, not their sum": (of_head + of_embedding) / 2,
    }
    result = mine.array("tied_gradient", (V, D), ids, dresid, final, dlogits)
    check_numbers("tied_gradient", result, of_head + of_embedding, wrong_results)


CHECKS: dict[int, Callable[[Mine], None]] = {
    1: check_merge,
    2: check_layer_norm,
    3: check_softmax_and_cross_entropy,
    4: check_head,
    5: check_attention,
    6: check_gelu,
    7: check_transformer_block,
    8: check_output_matrix,
    9: check_cached_attention,
    10: check_top_p,
    11: check_layer_norm_backward,
    12: check_tied_gradient,
}
