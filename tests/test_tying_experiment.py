"""The tying experiment with tiny models: interruption, one run, statistics, the page.

The script runs in this process, with an executor that can stop it as Ctrl-C would. It trains three
tiny models with three seeds each: a tied model, an untied model, and a tied model on a text from a
Markov chain. It also compares the matrices of the tied and the untied model, for two pairs of
seeds. Each training and each comparison is a job; its result is a line of runs.jsonl.

A term is a measure of a run, such as its loss. A figure is the mean over seeds of a sum of terms.
A bar is a figure that the page shows as a bar of a picture. A path is a way through a model from
one token to the scores of the next token. A pilot trains a model with several learning rates, to
choose its rate for the experiment.
"""

import doctest
import itertools
import json
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
from tying.figures import Figure, Runs, Term, subtracted
from tying.settings import Run

import tiedgpt
from tiedgpt.checkpoints.publishing import lock_directory
from tiedgpt.evaluation import token_losses
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.similarity import embeddings
from tiedgpt.training.loop import Settings, Trainer

V = 280  # tokens of the vocabulary
TINY = Run(vocab_size=V, width=6, context=7, batch=3, steps=20, lr=0.01)
UNTIED = replace(TINY, head="untied")
ONE_LAYER = replace(TINY, layers=1, seed=1)
TINY_CHAIN = Run(
    text="chain", layers=1, jsd=0.65, vocab_size=17, width=6, context=7, batch=3, steps=20, lr=0.01
)
SEEDS = (1, 2, 3)
PAIRS_OF_SEEDS = ((1, 2), (2, 1))
TEXT_JOBS = 2 * len(SEEDS) + len(PAIRS_OF_SEEDS)  # trainings of two models, and comparisons
CHAIN_JOBS = len(SEEDS)
JOBS = TEXT_JOBS + CHAIN_JOBS
STRIDE = TINY.context - 1  # a window predicts all tokens but its first
real_processes = engine.processes  # the fixture `inline_executor` replaces it


class Inline(Executor):
    """An executor that does a job in this process, when its result is asked for.

    After `stop_after` jobs it raises KeyboardInterrupt, as Ctrl-C would.
    """

    def __init__(self) -> None:
        self.done_jobs: list[engine.Job] = []
        self.stop_after = math.inf

    def forget_jobs(self) -> None:
        """Forget the jobs of earlier tests. Do not stop until `stop_after` is set again."""
        self.done_jobs = []
        self.stop_after = math.inf

    def submit(self, function, job):
        def result(timeout=None):
            if len(self.done_jobs) >= self.stop_after:
                raise KeyboardInterrupt
            self.done_jobs.append(job)
            return function(job)

        future: Future = Future()
        future.set_result(None)  # it counts as finished, so that the script asks for its result
        future.result = result
        return future


def tiny_numbers(runs: Runs) -> figures.Numbers:
    """Three figures: the cost of the tie, the excess on the chain, and the similarity."""
    cost = (runs.run_term(TINY, "loss"), subtracted(runs.run_term(UNTIED, "loss")))
    chain = runs.run_term(TINY_CHAIN, "excess")
    similarity = runs.similarity_term(UNTIED, TINY, "out and tied")
    return {
        "cost": runs.figure(*cost, seeds=SEEDS),
        "chain": runs.figure(chain, seeds=SEEDS),
        "similarity": runs.figure(similarity, seeds=PAIRS_OF_SEEDS),
    }


def tiny_text(n: figures.Numbers) -> str:
    return f"The tie costs {n['cost']}."


def tiny_plan(runs: Runs, numbers: dict, out: Path) -> list[engine.Job]:
    return list(plan.jobs_of(tiny_numbers(runs).values(), out))


@pytest.fixture(scope="module")
def inline_executor():
    """The executor of every experiment here. The experiment is patched to have tiny models only."""
    executor = Inline()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "processes", lambda workers: nullcontext(executor))
        patch.setattr(tying_experiment, "Run", lambda: TINY)  # for the size of the vocabulary
        patch.setattr(data, "CHAIN_TOKENS", 2000)
        patch.setattr(job, "FITTED_TOKENS", 400)
        patch.setattr(plan, "whole_plan", tiny_plan)
        patch.setitem(page.CLAIMS, 1, Claim("tiny models", tiny_numbers, tiny_text))
        yield executor


