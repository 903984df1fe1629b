"""Twelve exercises: write GPT-2's functions yourself and find out what is wrong with them.

  python scripts/exercises.py             list the exercises
  python scripts/exercises.py 4           print one (all are in scripts/exercises.md)
  python scripts/exercises.py 4 mine.py   check the functions in mine.py

The exit code is 0 if they are right, 1 if they are wrong, 2 if they cannot be run, 130 after
Ctrl-C.
"""

import argparse
import difflib
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from tiedgpt import GPT2, compare
from tiedgpt.comparison.compare import distance, forward
from tiedgpt.comparison.conventions import shape_error
from tiedgpt.comparison.mistakes import Place, kind_of
from tiedgpt.errors import one_line, short_repr
from tiedgpt.gpt2.model import causal_mask, linear, merge_heads
from tiedgpt.gpt2.ops import cross_entropy, layer_norm_backward, softmax
from tiedgpt.gpt2.run import BLOCK_SHAPES, activation_shapes
from tiedgpt.testing import TINY, random_model

Array = np.ndarray
PAGE = Path(__file__).with_name("exercises.md")
RNG = np.random.default_rng(0)
IDS = RNG.integers(TINY.vocab_size, size=(1, 21))
NONE = "this is none of the known mistakes"
Compute = Callable[[Place], Array]  # what is before an activation -> the activation [T, ...]
Check = Callable[["Mine"], None]
H, EPS = TINY.n_head, TINY.layer_norm_epsilon
PIECES = (7, 1, 1, 6, 1, 5)  # the lengths of the texts that come one after the other in exercise 9


class Wrong(Exception):
    """A function of the reader's is wrong. The message is one line or more."""


class Unknown(Wrong):
    """No known mistake gives the same numbers."""


class Mine:
    """The reader's file."""

    def __init__(self, file: str, code: CodeType) -> None:
        self.file, self.names = file, {"__name__": "mine", "__file__": file}
        exec(code, self.names)

    def call(self, name: str, *arguments: Any) -> Any:
        """The result of the function `name`. Arrays among the arguments are read-only copies."""
        functions = {key: value for key, value in self.names.items() if callable(value)}
        if name not in functions:
            near = difflib.get_close_matches(name, functions, n=1)
            raise Wrong(
                f"{self.file} has no function {name}{f'; did you mean {near[0]}?' if near else ''}"
            )
        result = functions[name](*map(read_only, arguments))
        if result is None:
            raise Wrong(f"{name} returned None: does it end with return?")
        return result

    def array(self, name: str, shape: tuple[int, ...], *arguments: Any) -> Array:
        return as_array(name, self.call(name, *arguments), shape)


def read_only(value: Any) -> Any:
    if isinstance(value, Array):
        value = value.copy()
        value.flags.writeable = False
    return value


def read_only_model(head: str = "tied") -> GPT2:
    model = random_model(TINY.with_head(head))
    return GPT2(model.config, {name: read_only(array) for name, array in model.parameters.items()})


def as_array(name: str, result: Any, shape: tuple[int, ...]) -> Array:
    try:
        array = np.asarray(result)
    except ValueError:  # lists of unequal lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "fiu":
        raise Wrong(f"{name} returned {short_repr(result)}; expected an array of shape {shape}")
    if array.shape != shape:
        raise Wrong(str(shape_error(f"the result of {name}", array.shape, shape)))
    return array


def place(name: str, index: Iterable[int], result: float, right: float) -> str:
    return f"{name}: {list(index)} is {result:.9g}, expected {right:.9g}"


