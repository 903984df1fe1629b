"""score --jsonl and generate --jsonl: a row for every line, each once, however often the run is stopped."""

import gzip
import json
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import assert_one_error_line, command

import tiedgpt
from tiedgpt import Tokenizer
from tiedgpt.cli import documents as cli_documents
from tiedgpt.cli import run_documents
from tiedgpt.fast import blas
from tiedgpt.scale import rows, shards
from tiedgpt.scale.shards import Shard, cut, open_input, read_lines

TOKENIZER = Tokenizer([])


@pytest.fixture(autouse=True)
def restored_threads():
    """Put back BLAS's thread count, which a run sets to 1 for its whole process."""
    openblas = blas.openblas()
    before = openblas and openblas[0]()
    yield
    if openblas:
        openblas[1](before)


def write_lines(path: Path, n: int, seed: int = 0) -> Path:
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(n):
            text = "".join(rng.choices("abc de é", k=rng.choice([3, 10, 40, 150])))
            file.write(json.dumps({"id": f"d{number}", "text": text, "prompt": text[:20]}) + "\n")
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_lines(tmp_path_factory.mktemp("source") / "in.jsonl", 60)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def score(run, checkpoint, source):
    """score(out, *flags): run `score --jsonl` on the source in shards of 1 kB."""

    def score(out: Path | str, *flags: str, file: Path = source) -> tuple[int, str, str]:
        known = ("--shard-size", "1kB", "--out", str(out))
        return run("score", "-m", checkpoint, "--jsonl", str(file), *known, *flags)

    return score


@pytest.fixture(scope="module")
def whole(tmp_path_factory, checkpoint, source) -> bytes:
    """The output of one run."""
    out = tmp_path_factory.mktemp("whole") / "out.jsonl"
    arguments = ["--jsonl", str(source), "--shard-size", "1kB", "--out", str(out)]
    assert tiedgpt.cli.main(["score", "-m", checkpoint, *arguments]) == 0
    return out.read_bytes()


# Shards


@pytest.mark.parametrize("size", [1, 5, 16, 1000])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_shards_hold_every_byte_once_and_whole_lines(tmp_path, size, end, suffix):
    rng = random.Random(size)
    for trial in range(30):
        lines = [bytes(rng.choices(b"ab \r", k=rng.choice([0, 1, 7, 60]))) for _ in range(rng.randrange(12))]
        data = b"\n".join(lines) + (end if lines else b"")
        path = tmp_path / f"{trial}{suffix}"
        path.write_bytes(gzip.compress(data) if suffix else data)
        with open_input(str(path)) as stream:
            found = [Shard(n, 0, 1, *place) for n, place in enumerate(cut(stream, size))]
        at, pieces = 0, []
        for shard in found:
            assert shard.offset == at
            at += shard.size
            with open_input(str(path)) as stream:
                of_shard = list(read_lines(stream, shard))
            assert len(of_shard) == shard.lines
            pieces += of_shard
        assert at == len(data)
        assert pieces == data.splitlines(keepends=True) or b"\r" in data
        assert b"".join(pieces) == data
        assert all(shard.size >= size for shard in found[:-1])
        assert len(pieces) == data.count(b"\n") + (data[-1:] not in (b"", b"\n"))


def test_a_line_that_is_too_long_is_one_row_and_is_not_read_at_once(tmp_path, monkeypatch, score):
    monkeypatch.setattr(shards, "MAX_LINE", 100)
    monkeypatch.setattr(shards, "BLOCK", 64)
    path = tmp_path / "in.jsonl"
    good = b'{"text": "abc"}\n'
    path.write_bytes(good + b"x" * 5000 + b"\n" + good + b'{"text": "' + b"y" * 87 + b'"}\n' + b"\0" * 3000)
    code, _, err = score(tmp_path / "out", file=path)
    assert code == 0
    errors = [row["error"] for row in read(tmp_path / "out")]
    assert [error and error[:23] for error in errors] == [
        None,
        "the line is longer than",
        None,
        None,
        errors[1][:23],
    ]
    assert "2 of 5 rows have an error" in err


# Rows


