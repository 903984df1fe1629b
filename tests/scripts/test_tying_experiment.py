"""The tying experiment with tiny models: training, measures, pilots, the queue."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tying_experiment
from support.reference import SHARED
from tying import runs, trainer
from tying.runs import FINAL_SEEDS, PILOT_SEEDS, Row, Run, key_of, pilot
from tying_experiment import ExperimentError

from tiedgpt.gpt2.backward import loss_and_gradients
from tiedgpt.study import paths
from tiedgpt.study.corpus import Corpus

V = 280
TINY = Run(layers=1, vocab_size=V, width=6, context=7, batch=3, steps=20, lr=0.01, seed=1)


@pytest.fixture(scope="module")
def text() -> str:
    """2,000 words, each followed by one of the next three in a circle of eleven."""
    words = ["my", "lord", "the", "king", "$", "is", "dead", "and", "the", "queen", "lives"]
    steps = np.random.default_rng(3).choice([1, 2, 3], 2_000).cumsum()
    return " ".join(words[place % len(words)] for place in steps)


@pytest.fixture(scope="module")
def tokens(text) -> np.ndarray:
    return trainer.read_text(text, V).tokens


# ---- Training ----


def plainly_trained(run: Run, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """The parameters after AdamW as its paper has it, in float64, with PyTorch's clipping."""
    model = trainer.first_model(run).astype(np.float64)
    parameters = model.parameters
    m = dict.fromkeys(parameters, 0.0)
    v = dict.fromkeys(parameters, 0.0)
    warm_up = run.steps // 10
    for step in range(run.steps):
        rng = np.random.default_rng([run.seed, step, 0, 0])
        starts = rng.integers(0, len(tokens) - run.context, run.batch)
        ids = np.stack([tokens[start : start + run.context] for start in starts])
        targets = np.stack([tokens[start + 1 : start + 1 + run.context] for start in starts])
        _, gradients = loss_and_gradients(model, ids, targets)
        norm = math.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        if step < warm_up:
            rate = run.lr * (step + 1) / (warm_up + 1)
        else:
            done = (step - warm_up) / (run.steps - warm_up)
            rate = run.lr * (0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2)
        own_rates = {"wte.weight": run.W_E_rate, "lm_head.weight": run.W_U_rate}
        for name, array in parameters.items():
            own_rate = rate * own_rates.get(name, 1)
            g = gradients[name] * min(1, 1 / norm)
            if array.ndim == 2:
                array *= 1 - own_rate * 0.1
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.99 * v[name] + 0.01 * g**2
            m_hat = m[name] / (1 - 0.9 ** (step + 1))
            v_hat = v[name] / (1 - 0.99 ** (step + 1))
            array -= own_rate * m_hat / (np.sqrt(v_hat) + 1e-8)
    return parameters


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="tied"),
        pytest.param({"head": "untied"}, id="untied", marks=pytest.mark.slow),
        pytest.param({"table": 1.0}, id="large gradients, which are clipped"),
        pytest.param({"head": "untied", "W_E_rate": 3.0}, id="a rate for W_E"),
        pytest.param(
            {"head": "zeros", "W_U_rate": 0.3}, id="a rate for W_U", marks=pytest.mark.slow
        ),
        pytest.param({"layers": 2, "W_E_rate": 0.3}, id="a rate for a tied table"),
    ],
)
def test_a_training_is_adamw_on_the_batches_of_its_seed(changes, tokens):
    run = replace(TINY, **changes)
    training = trainer.Training(run)
    for step in range(run.steps):
        training.step(tokens, step)
    for name, array in plainly_trained(run, tokens).items():
        np.testing.assert_allclose(training.parameters[name], array, atol=2e-3, err_msg=name)