@pytest.fixture(scope="module")
def text_file(tmp_path_factory) -> Path:
    """A text of 4000 words, in which each word is followed by one of three words."""
    sentences = "my lord the king $ is dead\n and the queen lives.\n é"
    words = sentences.split(" ")
    # The next word is 1, 2 or 5 places later in the list, most often 1.
    steps = random.Random(3).choices([1, 1, 1, 2, 5], k=4000)
    places = itertools.accumulate(steps)
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text(" ".join(words[place % len(words)] for place in places), encoding="utf-8")
    return path


def run_script(*arguments) -> int:
    return tying_experiment.main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def finished_out(tmp_path_factory, text_file, inline_executor) -> Path:
    """The directory of an experiment that was not interrupted."""
    out = tmp_path_factory.mktemp("done") / "out"
    assert run_script(text_file, out) == 0
    return out


@pytest.fixture
def copied_out(finished_out, tmp_path, inline_executor) -> Path:
    """A copy of `finished_out`. The executor forgets the jobs that it has done."""
    inline_executor.forget_jobs()
    return shutil.copytree(finished_out, tmp_path / "out")


def name_of(text_file: Path) -> str:
    return data.text_name(text_file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokens_and_counts(finished_out, text_file) -> tuple[data.Data, Corpus]:
    """The tokens of the text (for training, and held out), and the counts of those for training."""
    return data.read_data(data.data_path(finished_out, name_of(text_file), V))


def results_in(out: Path) -> dict:
    return engine.read_lines(out / "runs.jsonl")


def contents_of(out: Path) -> list[bytes]:
    return [path.read_bytes() for path in out.glob("*.*")]


def test_an_experiment_interrupted_after_2_and_after_6_jobs_goes_on_and_does_no_job_twice(
    finished_out, text_file, tmp_path, inline_executor, capsys
):
    out = tmp_path / "out"
    inline_executor.forget_jobs()
    for stop_after in (2, 6):
        inline_executor.stop_after = stop_after
        assert run_script(text_file, out) == 130
        assert "the same command continues" in capsys.readouterr().err
        assert not (out / "tables.md").exists()
        assert len(results_in(out)) == stop_after
    with open(out / "runs.jsonl", "a", encoding="utf-8") as file:
        file.write('{"run": {"lr": 0.0')  # as if the machine had gone off while it wrote a line

    inline_executor.stop_after = math.inf
    assert run_script(text_file, out) == 0
    assert results_in(out) == results_in(finished_out)
    keys = [job.key for job in inline_executor.done_jobs]
    assert len(keys) == len(set(keys)) == JOBS

    # The finished experiment is run once more. It has nothing to do.
    capsys.readouterr()
    assert run_script(text_file, out) == 0
    assert len(inline_executor.done_jobs) == JOBS
    assert re.match(rf"0 of {JOBS} runs are missing: about 0.0 minutes\n", capsys.readouterr().err)


def test_with_another_text_all_jobs_are_done_again_but_those_on_chains(
    copied_out, text_file, tmp_path, inline_executor
):
    other_text = tmp_path / "text"
    other_text.write_text(text_file.read_text(encoding="utf-8") + " The end.", encoding="utf-8")
    assert run_script(other_text, copied_out) == 0
    assert len(inline_executor.done_jobs) == TEXT_JOBS
    assert not any(job.run.get("text") == "chain" for job in inline_executor.done_jobs)


def test_only_the_published_text_has_a_page(copied_out, text_file, inline_executor, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -e .[plot]")
    assert not (copied_out / "README.md").exists()
    monkeypatch.setattr(tying_experiment, "PUBLISHED", name_of(text_file))  # now it is this text
    assert run_script(text_file, copied_out) == 0
    assert not inline_executor.done_jobs
    assert "Should I tie?" in (copied_out / "README.md").read_text(encoding="utf-8")
    assert (copied_out / "costs.png").exists()


def test_with_no_training_no_job_is_done_and_the_tables_say_unknown(
    text_file, tmp_path, inline_executor
):
    inline_executor.forget_jobs()
    assert run_script(text_file, tmp_path, "--no-training") == 0
    assert not inline_executor.done_jobs
    assert figures.UNKNOWN in (tmp_path / "tables.md").read_text(encoding="utf-8")


def test_one_claim_is_printed_and_the_files_stay_as_they_are(
    copied_out, text_file, inline_executor, capsys
):
    before = contents_of(copied_out)
    assert run_script(text_file, copied_out, "--claim", 1) == 0
    assert not inline_executor.done_jobs
    assert contents_of(copied_out) == before

    shown, err = capsys.readouterr()
    assert err.startswith(f"0 of {JOBS} runs are missing")
    runs = Runs(results_in(copied_out), name_of(text_file))
    cost = tiny_numbers(runs)["cost"]
    assert shown.startswith(f"# Claim 1: tiny models\n\nThe tie costs {cost}.\n")
    # A row of the table: name, mean and interval, sd, number of seeds, p.
    assert f"| cost | {cost} | {cost.sd:.3f} | {len(SEEDS)} | {cost.p:.1g} | " in shown


def test_a_claim_trains_runs_that_are_needed_only_when_others_are_known(
    text_file, tmp_path, inline_executor, monkeypatch
):
    """In claim 11, the limit must be known before the trainings above it can be counted."""

    def numbers(runs: Runs) -> figures.Numbers:
        limit = runs.figure(runs.run_term(UNTIED, "loss"), seeds=SEEDS)
        if not limit.is_known:
            return {"limit": limit}
        return {"limit": limit, "tied": runs.figure(runs.run_term(TINY, "loss"), seeds=SEEDS)}

    inline_executor.forget_jobs()
    claim = page.CLAIMS[1]
    patched = replace(claim, numbers=numbers, text=lambda n: f"{n['limit']} {n['tied']}")
    monkeypatch.setitem(page.CLAIMS, 1, patched)
    assert run_script(text_file, tmp_path / "out", "--claim", 1) == 0
    assert len(inline_executor.done_jobs) == 2 * len(SEEDS)


@pytest.fixture
def published(copied_out, text_file, monkeypatch):
    """The cost for the tiny models, as if it were the published cost of the bar "width 64"."""
    published = tiny_numbers(Runs(results_in(copied_out), name_of(text_file)))["cost"]
    bar = next(bar for bar in first_screen.BARS if bar.name == "width 64")
    monkeypatch.setattr(page, "bar", lambda runs, name: (bar, published))
    monkeypatch.setattr(tying_experiment, "PUBLISHED", name_of(text_file))
    return published


def test_a_bar_is_repeated_with_new_seeds(
    published, copied_out, text_file, inline_executor, capsys
):
    assert run_script(text_file, copied_out, "--bar", "width 64") == 0
    seeds = {job.run["seed"] for job in inline_executor.done_jobs}
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
def test_a_repeated_bar_says_whether_its_mean_lies_in_two_intervals(mean, words):
    """The published interval, [0.09, 0.11], and the interval for the mean of three new seeds."""
    published = figure_of([0.1] * 12, mean=0.1, low=0.09, high=0.11)
    new = figure_of([mean] * 3, mean=mean)
    assert words in first_screen.repeat("a bar", new, published)


def figure_of(values: list[float], **numbers: float) -> Figure:
    """A figure with these values, of the seeds 0, 1, ..., and with these numbers."""
    seeds = tuple(range(len(values)))
    return Figure(terms=(), seeds=seeds, all_seeds=seeds, values=tuple(values), **numbers)


def test_two_runs_into_one_directory_are_refused(copied_out, text_file, capsys):
    with lock_directory(copied_out):
        assert run_script(text_file, copied_out) == 2
    assert "is in use by process" in capsys.readouterr().err


LINE = '{"run": {}, "text": "", "result": {"loss": 1.0}}'
WRONG_LINES = [
    pytest.param('{"run"', id="no JSON"),
    pytest.param("what?", id="no JSON either"),
    pytest.param("[]", id="a list"),
    pytest.param('{"run": 3}', id="no text and no result"),
    pytest.param('{"run": {}, "text": "", "result": {"loss": 2.0}}', id="another result"),
    pytest.param('{"run": {}, "text": "", "result": {"loss": []}}', id="a list for a number"),
    pytest.param('{"run": {}, "text": "", "result": {"loss": "abc"}}', id="a word for a number"),
    pytest.param('{"run": {}, "text": "a", "result": {}}', id="an empty result"),
]


@pytest.mark.parametrize("line", WRONG_LINES)
def test_a_wrong_line_of_runs_jsonl_is_named(inline_executor, tmp_path, capsys, line):
    (tmp_path / "text").write_text("too short", encoding="utf-8")
    (tmp_path / "runs.jsonl").write_text(f"{LINE}\n{line}\n", encoding="utf-8")
    assert run_script(tmp_path / "text", tmp_path) == 2
    error = only_error(capsys.readouterr().err)
    assert "runs.jsonl, line 2: expected a run of this script" in error


def test_a_missing_text_is_named(inline_executor, tmp_path, capsys):
    assert run_script(tmp_path / "missing", tmp_path) == 2
    assert "No such file" in only_error(capsys.readouterr().err)


def test_a_text_that_is_too_short_is_refused(inline_executor, tmp_path, capsys):
    (tmp_path / "text").write_text("too short", encoding="utf-8")
    (tmp_path / "runs.jsonl").write_text("", encoding="utf-8")  # no run is finished yet
    assert run_script(tmp_path / "text", tmp_path) == 2
    assert "give a longer text" in only_error(capsys.readouterr().err)


def only_error(err: str) -> str:
    """The last line of stderr. The lines before it say how many runs are missing."""
    *other_lines, last = err.splitlines()
    assert all("runs are missing" in line for line in other_lines)
    return last


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[:99], id="cut off"),
        pytest.param(lambda data: b"x" + data[1:], id="another first byte"),
    ],
)
def test_damaged_tokens_are_an_error_that_names_the_file(text_file, tmp_path, damage):
    text = text_file.read_text(encoding="utf-8")
    data.prepare(text, V, tmp_path)
    path = data.data_path(tmp_path, data.text_name(text), V)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(tiedgpt.TiedGPTError, match=f"{path.name} is damaged: remove it"):
        data.read_data(path)