def test_rows_are_the_records_with_their_scores(score, source, tmp_path, checkpoint, whole):
    assert score(tmp_path / "out.jsonl")[0] == 0
    assert (tmp_path / "out.jsonl").read_bytes() == whole
    assert os.listdir(tmp_path) == ["out.jsonl"]
    model = tiedgpt.load_model(checkpoint)
    found = read(tmp_path / "out.jsonl")
    for record, row in zip(read(source), found, strict=True):
        expected = tiedgpt.score(model, TOKENIZER, TOKENIZER.encode(record["text"]))
        assert {name: row[name] for name in record} == record
        assert row["loss"] == pytest.approx(expected.nll, abs=5e-6)
        assert row["bits_per_byte"] == pytest.approx(expected.bits_per_byte, abs=1e-5)
        assert (row["tokens"], row["bytes"], row["error"]) == (expected.tokens, expected.bytes, None)


BAD = {
    b"": "not JSON",
    b"   ": "not JSON",
    b"not JSON": "not JSON",
    b'{"text": "abc"': "not JSON",
    b'{"text": "abc", "x": NaN}': "not JSON: NaN is not a JSON number",
    b"[" * 100_000: "not JSON",
    b"1" * 10_000: "not JSON",
    b'"abc"': "expected a JSON object, got 'abc'",
    b"null": "expected a JSON object, got None",
    b'{"words": "abc"}': "the record has no field 'text'",
    b"{}": "the record has no field 'text'",
    b'{"text": 5}': "field 'text' is not a text: 5",
    b'{"text": null}': "field 'text' is not a text: None",
    b'{"text": ""}': "the text has 0 tokens",
    b'{"text": "a"}': "the text has 1 token;",
    b'{"text": "a<|endoftext|>b"}': "special token",
    b'{"text": "a\\ud800b"}': "half of a surrogate pair",
    b'{"text": "a\xffb"}': "not UTF-8: byte 0xff at position 11",
    b'{"text": "abcdefghijklmnopqrstuvwxyz"}': "26 tokens, more than the limit of 20",
    b'{"text": "abc", "loss": 1}': "the record has a field loss already",
}


@pytest.mark.parametrize("only", [[], ["--scores-only"]])
def test_a_line_with_an_error_is_a_row_with_the_error(score, tmp_path, only):
    good = b' { "text" : "abc" , "id": 7, "x": 1.50 , "e": "\\u00e9" } \r'
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join([good, *(part for bad in BAD for part in (bad, good))]))
    code, out, err = score(tmp_path / "out.jsonl", "--max-tokens", "20", *only, file=path)
    assert (code, out) == (0, "")
    bad = len(BAD) - bool(only)
    assert f"{bad} of {2 * len(BAD) + 1} rows have an error" in err
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
    found = [json.loads(line) for line in lines]
    losses = [row["loss"] for row in found[::2]]  # of one text, in different places of batches
    assert max(losses) - min(losses) < 5e-6
    for row, (source, message) in zip(found[1::2], BAD.items(), strict=True):
        if only and b"loss" in source:
            assert row["error"] is None
            continue
        assert message in row["error"], source
        assert [row[name] for name in ("loss", "tokens", "bytes", "bits_per_byte")] == [None] * 4
        assert row["error"].isprintable()
    if only:
        assert [row["line"] for row in found] == list(range(1, len(found) + 1))
        assert list(found[0]) == ["line", "id", "loss", "tokens", "bytes", "bits_per_byte", "error"]
    else:
        assert lines[0].startswith(b'{ "text" : "abc" , "id": 7, "x": 1.50 , "e": "\\u00e9", "loss": ')
        assert found[11 * 2 - 1] == dict.fromkeys(("loss", "tokens", "bytes", "bits_per_byte")) | {
            "error": found[11 * 2 - 1]["error"]
        }


