"""tiedgpt documents: a row for every line, the same however often its processes are killed.

The quick tests run the command with an in-process Dask cluster (the fixture `scheduler`). The slow
ones start the command as a user does, and kill it or its workers.
"""

import bz2
import gzip
import hashlib
import io
import json
import logging
import lzma
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from importlib import metadata
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.checks import peak_memory, wait_until
from support.commands import assert_one_error_line, command
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt import Tokenizer, documents, threads
from tiedgpt.cli.output import ProgressBar
from tiedgpt.documents import Block, Input
from tiedgpt.errors import ArgumentError, TiedGPTError, TiedGPTWarning
from tiedgpt.evaluation import score
from tiedgpt.gpt2.special_tokens import Flags
from tiedgpt.gpt2.tokenizer import spelled_ids

distributed = pytest.importorskip("distributed")
psutil = pytest.importorskip("psutil")

TOKENIZER = Tokenizer([])  # each byte is a token
SECONDS = 60  # a busy machine takes long to start workers


@pytest.fixture(autouse=True)
def restored_threads():
    """Put back BLAS's thread count, which a task sets to 1 for its whole process."""
    get_threads = threads.openblas("get_num_threads")
    if get_threads is None:
        yield
        return
    before = get_threads()
    yield
    threads.openblas("set_num_threads")(before)


def new_cluster(**options) -> distributed.LocalCluster:
    """A Dask cluster on this machine, whose web server takes any free port."""
    return distributed.LocalCluster(
        threads_per_worker=1,
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
        **options,
    )


