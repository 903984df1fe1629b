"""Fixtures of pytest, which pytest_plugin.py gives to a project."""

from collections.abc import Callable

import pytest

from ..gpt2.model import GPT2
from . import gpt2, tie


@pytest.fixture(params=["tied", "untied"])
def tiny_gpt2(request: pytest.FixtureRequest) -> GPT2:
    """random_model(), once tied and once untied."""
    return gpt2.random_model(gpt2.TINY.with_head(request.param))


@pytest.fixture
def assert_same_gpt2() -> Callable[..., None]:
    """tiedgpt.testing.assert_same_gpt2"""
    return gpt2.assert_same_gpt2


@pytest.fixture
def assert_tied() -> Callable[..., None]:
    """tiedgpt.testing.assert_tied"""
    return tie.assert_tied
