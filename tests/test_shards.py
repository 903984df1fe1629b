"""tiedgpt documents: a row for every line, each once, however often the run is stopped.

A run reads its input in shards of whole lines. It writes the rows of each shard to a part, a file
in OUT.parts, where plan.json has the settings of the run. When no part is missing, the parts are
joined to OUT. A run with `--part I/N` does the shards I, I + N, I + 2N ... A run with `--resume`
does the shards whose parts are missing.

The fixture `score` runs `documents score` on `source`, a file of 60 records in the shards 0 to 7.
whole_output is the output of a run that nothing has stopped. `stopped` is the path OUT of a run
that has done shards 1, 3, 5 and 7.

test_kills.py kills its workers. support/writers.py kills a run at any moment and fills its disk.
test_publishing.py has the locks and links.
"""

import asyncio
import gzip
import io
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
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.checks import refuses
from support.commands import assert_one_error_line
from support.loopback_hub import LoopbackHub, running

import tiedgpt
from tiedgpt import Tokenizer, cli
from tiedgpt.checkpoints.formats import open_checkpoint
from tiedgpt.checkpoints.publishing import StagedFiles
from tiedgpt.cli import documents, documents_generate, documents_score, messages
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
    """A file of 60 records, d0 to d59, each with a text and a prompt."""
    rng = random.Random(0)
    path = tmp_path_factory.mktemp("source") / "in.jsonl"
    with path.open("w") as file:
        for number in range(60):
            text = "".join(rng.choices("abc de é", k=rng.choice([3, 10, 40, 150])))
            record = {"id": f"d{number}", "text": text, "prompt": text[:20]}
            file.write(json.dumps(record) + "\n")
    return path


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def assert_done(result: tuple[int, str, str]) -> None:
    code, _, _ = result
    assert code == 0, result


def score_command(model: str, out: Path | str, *flags: str, file: Path | str) -> list[str]:
    """The words of `documents score`, in shards of 1 kB. A later flag replaces an earlier one."""
    words = ["documents", "score", str(file), "-m", model, "--shard-size", "1000"]
    return [*words, "--out", str(out), *flags]


@pytest.fixture
def score(run, checkpoint, source):
    """score(out, *flags, file): run `documents score` on the source, or on another file."""

    def score(out: Path | str, *flags: str, file: Path | str = source) -> tuple[int, str, str]:
        return run(*score_command(checkpoint, out, *flags, file=file))

    return score


@pytest.fixture(scope="module")
def whole_output(tmp_path_factory, checkpoint, source) -> bytes:
    """The output of a run that nothing has stopped."""
    out = tmp_path_factory.mktemp("whole") / "out.jsonl"
    assert cli.main(score_command(checkpoint, out, file=source)) == 0
    return out.read_bytes()


# The input in shards


def random_lines(rng: random.Random) -> list[bytes]:
    """Up to eleven lines of random lengths, some of them empty."""
    lines = []
    for _ in range(rng.randrange(12)):
        length = rng.choice([0, 1, 7, 60])
        lines.append(bytes(rng.choices(b"ab \r", k=length)))
    return lines


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(b"", id="no-end"),
        pytest.param(b"\n", id="line-feed"),
        pytest.param(b"\r\n", id="carriage-return-and-line-feed"),
    ],
)
@pytest.mark.parametrize(
    "pack", [pytest.param(bytes, id="plain"), pytest.param(gzip.compress, id="gzip")]
)
def test_shards_hold_every_byte_once_and_whole_lines(tmp_path, end, pack):
    """`end` is the end of the last line of the file."""
    rng = random.Random(0)
    path = tmp_path / "in"
    for size in (1, 5, 16, 1000) * 30:  # each size of a shard with 30 random files
        lines = random_lines(rng)
        data = b"\n".join(lines)
        if lines:
            data += end
        path.write_bytes(pack(data))
        shards_read = list(inputs.read_shards(path, size))  # pairs (offset of a shard, its lines)

        lines_read = []
        for _, shard in shards_read:
            lines_read += shard
        assert lines_read == io.BytesIO(data).readlines()

        # A shard can be read from its offset alone.
        for offset, shard in shards_read:
            shards_from_here = inputs.read_shards(path, size, offset)
            assert next(shards_from_here) == (offset, shard)

        # A shard ends with the line that fills it. The last shard has what is left.
        for _, shard in shards_read[:-1]:
            assert len(b"".join(shard)) >= size
            all_but_the_last_line = shard[:-1]
            assert len(b"".join(all_but_the_last_line)) < size


# A row for each line

