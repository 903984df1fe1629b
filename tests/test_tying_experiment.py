"""The tying experiment on a tiny grid: interruption, one run, statistics, the page."""

import doctest
import itertools
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tying_experiment
from tying import engine, fits, grid, job, page, results, texts
from tying.grid import Run

import tiedgpt
from tiedgpt.checkpoints.publishing import lock_directory
from tiedgpt.inference.evaluation import token_losses
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.similarity import embeddings
from tiedgpt.training.loop import Settings, Trainer

TINY = Run(vocab_size=280, width=6, context=7, batch=3, steps=20, lr=0.01)
TINY_SETS = {
    "chains": {"1/0.65/tied": replace(TINY, text="chain", layers=1, jsd=0.65, vocab_size=17)},
    "models": {f"no layers/{head}": replace(TINY, head=head) for head in ("tied", "untied")},
}
PUBLISHED, PROCESSES = page.PAGE.read_text(encoding="utf-8"), engine.processes
TEMPLATE = """a mean over {{models: no layers/tied: loss: n}} seeds

## How to read

## Claim 1: untied is nearer

| untied | {{models: no layers/untied: normed+unigram.kl}} |

- Verdict: {{models: no layers/untied: loss - unigram loss? better | worse | not}}
- Varied: {{step time: 300: ratio: .2f}}
"""