TRAINING = "\r1 of"  # the progress bar shows this when the first run is done


@pytest.mark.parametrize(
    ("number", "shown", "code", "continues"),
    [
        # While it imports, the script has nothing to clean up, so the signal kills it at once.
        # "run" is in the first line that it prints: how many runs are missing. Only after Ctrl-C
        # does it print a last line.
        pytest.param(signal.SIGINT, "importing", -signal.SIGINT, False, id="Ctrl-C, importing"),
        pytest.param(signal.SIGINT, "run", 128 + signal.SIGINT, True, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, TRAINING, 128 + signal.SIGTERM, False, id="SIGTERM"),
        pytest.param(signal.SIGKILL, TRAINING, -signal.SIGKILL, False, id="SIGKILL"),
    ],
)
def test_a_signal_ends_the_script_and_its_workers(tmp_path, number, shown, code, continues):
    """The signal is sent when the script has printed `shown`. The script must end with `code`.

    continues: whether the script must say that the same command continues.
    """
    text = tmp_path / "text"
    enough_for_512_tokens = " ".join(str(n * n) for n in range(8000))
    text.write_text(enough_for_512_tokens, encoding="utf-8")
    script = Path(tying_experiment.__file__)
    path = [str(script.parents[1])]
    if shown == "importing":
        # The script imports this slow module in place of NumPy.
        slow_import = "print('importing', flush=True); import time; time.sleep(60)"
        (tmp_path / "numpy.py").write_text(slow_import)
        path.append(str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, script, text, tmp_path / "out"],
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    out = b""
    while shown.encode() not in out:
        byte = process.stdout.read(1)
        assert byte, out
        out += byte

    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # the terminal sends it to the workers too
    else:
        os.kill(process.pid, number)
    # The workers write to the same pipe, so that `communicate` waits until they have ended too.
    rest, _ = process.communicate(timeout=60)
    out += rest
    assert process.returncode == code
    assert b"Traceback" not in out
    assert (b"the same command continues" in out) == continues


