"""For the tests of another GPT-2, or of any tied model: a GPT-2 in which mistakes show, assertions.

from tiedgpt.testing import assert_same_gpt2, assert_tied, tiny_gpt2

def test_my_gpt2(tiny_gpt2):  # once tied, once untied
    assert_same_gpt2(MyGPT2(tiny_gpt2.parameters), model=tiny_gpt2)

def test_my_model():  # a torch module
    model = MyModel()
    assert_tied(model, torch.optim.AdamW(model.parameters()))

tie_of(model.state_dict()) says whether a state dict holds one matrix or two.

Or a conftest.py says pytest_plugins = ["tiedgpt.pytest_plugin"]. Then all three are fixtures, which
need no import.
"""

from contextlib import suppress

from ..gpt2.model import GPT2
from .gpt2 import TINY as TINY
from .gpt2 import assert_same_gpt2 as assert_same_gpt2
from .gpt2 import assert_vectors as assert_vectors
from .gpt2 import random_model as random_model
from .gpt2 import scale_of as scale_of
from .state_dict import Tie as Tie
from .state_dict import tie_of as tie_of
from .tie import assert_tied as assert_tied

with suppress(ImportError):  # only the fixture needs pytest
    import pytest

    @pytest.fixture(params=["tied", "untied"])
    def tiny_gpt2(request: pytest.FixtureRequest) -> GPT2:
        """random_model(), once tied and once untied."""
        return random_model(TINY.with_head(request.param))
