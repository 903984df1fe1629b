"""The command line as a user meets it: what goes to stdout, to stderr, and the exit code."""

import io
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, random_model

import tiedgpt
from tiedgpt import Tokenizer, cli
from tiedgpt.checkpoints import names
from tiedgpt.cli.common import Progress
from tiedgpt.study.bigrams import bigrams
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.direct_path import direct_path
from tiedgpt.study.similarity import embeddings
from tiedgpt.study.swap import losses

EOT = 256  # <|endoftext|> of a tokenizer of bytes alone
CONFIG = replace(SMALL, vocab_size=257, n_ctx=64, bos_token_id=None, eos_token_id=None)
SLOW_CONFIG = replace(CONFIG, n_layer=6, n_embd=384, n_head=6, n_inner=1536, n_ctx=1024)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A small tied checkpoint whose tokens are bytes."""
    path = tmp_path_factory.mktemp("models") / "bytes"
    tiedgpt.save_model(random_model(CONFIG), Tokenizer([]), path)
    return str(path)


@pytest.fixture
def run(capsys, monkeypatch):
    """run(*arguments, stdin=bytes) -> (exit code, stdout, stderr), in this process."""

    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            code = cli.main(list(arguments))
        except SystemExit as stop:  # argparse's way out
            code = stop.code
        return code, *capsys.readouterr()

    return run


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tiedgpt", *arguments]


def assert_one_error_line(result: tuple[int, str, str], message: str) -> None:
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("tiedgpt: error: "), err
    assert err.count("\n") == 1
    assert message in err


# generate


def test_generate_prints_the_continuation_alone(run, checkpoint):
    code, out, err = run("generate", "--model", checkpoint, "--seed", "1", "-n", "9", "Hello")
    assert (code, err) == (0, "")
    model, tokenizer = tiedgpt.load_model(checkpoint), tiedgpt.load_tokenizer(checkpoint)
    expected = tokenizer.decode(list(tiedgpt.generate(model, tokenizer.encode("Hello"), 9, seed=1)))
    assert out == expected + "\n"
    assert run("generate", "--model", checkpoint, "--seed", "1", "-n", "9", "--no-stream", "Hello")[1] == out
    assert run("generate", "--model", checkpoint, "--seed", "1", "-n", "9", stdin=b"Hello\n")[1] == out


def test_generate_json(run, checkpoint):
    arguments = ("--seed", "3", "--num-samples", "3", "--temperature", "2", "-n", "8", "--json", "a\n")
    code, out, err = run("generate", "--model", checkpoint, *arguments)
    assert (code, err) == (0, "")
    document = json.loads(out)
    tokenizer = tiedgpt.load_tokenizer(checkpoint)
    assert document["model"] == checkpoint
    assert (document["head"], document["seed"], document["prompt"]) == ("tied", 3, "a\n")
    assert document["prompt_ids"] == tokenizer.encode("a\n")
    assert len({tuple(sample["ids"]) for sample in document["samples"]}) == 3
    for sample in document["samples"]:
        assert sample["finish_reason"] == "length"
        assert len(sample["ids"]) == 8
        assert sample["text"] == tokenizer.decode(sample["ids"])
    assert set(document["timing"]) == {"load_s", "prefill_s", "decode_tokens_per_s"}
    assert all(seconds > 0 for seconds in document["timing"].values())
    again = json.loads(run("generate", "--model", checkpoint, *arguments, "--head", "tied")[1])
    assert again["samples"] == document["samples"]


def test_the_seed_that_was_drawn_is_told_and_repeats_the_run(run, checkpoint):
    first = json.loads(run("generate", "--model", checkpoint, "--json", "a")[1])
    other = json.loads(run("generate", "--model", checkpoint, "--json", "a")[1])
    assert first["seed"] != other["seed"]
    again = json.loads(run("generate", "--model", checkpoint, "--json", "--seed", str(first["seed"]), "a")[1])
    assert again["samples"] == first["samples"]


def test_several_samples_stand_below_one_another(run, checkpoint):
    arguments = (
        "generate",
        "--model",
        checkpoint,
        "--seed",
        "3",
        "--num-samples",
        "3",
        "--greedy",
        "-n",
        "5",
        "a",
    )
    streamed = run(*arguments)
    one = run("generate", "--model", checkpoint, "--greedy", "-n", "5", "a")[1]
    assert streamed == (0, "".join(f"--- {i} of 3 ---\n{one}" for i in (1, 2, 3)), "")
    assert run(*arguments, "--no-stream") == streamed


def test_stop_and_end_of_text(run, checkpoint, tmp_path):
    greedy = ("--greedy", "-n", "12", "--json", "a")
    whole = json.loads(run("generate", "--model", checkpoint, *greedy)[1])["samples"][0]
    stop = whole["text"][4]
    cut = json.loads(run("generate", "--model", checkpoint, "--stop", stop, *greedy)[1])["samples"][0]
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]

    end = whole["ids"][3]
    model = tiedgpt.load_model(checkpoint)
    ending = tiedgpt.GPT2(replace(model.config, eos_token_id=end), model.parameters)
    tiedgpt.save_model(ending, Tokenizer([]), tmp_path)
    ended = json.loads(run("generate", "--model", str(tmp_path), *greedy)[1])["samples"][0]
    assert (ended["finish_reason"], ended["ids"]) == ("eos", whole["ids"][: whole["ids"].index(end)])


def test_the_head_is_a_flag_and_a_copy_is_said_to_be_one(run, checkpoint, tmp_path):
    tied = run("generate", "--model", checkpoint, "--greedy", "a")
    code, out, err = run("generate", "--model", checkpoint, "--head", "untied", "--greedy", "a")
    assert (code, out) == (0, tied[1])
    assert err.startswith(
        "tiedgpt: note: this checkpoint has no W_U of its own: it starts as a copy of wte.T"
    )
    assert err.count("\n") == 1
    tiedgpt.save_model(random_model(replace(CONFIG, tied=False)), Tokenizer([]), tmp_path)
    own = run("generate", "--model", str(tmp_path), "--head", "untied", "--greedy", "a")
    assert (own[0], own[2]) == (0, "")
    assert own[1] != run("generate", "--model", str(tmp_path), "--head", "tied", "--greedy", "a")[1]


def test_an_empty_prompt_can_become_end_of_text_where_there_is_one(run, checkpoint, tmp_path):
    assert run("generate", "--model", checkpoint, "")[2].endswith('--allow-special "<|endoftext|>")\n')
    tiedgpt.save_model(random_model(replace(CONFIG, vocab_size=256)), Tokenizer([], {}), tmp_path)
    code, out, err = run("generate", "--model", str(tmp_path), "")
    assert (code, out, err.partition("prompt is")[2]) == (
        2,
        "",
        " empty: GPT-2 needs at least one token to continue\n",
    )
    assert run("generate", "--model", str(tmp_path), "-n", "3", "<|endoftext|>")[0] == 0


def test_special_tokens_are_read_only_when_allowed(run, checkpoint):
    arguments = ("generate", "--model", checkpoint, "--json", "<|endoftext|>")
    assert_one_error_line(run(*arguments), "the text holds <|endoftext|>; to read it as that token, add")
    assert json.loads(run(*arguments, "--allow-special")[1])["prompt_ids"] == [EOT]


def test_past_the_context_it_goes_on(run, checkpoint):
    document = json.loads(run("generate", "--model", checkpoint, "-n", "150", "--json", "a" * 60)[1])
    assert len(document["samples"][0]["ids"]) == 150


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        ([""], b"", "the prompt is empty: GPT-2 needs at least one token"),
        ([], b"", "the prompt is empty"),
        ([], b"\n", "the prompt is empty"),
        ([], b"ab\xffcd", "stdin is not UTF-8 text: byte 0xff at position 2"),
        (["a" * 65], b"", "the prompt has 65 tokens, more than the model's context of 64"),
        (["\udcff"], b"", "not valid UTF-8"),
        (["--temperature", "0", "a"], b"", "--temperature must be a number above 0, got 0.0; to always take"),
        (["--temperature", "-1", "a"], b"", "--temperature must be a number above 0, got -1.0"),
        (["--temperature", "nan", "a"], b"", "--temperature must be a number above 0, got nan"),
        (["--temperature", "warm", "a"], b"", "--temperature: invalid float value: 'warm'"),
        (["--top-p", "0", "a"], b"", "--top-p must be above 0 and at most 1, got 0.0"),
        (["--top-p", "1.5", "a"], b"", "--top-p must be above 0 and at most 1, got 1.5"),
        (["--top-k", "0", "a"], b"", "--top-k must be a whole number of at least 1, got 0"),
        (["--seed", "-1", "a"], b"", "--seed must be a whole number of at least 0, got -1"),
        (["-n", "0", "a"], b"", "--max-new-tokens must be a whole number of at least 1, got 0"),
        (["--num-samples", "99999999999999999999", "a"], b"", "--num-samples must be at most 10000"),
        (["--num-samples", "0", "a"], b"", "--num-samples must be a whole number of at least 1, got 0"),
        (["--stop", "", "a"], b"", "--stop needs a text that is not empty"),
        (["--greedy", "--top-k", "5", "a"], b"", "--greedy and --top-k exclude each other"),
        (["--greedy", "--temperature", "1", "a"], b"", "--greedy and --temperature exclude each other"),
        (["--head", "both", "a"], b"", "--head: invalid choice: 'both'"),
        (["one", "two"], b"", "unrecognized arguments: two"),
    ],
)
def test_generate_refuses_in_one_line(run, checkpoint, arguments, stdin, message):
    assert_one_error_line(run("generate", "--model", checkpoint, *arguments, stdin=stdin), message)


def test_a_damaged_checkpoint_is_one_line(run, checkpoint, tmp_path):
    for name in ("config.json", "model.safetensors", "merges.txt", "vocab.json"):
        shutil.copy(f"{checkpoint}/{name}", tmp_path)
    os.truncate(tmp_path / "model.safetensors", 5000)
    assert_one_error_line(run("generate", "--model", str(tmp_path), "a"), "model.safetensors: truncated")
    assert_one_error_line(run("generate", "--model", str(tmp_path / "nothing"), "a"), "no model")


@pytest.fixture
def no_models(tmp_path, monkeypatch):
    for variable in ("TIEDGPT_WEIGHTS", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(names, "__file__", str(tmp_path / "x" / "tiedgpt" / "checkpoints" / "names.py"))
    return tmp_path


def test_without_a_model_it_says_where_it_looked(run, no_models):
    assert_one_error_line(run("generate", "a"), "gpt2 is not on this machine: looked for")


def test_without_model_it_is_gpt2_or_else_the_shipped_one(run, checkpoint, no_models, monkeypatch):
    weights = no_models / "weights"
    weights.mkdir()
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(weights))
    (weights / "shakespeare-tied").symlink_to(checkpoint)
    code, out, err = run("generate", "--json", "-n", "1", "a")
    assert (code, json.loads(out)["model"]) == (0, "shakespeare-tied")
    assert err.startswith("tiedgpt: note: gpt2 is not on this machine, so this is shakespeare-tied")
    (weights / "gpt2").symlink_to(checkpoint)
    code, out, err = run("generate", "--json", "-n", "1", "a")
    assert (code, json.loads(out)["model"], err) == (0, "gpt2", "")


# generate, in a process of its own


def test_a_closed_pipe_is_quiet(checkpoint):
    """As in `tiedgpt generate ... | head -1`: the reader leaves first."""
    arguments = command("generate", "--model", checkpoint, "--seed", "0", "-n", "100000", "a")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def test_text_streams_and_ctrl_c_ends_it(checkpoint):
    """The first characters come long before the last; Ctrl-C gives 130 and no traceback."""
    arguments = command("generate", "--model", checkpoint, "--seed", "0", "-n", "10000000", "a")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == b"\n"


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [
        ("<&-", 2, "tiedgpt: error: the prompt is empty"),
        (">&-", 0, ""),
        ("2>&-", 2, ""),
        ("a >/dev/full", 2, "tiedgpt: error: No space left on device"),
        ("--json a >/dev/full", 2, "tiedgpt: error: No space left on device"),
        ("--model /nonexistent/\xff a", 2, "tiedgpt: error: no model"),
        (f"--model {'x' * 300} a", 2, "tiedgpt: error: no model"),
        ("--model ~nobody-of-this-name/x a", 2, "tiedgpt: error: no model"),
    ],
)
def test_odd_streams_and_paths_give_no_traceback(checkpoint, redirection, code, message):
    words = " ".join(map(shlex.quote, command("generate", "--seed", "1", "--model", checkpoint)))
    stdin = "a" if redirection == ">&-" else ""
    done = subprocess.run(f"{words} {redirection}", shell=True, input=stdin, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == (1 if message else 0)


def test_being_ended_leaves_nothing_half_written(tmp_path, checkpoint):
    """SIGTERM in mid-save: exit 143 and no trace of the new checkpoint."""
    big = tmp_path / "big"
    tiedgpt.save_model(random_model(SLOW_CONFIG), None, big)
    before = sorted(tmp_path.iterdir())
    with subprocess.Popen(
        command("untie", str(big), str(tmp_path / "new")), stderr=subprocess.PIPE
    ) as process:
        while process.poll() is None and sorted(tmp_path.iterdir()) == before:
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=60)
    assert sorted(tmp_path.iterdir()) == before if code == 143 else code == 0


def test_a_prompt_too_long_is_refused_before_the_weights_are_read(run, checkpoint, monkeypatch):
    monkeypatch.setattr("tiedgpt.cli.generate.load", lambda *_: pytest.fail("loaded for nothing"))
    assert_one_error_line(run("generate", "--model", checkpoint, "a" * 65), "the prompt has 65 tokens")


def terminal(arguments: list[str], *lines: bytes, end: bytes = b"\x04") -> tuple[int, str]:
    """Run a command on a pseudo-terminal, type each line when it asks with "> ", then `end` (Ctrl-D).

    `end` is typed again while nothing happens: a Ctrl-C between the prompt and readline's waiting is lost.
    """
    pid, master = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "dumb"  # no colours or cursor movements from readline
        os.execv(arguments[0], arguments)
    typed, answered, shown = [*(line + b"\r" for line in lines), end], 0, b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if shown.count(b"> ") > answered and answered < len(typed):
            os.write(master, typed[answered])
            answered += 1
        elif answered == len(typed) and not select.select([master], [], [], 1.0)[0]:
            os.write(master, end)
        if select.select([master], [], [], 0.1)[0]:
            try:
                chunk = os.read(master, 4096)
            except OSError:  # Linux's way to say that the other side is closed
                break
            if not chunk:
                break
            shown += chunk
    os.close(master)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode().replace("\r\n", "\n")


def test_the_prompt_loop(checkpoint, run):
    """Two prompts, a mistake that does not end it, an empty line, Ctrl-D."""
    arguments = ["generate", "--model", checkpoint, "--greedy", "-n", "4"]
    expected = run(*arguments, "b")[1]
    code, shown = terminal(command(*arguments), b"<|endoftext|>", b"", b"b")
    assert code == 0, shown
    assert "Ctrl-D leaves" in shown
    assert "tiedgpt: error: the text holds <|endoftext|>" in shown
    assert cli.common.CONTROLS  # what a terminal would obey does not reach it:
    assert expected.translate(cli.common.CONTROLS) in shown


def test_ctrl_c_at_the_prompt_exits_130(checkpoint):
    code, shown = terminal(command("generate", "--model", checkpoint), end=b"\x03")
    assert code == 130
    assert "Traceback" not in shown


def test_control_characters_do_not_reach_a_terminal():
    text = "a\x1b[2Jb\x07\tc\n\x9b\x7f\u2028é"
    assert text.translate(cli.common.CONTROLS) == "a\ufffd[2Jb\ufffd\tc\n\ufffd\ufffd\u2028é"


def test_ctrl_c_in_the_loop_ends_the_answer_alone(tmp_path):
    """A model slow enough to be caught in mid-answer; afterwards the loop still asks."""
    tiedgpt.save_model(random_model(SLOW_CONFIG), Tokenizer([]), tmp_path)
    arguments = command("generate", "--model", str(tmp_path), "-n", "1000000", "--seed", "1")
    pid, master = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "dumb"
        os.execv(arguments[0], arguments)

    def read_until(done) -> bytes:
        shown, deadline = b"", time.monotonic() + 60
        while not done(shown):
            assert time.monotonic() < deadline, shown
            if select.select([master], [], [], 0.1)[0]:
                shown += os.read(master, 4096)
        return shown

    read_until(lambda shown: shown.endswith(b"> "))
    os.write(master, b"a\r")
    read_until(lambda shown: len(shown) > 20)
    os.write(master, b"\x03")
    read_until(lambda shown: shown.endswith(b"> "))
    os.write(master, b"\x04")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(master)


# score

WORDS = "Tying saves 38.6M of them, é!\r\n" * 9


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes(WORDS.encode())
    return str(path)


def test_score_json(run, checkpoint, words):
    """Line ends and all: the text is scored to the byte."""
    code, out, err = run("score", "--model", checkpoint, "--stride", "10", "--json", words)
    assert (code, err) == (0, "")
    document = json.loads(out)
    model, tokenizer = tiedgpt.load_model(checkpoint), tiedgpt.load_tokenizer(checkpoint)
    expected = tiedgpt.score(model, tokenizer, tokenizer.encode(WORDS), stride=10)
    n = len(WORDS.encode())
    assert document == {
        "model": checkpoint,
        "head": "tied",
        **asdict(expected),
        "text_tokens": n,
        "text_bytes": n,
        "file": words,
        "context": 64,
        "stride": 10,
    }
    assert document["tokens"] == document["bytes"] == n - 1
    piped = json.loads(
        run("score", "--model", checkpoint, "--stride", "10", "--json", "-", stdin=WORDS.encode())[1]
    )
    assert piped == {**document, "file": "-"}


def test_score_for_people(run, checkpoint, words):
    document = json.loads(run("score", "--model", checkpoint, "--json", words)[1])
    assert document["stride"] == 32
    code, out, err = run("score", "--model", checkpoint, words)
    assert (code, err) == (0, "")
    assert out.startswith(f"{checkpoint}, tied, on {words}\n")
    for name, figure in (
        ("loss", f"{document['nll']:.4f}"),
        ("perplexity", f"{document['perplexity']:,.2f}"),
        ("bits per byte", f"{document['bits_per_byte']:.4f}"),
        ("predicted", "287 of 288 tokens, 287 of 288 bytes: all but the first"),
        ("windows", "8 of up to 64 tokens, one every 32"),
    ):
        assert re.search(rf"^{name} +{re.escape(figure)}(  |$)", out, re.M), (name, out)
    apart = run("score", "--model", checkpoint, "--stride", "64", words)[1]
    assert "283 of 288 tokens, 283 of 288 bytes: all but the first of each of 5 windows\n" in apart
    short = run("score", "--model", checkpoint, "--stride", "64", "-", stdin=b"ab")[1]
    assert "1 of 2 tokens, 1 of 2 bytes: all but the first\n" in short


def test_score_of_either_head(run, checkpoint, words):
    tied = run("score", "--model", checkpoint, "--json", words)[1]
    code, out, err = run("score", "--model", checkpoint, "--head", "untied", "--json", words)
    assert code == 0
    assert json.loads(out) == {**json.loads(tied), "head": "untied"}
    assert err.startswith("tiedgpt: note: this checkpoint has no W_U of its own: it starts as a copy")


def test_score_reads_special_tokens_only_when_allowed(run, checkpoint):
    arguments, stdin = ("score", "--model", checkpoint, "--json", "-"), b"<|endoftext|>a<|endoftext|>"
    message = "stdin: the text holds <|endoftext|>; to read it as that token, add --allow-special"
    assert_one_error_line(run(*arguments, stdin=stdin), message)
    document = json.loads(run(*arguments, "--allow-special", stdin=stdin)[1])
    assert (document["tokens"], document["bytes"]) == (2, 14)
    assert (document["text_tokens"], document["text_bytes"]) == (3, 27)


@pytest.mark.parametrize(
    ("arguments", "content", "message"),
    [
        ([], b"", "FILE: the text has 0 tokens: it takes two to predict one"),
        ([], b"a", "FILE: the text has 1 token: it takes two to predict one"),
        ([], b"ab\xffcd", "FILE is not UTF-8 text: byte 0xff at position 2"),
        ([], "Tying".encode("utf-16"), "FILE is not UTF-8 text: byte 0xff at position 0"),
        (
            ["--stride", "0"],
            b"ab",
            "--stride must be a whole number from 1 to the model's context of 64, got 0",
        ),
        (["--stride", "65"], b"ab", "--stride must be a whole number from 1 to the model's context of 64"),
        (["--stride", "half"], b"ab", "--stride: invalid int value: 'half'"),
    ],
)
def test_score_refuses_in_one_line(run, checkpoint, tmp_path, monkeypatch, arguments, content, message):
    """And before it reads the weights."""
    monkeypatch.setattr("tiedgpt.cli.score.load", lambda *_: pytest.fail("loaded for nothing"))
    file = str(tmp_path / "file.txt")
    (tmp_path / "file.txt").write_bytes(content)
    message = message.replace("FILE", file)
    assert_one_error_line(run("score", "--model", checkpoint, *arguments, file), message)
    message = message.replace(file, "stdin")
    assert_one_error_line(run("score", "--model", checkpoint, *arguments, "-", stdin=content), message)


@pytest.mark.parametrize(("file", "message"), [("none", "No such file"), (".", "Is a directory")])
def test_score_of_what_is_no_file(checkpoint, tmp_path, file, message):
    file = str(tmp_path / file)
    done = subprocess.run(command("score", "--model", checkpoint, file), capture_output=True, text=True)
    assert_one_error_line((done.returncode, done.stdout, done.stderr), f"{file}: {message}")


def test_score_of_a_broken_model_is_one_line(run, checkpoint, tmp_path):
    model = tiedgpt.load_model(checkpoint)
    parameters = {**model.parameters, "ln_f.bias": np.full(CONFIG.n_embd, np.nan, np.float32)}
    tiedgpt.save_model(tiedgpt.GPT2(model.config, parameters), Tokenizer([]), tmp_path / "nan")
    result = run("score", "--model", str(tmp_path / "nan"), "-", stdin=b"abc")
    assert_one_error_line(result, "the loss is nan nats per token: the model's checkpoint is damaged")


@pytest.mark.parametrize(("head", "limit"), [("tied", 2.15), ("untied", 2.18)])
def test_score_of_the_shipped_models(run, shared, tmp_path, head, limit):
    """The part of the corpus that they were not trained on, each token but the first predicted once."""
    corpus = (shared / "corpus" / "tinyshakespeare.txt").read_bytes()
    (tmp_path / "held-out.txt").write_bytes(corpus[len(corpus) * 9 // 10 :])
    flags = ("--model", f"shakespeare-{head}", "--stride", "127", "--json")
    result = run("score", *flags, str(tmp_path / "held-out.txt"))
    assert 1.5 < json.loads(result[1])["bits_per_byte"] < limit


# params


def test_params_needs_no_weights(run, no_models):
    code, out, err = run("params")
    assert (code, err) == (0, "")
    assert "124,439,808" in out
    assert "163,037,184" in out
    assert "+38,597,376" in out
    assert "tying saves 38.6M, 23.7 % of the untied model" in out
    document = json.loads(run("params", "--model", "1558M", "--json")[1])
    assert document["model"] == "1558M"
    assert document["config"]["n_layer"] == 48
    assert document["tied"]["total"] == sum(document["tied"]["groups"].values()) == 1_557_611_200
    assert document["untied"]["bytes"] == 4 * document["untied"]["total"] == 4 * 1_638_022_400
    assert document["difference"] == 80_411_200


def test_params_of_a_directory(run, checkpoint):
    document = json.loads(run("params", "--model", checkpoint, "--json")[1])
    assert document["config"]["vocab_size"] == 257
    model = tiedgpt.load_model(checkpoint)
    assert document["tied"]["total"] == sum(array.size for array in model.parameters.values())


@pytest.mark.parametrize(("total", "percent"), [("1e9", "20.5 %"), ("7e9", "2.9 %"), ("70e9", "0.3 %")])
def test_the_calculator_gives_the_figures_people_quote(run, total, percent):
    code, out, err = run("params", "--vocab", "50000", "--dim", "4096", "--total", total)
    assert (code, err) == (0, "")
    assert "Tied 204.8M, untied 409.6M: tying saves 204.8M, " + percent in out
    document = json.loads(run("params", "--vocab", "50e3", "--dim", "4096", "--json")[1])
    assert (document["tied"]["total"], document["untied"]["total"]) == (204_800_000, 409_600_000)
    assert document["saving_percent"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vocab", "50000"], "the calculator needs both --vocab and --dim"),
        (["--total", "7e9"], "the calculator needs both --vocab and --dim"),
        (["--vocab", "5", "--dim", "5", "--model", "gpt2"], "give one or the other"),
        (["--vocab", "1.5", "--dim", "5"], "--vocab: expected a whole number of at least 1, got '1.5'"),
        (["--vocab", "0", "--dim", "5"], "--vocab: expected a whole number of at least 1, got '0'"),
        (["--vocab", "nan", "--dim", "5"], "--vocab: expected a whole number"),
        (["--vocab", "inf", "--dim", "5"], "--vocab: expected a whole number"),
        (["--model", "gtp2"], "did you mean gpt2?"),
        (
            ["--vocab", "50", "--dim", "4", "--total", "199"],
            "--total 199 is less than the token embedding alone, 200",
        ),
    ],
)
def test_params_refuses_in_one_line(run, arguments, message):
    assert_one_error_line(run("params", *arguments), message)


# tokenize


def test_tokenize(run, checkpoint):
    tokenizer = tiedgpt.load_tokenizer(checkpoint)
    ids = tokenizer.encode(" é")
    code, out, err = run("tokenize", "--model", checkpoint, " é")
    assert (code, err) == (0, "")
    assert out == f"{ids[0]:>6}  ' '\n{ids[1]:>6}  b'\\xc3'\n{ids[2]:>6}  b'\\xa9'\n"
    document = json.loads(run("tokenize", "--model", checkpoint, "--json", " é")[1])
    assert document == {"ids": ids, "tokens": [" ", "\\xc3", "\\xa9"]}
    assert run("tokenize", "--model", checkpoint, stdin=" é".encode())[1] == out
    for text in (" ".join(map(str, ids)), str(ids)):
        assert run("tokenize", "--model", checkpoint, "--decode", text)[1] == " é\n"
    assert run("tokenize", "--model", checkpoint, "--decode", *map(str, ids))[1] == " é\n"
    assert run("tokenize", "--model", checkpoint, "--allow-special", "--json", "<|endoftext|>")[1].startswith(
        f'{{"ids": [{EOT}]'
    )


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["one", "two"], b"", "expected one TEXT, got 2: put it in quotes"),
        (["<|endoftext|>"], b"", "the text holds <|endoftext|>"),
        (["--decode", "5", "x"], b"", "--decode expects token ids, whole numbers, got 'x'"),
        (["--decode", "257"], b"", "257"),
        (["--decode", "--", "-1"], b"", "-1"),
        (["--decode"], b"", "--decode expects token ids"),
        ([], b"\xc3", "stdin is not UTF-8 text: byte 0xc3 at position 0"),
    ],
)
def test_tokenize_refuses_in_one_line(run, checkpoint, arguments, stdin, message):
    assert_one_error_line(run("tokenize", "--model", checkpoint, *arguments, stdin=stdin), message)


# untie, tie


def test_untie_and_tie(run, checkpoint, tmp_path):
    untied, tied = str(tmp_path / "untied"), str(tmp_path / "tied")
    code, out, err = run("untie", checkpoint, untied)
    assert (code, out) == (0, "")
    assert err.startswith(f"wrote {untied}: untied, ")
    assert run("tie", untied, tied)[0] == 0
    original, copy, back = (tiedgpt.load_model(path) for path in (checkpoint, untied, tied))
    np.testing.assert_array_equal(copy.W_U, original.W_E.T)
    assert not copy.config.tied
    assert back.config == original.config
    for name, array in original.parameters.items():
        np.testing.assert_array_equal(back.parameters[name], array)
    assert tiedgpt.load_tokenizer(tied).encode("ab") == tiedgpt.load_tokenizer(checkpoint).encode("ab")


def test_untie_starts_the_matrix_as_asked(run, checkpoint, tmp_path):
    for init, *more in (["zeros"], ["random", "--seed", "1"], ["random", "--seed", "2"]):
        name = "".join([init, *more])
        assert run("untie", checkpoint, str(tmp_path / name), "--init", init, *more)[0] == 0
    W_U = {path.name: tiedgpt.load_model(path).W_U for path in tmp_path.iterdir()}
    assert not W_U["zeros"].any()
    assert not np.array_equal(W_U["random--seed1"], W_U["random--seed2"])
    np.testing.assert_array_equal(W_U["random--seed1"], tiedgpt.load_model(checkpoint).untie("random", 1).W_U)


def test_untie_and_tie_refuse_in_one_line(run, checkpoint, tmp_path):
    assert_one_error_line(run("tie", checkpoint, str(tmp_path / "x")), f"{checkpoint} is tied already")
    assert run("untie", checkpoint, str(tmp_path / "u"))[0] == 0
    assert_one_error_line(run("untie", str(tmp_path / "u"), str(tmp_path / "x")), "is untied already")
    for taken in (checkpoint, str(tmp_path / "u"), f"{checkpoint}/config.json"):
        assert_one_error_line(
            run("untie", checkpoint, taken), "exists and is not empty; choose a new directory"
        )
    assert_one_error_line(run("untie", checkpoint, f"{checkpoint}/config.json/x"), "Not a directory")
    assert_one_error_line(
        run("untie", checkpoint, str(tmp_path / "x"), "--init", "ones"), "invalid choice: 'ones'"
    )
    assert_one_error_line(run("untie", checkpoint), "the following arguments are required: DST")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["u"]


# study, lens, next


@pytest.fixture(scope="module")
def untied_checkpoint(tmp_path_factory):
    """A small untied checkpoint of the same vocabulary."""
    path = tmp_path_factory.mktemp("models") / "untied"
    tiedgpt.save_model(random_model(CONFIG.with_head("untied"), seed=1), Tokenizer([]), path)
    return str(path)


@pytest.fixture
def text_file(tmp_path):
    """A text of which two bytes are frequent."""
    path = tmp_path / "text.txt"
    path.write_text("aab" + "ab" * 119 + "aac" * 20 + "the end\n", encoding="utf-8")
    return str(path)


def assert_alike(numbers, expected):
    """The same names, with the same numbers up to float32's rounding, or None."""
    assert numbers.keys() == expected.keys()
    for name, number in expected.items():
        assert numbers[name] == (number if number is None else pytest.approx(number, rel=1e-4)), name