def check_activations(
    name: str, theirs: dict[str, Compute], source: str = "", ndim: int = 2
) -> None:
    """Compare a forward pass that uses the reader's function `name` with one that does not.

    `theirs` computes kinds of activations from those before them. Kinds between `source`, which the
    function reads, and its result are hidden. The function's result has `ndim` axes, the last ones
    of the activation.
    """
    model = read_only_model()
    names = [name for name in activation_shapes(model.config) if kind_of(name) in theirs]
    tape = forward(
        model, IDS, {}, dict.fromkeys(names, lambda at: theirs[kind_of(at.name)](at)[None])
    )
    kinds = list(BLOCK_SHAPES)
    hidden = kinds[kinds.index(source) + 1 : kinds.index(min(theirs))] if source else ()
    report = compare(model, {key: x for key, x in tape.items() if kind_of(key) not in hidden}, IDS)
    if (first := report.first) and first.first_wrong is not None:
        lines = [place(name, first.first_wrong[-ndim:], first.yours or 0.0, first.expected or 0.0)]
        said = (sentence.partition(": ")[2] for sentence in report.diagnosis)
        said = (re.sub(r", (in every layer|everywhere)$", "", sentence) for sentence in said)
        raise Wrong("\n".join([*lines, *dict.fromkeys(said)]))


def check_numbers(name: str, result: Array, right: Array, mistakes: dict[str, Any]) -> None:
    """Compare an array with the right one; if it differs, with those of known mistakes."""
    tolerance = 1e-5 * np.abs(right).max()
    far = distance(name, result, right) > tolerance
    if far.any():
        index = np.unravel_index(int(far.argmax()), far.shape)
        first = place(name, map(int, index), result[index], right[index])
        for says, wrong in mistakes.items():
            if distance(name, result, wrong).max() <= tolerance:
                raise Wrong(f"{first}\nyours {says}")
        raise Unknown(f"{first}\n{NONE}")


def whole(
    name: str, kinds: list[str], arguments: Callable[[Place], list[Any]], source: str = ""
) -> Check:
    """The check of a function whose first argument is an activation, and whose result has its
    shape."""

    def check(mine: Mine) -> None:
        def compute(at: Place) -> Array:
            x, *rest = arguments(at)
            return mine.array(name, x[0].shape, x[0], *rest)

        check_activations(name, dict.fromkeys(kinds, compute), source)

    return check


def attention_inputs(at: Place) -> list[Any]:
    attn = at.model.tree["h"][at.layer]["attn"]
    return [at["attn.N.in"], attn["c_attn"], attn["c_proj"], H]


def block_inputs(at: Place) -> list[Any]:
    return [at["resid_pre.N"], at.model.tree["h"][at.layer], H, EPS]


def softmax_and_loss(mine: Mine) -> None:
    def pattern(at: Place) -> Array:
        scores = at["attn.N.scores"][0]  # [H, T, T]
        scores = scores + causal_mask(scores.shape[-1], scores.dtype)
        return mine.array("softmax", scores.shape, scores)

    large = np.array([[1000.0, 999.0, -np.inf], [-1000.0, -1000.0, -1001.0]])
    e, shifted = np.exp(large), np.exp(large - large.max(axis=-1, keepdims=True))
    known = {
        "does not subtract the maximum before exp": e / e.sum(axis=-1, keepdims=True),
        "is over axis 0, not over the last axis": softmax(large.T).T,
        "divides by the sum over axis 0, not over the last axis": shifted / shifted.sum(axis=0),
    }
    result = mine.array("softmax", large.shape, large)
    check_numbers("softmax of large numbers", result, softmax(large), known)
    check_activations("softmax", {"attn.N.pattern": pattern}, ndim=3)
    for name, scale in (("cross_entropy", 1.0), ("cross_entropy of large numbers", 1000.0)):
        logits, targets = scale * RNG.standard_normal((9, 31)), RNG.integers(31, size=9)
        right, at_target = cross_entropy(logits, targets), logits[np.arange(9), targets]
        known = {
            "lacks the minus sign": -right,
            "is in bits, not in nats": right / np.log(2),
            "is minus the logit of the target": -at_target,
            "is the probability of the target": np.exp(-right),
            "is the mean": right.mean(),
            "is the log of softmax, which rounds to 0": -np.log(
                softmax(logits)[np.arange(9), targets]
            ),
            "does not subtract the maximum before exp": np.log(np.exp(logits).sum(-1)) - at_target,
        }
        check_numbers(name, mine.array("cross_entropy", (9,), logits, targets), right, known)


