"""For the tests of another GPT-2: a model in which mistakes show, and an assertion.

from tiedgpt.testing import assert_same_gpt2, tiny_gpt2

def test_my_gpt2(tiny_gpt2):  # once tied, once untied
    assert_same_gpt2(MyGPT2(tiny_gpt2.parameters), model=tiny_gpt2)
"""

from contextlib import suppress
from typing import Any

import numpy as np

from .comparison.compare import compare
from .comparison.random_model import TINY, random_model
from .gpt2.model import GPT2


def assert_same_gpt2(
    theirs: Any, model: GPT2 | None = None, ids: Any = None, targets: Any = None
) -> None:
    """Raise AssertionError with the report of `compare` if `theirs` is not the GPT-2 `model`.

    model: random_model() if None. ids: two random sequences if None, as long as the context, at
    most 64.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    if model is None:
        model = random_model()
    if ids is None:
        config = model.config
        length = min(config.n_ctx, 64)
        ids = np.random.default_rng(0).integers(config.vocab_size, size=(2, length))
    report = compare(model, theirs, ids, targets)
    assert report.first is None, f"not the same GPT-2\n\n{report}"


with suppress(ImportError):  # only the fixture needs pytest
    import pytest

    @pytest.fixture(params=["tied", "untied"])
    def tiny_gpt2(request: pytest.FixtureRequest) -> GPT2:
        """random_model(), once tied and once untied."""
        return random_model(TINY.with_head(request.param))
