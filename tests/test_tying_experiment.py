"""The tying experiment with tiny models: interruption, one run, statistics, the page."""

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
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy", reason="scipy is not installed: pip install -e .[tying]")

import tying_experiment
from tying import (
    claims,
    data,
    engine,
    figures,
    first_screen,
    job,
    page,
    plan,
    settings,
    texts,
    training,
)
from tying.claims import Claim
from tying.figures import Figure, Runs, Term
from tying.settings import Run

import tiedgpt
from tiedgpt.checkpoints.publishing import lock_directory
from tiedgpt.inference.evaluation import token_losses
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.similarity import embeddings
from tiedgpt.training.loop import Settings, Trainer

TINY = Run(vocab_size=280, width=6, context=7, batch=3, steps=20, lr=0.01)
TINY_CHAIN = Run(
    text="chain", layers=1, jsd=0.65, vocab_size=17, width=6, context=7, batch=3, steps=20, lr=0.01
)
UNTIED = replace(TINY, head="untied")
PROCESSES = engine.processes
SEEDS = (1, 2, 3)


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


def tiny_numbers(runs: Runs) -> figures.Numbers:
    """The cost of the tie for tiny models, a chain, and a similarity."""
    similarity = runs.comparison_term(1, UNTIED, TINY, "out and tied, 0 removed")
    return {
        "cost": runs.figure(
            runs.run_term(1, TINY, "loss"), runs.run_term(-1, UNTIED, "loss"), seeds=SEEDS
        ),
        "chain": runs.figure(runs.run_term(1, TINY_CHAIN, "excess"), seeds=SEEDS),
        "similarity": runs.figure(similarity, seeds=[(1, 2), (2, 1)]),
    }


def tiny_text(n: figures.Numbers) -> str:
    return f"The tie costs {n['cost']}."


@pytest.fixture(scope="module")
def inline():
    """The executor of every experiment of this file, with three tiny models and three seeds."""
    executor = Inline()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "processes", lambda workers: nullcontext(executor))
        patch.setattr(tying_experiment, "Run", lambda: TINY)
        patch.setattr(data, "CHAIN_TOKENS", 2000)
        patch.setattr(job, "FITTED_TOKENS", 400)
        patch.setattr(plan, "whole_plan", tiny_plan)
        patch.setitem(page.CLAIMS, 1, Claim("tiny models", tiny_numbers, tiny_text))
        yield executor


def tiny_plan(runs: Runs, numbers: dict, out: Path) -> list[engine.Job]:
    return list(plan.jobs_of(tiny_numbers(runs).values(), out))


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
    """The directory of an experiment without an interruption."""
    out = tmp_path_factory.mktemp("done") / "out"
    assert run(corpus, out) == 0
    return out


@pytest.fixture
def copied(done, tmp_path, inline) -> Path:
    inline.done = []
    inline.stop_after = math.inf
    return shutil.copytree(done, tmp_path / "out")


def name_of(text: Path) -> str:
    return data.text_name(text.read_text(encoding="utf-8"))


def results_in(out: Path) -> dict:
    return engine.read_lines(out / "runs.jsonl")


def test_an_interrupted_experiment_goes_on_and_does_nothing_twice(
    done, corpus, tmp_path, inline, capsys
):
    out = tmp_path / "out"
    inline.done = []
    for stop_after in (2, 6):
        inline.stop_after = stop_after
        assert run(corpus, out) == 130
        assert "the same command continues" in capsys.readouterr().err
        assert not (out / "tables.md").exists()
        assert len(results_in(out)) == stop_after
    with open(out / "runs.jsonl", "a", encoding="utf-8") as file:
        file.write('{"run": {"lr": 0.0')  # the machine went off

    inline.stop_after = math.inf
    assert run(corpus, out) == 0
    assert results_in(out) == results_in(done)
    jobs = len(inline.done)
    assert jobs == len({job.key for job in inline.done}) == 3 * 3 + 2
    capsys.readouterr()
    assert run(corpus, out) == 0
    assert len(inline.done) == jobs
    assert re.match(rf"0 of {jobs} runs are missing: about 0.0 minutes\n", capsys.readouterr().err)


def test_another_text_repeats_all_but_the_chains(copied, corpus, tmp_path, inline):
    text = tmp_path / "text"
    text.write_text(corpus.read_text(encoding="utf-8") + " The end.", encoding="utf-8")
    assert run(text, copied) == 0
    assert len(inline.done) == 3 * 2 + 2
    assert not any(job.run.get("text") == "chain" for job in inline.done)


