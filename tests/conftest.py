"""The fixtures of several test modules, and the summary that pytest prints after the tests.

A checkpoint is a directory with a saved model. A hub is a server of models, like huggingface.co.
The functions that several test modules use are in support/.
"""

import io
import os
import re
import signal
import socket
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import loopback_hub
from support.loopback_hub import LoopbackHub, running
from support.models import CONFIG, random_model
from support.reference import GPT2_MERGES, GPT2_VOCAB, SHARED

import tiedgpt
from tiedgpt import GPT2, Tokenizer, cli, threads
from tiedgpt.checkpoints import download, model_names
from tiedgpt.checkpoints.vocabulary import read_tokenizer
from tiedgpt.errors import TiedGPTWarning

# The threads of torch, and of BLAS in the processes that tests start: one, as in `one_blas_thread`.
# NumPy is imported already, so its BLAS in this process does not read this.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A module -> the extra of tiedgpt that installs it. A test that needs such a module calls
# pytest.importorskip.
EXTRAS = {
    "torch": "parity",
    "transformers": "parity",
    "tokenizers": "head",
    "safetensors": "parity",
    "tiktoken": "parity",
    "peft": "parity",
    "huggingface_hub": "parity",
    "playwright": "browser",
    "axe_playwright_python": "browser",
    "distributed": "dask",
    "matplotlib": "plot",
    "scipy": "tying",
    "sphinx": "docs",
    "myst_parser": "docs",
    "check_jsonschema": "dev",
}


def pytest_addoption(parser):
    """Add the flags of these tests."""
    parser.addoption("--update", action="store_true", help="write tests/cli/transcript.txt anew")
    parser.addoption("--all-cases", action="store_true", help="run the tests marked `whole` too")
    parser.addoption("--without", type=Path, help="a list of tests to leave out, as -rp prints it")


def pytest_configure():
    """Let Ctrl-C interrupt the tests, and the processes that they start.

    A shell script starts background processes with SIGINT ignored, and they pass that on.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    """Leave out the tests of a list, skip those marked `whole`, and end a test that hangs.

    On a machine that is busy, `pytest --timeout 600` waits longer.
    """
    if config.getoption("--without"):
        passed = set(config.getoption("--without").read_text(encoding="utf-8").splitlines())
        left_out = [test for test in items if f"PASSED {test.nodeid}" in passed]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [test for test in items if f"PASSED {test.nodeid}" not in passed]
    if not config.getoption("--all-cases"):
        sampled = pytest.mark.skip(reason="a sample of the cases is run; for all: --all-cases")
        for test in items:
            if test.get_closest_marker("whole"):
                test.add_marker(sampled)
    has_plugin = config.pluginmanager.hasplugin("timeout")  # pytest-timeout, of the extra `test`
    if not has_plugin or config.getoption("timeout") is not None:
        return  # the limit of --timeout holds
    for test in items:
        seconds = 120
        if test.get_closest_marker("slow"):
            seconds = 1200
        test.add_marker(pytest.mark.timeout(seconds))


def pytest_terminal_summary(terminalreporter, config):
    """Print a line for each reason for which tests were skipped, and a line for the slow tests."""
    tests = defaultdict(set)  # a reason -> the tests that were skipped for it
    missing = defaultdict(set)  # a command that installs modules -> those that are not installed
    for report in terminalreporter.stats.get("skipped", []):
        _file, _line, text = report.longrepr
        reason = text.removeprefix("Skipped: ")
        module = missing_module(reason)
        if module in EXTRAS:
            # The reason is replaced by the command that installs the module. So all modules that
            # the same command installs are in one line.
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

    # By default, pytest leaves out the slow tests alone. With -m, -k or --without LIST (an option
    # of these tests) it may leave out others.
    has_default_options = (
        config.option.markexpr == "not slow"
        and config.option.keyword == ""
        and config.option.without is None
    )
    left_out = terminalreporter.stats.get("deselected", [])
    if left_out and has_default_options:
        terminalreporter.write_line(
            f"left out, because they are slow: {len(left_out)}; to run them too: pytest -m ''"
        )


def missing_module(reason: str) -> str | None:
    """The module that a test was skipped without; None if it was skipped for another reason."""
    failed_import = re.match(r"could not import '(\w+)", reason)  # from pytest.importorskip
    not_installed = re.match(r"(\w+) is not installed", reason)  # from a test's own pytest.skip
    match = failed_import or not_installed
    if match is None:
        return None
    return match[1]


def count_of(nodeids: set[str]) -> str:
    """The number of tests, such as "1 test and 2 test files".

    The id of a test is FILE::NAME. The id FILE is that of a test file which is skipped as a whole.
    """
    tests = [nodeid for nodeid in nodeids if "::" in nodeid]
    files = [nodeid for nodeid in nodeids if "::" not in nodeid]
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


@pytest.fixture(scope="module", autouse=True)
def one_blas_thread():
    """One BLAS thread: with small matrices, several would mostly wait for each other.

    The number of Python's threads stays. test_threads.py replaces this fixture.
    """
    with threads.one_blas_thread():
        yield


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """In every test, tiedgpt downloads no model, and os.fsync does not wait for the disk.

    The fixture weights_folder allows downloads again, from a hub on this machine.
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
    return read_tokenizer(GPT2_MERGES.parent)


