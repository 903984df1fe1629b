"""The command line as a whole: help, messages, streams, Ctrl-C, imports, progress.

What is refused is in test_cli_refused.py, and what each command prints in the other test_cli_*.py.
"""

import argparse
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.checkpoint_files import write_tensors
from support.commands import answer, assert_one_error_line, command, output
from support.models import CONFIG, random_model

import tiedgpt
from tiedgpt import TiedGPTError, Tokenizer, cli
from tiedgpt.cli import options
from tiedgpt.cli.output import (
    ProgressBar,
    end_of_prompt,
    fill,
    percent,
    print_json,
    print_table,
    printable,
    quoted_token,
)
from tiedgpt.errors import TiedGPTWarning

# Flags and help


def test_flags_may_stand_between_two_directories(run, checkpoint, tmp_path):
    new = str(tmp_path / "new")
    assert run("untie", checkpoint, "--init", "zeros", new, "--seed=0", "-q") == (0, "", "")


def test_flags_may_stand_between_an_argument_and_one_that_may_be_left_out(run, checkpoint):
    between = run("attribute", "a", "-m", checkpoint, "b", "--json")
    after = run("attribute", "a", "b", "-m", checkpoint, "--json")
    assert between == after


def test_a_prompt_may_begin_with_dashes(run, checkpoint):
    """A flag has no space."""
    assert answer(run, "next", "-m", checkpoint, "--no flag")["prompt"] == "--no flag"


def test_flags_may_stand_between_arguments_of_any_number(run, checkpoint):
    """The tokens 65 and 66 of the checkpoint are the letters b and c."""
    assert output(run, "tokenize", "--decode", "65", "-m", checkpoint, "66") == "bc\n"


def test_version(run):
    assert run("--version") == (0, f"tiedgpt {tiedgpt.__version__}\n", "")


