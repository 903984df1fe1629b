"""tiedgpt documents: a row for every line, each once, however often the run is stopped.

test_kills.py kills its workers. support/writers.py kills a run at any moment and fills its disk.
test_publishing.py has the locks and links.
"""

import gzip
import itertools
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.checks import refuses
from support.commands import assert_one_error_line
from support.loopback_hub import LoopbackHub, running

import tiedgpt
from tiedgpt import Tokenizer, cli
from tiedgpt.checkpoints import publishing
from tiedgpt.checkpoints.formats import open_checkpoint
from tiedgpt.cli import documents, documents_score, messages
from tiedgpt.errors import TiedGPTError
from tiedgpt.fast import blas
from tiedgpt.scale import inputs, rows, shards

TOKENIZER = Tokenizer([])
linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs Linux's limits and files"
)


@pytest.fixture(autouse=True)
def restored_threads():
    """Put back BLAS's thread count, which a run sets to 1 for its whole process."""
    before = blas.blas_threads()
    yield
    if before:
        blas.openblas("set_num_threads")(before)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    rng, path = random.Random(0), tmp_path_factory.mktemp("source") / "in.jsonl"
    texts = ["".join(rng.choices("abc de é", k=rng.choice([3, 10, 40, 150]))) for _ in range(60)]
    records = ({"id": f"d{n}", "text": text, "prompt": text[:20]} for n, text in enumerate(texts))
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def done(result: tuple[int, str, str]) -> None:
    assert result[0] == 0, result


def arguments(model: str, out: Path | str, *flags: str, file: Path | str) -> tuple[str, ...]:
    return (
        "documents",
        "score",
        str(file),
        "-m",
        model,
        "--shard-size",
        "1000",
        "--out",
        str(out),
        *flags,
    )


@pytest.fixture
def score(run, checkpoint, source):
    """score(out, *flags): run `documents score` on the source in shards of 1 kB."""

    def score(
        out: Path | str, *flags: str, file: Path | str = source, **more
    ) -> tuple[int, str, str]:
        return run(*arguments(checkpoint, out, *flags, file=file), **more)

    return score


@pytest.fixture(scope="module")
def whole(tmp_path_factory, checkpoint, source) -> bytes:
    """The output of one run."""
    out = tmp_path_factory.mktemp("whole") / "out.jsonl"
    assert cli.main([*arguments(checkpoint, out, file=source)]) == 0
    return out.read_bytes()


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_shards_hold_every_byte_once_and_whole_lines(tmp_path, end, pack):
    rng = random.Random(0)
    for size in (1, 5, 16, 1000) * 30:
        lines = [
            bytes(rng.choices(b"ab \r", k=rng.choice([0, 1, 7, 60])))
            for _ in range(rng.randrange(12))
        ]
        data = b"\n".join(lines) + (end if lines else b"")
        (path := tmp_path / "in").write_bytes(pack(data))
        found = list(inputs.read_shards(path, size))
        pieces = [line for _, of_shard in found for line in of_shard]
        assert b"".join(pieces) == data
        assert len(pieces) == data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
        for n, (offset, of_shard) in enumerate(found):
            assert next(inputs.read_shards(path, size, offset)) == (offset, of_shard)
            assert (
                sum(map(len, of_shard)) >= size > sum(map(len, of_shard[:-1]))
                or n == len(found) - 1
            )


