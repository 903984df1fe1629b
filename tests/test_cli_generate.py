"""`tiedgpt generate` and `tiedgpt score` as a user meets them: stdout, stderr and the exit code."""

import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from conftest import CONFIG, SLOW_CONFIG, assert_one_error_line, command, random_model

import tiedgpt
from tiedgpt import Tokenizer, cli

EOT = 256  # <|endoftext|> of a tokenizer of bytes alone


# generate


def test_generate_prints_the_continuation_alone(run, checkpoint):
    code, out, err = run("generate", "--model", checkpoint, "--seed", "1", "-n", "9", "Hello")
    assert (code, err) == (0, "")
    model, tokenizer = tiedgpt.load_model(checkpoint), tiedgpt.load_tokenizer(checkpoint)
    expected = tokenizer.decode(list(tiedgpt.generate(model, tokenizer.encode("Hello"), 9, seed=1)))
    assert out == expected + "\n"
    words = f"--model {checkpoint} --max-new-tokens 9 --temperature 2 --top-k 50 --top-p 0.9 --seed 3"
    long = run("generate", *words.split(), "a")
    assert long == run("generate", *f"-m {checkpoint} -n 9 -t 2 -k 50 -p 0.9 -s 3".split(), "a")
    assert long[0] == 0


@pytest.mark.parametrize(
    ("arguments", "stdin", "text"),
    [
        (["b"], b"a", "b"),
        (["-"], b"a\r\n", "a"),
        ([], b"a\n\n", "a\n"),
        (["-"], b"-", "-"),
        (["é"], b"", "é"),
    ],
)
def test_a_text_is_the_argument_or_stdin(run, checkpoint, tmp_path, monkeypatch, arguments, stdin, text):
    """By one rule: a prompt is PROMPT, a file's text that of FILE; "-" or nothing is stdin, never a text."""
    monkeypatch.chdir(tmp_path)
    Path("b").write_text("bb")
    Path("é").write_text("bé")
    for name in ("generate", "next", "lens", "attribute"):
        code, out, err = run(name, "-m", checkpoint, "--json", *arguments, stdin=stdin)
        assert (code, json.loads(out)["prompt"], err) == (0, text, "")
    document = json.loads(run("tokenize", "-m", checkpoint, "--json", *arguments, stdin=stdin)[1])
    tokenizer = tiedgpt.load_tokenizer(checkpoint)
    is_stdin = arguments in ([], ["-"])
    assert tokenizer.decode(document["ids"]) == (stdin.decode() if is_stdin else text)
    scored = json.loads(run("score", "-m", checkpoint, "--json", *arguments, stdin=stdin + b"b")[1])
    whole = stdin + b"b" if is_stdin else Path(text).read_bytes()
    assert (scored["text_bytes"], scored["file"]) == (len(whole), "-" if is_stdin else text)


