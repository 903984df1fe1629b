"""The tying experiment on a tiny grid: interruption, one run, statistics, the page."""

import doctest
import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

import tiedgpt
from tiedgpt.inference.evaluation import token_losses
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.similarity import embeddings
from tiedgpt.training.loop import Settings, Trainer

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import tying_experiment  # noqa: E402  # the scripts are not installed
from tying import engine, fits, grid, job, page, results, texts  # noqa: E402
from tying.grid import CLAIMS, Run, sets  # noqa: E402

TINY = Run(vocab_size=280, width=6, context=7, batch=3, steps=20)
TINY_CHAIN = replace(TINY, text="chain", vocab_size=17, steps=4)
RESULTS = SCRIPTS / "tying_results"
TEMPLATE = page.PAGE.read_text(encoding="utf-8")


class Inline(Executor):
    """Does each job when its result is asked for, in this process; stops like Ctrl-C after some jobs."""

    def __init__(self) -> None:
        self.done: list[tuple] = []
        self.stop_after = math.inf

    def submit(self, function, /, *args):
        def result(timeout=None):
            if len(self.done) >= self.stop_after:
                raise KeyboardInterrupt
            self.done.append(args)
            return function(*args)

        future: Future = Future()
        future.set_result(None)
        future.result = result
        return future