@pytest.fixture(scope="module")
def scheduler():
    """The address of a Dask scheduler whose worker is a thread of this process."""
    with new_cluster(n_workers=1, processes=False) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def place(tmp_path, monkeypatch, checkpoint) -> Path:
    """The working directory, with 60 records in in.jsonl, 15 in more.jsonl, and a model.

    The records of in.jsonl are in several blocks.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(documents, "BLOCK_SIZE", 1000)
    rng = random.Random(0)
    for name, count in (("in.jsonl", 60), ("more.jsonl", 15)):
        records = []
        for number in range(count):
            text = "".join(rng.choices("abc de é", k=rng.choice([3, 10, 40, 150])))
            records.append({"id": f"{name}-{number}", "text": text})
        write_records(Path(name), records)
    shutil.copytree(checkpoint, "model")
    return tmp_path


@pytest.fixture
def run_documents(run, place, scheduler):
    """run_documents(*flags, inputs): score the inputs with `model` to the directory `out`."""

    def run_documents(*flags: str, inputs=("in.jsonl", "more.jsonl")) -> tuple[int, str, str]:
        words = [*inputs, "-m", "model", "--out", "out", "--scheduler", scheduler]
        result = run("documents", *words, *flags)
        assert logging.root.manager.disable == logging.NOTSET, "other modules log as before"
        return result

    return run_documents


def write_records(path: Path, records: list[dict]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def read_rows(out: str = "out") -> list[dict]:
    lines = []
    for part in sorted(Path(out).glob("part-*.jsonl")):
        lines += part.read_text().splitlines()
    return [json.loads(line) for line in lines]


def parts_of(out: str = "out") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(out).glob("part-*.jsonl")}


# Rows


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([2, 9, 10, 11, 12, 63, 64, 65, 66, 74, 75, 139], id="some-lengths"),
        pytest.param([*range(2, 140), 1000], id="all-lengths", marks=pytest.mark.slow),
    ],
)
def test_a_row_is_the_score_of_its_text_alone(run_documents, checkpoint, lengths):
    """The texts have lengths around the context of 64 and the stride of 10."""
    threads.single_thread()
    model = tiedgpt.load_model(checkpoint)
    rng = random.Random(1)
    texts = ["".join(rng.choices("abc de é", k=n)) for n in lengths]
    write_records(Path("texts.jsonl"), [{"id": n, "text": text} for n, text in enumerate(texts)])
    code, out, err = run_documents("--stride", "10", inputs=["texts.jsonl"])
    assert (code, out) == (0, "")
    assert f"{len(texts)} rows in out, 0 with an error" in err
    expected = []
    for number, text in enumerate(texts):
        result = score(model, TOKENIZER, TOKENIZER.encode(text), stride=10)
        expected.append({"id": number, **asdict(result)})
    assert read_rows() == expected  # to the last bit


@pytest.mark.parametrize(
    ("last", "flags", "code"),
    [
        (b"{", [], 0),
        (b"{", ["--strict"], 1),
        (b'{"text": "abc"}', ["--strict"], 0),
    ],
)
def test_strict_makes_a_bad_line_an_exit_code(run_documents, last, flags, code):
    """All lines are done, the ones after the bad line too. So it is when the rows are there."""
    Path("some.jsonl").write_bytes(last + b'\n{"text": "abc"}\n')
    for _ in range(2):
        assert run_documents(*flags, inputs=["some.jsonl"])[0] == code
    assert len(read_rows()) == 2


GOOD = b'{"text": "abc", "id": 7}'
BAD_LINES = [
    (b"", "not JSON"),
    (b'{"text": "abc"', "not JSON"),
    (b'{"text": "a\xffb"}', "not JSON: 'utf-8' codec can't decode byte 0xff in position 11"),
    (b'{"text": "a\0b"}', "not JSON"),
    (b"\0" * 300, "not JSON"),
    (b"1" * 4500, "not JSON"),
    (b"[" * 4900, "not JSON"),
    (b"null", "expected a JSON object, got None"),
    (b'["text"]', "expected a JSON object, got ['text']"),
    (b"{}", 'the record has no "text"'),
    (b'{"Text": "abc"}', 'the record has no "text"'),
    (b'{"text": 5}', '"text" is not a string: 5'),
    (b'{"text": null}', '"text" is not a string: None'),
    (b'{"text": NaN}', '"text" is not a string: nan'),
    (b'{"text": ""}', "a score needs two tokens or more, got 0: the first is not predicted"),
    (b'{"text": "a"}', "a score needs two tokens or more, got 1: the first is not predicted"),
    (b'{"text": "a<|endoftext|>b"}', "the text contains the special token <|endoftext|>"),
    (b'{"text": "a\\ud800b"}', "surrogate"),
    (b'{"text": "' + b"y" * (5000 - 12) + b'"}', "the line has 5,000 bytes or more"),
    (b"x" * 12_000, "the line has 5,000 bytes or more"),
]


def test_a_bad_line_is_a_row_with_its_error(run_documents, monkeypatch):
    """Bad lines take turns with good ones. A line of 5,000 bytes or more is an error."""
    monkeypatch.setattr(documents, "MAX_LINE", 5000)
    lines = []
    for line, _ in BAD_LINES:
        lines += [GOOD, line]
    Path("bad.jsonl").write_bytes(b"\n".join([*lines, GOOD]))
    code, _, err = run_documents(inputs=["bad.jsonl"])
    assert code == 0
    assert f"{len(lines) + 1} rows in out, {len(BAD_LINES)} with an error" in err
    rows = read_rows()
    offset = 0
    for (line, message), good, bad in zip(BAD_LINES, rows[0::2], rows[1::2], strict=False):
        offset += len(GOOD) + 1
        assert good == rows[0]
        assert list(bad) == ["file", "offset", "error"]
        assert (bad["file"], bad["offset"]) == ("bad.jsonl", offset)
        if message.startswith(("not JSON", "surrogate")):  # and the words of Python
            assert message in bad["error"]
        else:
            assert bad["error"] == message
        offset += len(line) + 1
    assert rows[-1] == rows[0]
    assert rows[0]["id"] == 7


@pytest.mark.parametrize(
    ("line", "opening"),
    [
        (b'{"text": "abc", "id": 7}', {"id": 7}),
        (b'{"text": "abc", "id": "\\"error\\": "}', {"id": '"error": '}),
        (b' {"id": "\\u00e9\\ud800", "text" : "abc"} \r', {"id": "é\ud800"}),
        (b'{"text": "abc", "id": 0}', {"id": 0}),
        (b'{"text": "abc", "id": ""}', {"id": ""}),
        (b'{"text": "abc", "score": NaN}', {"file": "some.jsonl", "offset": 0}),
        (b'{"text": "abc", "id": null}', {"file": "some.jsonl", "offset": 0}),
        (b'{"text": "abc", "id": 1.5}', {"file": "some.jsonl", "offset": 0}),
    ],
)
def test_a_row_has_the_id_or_the_place_of_its_line(run_documents, line, opening):
    Path("some.jsonl").write_bytes(line)
    _, _, err = run_documents(inputs=["some.jsonl"])
    assert "1 rows in out, 0 with an error" in err
    (row,) = read_rows()
    assert list(row) == [*opening, "tokens", "bytes", "nll", "perplexity", "bits_per_byte"]
    assert row["tokens"] == row["bytes"] == 2
    for name, value in opening.items():
        assert row[name] == value


@pytest.mark.filterwarnings("always::tiedgpt.errors.TiedGPTWarning")
def test_a_byte_order_mark_before_a_file_is_dropped_with_a_note(run_documents):
    lines = b'{"text": "abc", "id": 1}\n{"text": "abc"}\n'
    for file, data in (
        ("plain", lines),
        ("marked", b"\xef\xbb\xbf" + lines),
        ("packed", gzip.compress(b"\xef\xbb\xbf" + lines)),
    ):
        Path(file).write_bytes(data)
    _, _, err = run_documents(inputs=["plain", "marked", "packed"])
    for file in ("marked", "packed"):
        assert f"note: {file} begins with a byte order mark" in err
    assert "plain" not in err
    rows = read_rows()
    assert rows[::2] == [rows[0]] * 3
    assert [row["offset"] for row in rows[1::2]] == [25, 28, 28]


def test_tokens_and_bytes_are_counted_apart(run, place, scheduler):
    write_records(Path("some.jsonl"), [{"text": "To be, or not to be"}])
    words = ["--out", "out", "-m", "shakespeare-tied", "--scheduler", scheduler]
    run("documents", "some.jsonl", *words)
    (row,) = read_rows()
    assert (row["tokens"], row["bytes"]) == (6, 17)
    assert row["nll"] == pytest.approx(3.60613, abs=1e-5)


def test_a_damaged_model_ends_the_run_and_is_no_error_of_a_line(run_documents, checkpoint):
    model = tiedgpt.load_model(checkpoint, copy=True)
    model.parameters["wte.weight"][5] = np.nan
    shutil.rmtree("model")
    tiedgpt.save_model(model, TOKENIZER, "model")
    code, _, err = run_documents()
    assert code == 2
    assert "damaged" in err
    assert parts_of() == {}


# Blocks


def input_of(path: Path) -> Input:
    return documents.read_input(str(path))


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("files", [4, pytest.param(30, marks=pytest.mark.slow)])
def test_blocks_hold_every_byte_once_and_whole_lines(tmp_path, monkeypatch, end, pack, files):
    """`end` is the end of the last line. A line of more than 50 bytes is cut."""
    monkeypatch.setattr(documents, "MAX_LINE", 50)
    rng = random.Random(0)
    path = tmp_path / "in"
    for size in (1, 5, 16, 50) * files:
        monkeypatch.setattr(documents, "BLOCK_SIZE", size)
        count = rng.randrange(1, 12)
        sizes = rng.choices([0, 1, 7, 49, 60], k=count)  # 49, and a line end, are 50 bytes
        lines = [bytes(rng.choices(b"ab \r", k=size)) for size in sizes]
        data = b"\n".join(lines) + end
        path.write_bytes(pack(data))
        blocks = list(documents.read_blocks([input_of(path)] * 2))  # the same file twice
        of_first_file = blocks[: len(blocks) // 2]

        assert [block.number for block in blocks] == list(range(len(blocks)))
        if data:  # an empty file has no blocks
            file_bytes = sum(block.file_bytes for block in of_first_file)
            assert file_bytes == path.stat().st_size
        lines_read = []
        for block in of_first_file:
            offset = block.offset
            for line in io.BytesIO(block.lines):
                lines_read.append(line)
                assert data[offset:].startswith(line)
                offset += len(line)
        assert lines_read == [line[:50] for line in io.BytesIO(data)]
        for block in of_first_file[:-1]:  # a block ends with the line that fills it
            *all_but_last, _ = io.BytesIO(block.lines)
            assert len(b"".join(all_but_last)) < size <= len(block.lines)


def test_a_block_has_a_million_bytes_and_the_rest_of_its_last_line(tmp_path):
    line = b"x" * 999 + b"\n"
    (tmp_path / "in").write_bytes(line * 2_500)
    sizes = [len(block.lines) for block in documents.read_blocks([input_of(tmp_path / "in")])]
    assert sizes == [1_000_000, 1_000_000, 500_000]


def test_a_line_may_have_almost_8_mib():
    longest = bytes(2**23 - 1)
    with pytest.raises(ArgumentError, match=r"^not JSON"):  # so it was read
        documents.parse_line(longest)
    with pytest.raises(ArgumentError, match=r"^the line has 8,388,608 bytes or more$"):
        documents.parse_line(longest + b"\n")


def test_the_hash_of_an_input_is_that_of_all_its_bytes(tmp_path):
    data = bytes(2**20) + b"the end"
    (tmp_path / "in").write_bytes(data)
    assert input_of(tmp_path / "in").sha256 == hashlib.sha256(data).hexdigest()


def test_a_byte_order_mark_in_the_middle_of_a_file_stays(tmp_path, monkeypatch):
    """It is not the beginning of the file, though it may be that of a block."""
    monkeypatch.setattr(documents, "BLOCK_SIZE", 1)
    line = b'\xef\xbb\xbf{"text": "a"}\n'
    (tmp_path / "in.jsonl").write_bytes(b"{}\n" + line)
    source = documents.read_input(str(tmp_path / "in.jsonl"))
    blocks = list(documents.read_blocks([source]))
    assert [(block.offset, block.lines) for block in blocks] == [(0, b"{}\n"), (3, line)]


def test_rows_of_a_gz_file_are_those_of_the_plain_file(run_documents):
    run_documents("--out", "plain", inputs=["in.jsonl"])
    Path("in.jsonl").write_bytes(gzip.compress(Path("in.jsonl").read_bytes()))
    run_documents("--out", "packed", inputs=["in.jsonl"])
    assert len(parts_of("plain")) > 3
    assert parts_of("packed") == parts_of("plain")


def test_one_long_line_takes_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_LINE", 10_000)
    path = tmp_path / "in"
    with path.open("wb") as file:
        file.truncate(30_000_000)  # zeros
    source = input_of(path)

    def takes_little():
        return peak_memory(lambda: list(documents.read_blocks([source]))) < 1_000_000

    # One of several tries, because what Dask's threads do after an earlier test is counted too.
    assert any(takes_little() for _ in range(5))


# The same command again


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """Where the first test that needs it leaves the directory of a run."""
    return tmp_path_factory.mktemp("done") / "out"


@pytest.fixture
def parts_before_two_were_removed(run_documents, done) -> dict[str, bytes]:
    """The parts of a run to `out`, of which two were removed afterwards."""
    if not done.exists():
        assert run_documents()[0] == 0
        shutil.copytree("out", done)
    else:
        shutil.copytree(done, "out")
    parts = parts_of()
    Path("out/part-00001.jsonl").unlink()
    Path("out/part-00003.jsonl").unlink()
    return parts


@pytest.fixture
def progress(monkeypatch) -> list[tuple[int, int]]:
    """(the total, what is added) of each call of a progress bar, in a list that grows."""
    calls = []
    monkeypatch.setattr(ProgressBar, "add", lambda bar, n: calls.append((bar.total, n)))
    return calls


def test_a_missing_part_is_made_again_and_the_others_are_kept(
    run_documents, parts_before_two_were_removed, progress
):
    left = {path: path.stat().st_mtime_ns for path in Path("out").glob("part-*.jsonl")}
    assert len(left) >= 4
    unfinished = Path("out/.part-00001.jsonl.0123abcd.new")
    unfinished.write_bytes(b"{")
    code, _, err = run_documents()
    assert code == 0
    assert "75 rows in out, 0 with an error" in err
    input_bytes = os.path.getsize("in.jsonl") + os.path.getsize("more.jsonl")
    assert {total for total, _ in progress} == {input_bytes}
    assert sum(added for _, added in progress) == input_bytes, "the parts that were there, too"
    assert parts_of() == parts_before_two_were_removed
    assert {path: path.stat().st_mtime_ns for path in left} == left
    assert not unfinished.exists()
    assert sorted(os.listdir("out")) == sorted([*parts_before_two_were_removed, "settings.json"])


def test_progress_counts_the_bytes_of_a_compressed_file(place):
    """Of all parts that are there. The first block has most of the bytes that are read."""
    Path("in.gz").write_bytes(gzip.compress(Path("in.jsonl").read_bytes()))
    inputs = [documents.read_input("in.gz")]
    out = Path("out")
    out.mkdir()
    blocks = list(documents.missing_blocks(inputs, out, None))
    for block in blocks[:-1]:
        (out / block.part).touch()
    done = []
    assert list(documents.missing_blocks(inputs, out, done.append)) == blocks[-1:]
    assert sum(done) > blocks[-1].file_bytes
    assert sum(done) + blocks[-1].file_bytes == os.path.getsize("in.gz")


def test_a_complete_run_needs_no_scheduler(run_documents, parts_before_two_were_removed):
    run_documents()
    unfinished = Path("out/.part-00001.jsonl.0123abcd.new")
    unfinished.touch()
    code, _, _ = run_documents("--scheduler", "tcp://127.0.0.1:1")
    assert code == 0
    assert not unfinished.exists()
    assert parts_of() == parts_before_two_were_removed


def change_text(name: str) -> None:
    """Change one character of a file, which keeps its size and its time."""
    status = os.stat(name)
    data = Path(name).read_bytes()
    Path(name).write_bytes(data.replace(b"more.jsonl-9", b"more.jsonl-8"))
    os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns))


def change_model(name: str) -> None:
    model = tiedgpt.load_model("model", copy=True)
    model.parameters[name].flat[0] += 1e-3
    shutil.rmtree("model")
    tiedgpt.save_model(model, TOKENIZER, "model")


def change_config() -> None:
    config = json.loads(Path("model/config.json").read_text())
    config["layer_norm_epsilon"] = 0.1
    Path("model/config.json").write_text(json.dumps(config))


def append_line() -> None:
    with open("more.jsonl", "a") as file:
        file.write("\n")


def pack_input() -> None:
    Path("in.jsonl").write_bytes(gzip.compress(Path("in.jsonl").read_bytes()))


def nothing() -> None:
    pass


def damage_settings(content: str):
    return lambda: Path("out/settings.json").write_text(content)


INPUTS = ["in.jsonl", "more.jsonl"]
CHANGES = {  # name -> what changes, the flags and the inputs of the second run, what is named
    "stride": (nothing, ["--stride", "5"], INPUTS, "another stride: 32, not 5"),
    "head": (nothing, ["--head", "untied"], INPUTS, "another head: 'tied', not 'untied'"),
    "weights": (lambda: change_model("wte.weight"), [], INPUTS, "another model_sha256"),
    "one-bias": (lambda: change_model("h.1.mlp.c_proj.bias"), [], INPUTS, "another model_sha256"),
    "config": (change_config, [], INPUTS, "another model_sha256"),
    "text": (lambda: change_text("more.jsonl"), [], INPUTS, "another sha256 of more.jsonl"),
    "line": (append_line, [], INPUTS, "another size of more.jsonl"),
    "compression": (pack_input, [], INPUTS, "another size of in.jsonl"),
    "order": (nothing, [], INPUTS[::-1], "another inputs"),
    "one-input-less": (nothing, [], INPUTS[:1], "another inputs"),
    "one-input-more": (nothing, [], [*INPUTS, "in.jsonl"], "another inputs"),
    "other-name": (nothing, [], ["./in.jsonl", "more.jsonl"], "another inputs"),
    "damaged": (damage_settings("{"), [], INPUTS, "out/settings.json is damaged: Expecting "),
    "not-an-object": (
        damage_settings("5"),
        [],
        INPUTS,
        "out/settings.json is damaged: 'int' object is not iterable",
    ),
    "empty": (damage_settings("{}"), [], INPUTS, "another tiedgpt: None"),
    "no-settings": (
        lambda: Path("out/settings.json").unlink(),
        [],
        INPUTS,
        "out has files but no settings.json",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_anything_else_is_refused(run_documents, parts_before_two_were_removed, name):
    change, flags, inputs, message = CHANGES[name]
    before = parts_of()
    change()
    code, out, err = run_documents(*flags, inputs=inputs)
    assert (code, out) == (2, "")
    error = err.splitlines()[-1]
    assert message in error
    hint = (
        "give the same, or name a new directory" if "another" in message else "name a new directory"
    )
    assert error.endswith(f"; {hint}")
    assert parts_of() == before


def test_any_other_setting_is_refused(run_documents, parts_before_two_were_removed):
    path = Path("out/settings.json")
    settings = json.loads(path.read_bytes())
    assert set(settings) >= {"tiedgpt", "numpy", "regex", "python", "block_size", "model_sha256"}
    for name in settings:
        path.write_text(json.dumps({**settings, name: "other"}))
        assert_one_error_line(run_documents(), f"out was begun with another {name}: 'other', not")
    assert len(parts_of()) == len(parts_before_two_were_removed) - 2


def test_the_first_difference_has_both_values_of_80_characters_at_most():
    settings = {"same": 1, "text": "x" * 78, "other": 2}
    wanted = {"same": 1, "text": "y" * 79, "other": 3}
    difference = documents.first_difference(settings, wanted)
    assert difference == f"text: '{'x' * 78}', not '{'y' * 76}..."
    assert documents.first_difference({"a": 1}, {}) == "a: 1, not None"
    assert documents.first_difference({}, {"a": 0}) == "a: None, not 0"
    assert documents.first_difference(settings, settings) is None
    assert documents.first_difference({"b": 1, "a": 1}, {"a": 2, "b": 2}) == "a: 1, not 2"


def test_a_vocabulary_with_other_tokens_has_another_hash(model):
    hashes = set()
    for tokenizer in (
        Tokenizer([]),
        Tokenizer([("a", "b")]),
        Tokenizer([("a", "c")]),
        Tokenizer([], special_tokens={"<|end|>": 256}),
        Tokenizer([], flags={"<|endoftext|>": Flags(special=False)}),
        Tokenizer([], special_tokens={"<|endoftext|>": 0}, ids=spelled_ids([], first_id=1)),
        Tokenizer([], ids={"a": 0}),
        Tokenizer([], prefix_space=True),
    ):
        hashes.add(documents.model_sha256(model, tokenizer))
    assert len(hashes) == 8


def test_the_hash_of_a_model_is_that_of_its_numbers_however_they_lie_in_memory(model):
    """nanoGPT stores its matrices transposed, so they are views of the file."""
    parameters = {name: np.asfortranarray(array) for name, array in model.parameters.items()}
    assert not parameters["wte.weight"].flags.c_contiguous
    transposed = tiedgpt.GPT2(model.config, parameters)
    assert documents.model_sha256(transposed, TOKENIZER) == documents.model_sha256(model, TOKENIZER)


def test_the_versions_are_those_that_are_installed():
    assert documents.versions() == {
        "tiedgpt": tiedgpt.__version__,
        "numpy": metadata.version("numpy"),
        "regex": metadata.version("regex"),
        "python": sys.version.split()[0],
    }


def test_nobody_else_can_reach_the_workers_of_this_machine():
    """They have one thread each, and no page that shows what they do."""
    settings = documents.LOCAL_CLUSTER
    assert settings["host"] == "127.0.0.1"
    assert settings["dashboard_address"] is None  # of the workers
    assert settings["scheduler_kwargs"]["dashboard_address"] == "127.0.0.1:0"
    assert (settings["threads_per_worker"], settings["memory_limit"]) == (1, 0)


def test_a_foreign_directory_is_refused_and_untouched(run_documents):
    Path("out").mkdir()
    Path("out/.part-mine.new").touch()
    assert_one_error_line(run_documents(), "out has files but no settings.json")
    assert os.listdir("out") == [".part-mine.new"]


# While the command runs


def test_an_input_that_changes_is_refused(run_documents, monkeypatch):
    read_lines = documents.read_lines
    calls = []

    def change_before_the_third_block(stream):
        calls.append(None)
        if len(calls) == 3:
            os.utime("in.jsonl", ns=(1, 1))
        return read_lines(stream)

    monkeypatch.setattr(documents, "read_lines", change_before_the_third_block)
    code, _, err = run_documents()
    assert code == 2
    assert "in.jsonl has changed since the command began" in err
    assert "the same command goes on" in err
    assert set(parts_of()) <= {"part-00000.jsonl", "part-00001.jsonl"}


def test_an_input_that_is_emptied_is_refused(run_documents, monkeypatch):
    """It is emptied after its hash was taken, and keeps its time."""
    read_input = documents.read_input

    def read_and_empty(file):
        source = read_input(file)
        os.truncate(file, 0)
        os.utime(file, ns=(source.modified, source.modified))
        return source

    monkeypatch.setattr(documents, "read_input", read_and_empty)
    code, _, err = run_documents()
    assert code == 2
    assert "in.jsonl has changed since the command began" in err


def test_of_two_runs_that_begin_at_once_one_is_refused(place, monkeypatch):
    """The other run, of another stride, writes its settings.json just before this one does."""
    write_first = documents.write_first

    def write_second(path, content):
        write_first(path, b'{"stride": 7}')
        write_first(path, content)

    monkeypatch.setattr(documents, "write_first", write_second)
    with pytest.raises(ArgumentError, match="was begun with another stride: 7, not 8"):
        documents.begin(Path("out"), {"stride": 8})


def test_settings_that_another_process_has_not_finished_are_no_obstacle(place):
    Path("out").mkdir()
    Path("out/.settings.json.0123abcd.new").touch()
    documents.begin(Path("out"), {"stride": 8})
    assert os.listdir("out") == ["settings.json"]


def test_the_folders_above_the_output_are_made(place):
    documents.begin(Path("not/there/yet"), {"stride": 8})
    assert os.listdir("not/there/yet") == ["settings.json"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (distributed.comm.CommClosedError(), "the connection to the Dask scheduler is lost"),
        (distributed.client.ClosedClientError(), "the connection to the Dask scheduler is lost"),
        (distributed.CancelledError(), "the connection to the Dask scheduler is lost"),
        (AttributeError("x"), f"a worker cannot run tiedgpt {tiedgpt.__version__}: x"),
        (ImportError("x"), f"a worker cannot run tiedgpt {tiedgpt.__version__}: x"),
    ],
)
def test_an_error_of_dask_is_one_line(run_documents, monkeypatch, error, message):
    """Workers find the model and the output by their whole paths. No unfinished part is left.

    Meanwhile Dask logs nothing.
    """

    def fail(client, task, blocks, progress):
        assert logging.root.manager.disable == logging.CRITICAL
        out, path, _settings = task.args
        assert (out, path) == (Path("out").absolute(), Path("model").absolute())
        (out / ".part-00000.jsonl.0123abcd.new").touch()
        raise error

    monkeypatch.setattr(documents, "new_client", lambda scheduler: nullcontext())
    monkeypatch.setattr(documents, "do_blocks", fail)
    code, _, err = run_documents()
    assert code == 2
    assert err.splitlines()[-1] == f"tiedgpt: error: {message}"
    assert os.listdir("out") == ["settings.json"]


class Future:
    def result(self):
        pass


@pytest.mark.parametrize("thread_count", [0, 1, 3])
def test_each_thread_has_a_block_and_no_more(monkeypatch, thread_count):
    """Without a thread, one block waits for the first. A result of an earlier run is not taken."""
    waited_for = []
    done = []

    def wait(futures, seconds, until):
        assert (seconds, until) == (documents.NO_WORKER, "FIRST_COMPLETED")
        waited_for.append(len(futures))
        return SimpleNamespace(done=futures[:1])

    def submit(task, block, pure):
        assert not pure
        return Future()

    monkeypatch.setattr(distributed, "wait", wait)
    client = SimpleNamespace(nthreads=lambda: {"worker": thread_count}, submit=submit)
    blocks = [Block(number, "file", 0, b"", file_bytes=10 + number) for number in range(5)]
    documents.do_blocks(client, print, iter(blocks), done.append)
    at_once = max(1, thread_count)
    assert waited_for == [min(at_once, 5 - number) for number in range(5)]
    assert done == [10, 11, 12, 13, 14]


def test_when_workers_leave_no_block_is_sent_until_there_are_fewer_than_threads(monkeypatch):
    threads_left = iter([3, 1, 1, 1, 1, 1])
    waited_for = []

    def wait(futures, *_):
        waited_for.append(len(futures))
        return SimpleNamespace(done=futures[:1])

    monkeypatch.setattr(distributed, "wait", wait)
    client = SimpleNamespace(
        nthreads=lambda: {"worker": next(threads_left)}, submit=lambda *_, **__: Future()
    )
    blocks = [Block(number, "file", 0, b"", 10) for number in range(5)]
    documents.do_blocks(client, print, iter(blocks), None)
    assert waited_for == [3, 2, 1, 1, 1]


def test_no_worker_for_a_minute_is_an_error(monkeypatch):
    """A block may take longer than that."""
    minutes = iter([{"worker": 1}, {"worker": 1}, {}])

    def wait(*_):
        client.nthreads = partial(next, minutes)
        raise distributed.TimeoutError

    monkeypatch.setattr(distributed, "wait", wait)
    client = SimpleNamespace(nthreads=dict, submit=lambda *_, **__: Future())
    blocks = iter([Block(0, "file", 0, b"", 10)])
    with pytest.raises(TiedGPTError, match="Dask had no worker for 60 seconds"):
        documents.do_blocks(client, print, blocks, None)
    assert next(minutes, None) is None, "a minute with a worker ends nothing"


def test_the_processes_of_this_machine_are_one_for_each_core_without_ctrl_c(monkeypatch):
    """A terminal sends Ctrl-C to all processes, and this one ends them. They log nothing."""
    calls = []

    class Client:
        def __init__(self, *arguments, **options):
            calls.append((arguments, options))
            self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])

        def run(self, function):
            calls.append(function)

    monkeypatch.setattr(distributed, "Client", Client)
    monkeypatch.setattr(documents, "cores", lambda: 3)
    # Its start would unblock Ctrl-C.
    monkeypatch.setattr(resource_tracker, "ensure_running", lambda: calls.append("tracker"))
    assert signal.SIGINT in documents.new_client(None).blocked
    started = ((), {"n_workers": 3, **documents.LOCAL_CLUSTER})
    assert calls == ["tracker", started, logging.disable]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    calls.clear()
    assert signal.SIGINT not in documents.new_client("tcp://x:1").blocked
    assert calls == [(("tcp://x:1",), {"timeout": 10})]  # seconds


def test_the_rows_of_all_parts_are_counted(tmp_path):
    """A hundred thousand blocks have numbers of six digits."""
    rows = {0: b'{"id": 1, "error": "x"}\n{"id": 2}\n', 99_999: b"", 100_000: b'{"error": "y"}\n'}
    for number, part in rows.items():
        (tmp_path / Block(number, "file", 0, b"", 1).part).write_bytes(part)
    (tmp_path / "settings.json").write_bytes(b"{}\n")
    assert documents.count_rows(tmp_path) == (3, 2)


def test_the_block_at_which_workers_died_is_named(monkeypatch):
    """Of three blocks, the first is done, workers die at the second, and the third waits."""

    class Killed(Future):
        def result(self):
            raise distributed.KilledWorker("task", None, 3)

    futures = iter([Future(), Killed(), Future()])
    monkeypatch.setattr(distributed, "wait", lambda running, *_: SimpleNamespace(done=running[:2]))
    client = SimpleNamespace(nthreads=lambda: {"a": 3}, submit=lambda *_, **__: next(futures))
    blocks = [Block(number, f"file-{number}", 70 + number, b"", 10) for number in (8, 9, 10)]
    done = []
    with pytest.raises(TiedGPTError) as caught:
        documents.do_blocks(client, print, iter(blocks), done.append)
    where = "part-00009.jsonl, file-9 from byte 79"
    assert str(caught.value) == f"worker after worker died at {where}"
    assert done == [10]


@pytest.mark.parametrize("error", [OSError("x"), RuntimeError("x")])
def test_processes_that_cannot_be_started_are_an_error(monkeypatch, error):
    def fail(**options):
        raise error

    monkeypatch.setattr(distributed, "Client", fail)
    with pytest.raises(TiedGPTError, match=r"^the workers cannot be started: x$"):
        documents.new_client(None)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.fixture
def task(place) -> tuple[Path, Path, dict, Block]:
    """The arguments of write_part for the first block of in.jsonl."""
    inputs = [input_of(Path("in.jsonl"))]
    model = tiedgpt.load_model("model")
    settings = documents.settings_of(inputs, model, TOKENIZER, stride=32)
    block = next(documents.read_blocks(inputs))
    return place, Path("model"), settings, block


def test_a_worker_with_another_version_or_model_is_refused(task):
    out, path, settings, block = task
    documents.load_same.cache_clear()
    for name in documents.versions():
        with pytest.raises(TiedGPTError, match=f"a worker has another {name}: .*, not 'other'"):
            documents.write_part(out, path, {**settings, name: "other"}, block)
    change_model("wte.weight")
    message = "^model is another model in a worker than it was when the run began$"
    with pytest.raises(TiedGPTError, match=message):
        documents.write_part(out, path, settings, block)
    assert not list(out.glob("*part*"))


def test_a_worker_scores_with_the_head_of_the_settings(task, save):
    out, _, _, block = task
    path = Path(save("untied", random_model(replace(CONFIG, tied=False))))
    parts = set()
    for head in ("untied", "tied"):
        model = documents.Opened(path).model(head)
        settings = documents.settings_of([], model, TOKENIZER, stride=32)
        documents.write_part(out, path, settings, block)
        parts.add((out / block.part).read_bytes())
    assert len(parts) == 2
    assert documents.load_same.cache_info().currsize == 1, "the first model takes no memory"


def test_a_worker_does_not_warn_again(save):
    """The process that began the run has warned of a tokenizer that is larger than the model."""
    path = Path(save("small", random_model(replace(CONFIG, vocab_size=70))))
    model = tiedgpt.load_model(path)
    with pytest.warns(TiedGPTWarning):
        tokenizer = tiedgpt.load_tokenizer(path)
    documents.load_same.cache_clear()
    documents.load_same(path, "tied", documents.model_sha256(model, tokenizer))


def test_each_task_uses_one_thread_and_the_model_is_loaded_once(task, monkeypatch):
    if not threads.blas_threads():
        pytest.skip("the number of BLAS's threads cannot be set here")
    loads = []
    opened = documents.Opened

    def recorded(path):
        loads.append(path)
        return opened(path)

    monkeypatch.setattr(documents, "Opened", recorded)
    documents.load_same.cache_clear()
    for _ in range(2):
        threads.openblas("set_num_threads")(2)
        documents.write_part(*task)
        assert threads.openblas("get_num_threads")() == 1
    assert len(loads) == 1


# Refusals


LINE = b'{"id": 1, "text": "Shall I compare thee"}\n'
OTHER_FORMATS = {  # the content of a file of another format -> what the message says
    "bzip2": bz2.compress(LINE),
    "xz": lzma.compress(LINE),
    "zstd": bytes.fromhex("28b52ffd0458") + LINE,
    "lz4": bytes.fromhex("04224d18") + LINE,
    "zip": b"PK\3\4" + LINE,
    "Parquet": b"PAR1" + LINE + b"PAR1",
    "Arrow": b"ARROW1\0\0" + LINE,
    "UTF-16": LINE.decode().encode("utf-16"),
    "UTF-16 with the high byte first": b"\xfe\xff" + LINE.decode().encode("utf-16-be"),
}


@pytest.mark.parametrize(("name", "content"), OTHER_FORMATS.items(), ids=OTHER_FORMATS)
def test_a_file_of_another_format_is_refused(run, place, name, content):
    """By its first bytes, whatever its name is. Each line would be a row with an error."""
    Path("a.jsonl").write_bytes(content)
    result = run("documents", "a.jsonl", "-m", "model", "--out", "out")
    format_name = name.partition(" with")[0]
    assert_one_error_line(result, f"a.jsonl is {format_name}; expected .jsonl or .jsonl.gz")
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["in.jsonl"], "--out"),
        (["--out", "out"], "IN"),
        (["in.jsonl", "--out", "out", "--stride", "999"], "stride"),
        (["none.jsonl", "--out", "out"], "none.jsonl: No such file"),
        (["a\0b", "--out", "out"], "'a\\x00b' is not the name of a file"),
        (["in.jsonl", "--out", "a\0b"], "'a\\x00b' is not the name of a file"),
        (["model", "--out", "out"], "model is not a file; expected .jsonl or .jsonl.gz"),
        (["/dev/null", "--out", "out"], "/dev/null is not a file; expected .jsonl or .jsonl.gz"),
        (["in.jsonl", "--out", "out", "-m", "nobody/none"], "nobody/none"),
        (["in.jsonl", "--out", "in.jsonl"], "in.jsonl"),
        (["in.jsonl", "--out", "model"], "model has files but no settings.json"),
    ],
)
def test_refused_before_anything_is_written(run, place, words, message):
    before = sorted(os.listdir())
    model = [] if "-m" in words else ["-m", "model"]
    assert_one_error_line(run("documents", *words, *model), message)
    assert sorted(os.listdir()) == before


def test_a_cut_gz_file_is_an_error(run_documents):
    data = Path("in.jsonl").read_bytes()
    Path("in.jsonl").write_bytes(gzip.compress(data)[:-20])
    code, _, err = run_documents(inputs=["in.jsonl"])
    assert code == 2
    assert "in.jsonl cannot be read: Compressed file ended before" in err


@pytest.mark.parametrize(
    ("place", "byte", "reason"), [(10, 0b111, "invalid block type"), (-5, 0, "CRC check failed")]
)
def test_a_damaged_gz_file_is_an_error(tmp_path, place, byte, reason):
    """The header has ten bytes. The last eight are a checksum and the size."""
    data = bytearray(gzip.compress(b'{"text": "abc"}\n' * 9))
    data[place] = byte
    (tmp_path / "in.gz").write_bytes(data)
    with pytest.raises(TiedGPTError, match=f"in.gz cannot be read: .*{reason}"):
        list(documents.read_blocks([input_of(tmp_path / "in.gz")]))


def test_without_dask_the_error_says_how_to_install_it(run, place, monkeypatch):
    monkeypatch.setattr("tiedgpt.cli.score.find_spec", lambda name: None)
    result = run("documents", "in.jsonl", "--out", "out", "-m", "model")
    assert_one_error_line(result, "pip install 'tiedgpt[dask]'")


@pytest.mark.parametrize("error", [OSError("timed out"), ValueError("unknown protocol")])
def test_a_scheduler_that_does_not_answer_is_an_error(run, place, monkeypatch, error):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(distributed, "Client", fail)
    words = ["documents", "in.jsonl", "-m", "model", "--out", "out", "--scheduler", "tcp://x:1"]
    code, _, err = run(*words)
    assert code == 2
    assert err.endswith(f"\ntiedgpt: error: no Dask scheduler at tcp://x:1: {error}\n")


@pytest.mark.slow
@pytest.mark.parametrize("address", ["what://x", "tcp://127.0.0.1:1"])
def test_an_address_without_a_scheduler_is_an_error(place, address):
    """The command runs in a process of its own. A client of Dask that could not connect can wait
    for itself for ever, if it is collected as garbage while another one starts."""
    words = command("documents", "in.jsonl", "-m", "model", "--out", "out", "--scheduler", address)
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert f"no Dask scheduler at {address}: " in done.stderr
    assert "Traceback" not in done.stderr


# Processes that are killed


class Commands:
    """Starts `tiedgpt documents` as a process, which scores in.jsonl in several blocks."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen] = []

    def start(self, *words: str) -> subprocess.Popen:
        """Start a process in a group of its own, so that a test can send a signal to the group."""
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.processes.append(process)
        return process

    def documents(self, out: str, *flags: str) -> subprocess.Popen:
        words = ["documents", "in.jsonl", "-m", "model", "--out", out]
        return self.start(*command(*words, *flags))

    def end(self, process: subprocess.Popen, code: int) -> str:
        """Wait until a process ends with this exit code. Returns what it printed on stderr."""
        _, err = process.communicate(timeout=SECONDS)
        assert process.returncode == code, err
        assert "Traceback" not in err
        assert err.count("\n") < 6, err
        return err