# Small models and checkpoints


@pytest.fixture
def model() -> GPT2:
    """A small tied model."""
    return random_model()


@pytest.fixture
def shapes_read(monkeypatch) -> list[tuple[int, int]]:
    """A list to which a model adds the shape [B, T] of the ids, each time that it reads some."""
    shapes = []
    original_final = GPT2.final  # the method with which a model reads ids

    def recording_final(model, ids, *arguments, **options):
        shapes.append(np.shape(ids))
        return original_final(model, ids, *arguments, **options)

    monkeypatch.setattr(GPT2, "final", recording_final)
    return shapes


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> str:
    """The path of a small tied checkpoint. Its tokens are bytes."""
    path = tmp_path_factory.mktemp("models") / "bytes"
    tiedgpt.save_model(random_model(CONFIG), Tokenizer([]), path)
    return str(path)


@pytest.fixture(scope="session")
def untied(tmp_path_factory) -> str:
    """The path of a small untied checkpoint. Its tokens are bytes, too."""
    path = tmp_path_factory.mktemp("models") / "untied"
    tiedgpt.save_model(random_model(CONFIG.with_head("untied"), seed=1), Tokenizer([]), path)
    return str(path)


@pytest.fixture
def save(tmp_path):
    """save(name, model, tokenizer) -> the path of the new checkpoint.

    Without a tokenizer, the tokens are bytes. No warning is shown if the vocabularies of the model
    and the tokenizer have different sizes.
    """

    def save(name, model, tokenizer=None) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TiedGPTWarning)
            tiedgpt.save_model(model, tokenizer or Tokenizer([]), tmp_path / name)
        return str(tmp_path / name)

    return save


@pytest.fixture
def no_models(tmp_path, monkeypatch) -> Path:
    """The home directory on a machine that has no models, and no settings for the hub.

    The source of tiedgpt seems to be in the folder `checkout` of the home directory.
    """
    # HF_HUB_OFFLINE stays, so that nothing is downloaded.
    hub_variables = (
        "HF_(?!HUB_OFFLINE)|HUGGING_?FACE|TRANSFORMERS_|XDG_|TIEDGPT_|NETRC|.*_CA_BUNDLE"
    )
    for variable in os.environ:
        if re.match(hub_variables, variable):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))

    # model_names.py looks for models beside the package. It finds none beside this one.
    monkeypatch.setattr(model_names, "PACKAGE", tmp_path / "checkout" / "tiedgpt")
    return tmp_path


@pytest.fixture(scope="module")
def one_reading_thread():
    """One thread reads a text, so that a second training gives the same losses.

    The number of reading threads changes the last bits of a loss.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "reading_threads", lambda: 1)
        yield


# A hub on the loopback interface


@pytest.fixture
def weights_folder(no_models, tmp_path, monkeypatch) -> Path:
    """The folder for downloaded weights, which does not exist yet. No other models are found.

    Downloads are allowed, but from this machine alone: a test fails if it looks up the address of
    another host.
    """
    resolve = socket.getaddrinfo

    def guarded_resolve(host, *arguments, **options):
        if host not in ("127.0.0.1", "localhost", None):  # None means this machine, too
            pytest.fail(f"asks for the address of {host}")
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", guarded_resolve)

    # The processes that a test starts look up addresses without this guard. Their proxy is a port
    # at which nothing answers.
    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        # Where both are set, the variable in small letters would be used.
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv(variable.upper(), "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")

    monkeypatch.delenv("HF_HUB_OFFLINE")  # the fixture no_waiting sets it for every test
    monkeypatch.delenv("XDG_CACHE_HOME")  # so the caches are in the folder .cache of HOME
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr(download, "DELAY", 0.001)  # seconds between two attempts
    connect_seconds = 5
    read_seconds = 5  # without new data
    monkeypatch.setattr(download, "TIMEOUT", (connect_seconds, read_seconds))
    monkeypatch.setattr(download, "BYTES_PER_READ", loopback_hub.BLOCK)
    return tmp_path / "weights"


@pytest.fixture(scope="session")
def hub_files(tmp_path_factory) -> dict[str, bytes]:
    """The files of a small model, by name. The file of the weights has about 90 kB."""
    path = tmp_path_factory.mktemp("hub") / "tiny"
    tiedgpt.save_model(random_model(loopback_hub.CONFIG), Tokenizer([]), path)
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.fixture
def hub_server(weights_folder, hub_files, monkeypatch) -> Iterator[LoopbackHub]:
    """A hub that runs on this machine. It has hub_files in the repository loopback_hub.NAME."""
    with running(LoopbackHub()) as server:
        server.put(loopback_hub.NAME, hub_files)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


# The command line


@pytest.fixture
def run(capsys, monkeypatch):
    """run(*arguments, stdin=bytes) -> (exit code, stdout, stderr), in this process."""

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = cli.main(list(arguments))
        except SystemExit as stop:  # argparse raises it
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def run_script(capsys, monkeypatch):
    """run_script(module, *arguments) -> (exit code, stdout, stderr). module: one of scripts/."""

    def run_script(module, *arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [Path(module.__file__).name, *map(str, arguments)])
        code = 0
        try:
            module.main()
        except SystemExit as stop:  # for arguments that are refused
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    return run_script