BAD = {  # besides the errors of a text, which test_documents.py has
    b"": "not JSON",
    b'{"text": "abc"': "not JSON",
    b'{"text": "abc", "x": NaN}': "not JSON: NaN is not a JSON number",
    b"1" * 4500: "not JSON: Exceeds the limit",
    b"null": "expected a JSON object, got None",
    b"{}": "the record has no field 'text'",
    b'{"text": 5}': "field 'text' is not a text: 5",
    b'{"text": "a<|endoftext|>b"}': "special token <|endoftext|>: --allow-special reads it as that "
    "token",
    b'{"text": "' + b"z" * 30 + b'"}': "the text has 30 tokens, more than the limit of 20",
    b'{"text": "a\xffb"}': "not JSON: 'utf-8' codec can't decode byte 0xff in position 11",
    b'{"text": "abc", "loss": 1}': "the record has a field loss already",
    b'{"text": "abc", "x": ' + b"[" * 500 + b"]" * 500 + b"}": "nested more than 500 deep",
    b"[" * 501: "nested more than 500 deep",
    b'{"text": "' + b"y" * 4988 + b'"}': "the line has 5,000 bytes or more",
    b"x" * 12_000: "the line has 5,000 bytes or more",
}
GOOD = (
    b' { "text" : "abc" , "id": 7, "x": 1.50 , "e": "\\u00e9" } \r',
    b'\xef\xbb\xbf{"text": "abc"}',
    b'{"text": "abc", "x": ' + b"[" * 499 + b"]" * 499 + b"}",
    b'{"text": "abc", "x": "' + b'\\"[' * 999 + b'"}',
)


@pytest.mark.parametrize(("flags", "stack"), [((), 1000), (["--scores-only"], 700)])
def test_a_line_with_an_error_is_a_row_with_the_error(
    score, tmp_path, monkeypatch, request, flags, stack
):
    """The errors do not depend on what Python's limit leaves of the stack."""
    request.addfinalizer(partial(sys.setrecursionlimit, sys.getrecursionlimit()))
    sys.setrecursionlimit(stack)
    monkeypatch.setattr(inputs, "MAX_LINE", 5000)
    lines = [GOOD[0]] + [line for n, bad in enumerate(BAD) for line in (bad, GOOD[n % len(GOOD)])]
    (path := tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    code, out, err = score(tmp_path / "out", "--max-tokens", "20", *flags, file=path)
    assert (code, out) == (0, "")
    assert f"{len(lines)} rows in {tmp_path / 'out'}, {len(BAD) - bool(flags)} with an error" in err
    found = read(tmp_path / "out")
    losses = [row["loss"] for row in found[::2]]  # of one text, in different places of batches
    assert max(losses) - min(losses) < 5e-6
    for row, (line, message) in zip(found[1::2], BAD.items(), strict=True):
        if flags and b"loss" in line:
            assert row["error"] is None
            continue
        assert message in row["error"], line[:99]
        assert [row[name] for name in ("loss", "tokens", "bytes", "bits_per_byte")] == [None] * 4
        assert flags or "text" not in message or row.items() >= json.loads(line).items()
    start = b'{ "text" : "abc" , "id": 7, "x": 1.50 , "e": "\\u00e9", "loss": '
    assert (
        (tmp_path / "out")
        .read_bytes()
        .startswith(b'{"line": 1, "id": 7, "loss": ' if flags else start)
    )
    assert not flags or [row["line"] for row in found] == list(range(1, len(found) + 1))
    assert list(found[0])[-5:] == ["loss", "tokens", "bytes", "bits_per_byte", "error"]


@pytest.mark.parametrize(
    ("flags", "code", "tokens"),
    [
        ("--strict", 2, [7, None]),  # the output is complete all the same
        ("--strict --max-tokens 4 --cut --allow-special", 0, [3, 2]),
        ("--strict --field prompt", 0, [2, 1]),
    ],
)
def test_strict_cut_special_tokens_and_fields(score, tmp_path, flags, code, tokens):
    path, out = tmp_path / "in.jsonl", tmp_path / "out"
    path.write_text(
        '{"text": "abcdefgh", "prompt": "abc"}\n{"text": "ab<|endoftext|>", "prompt": "ab"}\n'
    )
    found = score(out, *flags.split(), file=path)
    assert found[:2] == (code, "")
    assert f"note: 2 rows in {out}, {tokens.count(None)} with an error" in found[2]
    assert ("error: 1 of 2 rows have an error" in found[2]) == (code == 2)
    assert [row["tokens"] for row in read(out)] == tokens
    path.write_text('{"text": "ab", "prompt": "ab"}')
    assert f"note: 1 row in {out}1, 0 with" in score(f"{out}1", *flags.split(), file=path)[2]


def test_many_inputs_are_one_and_lines_are_counted_through(run, source, tmp_path, checkpoint):
    lines = source.read_bytes().splitlines(keepends=True)
    (folder := tmp_path / "folder").mkdir()
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[:20]).rstrip(b"\n")))
    (folder / "b.jsonl").write_bytes(b"".join(lines[20:45]))
    (folder / "notes.txt").write_text("not JSON")
    (empty := tmp_path / "empty").touch()
    (last := tmp_path / "c").write_bytes(b"".join(lines[45:]))
    inputs = map(str, (folder, empty, last, last))
    known = ("documents", "score", *inputs, "-m", checkpoint, "--scores-only")
    done(run(*known, "--out", str(tmp_path / "out")))
    assert run(*known, "--out", "-")[:2] == (0, (tmp_path / "out").read_text())
    rows, records = read(tmp_path / "out"), [json.loads(line) for line in lines + lines[45:]]
    model, texts = tiedgpt.load_model(checkpoint), [record["text"] for record in records]
    scores = tiedgpt.score_documents(model, TOKENIZER, texts)
    for number, (record, row, score) in enumerate(zip(records, rows, scores, strict=True), 1):
        numbers = {name: getattr(score, name) for name in ("tokens", "bytes", "bits_per_byte")}
        expected = {"line": number, "id": record["id"], "loss": score.nll, **numbers}
        assert row == pytest.approx(expected | {"error": None}, abs=5e-6)