def one_head(mine: Mine) -> None:
    def heads(at: Place) -> Array:
        (x,), weight, bias = (
            at["attn.N.in"],
            at["h.N.attn.c_attn.weight"],
            at["h.N.attn.c_attn.bias"],
        )
        columns = np.arange(weight.shape[1]).reshape(3, H, -1)  # of q, k and v of each head
        parts = (
            [part for n in columns[:, h] for part in (weight[:, n], bias[n])] for h in range(H)
        )
        return np.stack([mine.array("head", (len(x), TINY.head_width), x, *part) for part in parts])

    check_activations("head", {"attn.N.heads": heads}, "attn.N.in")


def the_switch(mine: Mine) -> None:
    """`parameters` has both matrices each time, so `tied` alone says which one is meant."""
    parameters = read_only_model("untied").parameters
    for tied in (True, False):
        call = f"output_matrix(parameters, {tied})"
        name, other = ("wte", "lm_head") if tied else ("lm_head", "wte")
        right = parameters[f"{name}.weight"].T
        W_U = mine.array("output_matrix", right.shape, parameters, tied)
        if np.array_equal(W_U, parameters[f"{other}.weight"].T):
            raise Wrong(f"{call} is the transpose of {other}.weight")
        check_numbers(call, W_U, right, {})
        if not np.shares_memory(W_U, right):
            raise Wrong(f"{call} is a copy; expected a view")


def kv_cache(mine: Mine) -> None:
    ends = np.cumsum(PIECES)
    T = int(ends[-1])
    piece = np.searchsorted(ends, np.arange(T), side="right")  # of each token
    past, before = np.tri(T, dtype=bool), piece[:, None] - piece  # how many pieces before
    visible = {  # what a mistake lets a token see
        "forgets the tokens before the piece": past & (before == 0),
        "keeps the first piece only": past & ((before == 0) | (piece == 0)),
        "keeps the last piece only": past & (before <= 1),
        "lets a token see the later ones of its piece": before >= 0,
        "has a mask that begins at position 0 in each piece": past[
            np.arange(T) - (ends - PIECES)[piece]
        ],
    }

    def out(at: Place) -> Array:
        (x,), *rest = attention_inputs(at)
        cache: dict[Any, Any] = {}
        call = partial(mine.array, "cached_attention")
        result = np.concatenate(
            [call(part.shape, part, *rest, cache) for part in np.split(x, ends[:-1])]
        )
        scores, v = at["attn.N.scores"], at["attn.N.v"]
        patterns = {
            says: softmax(np.where(seen, scores, -np.inf)) for says, seen in visible.items()
        }
        known = {says: linear(merge_heads(p @ v), **rest[1])[0] for says, p in patterns.items()}
        # Without one of these mistakes it may be one that does not come from the cache.
        with suppress(Unknown):
            check_numbers("cached_attention", result, at.right[0], known)
        return result

    check_activations("cached_attention", {"attn.N.out": out}, "attn.N.in")


def merge(mine: Mine) -> None:
    def right(
        ids: list[int], pair: tuple[int, int], new_id: int, overlap: bool = False
    ) -> list[int]:
        out, n = [], 0
        while n < len(ids):
            found = tuple(ids[n : n + 2]) == pair
            out.append(new_id if found else ids[n])
            n += 2 if found and not overlap else 1
        return out

    cases = [([5, 6, 7, 5, 6], (5, 6)), ([5], (5, 6)), ([], (5, 6)), ([6, 5, 5, 6, 6], (5, 6))]
    cases += [
        ([1, 2, 3], (5, 6)),
        ([5, 5, 5], (5, 5)),
        ([5] * 6, (5, 5)),
        ([1, 5, 5, 5, 5, 5, 2], (5, 5)),
    ]
    for ids, pair in cases:
        given = list(ids)
        result, expected = mine.call("merge", given, pair, 9), right(ids, pair, 9)
        if not isinstance(result, list):
            raise Wrong(f"merge returned {short_repr(result)}; expected a list")
        if given != ids or result is given:
            raise Wrong("merge changes the list that it gets, or returns it; expected a new list")
        if result != expected:
            first = next((n for n in range(len(ids)) if tuple(ids[n : n + 2]) == pair), len(ids))
            known = {
                "merges from right to left": right(ids[::-1], pair[::-1], 9)[::-1],
                "lets pairs overlap": right(ids, pair, 9, True),
                "loses the last token": expected[:-1],
                "merges nothing": ids,
                "merges the first pair only": [*ids[:first], 9, *ids[first + 2 :]],
            }
            says = next((f"yours {says}" for says, wrong in known.items() if result == wrong), NONE)
            raise Wrong(
                f"merge({ids}, {pair}, 9) is {short_repr(result)}, expected {expected}\n{says}"
            )


