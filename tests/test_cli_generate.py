"""`tiedgpt generate` and `tiedgpt score` as a user meets them: stdout, stderr and the exit code."""

import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from conftest import CONFIG, answer, assert_one_error_line, command, output, random_model

import tiedgpt
from tiedgpt import Tokenizer, cli
from tiedgpt.checkpoints.checkpoint import Checkpoint
from tiedgpt.errors import short_repr


def test_generate_prints_the_continuation_alone(run, checkpoint):
    out = output(run, "generate", "--model", checkpoint, "--seed", "1", "-n", "9", "Hello")
    model, tokenizer = tiedgpt.load_model(checkpoint), tiedgpt.load_tokenizer(checkpoint)
    expected = tokenizer.decode(list(tiedgpt.generate(model, tokenizer.encode("Hello"), 9, seed=1)))
    assert out == expected + "\n"
    words = (
        f"--model {checkpoint} --max-new-tokens 9 --temperature 2 --top-k 50 --top-p 0.9 --seed 3"
    )
    short = f"-m {checkpoint} -n 9 -t 2 -k 50 -p 0.9 -s 3"
    assert output(run, "generate", *words.split(), "a") == output(
        run, "generate", *short.split(), "a"
    )


@pytest.mark.parametrize(
    ("given", "stdin", "text"),
    [
        ("b", b"a", "b"),
        ("-", b"a\r\n", "a"),
        ("", b"a\n\n", "a\n"),
        ("-", b"-", "-"),
        ("é", b"", "é"),
    ],
)
def test_a_text_is_the_argument_or_stdin(
    run, checkpoint, tmp_path, monkeypatch, given, stdin, text
):
    """By one rule: a prompt is PROMPT, a file's text that of FILE; "-" or nothing is stdin, never a
    text."""
    monkeypatch.chdir(tmp_path)
    Path("b").write_text("bb")
    Path("é").write_text("bé")
    arguments, is_stdin = ("-m", checkpoint, *given.split()), given in ("", "-")
    for name in ("generate", "next", "lens", "attribute"):
        assert answer(run, name, *arguments, stdin=stdin)["prompt"] == text
    ids = answer(run, "tokenize", *arguments, stdin=stdin)["ids"]
    assert ids == tiedgpt.load_tokenizer(checkpoint).encode(stdin.decode() if is_stdin else text)
    scored = answer(run, "score", *arguments, stdin=stdin + b"b")
    whole = stdin + b"b" if is_stdin else Path(text).read_bytes()
    assert (scored["text_bytes"], scored["file"]) == (len(whole), "-" if is_stdin else text)


def test_without_a_text_on_a_terminal_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", stdin := io.StringIO())
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    for words in ("tokenize", "score", "next", "train --out new", "generate", "generate --json"):
        result = cli.main(words.split()), *capsys.readouterr()
        assert_one_error_line(result, "error: there is no text: give one, or pipe one in\n")
        assert list(tmp_path.iterdir()) == []


def test_text_in_utf_8_under_the_c_locale():
    """As argument, on stdin and on stdout, though Python then takes text for ASCII."""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    second = "generate --json -n 1", "é", b'"prompt": "\\u00e9"'
    for words, stdin, expected in (("next é", "", "after 'é' by".encode()), second):
        arguments = command(*words.split(), "-m", "shakespeare-tied")
        done = subprocess.run(arguments, input=stdin.encode(), capture_output=True, env=environment)
        assert (done.returncode, done.stderr) == (0, b"")
        assert expected in done.stdout


def test_truncate_keeps_the_end_of_a_prompt_and_leaves_room(run, checkpoint):
    prompt = "".join(chr(33 + i % 90) for i in range(64 + 20))
    for n, kept in ((10, 54), (50, 32), (64, 32)):
        arguments = ("generate", "-m", checkpoint, "-n", str(n), "-s", "1", "--truncate")
        code, out, err = run(*arguments, "--json", prompt)
        note = f"tiedgpt: note: --truncate drops the first {84 - kept} of the prompt's 84 tokens\n"
        assert (code, err) == (0, note)
        document = json.loads(out)
        assert document["prompt"] == prompt
        assert document["prompt_ids"] == tiedgpt.load_tokenizer(checkpoint).encode(prompt[-kept:])
        assert answer(run, *arguments, prompt[-kept:])["samples"] == document["samples"]


