"""tiedgpt documents: a row for every line, each once, however often the run is stopped."""

import gzip
import itertools
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import assert_one_error_line, command

import tiedgpt
from tiedgpt import Tokenizer, cli
from tiedgpt.checkpoints import files
from tiedgpt.cli import common, documents
from tiedgpt.errors import TiedGPTError
from tiedgpt.fast import blas
from tiedgpt.scale import shards

TOKENIZER = Tokenizer([])
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's limits and files")


@pytest.fixture(autouse=True)
def restored_threads():
    """Put back BLAS's thread count, which a run sets to 1 for its whole process."""
    set_threads = blas.openblas("set_num_threads")
    before = blas.blas_threads()
    yield
    if set_threads:
        set_threads(before)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    rng, path = random.Random(0), tmp_path_factory.mktemp("source") / "in.jsonl"
    texts = ["".join(rng.choices("abc de é", k=rng.choice([3, 10, 40, 150]))) for _ in range(60)]
    records = ({"id": f"d{n}", "text": text, "prompt": text[:20]} for n, text in enumerate(texts))
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def arguments(model: str, out: Path | str, *flags: str, file: Path | str) -> tuple[str, ...]:
    return ("documents", "score", str(file), "-m", model, "--shard-size", "1KB", "--out", str(out), *flags)


@pytest.fixture
def score(run, checkpoint, source):
    """score(out, *flags): run `documents score` on the source in shards of 1 kB."""

    def score(out: Path | str, *flags: str, file: Path | str = source, **more) -> tuple[int, str, str]:
        return run(*arguments(checkpoint, out, *flags, file=file), **more)

    return score


@pytest.fixture(scope="module")
def whole(tmp_path_factory, checkpoint, source) -> bytes:
    """The output of one run."""
    out = tmp_path_factory.mktemp("whole") / "out.jsonl"
    assert cli.main([*arguments(checkpoint, out, file=source)]) == 0
    return out.read_bytes()


@pytest.mark.parametrize("size", [1, 5, 16, 1000])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("compressed", [False, True])
def test_shards_hold_every_byte_once_and_whole_lines(tmp_path, size, end, compressed):
    rng = random.Random(size)
    for trial in range(30):
        lines = [bytes(rng.choices(b"ab \r", k=rng.choice([0, 1, 7, 60]))) for _ in range(rng.randrange(12))]
        data = b"\n".join(lines) + (end if lines else b"")
        path = tmp_path / str(trial)
        path.write_bytes(gzip.compress(data) if compressed else data)
        found = list(shards.read_shards(path, size))
        pieces = [line for _, of_shard in found for line in of_shard]
        assert b"".join(pieces) == data
        assert len(pieces) == data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
        for n, (offset, of_shard) in enumerate(found):
            assert next(shards.read_shards(path, size, offset)) == (offset, of_shard)
            assert sum(map(len, of_shard)) >= size > sum(map(len, of_shard[:-1])) or n == len(found) - 1


BAD = {
    b"": "not JSON",
    b"   ": "not JSON",
    b"not JSON": "not JSON",
    b'{"text": "abc"': "not JSON",
    b'{"text": "abc", "x": NaN}': "not JSON: NaN is not a JSON number",
    b"1" * 10_000: "not JSON",
    b'"abc"': "expected a JSON object, got 'abc'",
    b"null": "expected a JSON object, got None",
    b'{"words": "abc"}': "the record has no field 'text'",
    b"{}": "the record has no field 'text'",
    b'{"text": 5}': "field 'text' is not a text: 5",
    b'{"text": null}': "field 'text' is not a text: None",
    b'{"text": ""}': "the text has 0 tokens",
    b'{"text": "a"}': "the text has 1 token;",
    b'{"text": "a<|endoftext|>b"}': "special token <|endoftext|>: --allow-special reads it as that token",
    b'{"text": "' + b"z" * 30 + b'"}': "the text has 30 tokens, more than the limit of 20",
    b'{"text": "a\\ud800b"}': "half of a surrogate pair",
    b'{"text": "a\xffb"}': "not JSON: 'utf-8' codec can't decode byte 0xff in position 11",
    b'{"text": "abc", "loss": 1}': "the record has a field loss already",
    b'{"text": "abc", "x": ' + b"[" * 500 + b"]" * 500 + b"}": "nested more than 500 deep",
    b"[" * 500: "not JSON",
    b"[" * 501: "nested more than 500 deep",
    b"x" * 5000: "the line has 4,000 bytes or more",
    b'{"text": "' + b"y" * 5000 + b'"}': "the line has 4,000 bytes or more",
}
GOOD = (
    b' { "text" : "abc" , "id": 7, "x": 1.50 , "e": "\\u00e9" } \r',
    b'\xef\xbb\xbf{"text": "abc"}',
    b'{"text": "abc", "x": ' + b"[" * 499 + b"]" * 499 + b"}",
    b'{"text": "abc", "x": "' + b'\\"[' * 999 + b'"}',
)