def test_without_arguments_they_are_those_of_the_process(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tiedgpt", "--version"])
    assert cli.main() == 0
    assert capsys.readouterr().out == f"tiedgpt {tiedgpt.__version__}\n"


def test_help_is_a_command_too(run):
    assert output(run, "help") == output(run, "-h")
    assert output(run, "help", "generate") == output(run, "generate", "-h")


def test_help_lists_the_commands(run):
    page = output(run, "-h")
    assert run() == run("--help") == (0, page, "")
    _, _, after = page.partition("\ncommands:\n")
    listed = after.partition("\n\n")[0].splitlines()
    assert len(listed) == len(cli.COMMANDS), "each has one line of 80 columns"


def test_without_docstrings_pages_have_the_flags(run, monkeypatch):
    """As under `python -OO`."""
    monkeypatch.setattr("tiedgpt.cli.tokenize.__doc__", None)
    monkeypatch.setattr("tiedgpt.cli.prompt.run_next.__doc__", None)
    assert "\n  next " in output(run, "-h")
    assert "--decode" in output(run, "tokenize", "-h")
    assert "--paths" in output(run, "next", "-h")


IN_OTHER_PROGRAMS = {  # a command of another program -> ours
    "run": "generate",
    "chat": "generate",
    "pull": "download",
    "ls": "list",
    "eval": "score",
    "finetune": "train",
    "version": "--version",
}


@pytest.mark.parametrize("name", IN_OTHER_PROGRAMS)
def test_a_command_of_another_program_is_answered_with_ours(run, name):
    result = run(name, "gpt2")
    assert_one_error_line(result, f"no command '{name}'; did you mean {IN_OTHER_PROGRAMS[name]}?")


def test_a_character_that_a_terminal_has_not_becomes_a_question_mark(monkeypatch):
    """stderr keeps its encoding. stdout, which is no terminal here, is UTF-8."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert cli.main(["caf\u00e9"]) == 2
    sys.stderr.flush()
    assert b"no command 'caf?'" in sys.stderr.buffer.getvalue()
    print("caf\u00e9", flush=True)
    assert sys.stdout.buffer.getvalue() == "caf\u00e9\n".encode()


def test_a_terminal_keeps_its_encoding(monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", stdout)
    assert cli.main(["--version"]) == 0
    print("caf\u00e9", flush=True)
    assert stdout.buffer.getvalue().endswith(b"\ncaf?\n")


def test_the_escapes_of_a_text_at_which_a_sample_stops():
    assert options.stop_text(r"a\n\r\t\\b\x") == "a\n\r\t\\b\\x"


@pytest.mark.parametrize(
    "words",
    [["gpt2", "gpt2-xl"], ["-m", "gpt2", "-m", "gpt2-xl"], ["gpt2", "-m", "gpt2-xl"]],
    ids=" ".join,
)
def test_several_models_are_arguments_or_flags(run, words):
    models = json.loads(output(run, "params", "--json", *words))["models"]
    assert [report["model"] for report in models] == ["gpt2", "gpt2-xl"]


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "0.0%"), (0.0004, "<0.1%"), (0.0006, "0.1%"), (0.00094, "0.1%"), (0.125, "12.5%")],
)
def test_a_small_share_is_rounded_and_not_to_0(share, shown):
    assert percent(share) == shown


def test_a_small_change_has_its_sign():
    assert (percent(0.0004, sign="+"), percent(-0.0004, sign="+")) == ("+0.0%", "-0.0%")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_has_not_is_null(capsys, number):
    print_json({"a": [number, 1.5], "b": {"c": number}})
    assert capsys.readouterr().out == '{"a": [null, 1.5], "b": {"c": null}}\n'


NUMBER_FLAGS = {
    "generate": (
        "--logprobs --max-new-tokens --min-p --num-samples --repetition-penalty --seed "
        "--temperature --top-k --top-p"
    ),
    "train": (
        "--batch --context --dropout --eval-every --initializer-range --lr --n-embd --n-head "
        "--n-layer --seed --steps --vocab-size"
    ),
    "score": "--stride",
    "documents": "--stride",
    "params": "--dim --total --vocab",
    "untie": "--seed",
    "resize": "--seed --vocab-size",
    "next": "--top-k",
    "compare": "--trials",
    "explore": "--port",
}


@pytest.mark.parametrize(
    ("command", "flag"),
    [(command, flag) for command, flags in NUMBER_FLAGS.items() for flag in flags.split()],
)
def test_a_flag_that_takes_a_number_refuses_a_text(run, command, flag):
    result = run(command, flag, "1.5x")
    assert_one_error_line(result, f"{flag}: expected a ")
    assert "number, got '1.5x'" in result[2]


@pytest.mark.parametrize("width", [40, 80])
def test_only_commands_stand_where_commands_stand(run, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    _, _, after = output(run, "-h").partition("\ncommands:\n")
    listed = after.partition("\n\n")[0]
    assert re.findall(r"^  (\S+)", listed, re.M) == list(cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_examples_of_a_help_page_are_valid(run, name):
    page = output(run, *name.split(), "-h")
    examples = page.partition("\nexamples:\n")[2]
    for line in examples.splitlines():
        # The command may be one of several in a pipe.
        _before, _, from_the_command_on = line.rpartition("tiedgpt ")
        words, _, _after = from_the_command_on.partition(" | ")
        assert cli.parse(shlex.split(words))


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_fits_narrow_terminals(run, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "60")
    page = output(run, *name.split(), "-h")
    above_examples = page.partition("\nexamples:\n")[0]
    assert max(len(line) for line in above_examples.splitlines()) <= 60


EOT = "<|endoftext|>"
READERS = [  # of a special token: in a prompt, a token, or a file
    ["generate", "-n", "1", EOT],
    ["next", EOT],
    ["next", "--paths", EOT],
    ["lens", EOT],
    ["attribute", EOT],
    ["attribute", "a", EOT],
    ["attribute", "a", "b", "--against", EOT],
    ["tokenize", EOT],
    ["score", "FILE"],
    ["study", "--corpus", "FILE"],
    ["train", "FILE", "--out", "new", "--from", "MODEL", "--steps", "1", "--context", "4"],
    ["train", "HELD OUT", "--out", "new", "--from", "MODEL", "--steps", "1", "--context", "4"],
]


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_a_special_token_is_read_if_that_is_allowed(run, checkpoint, tmp_path, monkeypatch, words):
    """The last tenth of a text to train on is held out."""
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text(EOT + "a text" * 40)
    Path("HELD OUT").write_text("a text" * 40 + EOT)
    Path("MODEL").symlink_to(checkpoint)
    model = [] if words[0] == "train" else ["-m", "MODEL"]
    code, _, err = run(*words, *model, "-q")
    assert code == 2
    assert f"{EOT}; to read it as that token, add --allow-special" in err
    code, _, err = run(*words, *model, "--allow-special")
    assert code == 0, err


# Text that fits the terminal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  one two three four", "  one two three\n  four"),
        ("  /a/path/that/is/longer", "  /a/path/that/is/longer"),
        ("\none\n", "\none\n"),
        ("one-two three-four five", "one-two\nthree-four five"),
    ],
)
def test_each_line_keeps_its_indent(text, expected):
    assert fill(text, width=16) == expected
    assert fill(text, width=0) == expected, "a terminal may say that it has 0 columns"


def test_captions_of_a_table_have_80_columns_at_most(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    print_table(["word " * 30, ("a", "1")])
    first, *_ = capsys.readouterr().out.splitlines()
    assert len(first) in range(76, 81)


def test_what_is_longer_than_its_room_is_cut():
    assert end_of_prompt("a" * 30) == repr("a" * 30)
    assert end_of_prompt("a" * 31) == f"...{'a' * 27!r}"
    tokens = Tokenizer([], {"b" * 22: 256, "b" * 23: 257})
    assert quoted_token(tokens, 256) == repr("b" * 22)
    assert quoted_token(tokens, 257) == f"'{'b' * 20}..."


# Numbers as text of a flag


def test_the_text_of_a_number():
    assert options.whole_number("7e3") == 7000
    assert options.whole_number("1000000000000000001") == 10**18 + 1, "not by way of a float"
    assert options.whole_number("4.1k") == 4100, "not by way of a float"
    assert options.whole_number("7B") == 7 * 10**9
    assert options.whole_number("1.5m") == 1_500_000
    assert options.whole_number("2T") == 2 * 10**12
    assert options.whole_number("50K") == options.whole_number("50k") == 50_000
    assert options.whole_number("38,597,376") == 38_597_376, "as it is printed"
    assert options.any_number("3e-4") == 3e-4


def test_a_text_of_an_argument_is_utf_8():
    """Under the C locale, Python gives the bytes that are not ASCII one by one."""
    assert options.utf8_text("caf\udcc3\udca9") == "caf\u00e9"


@pytest.mark.parametrize("text", ["50.000", "123.456", "1.500.000"])
def test_a_point_that_may_group_digits_is_not_read(text):
    with pytest.raises(argparse.ArgumentTypeError, match="write it without a point"):
        options.whole_number(text)


@pytest.mark.parametrize(
    "text",
    [
        "1.5",
        "1.0001k",
        "k",
        "1kk",
        "1e400",
        "nan",
        "inf",
        "x",
        "",
        "\x1b",
        "1,5",
        "\u0661,000",
        "9" * 5000,
    ],
)
def test_the_text_of_no_whole_number(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"^expected a whole number, got '"):
        options.whole_number(text)


# Messages

HOSTILE = "a\nb\x1b[31m\x9b\u202e"
FOLDER = "<folder>"  # stands for the path of the folder `hostile`
HOSTILE_NAMES = [
    pytest.param(["params", "-m", f"{FOLDER}/model"], 0, id="model"),
    pytest.param(["params", f"{FOLDER}/model", f"{FOLDER}/gpt2"], 0, id="models"),
    pytest.param(["check", f"{FOLDER}/other"], 1, id="checked"),
    pytest.param(["tokenize", "-m", f"{FOLDER}/model", f"<{HOSTILE}>"], 2, id="special-token"),
    pytest.param(
        ["tokenize", "-m", f"{FOLDER}/model", "--allow-special", f"<{HOSTILE}>{HOSTILE}"],
        0,
        id="token",
    ),
    pytest.param(["tokenize", "-m", f"{FOLDER}/model", "--decode", "256"], 0, id="decoded"),
    pytest.param(["tokenize", "-m", f"{FOLDER}/bare", "a"], 2, id="model-without-a-tokenizer"),
    pytest.param(["list"], 0, id="models-in-a-list"),
    pytest.param(["untie", f"{FOLDER}/bare", f"{FOLDER}/new"], 0, id="new-model"),
    pytest.param(
        ["untie", f"{FOLDER}/model", f"{FOLDER}/model/config.json/{HOSTILE}"], 2, id="file"
    ),
    pytest.param(
        ["resize", f"{FOLDER}/bare", f"{FOLDER}/larger", "--vocab-size", "300"], 0, id="copy"
    ),
    pytest.param(["params", "-m", f"{FOLDER}/other"], 2, id="another-kind"),
    pytest.param(["generate", "-m", f"{FOLDER}/names", "-n", "1", "a"], 2, id="tensors"),
    pytest.param(
        ["generate", "-m", f"{FOLDER}/model", "-n", "1", "--echo", HOSTILE], 0, id="settings"
    ),
    pytest.param(["next", "-m", f"{FOLDER}/model", "a"], 0, id="next"),
    pytest.param(["lens", "-m", f"{FOLDER}/model", "a"], 0, id="lens"),
    pytest.param(["attribute", "-m", f"{FOLDER}/model", "a"], 0, id="attribute"),
    pytest.param(["score", "-m", f"{FOLDER}/model", f"{FOLDER}/text"], 0, id="score"),
    pytest.param(["study", f"{FOLDER}/model"], 0, id="study"),
    pytest.param(["compare", "-m", f"{FOLDER}/model", f"{FOLDER}/file.npz"], 2, id="arrays"),
    pytest.param(
        ["train", f"{FOLDER}/text", "--from", f"{FOLDER}/model", "--out", f"{FOLDER}/trained"]
        + ["--steps", "1", "--batch", "1", "-q"],
        0,
        id="train",
    ),
]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A folder of models. Its name is a HOSTILE text, and so are names in each of its files."""
    folder = tmp_path_factory.mktemp("names") / HOSTILE
    tokenizer = Tokenizer([], {f"<{HOSTILE}>": 256})
    tiedgpt.save_model(random_model(CONFIG), tokenizer, folder / "model")
    tiedgpt.save_model(random_model(CONFIG), None, folder / "bare")
    # `list` shows the model gpt2, and says that gpt2-xl has an unknown model type.
    shutil.copytree(folder / "model", folder / "gpt2")
    shutil.copytree(folder / "model", folder / "gpt2-xl")
    (folder / "gpt2-xl" / "config.json").write_text(json.dumps({"model_type": HOSTILE}))
    for file in ("generation_config.json", "adapter_config.json"):
        (folder / "model" / file).write_text(json.dumps({HOSTILE: 1, "peft_type": HOSTILE}))
    tensors = random_model(CONFIG).parameters
    write_tensors(
        folder / "names", {HOSTILE + name: array for name, array in tensors.items()}, CONFIG
    )
    for file in ("merges.txt", "vocab.json"):
        shutil.copy(folder / "model" / file, folder / "names")
    kind = {"model_type": HOSTILE, "architectures": [HOSTILE], "vocab_size": 257, "hidden_size": 21}
    matrix = np.ones((257, 21), np.float32)
    write_tensors(folder / "other", {"model.embed_tokens.weight": matrix, HOSTILE: matrix})
    (folder / "other" / "config.json").write_text(json.dumps(kind))
    np.savez(folder / "file.npz", **{"ids": [1], HOSTILE: [1.0]})
    (folder / "text").write_text("a text to be read\n" * 99)
    return folder


@pytest.mark.filterwarnings("default::tiedgpt.errors.TiedGPTWarning")  # which become notes
@pytest.mark.parametrize(("arguments", "expected_code"), HOSTILE_NAMES)
def test_output_and_messages_hold_no_escape_codes(
    run, hostile, monkeypatch, arguments, expected_code
):
    """Each message is one line that begins with "tiedgpt: ". stdout is a terminal."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(hostile))
    code, out, err = run(*[argument.replace(FOLDER, str(hostile)) for argument in arguments])
    assert code == expected_code, err
    assert "[31m" in out + err, "a hostile name is shown"
    for line in out.splitlines():
        assert line.isprintable()
    *messages, after_the_last_line = err.split("\n")
    assert after_the_last_line == ""
    for message in messages:
        assert message.startswith(("tiedgpt: note: ", "tiedgpt: error: "))
        assert message.isprintable()
    if code == 2:
        assert err.count("tiedgpt: error: ") == 1
    else:
        assert "tiedgpt: error: " not in err


@pytest.mark.parametrize("kind", [TiedGPTError, *TiedGPTError.__subclasses__(), TiedGPTWarning])
def test_an_error_is_printable(kind):
    assert str(kind(HOSTILE)).isprintable()


def test_printable_text_keeps_its_lines_and_tabs(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    text = printable("a\x1b[2Jb\x07\tc\n\x9b\x7f\u202e\u2066\u2028é")
    assert text == "a\ufffd[2Jb\ufffd\tc\n\ufffd\ufffd\ufffd\ufffd\u2028é"
    ends = "\x00\x1f\x80\x9f\u202a\u2069"  # of the ranges
    beside_them = " ~\xa0\u2029\u202f\u2065\u206a"
    assert printable(ends + beside_them) == "\ufffd" * len(ends) + beside_them


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["next", "a"], id="next"),
        pytest.param(["attribute", "a"], id="attribute"),
        pytest.param(["attribute", "a", "b", "--ablate", "mlp.0"], id="attribute-ablate"),
        pytest.param(["score", "text.txt"], id="score"),
        pytest.param(["score", "text.txt", "--tokens"], id="score-tokens"),
    ],
)
def test_a_model_with_nan_is_damaged(run, checkpoint, save, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("To be, or not to be")
    model = tiedgpt.load_model(checkpoint)
    model.parameters["wpe.weight"][:] = np.nan
    damaged = save("damaged", model)
    assert_one_error_line(run(*arguments, "-m", damaged), "checkpoint is damaged")


@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["generate", "a"], id="generate"),
        pytest.param(["next", "a"], id="next"),
        pytest.param(["next", "a", "--paths"], id="next-paths"),
        pytest.param(["attribute", "a"], id="attribute"),
        pytest.param(["score", "text.txt"], id="score"),
        pytest.param(["score", "text.txt", "--tokens"], id="score-tokens"),
    ],
)
def test_a_model_with_an_infinite_number_in_the_output_matrix_is_damaged(
    run, checkpoint, save, tmp_path, monkeypatch, arguments, infinity
):
    """With one of the two signs, the last token's logit is -inf, and the others look right."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("To be, or not to be")
    model = tiedgpt.load_model(checkpoint, head="untied")
    model.parameters["lm_head.weight"][-1, 0] = infinity
    damaged = save("damaged", model)
    with np.errstate(invalid="ignore"):
        result = run(*arguments, "-m", damaged)
    assert_one_error_line(result, "checkpoint is damaged")


def test_a_model_of_which_a_part_is_missing(run, checkpoint, save):
    damaged = save("damaged", tiedgpt.load_model(checkpoint))
    os.truncate(f"{damaged}/model.safetensors", 5000)
    assert_one_error_line(
        run("generate", "-m", damaged, "a"), "model.safetensors: damaged: truncated"
    )


def test_a_file_that_is_not_a_model(run):
    message = "test_cli.py is not a checkpoint: expected a direct"
    assert_one_error_line(run("next", "-m", __file__, "a"), message)


# Streams that are full or closed


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [["tokenize", "-h"], ["tokenize", "-m", "CHECKPOINT", "a"]])
def test_a_disk_that_is_full_is_an_error(capsys, monkeypatch, checkpoint, words):
    """What could not be written is dropped: to close the file is no error any more."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code = cli.main([checkpoint if word == "CHECKPOINT" else word for word in words])
    assert code == 2
    assert capsys.readouterr().err == "tiedgpt: error: No space left on device\n"


def test_a_pipe_that_is_closed_ends_a_command_quietly(capsys, monkeypatch, checkpoint):
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        code = cli.main(["tokenize", "-m", checkpoint, "a"])
    assert code == 141  # as a shell reports SIGPIPE
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_stream_that_the_caller_has_closed_is_not_needed(monkeypatch, checkpoint, name):
    """Python has None in its place."""
    monkeypatch.setattr(sys, name, None)
    assert cli.main(["tokenize", "-m", checkpoint, "a"]) == 0
    if name == "stdin":
        assert cli.main(["tokenize", "-m", checkpoint]) == 0, "it is read as an empty text"
    getattr(sys, name).close()


def run_in_a_shell(line, checkpoint):
    """Run a line of shell in which `tiedgpt` is our command, and $CHECKPOINT is a path."""
    function = f'tiedgpt() {{ {shlex.join(command())} "$@"; }}'
    return subprocess.run(
        f"{function}\n{line}",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        # Without PYTHONUNBUFFERED, stdout has a buffer, which Python writes again at its exit.
        env={**os.environ, "PYTHONUNBUFFERED": "", "CHECKPOINT": checkpoint},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("tiedgpt tokenize -h >/dev/full", id="help"),
        pytest.param("tiedgpt tokenize -m $CHECKPOINT a >/dev/full", id="answer"),
    ],
)
def test_an_answer_that_cannot_be_written_is_an_error(checkpoint, line):
    done = run_in_a_shell(line, checkpoint)
    assert done.returncode == 2
    assert done.stderr == "tiedgpt: error: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        pytest.param("tiedgpt tokenize -m $CHECKPOINT a | true", id="stdout-to-a-closed-pipe"),
        pytest.param("tiedgpt tokenize -m $CHECKPOINT a >&-", id="stdout-closed"),
        pytest.param("tiedgpt tokenize -m $CHECKPOINT a <&-", id="stdin-closed"),
    ],
)
def test_streams_that_are_not_needed_may_be_closed(checkpoint, line):
    done = run_in_a_shell(line, checkpoint)
    assert done.returncode == 0
    assert done.stderr == ""


# Ctrl-C


# The first program imports a module that Ctrl-C interrupts, with an import that turns
# KeyboardInterrupt into another error. In the second, Ctrl-C comes while Python ends. The third was
# started so that it ignores Ctrl-C, as by `tiedgpt ... &` in a shell script.
PRESS = "signal.raise_signal(signal.SIGINT)"
MOMENTS = [
    pytest.param(f"cli.import_module = lambda *_: {PRESS}", -signal.SIGINT, id="import"),
    pytest.param(f"atexit.register(lambda: {PRESS})", 0, id="exit", marks=pytest.mark.slow),
    pytest.param(
        f"signal.signal(signal.SIGINT, signal.SIG_IGN); {PRESS}; atexit.register(lambda: {PRESS})",
        0,
        id="ignored",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("preparation", "code"), MOMENTS)
def test_ctrl_c_before_and_after_a_command(preparation, code):
    program = f"""