def test_study_json(run, checkpoint, untied_checkpoint, text_file):
    code, out, err = run("study", untied_checkpoint, checkpoint, "--corpus", text_file, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["corpus"] == {"file": text_file, "bytes": 309, "min_count": 100}
    untied, tied = document["models"]
    assert [report["model"] for report in (untied, tied)] == [untied_checkpoint, checkpoint]
    assert [report["head"] for report in (untied, tied)] == ["untied", "tied"]

    models = {report["model"]: tiedgpt.load_model(report["model"]) for report in (untied, tied)}
    characters = Path(text_file).read_text(encoding="utf-8")
    text = Corpus.of(tiedgpt.load_tokenizer(checkpoint).encode(characters), 257)
    for report, tied_W_E in ((tied, None), (untied, models[checkpoint].W_E)):
        model = models[report["model"]]
        assert report["parameters"] == sum(array.size for array in model.parameters.values())
        assert report["corpus"] == {"tokens": 309, "frequent": 2, "self_prediction": 0.0}
        assert_alike(report["direct_path"], direct_path(model, text))
        assert_alike(report["embeddings"], embeddings(model, text, tied_W_E))
        assert_alike(report["loss"], losses(model, text.ids))
        for path, expected in bigrams(model, text).items():
            assert_alike(report["bigrams"][path], expected)
    assert (tied["direct_path"]["asymmetry"], tied["loss"]["swapped"]) == (0, None)
    assert None not in untied["embeddings"].values()


def test_study_table(run, checkpoint, untied_checkpoint, text_file):
    code, out, err = run("study", checkpoint, untied_checkpoint, "--corpus", text_file)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith("  ")}
    document = json.loads(run("study", checkpoint, untied_checkpoint, "--corpus", text_file, "--json")[1])
    tied, untied = document["models"]
    assert out.split()[:5] == ["bytes", "untied", "head", "tied", "untied"]
    assert rows["direct_path.asymmetry"] == ["0.000", f"{untied['direct_path']['asymmetry']:.3f}"]
    assert rows["loss.swapped"] == ["-", f"{untied['loss']['swapped']:.3f}"]
    for path in ("unigram", "raw", "normed", "mlp0", "model"):
        shares = [f"{100 * report['bigrams'][path]['top5']:.1f}" for report in (tied, untied)]
        assert rows[f"bigrams.{path}.top5"] == [shares[0], "%", shares[1], "%"]
    for group in ("direct_path", "bigrams.mlp0", "embeddings", "loss"):
        section, _, path = group.partition(".")
        for name in tied[section][path] if path else tied[section]:
            assert (f"{group}.{name}" in rows) == (name != "tokens")