@pytest.mark.parametrize("changes", [{"input_scale": 8.0}, {"layers": 3, "one_block": True}])
@pytest.mark.parametrize("head", ["tied", "untied"])
def test_the_gradient_of_a_number_that_is_used_in_several_places(changes, head, tokens):
    """It is the change of the loss for a small change of the number."""
    run = replace(TINY, head=head, lr=0.0, **changes)
    training = trainer.Training(run)

    def loss() -> float:
        training.fill_model()
        model = training.model.astype(np.float64)
        return loss_and_gradients(model, *trainer.draw(tokens, run, 0))[0]

    training.step(tokens, 0)  # with a rate of 0 it computes the gradient and changes nothing
    for name in ("wte.weight", "h.0.mlp.c_fc.weight"):
        values = training.parameters[name].ravel()  # views
        gradients = training.gradients[name].ravel()
        place = np.abs(gradients).argmax()
        before = values[place]
        change = 1e-3
        values[place] = before + change
        above = loss()
        values[place] = before - change
        below = loss()
        values[place] = before
        assert gradients[place] == pytest.approx((above - below) / (2 * change), rel=0.02)


def test_heads_and_starts_of_one_seed_differ_in_the_tables_and_signs_alone():
    tied = trainer.first_model(TINY).parameters
    untied = trainer.first_model(replace(TINY, head="untied")).parameters
    for name, array in tied.items():
        np.testing.assert_array_equal(untied[name], array, err_msg=name)
    assert untied["lm_head.weight"].std() == pytest.approx(0.02, rel=0.05)

    zeros = trainer.first_model(replace(TINY, head="zeros")).parameters
    assert not zeros["lm_head.weight"].any()
    signs = trainer.first_model(replace(TINY, head="signs")).parameters["ln_f.weight"]
    assert set(signs) == {-1, 1}

    large = trainer.first_model(replace(TINY, head="untied", table=0.1)).parameters
    for name, array in untied.items():
        factor = 5 if name in ("wte.weight", "lm_head.weight") else 1
        np.testing.assert_allclose(large[name], factor * array, rtol=1e-6, err_msg=name)
    one = trainer.first_model(replace(TINY, head="untied", table=0.1, only_table="W_U")).parameters
    np.testing.assert_array_equal(one["wte.weight"], untied["wte.weight"])
    np.testing.assert_array_equal(one["lm_head.weight"], large["lm_head.weight"])


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_the_input_is_scaled_and_the_output_not_and_one_block_is_used_twice(head):
    training = trainer.Training(replace(TINY, head=head, layers=2, input_scale=8.0, one_block=True))
    training.fill_model()
    model = training.model
    trained = training.parameters
    np.testing.assert_array_equal(model.W_E, 8 * trained["wte.weight"])
    output = "wte.weight" if head == "tied" else "lm_head.weight"
    np.testing.assert_array_equal(model.W_U.T, trained[output])
    assert ("lm_head.weight" in trained) == (head == "untied")
    assert not [name for name in trained if name.startswith("h.1.")]
    np.testing.assert_array_equal(
        model.parameters["h.1.mlp.c_fc.weight"], trained["h.0.mlp.c_fc.weight"]
    )


WHOLE = pytest.mark.whole


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        Run(width=16, lr=0.064, seed=1),
        Run(layers=1, width=16, head="signs", lr=0.032, seed=1004),
        pytest.param(Run(layers=1, width=16, head="untied", lr=0.016, seed=2), marks=WHOLE),
        pytest.param(Run(layers=1, head="untied", lr=0.008, seed=3, paths=True), marks=WHOLE),
        pytest.param(Run(layers=1, table=0.05, lr=0.008, seed=2, paths=True), marks=WHOLE),
    ],
)
def test_a_run_has_the_digits_of_its_line(run):
    """Three of the lines are of earlier code. Another machine may round differently."""
    corpus = SHARED / "corpus" / "tinyshakespeare.txt"
    if not corpus.exists():
        pytest.skip("tinyshakespeare.txt is not here")
    line = tying_experiment.read_lines(tying_experiment.RUNS)[key_of(run.as_json)]
    result = trainer.do_run(run, corpus.read_text(encoding="utf-8"))
    for measure in result.keys() & line.keys():
        assert result[measure] == pytest.approx(line[measure], rel=1e-4), measure


# ---- Measuring ----


@pytest.mark.parametrize("size", [2, 7, 8, 13, 14, 500])
def test_the_loss_is_the_mean_of_each_token_predicted_once(size, tokens):
    training = trainer.Training(TINY)
    training.step(tokens, 0)
    training.fill_model()
    ids = tokens[:size]
    losses = []
    for start in range(0, size - 1, TINY.context - 1):
        window = ids[start : start + TINY.context]
        loss, _ = loss_and_gradients(training.model, window[:-1], window[1:])
        losses += [loss] * (window.size - 1)
    assert trainer.loss_of(training, ids) == pytest.approx(np.mean(losses), abs=1e-5)