def norm_backward(mine: Mine) -> None:
    T, D, eps = 11, 17, 0.1
    x, dout, weight = (
        3 + RNG.standard_normal((T, D)),
        RNG.standard_normal((T, D)),
        2 + RNG.standard_normal(D),
    )
    grad = {"weight": np.empty(D), "bias": np.empty(D)}
    right = layer_norm_backward(dout, x, weight, eps, grad)
    result = mine.call("layer_norm_backward", dout, x, weight, eps)
    if not isinstance(result, tuple) or len(result) != 3:
        raise Wrong(f"layer_norm_backward returned {short_repr(result)}; expected 3 arrays")
    names = (f"layer_norm_backward[{n}]" for n in range(3))
    dx, dweight, dbias = map(as_array, names, result, [(T, D), (D,), (D,)])
    s = np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    n, dn = (x - x.mean(axis=-1, keepdims=True)) / s, dout * weight
    mean, through_s = dn.mean(axis=-1, keepdims=True), n * (dn * n).mean(axis=-1, keepdims=True)
    without_eps = {"weight": np.empty(D), "bias": np.empty(D)}
    known = {
        "lacks the gradient through the standard deviation": (dn - mean) / s,
        "lacks the gradient through the mean": (dn - through_s) / s,
        "lacks the gradients through the mean and the standard deviation": dn / s,
        "is not divided by the standard deviation": dn - mean - through_s,
        "is divided by the variance": (dn - mean - through_s) / s**2,
        "lacks eps": layer_norm_backward(dout, x, weight, 0.0, without_eps),
        "lacks the weight": layer_norm_backward(dout, x, np.ones(D), eps, without_eps),
    }
    check_numbers("dx", dx, right, known)
    known = {
        "takes x in place of the normalised x": (dout * x).sum(axis=0),
        "is that of the bias": grad["bias"],
    }
    known |= {
        "is a mean over the tokens, not a sum": grad["weight"] / T,
        "lacks dout": n.sum(axis=0),
    }
    check_numbers("dweight", dweight, grad["weight"], known)
    known = {
        "is a mean over the tokens, not a sum": grad["bias"] / T,
        "has the weight in it": dn.sum(axis=0),
    }
    check_numbers("dbias", dbias, grad["bias"], known)


def tied_gradient(mine: Mine) -> None:
    T, D, V = 13, 7, 11
    ids, resid, final = (
        RNG.integers(V, size=T),
        RNG.standard_normal((T, D)),
        RNG.standard_normal((T, D)),
    )
    dlogits = RNG.standard_normal((T, V))
    head, embedding, last = dlogits.T @ final, np.zeros((V, D)), np.zeros((V, D))
    np.add.at(embedding, ids, resid)
    last[ids] = resid
    overwritten = head.copy()
    overwritten[ids] = resid
    known = {
        "adds one gradient only for a token that occurs several times": head + last,
        "lacks the gradient of the embedding": head,
        "lacks the gradient of the output matrix": embedding,
        "lacks the gradient of the output matrix, and has one gradient only for a repeated token": last,
        "overwrites the gradient of the output matrix with that of the embedding": overwritten,
        "subtracts the two gradients": head - embedding,
        "is the mean of the two gradients, not their sum": (head + embedding) / 2,
    }
    result = mine.array("tied_gradient", (V, D), ids, resid, final, dlogits)
    check_numbers("tied_gradient", result, head + embedding, known)