def test_generated_rows(run, checkpoint, source, tmp_path):
    flags = (
        "-n",
        "5",
        "--num-samples",
        "2",
        "-k",
        "40",
        "--stop",
        "é",
        "--out",
        str(tmp_path / "out"),
    )
    written = []
    for more in (["-s", "0"], ["--shard-size", "1kB"], ["-s", "1"]):
        done(run("documents", "generate", str(source), "-m", checkpoint, *flags, *more))
        written.append(read(tmp_path / "out"))
        (tmp_path / "out").unlink()
    how = {"top_k": 40, "seed": 0, "num_samples": 2, "stop": ["é"]}
    prompts = [record["prompt"] for record in read(source)]
    expected = tiedgpt.generate_documents(
        tiedgpt.load_model(checkpoint), TOKENIZER, prompts, 5, **how
    )
    for row, samples in zip(written[0], expected, strict=True):
        assert row["error"] is None
        assert row["samples"] == [
            {name: getattr(s, name) for name in row["samples"][0]} for s in samples
        ]
    assert set(row["samples"][0]) == {"ids", "text", "finish_reason"}
    assert written[0] == written[1] != written[2]


@linux
@pytest.mark.parametrize("out", ["out", "-"])
@pytest.mark.parametrize("pack", [None, bytes, gzip.compress])  # None: not a pipe
@pytest.mark.parametrize("name", ["-", "/dev/fd/{}"])  # the second is what a shell makes of <(...)
def test_an_input_that_is_read_once(  # noqa: PLR0913 (fixtures, and three parameters)
    checkpoint, source, tmp_path, whole, monkeypatch, capfd, name, pack, out
):
    """A run that is resumed reads the copy that was made when it began."""
    monkeypatch.chdir(tmp_path)
    (directory := tmp_path / "-").mkdir()
    (directory / "other.jsonl").touch()
    pipe, end = os.pipe()
    os.write(end, (pack or bytes)(source.read_bytes()))  # less than a pipe holds
    os.close(end)
    with open(pipe) as pipe, open(source) as file:
        monkeypatch.setattr(sys, "stdin", stdin := pipe if pack else file)
        known = arguments(checkpoint, out, file=name.format(stdin.fileno()))
        for more in ([],) if out == "-" else (["--part", "0/2"], ["--resume"]):
            assert cli.main([*known, *more]) == 0
            rows, err = capfd.readouterr()
            is_copied = out != "-" and (pack is not None or name == "-")
            which = "first copy" if "--resume" in more else "copy"
            assert (f"is read from its {which} in" in err) == is_copied
    assert (rows.encode() if out == "-" else Path(out).read_bytes()) == whole
    assert sorted(os.listdir()) == sorted({"-", out})