RECORD = b' { "text" : "abc" , "id": 7, "x": 1.50 , "e": "\\u00e9" } \r'
NESTED_500_DEEP = b'{"text": "abc", "x": ' + b"[" * 499 + b"]" * 499 + b"}"
NESTED_501_DEEP = b'{"text": "abc", "x": ' + b"[" * 500 + b"]" * 500 + b"}"
GOOD_LINES = [  # each has the text abc
    RECORD,
    b'\xef\xbb\xbf{"text": "abc"}',  # after a byte order mark
    NESTED_500_DEEP,
    b'{"text": "abc", "x": "' + b'\\"[' * 999 + b'"}',
]
NOT_A_RECORD = [
    pytest.param(b"", "not JSON", id="empty"),
    pytest.param(b'{"text": "abc"', "not JSON", id="no-bracket"),
    pytest.param(
        b'{"text": "abc", "x": NaN}', "not JSON: NaN is not a JSON number", id="not-a-number"
    ),
    pytest.param(b"1" * 4500, "not JSON: Exceeds the limit", id="long-number"),
    pytest.param(b"null", "expected a JSON object, got None", id="null"),
    pytest.param(
        b'{"text": "a\xffb"}',
        "not JSON: 'utf-8' codec can't decode byte 0xff in position 11",
        id="not-utf-8",
    ),
    pytest.param(NESTED_501_DEEP, "nested more than 500 deep", id="nested-501-deep"),
    pytest.param(b"[" * 501, "nested more than 500 deep", id="501-brackets"),
    pytest.param(
        b'{"text": "' + b"y" * (5000 - 12) + b'"}',  # the other characters are 12 bytes
        "the line has 5,000 bytes or more",
        id="5000-bytes",
    ),
    pytest.param(b"x" * 12_000, "the line has 5,000 bytes or more", id="12000-bytes"),
]
BAD_TEXT = [  # records with errors; test_documents.py has more of them
    pytest.param(b"{}", "the record has no field 'text'", id="no-field"),
    pytest.param(b'{"text": 5}', "field 'text' is not a text: 5", id="number"),
    pytest.param(
        b'{"text": "a<|endoftext|>b"}',
        "special token <|endoftext|>: --allow-special reads it as that token",
        id="special-token",
    ),
    pytest.param(
        b'{"text": "' + b"z" * 30 + b'"}',
        "the text has 30 tokens, more than the limit of 20",
        id="30-tokens",
    ),
]


@pytest.fixture
def score_lines(score, tmp_path, monkeypatch):
    """score_lines(lines, *flags) -> the rows of these lines.

    A line of 5,000 bytes or more is an error, and so is a text of more than 20 tokens.
    """

    def score_lines(lines: list[bytes], *flags: str) -> list[dict]:
        path = tmp_path / "in.jsonl"
        path.write_bytes(b"\n".join(lines))
        assert_done(score(tmp_path / "out", "--max-tokens", "20", *flags, file=path))
        return read(tmp_path / "out")

    monkeypatch.setattr(inputs, "MAX_LINE", 5000)
    return score_lines


@pytest.mark.parametrize(
    "flags", [pytest.param([], id="records"), pytest.param(["--scores-only"], id="scores-only")]
)
@pytest.mark.parametrize(("line", "message"), NOT_A_RECORD + BAD_TEXT)
def test_a_line_with_an_error_is_a_row_with_the_error(score_lines, line, message, flags):
    before, row, after = score_lines([RECORD, line, RECORD], *flags)
    assert message in row["error"]
    for name in ("loss", "tokens", "bytes", "bits_per_byte"):
        assert row[name] is None
    assert before["error"] is None
    assert after["error"] is None


@pytest.mark.parametrize(("line", "message"), BAD_TEXT)
def test_a_record_with_an_error_keeps_its_fields(score_lines, line, message):
    _, row = score_lines([RECORD, line])
    assert message in row["error"]
    for name, value in json.loads(line).items():
        assert row[name] == value


def test_the_loss_of_a_text_does_not_depend_on_the_lines_around_it(score_lines):
    """Good lines, which all have the text abc, take turns with bad lines."""
    bad_lines = []
    for case in NOT_A_RECORD + BAD_TEXT:
        line, _message = case.values
        bad_lines.append(line)
    lines = []
    for bad_line, good_line in zip(bad_lines, cycle(GOOD_LINES), strict=False):
        lines += [good_line, bad_line]
    rows = score_lines(lines)
    rows_of_good_lines = rows[0::2]
    rows_of_bad_lines = rows[1::2]
    losses = [row["loss"] for row in rows_of_good_lines]
    assert max(losses) - min(losses) < 5e-6
    assert len(rows_of_bad_lines) == len(bad_lines)
    for row in rows_of_bad_lines:
        assert row["loss"] is None


@pytest.mark.parametrize("stack", [700, 1000])
def test_the_depth_of_a_line_is_not_limited_by_pythons_stack(score_lines, stack):
    former_limit = sys.getrecursionlimit()
    sys.setrecursionlimit(stack)
    try:
        deep, too_deep = score_lines([NESTED_500_DEEP, NESTED_501_DEEP])
    finally:
        sys.setrecursionlimit(former_limit)
    assert deep["error"] is None
    assert "nested more than 500 deep" in too_deep["error"]


def test_a_row_is_the_text_of_its_record_with_the_new_fields_at_its_end(score_lines, tmp_path):
    (row,) = score_lines([RECORD])
    start = b'{ "text" : "abc" , "id": 7, "x": 1.50 , "e": "\\u00e9", "loss": '
    assert (tmp_path / "out").read_bytes().startswith(start)
    fields_of_the_record = ["text", "id", "x", "e"]
    new_fields = ["loss", "tokens", "bytes", "bits_per_byte", "error"]
    assert list(row) == fields_of_the_record + new_fields