def test_the_measures_of_a_path_by_their_definitions(text):
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    run = replace(TINY, head="untied", table=0.5)
    training = trainer.Training(run)
    data = trainer.read_text(text, V)
    corpus = Corpus.of(np.tile(data.tokens, 30), V)  # so that each token is frequent
    training.fill_model()
    measures = trainer.path_measures(training.model, corpus)

    frequent = corpus.frequent()
    table = corpus.table(np.arange(V), np.arange(V)).astype(np.float64)
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    logits = paths.raw(training.model, np.arange(V)).astype(np.float64)
    hits = {"successors": [], "substitutes": [], "self": []}
    for token in frequent:
        others = [other for other in frequent if other != token]
        likeness = {other: np.sqrt(shares[token] * shares[other]).sum() for other in others}
        chosen = sorted(others, key=lambda other: -logits[token, other])[:5]
        successors = sorted(others, key=lambda other: -table[token, other])[:5]
        substitutes = sorted(others, key=lambda other: -likeness[other])[:5]
        hits["successors"] += [other in successors for other in chosen]
        hits["substitutes"] += [other in substitutes for other in chosen]
        hits["self"].append(logits[token].argmax() == token)
    for measure, values in hits.items():
        assert measures[f"raw.{measure}"] == pytest.approx(np.mean(values)), measure
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    of_path = [stats.entropy(p[token]) for token in frequent]
    of_text = [stats.entropy(shares[token]) for token in frequent]
    assert measures["raw.entropy"] == pytest.approx(stats.spearmanr(of_path, of_text).statistic)


def test_the_first_loss_is_that_of_the_held_out_text(text):
    run = replace(TINY, steps=1)
    held_out = trainer.read_text(text, V).held_out
    first_loss = trainer.loss_of(trainer.Training(run), held_out)
    assert trainer.do_run(run, text)["first loss"] == pytest.approx(first_loss, rel=1e-5)


def test_a_training_that_diverges_has_a_line_that_says_so(text):
    with np.errstate(all="ignore"):
        assert trainer.do_run(replace(TINY, lr=1e30), text) == {"diverged": 1}


# ---- Pilots ----

ROW = Row("row", Run(layers=1), rates=(0.004, 0.008))


def results_of(losses: dict[float, float], model: Run = ROW.size) -> dict:
    """Finished pilots with these losses by rate, and no other runs."""
    return {
        key_of(replace(model, lr=rate, seed=seed).as_json): {"loss": loss}
        for rate, loss in losses.items()
        for seed in PILOT_SEEDS
    }


@pytest.mark.parametrize(
    ("losses", "missing", "best"),
    [
        pytest.param({}, (0.004, 0.008), None, id="nothing is done"),
        pytest.param({0.004: 3.0}, (0.008,), None, id="one rate is done"),
        pytest.param({0.004: 3.0, 0.008: 3.1}, (0.002,), None, id="the lowest is the best"),
        pytest.param({0.004: 3.1, 0.008: 3.0}, (0.016,), None, id="the highest is the best"),
        pytest.param({0.002: 3.2, 0.004: 3.0, 0.008: 3.1}, (), 0.004, id="the best is between"),
        pytest.param({0.002: 3.0, 0.004: 3.1, 0.008: 3.2}, (0.001,), None, id="lower again"),
        pytest.param({0.004: 3.1, 0.008: 3.0, 0.016: math.inf}, (), 0.008, id="one diverged"),
    ],
)
def test_a_pilot_goes_on_while_the_best_rate_is_at_an_end(losses, missing, best):
    found = pilot(ROW, "tied", results_of(losses))
    assert found.missing == missing
    assert found.is_finished == (best is not None)
    if best is not None:
        assert found.best_rate == best
        finals = [run for run in found.runs() if run.paths]
        assert [run.seed for run in finals] == list(FINAL_SEEDS)
        assert {run.lr for run in finals} == {best}