def test_the_published_text_has_a_page(copied, corpus, inline, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -e .[plot]")
    assert not (copied / "README.md").exists(), "it is not the published text"
    monkeypatch.setattr(tying_experiment, "PUBLISHED", name_of(corpus))
    assert run(corpus, copied) == 0
    assert not inline.done
    assert "Should I tie?" in (copied / "README.md").read_text(encoding="utf-8")
    assert (copied / "costs.png").exists()


def test_without_training_the_files_say_what_is_missing(corpus, tmp_path, inline):
    inline.done = []
    assert run(corpus, tmp_path, "--no-training") == 0
    assert not inline.done
    assert figures.UNKNOWN in (tmp_path / "tables.md").read_text(encoding="utf-8")


def test_one_claim_is_printed_and_the_files_stay_as_they_are(copied, corpus, inline, capsys):
    before = [path.read_bytes() for path in copied.glob("*.*")]
    assert run(corpus, copied, "--claim", 1) == 0
    assert not inline.done
    assert [path.read_bytes() for path in copied.glob("*.*")] == before
    shown, err = capsys.readouterr()
    assert err.startswith("0 of 11 runs are missing")
    runs = Runs(results_in(copied), name_of(corpus))
    cost = tiny_numbers(runs)["cost"]
    assert shown.startswith(f"# Claim 1: tiny models\n\nThe tie costs {cost}.\n")
    assert f"| cost | {cost} | {cost.sd:.3f} | 3 | {cost.p:.1g} | " in shown


def test_a_bar_is_repeated_with_new_seeds(copied, corpus, inline, monkeypatch, capsys):
    published = tiny_numbers(Runs(results_in(copied), name_of(corpus)))["cost"]
    bar = first_screen.BARS[2]
    monkeypatch.setattr(page, "bar", lambda runs, name: (bar, published))
    monkeypatch.setattr(tying_experiment, "PUBLISHED", name_of(corpus))
    assert run(corpus, copied, "--bar", "width 64") == 0
    seeds = {job.run["seed"] for job in inline.done}
    assert seeds == set(settings.NEW_SEEDS)
    shown = capsys.readouterr().out
    assert shown.startswith("one layer, width 64: the cost of the tie is ")
    assert f"The published cost is {published}. It lies " in shown


@pytest.mark.parametrize(
    ("mean", "words"),
    [
        pytest.param(0.11, "in that interval, and in [0.078, 0.122]", id="inside"),
        pytest.param(0.12, "outside that interval, and in [0.078, 0.122]", id="scatter"),
        pytest.param(0.2, "outside that interval, and outside [0.078, 0.122]", id="far"),
    ],
)
def test_a_repeated_bar_is_inside_or_outside(mean, words):
    published = figure_of([0.1] * 12, mean=0.1, low=0.09, high=0.11)
    new = figure_of([mean] * 3, mean=mean)
    assert words in first_screen.repeat("a bar", new, published)


def figure_of(values: list[float], **numbers: float) -> Figure:
    seeds = tuple(range(len(values)))
    return Figure((), seeds, seeds, tuple(values), **numbers)


def test_two_runs_into_one_directory_are_refused(copied, corpus, capsys):
    with lock_directory(copied):
        assert run(corpus, copied) == 2
    assert "is in use by process" in capsys.readouterr().err


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
    data.prepare(text := corpus.read_text(encoding="utf-8"), 270, tmp_path)
    path = data.data_path(tmp_path, data.text_name(text), 270)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(tiedgpt.TiedGPTError, match=f"{path.name} is damaged: remove it"):
        data.read_data(path)


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
    tied = training.model_of(training.start(replace(TINY, layers=1, seed=5)))
    for head in ("copy", "zeros", "untied", "signs"):
        model = training.model_of(training.start(replace(TINY, layers=1, seed=5, head=head)))
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
    model, _ = job.trained(replace(TINY, layers=1, only=only, seed=1), data.Data(tokens, tokens))
    tape: dict = {}
    model(tokens[:7], tape=tape)
    assert not tape[f"{off}.0.out"].any()
    assert tape[f"{on}.0.out"].any()
    for name, array in model.parameters.items():
        assert f".{off}." not in name or not array.any(), name


def test_a_line_has_the_numbers_of_its_model(done, corpus):
    """A run is trained again here, by the package's Trainer."""
    untied = replace(TINY, layers=1, head="untied", seed=1)
    name = name_of(corpus)
    result = job.do_run(untied, done, name)
    text, counts = data.read_data(data.data_path(done, name, 280))
    model = tiedgpt.GPT2.random(settings.config(untied), 1).untie("random", 1)
    trainer_settings = Settings(steps=20, batch=3, context=7, lr=untied.lr, seed=1, threads=1)
    trainer = Trainer(model, text.tokens, text.held_out, trainer_settings)
    for record in trainer.run():
        if record["step"] == 2:
            early = token_losses(trainer.model, text.held_out[: job.EARLY_TOKENS], 6).mean()
    model = trainer.model
    expected = {
        "loss": token_losses(model, text.held_out, 6).mean(),
        "early loss": early,
        "training loss": token_losses(model, text.tokens[: job.TRAIN_TOKENS], 6).mean(),
        "swapped": token_losses(model.tie(), text.held_out, 6).mean(),
        "raw.self": ((model.W_E @ model.W_U).argmax(axis=1) == np.arange(280))[
            counts.frequent()
        ].mean(),
        "negative gains": 0,
    }
    assert {measure: result[measure] for measure in expected} == pytest.approx(expected, rel=1e-5)


def test_a_swapped_head_has_the_best_scale(done, corpus):
    name = name_of(corpus)
    untied = replace(UNTIED, seed=1)
    text, counts = data.read_data(data.data_path(done, name, 280))
    tied = job.trained(untied, text)[0].tie()
    result = job.do_run(untied, done, name)

    def scaled_loss(factor, ids):  # a scale of the logits is one of ln_f
        ln_f = {
            key: np.float32(factor) * tied.parameters[key] for key in ("ln_f.weight", "ln_f.bias")
        }
        return token_losses(tiedgpt.GPT2(tied.config, tied.parameters | ln_f), ids, 6).mean()

    factors = np.exp(np.linspace(-3, 5, 81))
    fitted = text.tokens[: job.FITTED_TOKENS]
    best = min(factors, key=lambda factor: scaled_loss(factor, fitted))
    assert result["swapped, scaled"] == pytest.approx(scaled_loss(best, text.held_out), abs=0.01)
    counted = -np.log((counts.counts + 1) / (counts.counts + 1).sum())[text.held_out[1:]].mean()
    assert result["swapped, scaled, with counts"] < min(result["swapped, scaled"], counted + 0.02)


def test_a_factor_of_one_changes_nothing_but_the_rounding(done, corpus):
    text, _ = data.read_data(data.data_path(done, name_of(corpus), 280))
    usual = training.train(replace(TINY, layers=1, seed=1), text.tokens)[0]
    apart, _, ratios = training.train(
        replace(TINY, layers=1, seed=1, input_gradient=1.0), text.tokens
    )
    assert len(ratios) == TINY.steps
    for name, array in usual.parameters.items():
        np.testing.assert_allclose(apart.parameters[name], array, rtol=1e-3, atol=1e-4)


def test_a_factor_of_zero_leaves_the_output_part(done, corpus):
    """The rows of the tied matrix have then the gradient that W_U of an untied copy has."""
    text, _ = data.read_data(data.data_path(done, name_of(corpus), 280))
    run = replace(TINY, layers=1, seed=1, input_gradient=0.0)
    begun = training.start(run)
    ids, targets = training.draw(text.tokens, run, step=0)
    training.write_weighted_gradients(begun, ids, targets)
    untied = training.model_of(begun).untie("copy")
    _, gradients = tiedgpt.loss_and_gradients(untied, ids, targets)
    np.testing.assert_allclose(
        begun.gradients["wte.weight"], gradients["lm_head.weight"], atol=1e-7
    )


def test_a_model_is_untied_after_some_steps(done, corpus):
    text, _ = data.read_data(data.data_path(done, name_of(corpus), 280))
    run = replace(TINY, layers=1, seed=1)
    never = training.train(run, text.tokens)[0]
    late = training.train(replace(run, untie_after=19), text.tokens)[0]
    assert never.config.tied
    assert not late.config.tied
    # The matrices differ by one step, which is about as long as the rate.
    assert 0 < abs(late.W_U.T - late.W_E).max() < 3 * run.lr


def test_two_matrices_are_compared_as_study_compares_them(done, corpus):
    untied = replace(UNTIED, seed=2)
    tied = replace(TINY, seed=1)
    pair = {"compare": untied.as_json, "with": tied.as_json}
    found = results_in(done)[engine.key_of(pair, name_of(corpus))]
    text, counts = data.read_data(data.data_path(done, name_of(corpus), 280))
    models = [job.trained(run, text)[0] for run in (untied, tied)]
    expected = embeddings(models[0], counts, models[1].W_E)
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
    run = replace(TINY, lr=1e30, seed=1)
    diverging = engine.Job(run.as_json, "", job.do_run, (run, done, name_of(corpus)))
    assert engine.measured(diverging)["result"] == {"diverged": 1}


def test_a_run_that_diverges_fails_and_has_no_loss():
    key = engine.key_of({"lr": 1.0, "seed": 1}, "text")
    runs = Runs({key: {"diverged": 1.0}}, "text")
    term = Term(1, {"lr": 1.0}, "text", "loss")
    assert not runs.figure(term, seeds=(1,)).is_known
    assert runs.figure(replace(term, above=3.0), seeds=(1,)).as_count() == "1 of 1"


def test_paths_are_not_scored_by_a_text_with_few_frequent_tokens():
    tokens = np.arange(600) % 3
    model = training.model_of(training.start(TINY))
    assert job.study(model, data.Data(tokens, tokens), Corpus.of(tokens, 280)) == {}


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


def lines_of(values: list[float], **run: object) -> dict:
    """Lines of one kind of run, with the loss of each seed."""
    return {
        engine.key_of({**run, "seed": seed}, "text"): {"loss": loss}
        for seed, loss in enumerate(values)
    }


def test_a_difference_is_taken_seed_by_seed():
    """Its interval is narrower than those of its terms."""
    lines = lines_of([1.0, 2.0, 3.0, 2.0], lr=1.0) | lines_of([9.0, 10.1, 11.0, 10.0], lr=2.0)
    runs = Runs(lines, "text")
    first = Term(1, {"lr": 1.0}, "text", "loss")
    second = Term(-1, {"lr": 2.0}, "text", "loss")
    assert str(runs.figure(first, seeds=range(4))) == "2.000 [0.701, 3.299]"
    assert runs.figure(first, second, seeds=range(4)).show(2) == "-8.03 [-8.10, -7.95]"
    assert str(runs.figure(first, seeds=range(6))) == "2.000 [0.701, 3.299] (n 4)"
    assert str(runs.figure(replace(first, measure="x"), seeds=range(4))) == figures.UNKNOWN


def test_an_interval_holds_the_mean_of_95_of_100_samples():
    rng = np.random.default_rng(0)
    found = [
        figures.with_interval(figure_of(list(map(float, rng.normal(3, 2, 8))))) for _ in range(2000)
    ]
    assert 0.94 < np.mean([figure.low < 3 < figure.high for figure in found]) < 0.96
    assert all((figure.low < 0 < figure.high) == (figure.p > 0.05) for figure in found)


@pytest.mark.parametrize(
    ("mean", "half", "corrected", "verdict"),
    [
        pytest.param(0.1, 0.02, 0.01, "above", id="above"),
        pytest.param(-0.1, 0.02, 0.01, "below", id="below"),
        pytest.param(0.005, 0.01, 0.3, "none", id="no-difference"),
        pytest.param(0.005, 0.05, 0.3, "unknown", id="a-wide-interval"),
    ],
)
def test_a_verdict_needs_holms_correction(mean, half, corrected, verdict):
    figure = figure_of(
        [mean] * 3, mean=mean, low=mean - half, high=mean + half, p=0.001, corrected=corrected
    )
    assert figure.verdict == verdict


def test_a_pilot_goes_on_while_the_best_rate_is_at_an_edge():
    model = settings.Model("a", Run(), tied=0.004)
    rates = [0.002, 0.004, 0.008]
    assert Runs({}, "text").tried_rates(model, "tied") == rates
    lines = {}
    for rate, loss in ((0.002, 3.0), (0.004, 2.0), (0.008, 1.0)):
        for seed in settings.PILOT_SEEDS:
            lines[engine.key_of({"lr": rate, "seed": seed}, "text")] = {"loss": loss}
    runs = Runs(lines, "text")
    assert runs.tried_rates(model, "tied") == [*rates, 0.016]
    assert runs.best_rate(model, "tied") is None
    for seed in settings.PILOT_SEEDS:
        lines[engine.key_of({"lr": 0.016, "seed": seed}, "text")] = {"loss": 1.5}
    assert runs.best_rate(model, "tied") == 0.008


@pytest.mark.parametrize(
    ("loss_at_0_002", "chosen"),
    [
        pytest.param(1.0 + 0.9 * settings.CLOSE, 0.002, id="close-to-the-best"),
        pytest.param(1.0 + 1.1 * settings.CLOSE, 0.004, id="not-close"),
    ],
)
def test_of_rates_with_almost_the_same_loss_the_lowest_is_taken(loss_at_0_002, chosen):
    model = settings.Model("a", Run(), tied=0.004)
    lines = {}
    for rate, loss in ((0.002, loss_at_0_002), (0.004, 1.0), (0.008, 2.0)):
        for seed in settings.PILOT_SEEDS:
            lines[engine.key_of({"lr": rate, "seed": seed}, "text")] = {"loss": loss}
    assert Runs(lines, "text").best_rate(model, "tied") == chosen


def test_no_figure_of_the_page_is_written_by_hand():
    for module in (claims, first_screen):
        source = Path(module.__file__).read_text(encoding="utf-8")
        sentences = re.sub(r"\{.*?\}|\]\(.*?\)|lr=[\d.]+|\+ [\d.]+|^\$.*?$", "", source, flags=re.M)
        assert not re.findall(r"\d+\.\d{3}", sentences)


def test_the_examples_in_the_docstrings():
    found = doctest.testmod(figures)
    assert found.attempted > 0
    assert found.failed == 0
