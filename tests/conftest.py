"""What the tests share: small random models with every size different, the command line, reference
data."""

import io
import json
import os
import re
import sys
import tempfile
import tracemalloc
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tiedgpt
from tiedgpt import GPT2, Config, Tokenizer, cli
from tiedgpt.checkpoints import places
from tiedgpt.checkpoints.places import find_model
from tiedgpt.checkpoints.vocabulary import read_merges
from tiedgpt.errors import CheckpointError, TiedGPTError
from tiedgpt.study.corpus import Corpus

SHARED = Path(__file__).resolve().parents[2] / "shared"
GPT2_MERGES, GPT2_VOCAB = (
    SHARED / "gpt2" / "124M" / "vocab.bpe",
    SHARED / "gpt2" / "124M" / "encoder.json",
)
if not GPT2_MERGES.is_file():
    with suppress(CheckpointError):
        directory = find_model("gpt2")
        GPT2_MERGES, GPT2_VOCAB = directory / "merges.txt", directory / "vocab.json"

# Distinct primes where the model allows it (D = H K), so that no transposition or mix-up cancels
# out.
SMALL = Config(
    vocab_size=101,
    n_ctx=31,
    n_embd=3 * 7,
    n_layer=2,
    n_head=3,
    n_inner=53,
    bos_token_id=0,
    eos_token_id=0,
)


EXTRAS = {  # the extra that brings a module; a test that needs one calls pytest.importorskip
    **dict.fromkeys(["torch", "transformers", "tokenizers", "safetensors", "tiktoken"], "parity"),
    **dict.fromkeys(["playwright", "axe_playwright_python"], "browser"),
    "distributed": "test",
    "lm_eval": "eval",
    "matplotlib": "plot",
}


def pytest_terminal_summary(terminalreporter, config):
    """What was not run: a line for each reason, and one for all modules of an extra."""
    skipped, missing = defaultdict(set), defaultdict(set)
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        module = re.match(r"could not import '(\w+)|(\w+) is not installed", reason)
        if module and (name := module[1] or module[2]) in EXTRAS:
            reason = f"pip install -e '.[{EXTRAS[name]}]'"
            missing[reason].add(name)
        skipped[reason].add(report.nodeid)
    for reason, ids in skipped.items():
        kinds = Counter("test" if "::" in nodeid else "test file" for nodeid in ids)
        count = " and ".join(f"{n} {kind}{'s' * (n != 1)}" for kind, n in sorted(kinds.items()))
        what = f"skipped {count}"
        if names := ", ".join(sorted(missing[reason])):
            what = f"{names} {'are' if ',' in names else 'is'} not installed ({count})"
        terminalreporter.write_line(f"{what}: {reason}")
    if (config.option.markexpr, config.option.keyword) == ("not slow", "") and (
        slow := terminalreporter.stats.get("deselected")
    ):
        terminalreporter.write_line(
            f"left out, because they are slow: {len(slow)}; to run them too: pytest -m ''"
        )


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """No test downloads a model, except in test_hub.py, which has its own hub. None waits for the
    disk."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def shared() -> Path:
    """The folder of reference data beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip("no reference data: there is no folder `shared` beside the checkout")
    return SHARED


SMALL_MERGES = [("l", "o"), ("lo", "w"), ("Ġ", "low"), ("e", "r"), ("Ã", "©")]  # the last is "é"


def random_model(config: Config = SMALL, seed: int = 0, dtype: type = np.float32) -> GPT2:
    """A model whose every parameter is random and large enough to matter, biases and layer norms
    included."""
    rng = np.random.default_rng(seed)
    model = GPT2.random(config)
    parameters = {}
    for name, array in model.parameters.items():
        around = 1.0 if "ln_" in name and name.endswith(".weight") else 0.0
        parameters[name] = (around + 0.3 * rng.standard_normal(array.shape)).astype(dtype)
    return GPT2(config, parameters)