def test_study_without_a_corpus(run, checkpoint, untied_checkpoint):
    code, out, err = run("study", checkpoint, untied_checkpoint)
    assert code == 0
    assert err.startswith("tiedgpt: note: no --corpus: bigrams, norms and losses need a text")
    assert err.count("\n") == 1
    for row, there in (("direct_path.", 1), ("embeddings.out_tied", 1), ("bigrams.", 0), ("_norm_", 0)):
        assert (row in out) == there, row
    document = json.loads(run("study", checkpoint, "--json")[1])
    assert document["corpus"] is None
    assert [document["models"][0][key] for key in ("corpus", "bigrams", "loss")] == [None] * 3


def test_study_of_different_vocabularies(run, checkpoint, tmp_path, text_file):
    other = str(tmp_path / "other")
    config = replace(CONFIG.with_head("untied"), vocab_size=258)
    tiedgpt.save_model(random_model(config), Tokenizer([("a", "b")]), other)
    code, out, err = run("study", checkpoint, other, "--corpus", text_file, "--json")
    assert code == 0
    assert "have vocabularies of different tokens or sizes: what is counted in tokens does not compare" in err
    assert err.count("\n") == 1
    ours, theirs = json.loads(out)["models"]
    assert (ours["corpus"]["tokens"], theirs["corpus"]["tokens"]) == (309, 189)
    assert theirs["embeddings"]["out_tied"] is None
    assert theirs["bigrams"] is not None


