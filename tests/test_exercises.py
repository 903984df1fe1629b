"""scripts/exercises.py: right solutions pass, and each planted mistake is named."""

import inspect
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
from support import exercise_solutions, wrong_solutions

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "exercises.py"


def message_of(number: int, name: str, function) -> list[str]:
    """The lines that the check of an exercise says if `function` replaces the solution `name`."""
    functions = {**vars(exercise_solutions), name: function}
    with np.errstate(all="ignore"), pytest.raises(Wrong) as caught:
        CHECKS[number](Mine(functions))
    return str(caught.value).split("\n")


def mistake_in(number: int, name: str, function) -> str:
    """The second line of the message: the name of the mistake. The first shows a wrong number."""
    _wrong_number, mistake, *_ = message_of(number, name, function)
    return mistake


@pytest.mark.parametrize("number", range(1, 13))
def test_the_solution_is_right(capsys, number):
    assert main([str(number), exercise_solutions.__file__]) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(f"exercise {number}, .*: right\n", out)
    assert err == ""


def test_all_solutions_are_checked_with_one_command(capsys):
    assert main(["all", exercise_solutions.__file__]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    for number, line in enumerate(lines, start=1):
        assert re.fullmatch(f"exercise {number}, .*: right", line)


def test_all_exercises_of_a_file_with_one_function(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(inspect.getsource(exercise_solutions.merge), encoding="utf-8")
    assert main(["all", str(file)]) == 1
    out, err = capsys.readouterr()
    of_exercise_1, of_exercise_2, reason, *_ = out.splitlines()
    assert of_exercise_1 == "exercise 1, a merge of byte-pair encoding: right"
    assert of_exercise_2 == "exercise 2, layer norm: wrong"
    assert reason == f"{file} has no function layer_norm"
    assert out.count(": wrong\n") == 11, "exercises 2 to 12"
    assert err == ""


def test_a_file_that_fails_is_run_once_for_all_exercises(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import nothing_here\n", encoding="utf-8")
    assert main(["all", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"all exercises: {file}: ModuleNotFoundError: No module named 'nothing_here'",
        "  line 1, in <module>: import nothing_here",
    ]


# A list for each exercise: wrong solutions, and the sentence that names the mistake of each.

MERGE = [
    pytest.param(
        wrong_solutions.merge_with_overlaps, "yours lets pairs overlap", id="with-overlaps"
    ),
    pytest.param(
        wrong_solutions.merge_without_the_last_token,
        "yours loses the last token",
        id="without-the-last-token",
    ),
    pytest.param(
        wrong_solutions.merge_the_first_pair,
        "yours merges the first pair only",
        id="the-first-pair-only",
    ),
    pytest.param(wrong_solutions.merge_nothing, "yours merges nothing", id="nothing"),
]


@pytest.mark.parametrize(("wrong", "sentence"), MERGE)
def test_merge(wrong, sentence):
    assert mistake_in(1, "merge", wrong) == sentence


def test_merge_in_place():
    assert message_of(1, "merge", wrong_solutions.merge_in_place) == [
        "merge changes the list that it gets, or returns it; expected a new list"
    ]


def test_merge_to_a_tuple():
    assert message_of(1, "merge", wrong_solutions.merge_to_a_tuple) == [
        "merge returned (9, 7, 9); expected a list"
    ]


def test_merge_to_a_number():
    assert message_of(1, "merge", wrong_solutions.merge_to_a_number) == [
        "merge returned 3; expected a list"
    ]


def test_layer_norm():
    wrong = wrong_solutions.norm_with_an_epsilon_of_its_own
    sentence = "yours has a layer norm with epsilon 1e-06"
    assert mistake_in(2, "layer_norm", wrong) == sentence


SOFTMAX = [
    pytest.param(
        wrong_solutions.softmax_divided_by_sums_over_axis_0,
        "yours divides by the sum over axis 0, not over the last axis",
        id="divided-by-sums-over-axis-0",
    ),
    pytest.param(
        wrong_solutions.softmax_over_axis_0,
        "yours is over axis 0, not over the last axis",
        id="over-axis-0",
    ),
    pytest.param(
        wrong_solutions.softmax_of_large_numbers_overflows,
        "yours does not subtract the maximum before exp",
        id="overflows",
    ),
]


@pytest.mark.parametrize(("wrong", "sentence"), SOFTMAX)
def test_softmax(wrong, sentence):
    assert mistake_in(3, "softmax", wrong) == sentence


CROSS_ENTROPY = [
    pytest.param(
        wrong_solutions.loss_of_large_numbers_overflows,
        "yours does not subtract the maximum before exp",
        id="overflows",
    ),
    pytest.param(
        wrong_solutions.loss_without_the_sum,
        "this is none of the known mistakes",
        id="without-the-sum",
    ),
    pytest.param(wrong_solutions.loss_in_bits, "yours is in bits, not in nats", id="in-bits"),
    pytest.param(
        wrong_solutions.loss_by_softmax,
        "yours is the log of softmax, which rounds to 0",
        id="by-softmax",
    ),
]


@pytest.mark.parametrize(("wrong", "sentence"), CROSS_ENTROPY)
def test_cross_entropy(wrong, sentence):
    assert mistake_in(3, "cross_entropy", wrong) == sentence


HEAD = [
    pytest.param(
        wrong_solutions.head_not_scaled,
        "yours scales the scores by 1, not at all",
        id="not-scaled",
    ),
    pytest.param(
        wrong_solutions.head_without_a_mask, "yours has no causal mask", id="without-a-mask"
    ),
    pytest.param(
        wrong_solutions.head_that_hides_the_token_itself,
        "yours has a mask of -1e9 that is off by one: a token does not see itself",
        id="hides-the-token-itself",
    ),
    pytest.param(
        wrong_solutions.head_without_the_bias_of_queries,
        "yours lacks the bias of the queries",
        id="without-the-bias-of-queries",
    ),
]


@pytest.mark.parametrize(("wrong", "sentence"), HEAD)
def test_head(wrong, sentence):
    assert mistake_in(4, "head", wrong) == sentence


def test_attention():
    wrong = wrong_solutions.attention_joined_without_a_transpose
    sentence = "yours joins the heads without a transpose"
    _wrong_number, *mistakes = message_of(5, "attention", wrong)
    assert mistakes == [sentence], "the mistake is named once"


GELU = [
    pytest.param(wrong_solutions.exact_gelu, "yours is the exact gelu (erf)", id="exact"),
    pytest.param(wrong_solutions.gelu_of_nan, "yours is nan everywhere", id="nan"),
    pytest.param(
        wrong_solutions.gelu_with_a_square, "this is none of the known mistakes", id="unknown"
    ),
]


@pytest.mark.parametrize(("wrong", "sentence"), GELU)
def test_gelu(wrong, sentence):
    wrong_number, *explanation = message_of(6, "gelu", wrong)
    assert re.fullmatch(r"gelu: \[0, 0\] is \S+, expected -0\.000273725964", wrong_number)
    assert sentence in explanation


def test_transformer_block():
    wrong = wrong_solutions.block_without_a_residual_connection
    sentence = "yours lacks the residual connection"
    assert mistake_in(7, "transformer_block", wrong) == sentence


OUTPUT_MATRIX = [
    pytest.param(
        wrong_solutions.always_tied,
        "output_matrix(parameters, False) is the transpose of wte.weight",
        id="always-tied",
    ),
    pytest.param(
        wrong_solutions.always_untied,
        "output_matrix(parameters, True) is the transpose of lm_head.weight",
        id="always-untied",
    ),
    pytest.param(
        wrong_solutions.copied_output_matrix,
        "output_matrix(parameters, True) is a copy; expected a view",
        id="a-copy",
    ),
    pytest.param(
        wrong_solutions.output_matrix_without_a_transpose,
        "the result of output_matrix has shape (211, 48); expected (48, 211); "
        "its transpose by axes (1, 0) would fit",
        id="without-a-transpose",
    ),
]


@pytest.mark.parametrize(("wrong", "sentence"), OUTPUT_MATRIX)
def test_output_matrix(wrong, sentence):
    assert message_of(8, "output_matrix", wrong) == [sentence]


CACHED_ATTENTION = [
    pytest.param(
        wrong_solutions.cache_that_is_not_read,
        "yours forgets the tokens before the piece",
        id="not-read",
    ),
    pytest.param(
        wrong_solutions.cache_of_the_first_piece,
        "yours keeps the first piece only",
        id="the-first-piece-only",
    ),
    pytest.param(
        wrong_solutions.cache_of_the_last_piece,
        "yours keeps the last piece only",
        id="the-last-piece-only",
    ),
    pytest.param(
        wrong_solutions.cache_with_a_mask_from_position_0,
        "yours has a mask that begins at position 0 in each piece",
        id="mask-from-position-0",
    ),
    pytest.param(
        wrong_solutions.cache_without_a_mask,
        "yours lets a token see the later ones of its piece",
        id="without-a-mask",
    ),
    pytest.param(
        wrong_solutions.cache_with_scores_not_scaled,
        "yours scales the scores by 1, not at all",
        id="not-scaled",
    ),
]


@pytest.mark.parametrize(("wrong", "sentence"), CACHED_ATTENTION)
def test_cached_attention(wrong, sentence):
    assert mistake_in(9, "cached_attention", wrong) == sentence


TOP_P = [
    pytest.param(
        wrong_solutions.top_p_not_divided, "yours does not divide by the sum", id="not-divided"
    ),
    pytest.param(
        wrong_solutions.top_p_with_a_token_too_few,
        "yours drops the token with which the sum reaches p",
        id="a-token-too-few",
    ),
    pytest.param(
        wrong_solutions.top_p_with_a_token_too_many,
        "yours keeps a token too many",
        id="a-token-too-many",
    ),
    pytest.param(
        wrong_solutions.top_p_from_the_unlikeliest,
        "this is none of the known mistakes",
        id="from-the-unlikeliest",
    ),
]


@pytest.mark.parametrize(("wrong", "sentence"), TOP_P)
def test_top_p(wrong, sentence):
    assert mistake_in(10, "top_p", wrong) == sentence


LAYER_NORM_BACKWARD = [
    pytest.param(
        wrong_solutions.backward_without_s,
        "yours lacks the gradient through the standard deviation",
        id="without-s",
    ),
    pytest.param(
        wrong_solutions.backward_without_mean,
        "yours lacks the gradient through the mean",
        id="without-mean",
    ),
    pytest.param(
        wrong_solutions.backward_without_mean_and_s,
        "yours lacks the gradients through the mean and the standard deviation",
        id="without-mean-and-s",
    ),
    pytest.param(
        wrong_solutions.backward_with_dx_plus_1,
        "this is none of the known mistakes",
        id="unknown",
    ),
    pytest.param(
        wrong_solutions.backward_with_x_for_n,
        "yours takes x in place of the normalised x",
        id="x-for-n",
    ),
    pytest.param(
        wrong_solutions.backward_with_mean_for_sum,
        "yours is a mean over the tokens, not a sum",
        id="mean-for-sum",
    ),
    pytest.param(wrong_solutions.backward_without_eps, "yours lacks eps", id="without-eps"),
]


@pytest.mark.parametrize(("wrong", "sentence"), LAYER_NORM_BACKWARD)
def test_layer_norm_backward(wrong, sentence):
    assert mistake_in(11, "layer_norm_backward", wrong) == sentence


TIED_GRADIENT = [
    pytest.param(
        wrong_solutions.gradient_of_repeated_tokens_once,
        "yours adds one gradient only for a token that occurs several times",
        id="repeated-tokens-once",
    ),
    pytest.param(
        wrong_solutions.gradient_without_the_embedding,
        "yours lacks the gradient of the embedding",
        id="without-the-embedding",
    ),
    pytest.param(
        wrong_solutions.gradient_without_the_output_matrix,
        "yours lacks the gradient of the output matrix",
        id="without-the-output-matrix",
    ),
]


@pytest.mark.parametrize(("wrong", "sentence"), TIED_GRADIENT)
def test_tied_gradient(wrong, sentence):
    assert mistake_in(12, "tied_gradient", wrong) == sentence


# Files


@pytest.fixture
def check(capsys, tmp_path):
    """check(source) -> (exit code, lines of stdout, lines of stderr) of exercise 6, gelu.

    The file that is checked, mine.py, has this source.
    """

    def check(source):
        file = tmp_path / "mine.py"
        file.write_text(source, encoding="utf-8")
        code = main(["6", str(file)])
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
    result, _wrong_number, mistake, *_ = out
    assert result == "exercise 6, gelu: wrong"
    assert mistake == "yours is relu"
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


@pytest.mark.parametrize("name", ["none.py", "."])
def test_a_file_that_cannot_be_read(capsys, tmp_path, name):
    assert main(["6", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1


def test_a_name_with_a_null_byte(capsys):
    assert main(["6", "a\0b"]) == 2
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


def heed_ctrl_c():
    """Let Ctrl-C end this process, even if it was started by a process that ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


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