def test_with_scores_only_a_row_begins_with_its_number_and_its_id(score_lines, tmp_path):
    rows = score_lines([RECORD, b"{}", b'{"text": "abc"}'], "--scores-only")
    assert (tmp_path / "out").read_bytes().startswith(b'{"line": 1, "id": 7, "loss": ')
    assert [row["line"] for row in rows] == [1, 2, 3]
    _, row_without_id, _ = rows
    assert list(row_without_id) == ["line", "loss", "tokens", "bytes", "bits_per_byte", "error"]


def test_a_record_that_has_a_field_of_the_row_is_an_error(score_lines):
    (row,) = score_lines([b'{"text": "abc", "loss": 1}'])
    assert row["error"] == "the record has a field loss already: rename it"


def test_with_scores_only_a_record_may_have_a_field_of_the_row(score_lines):
    (row,) = score_lines([b'{"text": "abc", "loss": 1}'], "--scores-only")
    assert row["error"] is None
    assert row["loss"] != 1


# Flags of the rows


@pytest.fixture
def two_records(tmp_path) -> Path:
    """A text of 8 tokens, and a text of 3, one of them a special token, which is an error.

    Their prompts have 3 tokens and 2. A row has the number of tokens that have a loss. The first
    token of a text has none.
    """
    path = tmp_path / "in.jsonl"
    path.write_text(
        '{"text": "abcdefgh", "prompt": "abc"}\n{"text": "ab<|endoftext|>", "prompt": "ab"}\n'
    )
    return path


def test_a_row_with_an_error_ends_a_strict_run_with_code_2(score, two_records, tmp_path):
    out = tmp_path / "out"
    code, _, err = score(out, "--strict", file=two_records)
    assert code == 2
    assert f"note: 2 rows in {out}, 1 with an error" in err
    assert "error: 1 of 2 rows have an error" in err
    assert [row["tokens"] for row in read(out)] == [8 - 1, None]


@pytest.mark.parametrize(
    ("flags", "tokens"),
    [
        pytest.param(["--max-tokens", "4", "--cut", "--allow-special"], [4 - 1, 3 - 1], id="cut"),
        pytest.param(["--field", "prompt"], [3 - 1, 2 - 1], id="field"),
    ],
)
def test_a_strict_run_whose_flags_avoid_the_error_ends_with_code_0(
    score, two_records, tmp_path, flags, tokens
):
    out = tmp_path / "out"
    code, printed, err = score(out, "--strict", *flags, file=two_records)
    assert code == 0
    assert printed == ""
    assert f"note: 2 rows in {out}, 0 with an error" in err
    assert [row["tokens"] for row in read(out)] == tokens


def test_the_note_about_one_row_has_the_singular(score, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "ab"}')
    _, _, err = score(tmp_path / "out", file=path)
    assert f"note: 1 row in {tmp_path / 'out'}, 0 with" in err


def test_generated_rows_have_the_samples_of_generate_documents(run, checkpoint, source, tmp_path):
    out = tmp_path / "out"
    flags = ["-n", "5", "-k", "40", "--min-p", "0.01", "--repetition-penalty", "1.5"]
    command = ["documents", "generate", str(source), "-m", checkpoint, "--out", str(out)]
    assert_done(run(*command, *flags, "--stop", "é"))
    results = tiedgpt.generate_documents(
        tiedgpt.load_model(checkpoint),
        TOKENIZER,
        [record["prompt"] for record in read(source)],
        max_new_tokens=5,
        top_k=40,
        min_p=0.01,
        repetition_penalty=1.5,
        seed=0,
        stop=["é"],
    )
    for row, samples in zip(read(out), results, strict=True):
        assert row["error"] is None
        expected = []
        for sample in samples:
            reason = sample.finish_reason
            expected.append({"ids": sample.ids, "text": sample.text, "finish_reason": reason})
        assert row["samples"] == expected


@pytest.fixture
def generate(run, checkpoint, source):
    """generate(*flags): what `documents generate` prints for the source."""

    def generate(*flags):
        words = ["documents", "generate", str(source), "-m", checkpoint, "--out", "-"]
        code, out, _ = run(*words, *flags)
        assert code == 0
        return out

    return generate


def test_generated_rows_depend_on_the_seed_and_not_on_the_shards(generate, monkeypatch):
    rows_of_seed_0 = generate("-n", "5")
    assert rows_of_seed_0.count("\n") == 60, "one for each record"
    assert generate("-n", "5", "-s", "1") != rows_of_seed_0

    monkeypatch.setattr(documents_generate, "SHARD_SIZE", 1000)
    assert generate("-n", "5") == rows_of_seed_0


def test_greedy_rows_do_not_depend_on_the_seed(generate):
    rows_of_seed_0 = generate("-n", "5", "--greedy")
    assert generate("-n", "5", "--greedy", "-s", "1") == rows_of_seed_0
    assert generate("-n", "5") != rows_of_seed_0


# Where the lines come from


@pytest.fixture
def several_inputs(source, tmp_path) -> list[str]:
    """A folder with the first 45 records, an empty file, and a file with the last 15, twice."""
    lines = source.read_bytes().splitlines(keepends=True)
    folder = tmp_path / "folder"
    folder.mkdir()
    # The last line of this file has no line feed.
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[:20]).rstrip(b"\n")))
    (folder / "b.jsonl").write_bytes(b"".join(lines[20:45]))
    (folder / "notes.txt").write_text("not JSON")
    empty = tmp_path / "empty"
    empty.touch()
    last = tmp_path / "last"
    last.write_bytes(b"".join(lines[45:]))
    return [str(folder), str(empty), str(last), str(last)]