def test_study_goes_on_without_what_is_not_there(run, checkpoint, untied_checkpoint, tmp_path, text_file):
    bare = tmp_path / "bare"
    shutil.copytree(untied_checkpoint, bare)
    for name in ("merges.txt", "vocab.json"):
        (bare / name).unlink()
    code, out, err = run("study", checkpoint, str(bare), "--corpus", text_file, "--json")
    assert code == 0
    assert "has no tokenizer" in err
    assert "what needs a corpus or another model is left out" in err
    report = json.loads(out)["models"][1]
    assert (report["bigrams"], report["loss"], report["embeddings"]["out_tied"]) == (None, None, None)
    assert report["direct_path"]["asymmetry"] > 1

    code, out, err = run("study", checkpoint, "--corpus", "-", "--json", stdin=b"a" * 99)
    assert code == 0
    assert "stdin is too small for bigrams: of its 99 tokens" in err
    report = json.loads(out)["models"][0]
    assert report["bigrams"] is None
    assert report["loss"]["tokens"] == 97, "98 follow a token, but one is the first of the second window"
    code, out, err = run("study", checkpoint, "--corpus", "-", stdin=b"")
    assert code == 0
    assert "stdin is too small for a loss" in err
    assert "loss" not in out


def test_lens(run, checkpoint, untied_checkpoint, monkeypatch):
    code, out, err = run("lens", untied_checkpoint, "abcdefgh", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert (document["head"], document["prompt_ids"]) == ("untied", list(range(64, 72)))
    assert [layer["name"] for layer in document["layers"]] == ["resid_pre.0", "resid_post.0", "resid_post.1"]
    logits = tiedgpt.load_model(untied_checkpoint)(document["prompt_ids"])
    for row, position in zip(logits, document["layers"][-1]["positions"], strict=True):
        assert [token["id"] for token in position] == np.argsort(-row)[:5].tolist()
    tied = json.loads(run("lens", untied_checkpoint, "abcdefgh", "--json", "--head", "tied")[1])
    assert tied["head"] == "tied"
    assert tied["layers"] != document["layers"]

    monkeypatch.setenv("COLUMNS", "1000")
    title, _, *whole = run("lens", untied_checkpoint, "abcdefgh")[1].splitlines()
    assert title.startswith("likeliest next token")
    assert [line.split()[0] for line in whole] == ["'a'", "resid_pre.0", "resid_post.0", "resid_post.1"]
    assert whole[-1].split()[-1] == f"{document['layers'][-1]['positions'][-1][0]['probability']:.0%}"
    monkeypatch.setenv("COLUMNS", "60")
    narrow = run("lens", untied_checkpoint, "abcdefgh")[1].splitlines()[2:]
    assert max(map(len, narrow)) <= 60
    pieces = [line.split() for line in narrow if "'" in line and "resid" not in line]
    assert len(pieces) > 1
    assert [token for piece in pieces for token in piece] == whole[0].split()


def test_next(run, checkpoint, text_file):
    code, out, err = run("next", checkpoint, "a", "b", "--corpus", text_file, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    model = tiedgpt.load_model(checkpoint)
    a, b = (report["id"] for report in document["tokens"])
    logits = model([a])[0]
    following = document["tokens"][0]["next"]
    assert list(following) == ["raw", "normed", "mlp0", "model", "corpus"]
    assert [row["id"] for row in following["model"]] == np.argsort(-logits)[:10].tolist()
    assert following["model"][0]["logit"] == pytest.approx(logits.max(), rel=1e-4)
    assert [(row["token"], row["count"]) for row in following["corpus"]] == [("b", 120), ("a", 21), ("c", 20)]
    (pair,) = document["pairs"]
    assert pair["ids"] == [a, b]
    assert pair["scores"]["corpus"] == [120, 120]
    assert pair["scores"]["raw"][0] == pytest.approx(pair["scores"]["raw"][1], rel=1e-4), "tied"
    assert pair["scores"]["raw"][0] == pytest.approx(float(model.W_E[a] @ model.W_E[b]), rel=1e-4)
    p = [np.exp(row) / np.exp(row).sum() for row in (logits, model([b])[0])]
    assert np.exp(pair["scores"]["model"]) == pytest.approx([p[0][b], p[1][a]], rel=1e-4)

    text = run("next", checkpoint, "a", "b", "--corpus", text_file)[1].splitlines()
    assert text[0] == "after 'a'"
    assert text[1].split() == ["raw", "normed", "mlp0", "model", "corpus"]
    assert text[2].endswith("'b'  74.5%")
    assert (text[-7], text[-6].split()) == ("", ["'a'", "->", "'b'", "'b'", "->", "'a'"])
    assert text[-1].split() == ["corpus:", "count", "120", "times", "120", "times"]


def test_next_of_what_is_no_token(run, checkpoint):
    code, out, err = run("next", checkpoint, "a", "bc", "", "--json")
    assert code == 0
    assert [report["token"] for report in json.loads(out)["tokens"]] == ["a"]
    notes = err.splitlines()
    assert notes[0] == "tiedgpt: note: 'bc' is left out: it is 2 tokens, 'b' 'c', and one is wanted"
    assert notes[1] == "tiedgpt: note: '' is left out: it is no token, and one is wanted; ' ' is one"
    assert notes[2] == "tiedgpt: note: no --corpus: what follows in a text is left out"
    code, out, err = run("next", checkpoint, "bc")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("tiedgpt: error: no TOKEN is one token of this model")


def test_next_of_a_token_that_is_not_in_the_corpus(run, checkpoint, text_file):
    code, out, err = run("next", checkpoint, "z", "a", "--corpus", text_file)
    assert (code, err) == (0, f"tiedgpt: note: 'z' is not in {text_file}\n")
    assert "after 'z'" in out


@pytest.fixture
def small_vocabulary(tmp_path):
    """A model with fewer tokens than its tokenizer."""
    tiedgpt.save_model(random_model(replace(CONFIG, vocab_size=70)), Tokenizer([]), tmp_path / "small")
    return str(tmp_path / "small")


def test_what_a_model_has_no_token_for_is_left_out(run, checkpoint, small_vocabulary, text_file):
    code, out, err = run("next", small_vocabulary, "A", "z", "--json")
    assert [report["token"] for report in json.loads(out)["tokens"]] == ["A"]
    assert "'z' is left out: its id is 89, and the model has tokens 0 to 69" in err
    code, out, err = run("study", small_vocabulary, checkpoint, "--corpus", text_file, "--json")
    small, other = json.loads(out)["models"]
    assert (code, small["loss"], small["bigrams"]) == (0, None, None)
    assert other["loss"]["own"] > 0
    assert f"{text_file} in the tokens of {small_vocabulary}: the corpus holds token id" in err


def test_study_names_the_model_that_is_damaged(run, checkpoint, tmp_path, text_file):
    model = tiedgpt.load_model(checkpoint)
    model.parameters["wpe.weight"][:] = np.nan
    tiedgpt.save_model(model, Tokenizer([]), tmp_path / "damaged")
    damaged = str(tmp_path / "damaged")
    assert_one_error_line(run("study", checkpoint, damaged, "--corpus", text_file), f"{damaged}: the model's")


def test_study_of_a_context_of_one_token_says_that_it_has_no_loss(run, tmp_path, text_file):
    tiedgpt.save_model(random_model(replace(CONFIG, n_ctx=1)), Tokenizer([]), tmp_path / "one")
    code, out, err = run("study", str(tmp_path / "one"), "--corpus", text_file, "--json")
    assert (code, json.loads(out)["models"][0]["loss"]) == (0, None)
    assert "has a context of one token, and so no loss" in err


def test_study_of_models_whose_names_end_alike(run, tmp_path):
    paths = [tmp_path / name / "a-rather-long-name" for name in ("one", "two")]
    for path in paths:
        tiedgpt.save_model(random_model(CONFIG), Tokenizer([]), path)
    out = run("study", *map(str, paths))[1]
    assert out.splitlines()[0].split() == ["1:", "a-rather-long-name", "2:", "a-rather-long-name"]


def test_study_goes_on_without_a_tokenizer_and_compares_across_it(run, checkpoint, tmp_path):
    tiedgpt.save_model(random_model(CONFIG), Tokenizer([]), tmp_path / "bare")
    (tmp_path / "bare" / "merges.txt").write_text("#version: 0.2\nab cd\n", encoding="utf-8")
    tiedgpt.save_model(random_model(CONFIG), Tokenizer([("a", "b")], {}), tmp_path / "other")
    code, _, err = run("study", checkpoint, str(tmp_path / "bare"), str(tmp_path / "other"))
    assert code == 0
    assert "neither a byte nor an earlier merge; what needs a corpus or another model is left out" in err
    assert f"{checkpoint} and {tmp_path / 'other'} have vocabularies of different tokens" in err


def test_a_text_in_place_of_a_model(run, checkpoint, text_file):
    message = f"{text_file} is not a checkpoint: expected a directory or a .safetensors file"
    for command in (["study", checkpoint, text_file], ["next", text_file, "a"], ["lens", text_file, "a"]):
        assert_one_error_line(run(*command), message)


def test_tokens_that_pad_the_vocabulary_have_no_text(run, tmp_path):
    model = random_model(replace(CONFIG, vocab_size=300))
    model.parameters["wte.weight"][299] = 40 * model.parameters["wte.weight"][65]
    tiedgpt.save_model(model, Tokenizer([]), tmp_path / "padded")
    padded = str(tmp_path / "padded")
    assert "[299] 100.0%" in run("next", padded, "b")[1]
    report = json.loads(run("next", padded, "b", "--json")[1])["tokens"][0]
    assert report["next"]["raw"][0]["token"] is None
    assert run("lens", padded, "abc")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("study", "MODEL", "--corpus", "-"), "stdin is not UTF-8 text"),
        (("study", "MODEL", "no-such-model"), "no model 'no-such-model'"),
        (("next", "MODEL", "<|endoftext|>"), "add --allow-special"),
        (("lens", "MODEL", ""), "the prompt is empty"),
        (("lens", "MODEL", "a" * 65), "65 tokens, more than the model's context of 64"),
    ],
)
def test_study_lens_and_next_refuse_in_one_line(run, checkpoint, arguments, message):
    arguments = [checkpoint if argument == "MODEL" else argument for argument in arguments]
    assert_one_error_line(run(*arguments, stdin=b"\xff"), message)