def test_generate_json(run, checkpoint):
    arguments = (
        "generate",
        "--model",
        checkpoint,
        "--num-samples",
        "3",
        "-t",
        "2",
        "-n",
        "8",
        "a\n",
    )
    document, tokenizer = answer(run, *arguments), tiedgpt.load_tokenizer(checkpoint)
    known = {
        "model": checkpoint,
        "head": "tied",
        "prompt": "a\n",
        "prompt_ids": tokenizer.encode("a\n"),
    }
    assert document.items() >= known.items()
    ids = [sample["ids"] for sample in document["samples"]]
    assert [*map(len, ids)] == [8, 8, 8]
    assert len({*map(tuple, ids)}) == 3
    texts = [{"ids": one, "text": tokenizer.decode(one), "finish_reason": "length"} for one in ids]
    assert document["samples"] == texts
    assert set(document["timing"]) == {"load_s", "prefill_s", "decode_tokens_per_s"}
    assert min(document["timing"].values()) > 0
    again = answer(run, *arguments, "--seed", str(document["seed"]), "--head", "tied")
    assert again["samples"] == document["samples"]
    assert answer(run, *arguments)["seed"] != document["seed"]
    past = answer(run, "generate", "--model", checkpoint, "-n", "150", "a" * 60)
    assert len(past["samples"][0]["ids"]) == 150, "past the context it goes on"


def test_a_draft_changes_no_text_and_is_counted(run, checkpoint, save):
    small = save("small", random_model(replace(CONFIG, n_layer=0, n_embd=2, n_head=1)))
    flags = ("--seed", "1", "-t", "0.1", "-n", "90", "--num-samples", "2", "--logprobs", "1", "abc")

    def document(*draft):
        return answer(run, "generate", "-m", checkpoint, *flags, *draft)

    plain, looked_up, by_model = document("--draft", "none"), document(), document("--draft", small)
    assert document("--draft", "lookup")["draft"] == looked_up["draft"]
    texts = [[sample["text"] for sample in one["samples"]] for one in (plain, looked_up, by_model)]
    assert texts[0] == texts[1] == texts[2]
    for sample in by_model["samples"]:
        assert [token["id"] for token in sample["logprobs"]] == sample["ids"]
    assert plain["draft"] is None
    assert looked_up["draft"]["drafted"] >= looked_up["draft"]["accepted"] > 0
    assert by_model["draft"]["drafted"] >= max(1, by_model["draft"]["accepted"])


def test_a_draft_that_cannot_guess_is_refused_before_weights_are_read(
    run, checkpoint, save, monkeypatch
):
    other = "has other merges, special tokens or vocab_size than the model"
    monkeypatch.setattr(Checkpoint, "load", None)
    for config, merges, message in (
        (CONFIG, [("a", "b")], other),
        (replace(CONFIG, vocab_size=320), [], other),
        (replace(CONFIG, n_ctx=63), [], "has a context of 63; the model needs 64"),
    ):
        draft = save(f"{config.vocab_size} {config.n_ctx}", random_model(config), Tokenizer(merges))
        result = run("generate", "-m", checkpoint, "--draft", draft, "abc")
        assert_one_error_line(result, f"--draft {short_repr(draft)} {message}")


def test_stop_and_end_of_text(run, checkpoint, save):
    def sample(*flags, model=checkpoint):
        (one,) = answer(run, "generate", "--model", model, "--greedy", "-n", "12", "a", *flags)[
            "samples"
        ]
        return one

    whole, model = sample(), tiedgpt.load_model(checkpoint)
    stop, end = whole["text"][4], whole["ids"][3]
    cut = sample("--stop", stop)
    assert (cut["finish_reason"], cut["text"]) == ("stop", whole["text"].partition(stop)[0])
    ending = tiedgpt.GPT2(replace(model.config, eos_token_id=end), model.parameters)
    ended = sample(model=save("ending", ending))
    assert (ended["finish_reason"], ended["ids"]) == (
        "eos",
        whole["ids"][: whole["ids"].index(end)],
    )


def test_head_flag_and_the_note_about_a_copied_head(run, checkpoint, untied):
    greedy = ("generate", "--greedy", "a", "--model")
    code, out, err = run(*greedy, checkpoint, "--head", "untied")
    assert (code, out) == (0, output(run, *greedy, checkpoint))
    note = "tiedgpt: note: this checkpoint has no W_U of its own: a copy of wte.T is used"
    assert (err[: len(note)], err.count("\n")) == (note, 1)
    assert output(run, *greedy, untied, "--head", "untied") != output(
        run, *greedy, untied, "--head", "tied"
    )


