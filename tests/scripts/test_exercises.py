"""scripts/exercises.py: right solutions pass, and each mistake that has a name is named."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from exercise_checks import CHECKS, Mine, Wrong  # of scripts/
from exercises import main, read_page  # of scripts/
from support import exercise_solutions
from support.wrong_solutions import UNKNOWN, WRONG_SOLUTIONS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "exercises.py"


def test_all_solutions_are_right(capsys):
    assert main(["all", exercise_solutions.__file__]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    for number, line in enumerate(lines, start=1):
        assert re.fullmatch(f"exercise {number}, .*: right", line)


# The functions that are put into a model. The mistake is looked for among all that models have.
PUT_INTO_A_MODEL = {
    "layer_norm",
    "head",
    "attention",
    "gelu",
    "transformer_block",
    "cached_attention",
}


def marks_of(name, line, place):
    """Of a function in a model, the third wrong solution is quick, and one without a name."""
    if name in PUT_INTO_A_MODEL and place != 2 and line != UNKNOWN:
        return pytest.mark.slow
    return ()


@pytest.mark.parametrize(
    ("number", "name", "line", "wrong"),
    [
        pytest.param(
            number, name, line, wrong, id=f"{name}: {line[:50]}", marks=marks_of(name, line, place)
        )
        for (number, name), solutions in WRONG_SOLUTIONS.items()
        for place, (line, wrong) in enumerate(solutions)
    ],
)
def test_the_mistake_in_a_wrong_solution_is_named(number, name, line, wrong):
    functions = {**vars(exercise_solutions), name: wrong}
    with np.errstate(all="ignore"), pytest.raises(Wrong) as caught:
        CHECKS[number](Mine(functions))
    lines = str(caught.value).split("\n")
    assert lines.count(line) == 1, lines


@pytest.fixture
def check(capsys, tmp_path):
    """check(source, number) -> (exit code, lines of stdout, lines of stderr) for a file mine.py.

    Without a number, exercise 6 is checked, gelu.
    """

    def check(source, number="6"):
        file = tmp_path / "mine.py"
        file.write_text(source, encoding="utf-8")
        code = main([number, str(file)])
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err, "there are no escape codes"
        return (
            code,
            out.replace(str(file), "mine.py").splitlines(),
            err.replace(str(file), "mine.py").splitlines(),
        )

    return check


def test_a_wrong_file(check):
    code, out, err = check("import numpy as np\ndef gelu(x): return np.maximum(x, 0)\n")
    assert code == 1
    result, wrong_number, mistake, *_ = out
    assert result == "exercise 6, gelu: wrong"
    assert re.fullmatch(r"gelu: \[0, 0\] is \S+, expected -0\.000304307661", wrong_number)
    assert mistake == "yours is relu"
    assert err == []


def test_all_exercises_of_a_file_with_one_function(check):
    code, out, err = check("def merge(ids, pair, new_id): return ids[:]\n", "all")
    assert code == 1
    assert sum(line.endswith(": wrong") for line in out) == 12
    assert "mine.py has no function layer_norm" in out
    assert err == []


WRONG_FILES = [
    pytest.param(
        "def gleu(x): pass\n",
        "mine.py has no function gelu; did you mean gleu?",
        id="another-name",
    ),
    pytest.param(
        "def gelu(x): pass\n",
        "gelu returned None: does it end with return?",
        id="no-return",
    ),
    pytest.param(
        "def gelu(x): return x.sum(-1)\n",
        "the result of gelu has shape (21,); expected (21, 100)",
        id="another-shape",
    ),
    pytest.param(
        "def gelu(x): return 'x'\n",
        "gelu returned 'x'; expected an array of shape (21, 100)",
        id="text",
    ),
]


@pytest.mark.parametrize(("source", "message"), WRONG_FILES)
def test_a_file_without_a_function_that_returns_an_array_of_the_right_shape(check, source, message):
    code, out, err = check(source)
    assert code == 1
    assert out == ["exercise 6, gelu: wrong", message]
    assert err == []


FAILING_FILES = [
    pytest.param(
        "import nothing_here\n",
        [
            "exercise 6, gelu: mine.py: ModuleNotFoundError: No module named 'nothing_here'",
            "  line 1, in <module>: import nothing_here",
        ],
        id="import",
    ),
    pytest.param(
        "x = (\n", ["exercise 6, gelu: mine.py, line 1: '(' was never closed"], id="syntax"
    ),
    pytest.param(
        "def gelu(x):\n    return h(x)\ndef h(x):\n    return [][0]\n",
        [
            "exercise 6, gelu: mine.py: IndexError: list index out of range",
            "  line 2, in gelu: return h(x)",
            "  line 4, in h: return [][0]",
        ],
        id="index",
    ),
    pytest.param(
        "def gelu(x):\n    x *= 2\n    return x\n",
        [
            "exercise 6, gelu: mine.py: ValueError: output array is read-only",
            "  line 2, in gelu: x *= 2",
        ],
        id="changed-in-place",
    ),
    pytest.param(
        "raise SystemExit('a\\nb\\x1b')\n",
        [
            r"exercise 6, gelu: mine.py: SystemExit: a\nb\x1b",
            r"  line 1, in <module>: raise SystemExit('a\nb\x1b')",
        ],
        id="exit",
    ),
]


@pytest.mark.parametrize(("source", "lines"), FAILING_FILES)
def test_a_file_that_fails(check, source, lines):
    code, out, err = check(source)
    assert code == 2
    assert out == []
    assert err == lines


def test_an_endless_recursion_is_shown_in_a_few_lines(check):
    code, out, err = check("def gelu(x):\n    return gelu(x)\n")
    assert code == 2
    assert out == []
    assert len(err) == 6, "the error and five lines about where it is"
    assert err[0].startswith("exercise 6, gelu: mine.py: RecursionError: ")


@pytest.mark.parametrize("name", ["none.py", ".", "a\0b"])
def test_a_file_that_cannot_be_read(capsys, tmp_path, name):
    assert main(["6", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1


# The page


def test_the_exercises_are_listed(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    line_of_exercise_6 = lines[6 - 1]
    assert line_of_exercise_6 == " 6  gelu"


@pytest.mark.parametrize("number", range(1, 13))
def test_an_exercise_is_printed(capsys, number):
    assert main([str(number)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{number}. {read_page()[number].title}\n\n")
    functions = re.findall(r"^def (\w+)\(", text, flags=re.M)
    assert len(functions) > 0
    for name in functions:
        assert hasattr(exercise_solutions, name)
    assert "Hint" not in text


@pytest.mark.parametrize("number", range(1, 13))
def test_a_hint_is_printed_if_it_is_asked_for(capsys, number):
    assert main([str(number), "--hint"]) == 0
    hint = capsys.readouterr().out
    assert len(hint) > 50
    without_code = hint.replace("`<", "")  # a < at the start of code is no tag
    assert "<" not in without_code, "there are no tags of HTML"


def test_a_hint_needs_an_exercise(capsys):
    with pytest.raises(SystemExit):
        main(["--hint"])
    assert "--hint: expected the number of an exercise" in capsys.readouterr().err


# Ctrl-C


def test_ctrl_c_while_the_function_runs_is_one_line_and_no_other_exercise_is_checked(check):
    source = "def merge(ids, pair, new_id):\n    raise KeyboardInterrupt\n"
    code, out, err = check(source, "all")
    assert code == 130  # as a shell reports Ctrl-C
    assert out == []
    assert err == [
        "exercise 1, a merge of byte-pair encoding: mine.py: stopped by Ctrl-C",
        "  line 2, in merge: raise KeyboardInterrupt",
    ]


def heed_ctrl_c():
    """Let Ctrl-C end this process, even if it was started by a process that ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX's signals")
def test_ctrl_c_ends_an_endless_loop_in_one_line(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def gelu(x):\n    print('running', flush=True)\n    while True:\n        pass\n",
        encoding="utf-8",
    )
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "6", file],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=heed_ctrl_c,
    )
    with process:
        try:
            assert process.stdout.readline() == "running\n"  # so the loop comes next
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130  # as a shell reports Ctrl-C
    assert out == ""
    assert re.fullmatch(
        rf"exercise 6, gelu: {file}: stopped by Ctrl-C\n  line \d, in gelu: .*\n", err
    )