def test_the_lines_of_several_inputs_are_numbered_like_those_of_one_file(
    run, several_inputs, source, tmp_path, checkpoint
):
    out = tmp_path / "out"
    flags = ["-m", checkpoint, "--scores-only", "--out", str(out)]
    assert_done(run("documents", "score", *several_inputs, *flags))

    records = read(source)
    records += records[45:]  # the last file is given twice
    texts = [record["text"] for record in records]
    scores = tiedgpt.score_documents(tiedgpt.load_model(checkpoint), TOKENIZER, texts)
    rows = read(out)
    assert [row["line"] for row in rows] == list(range(1, 60 + 15 + 1))
    assert [row["id"] for row in rows] == [record["id"] for record in records]
    for row, score in zip(rows, scores, strict=True):
        assert row["error"] is None
        assert row["loss"] == pytest.approx(score.nll, abs=5e-6)
        assert row["tokens"] == score.tokens
        assert row["bytes"] == score.bytes
        assert row["bits_per_byte"] == pytest.approx(score.bits_per_byte, abs=5e-6)


def test_stdout_gets_the_rows_of_a_file(run, several_inputs, tmp_path, checkpoint):
    command = ["documents", "score", *several_inputs, "-m", checkpoint, "--scores-only"]
    assert_done(run(*command, "--out", str(tmp_path / "out")))
    code, out, _ = run(*command, "--out", "-")
    assert code == 0
    assert out == (tmp_path / "out").read_text()


@pytest.fixture(params=["file", "pipe", "pipe-of-gzip"])
def stdin(request, source, tmp_path, monkeypatch):
    """stdin, which has the content of `source`.

    The current folder has nothing but a directory named "-". A run that took "-" for the name of a
    file would read that directory.
    """
    if request.param == "file":
        stdin = source.open()
    else:
        data = source.read_bytes()
        if request.param == "pipe-of-gzip":
            data = gzip.compress(data)
        output_end, input_end = os.pipe()
        os.write(input_end, data)  # a pipe has room for it
        os.close(input_end)
        stdin = os.fdopen(output_end)
    monkeypatch.chdir(tmp_path)
    Path("-").mkdir()
    Path("-", "other.jsonl").touch()
    monkeypatch.setattr(sys, "stdin", stdin)
    with stdin:
        yield SimpleNamespace(is_file=request.param == "file", number=stdin.fileno())


@pytest.fixture(params=["-", "/dev/fd/N"])
def input_name(request, stdin) -> str:
    """The name of stdin as an input: "-", or /dev/fd/N, which a shell writes in place of <(...)."""
    return request.param.replace("N", str(stdin.number))


@linux
def test_a_run_that_writes_to_stdout_does_not_copy_its_input(
    input_name, checkpoint, whole_output, capfd
):
    assert cli.main(score_command(checkpoint, "-", file=input_name)) == 0
    out, err = capfd.readouterr()
    assert out.encode() == whole_output
    assert "is read from its copy" not in err
    assert os.listdir() == ["-"], "the directory that was there before"


@linux
def test_a_resumed_run_reads_the_copy_that_was_made_when_it_began(
    stdin, input_name, checkpoint, whole_output, capfd
):
    """An input that can be read only once is copied to OUT.parts. The copy is gone at the end."""
    # /dev/fd/N of a regular file can be read again, because it stands for that file.
    is_copied = input_name == "-" or not stdin.is_file
    command = score_command(checkpoint, "out", file=input_name)
    assert cli.main([*command, "--part", "0/2"]) == 0
    assert ("is read from its copy in" in capfd.readouterr().err) == is_copied
    assert cli.main([*command, "--resume"]) == 0
    assert ("is read from its first copy in" in capfd.readouterr().err) == is_copied
    assert Path("out").read_bytes() == whole_output
    # The directory "-" was there before.
    assert sorted(os.listdir()) == ["-", "out"]


@linux
@pytest.mark.usefixtures("stdin")
def test_a_file_named_minus_is_not_read_in_place_of_stdin(checkpoint, whole_output):
    shutil.rmtree("-")
    Path("-").write_text('{"text": "a text of the file"}\n')
    assert cli.main(score_command(checkpoint, "out", file="-")) == 0
    assert Path("out").read_bytes() == whole_output