def top_p(mine: Mine) -> None:
    exact = np.array([0.0625, 0.5, 0.125, 0.0625, 0.25])  # has sums that are p, without rounding
    cases = [(softmax(RNG.standard_normal(29)), p) for p in (0.5, 0.9, 1.0, 0.01)]
    for probabilities, p in [*cases, (exact, 0.5), (exact, 0.75)]:
        order = np.argsort(-probabilities)
        rank = np.argsort(order)  # of each token
        count = np.count_nonzero(np.cumsum(probabilities[order]) - probabilities[order] < p)
        keeps = {
            "drops the token with which the sum reaches p": rank < count - 1,
            "keeps a token too many": rank <= count,
            "keeps the likeliest token only": rank < 1,
            "keeps the tokens whose own probability is p or more": probabilities >= p,
        }
        kept = probabilities * (rank < count)
        known = {"does not divide by the sum": kept, "keeps all tokens": probabilities}
        parts = {says: probabilities * keep for says, keep in keeps.items()}
        known |= {says: part / part.sum() for says, part in parts.items()}
        result = mine.array("top_p", probabilities.shape, probabilities, p)
        check_numbers(f"top_p(probabilities, {p})", result, kept / kept.sum(), known)


CHECKS: list[Check] = [
    merge,
    whole("layer_norm", ["attn.N.in", "mlp.N.in", "final"], lambda at: [*at.inputs(), EPS]),
    softmax_and_loss,
    one_head,
    whole("attention", ["attn.N.out"], attention_inputs, "attn.N.in"),
    whole("gelu", ["mlp.N.post"], Place.inputs),
    whole("transformer_block", ["resid_post.N"], block_inputs, "resid_pre.N"),
    the_switch,
    kv_cache,
    top_p,
    norm_backward,
    tied_gradient,
]


def read_page() -> dict[int, tuple[str, str]]:
    """The title and the text of each exercise."""
    parts = re.split(r"^## (\d+)\. (.*)\n", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]
    return {
        int(n): (title, text.strip()) for n, title, text in zip(*[iter(parts)] * 3, strict=True)
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    page = read_page()
    parser.add_argument("number", nargs="?", type=int, choices=page, metavar="N", help="1 to 12")
    parser.add_argument("file", nargs="?", metavar="FILE", help="a Python file with your functions")
    args = parser.parse_args(argv)
    if args.number is None:
        print("\n".join(f"{n:2}  {title}" for n, (title, _) in page.items()))
        return 0
    title, text = page[args.number]
    if args.file is None:
        print(f"{args.number}. {title}\n\n{text}")
        return 0
    label = f"exercise {args.number}, {title[0].lower()}{title[1:]}"
    try:
        code = compile(Path(args.file).read_bytes(), args.file, "exec")
    except (
        OSError,
        SyntaxError,
        ValueError,
    ) as error:  # a file that cannot be read, or is not Python
        at = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        says = getattr(error, "strerror", None) or getattr(error, "msg", None) or error
        print(one_line(f"{label}: {args.file}{at}: {says}"), file=sys.stderr)
        return 2
    try:
        with np.errstate(all="ignore"):
            CHECKS[args.number - 1](Mine(args.file, code))
    except Wrong as wrong:
        print(f"{label}: wrong", *map(one_line, str(wrong).split("\n")), sep="\n")
        return 1
    except BaseException as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == args.file]
        if not frames:
            raise  # not the reader's
        stopped = isinstance(error, KeyboardInterrupt)
        says = "stopped by Ctrl-C" if stopped else f"{type(error).__name__}: {error}"
        lines = [f"  line {frame.lineno}, in {frame.name}: {frame.line}" for frame in frames[-5:]]
        print(*map(one_line, [f"{label}: {args.file}: {says}", *lines]), sep="\n", file=sys.stderr)
        return 130 if stopped else 2
    print(f"{label}: right")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
