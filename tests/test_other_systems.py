"""What only Linux, glibc or POSIX has is taken away, as macOS and Windows lack it: everything still
works."""

import ctypes
import json
import mmap
import os
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import tiedgpt
from tiedgpt import fast
from tiedgpt.checkpoints import locks, publishing, safetensors
from tiedgpt.fast import blas, threads

MACOS = [(os, "sched_getaffinity"), (mmap, "MADV_HUGEPAGE")]
WINDOWS = [
    (signal, "pthread_sigmask"),
    (signal, "SIGHUP"),
    (os, "geteuid"),
    (os, "fork"),
    (os, "O_NOFOLLOW"),
]
MODULES = ["fcntl", "termios", "tty", "pty", "resource", "readline", "grp", "pwd"]


@pytest.fixture(params=["macOS", "Windows"])
def system(request, monkeypatch):
    """The name of a system, whose lacks this process now has."""
    fcntl = pytest.importorskip("fcntl")

    def locking(fd, mode, size):
        """Like msvcrt's."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError from error

    def library(name):
        raise TypeError if name is None else OSError

    windows = request.param == "Windows"
    for module, name in MACOS + (WINDOWS if windows else []):
        monkeypatch.delattr(module, name, raising=False)
    monkeypatch.setattr(safetensors, "MADV_POPULATE_READ", 12345)
    monkeypatch.setattr(ctypes, "CDLL", library)
    if windows:
        for module in MODULES:
            monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
        monkeypatch.setattr(locks, "NO_FOLLOW", 0)
        monkeypatch.setattr(sys, "platform", "win32")
    blas.openblas.cache_clear()  # it keeps what it found, and what it did not find
    yield request.param
    blas.openblas.cache_clear()


def test_the_commands_work(system, run, checkpoint, tmp_path):
    """Without maps of files, locks, masks of signals and so on, where the system has none."""
    text, lines = tmp_path / "text.txt", tmp_path / "in.jsonl"
    text.write_text("To be, or not to be. " * 60)
    lines.write_text(json.dumps({"id": "a", "text": "To be"}) + "\n")
    model = str(tmp_path / "model")
    shape = (
        "--n-layer",
        "1",
        "--n-head",
        "1",
        "--n-embd",
        "8",
        "--context",
        "8",
        "--vocab-size",
        "260",
    )
    for arguments in (
        ("train", str(text), "--out", model, *shape, "--batch", "2", "--steps", "2"),
        ("train", str(text), "--out", model, "--resume", "--steps", "3"),
        ("generate", "-m", model, "-n", "5", "To be"),
        ("score", "-m", model, str(text)),
        ("untie", model, str(tmp_path / "untied")),
        ("params", model),
        ("documents", "score", str(lines), "-m", model, "--out", str(tmp_path / "out.jsonl")),
    ):
        code, _, err = run(*arguments)
        assert code == 0, (arguments, err)
    assert {*os.listdir(tmp_path)} == {"in.jsonl", "model", "out.jsonl", "text.txt", "untied"}


def test_its_own_way(system, monkeypatch, tmp_path, checkpoint):
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert threads.cores() == 5
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "7")
    fast.tune()  # without mallopt
    with threads.ctrl_c_for_this_process_only():
        pass
    assert publishing._is_own_directory(tmp_path)
    with open(tmp_path / "lock", "w") as first, open(tmp_path / "lock", "w") as second:
        assert locks.try_lock(first.fileno())
        assert not locks.try_lock(second.fileno())
    mapped, read = tiedgpt.load_model(checkpoint), tiedgpt.load_model(checkpoint, copy=True)
    np.testing.assert_array_equal(mapped.W_E, read.W_E)
