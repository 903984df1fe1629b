"""Command lines that are refused: in one line, before the weights are read, with nothing written.

To add one, add a row to the list of its command: the arguments as the command gets them, a part of
the error's line, and an id. MODEL stands for the path of a small checkpoint.
"""

import io
import sys

import pytest
from support.commands import assert_one_error_line

from tiedgpt import cli

MODEL = "<model>"
LONGEST_LINE = 2400  # characters of an error, also where an argument has a million
UNPRINTABLE = "\x1b\n\x9b\u202e"

# The commands that ask a model about a prompt
PROMPTED = ["generate", "next", "lens", "attribute"]


@pytest.fixture
def refused(run, checkpoint, tmp_path, monkeypatch):
    """refused(*arguments, stdin=bytes) -> the error's line, with MODEL for the model's path."""
    monkeypatch.chdir(tmp_path)

    def read_weights(*_, **__):
        pytest.fail("the weights are read")

    monkeypatch.setattr("tiedgpt.checkpoints.checkpoint.Checkpoint.load", read_weights)

    def refused(*arguments, stdin=b""):
        real_arguments = [argument.replace(MODEL, checkpoint) for argument in arguments]
        code, out, err = run(*real_arguments, stdin=stdin)
        assert (code, out) == (2, "")
        assert err.startswith("tiedgpt: error: ")
        assert err.endswith("\n")
        assert len(err) < LONGEST_LINE
        line = err.removesuffix("\n")
        assert line.isprintable(), "one line, and no control character in it"
        assert list(tmp_path.iterdir()) == [], "nothing is written"
        return line.replace(checkpoint, MODEL)

    return refused


# Names of commands and of flags, and the number of arguments

NAMES = [
    pytest.param(
        ["generat"],
        "no command 'generat'; did you mean generate? (try: tiedgpt -h)",
        id="command-mistyped",
    ),
    pytest.param(
        ["help"], "no command 'help'; did you mean -h? (try: tiedgpt -h)", id="command-help"
    ),
    pytest.param(
        ["run", "a"], "no command 'run'; did you mean generate?", id="command-of-another-program"
    ),
    pytest.param(["xyz"], "no command 'xyz' (try: tiedgpt -h)", id="command-unlike-any"),
    pytest.param(["serve"], "no command 'serve' (try: tiedgpt -h)", id="command-serve"),
    pytest.param(
        ["generate", "--file", "a"], "unknown flag --file (try: tiedgpt generate -h)", id="no-file"
    ),
    pytest.param(
        ["generate", "--interactive"],
        "unknown flag --interactive (try: tiedgpt generate -h)",
        id="no-interactive",
    ),
    pytest.param(
        ["--verson"],
        "unknown flag --verson; did you mean --version? (try: tiedgpt -h)",
        id="flag-mistyped-before-a-command",
    ),
    pytest.param(
        ["-q", "list"], "unknown flag -q (try: tiedgpt -h)", id="command's-flag-before-the-command"
    ),
    pytest.param(
        ["params", "--modl", "x"],
        "unknown flag --modl; did you mean --model? (try: tiedgpt params -h)",
        id="flag-mistyped",
    ),
    pytest.param(
        ["untie", "--sed=1"],
        "unknown flag --sed; did you mean --seed? (try: tiedgpt untie -h)",
        id="flag-mistyped-with-a-value",
    ),
    pytest.param(
        ["generate", "--temp", "1", "a"],
        "unknown flag --temp; did you mean --temperature? (try: tiedgpt generate -h)",
        id="flag-shortened",
    ),
    pytest.param(
        ["generate", "--top", "1", "a"],
        "unknown flag --top; did you mean --top-k or --top-p? (try: tiedgpt generate -h)",
        id="flag-that-begins-two-others",
    ),
    pytest.param(
        ["params", "-z"], "unknown flag -z (try: tiedgpt params -h)", id="flag-unlike-any"
    ),
    pytest.param(
        ["list", "x"], "unexpected argument x (try: tiedgpt list -h)", id="argument-too-many"
    ),
    pytest.param(
        ["generate", "--", "-x", "-n"],
        "unexpected argument -n: put the prompt in quotes (try: tiedgpt generate -h)",
        id="argument-too-many-after-two-dashes",
    ),
    pytest.param(["download"], "expected one MODEL, got 0", id="download-no-model"),
    pytest.param(["download", ""], "no model ''", id="download-empty-name"),
    pytest.param(
        ["download", "gpt2", "-m", "gpt2"], "expected one MODEL, got 2", id="download-two-models"
    ),
    pytest.param(
        ["params", "gpt2-xl", "-m", "gpt2"], "expected one MODEL, got 2", id="params-two-models"
    ),
    pytest.param(["score", ""], "'' is not the name of a file", id="score-empty-name-of-a-file"),
]


