"""tiedgpt works without the functions and modules of Linux that macOS or Windows lack.

Each test runs twice: without what macOS lacks, and without what Windows lacks.
"""

import ctypes
import mmap
import os
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import tiedgpt
from tiedgpt import documents, threads

pytest.importorskip("fcntl")

LACKS_OF_MACOS = [(os, "sched_getaffinity"), (mmap, "MADV_HUGEPAGE")]
MORE_LACKS_OF_WINDOWS = [
    (signal, "pthread_sigmask"),
    (signal, "SIGHUP"),
    (os, "geteuid"),
    (os, "fork"),
    (os, "O_NOFOLLOW"),
]
MODULES_OF_POSIX = ["fcntl", "termios", "tty", "pty", "resource", "readline", "grp", "pwd"]


def load_no_library(name):
    """A replacement of ctypes.CDLL that finds no library.

    For the name None it raises TypeError, as ctypes.CDLL does on Windows.
    """
    if name is None:
        raise TypeError
    raise OSError


def take_away_what_macos_lacks(monkeypatch):
    for module, name in LACKS_OF_MACOS:
        monkeypatch.delattr(module, name, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", load_no_library)


def take_away_what_windows_lacks(monkeypatch):
    """Windows lacks what macOS lacks, and more."""
    take_away_what_macos_lacks(monkeypatch)
    for module, name in MORE_LACKS_OF_WINDOWS:
        monkeypatch.delattr(module, name, raising=False)
    for module in MODULES_OF_POSIX:
        monkeypatch.setitem(sys.modules, module, None)  # an import of it raises ImportError
    monkeypatch.setattr(sys, "platform", "win32")


@pytest.fixture(
    autouse=True,
    params=[
        pytest.param(take_away_what_macos_lacks, id="macOS"),
        pytest.param(take_away_what_windows_lacks, id="Windows"),
    ],
)
def another_system(request, monkeypatch):
    take_away = request.param
    take_away(monkeypatch)
    threads.openblas.cache_clear()  # so that it searches the library anew
    yield
    threads.openblas.cache_clear()


COMMANDS = [
    "train text.txt --out model --n-layer 1 --n-head 1 --n-embd 8 --context 8 --vocab-size 260 "
    "--batch 2 --steps 2",
    "train text.txt --resume model --steps 3",
    "generate -m model -n 5 To",
    "score -m model text.txt",
    "untie model untied",
    "params model",
]


def test_the_commands_work(monkeypatch, run, tmp_path):
    """The commands end with code 0. They leave their results and no other files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("To be, or not to be. " * 60)
    for command in COMMANDS:
        code, _, err = run(*command.split())
        assert code == 0, f"{command}: {err}"
    files = sorted(os.listdir(tmp_path))
    assert files == ["model", "text.txt", "untied"]


def test_all_cores_of_the_machine_are_counted(monkeypatch):
    """os.sched_getaffinity, which names the cores that this process may use, is missing."""
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert threads.cores() == 5


def test_the_workers_of_documents_are_started(monkeypatch):
    """Elsewhere pthread_sigmask blocks Ctrl-C in them. Windows lacks it."""
    distributed = pytest.importorskip("distributed")
    client = SimpleNamespace(run=lambda function: None)
    monkeypatch.setattr(distributed, "Client", lambda **options: client)
    assert documents.new_client(None) is client


def test_a_mapped_model_equals_a_copied_one(checkpoint):
    """With copy=True the file is always read. Without it, macOS maps the file into memory."""
    mapped = tiedgpt.load_model(checkpoint)
    copied = tiedgpt.load_model(checkpoint, copy=True)
    np.testing.assert_array_equal(mapped.W_E, copied.W_E)
