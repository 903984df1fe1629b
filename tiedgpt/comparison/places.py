"""Places in a forward pass of our model, mistakes planted in them, and the other GPT-2 beside it.

A place is an activation, such as "mlp.0.post". Its kind is the name with N for the layer's number,
"mlp.N.post". A mistake has, for each kind of activation that it changes, a wrong function: from a
Place to the wrong activation. A trial plants a mistake in some of the places where it can be made.

In the functions, `given` is a tape of activations of the other GPT-2: our pass computes its own
activation, and goes on with the given one in its place. `planted` maps the name of an activation to
the wrong function that computes it.
"""

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, partial
from typing import Any

import numpy as np

from ..errors import short_repr
from ..gpt2.model import GPT2, Array, merge_heads, transformer, unembed
from ..gpt2.run import Run, Tape
from .conventions import translate

NORMS = ("attn.N.in", "mlp.N.in", "final")
Q_K_V = ("attn.N.q", "attn.N.k", "attn.N.v")
LINEARS = ("attn.N.qkv", "attn.N.out", "mlp.N.pre", "mlp.N.out")

# The weight and the bias from which each kind of activation is computed.
PARAMETERS_OF = {
    "attn.N.in": "h.N.ln_1",
    "attn.N.qkv": "h.N.attn.c_attn",
    "attn.N.q": "h.N.attn.c_attn",
    "attn.N.k": "h.N.attn.c_attn",
    "attn.N.v": "h.N.attn.c_attn",
    "attn.N.out": "h.N.attn.c_proj",
    "mlp.N.in": "h.N.ln_2",
    "mlp.N.pre": "h.N.mlp.c_fc",
    "mlp.N.out": "h.N.mlp.c_proj",
    "final": "ln_f",
}


@cache
def kind_of(name: str) -> str:
    """Put N for the layer's number: "attn.3.qkv" -> "attn.N.qkv"."""
    return re.sub(r"\.\d+", ".N", name)


@cache
def layer_of(name: str) -> int | None:
    """The number of the activation's layer: "attn.3.qkv" -> 3. None if it is in no layer."""
    number = re.search(r"\.(\d+)", name)
    if number is None:
        return None
    return int(number[1])


@dataclass(frozen=True)
class Place:
    """An activation in a forward pass.

    place["attn.N.in"] is an activation before it in its layer, place["h.N.ln_1.weight"] a parameter
    of its layer, place["wte.weight"] one of the whole model.
    """

    name: str
    right: Array  # the activation as model.py computes it from those before it
    model: GPT2
    ids: Array  # [B, T]
    tape: Tape  # the activations before it

    @property
    def kind(self) -> str:
        return kind_of(self.name)

    @property
    def layer(self) -> int:
        """The number of the activation's layer.

        For final and logits it is that of the last one, from which they are computed. The mistakes
        of embed do not ask for it.
        """
        layer = layer_of(self.name)
        if layer is None:
            return self.n_layer - 1
        return layer

    def __getitem__(self, name: str) -> Array:
        """A parameter or an earlier activation. N in its name stands for this layer's number."""
        name = name.replace(".N", f".{self.layer}")
        if name in self.model.parameters:
            return self.model.parameters[name]
        return self.tape[name]

    @property
    def x(self) -> Array:
        """The activation that this one is computed from, for kinds with a single one.

        For a sum, such as resid_mid.N, it is what is added to the residual stream.
        """
        if self.kind in Q_K_V:
            return self["attn.N.qkv"]
        if self.kind == "attn.N.out":
            return merge_heads(self["attn.N.heads"])
        # The tape ends before this activation, and is in the order of the forward pass. Each other
        # activation is computed from the one just before it, which is the newest on the tape.
        newest = list(self.tape)[-1]
        return self.tape[newest]

    @property
    def weight(self) -> Array:
        """The weight from which an activation of a kind in PARAMETERS_OF is computed."""
        return self[f"{PARAMETERS_OF[self.kind]}.weight"]

    @property
    def bias(self) -> Array:
        """The bias from which an activation of a kind in PARAMETERS_OF is computed."""
        return self[f"{PARAMETERS_OF[self.kind]}.bias"]

    @property
    def eps(self) -> float:
        return self.model.config.layer_norm_epsilon

    @property
    def n_layer(self) -> int:
        return self.model.config.n_layer

    @property
    def D(self) -> int:
        return self.model.config.n_embd

    @property
    def H(self) -> int:
        return self.model.config.n_head

    @property
    def K(self) -> int:
        return self.model.config.head_width


