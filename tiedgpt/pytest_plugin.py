"""A plugin of pytest: what tiedgpt.testing has, as fixtures. A project's conftest.py asks for it:

pytest_plugins = ["tiedgpt.pytest_plugin"]

Then a test needs no import:

def test_my_gpt2(assert_same_gpt2, tiny_gpt2):  # once tied, once untied
    assert_same_gpt2(MyGPT2(tiny_gpt2.parameters), model=tiny_gpt2)

def test_my_model(assert_tied):
    assert_tied(MyModel())
"""

from collections.abc import Callable

import pytest

from . import testing
from .testing import tiny_gpt2 as tiny_gpt2  # a fixture already: pytest looks for it here


@pytest.fixture
def assert_same_gpt2() -> Callable[..., None]:
    """tiedgpt.testing.assert_same_gpt2"""
    return testing.assert_same_gpt2


@pytest.fixture
def assert_tied() -> Callable[..., None]:
    """tiedgpt.testing.assert_tied"""
    return testing.assert_tied