def test_special_tokens_of_a_model(run, checkpoint, save):
    """They are read only when allowed. A model without any does not suggest one."""
    allowed = answer(run, "generate", "--model", checkpoint, "<|endoftext|>", "--allow-special")
    assert allowed["prompt_ids"] == [256]
    none = save("none", random_model(replace(CONFIG, vocab_size=256)), Tokenizer([], {}))
    result = run("generate", "--model", none, "")
    assert_one_error_line(
        result, "the prompt is empty: GPT-2 needs at least one token to continue\n"
    )
    assert run("generate", "--model", none, "-n", "3", "<|endoftext|>")[0] == 0


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
    assert answer(run, "generate", "-n", "1", "a")["model"] == "gpt2"


@pytest.mark.parametrize(
    ("ended_by", "code", "error"), [("pipe", 141, b""), ("Ctrl-C", 130, b"\n")]
)
def test_text_streams_and_ends_quietly(checkpoint, ended_by, code, error):
    """The first characters come before the last token. A pipe is closed as by `| head -1`."""
    arguments = command("generate", "--model", checkpoint, "--seed", "0", "-n", "10000000", "a")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT) if ended_by == "Ctrl-C" else process.stdout.close()
        assert process.wait(timeout=60) == code
        assert process.stderr.read() == error


class Terminal(AbstractContextManager):
    """A command on a pseudo-terminal."""

    def __init__(self, *arguments: str, term: str = "dumb") -> None:
        pty = pytest.importorskip("pty")
        self.master, slave = pty.openpty()
        # A session with this terminal as its own, so that Ctrl-C is a signal.
        start = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        start += "fcntl.ioctl(0, termios.TIOCSWINSZ, bytes([40, 0, 100, 0, 0, 0, 0, 0])); "
        start += "os.execv(sys.argv[1], sys.argv[1:])"
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), slave)
        started = [sys.executable, "-c", start, *command(*arguments)]
        environment = {**os.environ, "TERM": term}
        self.process = subprocess.Popen(started, **streams, start_new_session=True, env=environment)
        os.close(slave)
        self.text = ""  # all that was printed

    def type(self, keys: str, until: str | None = None) -> str:
        """Type; return what is printed until `until` is at its end, or until the command ends."""
        shown, deadline = "", time.monotonic() + 60
        os.write(self.master, keys.encode())
        while until is None or not shown.endswith(until):
            assert time.monotonic() < deadline, shown
            if not select.select([self.master], [], [], 2.0)[
                0
            ]:  # Ctrl-C just before readline waits is lost
                os.write(self.master, keys.encode())
                continue
            chunk = b""
            with suppress(OSError):  # on Linux: the other side is closed
                chunk = os.read(self.master, 4096)
            if not chunk:
                assert until is None, shown
                break
            shown += chunk.decode(errors="replace").replace("\r\n", "\n")
        self.text += shown
        return shown

    def __exit__(self, *_: object) -> None:
        os.close(self.master)
        self.process.kill()
        self.process.wait()


CTRL_C, CTRL_D = "\x03", "\x04"


def test_the_prompt_loop(checkpoint, run):
    """Samples one below the other, an empty line, a mistake and Ctrl-C, which do not end it,
    Ctrl-D."""
    arguments = ("generate", "-m", checkpoint, "--greedy", "-n", "4")
    sample = run(*arguments, "b")[1].translate(cli.terminal.CONTROLS)
    expected = f"--- 1 of 2 ---\nb{sample}--- 2 of 2 ---\nb{sample}"
    with Terminal(*arguments, "--num-samples", "2") as terminal:
        assert "Ctrl-D leaves" in terminal.type("", "> ")
        assert terminal.type("b\r", "> ") == f"b\n{expected}> "
        assert terminal.type("\r", "> ") == "\n> "
        assert "tiedgpt: error: the text holds <|endoftext|>" in terminal.type(
            "<|endoftext|>\r", "> "
        )
        terminal.type(f"typed{CTRL_C}", "To leave, press Ctrl-D.\n> ")
        assert terminal.type("b\r", "> ") == f"b\n{expected}> "
        terminal.type(CTRL_D)
        assert terminal.process.wait(timeout=60) == 0, terminal.text
        assert "Traceback" not in terminal.text