def test_an_exception_in_the_block_of_processes_ends_the_running_jobs():
    with pytest.raises(KeyboardInterrupt), real_processes(1) as executor:  # noqa: PT012
        executor.submit(time.sleep, 600)
        (process,) = multiprocessing.active_children()
        raise KeyboardInterrupt
    process.join(timeout=120)  # less than the 600 s of the job
    assert process.exitcode == -signal.SIGTERM


def test_models_of_one_seed_with_different_heads_differ_at_the_start_in_W_U_alone():
    """A model with the head "signs" differs from a tied one in the gains of ln_f instead."""
    run = replace(ONE_LAYER, seed=5)
    tied = training.model_of(training.start(run))
    starts_of_W_U = {
        "copy": tied.W_E,
        "zeros": 0 * tied.W_E,
        "untied": tied.untie("random", 5).W_U.T,
        "signs": tied.W_E,
    }
    for head, start_of_W_U in starts_of_W_U.items():
        model = training.model_of(training.start(replace(run, head=head)))
        np.testing.assert_array_equal(model.W_U.T, start_of_W_U)
        for key, array in tied.parameters.items():
            if head == "signs" and key == "ln_f.weight":
                assert set(model.parameters[key]) == {-1.0, 1.0}
            else:
                np.testing.assert_array_equal(model.parameters[key], array)