def test_the_best_start_is_chosen_by_the_pilots_and_a_longer_row_has_their_rates():
    results = {}
    for place, start in enumerate(runs.STARTS):
        loss = [3.3, 3.1, 3.2, 3.4][place]
        model = Run(layers=1, width=32, table=start)
        results |= results_of({0.004: loss + 0.1, 0.008: loss, 0.016: loss + 0.1}, model)
    row = Row("longer", Run(layers=1, width=32, steps=1600), best_start=True)
    found = pilot(row, "tied", results)
    assert found.final(seed=1) == replace(row.size, table=0.05, lr=0.008, seed=1, paths=True)
    assert pilot(row, "untied", results) is None  # its starts are not known


def test_where_the_largest_start_is_the_best_a_larger_one_is_tried():
    results = {}
    losses = {0.0: 3.5, 0.05: 3.4, 0.1: 3.3, 0.2: 3.2}
    for start, loss in losses.items():
        model = Run(layers=1, head="untied", width=32, table=start)
        results |= results_of({0.004: loss + 0.1, 0.008: loss, 0.016: loss + 0.1}, model)
    assert runs.best_start(32, "untied", results) is None  # 0.4 is not known yet
    model = Run(layers=1, head="untied", width=32, table=0.4)
    results |= results_of({0.004: 3.2, 0.008: 3.1, 0.016: 3.2}, model)
    assert runs.best_start(32, "untied", results) == 0.4


def test_pilots_and_final_runs_have_no_seed_in_common():
    assert not set(PILOT_SEEDS) & set(FINAL_SEEDS)


@pytest.mark.slow
def test_no_run_comes_twice_in_a_whole_plan():
    """Each run gets a made-up loss when it is taken, until no run is left."""
    results = {}
    taken = []
    while batch := list(runs.next_runs(results)):
        for run in dict.fromkeys(batch):  # 1600-steps has the pilot of w64-0.1
            taken.append(run)
            loss = abs(math.log2(run.lr / 0.003)) + run.table
            results[key_of(run.as_json)] = {"loss": loss}
    assert len(taken) == len(set(taken)) > 500
    assert {run.head for run in taken} == {"tied", "untied", "zeros", "signs"}


# ---- The queue ----


