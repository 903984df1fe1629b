"""Command lines that are refused: one line that names the flag, field, file, model or token.

Each is refused before the weights are read, with nothing written. Most refusals are in the
transcript, with their whole sentences. Here are those whose words a text file cannot hold, or whose
sentence depends on the machine or is that of another line. MODEL stands for the path of a small
tied checkpoint, whose tokens are bytes and whose context is 64 tokens.
"""

import io
import re
import shlex
import sys

import pytest
from support.commands import assert_one_error_line

from tiedgpt import Tokenizer, cli
from tiedgpt.cli.inputs import single_token
from tiedgpt.errors import ArgumentError

LONGEST_LINE = 2400  # characters of an error, also where an argument has a million
UNPRINTABLE = "\x1b\n\x9b\u202e"

# The commands that ask a model about a prompt
PROMPTED = ["generate", "next", "lens", "attribute"]

# A command line -> what its error names
REFUSED = {
    # Names of commands and flags, and the number of arguments
    "run a": "did you mean generate?",
    "xyz": "no command 'xyz' (",
    "generate --file a": "unknown flag --file (",
    "untie --sed=1": "did you mean --seed?",
    "generate --temp 1 a": "did you mean --temperature?",
    "params -z -y": "unknown flag -z (",
    "generate -- -x -n": "unexpected argument -n: put the prompt in quotes",
    "download ''": "no model ''",
    # Models
    "generate -m /nonexistent/\udcff a": "no model '/nonexistent/",
    f"generate -m {'x' * 300} a": "no model 'xxx",
    "generate -m ~nobody-of-this-name/x a": "no model '~nobody-of-this-name/x'",
    "study MODEL no-such-model": "no model 'no-such-model'",
    # Numbers: one of each flag, and each kind of wrong text
    "params --vocab 5 --dim 1e19": "--dim must be",
    "params --vocab 5 --dim 5 --total -1": "--total must be",
    "resize MODEL new --vocab-size 300 --init random --seed -1": "--seed must be",
    "train --out new --n-layer -1": "--n-layer must be",
    # Flags that do not fit each other or have another value
    "tie --init zeros MODEL new": "unknown flag --init",
    # What an experiment in Python may set, and no flag does
    "train --out new --warm-up 5": "unknown flag --warm-up",
    # Directories
    "untie -m MODEL a b": "expected SRC and DST, got MODEL a b",
    "untie MODEL MODEL": "MODEL exists and is not empty",
    "untie MODEL MODEL/config.json": "MODEL/config.json",
    "untie MODEL MODEL/config.json/x": "MODEL/config.json",
    # Texts, tokens and files
    # No command line has these two characters. A program that calls `cli.main` may have them.
    "score -m MODEL a\0b": "'a\\x00b' is not the name of a file",
    "score -m MODEL \ud800": "'\\ud800' is not the name of a file",
    "train a\0b --out new": "'a\\x00b' is not the name of a file",
    "compare -m MODEL a\0b.safetensors": "'a\\x00b.safetensors' is not the name of a file",
    "untie MODEL \ud800": "'\\ud800' is not the name of a file",
    "explore MODEL --corpus no-such-file": "no-such-file: no such file",
    "generate -m MODEL \udcff": "not valid UTF-8",
    f"generate -m MODEL {'a' * 65}": "to keep its last 32, add --truncate",
    f"generate -m MODEL -n 9 {'a' * 65}": "to keep its last 55, add --truncate",
    "generate -m MODEL --num-samples 10001 a": "10001",
    "generate -m MODEL --logprobs -1 a": "-1",
    "tokenize -m MODEL --decode 5 x": "--decode expects token ids",
    "tokenize -m MODEL --decode -- --x": "--decode expects token ids",
    "tokenize -m MODEL --decode": "--decode expects token ids",
    "tokenize -m MODEL --decode ٣": "--decode expects token ids",  # a 3 that is not ASCII
    "tokenize -m MODEL --decode -- -1": "-1 is not a token id",
}


