"""Whether the activations of another GPT-2 agree with ours.

The reference is our model in float64. An array agrees if its largest distance from the reference is
at most SLACK times the largest distance of our own float32, or SLACK roundings if that is more.
This holds for float64 arrays, too, because one np.sqrt(K) makes float64 arrays of float32 ones,
with float32's rounding.

`given` and `planted` are those of forward_pass.py: activations of the other GPT-2 from which our
model goes on, and mistakes that it makes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..gpt2.model import GPT2, Array
from ..gpt2.run import Tape
from .conventions import translate_activations
from .forward_pass import compute_activations
from .place import Compute

SLACK = 16.0  # another order of the same sums rounds otherwise, by several times as much


@dataclass(frozen=True)
class ReportRow:
    """One array of the other GPT-2 against ours."""

    name: str
    error: float  # the largest distance from our float64
    tolerance: float
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
    if error <= tolerance:
        return ReportRow(name, error, tolerance)

    is_wrong = distances > tolerance
    position = int(is_wrong.argmax())  # of the first True, in the flattened array
    index = tuple(int(n) for n in np.unravel_index(position, distances.shape))
    return ReportRow(
        name,
        error,
        tolerance,
        first_wrong=index,
        yours=float(theirs[index]),
        expected=float(ours64[index]),
    )


class Comparison:
    """Our model in float32 and float64 on some ids [B, T], and the other model's activations."""

    def __init__(self, model: GPT2, ids: Array, activations: Mapping[Any, Any]) -> None:
        self.model32 = model.astype(np.float32)
        self.model64 = model.astype(np.float64)
        self.ids = ids
        ours = compute_activations(self.model32, ids, given={}, planted={})
        self.names = list(ours)  # of all activations, in the order of the forward pass
        self.theirs = translate_activations(activations, ours, model.config)

    def rows(self, given: Tape, planted: Mapping[str, Compute]) -> list[ReportRow]:
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