def make_plan(todo, text, tmp_path, monkeypatch):
    """Replace the plan by these runs with this text. The answer is the file of the text."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(text, encoding="utf-8")
    name = trainer.name_of(text)

    def missing(results):
        return [run for run in todo if key_of(run.as_json, name) not in results]

    for module in (tying_experiment, runs):
        monkeypatch.setattr(module, "TEXT", name)
    # The text that key_of has without an argument is still tinyshakespeare.txt.
    monkeypatch.setattr(tying_experiment, "key_of", lambda run, of=name: key_of(run, of))
    monkeypatch.setattr(tying_experiment, "next_runs", missing)
    monkeypatch.setenv("PYTHONPATH", str(Path(trainer.__file__).parents[2]))
    return corpus


@pytest.mark.slow
def test_two_workers_do_what_is_missing_and_a_damaged_line_is_done_again(
    text, tmp_path, monkeypatch, capsys
):
    todo = [replace(TINY, seed=seed) for seed in range(4)]
    corpus = make_plan(todo, text, tmp_path, monkeypatch)
    name = trainer.name_of(text)
    path = tmp_path / "runs.jsonl"

    tying_experiment.train(corpus, path)
    expected = {key_of(run.as_json, name): trainer.do_run(run, text) for run in todo}
    assert tying_experiment.read_lines(path) == expected
    assert len(path.read_text(encoding="utf-8").splitlines()) == 4

    path.write_bytes(path.read_bytes()[:-9])  # as if the process had been killed while it wrote
    capsys.readouterr()
    tying_experiment.train(corpus, path)
    assert len(capsys.readouterr().out.splitlines()) == 1  # it prints the line of each run
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert {key_of(line["run"], name): line["result"] for line in lines} == expected


@pytest.mark.slow
def test_a_worker_that_ends_in_the_middle_of_a_run_is_an_error(text, tmp_path, monkeypatch):
    broken = replace(TINY, heads=3, width=16)  # 16 is no multiple of 3
    corpus = make_plan([broken, TINY], text, tmp_path, monkeypatch)
    with pytest.raises(ExperimentError, match=r"a worker ended in the middle of .*'heads': 3"):
        tying_experiment.train(corpus, tmp_path / "runs.jsonl")
    assert len(tying_experiment.read_lines(tmp_path / "runs.jsonl")) == 1


def test_another_text_is_refused(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("another text", encoding="utf-8")
    with pytest.raises(ExperimentError, match=r"corpus\.txt: expected tinyshakespeare"):
        tying_experiment.train(corpus, tmp_path / "runs.jsonl")
    assert list(tmp_path.iterdir()) == [corpus]


# ---- The command line ----


def run_command(monkeypatch, *arguments) -> int:
    monkeypatch.setattr(sys, "argv", ["tying_experiment.py", *map(str, arguments)])
    return tying_experiment.main()


def test_plan_says_how_many_runs_are_missing(monkeypatch, capsys, tmp_path):
    assert run_command(monkeypatch, "plan", "--runs", tmp_path / "runs.jsonl") == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "w64-0.02:tied     12 runs missing"  # three rates, four seeds
    assert any("1600-steps:tied     its start is not known yet" in line for line in others)
    assert run_command(monkeypatch, "plan") == 0
    assert "w64-0.02:tied     0 runs missing" in capsys.readouterr().out


def test_a_library_that_is_not_installed_is_named(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "tying.verdicts", raising=False)
    monkeypatch.setitem(sys.modules, "scipy", None)  # importing it fails
    assert run_command(monkeypatch, "verdicts") == 2
    assert "needs scipy: pip install -e '.[tying]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["train", "x.txt"], "name a file for the results", id="no file of results"),
        pytest.param(["run", "w65:tied", "x.txt"], "w65: no such row", id="no such row"),
        pytest.param(["run", "w64-0.1", "x"], "w64-0.1:tied or w64-0.1:untied", id="no head"),
        pytest.param(["run", "512-1:wide", "x"], "512-1:tied or 512-1:narrower", id="no arm"),
        pytest.param(["run", "8192-4:tied", "x"], "rate is not known yet", id="no rate yet"),
        pytest.param(["run", "w64-0.1:tied", "x"], "x: No such file", id="no text"),
        pytest.param(["train", "x", "--runs", "y"], "x: No such file", id="no text to train on"),
    ],
)
def test_a_mistake_is_said_in_one_line(arguments, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    if "8192-4" in arguments[1]:
        monkeypatch.setattr(tying_experiment, "REGISTERED", tmp_path / "registered.jsonl")
    before = tying_experiment.RUNS.read_bytes()
    assert run_command(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert tying_experiment.RUNS.read_bytes() == before
    assert list(tmp_path.iterdir()) == []


def test_one_run_is_shown_beside_the_published_one(monkeypatch, capsys, tmp_path):
    (tmp_path / "text.txt").write_text("a text", encoding="utf-8")
    done = []

    def do_run(run, text):
        done.append((run, text))
        return {"loss": 3.5, "training loss": 3.25}

    monkeypatch.setattr(trainer, "do_run", do_run)
    assert run_command(monkeypatch, "run", "w64-0.1:tied", tmp_path / "text.txt", "--seed", 2) == 0
    ((run, text),) = done
    assert (run.table, run.lr, run.seed, run.head, text) == (0.1, 0.008, 2, "tied", "a text")
    published = tying_experiment.read_lines(tying_experiment.RUNS)[key_of(run.as_json)]["loss"]
    out = capsys.readouterr().out
    assert f"loss           3.5      published: {published}\n" in out
    assert " seconds of a processor" in out


def test_a_reader_that_has_seen_enough_is_no_error():
    pytest.importorskip("scipy", reason="scipy is not installed: pip install -e .[tying]")
    command = [sys.executable, tying_experiment.__file__, "figures"]
    root = str(Path(trainer.__file__).parents[2])
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    ) as process:
        process.stdout.close()  # before the first line is written
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_ctrl_c_ends_a_training_without_a_traceback(monkeypatch, capsys, tmp_path):
    (tmp_path / "text.txt").write_text("a text", encoding="utf-8")

    def do_run(run, text):
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "do_run", do_run)
    assert run_command(monkeypatch, "run", "w64-0.1:tied", tmp_path / "text.txt") == 130
    assert capsys.readouterr().err == ""