def test_strict_cut_and_special_tokens(score, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "abcdefgh"}\n{"text": "ab<|endoftext|>"}\n', encoding="utf-8")
    code, out, err = score(tmp_path / "out", "--strict", file=path)
    assert (code, out) == (2, "")
    assert "error: 1 of 2 rows have an error" in err
    assert len(read(tmp_path / "out")) == 2, "the output is complete all the same"
    flags = ("--strict", "--max-tokens", "4", "--cut", "--allow-special")
    assert score(tmp_path / "cut", *flags, file=path)[0] == 0
    assert [row["tokens"] for row in read(tmp_path / "cut")] == [3, 2]


def test_many_inputs_are_one_and_lines_are_counted_through(score, run, source, tmp_path, checkpoint, whole):
    lines = source.read_bytes().splitlines(keepends=True)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"".join(lines[:20]).rstrip(b"\n"))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[20:45])))
    (folder / "notes.txt").write_text("not JSON")
    last = tmp_path / "c"
    last.write_bytes(b"".join(lines[45:]))
    arguments = ("--jsonl", str(folder), str(last), "--out", str(tmp_path / "out"), "--scores-only")
    assert run("score", "-m", checkpoint, *arguments)[0] == 0
    found = read(tmp_path / "out")
    assert [row["line"] for row in found] == list(range(1, 61))
    expected = [json.loads(line) for line in whole.splitlines()]
    for row, other in zip(found, expected, strict=True):
        assert row["id"] == other["id"]
        assert row["loss"] == pytest.approx(other["loss"], abs=5e-6)


def test_stdin(run, source, tmp_path, checkpoint, whole):
    arguments = ("--jsonl", "-", "--out", str(tmp_path / "out"), "--shard-size", "1kB")
    assert run("score", "-m", checkpoint, *arguments, stdin=source.read_bytes())[0] == 0
    assert (tmp_path / "out").read_bytes() == whole


def test_an_empty_file(score, tmp_path):
    (tmp_path / "in.jsonl").touch()
    assert score(tmp_path / "out", file=tmp_path / "in.jsonl")[0] == 0
    assert (tmp_path / "out").read_bytes() == b""


def test_generated_rows(run, checkpoint, source, tmp_path):
    flags = ("-n", "5", "--num-samples", "2", "--shard-size", "1kB", "-k", "40")
    known = ("generate", "-m", checkpoint, "--jsonl", str(source), *flags)
    assert run(*known, "--out", str(tmp_path / "one"))[0] == 0
    assert run(*known, "--out", str(tmp_path / "two"), "--seed", "0")[0] == 0
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    found = read(tmp_path / "one")
    assert len(found) == 60
    for row in found:
        assert row["error"] is None
        assert [len(sample["ids"]) for sample in row["samples"]] == [5, 5]
        assert row["samples"][0]["text"] == TOKENIZER.decode(row["samples"][0]["ids"])
    assert run(*known, "--out", str(tmp_path / "three"), "--seed", "1")[0] == 0
    assert read(tmp_path / "three")[0]["samples"] != found[0]["samples"]


# Once and in order


def parts_of(out: Path) -> list[Path]:
    return sorted((out.parent / f"{out.name}.parts").glob("*.jsonl"))


@pytest.fixture
def stopped(score, tmp_path, monkeypatch) -> Path:
    """An output of which some parts are done: the run was stopped in its fifth shard."""
    out = tmp_path / "out.jsonl"
    do, calls = rows.Job.do, []

    def stop_at_fifth(job, shard, progress):
        calls.append(shard)
        return do(job, shard, stop if len(calls) == 5 else progress)

    def stop(*counts):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rows.Job, "do", stop_at_fifth)
        code, _, err = score(out)
    assert code == 130
    assert "the same command with --resume continues" in err
    assert not out.exists()
    assert [path.name for path in parts_of(out)] == [f"{n:06}.jsonl" for n in range(4)]
    assert len(os.listdir(out.parent / "out.jsonl.parts")) == 5, "plan.json, and no temporary file"
    return out


def test_a_stopped_run_is_resumed(stopped, score, whole, monkeypatch):
    assert_one_error_line(
        score(stopped), "out.jsonl.parts exists: to continue the run that made it, add --resume"
    )
    done, do = [], rows.Job.do
    monkeypatch.setattr(
        rows.Job, "do", lambda job, shard, *rest: done.append(shard.number) or do(job, shard, *rest)
    )
    assert score(stopped, "--resume")[0] == 0
    assert done[0] == 4, "parts that are done are not done again"
    assert stopped.read_bytes() == whole
    assert os.listdir(stopped.parent) == ["out.jsonl"]
    assert_one_error_line(score(stopped, "--resume"), "exists; remove it or choose another --out")