Wrong = Callable[[Place], Array]  # from a place to a wrong activation


@dataclass(frozen=True)
class Mistake:
    sentence: str  # what follows "yours"
    wrong: Mapping[str, Wrong]  # a kind of activation -> the function that computes the wrong one
    note: str = ""  # what to do about it, if that is not clear
    only_everywhere: bool = False  # made in all of these activations or in none


# A forward pass with mistakes


class LastComputed(Exception):
    """The pass has computed the last activation that is asked for, and ends there."""


@np.errstate(all="ignore")  # a planted mistake may overflow, or divide by 0
def compute_activations(
    model: GPT2, ids: Array, given: Tape, planted: Mapping[str, Wrong], last: str = "logits"
) -> Tape:
    """Compute each activation of ids [B, T] from those before it, in the order of the model.

    The result is what the model computes, also where it goes on with a given activation. It ends
    with the activation `last`: the layers after it are not computed.
    """
    tape: Tape = {}  # what the pass goes on with
    replaced: Tape = {}  # what it computes where it goes on with a given activation, and at its end

    # An edit gets the right activation, as model.py computes it from those on the tape.
    def edit(name: str, right: Array) -> Array:
        ours = right
        if name in planted:
            ours = planted[name](Place(name, right, model, ids, tape))
        if name not in given and name != last:
            return ours
        replaced[name] = np.asarray(ours, model.dtype)
        if name == last:
            raise LastComputed
        return given[name]

    edits = {name: partial(edit, name) for name in (*given, *planted, last)}
    run = Run(model.config, tape=tape, edits=edits)
    with suppress(LastComputed):
        final = transformer(ids, model.tree, run)
        run.tap("logits", unembed(final, model.W_U))  # puts the logits on the tape, or ends here
    return {**tape, **replaced}


# The other GPT-2 beside it
#
# The reference is our model in float64. An array agrees if its largest distance from the reference
# is at most SLACK times the largest distance of our own float32, or SLACK roundings if that is
# more. This holds for float64 arrays, too, because one np.sqrt(K) makes float64 arrays of float32
# ones, with float32's rounding.

SLACK = 16.0  # another order of the same sums rounds otherwise, by several times as much


@dataclass(frozen=True)
class ReportRow:
    """One array of the other GPT-2 against ours."""

    name: str
    error: float  # the largest distance from our float64
    tolerance: float
    largest: float  # of our numbers, except inf and nan
    first_wrong: tuple[int, ...] | None = None  # the first index beyond the tolerance
    yours: float | None = None  # the number at that index
    expected: float | None = None

    @property
    def differs(self) -> bool:
        return self.first_wrong is not None


@np.errstate(invalid="ignore")
def distance(name: str, a: Array, b: Array) -> Array:
    """|a - b| in float64; 0 where both are the same inf or nan, inf where one of them is nan."""
    distances = np.abs(np.subtract(a, b, dtype=np.float64))
    both_nan = np.isnan(a) & np.isnan(b)
    is_same = (a == b) | both_nan  # inf - inf is nan
    distances[is_same] = 0
    distances[np.isnan(distances)] = np.inf
    if name.endswith(".scores"):
        # The other GPT-2 may have masked the scores of later keys already, or not. These are above
        # the diagonal, and `tril` makes their distance 0.
        return np.tril(distances)
    return distances


def tolerance_of(ours64: Array, ours32: Array) -> float:
    """The largest distance from our float64 that is taken for rounding. Our float32 tells it."""
    finite = np.isfinite(ours64) & np.isfinite(ours32)
    rounding = np.abs(ours64[finite] - ours32[finite]).max(initial=0)
    # Our float32 may be exact by chance. So rounding is at least that of the largest number.
    least = np.finfo(np.float32).eps * np.abs(ours64[finite]).max(initial=0)
    return SLACK * float(max(rounding, least))


MOST_DIGITS = 6  # float32 has seven, and more in some places
FEWEST_NUMBERS = 10  # fewer may end with zeros by chance
MANY_NUMBERS = 10_000  # more take seconds, so the first ones are looked at before all


@np.errstate(all="ignore")
def few_digits(theirs: Array, ours: Array, tolerance: float) -> tuple[str, float]:
    """A sentence if all their numbers have so few digits that rounding is beyond the tolerance.

    With it, half a unit of the last digit: rounding moves a number by so much. Else ("", 0.0).
    """
    found = digits_of(theirs)
    if found is None or digits_of(ours) is not None:  # the parameters themselves may have few
        return "", 0.0
    count, kind = found
    power = -count  # 10**power is a unit of the last digit
    if kind == "digits":
        largest = np.abs(ours[np.isfinite(ours)]).max(initial=0)
        power += digits_before_point(largest)
    half = float(10.0**power / 2)
    if half <= tolerance:
        return "", 0.0
    return f"yours has no more than {count} {kind}: print more", half