@pytest.mark.parametrize(("arguments", "message"), NAMES)
def test_names_of_commands_flags_and_arguments(refused, arguments, message):
    assert message in refused(*arguments)


@pytest.mark.parametrize("command", [[], ["score"]], ids=["as-a-command", "as-a-file"])
def test_a_very_long_argument_is_shortened(refused, command):
    assert "xxx ... xxx" in refused(*command, "x" * 1_000_000)


NOT_PRINTABLE = [
    pytest.param([UNPRINTABLE], id="command"),
    pytest.param([f"--{UNPRINTABLE}"], id="flag-before-a-command"),
    pytest.param(["params", f"--{UNPRINTABLE}"], id="flag"),
    pytest.param(["params", "--vocab", UNPRINTABLE], id="value-of-a-flag"),
    pytest.param(["score", "-m", MODEL, UNPRINTABLE], id="file"),
    pytest.param(["download", f"owner/{UNPRINTABLE}"], id="repository"),
    pytest.param(["untie", MODEL, "a", UNPRINTABLE], id="argument-too-many"),
]


@pytest.mark.parametrize("arguments", NOT_PRINTABLE)
def test_unprintable_characters_are_escaped(refused, arguments):
    assert r"\x1b\n\x9b\u202e" in refused(*arguments)


# Models

NO_MODEL = [
    pytest.param(["generate", "-m", "/nonexistent/\udcff", "a"], "no model", id="not-utf-8"),
    pytest.param(["generate", "-m", "x" * 300, "a"], "no model", id="longer-than-file-names"),
    pytest.param(
        ["generate", "-m", "~nobody-of-this-name/x", "a"], "no model", id="in-no-user's-home"
    ),
    pytest.param(["params", "gpt2-small"], "; did you mean gpt2?", id="another-name-of-gpt2"),
    pytest.param(
        ["study", MODEL, "no-such-model"], "no model 'no-such-model'", id="second-of-two-models"
    ),
]


@pytest.mark.parametrize(("arguments", "message"), NO_MODEL)
def test_a_model_that_is_not_there(refused, arguments, message):
    assert message in refused(*arguments)


# params

PARAMS = [
    pytest.param(
        ["params", "--vocab", "50000"], "both --vocab and --dim are needed", id="vocab-without-dim"
    ),
    pytest.param(
        ["params", "--vocab", "5", "--dim", "5", "--model", "gpt2"],
        "MODEL cannot be given with --vocab, --dim or --total",
        id="model-with-vocab",
    ),
    pytest.param(
        ["params", "--vocab", "1.5", "--dim", "5"],
        "--vocab: expected a whole number of at least 1, got '1.5'",
        id="vocab-not-whole",
    ),
    pytest.param(
        ["params", "--vocab", "50", "--dim", "4", "--total", "199"],
        "total 199 is less than the token embedding alone, 200",
        id="total-too-small",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), PARAMS)
def test_params(refused, arguments, message):
    assert message in refused(*arguments)


# tokenize

NOT_IDS = "--decode expects token ids, whole numbers, got '"
OUT_OF_RANGE = "is not a token id from 0 to 256"

TOKENIZE = [
    pytest.param(
        ["tokenize", "-m", MODEL, "one", "two"],
        "expected one TEXT, got 2: put it in quotes",
        id="text-without-quotes",
    ),
    pytest.param(["tokenize", "-m", MODEL, "--decode", "5", "x"], NOT_IDS, id="letter"),
    pytest.param(["tokenize", "-m", MODEL, "--decode", "--", "--x"], NOT_IDS, id="flag"),
    pytest.param(["tokenize", "-m", MODEL, "--decode"], NOT_IDS, id="empty-stdin"),
    pytest.param(["tokenize", "-m", MODEL, "--decode", "257"], OUT_OF_RANGE, id="id-too-high"),
    pytest.param(["tokenize", "-m", MODEL, "--decode", "--", "-1"], OUT_OF_RANGE, id="id-below-0"),
]


@pytest.mark.parametrize(("arguments", "message"), TOKENIZE)
def test_tokenize(refused, arguments, message):
    assert message in refused(*arguments)


# untie and tie