class Inline(Executor):
    """Does each job when its result is asked for, in this process; stops like Ctrl-C after some
    jobs."""

    def __init__(self) -> None:
        self.done: list[engine.Job] = []
        self.stop_after = math.inf

    def submit(self, function, job):
        def result(timeout=None):
            if len(self.done) >= self.stop_after:
                raise KeyboardInterrupt
            self.done.append(job)
            return function(job)

        future: Future = Future()
        future.set_result(None)
        future.result = result
        return future


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    """The executor of every experiment of this file, with three tiny models and three seeds."""
    executor = Inline()
    template = tmp_path_factory.mktemp("page") / "page.md"
    template.write_text(TEMPLATE, encoding="utf-8")
    smaller = {
        engine: {"processes": lambda workers: nullcontext(executor)},
        grid: {
            "SMALL": TINY,
            "SEEDS": (1, 2, 3),
            "sets": lambda: TINY_SETS,
            "pilot": lambda: [TINY],
        },
        job: {"CHAIN_TOKENS": 2000, "FITTED_TOKENS": 400},
        texts: {"TIMED_STEPS": 8, "fit_families": partial(fits.fit_families, steps=20)},
        page: {"PAGE": template, "PICTURES": {"chains.png": page.chains_picture}},
    }
    smaller[grid] |= {
        "COMPARED": ("no layers",),
        "VOCABULARIES": (300,),
        "PILOT_SEEDS": (101,),
        "TIMINGS": 2,
    }
    with pytest.MonkeyPatch.context() as patch:
        for module, values in smaller.items():
            for name, value in values.items():
                patch.setattr(module, name, value)
        yield executor


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Some thousand words, of which each has favourite successors."""
    words = [
        "my",
        "lord",
        "the",
        "king",
        "$",
        "is",
        "dead\n",
        "and",
        "the",
        "queen",
        "lives.\n",
        "é",
    ]
    places = itertools.accumulate(random.Random(3).choices([1, 1, 1, 2, 5], k=4000))
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text(" ".join(words[place % len(words)] for place in places), encoding="utf-8")
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


def test_an_interrupted_experiment_goes_on_and_does_nothing_twice(
    done, corpus, tmp_path, inline, capsys
):
    out, inline.done = tmp_path / "out", []
    for stop_after in (2, 6):
        inline.stop_after = stop_after
        assert run(corpus, out) == 130
        assert "the same command continues" in capsys.readouterr().err
        assert not (out / "tables.md").exists()
        assert len(engine.read_lines(out / "runs.jsonl")) == stop_after
    with open(out / "runs.jsonl", "a", encoding="utf-8") as file:
        file.write('{"run": {"lr": 0.0')  # the machine went off
    inline.stop_after = math.inf
    assert run(corpus, out) == 0
    assert results_in(out) == results_in(done)
    jobs, tables = len(inline.done), (out / "tables.md").read_bytes()
    assert jobs == len({job.key for job in inline.done}) == 3 * 3 + 3 + 1 + 1 + 2
    capsys.readouterr()
    assert run(corpus, out) == 0
    assert len(inline.done) == jobs
    assert re.match(rf"0 of {jobs} runs are missing: about 0.0 minutes\n", capsys.readouterr().err)
    assert (out / "tables.md").read_bytes() == tables

    text = tmp_path / "text"
    text.write_text(corpus.read_text(encoding="utf-8") + " The end.", encoding="utf-8")
    assert run(text, out) == 0
    again = [job.run for job in inline.done[jobs:]]
    assert len(again) == jobs - 3 - 2, "neither the chains nor the times depend on the text"
    assert not any(of.get("text") == "chain" or of.get("measure") == "step time" for of in again)


def test_the_published_text_has_a_page(copied, corpus, inline, monkeypatch, capsys):
    assert not (copied / "README.md").exists(), "it is not the published text"
    monkeypatch.setattr(tying_experiment, "PUBLISHED", name_of(corpus))
    assert run(corpus, copied) == 0
    assert not inline.done
    assert "a mean over 3 seeds\n" in (copied / "README.md").read_text(encoding="utf-8")
    assert (copied / "chains.png").exists() == bool(find_spec("matplotlib"))
    monkeypatch.setattr(tying_experiment, "find_spec", lambda name: None)
    assert run(corpus, copied) == 0
    assert "pip install -e .[plot]" in capsys.readouterr().err
    assert (copied / "chains.png").exists() == bool(find_spec("matplotlib")), (
        "an earlier picture stays"
    )


def test_one_claim_shows_its_figures_and_no_sentence_of_the_page(
    copied, corpus, inline, monkeypatch, capsys
):
    """It prints them: the files of a whole grid stay as they are."""
    plan = tying_experiment.plan(name_of(corpus), copied, None)
    found = results.collect(plan, engine.read_lines(copied / "runs.jsonl"))
    monkeypatch.setattr(tying_experiment, "PUBLISHED", name_of(corpus))
    before = [path.read_bytes() for path in copied.glob("*.*") if path.is_file()]
    assert run(corpus, copied, "--claim", 1) == 0
    assert not inline.done, "a claim needs a part of the grid"
    assert [path.read_bytes() for path in copied.glob("*.*") if path.is_file()] == before
    shown, err = capsys.readouterr()
    assert err.startswith("0 of 6 runs are missing"), "three trainings, two timings and the text"
    values = partial(results.values, found, "models", "no layers/untied")
    kl, difference = (
        results.figure(values(of)) for of in ("normed+unigram.kl", "loss - unigram loss")
    )
    assert shown.startswith(
        f"# Claim 1: untied is nearer\n\n| untied | {page.show(kl)} |\n\n## figures\n"
    )
    assert (
        f": loss - unigram loss | {page.with_sd(difference, '+')} | 3 | {difference.p:.1g} | "
        in shown
    )
    assert (
        f"| models: no layers/untied: normed+unigram.kl | {page.with_sd(kl)} | 3 |  |  |  |"
        in shown
    )
    assert not re.search("shakespeare|Verdict|no layers/tied|chain", shown)


def test_two_runs_into_one_directory_are_refused(copied, corpus, capsys):
    with lock_directory(copied):
        assert run(corpus, copied) == 2
    assert "is in use by process" in capsys.readouterr().err


def test_the_time_is_said_first_and_depends_on_the_text(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tying_experiment, "prepare", lambda *_: sys.exit())
    for repeats in (1, 1000):
        (tmp_path / "text").write_text(
            corpus.read_text(encoding="utf-8") * repeats, encoding="utf-8"
        )
        with pytest.raises(SystemExit):
            run(tmp_path / "text", tmp_path / "out")
    minutes = re.findall(r"about (\S+) minutes", capsys.readouterr().err)
    assert float(minutes[1]) > 1.5 * float(minutes[0]) > 0


RUN = '{"run": {}, "text": "", "result": {"loss": 1.0}}'
WRONG_LINE = "runs.jsonl, line 2: expected a run of this script"


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        *(("text", line, WRONG_LINE) for line in ('{"run"', "[]", "what?", '{"run": 3}')),
        *(("text", RUN.replace("1.0", other), WRONG_LINE) for other in ("2.0", "[]", '"abc"')),
        ("text", RUN.replace('"loss": 1.0', "").replace('""', '"a"'), WRONG_LINE),
        ("missing", "", "No such file"),
        ("text", "", "give a longer text"),
    ],
)
def test_what_cannot_be_done_is_one_line(inline, tmp_path, capsys, file, line, message):
    (tmp_path / "text").write_text("too short", encoding="utf-8")
    (tmp_path / "runs.jsonl").write_text(f"{RUN}\n{line}\n" if line else "", encoding="utf-8")
    assert run(tmp_path / file, tmp_path) == 2
    *first, last = capsys.readouterr().err.splitlines()
    assert all("runs are missing" in line for line in first)
    assert message in last


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:99], lambda data: b"x" + data[1:]]
)
def test_damaged_tokens_are_an_error_that_names_the_file(corpus, tmp_path, damage):
    job.prepare(text := corpus.read_text(encoding="utf-8"), 270, tmp_path)
    path = job.data_path(tmp_path, job.text_name(text), 270)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(tiedgpt.TiedGPTError, match=f"{path.name} is damaged: remove it"):
        job.read_data(path)


STOPS = [
    (signal.SIGINT, "importing", -signal.SIGINT),
    (signal.SIGINT, "run", 130),
    (signal.SIGTERM, "\r1 of", 143),
]


@pytest.mark.parametrize(
    ("number", "shown", "code"), [*STOPS, (signal.SIGKILL, "\r1 of", -signal.SIGKILL)]
)
def test_a_signal_ends_it_and_its_workers(tmp_path, number, shown, code):
    """While modules are imported, and while models are trained in processes."""
    (tmp_path / "numpy.py").write_text(
        "print('importing', flush=True); import time; time.sleep(60)"
    )
    script = Path(tying_experiment.__file__)
    path = [str(script.parents[1]), *([str(tmp_path)] if shown == "importing" else [])]
    text = tmp_path / "text"
    text.write_text(
        " ".join(str(n * n) for n in range(8000)), encoding="utf-8"
    )  # enough for 512 tokens
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    command = [sys.executable, script, text, tmp_path / "out"]
    process = subprocess.Popen(command, start_new_session=True, env=environment, **pipes)
    out = b""
    while shown.encode() not in out:
        byte = process.stdout.read(1)
        assert byte, out
        out += byte
    send = (
        os.killpg if number == signal.SIGINT else os.kill
    )  # the terminal sends it to the workers too
    send(process.pid, number)
    out += process.communicate(timeout=60)[
        0
    ]  # until the workers, which have its stdout, have ended
    assert process.returncode == code
    assert b"Traceback" not in out
    assert (b"the same command continues" in out) == (shown == "run")


def test_running_jobs_end_with_the_block():
    with pytest.raises(KeyboardInterrupt), PROCESSES(1) as executor:  # noqa: PT012
        executor.submit(time.sleep, 60)
        (process,) = multiprocessing.active_children()
        raise KeyboardInterrupt
    process.join(20)
    assert process.exitcode == -signal.SIGTERM


def test_models_of_one_seed_start_from_the_same_other_weights():
    tied, fixed = job.start(replace(TINY, layers=1, seed=5))
    assert not fixed
    for head in ("copy", "zeros", "untied", "signs"):
        model, _ = job.start(replace(TINY, layers=1, seed=5, head=head))
        for key, array in tied.parameters.items():
            if (head, key) != ("signs", "ln_f.weight"):
                np.testing.assert_array_equal(model.parameters[key], array)
        expected = {
            "copy": tied.W_E,
            "zeros": 0 * tied.W_E,
            "untied": tied.untie("random", 5).W_U.T,
        }
        np.testing.assert_array_equal(model.W_U.T, expected.get(head, tied.W_E))
    assert set(model.parameters["ln_f.weight"]) == {-1.0, 1.0}


@pytest.mark.parametrize(
    ("only", "off", "on"), [("MLP", "attn", "mlp"), ("attention", "mlp", "attn")]
)
def test_a_sublayer_that_is_off_stays_off(only, off, on):
    tokens = np.random.default_rng(0).integers(0, 280, 500)
    model, _ = job.trained(replace(TINY, layers=1, only=only, seed=1), job.Data(tokens, tokens))
    tape: dict = {}
    model(tokens[:7], tape=tape)
    assert not tape[f"{off}.0.out"].any()
    assert tape[f"{on}.0.out"].any()
    for name, array in model.parameters.items():
        assert f".{off}." not in name or not array.any(), name


def test_a_line_has_the_numbers_of_its_model(done, corpus):
    """A run is trained again here, by Trainer alone."""
    untied, name = replace(TINY_SETS["models"]["no layers/untied"], seed=1), name_of(corpus)
    result = results_in(done)[engine.key_of(untied.as_json, name)]
    data, counts = job.read_data(job.data_path(done, name, 280))
    model = tiedgpt.GPT2.random(grid.config(untied), 1).untie("random", 1)
    settings = Settings(steps=20, batch=3, context=7, lr=untied.lr, seed=1, threads=1)
    trainer = Trainer(model, data.tokens, data.held_out, settings)
    for record in trainer.run():
        if record["step"] == 2:
            early = token_losses(trainer.model, data.held_out[: job.EARLY_TOKENS], 6).mean()
    model = trainer.model
    tied = model.tie()
    expected = {
        "loss": token_losses(model, data.held_out, 6).mean(),
        "early loss": early,
        "training loss": token_losses(model, data.tokens[: job.TRAIN_TOKENS], 6).mean(),
        "swapped": token_losses(tied, data.held_out, 6).mean(),
        "raw.self": ((model.W_E @ model.W_U).argmax(axis=1) == np.arange(280))[
            counts.frequent()
        ].mean(),
        "negative gains": 0,
    }
    assert {measure: result[measure] for measure in expected} == pytest.approx(expected, rel=1e-5)

    def scaled_loss(factor, ids):  # a scale of the logits is one of ln_f
        ln_f = {
            name: np.float32(factor) * tied.parameters[name]
            for name in ("ln_f.weight", "ln_f.bias")
        }
        return token_losses(tiedgpt.GPT2(tied.config, tied.parameters | ln_f), ids, 6).mean()

    factors = np.exp(np.linspace(-3, 5, 81))
    best = min(factors, key=partial(scaled_loss, ids=data.tokens[: job.FITTED_TOKENS]))
    assert result["swapped, scaled"] == pytest.approx(scaled_loss(best, data.held_out), abs=0.01)
    counted = -np.log((counts.counts + 1) / (counts.counts + 1).sum())[data.held_out[1:]].mean()
    assert result["swapped, scaled, with counts"] < min(result["swapped, scaled"], counted + 0.02)


def test_two_matrices_are_compared_as_study_compares_them(done, corpus):
    similarity = tying_experiment.plan(name_of(corpus), done, None)["similarity"]
    seeds = {}
    for kind, jobs in similarity.items():
        seeds[kind] = [(of.arguments[0].seed, of.arguments[1].seed) for of in jobs]
    assert seeds == {"no layers": [(1, 2), (2, 1)], "no layers, two tied": [(1, 2)]}
    one = similarity["no layers"][1]
    found = results_in(done)[one.key]
    data, counts = job.read_data(job.data_path(done, name_of(corpus), 280))
    untied, tied = (job.trained(each, data)[0] for each in one.arguments[:2])
    expected = embeddings(untied, counts, tied.W_E)
    assert (untied.config.tied, tied.config.tied) == (False, True)
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


def test_a_run_that_diverges_is_a_line(done, corpus):
    runs = [replace(TINY, lr=lr, seed=1) for lr in (1e-3, 1e30)]
    jobs = (engine.Job(of.as_json, "", job.do_run, (of, done, name_of(corpus))) for of in runs)
    usual, bad = (engine.measured(each)["result"] for each in jobs)
    assert ("diverged" in usual, bad) == (False, {"diverged": 1})
    kinds = {"bad": [{"loss": 1.0}, bad], "other": [{"x": 1.0}]}
    *_, bad, other = page.tables({"kinds": kinds}).splitlines()
    assert bad == f"| bad | 2 |{' not measured with every seed |' * 2}  |"
    assert other == "| other | 1 |  |  | 1.000 |"


def test_paths_are_not_scored_by_a_text_with_few_frequent_tokens():
    tokens = np.arange(600) % 3
    assert job.study(job.start(TINY)[0], job.Data(tokens, tokens), Corpus.of(tokens, 280)) == {}


def test_smoothed_bigrams_are_those_of_the_best_strength():
    rng = np.random.default_rng(0)
    tokens, held_out = (
        rng.integers(0, 5, 400),
        rng.integers(0, 5, 100),
    )  # no bigrams: the strongest is best
    assert texts.smoothed_bigrams(tokens, held_out, 5) == pytest.approx(math.log(5), abs=0.05)
    cycle = np.arange(1000) % 5
    assert texts.smoothed_bigrams(cycle, cycle[:100], 5) < 0.01


def test_the_time_of_a_step_is_untied_over_tied(monkeypatch):
    """By a clock that gives 2 s to each step of the first model, the tied one, and 3 s to the
    second."""
    times = iter(itertools.accumulate(itertools.cycle([0.0, 2.0, 0.0, 3.0])))
    monkeypatch.setattr(texts, "process_time", lambda: next(times))
    assert texts.time_steps(TINY, 300) == {"ratio": 1.5}


@pytest.mark.parametrize("df", [1, 2, 3, 5, 8, 11])
def test_the_t_test(df):
    scale = math.gamma((df + 1) / 2) / math.gamma(df / 2) / math.sqrt(df * math.pi)
    for t in (0.3, 2.2, 5.0):
        x = np.linspace(0, t, 100_001)
        y = scale * (1 + x * x / df) ** (-(df + 1) / 2)
        inside = (y[1:] + y[:-1]) @ np.diff(x)  # of the two halves
        assert (
            results.t_test(t, df) == results.t_test(-t, df) == pytest.approx(1 - inside, abs=1e-6)
        )
    assert results.t_test(results.t_quantile(df), df) == pytest.approx(0.05)


def test_an_interval_holds_the_mean_of_95_of_100_samples():
    rng = np.random.default_rng(0)
    figures = [results.figure(list(map(float, rng.normal(3, 2, 8)))) for _ in range(4000)]
    assert 0.94 < np.mean([of.low < 3 < of.high for of in figures]) < 0.96
    assert all((of.low < 0 < of.high) == (of.p > 0.05) for of in figures)
    for of in (results.figure([2.5]), results.figure([2.5, 2.5])):
        assert (of.low, of.high, of.p) == (2.5, 2.5, 1.0)


def test_names_of_the_template():
    """Sums are taken seed by seed: the interval of a difference is narrower than those of its
    terms."""
    found = {
        "models": {
            "0/tied": [{"x": 1.0}, {"x": 2.0}, {"x": 3.0}, {"x": 2.0}],
            "1/tied": [{"x": 9.0}, {"x": 10.1}, {"x": 11.0}, {"x": 10.0}],
        },
        "text": {"whole": [{"n": 12345, "loss": 9.5}]},
    }
    shown = {
        "{{models: 0/tied: x: n}}": "4",
        "{{models: 0/tied: x}}": "2.000 [0.701, 3.299]",
        "{{models: 0/tied: x: mean}}": "2.000",
        "{{text: whole: n: d}}": "12,345",
        "{{models: 0/tied - 1/tied: x: .2f}}": "-8.03 [-8.10, -7.95]",
        "{{models: 1/tied - 0/tied + 0/tied: x: mean}}": "+10.025",
        "{{models: 1/tied: x - loss: mean}}": "+0.525 (no difference found)",
        "{{models: 0/tied - 1/tied: x? a | b | c}}": "a",
        "{{models: 1/tied - 0/tied: x? a | b | c}}": "b",
        "{{models: 0/tied: x - x? a | b | c}}": "c",
        "{{models: 0/tied: x - x}}": "+0.000 (no difference found)",
        "{{models: 0/tied: y}}": "not measured with every seed",
    }
    assert {name: page.Page(found, name).render() for name in shown} == shown


def test_a_verdict_needs_holms_correction_and_turns_with_its_sign():
    rng = np.random.default_rng(0)
    kinds = {f"{n}": [{"x": x, "-x": -x} for x in rng.normal(n / 4, 1, 12)] for n in range(5)}
    found = {"models": kinds}
    template = "\n".join(
        f"{{{{models: {n} - 0: MEASURE? below | above | open}}}}" for n in range(1, 5)
    )
    words, back = (
        page.Page(found, template.replace("MEASURE", m)).render().split() for m in ("x", "-x")
    )
    ps = [results.figure(results.values(found, "models", f"{n} - 0", "x")).p for n in range(1, 5)]
    assert [word != "open" for word in words] == [p < 0.05 for p in results.holm(ps)]
    assert any(p < 0.05 for p, word in zip(ps, words, strict=True) if word == "open"), (
        "and not p alone"
    )
    assert [{"below": "above", "above": "below"}.get(word, word) for word in words] == back


def test_no_figure_of_the_page_is_written_by_hand():
    text = re.sub(r"\{\{.*?\}\}|```.*?```|\]\(.*?\)", "", PUBLISHED, flags=re.S)
    assert not re.findall(r"\d+\.\d+", text)


def test_the_examples_in_the_docstrings():
    for module in (results, page):
        found = doctest.testmod(module)
        assert (found.attempted > 0, found.failed) == (True, 0)