@linux
def test_an_input_without_an_end_does_not_fill_the_disk(score, tmp_path, monkeypatch):
    """The command `yes` writes lines until it is killed. The disk seems to have 10 MB free."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**7))
    with subprocess.Popen("yes", stdout=subprocess.PIPE) as endless:
        file = f"/dev/fd/{endless.stdout.fileno()}"
        code, _, err = score(tmp_path / "out", file=file)
        endless.kill()
    assert code == 2
    assert f"{file} takes more than half of the free disk at" in err
    assert os.listdir(tmp_path) == []


# Runs that were stopped


def parts_of(out: Path) -> list[Path]:
    """The parts that are done, in the order of their shards."""
    return sorted(out.with_name(f"{out.name}.parts").glob("0*.jsonl"))


def shard_number(part: str) -> int:
    """The number with which the name of a part begins."""
    return int(part[:6])


def shards_done_of(out: Path) -> list[int]:
    return [shard_number(part.name) for part in parts_of(out)]


@pytest.fixture
def stopped(score, tmp_path) -> Path:
    """The path OUT of a run that has done shards 1, 3, 5 and 7 of eight shards."""
    out = tmp_path / "out"
    assert_done(score(out, "--part", "1/2"))
    return out


def test_a_run_that_did_one_part_continues_with_another_part(score, tmp_path):
    """Part 1/4 of eight shards has shards 1 and 5. Part 1/2 has shards 1, 3, 5 and 7."""
    out = tmp_path / "out"
    assert_done(score(out, "--part", "1/4"))
    assert shards_done_of(out) == [1, 5]
    _, _, err = score(out, "--part", "1/2")
    assert "part 1/2 is done, 4 of 8 shards left; with none left, run --resume to join" in err
    assert shards_done_of(out) == [1, 3, 5, 7]
    assert len(os.listdir(tmp_path / "out.parts")) == 4 + 1, "plan.json, and no temporary file"


def test_a_stopped_run_is_continued_with_resume_only(stopped, score):
    message = "out.parts holds a run, which --resume continues; to begin a new one, remove it"
    assert_one_error_line(score(stopped), message)


def test_a_resumed_run_does_the_shards_whose_parts_are_missing(
    stopped, score, whole_output, monkeypatch
):
    _shard_1, _shard_3, shard_5, _shard_7 = parts_of(stopped)
    shard_5.unlink()
    do_shard = shards.do_shard
    shards_done = []

    def recorded(directory, settings, shard, progress):
        shards_done.append(shard_number(shard.part))
        do_shard(directory, settings, shard, progress)

    monkeypatch.setattr(shards, "do_shard", recorded)
    same_size = ("--shard-size", "1KB")  # the run was begun with 1000
    assert_done(score(stopped, "--resume", *same_size))
    assert shards_done == [0, 2, 4, 5, 6]
    assert stopped.read_bytes() == whole_output
    assert os.listdir(stopped.parent) == ["out"]


def test_a_run_that_is_complete_is_not_resumed(score, tmp_path):
    out = tmp_path / "out"
    assert_done(score(out))
    message = "exists and is not replaced; choose another --out"
    assert_one_error_line(score(out, "--resume"), message)


@pytest.mark.parametrize("plan", ["{", "{}", "[]"])
def test_a_damaged_plan_is_refused(stopped, score, plan):
    (stopped.with_name("out.parts") / "plan.json").write_text(plan)
    assert_one_error_line(score(stopped, "--resume"), "out.parts")
    assert len(parts_of(stopped)) == 4


def test_a_plan_with_any_other_setting_is_refused(stopped, score):
    """The plan has all settings that determine a row, and the hash of the model."""
    plan = stopped.with_name("out.parts") / "plan.json"
    settings = json.loads(plan.read_bytes())
    assert "model_sha256" in settings
    for name in settings:
        plan.write_text(json.dumps({**settings, name: "other"}))
        message = f"out.parts was begun with another {name}: 'other', not"
        assert_one_error_line(score(stopped, "--resume"), message)
    assert len(parts_of(stopped)) == 4


def test_another_stride_is_refused(stopped, score, whole_output):
    result = score(stopped, "--resume", "--stride", "5")
    # The run was begun with the default, half the context of 64.
    assert_one_error_line(result, "stride: 32, not 5; give the same, or")
    assert len(parts_of(stopped)) == 4
    assert_done(score(stopped, "--resume"))
    assert stopped.read_bytes() == whole_output


def change_one_record(file: Path) -> None:
    """Change the id of a record. The file keeps its size."""
    file.write_bytes(file.read_bytes().replace(b"d50", b"d05"))


def test_another_input_of_the_same_size_and_time_is_refused(
    stopped, score, source, whole_output, tmp_path
):
    other = Path(shutil.copy(source, tmp_path / "other"))
    change_one_record(other)
    shutil.copystat(source, other)
    result = score(stopped, "--resume", file=other)
    assert_one_error_line(result, "begun with another input_sha256: ")
    assert len(parts_of(stopped)) == 4
    assert_done(score(stopped, "--resume"))
    assert stopped.read_bytes() == whole_output


@pytest.mark.parametrize("missing", ["row", "line-feed"])
def test_a_part_that_was_cut_is_refused_until_it_is_removed(stopped, score, whole_output, missing):
    """The part of shard 3 lacks its last row, or the line feed at the end of that row.

    Without the line feed, the row and the first row of the next part would be joined to one line.
    """
    _shard_1, part, _shard_5, _shard_7 = parts_of(stopped)
    *first_rows, last_row = part.read_bytes().splitlines(keepends=True)
    rows_left = b"".join(first_rows)
    if missing == "line-feed":
        rows_left += last_row.removesuffix(b"\n")
    part.write_bytes(rows_left)
    _, _, err = score(stopped, "--resume")
    count = len(first_rows)
    message = f"000003-[0-9a-f]+.jsonl has {count} rows, not {count + 1}: remove it and resume"
    assert re.search(message, err)
    part.unlink()
    assert_done(score(stopped, "--resume"))
    assert stopped.read_bytes() == whole_output


# What happens while a run computes


@pytest.fixture
def run_here(score, source, checkpoint, tmp_path, monkeypatch):
    """run_here(*flags): score `in` with `model` to `out`, in a folder that has nothing else."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(source, "in")
    shutil.copytree(checkpoint, "model")

    def run_here(*flags: str) -> tuple[int, str, str]:
        return score("out", "-m", "model", *flags, file="in")

    return run_here