UNTIE_AND_TIE = [
    pytest.param(["untie"], "expected SRC and DST, got neither", id="untie-nothing"),
    pytest.param(["untie", MODEL], f"expected SRC and DST, got {MODEL}", id="untie-to-nowhere"),
    pytest.param(
        ["untie", "-m", MODEL, "a", "b"],
        f"expected SRC and DST, got {MODEL} a b",
        id="untie-three-directories",
    ),
    pytest.param(
        ["untie", MODEL, MODEL],
        "exists and is not empty; choose a new directory",
        id="untie-to-the-source",
    ),
    pytest.param(
        ["untie", MODEL, f"{MODEL}/config.json"],
        "Not a directory",
        id="untie-to-a-file",
    ),
    pytest.param(
        ["untie", MODEL, f"{MODEL}/config.json/x"],
        "Not a directory",
        id="untie-to-a-folder-in-a-file",
    ),
    pytest.param(
        ["untie", MODEL, "new", "--init", "ones"], "invalid choice: 'ones'", id="untie-init-unknown"
    ),
    pytest.param(["tie", MODEL, "new"], f"{MODEL} is tied already", id="tie-a-tied-model"),
    pytest.param(
        ["tie", "--init", "zeros", MODEL, "new"], "--init and --seed are for untie", id="tie-init"
    ),
]


@pytest.mark.parametrize(("arguments", "message"), UNTIE_AND_TIE)
def test_untie_and_tie(refused, arguments, message):
    assert message in refused(*arguments)


# Prompts and texts


@pytest.mark.parametrize("command", PROMPTED)
@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        pytest.param([""], b"", id="argument"),
        pytest.param([], b"", id="stdin"),
        pytest.param([], b"\n", id="a-line-end"),
        pytest.param(["-"], b"\r\n", id="another-line-end"),
    ],
)
def test_an_empty_prompt(refused, command, arguments, stdin):
    assert "the prompt is empty" in refused(command, "-m", MODEL, *arguments, stdin=stdin)


def test_an_empty_prompt_of_a_model_with_an_end_of_text_token(refused):
    message = refused("generate", "-m", MODEL, "")
    assert "needs at least one token to continue (to start from nothing: --allow-special" in message


@pytest.mark.parametrize("command", PROMPTED)
def test_a_prompt_longer_than_the_context(refused, command):
    message = refused(command, "-m", MODEL, "a" * 65)
    assert "65 tokens, more than the model's context of 64" in message


@pytest.mark.parametrize("command", [*PROMPTED, "tokenize"])
def test_a_special_token_in_a_text(refused, command):
    message = refused(command, "-m", MODEL, "<|endoftext|>")
    assert "the text holds <|endoftext|>; to read it as t" in message


READS_STDIN = [
    ["generate", "-m", MODEL],
    ["next", "-m", MODEL],
    ["score", "-m", MODEL],
    ["tokenize", "-m", MODEL],
    ["study", "--corpus", "-", MODEL],
]


@pytest.mark.parametrize("arguments", READS_STDIN, ids=lambda arguments: arguments[0])
def test_stdin_that_is_not_utf_8(refused, arguments):
    assert "stdin is not UTF-8 text at byte 2" in refused(*arguments, stdin=b"ab\xffcd")


@pytest.mark.parametrize(
    "words", ["tokenize", "score", "next", "train --out new", "generate", "generate --json"]
)
def test_no_text_on_a_terminal(tmp_path, monkeypatch, capsys, words):
    """No command waits for what is typed, but `generate` if stdout is a terminal, too."""
    monkeypatch.chdir(tmp_path)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    code = cli.main(words.split())
    out, err = capsys.readouterr()
    assert_one_error_line((code, out, err), "error: there is no text: give one, or pipe one in\n")
    assert list(tmp_path.iterdir()) == []


# generate

