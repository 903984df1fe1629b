"""A plugin of pytest: the assertions of testing.py as fixtures, in every project that has tiedgpt.

def test_my_gpt2(assert_tied):
    assert_tied(MyGPT2())

Nothing else of tiedgpt is imported before a test uses one of them.
"""

from collections.abc import Callable

import pytest


@pytest.fixture
def assert_same_gpt2() -> Callable[..., None]:
    """tiedgpt.testing.assert_same_gpt2"""
    from . import testing

    return testing.assert_same_gpt2


@pytest.fixture
def assert_tied() -> Callable[..., None]:
    """tiedgpt.testing.assert_tied"""
    from . import testing

    return testing.assert_tied