def call_before(monkeypatch, owner, name, *, action, is_now) -> None:
    """Call `action` once, just before owner.name is called with arguments for which is_now is true.

    `is_now` is called with the arguments of each call of owner.name.
    """
    original = getattr(owner, name)

    def watched(*arguments):
        if is_now(*arguments):
            monkeypatch.setattr(owner, name, original)
            action()
        return original(*arguments)

    monkeypatch.setattr(owner, name, watched)


def call_at_start(monkeypatch, action) -> None:
    """Call `action` when the command has read its flags, before it looks for its input."""

    def is_now(names):
        return True

    call_before(monkeypatch, documents_score, "find_files", action=action, is_now=is_now)


def call_before_the_plan(monkeypatch, action) -> None:
    """Call `action` when the run has seen that there is no plan, just before it writes one."""

    def is_now(staged, name):
        return name == "plan.json"

    call_before(monkeypatch, StagedFiles, "open", action=action, is_now=is_now)


def call_in_the_run(monkeypatch, action) -> None:
    """Call `action` when the run reads line 41, the record d40. Some parts are done then."""

    def is_now(line, *others):
        return b'"d40"' in line

    call_before(monkeypatch, rows, "read_record", action=action, is_now=is_now)


def assert_whole(whole_output: bytes) -> None:
    """The output is complete, and nothing else is in the folder."""
    assert Path("out").read_bytes() == whole_output
    assert sorted(os.listdir()) == ["in", "model", "out"]


def assert_refused(result: tuple[int, str, str], message: str) -> None:
    """The run ended with this error. There may be notes before it."""
    code, _, err = result
    assert code == 2
    assert message in err


def test_a_run_that_ctrl_c_ends_can_be_resumed(run_here, whole_output, monkeypatch):
    def press_ctrl_c():
        signal.default_int_handler(signal.SIGINT, None)  # it raises KeyboardInterrupt

    call_in_the_run(monkeypatch, press_ctrl_c)
    code, _, err = run_here()
    assert code == 130
    assert "command with --resume continues" in err
    assert not Path("out").exists()
    assert_done(run_here("--resume"))
    assert_whole(whole_output)


def test_a_file_that_appears_at_out_is_not_replaced(run_here, whole_output, monkeypatch):
    call_in_the_run(monkeypatch, lambda: Path("out").write_text("mine"))
    assert_refused(run_here(), "out exists now; move it away")
    assert Path("out").read_text() == "mine"
    Path("out").unlink()
    assert_done(run_here("--resume"))
    assert_whole(whole_output)


def test_a_run_beside_another_is_refused(run_here, whole_output, monkeypatch):
    def run_beside():
        assert_one_error_line(run_here("--resume"), "out.parts is in use by")

    call_in_the_run(monkeypatch, run_beside)
    assert_done(run_here())
    assert_whole(whole_output)


def test_the_output_of_a_run_that_was_faster_is_not_replaced(run_here, whole_output, monkeypatch):
    """A second run begins and ends while the first one reads its flags."""
    call_at_start(monkeypatch, lambda: assert_done(run_here()))
    assert_refused(run_here(), "out exists and is not replaced; choose another")
    assert_whole(whole_output)


@pytest.mark.parametrize(
    "flags", [pytest.param([], id="same-settings"), pytest.param(["--stride", "5"], id="stride")]
)
def test_a_part_that_begins_at_the_same_moment_changes_no_row(
    run_here, whole_output, monkeypatch, flags
):
    """Part 0/2 writes its plan just before this run writes its own."""
    call_before_the_plan(monkeypatch, lambda: assert_done(run_here("--part", "0/2", *flags)))
    assert_done(run_here())
    assert_whole(whole_output)


def test_a_run_whose_input_changes_is_refused(run_here, source, whole_output, monkeypatch):
    call_in_the_run(monkeypatch, lambda: change_one_record(Path("in")))
    assert_refused(run_here(), "in has changed since the run began; remove")
    assert not Path("out").exists()
    shutil.copy(source, "in")
    assert_done(run_here("--resume"))
    assert_whole(whole_output)


def test_a_run_whose_input_becomes_shorter_is_refused(run_here, monkeypatch):
    """The file ends before the second shard begins."""

    def keep_one_line():
        first_line, *_ = Path("in").read_bytes().splitlines(keepends=True)
        Path("in").write_bytes(first_line)

    call_in_the_run(monkeypatch, keep_one_line)
    assert_refused(run_here(), "in has changed since the run began; remove")


def test_a_run_whose_model_changes_is_refused(run_here, whole_output, monkeypatch):
    call_in_the_run(monkeypatch, lambda: os.utime("model/model.safetensors"))
    assert_refused(run_here(), "model has changed since")
    assert not Path("out").exists()
    assert_done(run_here("--resume"))
    assert_whole(whole_output)