@pytest.mark.parametrize(
    ("only", "off", "on"), [("MLP", "attn", "mlp"), ("attention", "mlp", "attn")]
)
def test_with_only_one_sublayer_the_other_has_no_output_and_parameters_of_zero(only, off, on):
    """`on` is the sublayer that the model has, `off` the one that it lacks."""
    tokens = np.random.default_rng(0).integers(0, V, 500)
    model, _ = job.trained(replace(ONE_LAYER, only=only), data.Data(tokens, tokens))
    tape: dict = {}
    model(tokens[: TINY.context], tape=tape)
    assert not tape[f"{off}.0.out"].any()  # of layer 0
    assert tape[f"{on}.0.out"].any()
    for name, array in model.parameters.items():
        if f".{off}." in name:
            assert not array.any(), name


def test_the_result_of_a_run_has_the_measures_of_the_trained_model(
    finished_out, text_file, tokens_and_counts
):
    """The same model is trained here by the package's Trainer, and measured."""
    untied = replace(ONE_LAYER, head="untied")
    result = job.do_run(untied, finished_out, name_of(text_file))

    text, counts = tokens_and_counts
    model = tiedgpt.GPT2.random(settings.config(untied), 1).untie("random", 1)
    trainer_settings = Settings(steps=20, batch=3, context=7, lr=untied.lr, seed=1, threads=1)
    trainer = Trainer(model, text.tokens, text.held_out, trainer_settings)
    for record in trainer.run():
        if record["step"] == 2:  # a tenth of the 20 steps; the early loss is measured here
            early_tokens = text.held_out[: job.EARLY_TOKENS]
            early_loss = token_losses(trainer.model, early_tokens, STRIDE).mean()
    model = trainer.model
    A = model.W_E @ model.W_U
    predicts_itself = A.argmax(axis=1) == np.arange(V)
    expected = {
        "loss": token_losses(model, text.held_out, STRIDE).mean(),
        "early loss": early_loss,
        "training loss": token_losses(model, text.tokens[: job.TRAIN_TOKENS], STRIDE).mean(),
        "swapped": token_losses(model.tie(), text.held_out, STRIDE).mean(),
        "raw.self": predicts_itself[counts.frequent()].mean(),
        "negative gains": 0,
    }
    assert {measure: result[measure] for measure in expected} == pytest.approx(expected, rel=1e-5)


def test_the_losses_of_a_swapped_head_are_those_of_the_best_scale(
    finished_out, text_file, tokens_and_counts
):
    """A swapped head is `x @ wte.T` in an untied model. Its logits are multiplied by a scale.

    "With counts" means that a multiple of the logarithm of the tokens' shares is added to them.
    """
    untied = replace(UNTIED, seed=1)
    result = job.do_run(untied, finished_out, name_of(text_file))
    text, counts = tokens_and_counts
    model, _ = job.trained(untied, text)
    tied = model.tie()

    def scaled_loss(factor, ids):
        # To multiply the logits by a factor, multiply the weight and the bias of ln_f.
        scaled = dict(tied.parameters)
        for key in ("ln_f.weight", "ln_f.bias"):
            scaled[key] = np.float32(factor) * tied.parameters[key]
        return token_losses(tiedgpt.GPT2(tied.config, scaled), ids, STRIDE).mean()

    factors = np.exp(np.linspace(-3, 5, 81))
    fitted = text.tokens[: job.FITTED_TOKENS]
    best = min(factors, key=lambda factor: scaled_loss(factor, fitted))
    assert result["swapped, scaled"] == pytest.approx(scaled_loss(best, text.held_out), abs=0.01)

    # With the counts, the loss is lower than with the scale alone. It is not above the loss of the
    # counts alone; 0.02 is for the held-out text, to which nothing is fitted.
    counts_of_tokens = counts.counts + 1  # [V]; 1 is added because 0 has no logarithm
    shares = counts_of_tokens / counts_of_tokens.sum()
    loss_of_counts = -np.log(shares)[text.held_out[1:]].mean()
    with_counts = result["swapped, scaled, with counts"]
    assert with_counts < result["swapped, scaled"]
    assert with_counts < loss_of_counts + 0.02