@pytest.fixture
def commands(place, monkeypatch) -> Commands:
    """The input has six blocks of 1 MB, which take a worker less than a second each."""
    monkeypatch.setattr(documents, "BLOCK_SIZE", 10**6)  # as in the processes
    rng = random.Random(0)
    records = []
    for number in range(300):
        text = "".join(rng.choices("abc de ", k=100))
        records.append({"id": number, "text": text, "other": "x" * 20_000})
    write_records(Path("in.jsonl"), records)
    commands = Commands()
    yield commands
    for process in commands.processes:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture
def undisturbed(commands, monkeypatch) -> dict[str, bytes]:
    """The parts that this process writes, one after the other, with one thread as a worker has.

    With two of them a long text is split, which changes the rounding on some processors.
    """
    monkeypatch.setattr(threads, "reading_threads", lambda: 1)
    inputs = [input_of(Path("in.jsonl"))]
    model = tiedgpt.load_model("model")
    settings = documents.settings_of(inputs, model, TOKENIZER, stride=32)
    Path("undisturbed").mkdir()
    for block in documents.read_blocks(inputs):
        documents.write_part(Path("undisturbed"), Path("model"), settings, block)
    return parts_of("undisturbed")


def workers_of(process: subprocess.Popen) -> list[psutil.Process]:
    """The worker processes of a command that runs."""
    workers = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if "spawn_main" in " ".join(child.cmdline()):
                workers.append(child)
    return workers