def test_a_run_whose_plan_is_replaced_is_refused(run_here, whole_output, monkeypatch):
    call_in_the_run(monkeypatch, lambda: Path("out.parts/plan.json").write_text("{}"))
    assert_refused(run_here(), "of another run now")
    assert not Path("out").exists()
    shutil.rmtree("out.parts")
    assert_done(run_here("--resume"))
    assert_whole(whole_output)


def test_a_run_whose_directory_of_parts_is_removed_is_refused(run_here, whole_output, monkeypatch):
    call_in_the_run(monkeypatch, lambda: shutil.rmtree("out.parts"))
    assert_refused(run_here(), "out.parts: No such file or directory")
    assert not Path("out").exists()
    assert_done(run_here("--resume"))
    assert_whole(whole_output)


# Workers


def test_one_process_does_several_jobs_as_new_processes_do_them(
    score, checkpoint, untied, tmp_path
):
    """The jobs differ in their model or in their flags.

    Each job copies its model to the same path, and writes to the same output file.
    """
    model = tmp_path / "model"
    out = tmp_path / "out"
    jobs = [
        (checkpoint, []),
        (untied, []),
        (untied, ["--head", "tied"]),
        (untied, ["--scores-only"]),
    ]

    def output_of_job(model_of_job, flags):
        shutil.copytree(model_of_job, model, dirs_exist_ok=True)
        assert_done(score(out, "-m", str(model), *flags))
        data = out.read_bytes()
        out.unlink()
        return data

    by_one_process = [output_of_job(*job) for job in jobs]
    by_new_processes = []
    for job in jobs:
        rows._loaded.clear()  # as in a new process, which has loaded no model
        by_new_processes.append(output_of_job(*job))
    assert by_one_process == by_new_processes
    assert len(set(by_one_process)) == 4, "no two jobs have the same output"


def test_each_job_sets_blas_to_one_thread(score, tmp_path):
    if not blas.blas_threads():
        pytest.skip("the number of BLAS's threads cannot be set here")
    for name in ("first", "second"):
        blas.openblas("set_num_threads")(2)
        assert_done(score(tmp_path / name))
        assert blas.blas_threads() == 1


@pytest.fixture
def settings(checkpoint) -> dict:
    """Settings of a run, as `rows.load` needs them."""
    opened = open_checkpoint(Path(checkpoint))
    identity = rows.identity(opened, TOKENIZER)
    return {**identity, "model": checkpoint, "head": "tied", "some": "other setting"}


def test_threads_share_one_model(settings, checkpoint, monkeypatch):
    """Eight threads load the model of a run. It is read from its checkpoint once."""
    checkpoint_class = type(open_checkpoint(Path(checkpoint)))
    load = checkpoint_class.load
    heads_loaded = []

    def recorded(opened, head):
        heads_loaded.append(head)
        return load(opened, head)

    monkeypatch.setattr(checkpoint_class, "load", recorded)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(rows.load, [settings] * 8))
    assert heads_loaded == ["tied"]
    for result in results:
        assert result is results[0]


def test_a_worker_with_another_version_is_refused(settings):
    settings["tiedgpt"] = "0.0.9"
    message = r"this worker has another tiedgpt: '.*', not '0\.0\.9'"
    refuses(message, rows.load, settings, error=TiedGPTError)


@pytest.fixture
def one_second_to_connect(monkeypatch) -> None:
    """A Dask scheduler that does not answer within a second is an error."""
    pytest.importorskip("distributed")
    from tiedgpt.scale import dask

    monkeypatch.setattr(dask, "CONNECT", 1)


@pytest.mark.usefixtures("one_second_to_connect")
@pytest.mark.parametrize(
    "address",
    [
        pytest.param("missing.json", id="no-file"),
        pytest.param(__file__, id="file-of-another-kind"),
        pytest.param("what://x", id="unknown-protocol"),
        pytest.param("tcp://127.0.0.1:1", id="closed-port"),
    ],
)
def test_an_address_without_a_scheduler_is_an_error(score, tmp_path, address):
    result = score(tmp_path / "out", "--dask", address)
    assert_refused(result, f"error: no Dask scheduler at {address}: ")


def test_a_scheduler_that_does_not_answer_is_an_error(monkeypatch):
    pytest.importorskip("distributed")
    from tiedgpt.scale import dask

    async def time_out(_):
        raise asyncio.TimeoutError

    monkeypatch.setattr(dask, "_ask_identity", time_out)
    message = "^no Dask scheduler at tcp://host: no answer$"
    refuses(message, dask.find_scheduler, "tcp://host", error=TiedGPTError)


@pytest.mark.usefixtures("one_second_to_connect")
def test_the_address_of_a_web_server_is_not_that_of_a_scheduler(score, tmp_path):
    with running(LoopbackHub()) as server:
        address = f"tcp://{server.host}"
        result = score(tmp_path / "out", "--dask", address)
    assert_refused(result, f"error: no Dask scheduler at {address}: ")