def test_an_input_gradient_of_1_changes_nothing_but_the_rounding(tokens_and_counts):
    """`input_gradient` is a factor of the embedding's part of the tied matrix's gradient."""
    text, _ = tokens_and_counts
    usual, _, _ = training.train(ONE_LAYER, text.tokens)
    with_factor, _, ratios = training.train(replace(ONE_LAYER, input_gradient=1.0), text.tokens)
    assert len(ratios) == TINY.steps
    for name, array in usual.parameters.items():
        np.testing.assert_allclose(with_factor.parameters[name], array, rtol=1e-3, atol=1e-4)


def test_with_an_input_gradient_of_0_wte_has_the_gradient_of_W_U_alone(tokens_and_counts):
    """The expected gradient is that of W_U in an untied copy of the model."""
    text, _ = tokens_and_counts
    run = replace(ONE_LAYER, input_gradient=0.0)
    begun = training.start(run)
    ids, targets = training.draw(text.tokens, run, step=0)
    training.write_weighted_gradients(begun, ids, targets)
    untied = training.model_of(begun).untie("copy")
    _, gradients = tiedgpt.loss_and_gradients(untied, ids, targets)
    np.testing.assert_allclose(
        begun.gradients["wte.weight"], gradients["lm_head.weight"], atol=1e-7
    )


def test_a_model_is_untied_before_its_last_step(tokens_and_counts):
    text, _ = tokens_and_counts
    tied, _, _ = training.train(ONE_LAYER, text.tokens)
    before_the_last_step = TINY.steps - 1
    untied, _, _ = training.train(replace(ONE_LAYER, untie_after=before_the_last_step), text.tokens)
    assert tied.config.tied
    assert not untied.config.tied
    # W_U and W_E have had one step apart. A step changes a number by about the learning rate.
    assert 0 < abs(untied.W_U.T - untied.W_E).max() < 3 * TINY.lr


def test_two_matrices_are_compared_as_study_compares_them(
    finished_out, text_file, tokens_and_counts
):
    untied = replace(UNTIED, seed=2)
    tied = replace(TINY, seed=1)
    pair = {"compare": untied.as_json, "with": tied.as_json}
    found = results_in(finished_out)[engine.key_of(pair, name_of(text_file))]

    text, counts = tokens_and_counts
    untied_model, _ = job.trained(untied, text)
    tied_model, _ = job.trained(tied, text)
    expected = embeddings(untied_model, counts, tied_model.W_E)
    assert found["in and tied, 0 removed"] == pytest.approx(expected["in_tied"], rel=1e-5)
    assert found["out and tied, 0 removed"] == pytest.approx(expected["out_tied"], rel=1e-5)


def test_rows_without_two_components_keep_their_other_three():
    """The 50 rows have five orthogonal components. The first two have the largest variances."""
    rng = np.random.default_rng(0)
    directions, _ = np.linalg.qr(rng.standard_normal((5, 5)))
    random_rows = rng.standard_normal((50, 5))
    orthonormal, _ = np.linalg.qr(random_rows - random_rows.mean(axis=0))
    coordinates = orthonormal * [9, 5, 1, 1, 1]
    rows = coordinates @ directions.T + 3  # the mean, 3, is removed too
    assert texts.without_components(rows, 0) is rows
    remaining = texts.without_components(rows, 2)
    expected = coordinates[:, 2:] @ directions[:, 2:].T
    np.testing.assert_allclose(remaining, expected, atol=1e-9)


def test_the_result_of_a_run_that_diverges_says_so(finished_out, text_file):
    run = replace(TINY, lr=1e30, seed=1)  # so large a rate that the numbers overflow
    arguments = (run, finished_out, name_of(text_file))
    diverging = engine.Job(
        run=run.as_json, text=name_of(text_file), function=job.do_run, arguments=arguments
    )
    assert engine.measured(diverging)["result"] == {"diverged": 1}


