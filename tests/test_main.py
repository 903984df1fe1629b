"""The front doors: the names of `import tiedgpt`, `python -m tiedgpt`, the plugin of pytest."""

import os
import signal
import sys

import numpy as np
import pytest

import tiedgpt
from tiedgpt import __main__, cli, pytest_plugin, testing

# Pytest finds the fixtures of the plugin here. tests/testing/test_assert_tied.py runs pytest in a
# project that asks for the plugin.
tiny_gpt2 = pytest_plugin.tiny_gpt2
assert_same_gpt2 = pytest_plugin.assert_same_gpt2
assert_tied = pytest_plugin.assert_tied


def test_the_public_names_are_found(monkeypatch):
    """Each is imported when it is first used, and stays."""
    for name in tiedgpt.__all__:
        monkeypatch.delitem(vars(tiedgpt), name, raising=False)
    listed = set(dir(tiedgpt))
    assert {name for name in listed if not name.startswith("_")} == set(tiedgpt.__all__)
    assert {"__version__", "__doc__", "__all__"} <= listed
    assert "_MODULES" not in listed
    names = {}
    exec("from tiedgpt import *", names)
    for name in tiedgpt.__all__:
        assert names[name].__name__ == name
        assert vars(tiedgpt)[name] is names[name]
    assert names["GPT2"].__module__ == "tiedgpt.gpt2.model"
    with pytest.raises(AttributeError, match=r"^module 'tiedgpt' has no attribute 'scores'$"):
        _ = tiedgpt.scores


@pytest.mark.parametrize("is_ignored", [False, True])
def test_ctrl_c_before_and_after_the_program(monkeypatch, is_ignored):
    """Before, it ends the process at once; after, it does not change the exit code.

    A program that was started so that it ignores Ctrl-C always ignores it.
    """
    during = []

    def main_of_cli():
        during.append(signal.getsignal(signal.SIGINT))
        during.append(os.environ["OPENBLAS_THREAD_TIMEOUT"])
        return 7

    monkeypatch.setattr(cli, "main", main_of_cli)
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "")  # put back after the test
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT")
    usual = signal.signal(
        signal.SIGINT, signal.SIG_IGN if is_ignored else signal.default_int_handler
    )
    try:
        code = __main__.main()
        after = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert code == 7
    assert during == [signal.SIG_IGN if is_ignored else signal.SIG_DFL, "14"]
    assert after == signal.SIG_IGN


class FirstImport:
    """A finder of modules that is asked before the others.

    When cli is imported, it notes the setting of OpenBLAS and what Ctrl-C does.
    """

    def __init__(self):
        self.seen = []

    def find_spec(self, name, path, target=None):
        if name == "tiedgpt.cli":
            self.seen.append(os.environ.get("OPENBLAS_THREAD_TIMEOUT"))
            self.seen.append(signal.getsignal(signal.SIGINT))
            raise ImportError("it is enough to have seen this")


def test_blas_is_tuned_and_ctrl_c_ends_the_program_before_numpy_is_imported(monkeypatch):
    finder = FirstImport()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "tiedgpt.cli")
    monkeypatch.delattr(tiedgpt, "cli")
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "")  # put back after the test
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT")
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(ImportError, match="it is enough"):
            __main__.main()
    finally:
        signal.signal(signal.SIGINT, usual)
    assert finder.seen == ["14", signal.SIG_DFL]


def test_a_time_that_the_user_set_for_the_threads_of_blas_stays(monkeypatch):
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "3")
    __main__.tune()
    assert os.environ["OPENBLAS_THREAD_TIMEOUT"] == "3"


def test_the_assertions_of_the_plugin_are_those_of_testing(assert_same_gpt2, assert_tied):
    assert assert_same_gpt2 is testing.assert_same_gpt2
    assert assert_tied is testing.assert_tied


def test_the_small_gpt2_of_the_plugin_is_once_tied_and_once_untied(request, tiny_gpt2):
    head = request.node.callspec.params["tiny_gpt2"]
    assert tiny_gpt2.tied == (head == "tied")
    assert tiny_gpt2.config == testing.TINY.with_head(head)
    for name, array in testing.random_model(tiny_gpt2.config).parameters.items():
        np.testing.assert_array_equal(tiny_gpt2.parameters[name], array)