# All commands


def test_help_and_version(run):
    assert run("--version")[:2] == (0, f"tiedgpt {tiedgpt.__version__}\n")
    commands = run("-h")[1]
    for arguments in ([], *([name] for name in cli.MODULES)):
        code, out, err = run(*arguments, "-h")
        assert (code, err) == (0, "")
        assert " ".join(["usage: tiedgpt", *arguments, "["]) in out
        assert "examples:\n  tiedgpt" in out
        assert not arguments or f"\n    {arguments[0]} " in commands


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["generat"], "invalid choice: 'generat'"),
        (["params", "--modl", "x"], "--modl"),
    ],
)
def test_usage_errors_are_one_line(run, arguments, message):
    assert_one_error_line(run(*arguments), message)


def test_importing_loads_nothing_that_is_not_needed():
    """No oracle, none of the slow imports that only some commands need, and of commands the one that runs."""
    code = """if 1:
        import sys, tiedgpt.cli
        tiedgpt.cli.main(["tokenize", "--model", "shakespeare-tied", "--json", ""])
        print([module for module in sys.argv[1:] if module in sys.modules])
    """
    modules = ["torch", "transformers", "tiktoken", "safetensors", "requests", "tqdm", "matplotlib"]
    modules += ["tiedgpt.training", "tiedgpt.study", "tiedgpt.cli.generate"]
    out = subprocess.run(
        [sys.executable, "-c", code, *modules], capture_output=True, text=True, check=True
    ).stdout
    assert out.endswith("\n[]\n")


def test_a_bar_appears_only_on_a_terminal_and_only_for_a_long_wait(capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, delay, expected in (
        (Terminal(), 0, True),
        (Terminal(), 3600, False),
        (io.StringIO(), 0, False),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(Progress, "DELAY", delay)
        with Progress("loading", 10, "B") as progress:
            time.sleep(0.001)
            progress.add(5)
        assert ("loading" in stream.getvalue()) is expected