@linux
def test_an_input_without_an_end_fills_no_disk(score, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**7))
    with subprocess.Popen("yes", stdout=subprocess.PIPE) as endless:
        ended = score(tmp_path / "out", file=(file := f"/dev/fd/{endless.stdout.fileno()}"))
        endless.kill()
    assert f"{file} takes more than half of the free disk at" in ended[2]
    assert (ended[0], os.listdir(tmp_path)) == (2, [])


def parts_of(out: Path) -> list[Path]:
    return sorted(out.with_name(f"{out.name}.parts").glob("0*.jsonl"))


@pytest.fixture
def stopped(score, tmp_path) -> Path:
    """An output of which every second part is done."""
    out = tmp_path / "out"
    done(score(out, "--part", "1/4"))
    err = score(out, "--part", "1/2")[2]  # which continues it
    assert "part 1/2 is done, 4 of 8 shards left; with none left, run --resume to join" in err
    assert [path.name[:7] for path in parts_of(out)] == [f"{n:06}-" for n in (1, 3, 5, 7)]
    assert len(os.listdir(tmp_path / "out.parts")) == 5, "plan.json, and no temporary file"
    return out


def test_a_stopped_run_is_resumed(stopped, score, whole, monkeypatch):
    refused = "out.parts holds a run, which --resume continues; to begin a new one, remove it"
    assert_one_error_line(score(stopped), refused)
    parts_of(stopped)[2].unlink()
    done, do_shard = [], shards.do_shard
    monkeypatch.setattr(
        shards, "do_shard", lambda *rest: done.append(rest[2].part[:6]) or do_shard(*rest)
    )
    assert score(stopped, "--resume", "--shard-size", "1KB")[0] == 0
    assert done == [f"{n:06}" for n in (0, 2, 4, 5, 6)], "done parts are not done again"
    assert stopped.read_bytes() == whole
    assert os.listdir(stopped.parent) == ["out"]
    assert_one_error_line(
        score(stopped, "--resume"), "exists and is not replaced; choose another --out"
    )


def change(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"d50", b"d05"))


START = (documents_score, "find_files", lambda *_: True)
PLAN = (publishing.StagedFiles, "open", lambda _, name: name == "plan.json")
LINE = (rows, "read_record", lambda line, *_: b'"d40"' in line)
IN_USE, OTHER_PART = "out.parts is in use by", ("--part", "0/2", "--stride", "5")
EVENTS = {  # when, what happens in the directory of the run, its exit code, what it prints
    "Ctrl-C": (
        LINE,
        lambda run: signal.default_int_handler(2, None),
        130,
        "command with --resume continues",
    ),
    "OUT appears": (
        LINE,
        lambda run: Path("out").write_text("mine"),
        2,
        "out exists now; move it away",
    ),
    "another run": (LINE, lambda run: assert_one_error_line(run("--resume"), IN_USE), 0, "60 rows"),
    "a whole run": (
        START,
        lambda run: done(run()),
        2,
        "out exists and is not replaced; choose another",
    ),
    "a part": (PLAN, lambda run: done(run("--part", "0/2")), 0, "60 rows"),
    "a part with other settings": (PLAN, lambda run: done(run(*OTHER_PART)), 0, "60 rows"),
    "another input": (
        LINE,
        lambda run: change(Path("in")),
        2,
        "in has changed since the run began; remove",
    ),
    "another model": (
        LINE,
        lambda run: os.utime("model/model.safetensors"),
        2,
        "model has changed since",
    ),
    "another plan": (
        LINE,
        lambda run: Path("out.parts/plan.json").write_text("{}"),
        2,
        "of another run now",
    ),
    "no directory": (
        LINE,
        lambda run: shutil.rmtree("out.parts"),
        2,
        "out.parts: No such file or directory",
    ),
}


