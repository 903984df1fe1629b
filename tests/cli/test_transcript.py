"""What tiedgpt prints: every command line of transcript.txt prints what stands below it there.

Each one is run in this process, in a folder of small models and files. `<` stands before the file
that is stdin, `#` before what a refusal has to name: an update keeps it, and fails without it. To
add one, write its line, and run `pytest tests/cli/test_transcript.py --update`: it writes what each
line prints now. Without Dask, the lines of `documents` stay as they are.
"""

import contextlib
import difflib
import io
import json
import os
import re
import shlex
import shutil
import sys
import warnings
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from support.checkpoint_files import write_tensors
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt import GPT2, Tokenizer, cli, documents
from tiedgpt.checkpoints import Opened
from tiedgpt.explore.server import Server
from tiedgpt.training import start

TRANSCRIPT = Path(__file__).parent / "transcript.txt"
NEWER = (3, 13)  # the first version of Python whose argparse words help pages differently
PROMPT = "$ tiedgpt "
WEIGHTS = Path(__file__).resolve().parents[2] / "weights"  # the shipped models
# What another run or another processor may change: times, rounding errors, the last digits
TIME = re.compile(r"(?<=_s\": )[\d.e-]+")
ERROR = re.compile(r"\d\.\de-\d\d")
LONG_NUMBER = re.compile(r"-?\d+\.\d{5,}(?:e-\d+)?")


@pytest.fixture
def folder(no_models, monkeypatch) -> Path:
    """The current folder, in which the command lines find these files."""
    folder = no_models / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TIEDGPT_WEIGHTS", "weights")
    # One worker, in this process. Slow tests of test_documents.py have processes.
    monkeypatch.setattr(documents, "cores", lambda: 1)
    monkeypatch.setitem(documents.LOCAL_CLUSTER, "processes", False)
    monkeypatch.delitem(documents.LOCAL_CLUSTER, "host")
    monkeypatch.setattr(documents, "single_thread", lambda: None)
    # Each thread draws its dropout, so the losses depend on their number.
    monkeypatch.setattr(start, "training_threads", lambda n_embd: 2)
    # All lines with `explore` are refused. A server would wait for ever.
    monkeypatch.setattr(Server, "serve", lambda server: pytest.fail("it serves"))
    (folder / "weights").symlink_to(WEIGHTS)
    write_models(folder)
    write_damaged_models(folder)
    write_texts(folder)
    return folder


def write_models(folder: Path) -> None:
    """Small models whose tokens are bytes, and activations of one of them."""
    tied = random_model(CONFIG)
    tiedgpt.save_model(tied, Tokenizer([]), folder / "tied")
    tiedgpt.save_model(random_model(CONFIG.with_head("untied")), Tokenizer([]), folder / "untied")
    shutil.copytree(folder / "untied", folder / "other-flag")
    shutil.copy(folder / "tied" / "config.json", folder / "other-flag")
    tiedgpt.save_model(tied, None, folder / "no-tokenizer")
    ids = np.arange(12)
    unscaled = GPT2(replace(CONFIG, scale_attn_weights=False), tied.parameters)
    for name, model in (("right", tied), ("wrong", unscaled)):
        tape: dict[str, np.ndarray] = {}
        model(ids, tape=tape)
        given = {kind: tape[kind] for kind in ("embed", "attn.0.scores", "resid_mid.0", "logits")}
        np.savez(folder / f"{name}.npz", ids=ids, **given)
        np.savez(folder / "no-ids.npz", **given)
    greedy = list(tiedgpt.generate(tied, [1, 2, 3], 5, greedy=True))
    for name, ids in (("tokens", greedy), ("other-tokens", [*greedy[:-1], 0])):
        document = {"prompt_ids": [1, 2, 3], "ids": ids}
        (folder / f"{name}.json").write_text(json.dumps(document))
    (folder / "answers.json").write_text('{"encode/split/1": [1]}')


def write_damaged_models(folder: Path) -> None:
    """Copies of `tied`, each of them with one file that is wrong or missing."""
    config = json.loads((folder / "tied" / "config.json").read_text())
    weights = (folder / "tied" / "model.safetensors").read_bytes()
    # file -> the name of a copy -> what the copy has in this file
    files = {
        "config.json": {
            "no-json": b"{",
            "other-model": json.dumps(config | {"model_type": "llama"}).encode(),
            "no-n-head": json.dumps({k: v for k, v in config.items() if k != "n_head"}).encode(),
            # n_embd is 21: 4 heads cannot share it, and the tensors do not have 24.
            "n-head-4": json.dumps(config | {"n_head": 4}).encode(),
            "n-embd-24": json.dumps(config | {"n_embd": 24}).encode(),
        },
        "model.safetensors": {"cut": weights[:-1], "no-header": b"PK\3\4", "empty": b""},
        "merges.txt": {"bad-merges": b"a b\nc\n"},
        "vocab.json": {"bad-vocab": b'{"a": "b"}'},
    }
    for file, contents in files.items():
        for name, content in contents.items():
            shutil.copytree(folder / "tied", folder / name)
            (folder / name / file).write_bytes(content)

    shutil.copytree(folder / "tied", folder / "no-weights")
    (folder / "no-weights" / "model.safetensors").unlink()
    shutil.copytree(folder / "no-weights", folder / "pytorch")
    # A file of PyTorch is a zip file. This is the beginning of one, with nothing after it.
    (folder / "pytorch" / "pytorch_model.bin").write_bytes(b"PK\3\4")

    tensors = dict(random_model(CONFIG).parameters)
    wpe = tensors.pop("wpe.weight")
    shutil.copytree(folder / "tied", folder / "no-wpe")
    write_tensors(folder / "no-wpe", tensors, CONFIG)
    shutil.copytree(folder / "tied", folder / "nan")
    write_tensors(folder / "nan", {**tensors, "wpe.weight": wpe * np.float32(np.nan)}, CONFIG)


