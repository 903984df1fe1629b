"""The arrays of another GPT-2 beside ours: which agree, and how far they are apart.

The reference is our model in float64. An array agrees if its largest distance from the reference is
at most SLACK times the largest distance of our own float32, or SLACK roundings if that is more.
This holds for float64 arrays, too, because one np.sqrt(K) makes float64 arrays of float32 ones,
with float32's rounding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import short_repr
from ..gpt2.model import GPT2, Array
from ..gpt2.run import Tape
from .conventions import translate
from .places import Wrong, compute_activations

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


def compare_arrays(name: str, theirs: Array, ours64: Array, ours32: Array) -> ReportRow:
    """Compare theirs with our float64. Our float32 tells how large rounding is."""
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
        last: Tape = {}
        self.their_names: dict[str, str] = {}  # our name -> theirs, for messages
        self.earlier: list[tuple[str, str, Array]] = []  # our name, their name, the array
        for their_name, value in activations.items():
            translated = translate(their_name, value, ours, model.config.n_layer)
            for name, array in translated.items():
                if name in last and not np.array_equal(last[name], array, equal_nan=True):
                    self.earlier.append((name, self.their_names[name], last[name]))
                last[name] = array
                self.their_names[name] = short_repr(their_name)
        self.theirs = {name: last[name] for name in self.names if name in last}

    def rows(self, given: Tape, planted: Mapping[str, Wrong]) -> list[ReportRow]:
        """A row for each of their activations, in the order of the forward pass.

        Ours are computed from those before them: from theirs in `given`, and elsewhere from ours,
        with the planted mistakes.
        """
        ours32 = compute_activations(self.model32, self.ids, given, planted)
        ours64 = compute_activations(self.model64, self.ids, given, planted)
        rows = []
        for name, theirs in self.theirs.items():
            rows.append(compare_arrays(name, theirs, ours64[name], ours32[name]))
        return rows

    def rows_of_earlier(self) -> tuple[list[ReportRow], list[str]]:
        """A row for each array for which a later one counts; a sentence if the two differ."""
        rows: list[ReportRow] = []
        sentences: list[str] = []
        if not self.earlier:
            return rows, sentences
        ours32 = compute_activations(self.model32, self.ids, given={}, planted={})
        ours64 = compute_activations(self.model64, self.ids, given={}, planted={})
        for name, their_name, array in self.earlier:
            row = compare_arrays(name, array, ours64[name], ours32[name])
            rows.append(replace(row, name=f"{name}, {their_name}"))
            if distance(name, array, self.theirs[name]).max() > row.tolerance:
                sentences.append(
                    f"{name}: yours are two, {their_name} and {self.their_names[name]}, "
                    "and they differ"
                )
        return rows, sentences