@pytest.mark.parametrize("seed", range(4))
def test_any_parts_may_be_missing(score, tmp_path, whole, seed):
    folder = f"{tmp_path / 'out'}/"
    assert score(folder)[0] == 0
    paths = sorted((tmp_path / "out").glob("*.jsonl"))
    assert b"".join(path.read_bytes() for path in paths) == whole
    for path in random.Random(seed).sample(paths, seed * len(paths) // 3):
        path.unlink()
    (tmp_path / "out" / ".000001.jsonl.abc.tmp").write_bytes(b"of a killed process")
    assert score(folder, "--resume")[0] == 0
    assert sorted(os.listdir(tmp_path / "out")) == [*(path.name for path in paths), "plan.json"]
    assert b"".join(path.read_bytes() for path in paths) == whole


def test_the_parts_of_three_processes_are_the_whole(score, tmp_path, whole):
    out = tmp_path / "out.jsonl"
    for number in (2, 0, 1):
        code, _, err = score(out, "--part", f"{number}/3")
        assert code == 0
        assert f"part {number}/3 is done" in err
        assert not out.exists()
    assert "left; to join them, run the command with --resume instead of --part" in err
    assert score(out, "--resume")[0] == 0
    assert out.read_bytes() == whole


def test_many_processes_at_once_make_one_plan(source, checkpoint, tmp_path, whole):
    out = tmp_path / "out.jsonl"
    arguments = ("--jsonl", str(source), "--out", str(out), "--shard-size", "1kB")
    processes = [
        subprocess.Popen(
            command("score", "-m", checkpoint, *arguments, "--part", f"{n}/4"), stderr=subprocess.PIPE
        )
        for n in range(4)
    ]
    for process in processes:
        _, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
    assert tiedgpt.cli.main(["score", "-m", checkpoint, *arguments, "--resume"]) == 0
    assert out.read_bytes() == whole


@pytest.mark.slow
def test_a_run_that_is_killed_at_random_moments(checkpoint, tmp_path):
    source = write_lines(tmp_path / "in.jsonl", 3000)
    outs = [tmp_path / "whole", tmp_path / "out"]
    known = ("score", "-m", checkpoint, "--jsonl", str(source), "--shard-size", "1kB", "--resume", "--out")
    assert tiedgpt.cli.main([*known, str(outs[0])]) == 0
    rng, kills = random.Random(0), 0
    while not outs[1].exists():
        process = subprocess.Popen(command(*known, str(outs[1])), stderr=subprocess.PIPE)
        try:
            process.communicate(timeout=rng.uniform(0.2, 1))
        except subprocess.TimeoutExpired:
            process.send_signal(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            process.communicate()
            kills += 1
    assert kills > 2
    assert outs[1].read_bytes() == outs[0].read_bytes()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--stride", "5"], "begun with another stride: 32, now it is 5"),
        (["--head", "untied"], "begun with another head: 'tied'"),
        (["--allow-special"], "begun with another special"),
        (["--field", "prompt"], "begun with another field"),
        (["--max-tokens", "5"], "begun with another max_tokens: None, now it is 5"),
        (["--scores-only"], "begun with another scores_only"),
        (["--shard-size", "2kB"], "begun with another shard_size: 1000, now it is 2000"),
    ],
)
def test_resume_with_another_setting_is_an_error_that_names_it(stopped, score, flags, message):
    assert_one_error_line(score(stopped, "--resume", *flags), message)
    assert len(parts_of(stopped)) == 4