@pytest.mark.parametrize("only", [[], ["--scores-only"]])
def test_a_line_with_an_error_is_a_row_with_the_error(score, tmp_path, monkeypatch, only):
    monkeypatch.setattr(shards, "MAX_LINE", 4000)
    monkeypatch.setattr(shards, "BLOCK", 64)
    lines = [GOOD[0]] + [line for n, bad in enumerate(BAD) for line in (bad, GOOD[n % len(GOOD)])]
    (path := tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    code, out, err = score(tmp_path / "out", "--max-tokens", "20", *only, file=path)
    assert (code, out) == (0, "")
    assert f"{len(lines)} rows in {tmp_path / 'out'}, {len(BAD) - bool(only)} with an error" in err
    found = read(tmp_path / "out")
    losses = [row["loss"] for row in found[::2]]  # of one text, in different places of batches
    assert max(losses) - min(losses) < 5e-6
    for row, (line, message) in zip(found[1::2], BAD.items(), strict=True):
        if only and b"loss" in line:
            assert row["error"] is None
            continue
        assert ("the line has" if len(line) > 4000 else message) in row["error"], line[:99]
        assert [row[name] for name in ("loss", "tokens", "bytes", "bits_per_byte")] == [None] * 4
        assert row["error"].isprintable()
    start = b'{ "text" : "abc" , "id": 7, "x": 1.50 , "e": "\\u00e9", "loss": '
    assert (tmp_path / "out").read_bytes().startswith(b'{"line": 1, "id": 7, "loss": ' if only else start)
    assert not only or [row["line"] for row in found] == list(range(1, len(found) + 1))
    assert list(found[0])[-5:] == ["loss", "tokens", "bytes", "bits_per_byte", "error"]


def test_an_error_does_not_depend_on_the_callers_stack():
    settings = {"command": "score", "field": "text", "scores_only": True, "special": "error"}

    def deeper(calls: int, line: bytes) -> object:
        return deeper(calls - 1, line) if calls else shards.read_record(line, 1, settings, TOKENIZER)

    for line in (*BAD, *GOOD, b"[" * 10**6, b"[" * 500 + b"]" * 500):
        assert deeper(0, line) == deeper(300, line)


def test_rows_are_the_records_with_their_scores(source, checkpoint, whole):
    model = tiedgpt.load_model(checkpoint)
    for record, row in zip(read(source), map(json.loads, whole.splitlines()), strict=True):
        expected = tiedgpt.score(model, TOKENIZER, TOKENIZER.encode(record["text"]))
        assert {name: row[name] for name in record} == record
        assert row["loss"] == pytest.approx(expected.nll, abs=5e-6)
        assert row["bits_per_byte"] == pytest.approx(expected.bits_per_byte, abs=1e-5)
        assert (row["tokens"], row["bytes"], row["error"]) == (expected.tokens, expected.bytes, None)


def test_strict_cut_and_special_tokens(score, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "abcdefgh"}\n{"text": "ab<|endoftext|>"}\n', encoding="utf-8")
    code, out, err = score(tmp_path / "out", "--strict", file=path)
    assert (code, out) == (2, "")
    assert "note: 2 rows in" in err
    assert "error: 1 of 2 rows have an error" in err
    assert len(read(tmp_path / "out")) == 2, "the output is complete all the same"
    flags = ("--strict", "--max-tokens", "4", "--cut", "--allow-special")
    assert score(tmp_path / "cut", *flags, file=path)[0] == 0
    assert [row["tokens"] for row in read(tmp_path / "cut")] == [3, 2]
    path.write_text('{"text": "abcdefgh"}', encoding="utf-8")
    assert "note: 1 row in" in score(tmp_path / "one", file=path)[2]


def test_many_inputs_are_one_and_lines_are_counted_through(run, source, tmp_path, checkpoint, whole):
    lines = source.read_bytes().splitlines(keepends=True)
    (folder := tmp_path / "folder").mkdir()
    (folder / "a.jsonl").write_bytes(b"".join(lines[:20]).rstrip(b"\n"))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[20:45])))
    (folder / "notes.txt").write_text("not JSON")
    (empty := tmp_path / "empty").touch()
    (last := tmp_path / "c").write_bytes(b"".join(lines[45:]))
    inputs = map(str, (folder, empty, last, last))
    known = ("documents", "score", *inputs, "-m", checkpoint, "--scores-only")
    assert run(*known, "--out", str(tmp_path / "out"))[0] == 0
    assert run(*known, "--out", "-")[:2] == (0, (tmp_path / "out").read_text())
    found, expected = read(tmp_path / "out"), [json.loads(line) for line in whole.splitlines()]
    assert [row["line"] for row in found] == list(range(1, 76))
    for row, other in zip(found, expected + expected[45:], strict=True):
        assert row["id"] == other["id"]
        assert row["loss"] == pytest.approx(other["loss"], abs=5e-6)