@pytest.mark.parametrize("event", EVENTS)
def test_what_happens_in_a_run_changes_no_row(
    score, source, checkpoint, whole, tmp_path, monkeypatch, event
):
    (owner, name, is_now), act, code, message = EVENTS[event]
    monkeypatch.chdir(tmp_path)
    shutil.copy(source, "in")
    shutil.copytree(checkpoint, "model")
    run, out, original = (
        partial(score, "out", "-m", "model", file="in"),
        Path("out"),
        getattr(owner, name),
    )

    def once(*rest):
        if is_now(*rest):
            monkeypatch.setattr(owner, name, original)
            act(run)
        return original(*rest)

    monkeypatch.setattr(owner, name, once)
    ended = run()
    assert ended[0] == code, ended
    assert message in ended[2]
    if code:
        assert not out.exists() or out.read_bytes() in (b"mine", whole)
        out.unlink(missing_ok=True)
        shutil.copy(source, "in")
        if event == "another plan":
            shutil.rmtree("out.parts")
        done(run("--resume"))
    assert out.read_bytes() == whole
    assert sorted(os.listdir()) == ["in", "model", "out"]


def test_another_setting_or_input_and_a_damaged_file_are_refused(
    stopped, score, source, whole, tmp_path
):
    part, plan = parts_of(stopped)[1], tmp_path / "out.parts" / "plan.json"
    settings = json.loads(raw := plan.read_bytes())
    wrong = dict.fromkeys(("{", "{}", "[]"), "")
    for name in settings:  # which are all that determines a row
        wrong[json.dumps(settings | {name: "other"})] = (
            f" was begun with another {name}: 'other', not"
        )
    for text, message in wrong.items():
        plan.write_text(text)
        assert_one_error_line(score(stopped, "--resume"), f"out.parts{message}")
    plan.write_bytes(raw)
    assert_one_error_line(
        score(stopped, "--resume", "--stride", "5"), "stride: 32, not 5; give the same, or"
    )
    change(same := Path(shutil.copy(source, tmp_path / "of the same size and time")))
    shutil.copystat(source, same)
    assert_one_error_line(
        score(stopped, "--resume", file=same), "begun with another input_sha256: "
    )
    assert len(parts_of(stopped)) == 4
    rows = part.read_bytes().splitlines(keepends=True)
    for damaged in (
        rows[:-1],
        [*rows[:-1], rows[-1][:-1]],
    ):  # a cut row must not be joined with the next
        part.write_bytes(b"".join(damaged))
        err = score(stopped, "--resume")[2]
        less = f"{len(rows) - 1} rows, not {len(rows)}: remove it and resume"
        assert re.search(f"000003-[0-9a-f]+.jsonl has {less}", err)
    part.unlink()
    done(score(stopped, "--resume"))
    assert stopped.read_bytes() == whole


def test_a_process_that_lives_on_does_each_job_as_a_new_one(score, checkpoint, untied, tmp_path):
    """With another model in the same place, or other settings, to the same output, with one BLAS
    thread."""
    model, out, written = tmp_path / "model", tmp_path / "out", []
    jobs = [
        (checkpoint, []),
        (untied, []),
        (untied, ["--head", "tied"]),
        (untied, ["--scores-only"]),
    ]
    for is_new, (source, flags) in itertools.product((False, True), jobs):
        shutil.copytree(source, model, dirs_exist_ok=True)
        if is_new:
            rows._loaded.clear()
        if blas.blas_threads():
            blas.openblas("set_num_threads")(2)
        done(score(out, "-m", str(model), *flags))
        assert blas.blas_threads() in (1, None)
        written.append(out.read_bytes())
        out.unlink()
    assert written[:4] == written[4:]
    assert len(set(written)) == 4


def test_threads_share_one_model_and_another_version_is_refused(monkeypatch, checkpoint):
    opened, loads = open_checkpoint(Path(checkpoint)), []
    load = type(opened).load
    monkeypatch.setattr(type(opened), "load", lambda *rest: loads.append(rest) or load(*rest))
    settings = rows.identity(opened, TOKENIZER) | {
        "model": checkpoint,
        "head": "tied",
        "some": "run",
    }
    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, pool.map(rows.load, [settings] * 8)))) == len(loads) == 1
    message = r"this worker has another tiedgpt: '.*', not '0\.0\.9'"
    refuses(message, rows.load, settings | {"tiedgpt": "0.0.9"}, error=TiedGPTError)