def write_texts(folder: Path) -> None:
    sentence = "The king sat in Dunfermline town, drinking the blood-red wine.\n"
    (folder / "story.txt").write_text(sentence * 60)
    (folder / "prompt.txt").write_text("To be, or\n")
    (folder / "long.txt").write_text("a" * 65)
    (folder / "special.txt").write_text("a<|endoftext|>b")
    (folder / "latin-1.txt").write_bytes(b"ab\xffcd")
    (folder / "empty.txt").write_text("")
    (folder / "ids.txt").write_text(" [ 51,\n78\t257 ]\n")
    rows = [json.dumps({"text": "To be"}), json.dumps({"text": ""}), "{"]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")


def run(line: str) -> str:
    """What the command line prints, to stdout and stderr, and its exit code if that is not 0."""
    words = shlex.split(line.removeprefix(PROMPT), comments=True)
    stdin = b""
    if "<" in words:
        stdin = Path(words.pop()).read_bytes()
        words.pop()
    screen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        warnings.simplefilter("default")
        with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
            code = cli.main(words)
    printed = screen.buffer.getvalue().decode()
    if code != 0:
        printed += f"[exit code {code}]\n"
    return printed


def plain(printed: str) -> str:
    """The text without what differs between two runs or two machines."""
    here = os.getcwd()
    printed = printed.replace(here, "HERE")
    printed = ERROR.sub("N.Ne-NN", TIME.sub("N", printed))
    return LONG_NUMBER.sub(lambda number: f"{float(number[0]):.3g}", printed)


def paths_in(folder: Path) -> set[str]:
    """All files and folders in a folder. os.walk takes a third of the time of Path.rglob."""
    return {
        os.path.join(place, name)
        for place, folders, files in os.walk(folder)
        for name in [*folders, *files]
    }


def assert_refused(line: str, printed: str) -> None:
    """A refusal has one line of error. What stands behind `#` is in what is printed."""
    errors = [row for row in printed.splitlines() if row.startswith("tiedgpt: error: ")]
    assert len(errors) == 1, line
    assert errors[0].isprintable(), line
    assert line.partition("  # ")[2] in printed, line


@pytest.fixture
def weights_read(monkeypatch) -> list[str]:
    """The names of the models whose weights are read, in a list that grows."""
    names: list[str] = []
    model_of = Opened.model

    def recorded(opened, *arguments, **options):
        names.append(opened.name)
        return model_of(opened, *arguments, **options)

    monkeypatch.setattr(Opened, "model", recorded)
    return names


def test_the_commands_print_what_the_transcript_says(folder, weights_read, request):
    """A refusal writes nothing. The weights of `tied`, which are right, are not read for it.

    For both heads, they are read once.
    """
    old = TRANSCRIPT.read_text(encoding="utf-8")
    new = []
    for block in re.split(r"^(?=# |\$ )", old, flags=re.MULTILINE):
        line = block.partition("\n")[0]
        needs_dask = line.startswith(f"{PROMPT}documents -m")
        if line.startswith("# ") or (needs_dask and not find_spec("distributed")):
            new.append(block)
        elif line.startswith(PROMPT):
            is_refusal = "  # " in line
            files = paths_in(folder) if is_refusal else set()
            weights_read.clear()
            printed = plain(run(line))
            assert is_refusal == ("[exit code 2]" in printed), f"{line}: a refusal has # and a name"
            if is_refusal:
                assert_refused(line, printed)
                assert paths_in(folder) == files, line
                reads_first = line.startswith((f"{PROMPT}compare", f"{PROMPT}train"))
                assert reads_first or "tied" not in weights_read, line
            if "--head both" in line:
                assert len(weights_read) == 1, f"{line}: both heads are of one reading"
            new.append(f"{line}\n{printed}\n")
    text = "".join(new)
    if sys.version_info >= NEWER:
        pytest.skip("the transcript has the help pages of argparse before Python 3.13")
    if request.config.getoption("--update"):
        TRANSCRIPT.write_text(text, encoding="utf-8")
    else:
        difference = difflib.unified_diff(old.splitlines(), text.splitlines(), lineterm="", n=1)
        assert text == old, "pytest --update writes it anew:\n" + "\n".join(difference)
