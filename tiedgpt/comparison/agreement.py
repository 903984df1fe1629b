"""Whether an array of another GPT-2 agrees with ours.

The reference is our model in float64. An array agrees if its largest distance from the reference is
at most SLACK times the largest distance of our own float32, or SLACK roundings if that is more.
This holds for float64 arrays, too, because one np.sqrt(K) makes float64 arrays of float32 ones,
with float32's rounding.
"""

from dataclasses import dataclass

import numpy as np

from ..gpt2.model import Array

SLACK = 16.0


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
    far = np.abs(np.subtract(a, b, dtype=np.float64))
    both_nan = np.isnan(a) & np.isnan(b)
    far[(a == b) | both_nan] = 0
    far[np.isnan(far)] = np.inf
    if name.endswith(".scores"):
        # The scores of later tokens count for nothing: they may be masked already, or not.
        return np.tril(far)
    return far


def tolerance_of(ours64: Array, ours32: Array) -> float:
    """The largest distance from our float64 that is taken for rounding. Our float32 tells it."""
    finite = np.isfinite(ours64) & np.isfinite(ours32)
    rounding = np.abs(ours64[finite] - ours32[finite]).max(initial=0)
    unit = np.finfo(np.float32).eps * np.abs(ours64[finite]).max(initial=0)
    return SLACK * float(max(rounding, unit))


def compare_arrays(name: str, theirs: Array, ours64: Array, ours32: Array) -> ReportRow:
    tolerance = tolerance_of(ours64, ours32)
    far = distance(name, theirs, ours64)
    error = float(far.max(initial=0))
    if error <= tolerance:
        return ReportRow(name, error, tolerance)

    position = int((far > tolerance).argmax())
    index = tuple(int(n) for n in np.unravel_index(position, far.shape))
    return ReportRow(
        name,
        error,
        tolerance,
        first_wrong=index,
        yours=float(theirs[index]),
        expected=float(ours64[index]),
    )