@pytest.mark.parametrize(
    "address", ["missing.json", __file__, "what://x", "tcp://127.0.0.1:1", "tcp://{}"]
)
def test_no_scheduler_there(score, tmp_path, monkeypatch, address):
    pytest.importorskip("distributed")
    from tiedgpt.scale import dask

    monkeypatch.setattr(dask, "CONNECT", 1)
    with running(LoopbackHub()) as server:
        code, _, err = score(tmp_path / "out", "--dask", address := address.format(server.host))
    assert code == 2
    assert f"error: no Dask scheduler at {address}: " in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("IN", "the following arguments are required: --out"),
        ("IN --out x --part 2/2", "--part: expected I/N"),
        (
            "IN --out x --part 0/2 --workers 2",
            "only one of --workers, --dask and --part can be given",
        ),
        ("IN --out x --shard-size 0", "--shard-size: expected a size"),
        ("IN --out x --stride 999", "stride must be a whole number from 1 to"),
        ("IN --out x --cut", "--cut needs --max-tokens"),
        ("IN --out x --max-tokens 1", "--max-tokens: expected a whole number of at least 2"),
        ("IN --out - --resume", "--out - is stdout"),
        ("IN --out x/", "--out needs a file, or - for stdout; got 'x/'"),
        ("IN --out ''", "--out needs a file, or - for stdout; got ''"),
        ("IN --out /dev/stdout", "/dev/stdout exists and is not replaced; choose another --out"),
        ("no-such-file --out x", "no-such-file: No such file"),
        ("'' --out x", "error: '': No such file"),
        (
            "/dev/null --out x",
            "/dev/null is no file, pipe, or directory of .jsonl or .jsonl.gz files",
        ),
        ("EMPTY --out x", "EMPTY is no file, pipe, or directory of .jsonl"),
        ("GZ --out x", "GZ cannot be read: Compressed file ended before"),
        (
            "IN --out FULL --resume",
            "FULL.parts holds mine, but no run; to begin a new one, remove it",
        ),
        ("IN --out x --dask y -q", "--workers and --dask need Dask: pip install"),
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
    assert_one_error_line(run("documents", "score", "-m", checkpoint, *shlex.split(flags)), message)
    assert sorted(os.listdir()) == before


@linux
def test_the_bar_counts_rows_and_fits_80_columns(score, tmp_path, monkeypatch):
    monkeypatch.setattr(messages.ProgressBar, "DELAY", 0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    bars = re.findall(r"\r(score: [^\r\n]*)", score(tmp_path / "out")[2])
    assert re.search(r"\d+/60 \[\d\d:\d\d<.*row/s\]", bars[-1])
    assert max(map(len, bars)) <= 80


@linux
def test_memory_does_not_grow_with_the_file_or_the_number_of_its_lines(checkpoint, tmp_path):
    """A sparse line of 300 MB, a line of quotes, and 100,000 empty lines, whose part has 13 MB."""
    code = "import sys; from tiedgpt.cli import main; from tiedgpt.scale import inputs; "
    code += "inputs.MAX_LINE = 1 << 19; assert main(sys.argv[1:]) == 0; "
    code += "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    peaks = []  # in kB. (Python's resource.getrusage shows at least what the parent took.)
    for zeros, quotes, empty in ((1, 1, 1), (300_000_000, 500_000, 100_000)):
        with open(tmp_path / f"{empty}.jsonl", "wb") as file:
            file.write(b'{"text": "abc"}\n')
            file.seek(zeros, os.SEEK_CUR)
            file.write(b"\n" + b'"' * quotes + b"\n" * empty + b'{"text": "abc"}\n')
        known = arguments(checkpoint, tmp_path / "out", "-q", "--shard-size", "1MB", file=file.name)
        peaks.append(
            int(subprocess.check_output([sys.executable, "-c", code, *known], timeout=100))
        )
        rows = (tmp_path / "out").read_bytes()
        assert (rows.count(b"\n"), rows.count(b'"error": null}\n')) == (empty + 3, 2)
        (tmp_path / "out").unlink()
    assert peaks[1] - peaks[0] < 6000