@pytest.mark.parametrize(
    "words", ["tokenize", "score", "next", "train --out new", "generate", "generate --json"]
)
def test_without_a_text_on_a_terminal_it_says_so(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", stdin := io.StringIO())
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    result = cli.main(words.split()), *capsys.readouterr()
    assert_one_error_line(result, "error: there is no text: give one, or pipe one in\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "stdin", "expected"),
    [("next é", "", "after 'é' by".encode()), ("generate --json -n 1", "é", b'"prompt": "\\u00e9"')],
)
def test_text_in_utf_8_under_the_c_locale(words, stdin, expected):
    """As argument, on stdin and on stdout, though Python then takes text for ASCII."""
    arguments = command(*words.split(), "-m", "shakespeare-tied")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(arguments, input=stdin.encode(), capture_output=True, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert expected in done.stdout


def test_truncate_keeps_the_end_of_a_prompt_and_leaves_room(run, checkpoint):
    prompt = "".join(chr(33 + i % 90) for i in range(64 + 20))
    for n, kept in ((10, 54), (50, 32), (1000, 32)):
        arguments = ("generate", "-m", checkpoint, "-n", str(n), "-s", "1", "--json")
        code, out, err = run(*arguments, "--truncate", prompt)
        assert (code, err) == (
            0,
            f"tiedgpt: note: --truncate drops the first {84 - kept} of the prompt's 84 tokens\n",
        )
        document = json.loads(out)
        assert document["prompt"] == prompt
        assert document["prompt_ids"] == tiedgpt.load_tokenizer(checkpoint).encode(prompt[-kept:])
        short = run(*arguments, "--truncate", prompt[-kept:])
        assert (short[0], short[2]) == (0, "")
        assert json.loads(short[1])["samples"] == document["samples"]


def test_generate_json(run, checkpoint):
    arguments = ("--num-samples", "3", "--temperature", "2", "-n", "8", "--json", "a\n")
    code, out, err = run("generate", "--model", checkpoint, *arguments)
    assert (code, err) == (0, "")
    document = json.loads(out)
    tokenizer = tiedgpt.load_tokenizer(checkpoint)
    assert document["model"] == checkpoint
    assert (document["head"], document["prompt"]) == ("tied", "a\n")
    assert document["prompt_ids"] == tokenizer.encode("a\n")
    assert len({tuple(sample["ids"]) for sample in document["samples"]}) == 3
    for sample in document["samples"]:
        assert sample["finish_reason"] == "length"
        assert len(sample["ids"]) == 8
        assert sample["text"] == tokenizer.decode(sample["ids"])
    assert set(document["timing"]) == {"load_s", "prefill_s", "decode_tokens_per_s"}
    assert all(seconds > 0 for seconds in document["timing"].values())
    again = ("--seed", str(document["seed"]), "--head", "tied", *arguments)
    assert json.loads(run("generate", "--model", checkpoint, *again)[1])["samples"] == document["samples"]
    other = json.loads(run("generate", "--model", checkpoint, *arguments)[1])
    assert other["seed"] != document["seed"]
    past = json.loads(run("generate", "--model", checkpoint, "-n", "150", "--json", "a" * 60)[1])
    assert len(past["samples"][0]["ids"]) == 150, "past the context it goes on"


def test_a_draft_changes_no_text_and_is_counted(run, checkpoint, tmp_path):
    small = replace(CONFIG, n_layer=0, n_embd=2, n_head=1)
    tiedgpt.save_model(random_model(small), Tokenizer([]), tmp_path / "small")

    def document(*draft):
        words = ("-m", checkpoint, "--json", "--seed", "1", "-t", "0.1", "-n", "90", "--num-samples", "2")
        words += ("--logprobs", "1")
        code, out, _ = run("generate", *words, *draft, "abc")
        assert code == 0
        return json.loads(out)

    plain, looked_up = document("--draft", "none"), document()
    assert document("--draft", "lookup")["draft"] == looked_up["draft"]
    by_model = document("--draft", str(tmp_path / "small"))
    texts = [[sample["text"] for sample in one["samples"]] for one in (plain, looked_up, by_model)]
    assert texts[0] == texts[1] == texts[2]
    assert plain["draft"] is None
    for sample in by_model["samples"]:
        assert [token["id"] for token in sample["logprobs"]] == sample["ids"]
    for drafted in (looked_up, by_model):
        assert drafted["draft"]["drafted"] >= drafted["draft"]["accepted"]
    assert looked_up["draft"]["accepted"] > 0
    assert by_model["draft"]["drafted"] > 0


@pytest.mark.parametrize(
    ("change", "merges", "message"),
    [
        ({"n_ctx": 63}, [], "a shorter context: 63 tokens; the model has 64"),
        ({"vocab_size": 258}, [("a", "b")], "another vocabulary: 258 tokens; the model has 257"),
    ],
)
def test_a_draft_model_that_does_not_fit(run, checkpoint, tmp_path, change, merges, message):
    tiedgpt.save_model(random_model(replace(CONFIG, **change)), Tokenizer(merges), tmp_path / "small")
    result = run("generate", "-m", checkpoint, "--draft", str(tmp_path / "small"), "abc")
    assert_one_error_line(result, message)


def test_several_samples_are_printed_one_below_the_other(run, checkpoint):
    arguments = ("generate", "--model", checkpoint, "--greedy", "-n", "5", "a")
    one = run(*arguments)[1]
    expected = "".join(f"--- {i} of 3 ---\n{one}" for i in (1, 2, 3))
    assert run(*arguments, "--num-samples", "3") == (0, expected, "")


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


def test_head_flag_and_the_note_about_a_copied_head(run, checkpoint, tmp_path):
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


def test_special_tokens_of_a_model(run, checkpoint, tmp_path):
    """They are read only when allowed. A model without any does not suggest one."""
    allowed = run("generate", "--model", checkpoint, "--json", "<|endoftext|>", "--allow-special")
    assert json.loads(allowed[1])["prompt_ids"] == [EOT]
    tiedgpt.save_model(random_model(replace(CONFIG, vocab_size=256)), Tokenizer([], {}), tmp_path)
    result = run("generate", "--model", str(tmp_path), "")
    assert_one_error_line(result, "the prompt is empty: GPT-2 needs at least one token to continue\n")
    assert run("generate", "--model", str(tmp_path), "-n", "3", "<|endoftext|>")[0] == 0


def test_without_model_it_is_gpt2_or_else_the_shipped_one(run, checkpoint, no_models, monkeypatch):
    assert_one_error_line(run("generate", "a"), "gpt2 is not on this machine: looked for")
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


# generate, as a process


def test_a_closed_pipe_is_quiet(checkpoint):
    """As in `tiedgpt generate ... | head -1`."""
    arguments = command("generate", "--model", checkpoint, "--seed", "0", "-n", "100000", "a")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def test_text_streams_and_ctrl_c_ends_it(checkpoint):
    """The first characters come before the last token; Ctrl-C gives 130 and no traceback."""
    arguments = command("generate", "--model", checkpoint, "--seed", "0", "-n", "10000000", "a")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == b"\n"


class Terminal:
    """A command on a pseudo-terminal."""

    def __init__(self, *arguments: str, term: str = "dumb") -> None:
        pty = pytest.importorskip("pty")
        self.master, slave = pty.openpty()
        # A session with this terminal as its own, so that Ctrl-C is a signal.
        start = (
            "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", start, *command(*arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": term},
        )
        os.close(slave)
        self.text = ""  # all that was printed

    def type(self, keys: str, until: str | None = None) -> str:
        """Type; return what is printed until `until` is at its end, or until the command ends.

        After two seconds of silence the keys are typed again: a Ctrl-C between the printing of the prompt and
        readline's wait is lost.
        """
        shown, deadline = "", time.monotonic() + 60
        os.write(self.master, keys.encode())
        while until is None or not shown.endswith(until):
            assert time.monotonic() < deadline, shown
            if not select.select([self.master], [], [], 2.0)[0]:
                os.write(self.master, keys.encode())
                continue
            try:
                chunk = os.read(self.master, 4096)
            except OSError:  # on Linux: the other side is closed
                chunk = b""
            if not chunk:
                assert until is None, shown
                break
            shown += chunk.decode(errors="replace").replace("\r\n", "\n")
        self.text += shown
        return shown

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.master)
        self.process.kill()
        self.process.wait()


CTRL_C, CTRL_D = "\x03", "\x04"


def on_terminal(text: str) -> str:
    """Generated text as a terminal gets it."""
    return text.translate(cli.terminal.CONTROLS)


def test_the_prompt_loop(checkpoint, run):
    """Samples after the prompt, an empty line, a mistake and Ctrl-C, which do not end it, Ctrl-D."""
    arguments = ("generate", "-m", checkpoint, "--greedy", "-n", "4", "--num-samples", "2")
    expected = on_terminal(run(*arguments, "b")[1]).replace(" ---\n", " ---\nb")
    with Terminal(*arguments) as terminal:
        assert "Ctrl-D leaves" in terminal.type("", "> ")
        assert terminal.type("b\r", "> ") == f"b\n{expected}> "
        assert terminal.type("\r", "> ") == "\n> "
        assert "tiedgpt: error: the text holds <|endoftext|>" in terminal.type("<|endoftext|>\r", "> ")
        terminal.type(f"typed{CTRL_C}", "To leave, press Ctrl-D.\n> ")
        assert terminal.type("b\r", "> ") == f"b\n{expected}> "
        terminal.type(CTRL_D)
        assert terminal.process.wait(timeout=60) == 0, terminal.text
        assert "Traceback" not in terminal.text


def test_a_paste_of_several_lines_is_one_prompt(checkpoint, run):
    """The text stands after the last line."""
    arguments = ("generate", "-m", checkpoint, "--greedy", "-n", "4")
    expected = "cd" + on_terminal(run(*arguments, "a\n\nb\ncd")[1])
    readline = pytest.importorskip("readline")
    if "libedit" in readline.__doc__:
        pytest.skip("libedit does not know how terminals mark a paste")
    with Terminal(*arguments, term="xterm") as terminal:
        assert "\x1b[?2004h" in terminal.type("", "> ")
        shown = terminal.type("\x1b[200~a\r\rb\rcd\r\x1b[201~\r", "> ")
        plain = shown.replace("\x1b[?2004l", "").replace("\x1b[?2004h", "").replace("\r", "")
        assert plain.endswith(f"\n{expected}> "), shown
        assert plain.count("> ") == 1


def test_ctrl_c_stops_a_text_and_the_loop_goes_on(tmp_path):
    """The model is slow enough to be interrupted in its text."""
    tiedgpt.save_model(random_model(SLOW_CONFIG), Tokenizer([]), tmp_path)
    with Terminal("generate", "-m", str(tmp_path), "-n", "1000000", "-s", "1") as terminal:
        terminal.type("", "> ")
        terminal.type("a\r", "a\na")
        terminal.type(CTRL_C, "\n> ")
        terminal.type(CTRL_D)
        assert terminal.process.wait(timeout=60) == 0
        assert "To leave" not in terminal.text


# score

WORDS = "Tying saves 38.6M of them, é!\r\n" * 9


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes(WORDS.encode())
    return str(path)


def test_score_json(run, checkpoint, words):
    """Line ends are part of the text."""
    code, out, err = run("score", "--model", checkpoint, "--stride", "10", "--json", words)
    assert (code, err) == (0, "")
    document = json.loads(out)
    model, tokenizer = tiedgpt.load_model(checkpoint), tiedgpt.load_tokenizer(checkpoint)
    expected = asdict(tiedgpt.score(model, tokenizer, tokenizer.encode(WORDS), stride=10))
    n = len(WORDS.encode())
    given = {"text_tokens": n, "text_bytes": n, "file": words, "context": 64, "stride": 10}
    assert document == {"model": checkpoint, "head": "tied", **expected, **given}
    assert document["tokens"] == document["bytes"] == n - 1
    code, out, err = run("score", "-m", checkpoint, "--stride", "10", "--head", "untied", "--json", words)
    assert (code, json.loads(out)) == (0, {**document, "head": "untied"})
    assert err.startswith("tiedgpt: note: this checkpoint has no W_U of its own: it starts as a copy")
    arguments = ("score", "-m", checkpoint, "--json", "--allow-special")
    special = json.loads(run(*arguments, stdin=b"<|endoftext|>a<|endoftext|>")[1])
    assert (special["tokens"], special["bytes"]) == (2, 14)
    assert (special["text_tokens"], special["text_bytes"]) == (3, 27)


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
    ):
        assert re.search(rf"^{name} +{re.escape(figure)}$", out, re.M), (name, out)
    for stride, n in ((32, 287), (64, 283)):
        text = " ".join(run("score", "--model", checkpoint, "--stride", str(stride), words)[1].split())
        windows = f"in windows of up to 64 tokens, one every {stride}."
        assert f"The model predicted {n} of 288 tokens ({n} of 288 bytes), {windows}" in text


@pytest.mark.slow
@pytest.mark.parametrize(("head", "limit"), [("tied", 2.15), ("untied", 2.18)])
def test_score_of_the_shipped_models(run, shared, tmp_path, head, limit):
    """On the tenth of the corpus that they were not trained on."""
    corpus = (shared / "corpus" / "tinyshakespeare.txt").read_bytes()
    (tmp_path / "held-out.txt").write_bytes(corpus[len(corpus) * 9 // 10 :])
    flags = ("--model", f"shakespeare-{head}", "--stride", "127", "--json")
    result = run("score", *flags, str(tmp_path / "held-out.txt"))
    assert 1.5 < json.loads(result[1])["bits_per_byte"] < limit