def digits_of(x: Array) -> tuple[int, str] | None:
    """(3, "decimals") or (4, "digits") if all numbers are rounded so, up to float32's rounding."""
    numbers = x[np.isfinite(x) & (x != 0)].astype(np.float64)
    if numbers.size > MANY_NUMBERS and digits_of(numbers[:MANY_NUMBERS]) is None:
        return None
    # Whole numbers, halves, quarters and so on have few digits, though nobody rounded them so.
    in_binary = numbers * 2**MOST_DIGITS
    if np.array_equal(in_binary, np.rint(in_binary)):
        return None
    if np.unique(numbers).size < FEWEST_NUMBERS:
        return None
    before_point = digits_before_point(numbers)
    for count in range(1, MOST_DIGITS + 1):
        for kind, unit in (("decimals", 10.0**-count), ("digits", 10.0 ** (before_point - count))):
            in_decimal = np.rint(numbers / unit) * unit
            if np.allclose(numbers, in_decimal, rtol=np.finfo(np.float32).eps, atol=0):
                return count, kind
    return None


def digits_before_point(x: Any) -> Any:  # a number or an array
    """1 for 2.5, 2 for 25, 0 for 0.25, -1 for 0.025."""
    return np.floor(np.log10(np.abs(x))) + 1


def compare_arrays(name: str, theirs: Array, ours64: Array, ours32: Array) -> ReportRow:
    """Compare theirs with ours in float64. Ours in float32 tells how large rounding may be."""
    tolerance = tolerance_of(ours64, ours32)
    distances = distance(name, theirs, ours64)
    error = float(distances.max(initial=0))
    largest = float(np.abs(ours64[np.isfinite(ours64)]).max(initial=0))
    if error <= tolerance:
        return ReportRow(name, error, tolerance, largest)

    is_wrong = distances > tolerance
    position = int(is_wrong.argmax())  # of the first True, in the flattened array
    index = tuple(int(n) for n in np.unravel_index(position, distances.shape))
    return ReportRow(
        name,
        error,
        tolerance,
        largest,
        first_wrong=index,
        yours=float(theirs[index]),
        expected=float(ours64[index]),
    )


class Comparison:
    """Our model in float32 and float64 on some ids [B, T], and the other model's activations.

    Of several arrays of one activation, such as the output of ln_1 and the input of attention, the
    last one counts, because the other model goes on with it. The earlier ones are compared, too, if
    they differ from it.
    """

    def __init__(self, model: GPT2, ids: Array, activations: Mapping[Any, Any]) -> None:
        self.model32 = model.astype(np.float32)
        self.model64 = model.astype(np.float64)
        self.ids = ids
        ours = compute_activations(self.model32, ids, given={}, planted={})
        self.names = list(ours)  # of all activations, in the order of the forward pass
        self.our_logits = ours["logits"]
        V = self.our_logits.shape[-1]
        # Their logits for no token of ours: no columns, unless theirs have more than V.
        self.beyond_vocabulary = self.our_logits[..., V:]
        last: Tape = {}
        self.their_names: dict[str, str] = {}  # our name -> theirs, for messages
        self.earlier: list[tuple[str, str, Array]] = []  # our name, their name, the array
        for their_name, value in activations.items():
            translated = translate(their_name, value, ours, model.config.n_layer)
            for name, array in translated.items():
                if name == "logits":
                    self.beyond_vocabulary = array[..., V:]
                    array = array[..., :V]
                if name in last and not np.array_equal(last[name], array, equal_nan=True):
                    self.earlier.append((name, self.their_names[name], last[name]))
                last[name] = array
                self.their_names[name] = short_repr(their_name)
        self.theirs = {name: last[name] for name in self.names if name in last}

    def rows(self, given: Tape, planted: Mapping[str, Wrong]) -> tuple[list[ReportRow], Tape]:
        """A row for each activation of the other model, in the order of the forward pass.

        It is compared with the activation that our pass computes in this place. Our pass then goes
        on with the array in `given`, if there is one. `planted` are mistakes that our pass makes.
        Beside the rows, our activations in float32.
        """
        ours64 = compute_activations(self.model64, self.ids, given, planted)
        # compare_arrays takes its tolerance from these.
        ours32 = compute_activations(self.model32, self.ids, given, planted)
        rows = []
        for name, theirs in self.theirs.items():
            rows.append(compare_arrays(name, theirs, ours64[name], ours32[name]))
        return rows, ours32

    def rows_of_earlier(self) -> tuple[list[ReportRow], list[str]]:
        """For each array that a later one of the same activation replaced: a row, and a sentence if
        the two differ.
        """
        rows: list[ReportRow] = []
        sentences: list[str] = []
        if not self.earlier:
            return rows, sentences
        ours64 = compute_activations(self.model64, self.ids, given={}, planted={})
        # compare_arrays takes its tolerance from these.
        ours32 = compute_activations(self.model32, self.ids, given={}, planted={})
        for name, their_name, array in self.earlier:
            row = compare_arrays(name, array, ours64[name], ours32[name])
            rows.append(replace(row, name=f"{name}, {their_name}"))
            if distance(name, array, self.theirs[name]).max() > row.tolerance:
                sentences.append(
                    f"{name}: yours are two, {their_name} and {self.their_names[name]}, "
                    "and they differ"
                )
        return rows, sentences