# Flags, the bar, and memory


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param("IN", "the following arguments are required: --out", id="no-out"),
        pytest.param("IN --out x --part 2/2", "--part: expected I/N", id="part-2-of-2"),
        pytest.param(
            "IN --out x --part 0/2 --workers 2",
            "only one of --workers, --dask and --part can be given",
            id="part-and-workers",
        ),
        pytest.param("IN --out x --shard-size 0", "--shard-size: expected a size", id="shard-size"),
        pytest.param(
            "IN --out x --stride 999", "stride must be a whole number from 1 to", id="stride"
        ),
        pytest.param("IN --out x --cut", "--cut needs --max-tokens", id="cut"),
        pytest.param(
            "IN --out x --max-tokens 1",
            "--max-tokens: expected a whole number of at least 2",
            id="max-tokens",
        ),
        pytest.param("IN --out - --resume", "--out - is stdout", id="resume-stdout"),
        pytest.param(
            "IN --out x/", "--out needs a file, or - for stdout; got 'x/'", id="out-directory"
        ),
        pytest.param("IN --out ''", "--out needs a file, or - for stdout; got ''", id="out-empty"),
        pytest.param(
            "IN --out /dev/stdout",
            "/dev/stdout exists and is not replaced; choose another --out",
            id="out-dev-stdout",
        ),
        pytest.param("no-such-file --out x", "no-such-file: No such file", id="in-missing"),
        pytest.param("'' --out x", "error: '': No such file", id="in-without-a-name"),
        pytest.param(
            "/dev/null --out x",
            "/dev/null is no file, pipe, or directory of .jsonl or .jsonl.gz files",
            id="in-dev-null",
        ),
        pytest.param(
            "EMPTY --out x",
            "EMPTY is no file, pipe, or directory of .jsonl",
            id="in-empty-directory",
        ),
        pytest.param(
            "CUT.gz --out x", "CUT.gz cannot be read: Compressed file ended before", id="in-cut"
        ),
        pytest.param(
            "IN --out FULL --resume",
            "FULL.parts holds mine, but no run; to begin a new one, remove it",
            id="parts-of-no-run",
        ),
        pytest.param(
            "IN --out x --dask y -q",
            "--workers and --dask need Dask: pip install",
            id="without-dask",
        ),
    ],
)
def test_wrong_flags_are_refused_and_no_file_is_written(
    run, checkpoint, source, tmp_path, monkeypatch, flags, message
):
    """The folder has the files and directories that are named in capital letters."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(documents, "find_spec", lambda name: None)  # as if Dask were missing
    Path("EMPTY").mkdir()
    Path("FULL.parts").mkdir()
    Path("FULL.parts/mine").touch()
    Path("IN").write_bytes(source.read_bytes())
    Path("CUT.gz").write_bytes(gzip.compress(source.read_bytes())[:-20])
    before = sorted(os.listdir())
    result = run("documents", "score", "-m", checkpoint, *shlex.split(flags))
    assert_one_error_line(result, message)
    assert sorted(os.listdir()) == before


@linux
def test_the_bar_counts_rows_and_fits_80_columns(score, tmp_path, monkeypatch):
    monkeypatch.setattr(messages.ProgressBar, "DELAY", 0)  # it is shown at once
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    _, _, err = score(tmp_path / "out")
    bars = re.findall(r"\r(score: [^\r\n]*)", err)
    last_bar = bars[-1]
    assert re.search(r"\d+/60 \[\d\d:\d\d<.*row/s\]", last_bar)
    assert max(len(bar) for bar in bars) <= 80


# A program that runs a command, which reads at most 512 KB of a line. Then it prints the most kB of
# memory that it took. (resource.getrusage would not do: its number is at least the parent's.)
PRINT_PEAK_MEMORY = """
import sys
from tiedgpt.cli import main
from tiedgpt.scale import inputs

inputs.MAX_LINE = 2**19
assert main(sys.argv[1:]) == 0
status = open("/proc/self/status").read()
print(status.split("VmHWM:")[1].split()[0])
"""


def write_odd_lines(path: Path, zeros: int, quotes: int, empty_lines: int) -> None:
    """Write two records, and between them a line of zeros, a line of quotes, and empty lines."""
    with path.open("wb") as file:
        file.write(b'{"text": "abc"}\n')
        file.seek(zeros, os.SEEK_CUR)  # the bytes left out are zeros, and take no room on the disk
        file.write(b"\n")
        file.write(b'"' * quotes + b"\n")
        file.write(b"\n" * empty_lines)
        file.write(b'{"text": "abc"}\n')


@linux
def test_memory_does_not_grow_with_the_file_or_the_number_of_its_lines(checkpoint, tmp_path):
    def memory_of_run(name, zeros, quotes, empty_lines):
        """Score a file of odd lines in a new process. Return the most kB of memory that it took."""
        path = tmp_path / name
        out = tmp_path / f"{name}.out"
        write_odd_lines(path, zeros=zeros, quotes=quotes, empty_lines=empty_lines)
        words = score_command(checkpoint, out, "-q", "--shard-size", "1MB", file=path)
        printed = subprocess.check_output(
            [sys.executable, "-c", PRINT_PEAK_MEMORY, *words], timeout=100
        )
        rows = out.read_bytes()
        records = 2  # the first and the last line of the file
        line_of_zeros = line_of_quotes = 1
        odd_lines = empty_lines + line_of_zeros + line_of_quotes
        assert rows.count(b"\n") == records + odd_lines
        assert rows.count(b'"error": null}\n') == records
        return int(printed)

    small = memory_of_run("small", zeros=1, quotes=1, empty_lines=1)
    # The rows of the empty lines have 13 MB.
    large = memory_of_run("large", zeros=300_000_000, quotes=500_000, empty_lines=100_000)
    assert large - small < 6000  # kB