def test_generated_rows(run, checkpoint, source, tmp_path):
    flags = ("-n", "5", "--num-samples", "2", "-k", "40", "--out", str(tmp_path / "out"))
    known = ("documents", "generate", str(source), "-m", checkpoint, *flags)
    written = []
    for more in (["--seed", "0", "--shard-size", "1kB"], ["--shard-size", "1kB"], ["--seed", "1"]):
        assert run(*known, *more)[0] == 0
        written.append(read(tmp_path / "out"))
        (tmp_path / "out").unlink()
    assert len(written[0]) == 60
    assert written[0] == written[1]
    for row in written[0]:
        assert row["error"] is None
        assert [len(sample["ids"]) for sample in row["samples"]] == [5, 5]
        assert row["samples"][0]["text"] == TOKENIZER.decode(row["samples"][0]["ids"])
    assert written[2][0]["samples"] != written[0][0]["samples"]


@linux
@pytest.mark.parametrize("out", ["out", "-"])
@pytest.mark.parametrize("pack", [None, bytes, gzip.compress])  # None: not a pipe
@pytest.mark.parametrize("name", ["-", "/dev/fd/{}"])  # the second is what a shell makes of <(...)
def test_an_input_that_can_be_read_once(
    checkpoint, source, tmp_path, whole, monkeypatch, capfd, name, pack, out
):
    monkeypatch.chdir(tmp_path)
    pipe, end = os.pipe()
    os.write(end, (pack or bytes)(source.read_bytes()))  # less than a pipe holds
    os.close(end)
    with open(pipe) as pipe, open(source) as file:
        monkeypatch.setattr(sys, "stdin", stdin := pipe if pack else file)
        assert cli.main([*arguments(checkpoint, out, file=name.format(stdin.fileno()))]) == 0
    rows, err = capfd.readouterr()
    assert (rows.encode() if out == "-" else Path(out).read_bytes()) == whole
    is_copied = out != "-" and (pack is not None or name == "-")
    assert ("can be read once, so it is copied to" in err) == is_copied
    assert os.listdir() == ([] if out == "-" else [out])


def test_an_interrupted_run_continues_with_the_copy_of_its_input(score, source, tmp_path, whole):
    flags = {"file": "-", "stdin": source.read_bytes()}
    assert "of 8 shards left" in score(tmp_path / "out", "--part", "0/2", **flags)[2]
    code, _, err = score(tmp_path / "out", "--resume", file="-")  # another stdin, which is empty
    assert code == 0
    assert "the input is the copy that the interrupted run made in " in err
    assert (tmp_path / "out").read_bytes() == whole


@linux
def test_an_input_without_an_end_fills_no_disk(score, tmp_path, monkeypatch):
    monkeypatch.setattr(shards.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**7))
    os.mkfifo(tmp_path / "fifo")
    yes = subprocess.Popen(["sh", "-c", f"yes > {tmp_path / 'fifo'}"], stderr=subprocess.DEVNULL)
    code, _, err = score(tmp_path / "out", file=tmp_path / "fifo")
    yes.wait(10)
    assert code == 2
    assert f"{tmp_path / 'fifo'} takes more than half of the free disk at" in err
    assert os.listdir(tmp_path) == ["fifo"]


