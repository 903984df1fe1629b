"""Fixtures of all tests, and what pytest says at its end. What else tests share is in support/."""

import io
import os
import re
import socket
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import loopback_hub
from support.loopback_hub import LoopbackHub, running, version
from support.models import CONFIG, random_model
from support.reference import GPT2_MERGES, GPT2_VOCAB, SHARED

import tiedgpt
from tiedgpt import GPT2, Tokenizer, cli
from tiedgpt.checkpoints import fetching, places, remote_models
from tiedgpt.checkpoints.vocabulary import read_merges
from tiedgpt.errors import TiedGPTWarning
from tiedgpt.fast import blas, threads

# The extra that brings a module. A test that needs one calls pytest.importorskip.
EXTRAS = {
    "torch": "parity",
    "transformers": "parity",
    "tokenizers": "parity",
    "safetensors": "parity",
    "tiktoken": "parity",
    "huggingface_hub": "parity",
    "playwright": "browser",
    "axe_playwright_python": "browser",
    "distributed": "test",
    "lm_eval": "eval",
    "matplotlib": "plot",
    "scipy": "tying",
}


def pytest_terminal_summary(terminalreporter, config):
    """Say what was not run: a line for each reason, and one for the slow tests."""
    tests = defaultdict(set)  # a reason -> the tests that were skipped for it
    missing = defaultdict(set)  # the same reason -> the modules that are not installed
    for report in terminalreporter.stats.get("skipped", []):
        _file, _line, text = report.longrepr
        reason = text.removeprefix("Skipped: ")
        module = missing_module(reason)
        if module in EXTRAS:
            # All modules of an extra share a line, because one command installs them.
            reason = f"pip install -e '.[{EXTRAS[module]}]'"
            missing[reason].add(module)
        tests[reason].add(report.nodeid)

    for reason, nodeids in tests.items():
        if reason in missing:
            modules = ", ".join(sorted(missing[reason]))
            verb = "is" if len(missing[reason]) == 1 else "are"
            subject = f"{modules} {verb} not installed ({count_of(nodeids)})"
        else:
            subject = f"skipped {count_of(nodeids)}"
        terminalreporter.write_line(f"{subject}: {reason}")

    slow_tests = terminalreporter.stats.get("deselected", [])
    has_default_options = config.option.markexpr == "not slow" and config.option.keyword == ""
    if slow_tests and has_default_options:
        terminalreporter.write_line(
            f"left out, because they are slow: {len(slow_tests)}; to run them too: pytest -m ''"
        )


def missing_module(reason: str) -> str | None:
    """The module that a test was skipped without; None if it was skipped for another reason."""
    failed_import = re.match(r"could not import '(\w+)", reason)  # pytest.importorskip's words
    not_installed = re.match(r"(\w+) is not installed", reason)  # our tests' words
    match = failed_import or not_installed
    if match is None:
        return None
    return match[1]


def count_of(nodeids: set[str]) -> str:
    """For example: 1 test and 2 test files."""
    tests = [nodeid for nodeid in nodeids if "::" in nodeid]
    files = [nodeid for nodeid in nodeids if "::" not in nodeid]  # skipped as a whole
    counts = []
    if tests:
        counts.append(plural(len(tests), "test"))
    if files:
        counts.append(plural(len(files), "test file"))
    return " and ".join(counts)


def plural(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}s"


# Every test


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """No test downloads a model or waits for the disk.

    The tests of downloads turn the network on again, for a hub on this machine (weights_folder).
    """
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(os, "fsync", lambda fd: None)


# Reference data


