"""scripts/exercises.py: right solutions pass, and each planted mistake is named."""

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from exercises import main  # of scripts/

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "exercises.py"
SOLUTIONS = (ROOT / "tests" / "exercise_solutions.py").read_text(encoding="utf-8")


def check(capsys, path, number: int, source: str) -> tuple[int, list[str]]:
    """The exit code of an exercise and its lines, on stdout if the code is 0 or 1, else on
    stderr."""
    file = path / "mine.py"
    file.write_text(source, encoding="utf-8")
    code = main([str(number), str(file)])
    out, err = capsys.readouterr()
    assert (not err) if code < 2 else (not out)
    return code, (out + err).replace(str(file), "mine.py").splitlines()


@pytest.mark.parametrize("number", range(1, 13))
def test_the_solution_is_right(capsys, tmp_path, number):
    code, (line,) = check(capsys, tmp_path, number, SOLUTIONS)
    assert code == 0
    assert re.fullmatch(f"exercise {number}, .*: right", line)


GELU = "0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))"
ERF = "0.5 * x * (1 + np.vectorize(__import__('math').erf)(x / np.sqrt(2)))"
SOFTMAX = "e = np.exp(x - x.max(axis=-1, keepdims=True))\n    return e / e.sum(axis=-1"
MASK = "np.triu(np.ones((T, S)), 1 + S - T)"
LOSS = "np.log(np.exp(shifted).sum(axis=-1)) - at_target"
ATTENTION = 'attention(layer_norm(resid, **block["ln_1"], eps=eps), **block["attn"], n_head=n_head)'
MISTAKES = [  # exercise, text of the solution, its replacement, the sentence
    (6, GELU, ERF, "yours is the exact gelu (erf)"),
    (6, GELU, "x * np.nan", "[0, 0] is nan, expected"),
    (6, "x**3", "x**2", "this is none of the known mistakes"),
    (2, "variance + eps", "variance + 1e-6", "yours has a layer norm with epsilon 1e-06"),
    (3, "/ e.sum(axis=-1", "/ e.sum(axis=0", "yours divides by the sum over axis 0, not over the last axis"),
    (3, SOFTMAX, SOFTMAX.replace("-1", "0"), "yours is over axis 0, not over the last axis"),
    (3, " - x.max(axis=-1, keepdims=True)", "", "yours does not subtract the maximum before exp"),
    (3, " - logits.max(axis=-1, keepdims=True)", "", "yours does not subtract the maximum before exp"),
    (3, LOSS, "-at_target", "none of the known"),
    (3, LOSS, f"({LOSS}) / np.log(2)", "yours is in bits, not in nats"),
    (3, LOSS, "-np.log(softmax(logits)[np.arange(len(targets)), targets])",
     "yours is the log of softmax, which rounds to 0"),
    (4, "np.sqrt(K)", "1", "yours scales the scores by 1, not at all"),
    (4, MASK, "np.zeros((T, S))", "head: [0, 0] is "),
    (4, MASK + ", -np.inf", MASK.replace("1 +", "0 +") + ", -1e9", "a token does not see itself"),
    (4, "x @ W_q + b_q", "x @ W_q", "yours lacks the bias of the queries"),
    (5, "np.concatenate(list(heads), axis=-1)", "np.stack(list(heads)).reshape(x.shape)",
     "yours joins the heads without a transpose"),
    (7, f"resid + {ATTENTION}", ATTENTION, "yours lacks the residual connection"),
    (8, ' if tied else "lm_head.weight"', "", "matrix(parameters, False) is the transpose of wte.weight"),
    (8, '"wte.weight" if tied else ', "", "matrix(parameters, True) is the transpose of lm_head.weight"),
    (8, ".T\n\n\ndef cached", ".T.copy()\n\n\ndef cached", "(parameters, True) is a copy; expected a view"),
    (8, ".T\n\n\ndef cached", "\n\n\ndef cached", "its transpose by axes (1, 0) would fit"),
    (9, "if cache:", "if False:", "yours forgets the tokens before the piece"),
    (9, "= k, v\n", '= cache.get("k", k), cache.get("v", v)\n', "yours keeps the first piece only"),
    (9, "= k, v\n", "= k[-len(x) :], v[-len(x) :]\n", "yours keeps the last piece only"),
    (9, MASK, "np.triu(np.ones((T, S)), 1)", "yours has a mask that begins at position 0 in each piece"),
    (9, MASK, "np.zeros((T, S))", "yours lets a token see the later ones of its piece"),
    (9, "np.sqrt(K)", "1", "yours scales the scores by 1, not at all"),
    (1, "    return out\n", "    ids[:] = out\n    return out\n", "merge changes the list that it gets"),
    (1, "n += 2 if found else 1", "n += 1", "yours lets pairs overlap"),
    (1, "while n < len(ids):", "while n < len(ids) - 1:", "yours loses the last token"),
    (1, "== pair\n", "== pair and new_id not in out\n", "yours merges the first pair only"),
    (1, "== pair\n", "== list(pair)\n", "yours merges nothing"),
    (1, "    return out\n", "    return tuple(out)\n", "; expected a list"),
    (1, "    return out\n", "    return 3\n", "merge returned 3; expected a list"),
    (11, "dn - mean - through_s", "dn - mean", "yours lacks the gradient through the standard deviation"),
    (11, "dn - mean - through_s", "dn - through_s", "yours lacks the gradient through the mean"),
    (11, "(dn - mean - through_s) / s", "dn / s", "lacks the gradients through the mean and the standard"),
    (11, "dn = dout * weight", "dn = dout", "dx: [0, 0] is"),
    (11, "(dout * n).sum(axis=0)", "(dout * x).sum(axis=0)", "yours takes x in place of the normalised x"),
    (11, "dout.sum(axis=0)\n", "dout.mean(axis=0)\n", "yours is a mean over the tokens, not a sum"),
    (11, "keepdims=True) + eps)\n    n", "keepdims=True))\n    n", "yours lacks eps"),
    (12, "np.add.at(dwte, ids, dresid)", "dwte[ids] += dresid", "one gradient only for a token that occurs"),
    (12, "    np.add.at(dwte, ids, dresid)\n", "", "yours lacks the gradient of the embedding"),
    (12, "= dlogits.T @ final", "= 0 * (dlogits.T @ final)", "yours lacks the gradient of the output matrix"),
    (10, "return kept / kept.sum()", "return kept", "yours does not divide by the sum"),
    (10, "before >= p", "before + probabilities[order] > p", "drops the token with which the sum reaches p"),
    (10, "before >= p", "before > p", "yours keeps a token too many"),
    (10, "order = np.argsort(-probabilities)", "order = np.argsort(probabilities)", "none of the known"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "text", "wrong", "says"), MISTAKES)
