"""Numbers in a range, as arguments of functions and as fields of dataclasses."""

import math
import re

import numpy as np
import pytest

from tiedgpt import TiedGPTError
from tiedgpt.errors import ABOVE_0, RATE, Range

RANGES = [
    pytest.param(Range(1), [1, 10**18], 0, 0.5, id="whole-from-1"),
    pytest.param(Range(0, 9), [0, 9], 10, 0.5, id="whole-0-to-9"),
    pytest.param(ABOVE_0, [3e-4, 1], 0, 10**400, id="above-0"),
    pytest.param(Range(0, 1, whole=False, open_low=True), [0.5, 1], 0, 10**400, id="above-0-to-1"),
    pytest.param(RATE, [0, 0.5], 1, 10**400, id="from-0-below-1"),
]


@pytest.mark.parametrize(("numbers", "inside", "outside", "wrong"), RANGES)
def test_a_number_in_a_range(numbers, inside, outside, wrong):
    for value in inside:
        assert numbers.check("n", value) == value
    for value in [outside, wrong, -1, True, None, "1", [], math.nan, math.inf]:
        with pytest.raises(TiedGPTError, match=f"^n must be {re.escape(str(numbers))}, got "):
            numbers.check("n", value)


def test_numbers_of_numpy_become_those_of_python():
    assert type(Range(1).check("n", np.int8(1))) is int
    assert type(RATE.check("n", np.float32(0.5))) is float