@pytest.fixture
def refused(run, checkpoint, tmp_path, monkeypatch):
    """refused(command line, stdin) -> the error's line, with MODEL for the model's path."""
    monkeypatch.chdir(tmp_path)

    def read_weights(*_, **__):
        pytest.fail("the weights are read")

    monkeypatch.setattr("tiedgpt.checkpoints.Opened.model", read_weights)

    def refused(line, stdin=b""):
        words = shlex.split(line) if isinstance(line, str) else line
        words = [word.replace("MODEL", checkpoint) for word in words]
        code, out, err = run(*words, stdin=stdin)
        assert (code, out) == (2, ""), err
        assert err.startswith("tiedgpt: error: ")
        assert err.endswith("\n")
        assert len(err) < LONGEST_LINE
        message = err.removesuffix("\n")
        assert message.isprintable(), "one line, and no control character in it"
        assert list(tmp_path.iterdir()) == [], "nothing is written"
        return message.replace(checkpoint, "MODEL")

    return refused


@pytest.mark.parametrize("line", REFUSED)
def test_the_error_names_what_is_wrong(refused, line):
    assert REFUSED[line] in refused(line, stdin=b"abc" if "decode" not in line else b"")


@pytest.mark.parametrize("command", [[], ["score"]], ids=["as-a-command", "as-a-file"])
def test_a_very_long_argument_is_shortened(refused, command):
    assert "xxx ... xxx" in refused([*command, "x" * 100_000])


@pytest.mark.parametrize(
    "words",
    [
        [UNPRINTABLE],
        [f"--{UNPRINTABLE}"],
        ["params", f"--{UNPRINTABLE}"],
        ["params", "--vocab", UNPRINTABLE],
        ["score", "-m", "MODEL", UNPRINTABLE],
        ["download", f"owner/{UNPRINTABLE}"],
        ["untie", "MODEL", "a", UNPRINTABLE],
    ],
)
def test_unprintable_characters_are_escaped(refused, words):
    assert r"\x1b\n\x9b\u202e" in refused(words)


@pytest.mark.parametrize("command", PROMPTED)
@pytest.mark.parametrize("stdin", [b"", b"\n", b"\r\n"])
def test_an_empty_prompt(refused, command, stdin):
    assert "the prompt is empty" in refused(f"{command} -m MODEL -", stdin)


@pytest.mark.parametrize("command", PROMPTED)
def test_a_prompt_longer_than_the_context(refused, command):
    assert "65 tokens, more than the model's context of 64" in refused(
        f"{command} -m MODEL {'a' * 65}"
    )


@pytest.mark.parametrize("command", [*PROMPTED, "tokenize"])
def test_a_special_token_in_a_text(refused, command):
    message = refused(f"{command} -m MODEL '<|endoftext|>'")
    assert "the text holds <|endoftext|>; to read it as that token, add --allow-special" in message


@pytest.mark.parametrize("text", [b"<|endoftext|>", b"a", b""])
def test_a_text_that_has_no_score(refused, text):
    assert "error: stdin: " in refused("score -m MODEL", text)


@pytest.mark.parametrize(
    "line",
    [*(f"{command} -m MODEL" for command in [*PROMPTED, "tokenize", "score"]), "study --corpus -"],
)
def test_stdin_that_is_not_utf_8(refused, line):
    assert "stdin is not UTF-8 text at byte 2" in refused(line, b"ab\xffcd")


@pytest.mark.parametrize(
    ("words", "stdout_is_terminal"),
    [
        ("tokenize", True),
        ("score", True),
        ("next", True),
        ("train --out new", True),
        ("generate", False),
        ("generate --json", True),
    ],
)
def test_no_text_on_a_terminal(tmp_path, monkeypatch, capsys, words, stdout_is_terminal):
    """No command waits for what is typed, but `generate` if stdout is a terminal, too."""
    monkeypatch.chdir(tmp_path)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: stdout_is_terminal)
    code = cli.main(words.split())
    out, err = capsys.readouterr()
    assert_one_error_line((code, out, err), "error: there is no text: give one, or pipe one in\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("length", "end"), [(8, "; "), (9, r" \.\.\.; ")])
def test_the_first_eight_tokens_of_a_text_that_is_not_one_are_listed(length, end):
    eight = " ".join(["'a'"] * 8)
    message = re.escape(f"'{'a' * length}' is {length} tokens, {eight}") + end
    with pytest.raises(ArgumentError, match=f"^{message}expected one token$"):
        single_token(Tokenizer([]), 257, "a" * length, False)
