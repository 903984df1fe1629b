"""For the tests of another GPT-2, or of any tied model: a GPT-2 in which mistakes show, assertions.

from tiedgpt.testing import assert_same_gpt2, assert_tied, random_model

def test_my_gpt2():
    model = random_model()
    assert_same_gpt2(MyGPT2(model.parameters), model=model)

def test_my_model():  # a torch module
    model = MyModel()
    assert_tied(model, torch.optim.AdamW(model.parameters()))

tie_of(model.state_dict()) says whether a state dict holds one matrix or two.

Or a conftest.py says pytest_plugins = ["tiedgpt.pytest_plugin"]. Then both assertions are fixtures,
which need no import, and so is tiny_gpt2, a random_model() once tied and once untied.
"""

from .gpt2 import TINY as TINY
from .gpt2 import assert_same_gpt2 as assert_same_gpt2
from .gpt2 import assert_vectors as assert_vectors
from .gpt2 import random_model as random_model
from .gpt2 import scale_of as scale_of
from .state_dict import Tie as Tie
from .state_dict import tie_of as tie_of
from .tie import assert_tied as assert_tied