def parts_of(out: Path) -> list[Path]:
    return sorted(out.with_name(f"{out.name}.parts").glob("0*.jsonl"))


@pytest.fixture
def stopped(score, tmp_path, monkeypatch) -> Path:
    """An output of which some parts are done: the run was stopped in its fifth shard."""
    out, do_shard = tmp_path / "out.jsonl", shards.do_shard

    def stop(_):
        raise KeyboardInterrupt

    def stop_at_fifth(directory, settings, shard, progress):
        do_shard(directory, settings, shard, stop if "000004-" in shard.part else progress)

    with monkeypatch.context() as patch:
        patch.setattr(shards, "do_shard", stop_at_fifth)
        code, _, err = score(out)
    assert code == 130
    assert "the same command with --resume continues" in err
    assert not out.exists()
    assert [path.name[:7] for path in parts_of(out)] == [f"{n:06}-" for n in range(4)]
    assert len(os.listdir(out.parent / "out.jsonl.parts")) == 5, "plan.json, and no temporary file"
    return out


@pytest.mark.parametrize("removed", [(), (0, 2, 3), range(4)])
def test_a_stopped_run_is_resumed(stopped, score, whole, monkeypatch, removed):
    refused = "out.jsonl.parts holds a run, which --resume continues; to begin a new one, remove it"
    assert_one_error_line(score(stopped), refused)
    for n in removed:
        parts_of(stopped)[n - 4].unlink()  # of those that are left, counted from the end
    done, do_shard = [], shards.do_shard
    monkeypatch.setattr(shards, "do_shard", lambda *rest: done.append(rest[2].part[:6]) or do_shard(*rest))
    assert score(stopped, "--resume")[0] == 0
    assert done == [f"{n:06}" for n in (*removed, *range(4, 8))], "done parts are not done again"
    assert stopped.read_bytes() == whole
    assert os.listdir(stopped.parent) == ["out.jsonl"]
    assert_one_error_line(score(stopped, "--resume"), "exists and is not replaced; choose another --out")


def test_the_parts_of_several_processes_at_once_are_the_whole(checkpoint, source, score, tmp_path, whole):
    out = tmp_path / "out.jsonl"
    known = command(*arguments(checkpoint, out, file=source))
    for process in [subprocess.Popen([*known, "--part", f"{n}/3"]) for n in range(3)]:
        assert process.wait(100) == 0
    assert not out.exists()
    err = score(out, "--part", "0/3")[2]
    assert "part 0/3 is done, 0 of 8 shards left; with none left, run --resume to join" in err
    assert score(out, "--resume")[0] == 0
    assert out.read_bytes() == whole


def test_parts_that_begin_at_one_moment_with_other_settings_are_not_mixed(
    score, tmp_path, whole, monkeypatch
):
    out, open_ = tmp_path / "out", files.StagedFiles.open

    def after_another(staged, name):
        if name == "plan.json":
            monkeypatch.setattr(files.StagedFiles, "open", open_)
            assert score(out, "--part", "0/2", "--stride", "5")[0] == 0
        return open_(staged, name)

    monkeypatch.setattr(files.StagedFiles, "open", after_another)
    assert score(out, "--part", "1/2")[0] == 0
    assert score(out, "--resume")[0] == 0
    assert out.read_bytes() == whole


def test_an_output_that_appears_during_the_run_is_not_replaced(score, tmp_path, whole, monkeypatch):
    out, do_shard = tmp_path / "out", shards.do_shard
    with monkeypatch.context() as patch:
        patch.setattr(shards, "do_shard", lambda *rest: out.write_text("mine") and do_shard(*rest))
        code, _, err = score(out)
    assert (code, out.read_text()) == (2, "mine")
    assert f"error: {out} exists now; move it away" in err
    out.rename(tmp_path / "moved")
    assert score(out, "--resume")[0] == 0
    assert out.read_bytes() == whole