def test_a_run_that_diverges_counts_as_above_any_limit_and_has_no_mean_loss():
    key = engine.key_of({"lr": 1.0, "seed": 1}, "text")
    runs = Runs({key: {"diverged": 1.0}}, "text")
    loss = Term(run={"lr": 1.0}, text="text", measure="loss")
    failures = replace(loss, above=3.0)  # the number of runs whose loss is above 3
    assert not runs.figure(loss, seeds=(1,)).is_known
    assert runs.figure(failures, seeds=(1,)).as_count() == "1 of 1"


def test_paths_are_not_scored_by_a_text_with_few_frequent_tokens():
    tokens = np.arange(600) % 3  # three frequent ones
    model = training.model_of(training.start(TINY))
    assert job.study(model, data.Data(tokens, tokens), Corpus.of(tokens, V)) == {}


def test_the_loss_of_smoothed_bigrams_is_that_of_the_best_strength():
    """The strength is the number of tokens that are added to each row of counts.

    They are added in proportion to their frequency in the text.
    """
    # Random tokens do not depend on the token before, so that the highest strength is best.
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 5, 400)
    held_out = rng.integers(0, 5, 100)
    assert texts.smoothed_loss(tokens, held_out, 5) == pytest.approx(math.log(5), abs=0.05)

    # In a cycle each token decides the next token, so that the lowest strength is best.
    cycle = np.arange(1000) % 5
    assert texts.smoothed_loss(cycle, cycle[:100], 5) < 0.01


def test_the_ratio_of_step_times_is_untied_over_tied(monkeypatch):
    """By the clock of this test, a tied step takes 2 s and an untied step 3 s.

    The tied and the untied model take turns. The clock is read before and after each step.
    """
    seconds_since_last_reading = itertools.cycle([0.0, 2.0, 0.0, 3.0])
    times = itertools.accumulate(seconds_since_last_reading)
    monkeypatch.setattr(texts, "process_time", lambda: next(times))
    assert texts.time_steps(TINY, 300) == {"ratio": 3 / 2}


def lines_of(losses: list[float], **run: object) -> dict:
    """Lines of runs with these settings and the seeds 0, 1, ..., which have these losses."""
    lines = {}
    for seed, loss in enumerate(losses):
        lines[engine.key_of({**run, "seed": seed}, "text")] = {"loss": loss}
    return lines


def test_a_difference_is_taken_seed_by_seed():
    """So its interval is narrower than the interval of its first term."""
    lines = lines_of([1.0, 2.0, 3.0, 2.0], lr=1.0) | lines_of([9.0, 10.1, 11.0, 10.0], lr=2.0)
    runs = Runs(lines, "text")
    first = Term(run={"lr": 1.0}, text="text", measure="loss")
    second = Term(run={"lr": 2.0}, text="text", measure="loss")
    assert str(runs.figure(first, seeds=range(4))) == "2.000 [0.701, 3.299]"
    assert runs.figure(first, subtracted(second), seeds=range(4)).show(2) == "-8.03 [-8.10, -7.95]"


def test_a_figure_says_how_many_seeds_it_has_if_some_are_missing():
    runs = Runs(lines_of([1.0, 2.0, 3.0, 2.0], lr=1.0), "text")
    loss = Term(run={"lr": 1.0}, text="text", measure="loss")
    assert str(runs.figure(loss, seeds=range(6))) == "2.000 [0.701, 3.299] (n 4)"


def test_a_figure_of_a_measure_that_no_run_has_is_not_known():
    runs = Runs(lines_of([1.0, 2.0, 3.0, 2.0], lr=1.0), "text")
    not_measured = Term(run={"lr": 1.0}, text="text", measure="x")
    assert str(runs.figure(not_measured, seeds=range(4))) == figures.UNKNOWN


