"""A plugin of pytest: what tiedgpt.testing has, as fixtures. A project's conftest.py asks for it:

pytest_plugins = ["tiedgpt.pytest_plugin"]

Then a test needs no import:

def test_my_model(assert_tied):
    assert_tied(MyModel())
"""

from .testing.fixtures import assert_same_gpt2 as assert_same_gpt2
from .testing.fixtures import assert_tied as assert_tied
from .testing.fixtures import tiny_gpt2 as tiny_gpt2