@pytest.mark.parametrize("links", [True, False])
def test_of_two_runs_to_one_output_one_is_refused(score, tmp_path, whole, monkeypatch, links):
    """The second one starts when the first has claimed the output, or when it has just been completed."""
    out, find_files = tmp_path / "out", shards.find_files
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(1, "no links")))

    def after_another(names):
        monkeypatch.setattr(shards, "find_files", find_files)
        assert score(out)[0] == 0
        return find_files(names)

    monkeypatch.setattr(shards, "find_files", after_another)
    assert_one_error_line(score(out, "-q"), f"{out} exists and is not replaced")
    assert out.read_bytes() == whole
    assert os.listdir(tmp_path) == ["out"]
    with files.lock_directory(tmp_path / "new.parts"):
        assert_one_error_line(score(tmp_path / "new"), "new.parts is in use by")


OTHERS = {  # flags, or the last word of what a test does -> what the error names
    "--max-tokens 5": "max_tokens: None, not 5",
    "--stride 5": "stride: 32, not 5",
    "--head untied -q": "head: 'tied'",
    "--allow-special": "special",
    "--field prompt": "field",
    "--scores-only": "scores_only",
    "--shard-size 2K": "shard_size: 1000, not 2000",
    "-m shakespeare-tied": "model",
    "version": "tiedgpt: ",
    "command": "command: 'score'",
    "input": "input_sha256",
}


@pytest.mark.parametrize("other", OTHERS)
def test_resume_with_another_setting_is_an_error_that_names_it(
    stopped, run, source, checkpoint, tmp_path, monkeypatch, other
):
    shutil.copy2(source, same := tmp_path / "same size and time")
    known = list(arguments(checkpoint, stopped, "--resume", file=same if other == "input" else source))
    known += other.split() if other.startswith("-") else []
    if other == "version":
        monkeypatch.setattr(shards, "__version__", "0.0.9")
    elif other == "command":
        known[1] = "generate"
    elif other == "input":
        same.write_bytes(same.read_bytes().replace(b"d40", b"d04"))
        shutil.copystat(source, same)
    assert_one_error_line(run(*known), f"begun with another {OTHERS[other]}")
    assert len(parts_of(stopped)) == 4


@pytest.mark.parametrize("changed", ["copy.jsonl", "model/model.safetensors"])
def test_a_file_that_changes_during_the_run_is_an_error(
    score, source, checkpoint, tmp_path, monkeypatch, changed
):
    shutil.copy(source, copy := tmp_path / "copy.jsonl")
    shutil.copytree(checkpoint, tmp_path / "model")
    path, read_record, calls = tmp_path / changed, shards.read_record, itertools.count()

    def change_in_the_fourth_shard(*rest):
        if next(calls) % 60 == 30:
            path.write_bytes(path.read_bytes().replace(b"d50", b"d05"))  # in place
        return read_record(*rest)

    monkeypatch.setattr(shards, "read_record", change_in_the_fourth_shard)
    for out in (tmp_path / "out.jsonl", "-")[: 2 - (path == copy)]:  # "-" reads its input once
        code, _, err = score(out, "-m", str(tmp_path / "model"), file=copy)
        assert code == 2
        assert f"{Path(changed).parts[0]} has changed since the run began" in err
    assert 2 <= len(parts_of(tmp_path / "out.jsonl")) <= 7


def test_a_process_that_outlives_its_run_adds_nothing_to_another(stopped, tmp_path):
    """Neither when the directory has another plan at the start, nor when it gets one during a shard."""
    (tmp_path / "in").write_bytes(b"{}")
    plan = parts_of(stopped)[0].with_name("plan.json")
    settings = json.loads(plan.read_text())
    shard = shards.Shard("000005-.jsonl", str(tmp_path / "in"), 0, 1, 1, shards.hash_lines([b"{}"]))

    def another_run(_):
        shutil.rmtree(plan.parent)
        plan.parent.mkdir()
        plan.write_text(json.dumps({**settings, "stride": 5}))

    for message in (r"cannot write to .*out\.jsonl.parts: No such file", "has the plan of another run now"):
        with pytest.raises(TiedGPTError, match=message):
            shards.do_shard(plan.parent, settings, shard, another_run)
    assert os.listdir(plan.parent) == ["plan.json"]


