"""The fixtures of the plugin, as a test of another project has them.

tests/testing/test_assert_tied.py runs pytest in a project that asks for the plugin.
"""

import numpy as np

from tiedgpt import testing
from tiedgpt.pytest_plugin import (
    assert_same_gpt2,  # noqa: F401 - these are fixtures
    assert_tied,  # noqa: F401
    tiny_gpt2,  # noqa: F401
)


def test_the_assertions_are_those_of_testing(assert_same_gpt2, assert_tied):  # noqa: F811
    assert assert_same_gpt2 is testing.assert_same_gpt2
    assert assert_tied is testing.assert_tied


def test_the_small_gpt2_is_once_tied_and_once_untied(request, tiny_gpt2):  # noqa: F811
    head = request.node.callspec.params["tiny_gpt2"]
    assert tiny_gpt2.tied == (head == "tied")
    assert tiny_gpt2.config == testing.TINY.with_head(head)
    for name, array in testing.random_model(tiny_gpt2.config).parameters.items():
        np.testing.assert_array_equal(tiny_gpt2.parameters[name], array)