def wait_for_parts(count: int, out: str = "out") -> None:
    wait_until(lambda: len(parts_of(out)) >= count, SECONDS)


@pytest.mark.slow
def test_killed_at_any_moment_the_same_command_goes_on(commands, undisturbed):
    rng = random.Random(0)
    for _ in range(4):
        process = commands.documents("out")
        time.sleep(rng.uniform(0.5, 8))
        workers = workers_of(process)
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(workers, timeout=SECONDS)
        assert not alive
        for name, part in parts_of().items():
            assert part == undisturbed[name]
    commands.end(commands.documents("out"), code=0)
    assert parts_of() == undisturbed
    assert sorted(os.listdir("out")) == sorted([*undisturbed, "settings.json"])


@pytest.mark.slow
def test_the_block_of_a_killed_worker_is_done_by_another(commands, undisturbed):
    process = commands.documents("out")
    for parts_done in (1, 3):
        wait_for_parts(parts_done)
        wait_until(lambda: workers_of(process), SECONDS)
        workers_of(process)[0].kill()
    commands.end(process, code=0)
    assert parts_of() == undisturbed
    assert sorted(os.listdir("out")) == sorted([*undisturbed, "settings.json"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_ends_the_command_and_its_workers(commands, undisturbed, number, code):
    process = commands.documents("out")
    wait_for_parts(1)
    workers = workers_of(process)
    assert workers
    os.killpg(process.pid, number)  # to all processes of the command, as a terminal does
    assert "the same command goes on" in commands.end(process, code=code)
    _, alive = psutil.wait_procs(workers, timeout=SECONDS)
    assert not alive
    commands.end(commands.documents("out"), code=0)
    assert parts_of() == undisturbed


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_bytes(commands, undisturbed):
    for count in (1, 3):
        with new_cluster(n_workers=count, host="127.0.0.1") as cluster:
            process = commands.documents(f"by-{count}", "--scheduler", cluster.scheduler_address)
            commands.end(process, code=0)
        assert parts_of(f"by-{count}") == undisturbed


@pytest.mark.slow
def test_the_command_ends_when_its_scheduler_is_killed(commands):
    options = ["--scheduler-file", "scheduler.json", "--host", "127.0.0.1", "--no-dashboard"]
    dask = (sys.executable, "-m", "dask")
    scheduler = commands.start(*dask, "scheduler", "--port", "0", *options)
    commands.start(*dask, "worker", "--no-nanny", "--nthreads", "1", *options)
    file = Path("scheduler.json")
    wait_until(lambda: file.exists() and file.read_text(), SECONDS)  # for a moment it is empty
    address = json.loads(file.read_text())["address"]
    process = commands.documents("out", "--scheduler", address)
    wait_for_parts(1)
    scheduler.kill()
    assert "the connection to the Dask scheduler is lost" in commands.end(process, code=2)


@pytest.mark.slow
def test_a_block_at_which_workers_die_is_named_and_the_same_command_goes_on(
    run, place, monkeypatch
):
    """The processes of this command run `write_or_die`, which Dask sends to them by value."""
    write_part = documents.write_part

    def write_or_die(out, path, settings, block):
        if b"in.jsonl-50" in block.lines:
            os._exit(1)
        write_part(out, path, settings, block)

    monkeypatch.setattr(documents, "write_part", write_or_die)
    code, _, err = run("documents", "in.jsonl", "-m", "model", "--out", "out")
    assert code == 2
    assert "worker after worker died at" in err
    blocks = list(documents.read_blocks([input_of(Path("in.jsonl"))]))
    killers = [block.part for block in blocks if b"in.jsonl-50" in block.lines]
    assert f"{killers[0]}, in.jsonl from byte" in err
    assert killers[0] not in parts_of()
    monkeypatch.setattr(documents, "write_part", write_part)
    code, _, err = run("documents", "in.jsonl", "-m", "model", "--out", "out")
    assert code == 0
    assert "60 rows in out" in err