def test_a_damaged_part_or_plan_is_an_error(score, stopped):
    part = parts_of(stopped)[1]
    part.write_bytes(part.read_bytes()[:-1].rpartition(b"\n")[0] + b"\n")
    code, _, err = score(stopped, "--resume")
    assert code == 2
    assert re.search("000001-[0-9a-f]+.jsonl has [0-9]+ rows, expected [0-9]+; remove it to do it again", err)
    part.unlink()
    plan = part.with_name("plan.json")
    raw = plan.read_bytes()
    for damaged in (b"{", b"{}", b"[]", raw.replace(b'"stride"', b'"stripe"')):
        plan.write_bytes(damaged)
        assert_one_error_line(score(stopped, "--resume"), "out.jsonl.parts")
    plan.write_bytes(raw)
    assert score(stopped, "--resume")[0] == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["IN"], "the following arguments are required: --out"),
        (["--out", "x"], "the following arguments are required: IN"),
        (["IN", "--out", "x", "--head", "both"], "--head: invalid choice: 'both'"),
        (["IN", "--out", "x", "--part", "2/2"], "--part: expected I/N"),
        (["IN", "--out", "x", "--part", "0/2", "--workers", "2"], "exclude each other"),
        (["IN", "--out", "x", "--shard-size", "0"], "--shard-size: expected a size"),
        (["IN", "--out", "x", "--stride", "999"], "stride must be a whole number from 1 to"),
        (["IN", "--out", "x", "--cut"], "--cut needs --max-tokens"),
        (["IN", "--out", "x", "--max-tokens", "1"], "--max-tokens: expected a whole number of at least 2"),
        (["IN", "--out", "-", "--resume"], "--out - is stdout"),
        (["IN", "--out", "x/"], "x/ is a directory; --out needs a file, or - for stdout"),
        (["IN", "--out", "/dev/stdout"], "/dev/stdout exists and is not replaced; choose another --out"),
        (["no-such-file", "--out", "x"], "no-such-file: No such file"),
        (["/dev/zero", "--out", "x"], "/dev/zero is a directory or a device; expected a file or a pipe"),
        (["EMPTY", "--out", "x"], "holds no file that ends in .jsonl"),
        (["GZ", "--out", "x"], "GZ cannot be read: Compressed file ended before"),
        (["IN", "--out", "FULL"], "FULL.parts holds mine, but no run; to begin a new one, remove it"),
        (["IN", "--out", "IN"], "IN exists and is not replaced; choose another --out"),
        (["IN", "--out", "x", "--dask", "y", "-q"], "--workers and --dask need Dask: pip install"),
    ],
)
def test_wrong_flags(run, checkpoint, source, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(documents, "find_spec", lambda name: None)
    Path("EMPTY").mkdir()
    Path("FULL.parts").mkdir()
    Path("FULL.parts/mine").touch()
    Path("IN").write_bytes(source.read_bytes())
    Path("GZ").write_bytes(gzip.compress(source.read_bytes())[:-20])
    before = sorted(os.listdir())
    assert_one_error_line(run("documents", "score", "-m", checkpoint, *flags), message)
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(("text", "size"), [("7", 7), ("20KB", 20_000), ("20kB", 20_000), ("3mb", 3 * 10**6)])
def test_sizes(text, size):
    assert documents.size(text) == size


@linux
def test_the_bar_counts_rows_and_fits_80_columns(checkpoint, source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(common.Progress, "DELAY", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([*arguments(checkpoint, tmp_path / "out", file=source)]) == 0
    bars = re.findall(r"\r(score: [^\r\n]*)", capsys.readouterr().err)
    assert re.search(r"\d+/60 \[\d\d:\d\d<.*row/s\]", bars[-1])
    assert max(map(len, bars)) <= 80


@linux
def test_memory_does_not_grow_with_the_file(checkpoint, tmp_path):
    """A sparse file of 300 MB, after one of 30 bytes: two records, and lines of zeros between them."""
    code = "import resource, shlex, sys; from tiedgpt.cli import main\n"
    code += "for run in sys.argv[1:]: assert main(shlex.split(run)) == 0; "
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    runs = []
    for zeros in (0, 150_000_000):
        with open(tmp_path / f"{zeros}.jsonl", "wb") as file:
            for _ in range(2):
                file.write(b'{"text": "abc"}\n')
                file.seek(zeros, os.SEEK_CUR)
                file.write(b"\n")
        known = arguments(checkpoint, tmp_path / str(zeros), "--shard-size", "1MB", file=file.name)
        runs.append(shlex.join(known))
    done = subprocess.run([sys.executable, "-c", code, *runs], capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr
    small, large = map(int, done.stdout.split())
    assert large - small < 100
    assert [row["error"] is None for row in read(tmp_path / "150000000")] == [True, False] * 2