import atexit, signal, sys
from tiedgpt import __main__, cli
signal.signal(signal.SIGINT, signal.default_int_handler)
{preparation}
sys.argv[1:] = ["list"]
sys.exit(__main__.main())
"""
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert done.stderr == ""


# Imports


def run_python(code):
    """Run a program in a new process; it must not fail."""
    words = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_entry_imports_nothing_before_it_handles_ctrl_c():
    run_python("""
        import signal, sys
        before = set(sys.modules)
        import tiedgpt.__main__
        new = {name for name in set(sys.modules) - before if not name.startswith("tiedgpt")}
        assert not new, new
    """)


def test_a_command_imports_no_other_library_and_no_other_command():
    """The program that runs it keeps its own handler of Ctrl-C."""
    run_python("""
        import signal, sys
        handler = signal.getsignal(signal.SIGINT)
        import tiedgpt.__main__
        import tiedgpt.cli
        tiedgpt.cli.main(["tokenize", "-m", "shakespeare-tied", "--json", "a"])
        assert signal.getsignal(signal.SIGINT) is handler
        libraries = "torch transformers tiktoken safetensors requests tqdm matplotlib http.client"
        ours = "tiedgpt.training tiedgpt.study tiedgpt.cli.generate tiedgpt.checkpoints.pickles"
        assert not sys.modules.keys() & {*libraries.split(), *ours.split()}
    """)


# Progress


@pytest.fixture
def stderr_at_half(monkeypatch):
    """stderr_at_half(is_terminal) -> what is on stderr after half of the work."""

    def stderr_at_half(is_terminal):
        stderr = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setattr(stderr, "isatty", lambda: is_terminal)
        with ProgressBar("loading a\nb", total=10, unit="B") as progress:
            time.sleep(0.001)  # so that more than 0 seconds pass
            progress.add(5)
            return stderr.getvalue()

    return stderr_at_half


def test_on_a_terminal_progress_is_a_bar_after_a_delay(stderr_at_half, monkeypatch):
    monkeypatch.setattr(ProgressBar, "DELAY", 0)
    assert r"loading a\nb:  50%" in stderr_at_half(is_terminal=True)
    monkeypatch.setattr(ProgressBar, "DELAY", 3600)
    assert stderr_at_half(is_terminal=True) == ""


def test_in_a_file_progress_is_a_line_after_each_interval(stderr_at_half, monkeypatch):
    monkeypatch.setattr(ProgressBar, "DELAY", 0)
    monkeypatch.setattr(ProgressBar, "INTERVAL", 3600)
    assert stderr_at_half(is_terminal=False) == ""
    monkeypatch.setattr(ProgressBar, "INTERVAL", 0)
    assert stderr_at_half(is_terminal=False) == "tiedgpt: note: loading a\\nb: 50% after 0 min\n"


@pytest.mark.parametrize(("is_terminal", "seconds"), [(True, 1), (False, 60)])
def test_when_progress_is_shown(monkeypatch, is_terminal, seconds):
    """A bar after a second, a line each minute."""
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(stderr, "isatty", lambda: is_terminal)
    clock = SimpleNamespace(seconds=100.0)
    clock_of_bar = SimpleNamespace(monotonic=lambda: clock.seconds)
    monkeypatch.setattr("tiedgpt.cli.output.time", clock_of_bar)
    with ProgressBar("loading", 10, "token", start=100.0, last_line=100.0) as progress:
        clock.seconds += 0.99 * seconds
        progress.add(2)
        assert stderr.getvalue() == ""
        clock.seconds += 0.02 * seconds
        progress.add(3)
        assert "loading: " in stderr.getvalue()
        assert "50%" in stderr.getvalue()
        progress.add(4)
        assert (progress.bar.n if is_terminal else progress.done) == 9


@pytest.mark.parametrize(("unit", "shown"), [("B", "| 5.00k/20.0k ["), ("token", "| 5000/20000 [")])
def test_a_bar_counts_bytes_in_thousands_and_takes_a_later_total(monkeypatch, unit, shown):
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(stderr, "isatty", lambda: True)
    monkeypatch.setattr(ProgressBar, "DELAY", 0)
    with ProgressBar("loading", total=1, unit=unit) as progress:
        time.sleep(0.001)
        progress.add(5000, 20_000)
        assert shown in stderr.getvalue()


def test_the_bar_disappears_with_the_last_step(monkeypatch):
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(stderr, "isatty", lambda: True)
    monkeypatch.setattr(ProgressBar, "DELAY", 0)
    with ProgressBar("loading", total=10, unit="B") as progress:
        time.sleep(0.001)
        progress.add(5)
        progress.add(5)
        *_, line, rest = stderr.getvalue().split("\r")
        assert (line.strip(), rest) == ("", "")


def test_the_bar_disappears_when_the_work_is_given_up(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(ProgressBar, "DELAY", 0)
    with ProgressBar("loading", total=10, unit="B") as progress:
        time.sleep(0.001)
        progress.add(5)
    *_, line, rest = sys.stderr.getvalue().split("\r")
    assert (line.strip(), rest) == ("", "")


def test_in_a_file_the_next_line_waits_for_the_next_interval(monkeypatch):
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with ProgressBar("loading", total=10, unit="B") as progress:
        progress.start -= 200
        progress.last_line -= ProgressBar.INTERVAL
        progress.add(5)
        progress.add(1)
    assert stderr.getvalue() == "tiedgpt: note: loading: 50% after 3 min\n"


# Errors of the machine


@pytest.mark.parametrize(
    ("error", "message"),
    [
        pytest.param(MemoryError(), "not enough memory for a model of this size", id="memory"),
        pytest.param(OSError(28, "No space left on device", "a\nb"), r"a\nb: No space", id="disk"),
    ],
)
def test_an_error_of_the_machine_is_one_line(run, monkeypatch, checkpoint, error, message):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("tiedgpt.cli.inputs.open_model", fail)
    code, out, err = run("score", "-m", checkpoint, stdin=b"a text")
    assert (code, out) == (2, "")
    assert err.startswith("tiedgpt: error: " + message)
    assert err.count("\n") == 1


def test_quiet_hides_notes_and_no_error(run, checkpoint):
    code, out, err = run("tokenize", "-q", "-m", checkpoint, "<|endoftext|>")
    assert (code, out) == (2, "")
    assert err.startswith("tiedgpt: error: ")


@pytest.mark.parametrize(
    ("before", "after"),
    [(signal.SIG_DFL, signal.default_int_handler), (signal.SIG_IGN, signal.SIG_IGN)],
)
def test_ctrl_c_raises_in_a_command_unless_the_caller_ignores_it(before, after):
    usual = signal.signal(signal.SIGINT, before)
    try:
        cli.handle_signals()
        handler = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert handler is after


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
@pytest.mark.parametrize(("before", "is_kept"), [(signal.SIG_IGN, True), (signal.SIG_DFL, False)])
def test_a_signal_that_the_caller_ignores_stays_ignored(before, is_kept):
    """nohup starts a command so. Else the signal ends it as an error does, with its exit code."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    usual = [signal.signal(number, before) for number in numbers]
    try:
        cli.handle_signals()
        handlers = [signal.getsignal(number) for number in numbers]
    finally:
        for number, handler in zip(numbers, usual, strict=True):
            signal.signal(number, handler)
    assert [handler is before for handler in handlers] == [is_kept, is_kept]
    if not is_kept:
        with pytest.raises(SystemExit) as stop:
            handlers[0](signal.SIGTERM, None)
        assert stop.value.code == 128 + signal.SIGTERM