def test_95_of_100_intervals_contain_the_true_mean():
    """A sample is 8 normal numbers with the mean 3. p is above 0.05 if its interval contains 0."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(2000):
        sample = rng.normal(3, 2, 8).tolist()
        found.append(figures.with_interval(figure_of(sample)))
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
    """`half` is half the width of the interval. `corrected` is p after the correction.

    The verdict says where the mean lies: above 0, below 0, or neither ("none"). It is "unknown" if
    the interval is wide. p is low in all cases, and the verdict must not use it.
    """
    low = mean - half
    high = mean + half
    figure = figure_of([mean] * 3, mean=mean, low=low, high=high, p=0.001, corrected=corrected)
    assert figure.verdict == verdict


def pilot_lines(losses: dict[float, float]) -> dict:
    """Lines of a pilot: for each learning rate, all its seeds have the same loss."""
    lines = {}
    for rate, loss in losses.items():
        for seed in settings.PILOT_SEEDS:
            lines[engine.key_of({"lr": rate, "seed": seed}, "text")] = {"loss": loss}
    return lines


def test_a_pilot_goes_on_while_the_best_rate_is_the_lowest_or_the_highest():
    model = settings.Model("a", Run(), tied=0.004)
    first_rates = [0.002, 0.004, 0.008]
    assert Runs({}, "text").tried_rates(model, "tied") == first_rates

    # The highest rate is the best, so its double is tried too.
    lines = pilot_lines({0.002: 3.0, 0.004: 2.0, 0.008: 1.0})
    runs = Runs(lines, "text")
    assert runs.tried_rates(model, "tied") == [*first_rates, 2 * 0.008]
    assert runs.best_rate(model, "tied") is None

    # The double is worse, so the pilot is finished.
    runs = Runs(lines | pilot_lines({0.016: 1.5}), "text")
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
    lines = pilot_lines({0.002: loss_at_0_002, 0.004: 1.0, 0.008: 2.0})
    assert Runs(lines, "text").best_rate(model, "tied") == chosen


def test_on_a_chain_the_rate_with_the_lowest_loss_is_taken():
    """The differences of excesses on chains are small, so no rate is close enough to the best."""
    model = settings.Model("a", Run(text="chain"), tied=0.004)
    lines = {}
    for rate, excess in ((0.002, 0.1001), (0.004, 0.1), (0.008, 0.2)):
        for seed in settings.PILOT_SEEDS:
            run = replace(model.run("tied", rate), seed=seed)
            lines[engine.key_of(run.as_json, "")] = {"excess": excess}
    assert Runs(lines, "text").best_rate(model, "tied") == 0.004


def test_while_the_limit_is_not_known_it_is_not_known_how_many_trainings_fail():
    run = {"layers": 1, "lr": 0.008}
    lines = {engine.key_of({**run, "seed": seed}, "text"): {"loss": 9.0} for seed in settings.SEEDS}
    runs = Runs(lines, "text")
    assert runs.failing("tied", rate=0.008, limit=3.0).as_count() == "12 of 12"
    unknown = runs.failing("tied", rate=0.008, limit=math.nan)
    assert unknown.as_count() == figures.UNKNOWN
    assert unknown.terms == ()


def test_a_bar_is_not_repeated_with_another_text(text_file, tmp_path, inline_executor, capsys):
    inline_executor.forget_jobs()
    assert run_script(text_file, tmp_path / "out", "--bar", "width 64") == 2
    assert "this text has the name" in capsys.readouterr().err
    assert inline_executor.done_jobs == []


def test_a_bar_whose_training_diverged_is_an_error(
    published, copied_out, text_file, inline_executor, capsys
):
    lines = []
    for term in published.terms:
        for seed in settings.NEW_SEEDS:
            lines.append({"run": {**term.run, "seed": seed}, "text": term.text})
    with open(copied_out / "runs.jsonl", "a") as file:
        for line in lines:
            file.write(json.dumps({**line, "result": {"diverged": 1}}) + "\n")
    assert run_script(text_file, copied_out, "--bar", "width 64") == 2
    assert "a training diverged" in capsys.readouterr().err


def test_the_modules_of_the_page_hold_no_figures():
    """Figures, numbers with three digits after the point, must be computed from the runs."""
    # These may hold such numbers: replacement fields, links, learning rates, sums and commands.
    left_out = r"\{.*?\}|\]\(.*?\)|lr=[\d.]+|\+ [\d.]+|^\$.*?$"
    for module in (claims, first_screen):
        source = Path(module.__file__).read_text(encoding="utf-8")
        sentences = re.sub(left_out, "", source, flags=re.M)
        assert not re.findall(r"\d+\.\d{3}", sentences)


def test_the_examples_in_the_docstrings():
    found = doctest.testmod(figures)
    assert found.attempted > 0
    assert found.failed == 0