def test_resume_with_another_model_version_or_command_is_an_error(
    stopped, score, run, source, tmp_path, monkeypatch
):
    rest = ("--jsonl", str(source), "--out", str(stopped), "--resume", "--shard-size", "1kB")
    assert_one_error_line(run("score", "-m", "shakespeare-tied", "-q", *rest), "begun with another model")
    assert_one_error_line(
        run("generate", "-m", "shakespeare-tied", "-q", *rest), "begun with another command: 'score'"
    )
    monkeypatch.setattr(rows, "__version__", "0.0.9")
    assert_one_error_line(score(stopped, "--resume"), "begun with another tiedgpt:")


def test_an_input_that_changes_is_an_error(score, source, tmp_path, stopped):
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(source.read_bytes())
    assert_one_error_line(score(stopped, "--resume", file=copy), "begun with another input")
    status = source.stat()
    try:
        os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        assert_one_error_line(score(stopped, "--resume"), "has changed since the run began")
    finally:
        os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_an_input_that_changes_during_the_run_is_an_error(score, source, tmp_path, monkeypatch):
    copy, do = tmp_path / "copy.jsonl", rows.Job.do
    copy.write_bytes(source.read_bytes())

    def do_and_change(job, shard, progress):
        if shard.number == 3:
            copy.write_bytes(source.read_bytes() + b"{}")
        return do(job, shard, progress)

    monkeypatch.setattr(rows.Job, "do", do_and_change)
    code, _, err = score(tmp_path / "out.jsonl", file=copy)
    assert code == 2
    assert "copy.jsonl has changed since the run began" in err
    assert len(parts_of(tmp_path / "out.jsonl")) == 3


def test_a_damaged_part_or_plan_is_an_error(score, tmp_path, stopped):
    part = parts_of(stopped)[1]
    part.write_bytes(part.read_bytes()[:-1].rpartition(b"\n")[0] + b"\n")
    code, _, err = score(stopped, "--resume")
    assert code == 2
    assert "000001.jsonl has" in err
    assert "remove it to do it again" in err
    part.unlink()
    plan = part.with_name("plan.json")
    raw = plan.read_bytes()
    for damaged in (b"{", b"{}", b"[]", raw.replace(b'"size"', b'"sise"')):
        plan.write_bytes(damaged)
        assert_one_error_line(score(stopped, "--resume"), "plan.json is damaged")
    plan.write_bytes(raw)
    assert score(stopped, "--resume")[0] == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX's limits")
def test_a_full_disk_is_an_error_and_what_was_done_is_kept(source, checkpoint, tmp_path, whole):
    """A limit on the size of files has the same effect on the part of a long document."""
    out = tmp_path / "out.jsonl"
    file = tmp_path / "in.jsonl"
    file.write_bytes(source.read_bytes() + json.dumps({"text": "abc", "x": "x" * 50_000}).encode())
    arguments = ("--jsonl", str(file), "--out", str(out), "--shard-size", "1kB")
    done = subprocess.run(
        command("score", "-m", checkpoint, *arguments),
        capture_output=True,
        text=True,
        timeout=100,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)),
    )
    assert done.returncode == 2
    assert "cannot be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("out.jsonl.parts/.*.tmp"))
    assert len(parts_of(out)) > 5
    assert tiedgpt.cli.main(["score", "-m", checkpoint, *arguments, "--resume"]) == 0
    assert out.read_bytes().startswith(whole)