# Trials


class Scope(IntEnum):
    """How far a mistake goes. A wider scope is a smaller number."""

    EVERYWHERE = 0  # in each place where the mistake can be made
    KIND = 1  # in every layer, but in one kind of activation
    LAYER = 2  # in one layer
    PLACE = 3  # in one activation


@dataclass(frozen=True)
class Trial:
    """A known mistake of a certain scope, and where it begins."""

    start: str  # the activation in which the mistake shows first, such as "mlp.0.post"
    sentence: str  # what follows "yours", such as "is relu, in every layer"
    note: str  # what to do about the mistake, or ""
    scope: Scope
    planted: Mapping[str, Wrong]  # an activation -> the function that computes the wrong one

    @property
    def line(self) -> str:
        return f"{self.start}: yours {self.sentence}"


# A scope -> a function of an activation's name, such as its kind. A mistake that begins in one
# activation is made in all for which the function returns the same.
COMMON: dict[Scope, Callable[[str], Any]] = {
    Scope.EVERYWHERE: lambda name: "",
    Scope.KIND: kind_of,
    Scope.LAYER: layer_of,
    Scope.PLACE: lambda name: name,
}


def sentence_of(mistake: Mistake, scope: Scope, planted: Collection[str]) -> str:
    """What the mistake is, and how far it goes if it is planted in these activations."""
    is_in_one_layer = scope in (Scope.LAYER, Scope.PLACE) or len(planted) == 1
    if mistake.only_everywhere or is_in_one_layer:
        return mistake.sentence
    kinds = {kind_of(name) for name in planted}
    if len(kinds) > 1:
        return f"{mistake.sentence}, everywhere"
    return f"{mistake.sentence}, in every layer"


def trials_of(mistakes: list[Mistake], window: list[str], names: list[str]) -> list[Trial]:
    """A trial of each mistake, in each scope, from each place of the window where it can begin.

    window: activations up to the one that differs. names: all activations of the model, because a
    mistake that begins in the window may go on after it. The widest scope comes first, because it
    is the likeliest; within a scope, trials have the order of the mistakes. Of trials that plant
    the same functions in the same places, the first is kept.
    """
    trials: dict[frozenset[tuple[str, Wrong]], Trial] = {}
    places_of = {}  # a mistake's number -> the activations that it changes
    for number, mistake in enumerate(mistakes):
        places_of[number] = [name for name in names if kind_of(name) in mistake.wrong]
    for scope in Scope:
        common = COMMON[scope]
        for number, mistake in enumerate(mistakes):
            if mistake.only_everywhere and scope != Scope.EVERYWHERE:
                continue
            places = places_of[number]
            starts: dict[Any, str] = {}  # what places have in common -> the first in the window
            for name in window:
                if name in places:
                    starts.setdefault(common(name), name)
            for shared, start in starts.items():
                planted = {
                    name: mistake.wrong[kind_of(name)] for name in places if common(name) == shared
                }
                sentence = sentence_of(mistake, scope, planted)
                trial = Trial(start, sentence, mistake.note, scope, planted)
                trials.setdefault(frozenset(planted.items()), trial)
    return list(trials.values())


def trials_in_all_layers(mistakes: list[Mistake], names: list[str]) -> list[Trial]:
    """Each mistake in all layers where it can be made, in one kind of activation or in all."""
    return [trial for trial in trials_of(mistakes, names, names) if trial.scope <= Scope.KIND]