@pytest.fixture
def shared() -> Path:
    """The folder of reference data beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip("no reference data: there is no folder `shared` beside the checkout")
    return SHARED


@pytest.fixture
def corpus(shared) -> str:
    """The text of tinyshakespeare."""
    return (shared / "corpus" / "tinyshakespeare.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def gpt2() -> Tokenizer:
    """GPT-2's own tokenizer, from OpenAI's files."""
    if not (GPT2_MERGES.is_file() and GPT2_VOCAB.is_file()):
        pytest.skip(
            "GPT-2's vocabulary is not here: neither a gpt2 that tiedgpt finds nor shared/ has it"
        )
    return read_merges(GPT2_MERGES, GPT2_VOCAB)


# Small models and checkpoints


@pytest.fixture
def model() -> GPT2:
    """A small tied model."""
    return random_model()


@pytest.fixture
def shapes_read(monkeypatch) -> list[tuple[int, int]]:
    """The shapes of the ids [B, T] that models have read, in order."""
    shapes = []
    original_final = GPT2.final  # through which whatever reads tokens goes

    def recording_final(model, ids, *arguments, **options):
        shapes.append(np.shape(ids))
        return original_final(model, ids, *arguments, **options)

    monkeypatch.setattr(GPT2, "final", recording_final)
    return shapes


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> str:
    """A small tied checkpoint whose tokens are bytes."""
    path = tmp_path_factory.mktemp("models") / "bytes"
    tiedgpt.save_model(random_model(CONFIG), Tokenizer([]), path)
    return str(path)


@pytest.fixture(scope="session")
def untied(tmp_path_factory) -> str:
    """A small untied checkpoint of the same vocabulary."""
    path = tmp_path_factory.mktemp("models") / "untied"
    tiedgpt.save_model(random_model(CONFIG.with_head("untied"), seed=1), Tokenizer([]), path)
    return str(path)


@pytest.fixture
def save(tmp_path):
    """save(name, model, tokenizer) -> the path of the new checkpoint.

    The tokenizer may have another size than the model. The warning about that is left out.
    """

    def save(name, model, tokenizer=None) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TiedGPTWarning)
            tiedgpt.save_model(model, tokenizer or Tokenizer([]), tmp_path / name)
        return str(tmp_path / name)

    return save


@pytest.fixture
def no_models(tmp_path, monkeypatch) -> Path:
    """The home of a machine without models and without settings for the hub.

    tiedgpt seems to be in its folder `checkout`, which has no models either.
    """
    hub_variables = "HF_(?!HUB_OFFLINE)|HUGGINGFACE|XDG_|TIEDGPT_|NETRC|.*_CA_BUNDLE"
    for variable in os.environ:
        if re.match(hub_variables, variable):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))

    # places.py looks for models beside the file that it is in.
    module = tmp_path / "checkout" / "tiedgpt" / "checkpoints" / "places.py"
    monkeypatch.setattr(places, "__file__", str(module))
    return tmp_path


@pytest.fixture(scope="module")
def one_thread():
    """A training that repeats: one BLAS thread, which waits for none, and one reading thread.

    The number of reading threads changes the last bits of a loss.
    """
    with blas.one_blas_thread(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "reading_threads", lambda: 1)
        yield


# A hub on the loopback interface


@pytest.fixture
def weights_folder(no_models, tmp_path, monkeypatch) -> Path:
    """An empty folder for weights, on a machine without models that may download.

    A test fails where it asks for an address of the real network.
    """
    resolve = socket.getaddrinfo

    def guarded_resolve(host, *arguments, **options):
        if host not in ("127.0.0.1", "localhost", None):  # None is this machine, too
            pytest.fail(f"asks for the address of {host}")
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", guarded_resolve)

    # Other processes have no guard. They get a proxy that does not answer.
    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)  # it would come before that in capital letters
        monkeypatch.setenv(variable.upper(), "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")

    monkeypatch.delenv("HF_HUB_OFFLINE")  # no_waiting has set it
    monkeypatch.delenv("XDG_CACHE_HOME")  # so the caches are in the folder .cache of HOME
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr(fetching, "DELAY", 0.001)  # seconds between two attempts
    monkeypatch.setattr(fetching, "TIMEOUT", (5, 5))  # seconds to connect, and for more data
    monkeypatch.setattr(fetching, "BYTES_PER_READ", loopback_hub.BLOCK)
    return tmp_path / "weights"


@pytest.fixture(scope="session")
def hub_files(tmp_path_factory) -> dict[str, bytes]:
    """A small model's files; the weights have about 1 MB."""
    path = tmp_path_factory.mktemp("hub") / "tiny"
    tiedgpt.save_model(random_model(loopback_hub.CONFIG), Tokenizer([]), path)
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.fixture
def hub_server(weights_folder, hub_files, monkeypatch) -> Iterator[LoopbackHub]:
    """A hub that has the small model as loopback_hub.NAME."""
    with running(LoopbackHub()) as server:
        server.put(loopback_hub.NAME, hub_files)
        monkeypatch.setenv("HF_ENDPOINT", f"http://{server.host}")
        # A download is checked against these pins. Here they are those of the small vocabulary.
        monkeypatch.setattr(remote_models, "VOCAB", version(hub_files["vocab.json"]))
        monkeypatch.setattr(remote_models, "MERGES", version(hub_files["merges.txt"]))
        yield server


# The command line


@pytest.fixture
def run(capsys, monkeypatch):
    """run(*arguments, stdin=bytes) -> (exit code, stdout, stderr), in this process."""

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        # A file on the disk, because `documents` asks stdin for its file descriptor.
        with io.TextIOWrapper(tempfile.TemporaryFile()) as file:
            file.buffer.write(stdin)
            file.seek(0)
            monkeypatch.setattr(sys, "stdin", file)
            try:
                code = cli.main(list(arguments))
            except SystemExit as stop:  # argparse raises it
                code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    return run