# Flags


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["FILE", "--jsonl", "IN", "--out", "x"], "FILE and --jsonl exclude each other"),
        (["--jsonl", "IN", "--out", "x", "--tokens"], "--tokens and --jsonl exclude each other"),
        (["--jsonl", "IN", "--out", "x", "--json"], "--json and --jsonl exclude each other"),
        (["--jsonl", "IN", "--out", "x", "--head", "both"], "--head both and --jsonl exclude each other"),
        (["--jsonl", "IN"], "--jsonl needs --out"),
        (["--out", "x", "FILE"], "--out needs --jsonl"),
        (["--workers", "2", "FILE"], "--workers needs --jsonl"),
        (["FILE", "--part", "0/2"], "--part needs --jsonl"),
        (["FILE", "--max-tokens", "5"], "--max-tokens needs --jsonl"),
        ([], "expected a FILE to score, or --jsonl"),
        (["--jsonl", "IN", "--out", "x", "--cut"], "--cut needs --max-tokens"),
        (
            ["--jsonl", "IN", "--out", "x", "--max-tokens", "1"],
            "--max-tokens: expected a whole number of at least 2",
        ),
        (["--jsonl", "IN", "--out", "x", "--part", "2/2"], "--part: expected I/N"),
        (["--jsonl", "IN", "--out", "x", "--part", "0/2", "--workers", "2"], "not allowed with"),
        (["--jsonl", "IN", "--out", "x", "--shard-size", "0"], "--shard-size: expected a size"),
        (["--jsonl", "IN", "--out", "x", "--stride", "999"], "stride must be a whole number from 1 to"),
        (["--jsonl", "-", "--out", "x", "--part", "0/2"], "--part cannot read stdin"),
        (["--jsonl", "no-such-file", "--out", "x"], "no-such-file: No such file"),
        (["--jsonl", "EMPTY", "--out", "x"], "holds no file that ends in .jsonl"),
        (["--jsonl", "GZ", "--out", "x"], "a damaged gzip file"),
        (
            ["--jsonl", "TAKEN", "--out", "x"],
            "line 1: the record has a field loss already; use --scores-only",
        ),
        (["--jsonl", "IN", "--out", "FULL/"], "FULL exists: to continue the run that made it, add --resume"),
        (["--jsonl", "IN", "--out", "FULL/", "--resume"], "FULL holds mine, but no run to continue"),
        (["--jsonl", "IN", "--out", "IN"], "exists; remove it or choose another --out"),
    ],
)
def test_wrong_flags(run, checkpoint, source, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    Path("EMPTY").mkdir()
    Path("FULL").mkdir()
    Path("FULL/mine").touch()
    Path("FILE").write_text("text")
    Path("IN").write_bytes(source.read_bytes())
    Path("GZ.gz").write_bytes(gzip.compress(source.read_bytes())[:-20])
    Path("TAKEN").write_text('{"text": "abc", "loss": 1}\n')
    flags = ["GZ.gz" if flag == "GZ" else flag for flag in flags]
    assert_one_error_line(run("score", "-m", checkpoint, *flags), message)
    assert not Path("x").exists()


def test_workers_without_dask(score, tmp_path, monkeypatch):
    monkeypatch.setattr(cli_documents, "find_spec", lambda name: None)
    assert_one_error_line(score(tmp_path / "out", "--workers", "2"), "--workers needs Dask: pip install")


def test_two_runs_at_once_are_refused(score, tmp_path, stopped):
    with run_documents.locked_file(tmp_path / "out.jsonl.parts" / run_documents.LOCK):
        code, _, err = score(stopped, "--resume")
    assert code == 2
    assert "is in use by" in err


def test_a_damaged_model_stops_the_run(score, run, source, tmp_path, checkpoint):
    model = tiedgpt.load_model(checkpoint)
    model.parameters["wte.weight"][:] = np.nan
    tiedgpt.save_model(model, TOKENIZER, tmp_path / "nan")
    arguments = ("--jsonl", str(source), "--out", str(tmp_path / "out"))
    code, _, err = run("score", "-m", str(tmp_path / "nan"), *arguments)
    assert code == 2
    assert "checkpoint is damaged" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_the_file(checkpoint, tmp_path):
    """A sparse file of 1 GB: three records, and lines of zeros between them."""
    path = tmp_path / "in.jsonl"
    with open(path, "wb") as file:
        for _ in range(3):
            file.write(b'{"text": "abc"}\n')
            file.seek(330_000_000, os.SEEK_CUR)
            file.write(b"\n")
    code = (
        "import resource, sys; from tiedgpt.cli import main; assert main(sys.argv[1:]) == 0; "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )

    def peak(source: Path, out: str) -> int:
        arguments = ["score", "-m", checkpoint, "--jsonl", str(source), "--out", str(tmp_path / out)]
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    small = tmp_path / "small.jsonl"
    small.write_bytes(b'{"text": "abc"}\n' * 3)
    assert peak(path, "large") - peak(small, "few") < 100
    assert [row["error"] is None for row in read(tmp_path / "large")] == [True, False] * 3