@pytest.mark.filterwarnings("ignore")
def test_each_planted_mistake_is_named(capsys, tmp_path, number, text, wrong, says):
    assert text in SOLUTIONS
    code, lines = check(capsys, tmp_path, number, SOLUTIONS.replace(text, wrong))
    assert code == 1
    assert lines[0].endswith(": wrong")
    assert any(says in line for line in lines[1:]), lines


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import nothing_here\n",
         ["mine.py: ModuleNotFoundError: No module named 'nothing_here'",
          "  line 1, in <module>: import nothing_here"]),
        ("x = (\n", ["mine.py, line 1: '(' was never closed"]),
        ("def gelu(x):\n    return h(x)\ndef h(x):\n    return [][0]\n",
         ["mine.py: IndexError: list index out of range",
          "  line 2, in gelu: return h(x)", "  line 4, in h: return [][0]"]),
        ("def gelu(x):\n    x *= 2\n    return x\n",
         ["mine.py: ValueError: output array is read-only", "  line 2, in gelu: x *= 2"]),
        ("raise SystemExit('a\\nb\\x1b')\n", None),
        ("def gelu(x):\n    return gelu(x)\n", None),
        ("def gleu(x): pass\n", ["wrong", "mine.py has no function gelu; did you mean gleu?"]),
        ("def gelu(x): pass\n", ["wrong", "gelu returned None: does it end with return?"]),
        ("def gelu(x): return x.sum(-1)\n",
         ["wrong", "the result of gelu has shape (21,); expected (21, 100)"]),
        ("def gelu(x): return 'x'\n", ["wrong", "gelu returned 'x'; expected an array of shape (21, 100)"]),
    ],
)  # fmt: skip
def test_a_file_that_does_not_work(capsys, tmp_path, source, expected):
    code, lines = check(capsys, tmp_path, 6, source)
    label, lines[0] = lines[0].split(": ", 1)
    assert (label, code) == ("exercise 6, gelu", 1 if lines[0] == "wrong" and expected else 2)
    assert len(lines) <= 7
    assert "\x1b" not in "".join(lines)
    assert expected in (None, lines)


@pytest.mark.parametrize("name", ["none.py", "", "a\0b"])
def test_a_file_that_is_not_there(capsys, tmp_path, name):
    assert main(["6", str(tmp_path / name) if "\0" not in name else name]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


def test_the_page_has_every_exercise(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 12
    for number, line in enumerate(listed, 1):
        assert main([str(number)]) == 0
        text = capsys.readouterr().out
        assert text.startswith(f"{number}. {line[4:]}\n")
        functions = [part.partition("(")[0] for part in text.split("def ")[1:]]
        assert functions
        assert all(f"\ndef {name}(" in SOLUTIONS for name in functions)


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX's signals")
def test_ctrl_c_ends_an_endless_loop_in_one_line(tmp_path):
    file = tmp_path / "mine.py"
    loop = "def gelu(x):\n    print('running', flush=True)\n    while True:\n        pass\n"
    file.write_text(loop, encoding="utf-8")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    heed = partial(
        signal.signal, signal.SIGINT, signal.SIG_DFL
    )  # the tests' own shell may ignore Ctrl-C
    with subprocess.Popen(
        [sys.executable, SCRIPT, "6", file], **pipes, cwd=ROOT, preexec_fn=heed
    ) as process:
        try:
            assert process.stdout.readline() == "running\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert re.fullmatch(
        rf"exercise 6, gelu: {file}: stopped by Ctrl-C\n  line \d, in gelu: .*\n", err
    )