@pytest.fixture(scope="module", autouse=True)
def inline():
    """The executor of every experiment of this file, with tiny models, a smaller pilot and fewer seeds."""
    executor = Inline()
    smaller = {
        engine: {"processes": lambda workers: nullcontext(executor)},
        grid: {"SMALL": TINY, "CHAIN": TINY_CHAIN, "SEEDS": (1, 2, 3), "PILOT_SEEDS": (101,)},
        job: {"CHAIN_TOKENS": 2000, "FITTED_TOKENS": 400},
        fits: {"STEPS": 20},
        texts: {"TIMED_STEPS": 8, "TIMINGS": 2},
    }
    smaller[grid] |= {"TRIED": dict.fromkeys(grid.TRIED, (0.002,)), "TENTH_TRIED": {"tied": {0.001: (1,)}}}
    with pytest.MonkeyPatch.context() as patch:
        for module, values in smaller.items():
            for name, value in values.items():
                patch.setattr(module, name, value)
        yield executor


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Some thousand words, of which each has favourite successors."""
    rng = random.Random(3)
    words = ["my", "lord", "the", "king", "$", "is", "dead\n", "and", "the", "queen", "lives.\n", "é"]
    at, text = 0, []
    for _ in range(4000):
        at = (at + rng.choice([1, 1, 1, 2, 5])) % len(words)
        text.append(words[at])
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text(" ".join(text), encoding="utf-8")
    return path


def run(*arguments) -> int:
    return tying_experiment.main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def done(tmp_path_factory, corpus, inline) -> Path:
    """The directory of the grid, done without an interruption."""
    out = tmp_path_factory.mktemp("done") / "out"
    assert run(corpus, out) == 0
    return out


@pytest.fixture
def copied(done, tmp_path, inline) -> Path:
    inline.done, inline.stop_after = [], math.inf
    return shutil.copytree(done, tmp_path / "out")


def name_of(text: Path) -> str:
    return job.text_name(text.read_text(encoding="utf-8"))


def results_in(out: Path) -> dict:
    """What was measured, but for the times."""
    lines = engine.read_lines(out / "runs.jsonl")
    return {key: result for key, result in lines.items() if "step time" not in key}


def found_in(out: Path, corpus: Path, claim: int | None = None) -> results.Found:
    lines = engine.read_lines(out / "runs.jsonl")
    return results.collect(lines, name_of(corpus), tying_experiment.set_names(claim))


# The engine


@pytest.mark.slow
def test_an_interrupted_and_resumed_experiment_has_the_same_results(done, corpus, tmp_path, inline, capsys):
    out, lines = tmp_path / "out", (done / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    inline.done = []
    for stop_after in (5, 20):
        inline.stop_after = stop_after
        assert run(corpus, out, "--claim", 7) == 130
        assert "the same command continues" in capsys.readouterr().err
        assert not (out / "tables.md").exists()
        assert len(results_in(out)) == stop_after
    with open(out / "runs.jsonl", "a", encoding="utf-8") as file:
        file.write(lines[-1][:-2])  # the machine went off
    inline.stop_after = math.inf
    assert run(corpus, out, "--claim", 7) == 0
    assert len(inline.done) == len(results_in(out)), "done runs are not done again"
    assert results_in(out).items() < results_in(done).items()
    for matrices in (out / "matrices").iterdir():
        assert matrices.read_bytes() == (done / "matrices" / matrices.name).read_bytes()


@pytest.mark.slow
def test_only_what_is_missing_is_done(copied, done, corpus, tmp_path, inline, capsys):
    tables = (copied / "tables.md").read_bytes()
    assert run(corpus, copied) == 0
    assert not inline.done
    assert re.match(r"0 of \d+ runs are missing: about 0 minutes\n", capsys.readouterr().err)
    assert (copied / "tables.md").read_bytes() == tables

    lines = (copied / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    last = json.loads(lines[-1])["run"]  # a comparison
    (copied / "runs.jsonl").write_text("\n".join([*lines[:-1], ""]), encoding="utf-8")
    job.matrices_path(copied, Run(**last["with"])).unlink()
    assert run(corpus, copied) == 0
    assert [len(args) for args in inline.done] == [4, 4], "the run whose matrices are missing, the comparison"
    assert results_in(copied) == results_in(done)

    text = tmp_path / "text"
    text.write_text(corpus.read_text(encoding="utf-8") + " The end.", encoding="utf-8")
    inline.done, inline.stop_after = [], 3
    assert run(text, copied) == 130
    assert not any(isinstance(args[0], Run) and args[0].text == "chain" for args in inline.done)


@pytest.mark.slow
def test_the_page_of_the_seeds_that_are_complete(copied, corpus, inline, tmp_path, monkeypatch, capsys):
    """The same runs with a line less: two seeds. --no-training does what needs no training."""
    lines = (copied / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    number = next(n for n, line in enumerate(lines) if '"seed": 3' in line and '"chain"' in line)
    del lines[number]
    (copied / "runs.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
    monkeypatch.setattr(tying_experiment, "PUBLISHED", name_of(corpus))
    assert run(corpus, tmp_path / "new", "--no-training") == 2
    assert "expected at least two complete seeds" in capsys.readouterr().err
    inline.done = []
    assert run(corpus, copied, "--no-training") == 0
    assert not inline.done
    assert "a mean over 2 seeds" in (copied / "README.md").read_text(encoding="utf-8")
    assert run(corpus, copied) == 0
    assert len(inline.done) == 1
    assert "a mean over 3 seeds" in (copied / "README.md").read_text(encoding="utf-8")
    assert (copied / "chains.png").exists() == bool(find_spec("matplotlib"))
    monkeypatch.setattr(tying_experiment, "find_spec", lambda name: None)
    assert run(corpus, copied) == 0
    assert "pip install -e .[plot]" in capsys.readouterr().err
    assert (copied / "chains.png").exists() == bool(find_spec("matplotlib")), "an earlier picture stays"


@pytest.mark.slow
def test_another_text_or_one_claim_has_tables_and_no_sentence_of_the_page(copied, done, corpus, inline):
    assert not (done / "README.md").exists()
    assert run(corpus, copied, "--claim", 9) == 0
    assert not inline.done, "a claim needs a part of the grid"
    found = found_in(copied, corpus, 9)
    assert [name for name in found if name in sets()] == ["starts"]
    text = (copied / "tables.md").read_text(encoding="utf-8")
    of = results.figure(results.values(found, "starts", "untied", "loss"))
    assert f"| untied, rate 0.008 | 3 | {of.mean:.3f} [{of.low:.3f}, {of.high:.3f}], sd {of.sd:.3f} |" in text
    assert not re.search("shakespeare|verdict|found", text)


WRONG_LINE = "runs.jsonl, line 2: expected a run of this script"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        *((..., line, WRONG_LINE) for line in ('{"run"', "[]", "what?", '{"run": 3}')),
        (None, "", "No such file"),
        ("too short", "", "give a longer text"),
    ],
)
def test_what_cannot_be_done_is_one_line(corpus, tmp_path, capsys, text, line, message):
    file = corpus if text is ... else tmp_path / "text"
    if isinstance(text, str):
        file.write_text(text, encoding="utf-8")
    good = '{"run": {}, "text": "", "result": {}}'
    (tmp_path / "runs.jsonl").write_text(f"{good}\n{line}\n" if line else "", encoding="utf-8")
    assert run(file, tmp_path) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("importing", [True, False])
def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path, importing):
    """While modules are imported, and while models are trained in processes."""
    (tmp_path / "numpy.py").write_text("print('run', flush=True); import time; time.sleep(60)")
    path = [str(SCRIPTS.parent), *([str(tmp_path)] if importing else [])]
    text = tmp_path / "text"
    text.write_text(" ".join(str(n * n) for n in range(8000)), encoding="utf-8")  # enough for 512 tokens
    process = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "tying_experiment.py"), str(text), str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    out = b""
    while b"run" not in out:
        byte = process.stdout.read(1)
        assert byte, out
        out += byte
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does: the workers get it too
    out += process.communicate(timeout=60)[0]
    assert process.returncode == 130
    assert b"Traceback" not in out
    assert (b"the same command continues" in out) == (not importing)


# One run


def test_models_of_one_seed_start_from_the_same_other_weights():
    tied, fixed = job.start(replace(TINY, layers=1, seed=5))
    assert not fixed
    for head in ("copy", "zeros", "untied", "signs"):
        model, _ = job.start(replace(TINY, layers=1, seed=5, head=head))
        for key, array in tied.parameters.items():
            if (head, key) != ("signs", "ln_f.weight"):
                np.testing.assert_array_equal(model.parameters[key], array)
        expected = {"copy": tied.W_E, "zeros": 0 * tied.W_E, "untied": tied.untie("random", 5).W_U.T}
        np.testing.assert_array_equal(model.W_U.T, expected.get(head, tied.W_E))
    assert set(model.parameters["ln_f.weight"]) == {-1.0, 1.0}


@pytest.mark.parametrize(("only", "off", "on"), [("MLP", "attn", "mlp"), ("attention", "mlp", "attn")])
def test_a_sublayer_that_is_off_stays_off(only, off, on):
    model, fixed = job.start(replace(TINY, layers=1, only=only, seed=1))
    tokens = np.random.default_rng(0).integers(0, 280, 500)
    settings = Settings(steps=3, batch=2, context=7, lr=1e-2, threads=1)
    trainer = job.PartTrainer(model, tokens, tokens, settings)
    trainer.fixed = fixed
    list(trainer.run())
    tape: dict = {}
    trainer.model(tokens[:7], tape=tape)
    assert not tape[f"{off}.0.out"].any()
    assert tape[f"{on}.0.out"].any()
    for name, array in trainer.model.parameters.items():
        assert f".{off}." not in name or not array.any(), name


@pytest.mark.slow
def test_a_line_has_the_numbers_of_its_model(done, corpus):
    """A run is trained again here, by Trainer alone."""
    untied = replace(sets()["starts"]["untied"], seed=1)
    name = name_of(corpus)
    result = results_in(done)[engine.key_of(untied.as_json, name)]
    data, counts = job.read_data(job.data_path(done, name, 280))
    model = tiedgpt.GPT2.random(grid.config(untied), 1).untie("random", 1)
    settings = Settings(steps=20, batch=3, context=7, lr=untied.lr, seed=1, threads=1)
    trainer = Trainer(model, data.tokens, data.held_out, settings)
    for record in trainer.run():
        if record["step"] == 2:
            early = token_losses(trainer.model, data.held_out[: job.EARLY_TOKENS], 6).mean()
    model = trainer.model
    matrices = np.load(job.matrices_path(done, untied))
    np.testing.assert_allclose(matrices["W_U"], model.W_U, rtol=1e-4, atol=1e-6)
    tied = model.tie()
    expected = {
        "loss": token_losses(model, data.held_out, 6).mean(),
        "early loss": early,
        "training loss": token_losses(model, data.tokens[: job.TRAIN_TOKENS], 6).mean(),
        "swapped": token_losses(tied, data.held_out, 6).mean(),
        "parameters": sum(array.size for array in model.parameters.values()),
        "raw.self": ((model.W_E @ model.W_U).argmax(axis=1) == np.arange(280))[counts.frequent()].mean(),
        "negative gains": 0,
    }
    for measure, value in expected.items():
        assert result[measure] == pytest.approx(value, rel=1e-5), measure

    def scaled_loss(factor, ids):  # a scale of the logits is one of ln_f
        ln_f = {name: np.float32(factor) * tied.parameters[name] for name in ("ln_f.weight", "ln_f.bias")}
        return token_losses(tiedgpt.GPT2(tied.config, tied.parameters | ln_f), ids, 6).mean()

    factors = np.exp(np.linspace(-3, 5, 81))
    best = min(factors, key=partial(scaled_loss, ids=data.tokens[: job.FITTED_TOKENS]))
    assert result["swapped, scaled"] == pytest.approx(scaled_loss(best, data.held_out), abs=0.01)
    counted = -np.log((counts.counts + 1) / (counts.counts + 1).sum())[data.held_out[1:]].mean()
    assert result["swapped, scaled, with counts"] < min(result["swapped, scaled"], counted + 0.02)


@pytest.mark.slow
def test_two_matrices_are_compared_as_study_compares_them(done, corpus):
    name = name_of(corpus)
    pairs = results.similarities(grid.SEEDS)
    assert [(a.seed, b.seed) for a, b in pairs["one layer"]] == [(1, 2), (2, 1)]
    assert [(a.seed, b.seed) for a, b in pairs["one layer, two tied"]] == [(1, 2)]
    untied, tied = pairs["one layer"][1]
    found = results_in(done)[engine.key_of(results.similarity_json(untied, tied), name)]
    mine, other = (np.load(job.matrices_path(done, each)) for each in (untied, tied))
    model = tiedgpt.GPT2.random(grid.config(untied)).untie("zeros")
    model.W_E[...], model.W_U[...] = mine["W_E"], mine["W_U"]
    tokens = job.read_data(job.data_path(done, name, 280))[0].tokens
    expected = embeddings(model, Corpus.of(tokens, 280), other["W_E"])
    assert found["in and tied, 0 removed"] == pytest.approx(expected["in_tied"], rel=1e-5)
    assert found["out and tied, 0 removed"] == pytest.approx(expected["out_tied"], rel=1e-5)


def test_removed_components_leave_the_other_directions():
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    parts = rng.standard_normal((50, 5))
    parts = np.linalg.qr(parts - parts.mean(axis=0))[0] * [9, 5, 1, 1, 1]
    rows = parts @ directions.T + 3
    assert texts.without_components(rows, 0) is rows
    left = texts.without_components(rows, 2)
    np.testing.assert_allclose(left, parts[:, 2:] @ directions[:, 2:].T, atol=1e-9)


def test_a_run_that_diverges_is_a_line(corpus, tmp_path):
    job.prepare(corpus.read_text(encoding="utf-8"), 280, tmp_path)
    runs = [replace(TINY, lr=lr, seed=1) for lr in (1e-3, 1e30)]
    of = [job.do_run(each, tmp_path, name_of(corpus), False) for each in runs]
    assert "diverged" not in of[0]["result"]
    assert of[1]["result"] == {"diverged": 1}
    assert page.table_cell([1.0, math.nan]) == "diverged"


def test_smoothed_bigrams_are_those_of_the_best_strength():
    rng = np.random.default_rng(0)
    tokens, held_out = rng.integers(0, 5, 400), rng.integers(0, 5, 100)  # no bigrams: the strongest is best
    assert texts.smoothed_bigrams(tokens, held_out, 5) == pytest.approx(math.log(5), abs=0.05)
    cycle = np.arange(1000) % 5
    assert texts.smoothed_bigrams(cycle, cycle[:100], 5) < 0.01


def test_the_time_of_a_step_is_untied_over_tied(monkeypatch):
    """With a clock that gives 2 s to each step of the first model, the tied one, and 3 s to the second."""
    times = iter(itertools.accumulate(itertools.cycle([0.0, 2.0, 0.0, 3.0])))
    monkeypatch.setattr(texts, "process_time", lambda: next(times))
    assert texts.time_ratio(TINY, 300) == 1.5


# The grid


def test_the_grid_has_its_seeds_and_controls(monkeypatch):
    assert not {*grid.SEEDS} & {*grid.PILOT_SEEDS}
    monkeypatch.setattr(grid, "SMALL", Run())
    assert {name for names in CLAIMS.values() for name in names} == set(sets())
    for number, body in re.findall(r"^## (\d)\.(.*?)(?=^## |\Z)", TEMPLATE, re.M | re.S):
        named = set(re.findall(r"\{\{(?:row: [^:]*: )?([^:]*): ", body))
        assert named - {"text", "similarity", "step time"} - {"columns"} <= {*CLAIMS[int(number)]}, number
    assert all(run.lr for kinds in sets().values() for run in kinds.values())
    matched = sets()["matched"]
    counts = {head: tiedgpt.count_parameters(grid.config(run)) for head, run in matched.items()}
    tied, untied = (counts[head][head]["total"] for head in ("tied", "untied"))
    assert tied == pytest.approx(untied, rel=0.06)


# The statistics


@pytest.mark.parametrize("df", [1, 2, 3, 5, 8, 11])
def test_the_t_test(df):
    scale = math.gamma((df + 1) / 2) / math.gamma(df / 2) / math.sqrt(df * math.pi)
    for t in (0.3, 2.2, 5.0):
        x = np.linspace(0, t, 100_001)
        y = scale * (1 + x * x / df) ** (-(df + 1) / 2)
        inside = (y[1:] + y[:-1]) @ np.diff(x)  # of the two halves
        assert results.t_test(t, df) == results.t_test(-t, df) == pytest.approx(1 - inside, abs=1e-6)
    assert results.t_test(results.t_quantile(df), df) == pytest.approx(0.05)


def test_an_interval_holds_the_mean_of_95_of_100_samples():
    rng = np.random.default_rng(0)
    figures = [results.figure(list(map(float, rng.normal(3, 2, 8)))) for _ in range(4000)]
    assert 0.94 < np.mean([of.low < 3 < of.high for of in figures]) < 0.96
    assert all((of.low < 0 < of.high) == (of.p > 0.05) for of in figures)
    for of in (results.figure([2.5]), results.figure([2.5, 2.5])):
        assert (of.low, of.high, of.p) == (2.5, 2.5, 1.0)


def test_sums_are_taken_seed_by_seed():
    kinds = {"a": [1.0, 2.0, 4.0], "b": [1.5, 2.5, 3.0]}
    found = {"s": {kind: [{"x": x, "y": 1.0} for x in of] for kind, of in kinds.items()}}
    values = partial(results.values, found, "s")
    assert values("b - a", "x") == [0.5, 0.5, -1.0]
    assert values("a", "x - y") == [0.0, 1.0, 3.0]
    assert values("a - b + a", "x") == [0.5, 1.5, 5.0]
    assert math.isnan(values("a", "z")[0])


# The page


def test_names_of_the_template():
    found = {
        "places": {"one layer/tied": [{}] * 4},
        "s": {
            "0/tied": [{"x": 1.0}, {"x": 2.0}, {"x": 3.0}, {"x": 2.0}],
            "1/tied": [{"x": 9.0}, {"x": 10.1}, {"x": 11.0}, {"x": 10.0}],
        },
        "text": {"whole": [{"n": 12345}]},
    }
    shown = {
        "{{seeds}}": "4",
        "{{s: 0/tied: x}}": "2.000 [0.701, 3.299]",
        "{{s: 0/tied: x: mean}}": "2.000",
        "{{text: whole: n: d}}": "12,345",
        "{{s: 0/tied - 1/tied: x: .2f}}": "-8.03 [-8.10, -7.95]",
        "{{s: 0/tied - 1/tied: x? a | b | c}}": "a",
        "{{s: 1/tied - 0/tied: x? a | b | c}}": "b",
        "{{s: 0/tied: x - x? a | b | c}}": "c",
        "{{s: 0/tied: x - x}}": "+0.000 (no difference found)",
        "{{columns: n: 0, 1}}\n{{row: r: s: */tied: x: mean}}\n{{row: t: s: */tied - 0/tied: x: mean}}": (
            "| n | 0 | 1 |\n| --- | --- | --- |\n| r | 2.000 | 10.025 |\n| t |  | +8.025 |"
        ),
    }
    for name, expected in shown.items():
        assert page.Page(found, name).render() == expected
    for name in ("{{s: 2/tied: x}}", "{{s: 0/tied: y}}", "{{t: 0/tied: x}}"):
        with pytest.raises(tiedgpt.TiedGPTError, match=": not measured with every seed"):
            page.Page(found, name).render()


def test_a_verdict_needs_holms_correction_and_turns_with_its_sign():
    rng = np.random.default_rng(0)
    kinds = {f"{n}": [{"x": x, "-x": -x} for x in rng.normal(n / 4, 1, 12)] for n in range(5)}
    found = {"places": {"one layer/tied": []}, "s": kinds}
    template = "\n".join(f"{{{{s: {n} - 0: MEASURE? below | above | open}}}}" for n in range(1, 5))
    words, back = (page.Page(found, template.replace("MEASURE", m)).render().split() for m in ("x", "-x"))
    ps = [results.figure(results.values(found, "s", f"{n} - 0", "x")).p for n in range(1, 5)]
    for word, p in zip(words, ps, strict=True):
        rank = sorted(ps).index(p)
        least = all(other * (len(ps) - n) < 0.05 for n, other in enumerate(sorted(ps)[: rank + 1]))
        assert (word != "open") == least
    assert any(p < 0.05 for p, word in zip(ps, words, strict=True) if word == "open"), "and not p alone"
    assert [{"below": "above", "above": "below"}.get(word, word) for word in words] == back


def test_no_figure_of_the_page_is_written_by_hand():
    text = re.sub(r"\{\{.*?\}\}|```.*?```|\]\(.*?\)", "", TEMPLATE, flags=re.S)
    assert not re.findall(r"\d+\.\d+", text)


@pytest.mark.slow
def test_the_picture_shows_the_results(done, corpus):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -e .[plot]")
    found = found_in(done, corpus)
    line = page.picture(found).axes[0].lines[3]
    assert line.get_label() == "one layer, tied"
    expected = [fmean(r["excess"] for r in found["chains"][f"1/{jsd}/tied"]) for jsd in ("0", "0.65")]
    np.testing.assert_allclose(line.get_ydata(), expected)


def test_the_examples_in_the_docstrings():
    for module in (results, page):
        found = doctest.testmod(module)
        assert found.attempted > 0
        assert found.failed == 0