GENERATE = [
    pytest.param(["generate", "-m", MODEL, "\udcff"], "not valid UTF-8", id="prompt-not-utf-8"),
    pytest.param(
        ["generate", "-m", MODEL, "a" * 65],
        "to keep its last 32, add --truncate",
        id="prompt-too-long",
    ),
    pytest.param(
        ["generate", "-m", MODEL, "-n", "9", "a" * 65],
        "to keep its last 55, add --truncate",
        id="prompt-too-long-for-9-new-tokens",
    ),
    pytest.param(
        ["generate", "-m", MODEL, "-t", "-1", "a"], "--temperature must be", id="temperature"
    ),
    pytest.param(
        ["generate", "-m", MODEL, "-t", "x", "a"],
        "--temperature: expected a n",
        id="no-number",
    ),
    pytest.param(["generate", "-m", MODEL, "-p", "1.5", "a"], "--top-p must be", id="top-p"),
    pytest.param(["generate", "-m", MODEL, "-k", "-1", "a"], "--top-k must be", id="top-k"),
    pytest.param(["generate", "-m", MODEL, "-k", "1.5", "a"], "--top-k: expected a w", id="half"),
    pytest.param(["generate", "-m", MODEL, "--min-p", "2", "a"], "--min-p must be", id="min-p"),
    pytest.param(
        ["generate", "-m", MODEL, "--repetition-penalty", "0", "a"],
        "--repetition-penalty must be",
        id="penalty",
    ),
    pytest.param(
        ["generate", "-m", MODEL, "--echo", "--json", "a"], "--echo cannot be", id="echo-json"
    ),
    pytest.param(
        ["generate", "to", "be"], "unexpected argument be: put the prompt in quotes", id="words"
    ),
    pytest.param(
        ["generate", "-m", MODEL, "-s", "-1", "a"],
        "-s/--seed: expected a whole number of at least 0, got '-1'",
        id="seed-below-0",
    ),
    pytest.param(
        ["generate", "-m", MODEL, "--num-samples", "10001", "a"],
        "expected a whole number from 1 to 10000, got '10001'",
        id="too-many-samples",
    ),
    pytest.param(
        ["generate", "-m", MODEL, "--logprobs", "-1", "a"],
        "--logprobs: expected a whole number of at least 0",
        id="logprobs-below-0",
    ),
    pytest.param(
        ["generate", "-m", MODEL, "--stop", "", "a"],
        "--stop: expected a text that is not empty",
        id="empty-stop",
    ),
    pytest.param(
        ["generate", "-m", MODEL, "--head", "neither", "a"],
        "--head: invalid choice: 'neither'",
        id="head-unknown",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), GENERATE)
def test_generate(refused, arguments, message):
    assert message in refused(*arguments)


# next and attribute

NEXT_AND_ATTRIBUTE = [
    pytest.param(
        ["next", "-m", MODEL, "-k", "0", "a"],
        "-k/--top-k: expected a whole number of at least 1, got '0'",
        id="next-top-k-0",
    ),
    pytest.param(
        ["next", "--paths", "bc", "-m", MODEL],
        "'bc' is 2 tokens, 'b' 'c'; expected one token",
        id="next-paths-of-two-tokens",
    ),
    pytest.param(
        ["next", "-m", MODEL, "--paths", ""],
        "'' is empty; expected one token, as ' ' is",
        id="next-paths-of-nothing",
    ),
    pytest.param(
        ["attribute", "a", "bc", "-m", MODEL],
        "'bc' is 2 tokens, 'b' 'c'; expected one token",
        id="attribute-of-two-tokens",
    ),
    pytest.param(
        ["attribute", "a", "b", "--against", "bc", "-m", MODEL],
        "'bc' is 2 tokens, 'b' 'c'; expected one token",
        id="attribute-against-two-tokens",
    ),
    pytest.param(
        ["attribute", "-m", MODEL, "a", "--ablate", "x\ny"],
        r"'x\ny' is not a part that can be removed; the",
        id="attribute-without-an-unknown-part",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), NEXT_AND_ATTRIBUTE)
def test_next_and_attribute(refused, arguments, message):
    assert message in refused(*arguments)


# score

SCORE = [
    pytest.param(
        ["score", "-m", MODEL, "no-such-file"],
        b"",
        "no-such-file: No such file or directory",
        id="file-not-there",
    ),
    pytest.param(["score", "-m", MODEL, "."], b"", ".: Is a directory", id="file-is-a-directory"),
    pytest.param(
        ["score", "-m", MODEL],
        b"<|endoftext|>",
        "stdin: the text holds <|endoftext|>; to read it as that token, add --allow-spec",
        id="special-token-in-the-text",
    ),
    pytest.param(
        ["score", "-m", MODEL],
        b"a",
        "stdin: a score needs two tokens or more, got 1",
        id="one-token",
    ),
    pytest.param(
        ["score", "-m", MODEL, "--stride", "0"],
        b"ab",
        "--stride: expected a whole number of at least 1, got '0'",
        id="stride-0",
    ),
    pytest.param(
        ["score", "-m", MODEL, "--stride", "65"],
        b"ab",
        "stride must be a whole number from 1 to the model's context of 64, got 65",
        id="stride-longer-than-the-context",
    ),
]


@pytest.mark.parametrize(("arguments", "text", "message"), SCORE)
def test_score(refused, arguments, text, message):
    assert message in refused(*arguments, stdin=text)