def test_a_paste_of_several_lines_is_one_prompt_and_only_its_last_line_is_repeated(checkpoint, run):
    arguments = ("generate", "-m", checkpoint, "--greedy", "-n", "4")
    expected = "cd" + run(*arguments, "a\n\nb\ncd")[1].translate(cli.terminal.CONTROLS)
    readline = pytest.importorskip("readline")
    if "libedit" in readline.__doc__:
        pytest.skip("libedit does not know how terminals mark a paste")
    with Terminal(*arguments, term="xterm") as terminal:
        assert "\x1b[?2004h" in terminal.type("", "> ")
        shown = terminal.type("\x1b[200~a\r\rb\rcd\r\x1b[201~\r", "> ")
        answered = shown.replace("\r", "").partition("\x1b[?2004l")[2].lstrip("\n")
        assert answered == f"{expected}\x1b[?2004h> ", shown


def test_ctrl_c_stops_a_text_and_the_loop_goes_on(tmp_path):
    slow = replace(CONFIG, n_layer=4, n_embd=384, n_head=6, n_inner=1536, n_ctx=1024)
    tiedgpt.save_model(tiedgpt.GPT2.random(slow), Tokenizer([]), tmp_path)
    with Terminal("generate", "-m", str(tmp_path), "-n", "1000000", "-s", "1") as terminal:
        terminal.type("", "> ")
        terminal.type("a\r", "a\na")
        terminal.type(CTRL_C, "\n> ")
        terminal.type(CTRL_D)
        assert terminal.process.wait(timeout=60) == 0
        assert "To leave" not in terminal.text


WORDS = "Tying saves 38.6M of them, é!\r\n" * 9


def test_score_json(run, checkpoint):
    document = answer(run, "score", "--model", checkpoint, "--stride", "10", stdin=WORDS.encode())
    model, tokenizer = tiedgpt.load_model(checkpoint), tiedgpt.load_tokenizer(checkpoint)
    expected = asdict(tiedgpt.score(model, tokenizer, tokenizer.encode(WORDS), stride=10))
    n = len(WORDS.encode())
    given = {"text_tokens": n, "text_bytes": n, "file": "-", "context": 64, "stride": 10}
    assert document == {"model": checkpoint, "head": "tied", **expected, **given}
    assert document["tokens"] == document["bytes"] == n - 1
    text = b"<|endoftext|>a<|endoftext|>"
    document = answer(run, "score", "-m", checkpoint, "--allow-special", stdin=text)
    assert (
        document.items() >= {"tokens": 2, "bytes": 14, "text_tokens": 3, "text_bytes": 27}.items()
    )


def test_score_for_people(run, checkpoint, tmp_path):
    words = str(tmp_path / "words.txt")
    Path(words).write_bytes(WORDS.encode())
    document = answer(run, "score", "--model", checkpoint, words)
    assert document["stride"] == 32
    out = output(run, "score", "--model", checkpoint, words)
    assert out.startswith(f"{checkpoint}, tied, on {words}\n")
    figures = "loss {nll:.4f}", "perplexity {perplexity:,.2f}", "bits per byte {bits_per_byte:.4f}"
    shown = [" ".join(line.split()) for line in out.splitlines()]
    assert shown[2:5] == [figure.format(**document) for figure in figures]
    for stride, n in ((32, 287), (64, 283)):
        text = " ".join(
            output(run, "score", "-m", checkpoint, "--stride", str(stride), words).split()
        )
        windows = f"in windows of up to 64 tokens, one every {stride}."
        assert f"The model predicted {n} of 288 tokens ({n} of 288 bytes), {windows}" in text


@pytest.mark.slow
@pytest.mark.parametrize(("head", "limit"), [("tied", 2.15), ("untied", 2.18)])
def test_score_of_the_shipped_models(run, shared, head, limit):
    """On the tenth of the corpus that they were not trained on."""
    corpus = (shared / "corpus" / "tinyshakespeare.txt").read_bytes()
    held_out = corpus[len(corpus) * 9 // 10 :]
    document = answer(
        run, "score", "--model", f"shakespeare-{head}", "--stride", "127", stdin=held_out
    )
    assert 1.5 < document["bits_per_byte"] < limit
