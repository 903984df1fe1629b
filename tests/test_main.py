"""The front doors: the names of `import tiedgpt`, `python -m tiedgpt`, the plugin of pytest."""

import os
import signal

import pytest

import tiedgpt
from tiedgpt import __main__, cli, pytest_plugin, testing

# Pytest finds the fixtures of the plugin here.
tiny_gpt2 = pytest_plugin.tiny_gpt2
assert_same_gpt2 = pytest_plugin.assert_same_gpt2
assert_tied = pytest_plugin.assert_tied


def test_the_public_names_are_there_and_listed():
    for name in tiedgpt.__all__:
        assert getattr(tiedgpt, name).__name__ == name
        assert name in vars(tiedgpt), "the next use finds it without an import"
    assert {*tiedgpt.__all__, "__version__", "__doc__", "__all__"} <= set(dir(tiedgpt))
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


def test_the_user_s_own_time_for_the_threads_of_blas_stays(monkeypatch):
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "3")
    __main__.tune()
    assert os.environ["OPENBLAS_THREAD_TIMEOUT"] == "3"


def test_the_plugin_has_what_the_testing_module_has(tiny_gpt2, assert_same_gpt2, assert_tied):
    assert isinstance(tiny_gpt2, tiedgpt.GPT2)
    assert assert_same_gpt2 is testing.assert_same_gpt2
    assert assert_tied is testing.assert_tied