def some_corpus() -> Corpus:
    """A text of 70 of SMALL's tokens, some frequent and some not, each with a favourite
    successor."""
    rng = np.random.default_rng(3)
    ids = [0]
    for favourite, other in zip(rng.random(12_000) < 0.6, rng.integers(0, 70, 12_000), strict=True):
        ids.append((3 * ids[-1] + 1) % 70 if favourite else int(70 * (other / 70) ** 1.3))
    return Corpus.of(ids, SMALL.vocab_size)


@pytest.fixture
def model() -> GPT2:
    """A small tied model."""
    return random_model()


@pytest.fixture(scope="session")
def gpt2() -> Tokenizer:
    """GPT-2's own tokenizer, from OpenAI's files."""
    if not (GPT2_MERGES.is_file() and GPT2_VOCAB.is_file()):
        pytest.skip(
            "GPT-2's vocabulary is not here: neither a gpt2 that tiedgpt finds nor shared/ has it"
        )
    return read_merges(GPT2_MERGES, GPT2_VOCAB)


@pytest.fixture
def corpus(shared) -> str:
    return (shared / "corpus" / "tinyshakespeare.txt").read_text(encoding="utf-8")


# A small model whose tokens are bytes.
CONFIG = replace(SMALL, vocab_size=257, n_ctx=64, bos_token_id=None, eos_token_id=None)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A small tied checkpoint whose tokens are bytes."""
    path = tmp_path_factory.mktemp("models") / "bytes"
    tiedgpt.save_model(random_model(CONFIG), Tokenizer([]), path)
    return str(path)


@pytest.fixture(scope="session")
def untied(tmp_path_factory):
    """A small untied checkpoint of the same vocabulary."""
    path = tmp_path_factory.mktemp("models") / "untied"
    tiedgpt.save_model(random_model(CONFIG.with_head("untied"), seed=1), Tokenizer([]), path)
    return str(path)


@pytest.fixture
def save(tmp_path):
    """save(name, model, tokenizer) -> the path of the new checkpoint."""

    def save(name, model, tokenizer=None) -> str:
        tiedgpt.save_model(model, tokenizer or Tokenizer([]), tmp_path / name)
        return str(tmp_path / name)

    return save


@pytest.fixture
def run(capsys, monkeypatch):
    """run(*arguments, stdin=bytes) -> (exit code, stdout, stderr), in this process."""

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        with io.TextIOWrapper(tempfile.TemporaryFile()) as file:
            file.buffer.write(stdin)
            file.seek(0)
            monkeypatch.setattr(sys, "stdin", file)
            try:
                code = cli.main(list(arguments))
            except SystemExit as stop:  # raised by argparse
                code = stop.code
        return code, *capsys.readouterr()

    return run


def output(run, *arguments, stdin=b"") -> str:
    """What a command without notes prints on stdout."""
    code, out, err = run(*arguments, stdin=stdin)
    assert (code, err) == (0, "")
    return out


def answer(run, *arguments, stdin=b""):
    """The JSON document of a command without notes."""
    return json.loads(output(run, *arguments, "--json", stdin=stdin))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tiedgpt", *arguments]


def refuses(message: str, function, *arguments, error: type[TiedGPTError] = CheckpointError) -> str:
    """The call raises this error, of one line, with this message, which is returned."""
    with pytest.raises(error, match=message) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def peak_memory(function, *arguments) -> int:
    """The bytes that a call takes at once, beside what there is."""
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def assert_one_error_line(result: tuple[int, str, str], message: str) -> None:
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("tiedgpt: error: "), err
    assert err.count("\n") == 1
    assert message in err


@pytest.fixture
def no_models(tmp_path, monkeypatch):
    """A machine without models, where nothing is set up for the hub; its home. tiedgpt is in
    `checkout`."""
    for variable in os.environ:
        if re.match(
            "HF_(?!HUB_OFFLINE)|HUGGINGFACE|XDG_|TIEDGPT_WEIGHTS|NETRC|.*_CA_BUNDLE", variable
        ):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    package = tmp_path / "checkout" / "tiedgpt"
    monkeypatch.setattr(places, "__file__", str(package / "checkpoints" / "places.py"))
    return tmp_path
