"""The tying experiment on a tiny grid: interruption, statistics, the page; and its published results."""

import doctest
import itertools
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tiedgpt
from tiedgpt import cli
from tiedgpt.checkpoints.names import known_config
from tiedgpt.inference.evaluation import token_losses
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.similarity import embeddings
from tiedgpt.training.loop import Settings, Trainer

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import tying_experiment  # noqa: E402  # the scripts are not installed
from tying import engine, job, page, results  # noqa: E402
from tying.grid import CLAIMS, HEADS, QUICK, Plan, Run, Set, pilot_of, runs_of  # noqa: E402

SMALL = Run(layers=0, vocab_size=280, width=6, context=7, batch=3, steps=20)
PLAN = Plan(
    name="tiny",
    small=SMALL,
    chain=replace(SMALL, text="chain", vocab_size=17, steps=4),
    large=None,
    layers=(0, 1),
    seeds=(1, 2),
    pilot_seeds=(101,),
    rates=(1e-3, 1e-2),
    more_rates=(),
    steps=(10, 20),
    small_steps=(5, 10),
    small_layers=(1,),
    jsds=(0.0, 0.3),
    stds=(1e-5,),
    vocabularies=(300,),
)


class Inline(Executor):
    """Does each job when its result is asked for, in this process; stops like Ctrl-C after some jobs."""

    def __init__(self) -> None:
        self.done: list[tuple] = []
        self.stop_after = math.inf

    def submit(self, function, /, *args):
        executor = self

        class Job(Future):
            def result(self, timeout=None):
                if len(executor.done) >= executor.stop_after:
                    raise KeyboardInterrupt
                executor.done.append(args)
                return function(*args)

        future: Future = Job()
        future.set_result(None)
        return future


@pytest.fixture
def inline(monkeypatch) -> Inline:
    executor = Inline()

    @contextmanager
    def processes(workers: int) -> Iterator[Executor]:
        yield executor

    monkeypatch.setattr(engine, "processes", processes)
    return executor


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


@pytest.fixture(scope="module")
def done(tmp_path_factory, corpus) -> Path:
    """The directory of the grid, done by two processes without an interruption."""
    out = tmp_path_factory.mktemp("done") / "out"
    assert tying_experiment.main([str(corpus), str(out)], PLAN) == 0
    return out


def lines_of(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "runs.jsonl").read_text(encoding="utf-8").splitlines()]


def found_in(out: Path) -> dict:
    """results.json without the time of a step, which no two runs share."""
    found = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert found["sets"].pop("time")["kinds"]["300"]["measures"]["ratio"][0] > 0
    return found


# The engine


@pytest.mark.slow
def test_an_interrupted_and_resumed_experiment_has_the_same_results(done, corpus, tmp_path, inline, capsys):
    """Interrupted in the pilot and in the sets, and done in another order than `done` was."""
    out, number = tmp_path / "out", len(lines_of(done))
    for stop_after in (5, 40):
        inline.stop_after = stop_after
        assert tying_experiment.main([str(corpus), str(out)], PLAN) == 130
        assert "the same command continues" in capsys.readouterr().err
        assert not (out / "results.json").exists()
        assert len(lines_of(out)) == stop_after
    with open(out / "runs.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(lines_of(done)[-1])[:-2])  # the machine went off

    inline.stop_after = math.inf
    assert tying_experiment.main([str(corpus), str(out)], PLAN) == 0
    assert len(inline.done) == number, "done runs are not done again"
    assert found_in(out) == found_in(done)
    for matrices in (done / "matrices").iterdir():
        assert matrices.read_bytes() == (out / "matrices" / matrices.name).read_bytes()


def test_only_what_is_missing_is_done(done, corpus, tmp_path, inline, capsys):
    out = shutil.copytree(done, tmp_path / "out")
    assert tying_experiment.main([str(corpus), str(out)], PLAN) == 0
    assert not inline.done
    printed = capsys.readouterr()
    assert f"wrote {out / 'tables.md'}\n" in printed.err
    assert re.match(r"\d+ runs, about \d+ minutes; ", printed.err)
    assert printed.out == (out / "tables.md").read_text(encoding="utf-8")

    next((out / "matrices").iterdir()).unlink()
    assert tying_experiment.main([str(corpus), str(out)], PLAN) == 0
    assert len(inline.done) == 1
    assert found_in(out) == found_in(done)

    more = replace(PLAN, small_steps=(5, 12))
    assert tying_experiment.main([str(corpus), str(out)], more) == 0
    assert {args[0].steps for args in inline.done[1:]} == {12}
    assert len(inline.done) == 1 + 3 * 2, "tied, tied with signs and untied, two seeds"

    text = tmp_path / "text"
    text.write_text(corpus.read_text(encoding="utf-8") + " The end.", encoding="utf-8")
    before = len(inline.done)
    assert tying_experiment.main([str(text), str(out)], PLAN) == 0
    again = [args[0] for args in inline.done[before:]]
    of_text = [line for line in lines_of(done) if line["settings"].get("run", {}).get("text") != "chain"]
    assert len(again) == len(of_text) - 1, "the time of a step does not depend on the text"
    assert not any(isinstance(run, Run) and run.text == "chain" for run in again), "chains have no text"


@pytest.mark.slow
def test_a_repeated_grid_has_the_same_pilot_and_other_seeds(done, corpus, tmp_path, inline):
    out = shutil.copytree(done, tmp_path / "out")
    assert tying_experiment.main([str(corpus), str(out), "--seed-offset", "1000"], PLAN) == 0
    trained = [arguments[0] for arguments in inline.done if isinstance(arguments[0], Run)]
    assert {run.seed for run in trained} == {1001, 1002}
    found, before = found_in(out), found_in(done)
    assert found["plan"]["seeds"] == [1001, 1002]
    assert found["rates"] == before["rates"]
    assert found["sets"]["heads"] != before["sets"]["heads"]


def test_a_grid_without_a_pilot_has_the_published_rates(done, corpus, tmp_path, inline, monkeypatch):
    out = shutil.copytree(done, tmp_path / "out")
    monkeypatch.setattr(tying_experiment, "PUBLISHED", done / "results.json")
    assert tying_experiment.main([str(corpus), str(out)], replace(PLAN, pilot_seeds=())) == 0
    assert not inline.done, "the published runs"
    assert found_in(out)["sets"] == found_in(done)["sets"]
    lines = (out / "verdicts.txt").read_text(encoding="utf-8").splitlines()[:-1]
    assert lines
    assert not {"OPPOSITE SIGN", "found in one only", "not published"} & {
        line.rpartition(": ")[2] for line in lines
    }


def test_wrong_seeds_and_damaged_published_results_are_one_line_errors(corpus, tmp_path, capsys, monkeypatch):
    for offset in ("1", "99", "100", "-1"):
        with pytest.raises(SystemExit, match="2"):
            tying_experiment.main([str(corpus), str(tmp_path / "out"), "--seed-offset", offset])
        assert "--seed-offset" in capsys.readouterr().err.splitlines()[-1]
    damaged = tmp_path / "results.json"
    damaged.write_text("<<<<<<< HEAD", encoding="utf-8")
    monkeypatch.setattr(tying_experiment, "PUBLISHED", damaged)
    assert tying_experiment.main([str(corpus), str(tmp_path / "out")], PLAN) == 2
    assert re.fullmatch(
        r"tying_experiment: error: .*results\.json: expected JSON.*\n", capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


def test_dask_gives_the_same_results(done, corpus, tmp_path):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install -e .[dask]")
    out = tmp_path / "out"
    shutil.copytree(done, out)
    kept = [line for line in lines_of(done) if line["settings"].get("run", {}).get("gain") != "signs"]
    (out / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, memory_limit=0
    ) as cluster:
        assert tying_experiment.main([str(corpus), str(out), "--dask", cluster.scheduler_address], PLAN) == 0
    assert len(lines_of(out)) == len(lines_of(done)) > len(kept)
    assert found_in(out) == found_in(done)


@pytest.mark.parametrize("line", ['{"settings"', "[]", "what?", '{"run": 3}'])
def test_a_wrong_line_is_an_error_that_names_it(corpus, tmp_path, capsys, line):
    (tmp_path / "runs.jsonl").write_text(f'{{"settings": {{}}}}\n{line}\n', encoding="utf-8")
    assert tying_experiment.main([str(corpus), str(tmp_path)], PLAN) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "runs.jsonl, line 2: expected a run of this script" in err


def test_bad_texts_are_one_line_errors(tmp_path, capsys):
    text = tmp_path / "text"
    assert tying_experiment.main([str(text), str(tmp_path / "out")], PLAN) == 2
    assert "No such file" in capsys.readouterr().err
    text.write_text("too short", encoding="utf-8")
    assert tying_experiment.main([str(text), str(tmp_path / "out")], PLAN) == 2
    assert "give a longer text" in capsys.readouterr().err


@pytest.mark.parametrize("importing", [True, False])
def test_ctrl_c_ends_with_130_and_no_traceback(corpus, tmp_path, importing):
    """While modules are imported, and while models are trained."""
    (tmp_path / "numpy.py").write_text("print('run', flush=True); import time; time.sleep(60)")
    path = [str(SCRIPTS.parent), *([str(tmp_path)] if importing else [])]
    text = tmp_path / "text"
    text.write_text(" ".join(str(n * n) for n in range(100_000)), encoding="utf-8")  # enough for 512 tokens
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
    tied, fixed = job.start(replace(SMALL, layers=1, seed=5))
    assert not fixed
    for name in ("copy", "zeros", "untied"):
        model, _ = job.start(replace(SMALL, layers=1, seed=5, **HEADS[name]))
        for key, array in tied.parameters.items():
            np.testing.assert_array_equal(model.parameters[key], array)
        expected = {"copy": tied.W_E, "zeros": 0 * tied.W_E, "untied": tied.untie("random", 5).W_U.T}[name]
        np.testing.assert_array_equal(model.W_U.T, expected)
    wide, _ = job.start(replace(SMALL, head="random", std=0.1, seed=5))
    np.testing.assert_allclose(
        wide.W_U, 5 * job.start(replace(SMALL, head="random", seed=5))[0].W_U, rtol=1e-6
    )


@pytest.mark.parametrize(("off", "on"), [("attn", "mlp"), ("mlp", "attn")])
def test_a_sublayer_that_is_off_stays_off(corpus, tmp_path, off, on):
    model, fixed = job.start(replace(SMALL, layers=1, off=off, seed=1))
    tokens = np.random.default_rng(0).integers(0, 280, 500)
    trainer = job.PartTrainer(
        model, tokens, tokens, Settings(steps=3, batch=2, context=7, lr=1e-2, threads=1)
    )
    trainer.fixed = fixed
    list(trainer.run())
    tape: dict = {}
    trainer.model(tokens[:7], tape=tape)
    assert not tape[f"{off}.0.out"].any()
    assert tape[f"{on}.0.out"].any()
    for name, array in trainer.model.parameters.items():
        assert f".{off}." not in name or not array.any(), name


def test_gains_are_fixed_or_start_with_signs():
    tokens = np.random.default_rng(0).integers(0, 280, 500)
    for gain in ("free", "fixed", "signs"):
        model, fixed = job.start(replace(SMALL, gain=gain, seed=1))
        start = model.parameters["ln_f.weight"].copy()
        assert set(start) == ({-1.0, 1.0} if gain == "signs" else {1.0})
        trainer = job.PartTrainer(model, tokens, tokens, Settings(steps=3, batch=2, context=7, threads=1))
        trainer.fixed = fixed
        list(trainer.run())
        assert (trainer.model.parameters["ln_f.weight"] == start).all() == (gain == "fixed")


def test_a_line_has_the_numbers_of_its_model(done, corpus):
    """A run is trained again here, by Trainer alone."""
    found = [line for line in lines_of(done) if line["settings"].get("studied")]
    line = next(
        line
        for line in found
        if (r := line["settings"]["run"])["layers"] == 1
        and r["head"] == "random"
        and r["std"]
        and not r["off"]
    )
    run = Run(**line["settings"]["run"])
    data = job.read_data(job.data_path(done, 280))
    model = tiedgpt.GPT2.random(job.config(run), run.seed).untie("random", run.seed)
    settings = Settings(steps=20, batch=3, context=7, lr=run.lr, seed=run.seed, threads=1)
    trainer = Trainer(model, data.tokens, data.held_out, settings)
    batches = [record["loss"] for record in trainer.run() if "loss" in record]
    model, result = trainer.model, line["result"]
    matrices = np.load(job.matrices_path(done, run))
    np.testing.assert_allclose(matrices["W_U"], model.W_U, rtol=1e-4, atol=1e-6)

    own = token_losses(model, data.held_out, 6)
    assert result["loss"] == pytest.approx(own.mean(), rel=1e-5)
    text = corpus.read_text(encoding="utf-8")
    size = len(text[len(text) * 9 // 10 :].encode())
    assert result["bits"] == pytest.approx(own.mean() * (data.held_out.size - 1) / np.log(2) / size, rel=0.01)
    assert result["train"] == pytest.approx(token_losses(model, data.tokens[:16_385], 6).mean(), rel=1e-5)
    assert result["swapped"] == pytest.approx(token_losses(model.tie(), data.held_out, 6).mean(), rel=1e-5)
    assert result["parameters"] == sum(array.size for array in model.parameters.values())
    A = model.W_E.astype(float) @ model.W_U
    assert result["asymmetry"] == pytest.approx(np.linalg.norm(A - A.T) / np.linalg.norm(A), rel=1e-5)
    assert [point["step"] for point in line["course"]] == [0, 1, 2, 4, 6, 9, 12, 16, 20]
    assert line["course"][-1]["batches"] == pytest.approx(np.mean(batches[16:]), rel=1e-5)

    kinds = found_in(done)["sets"]["heads"]["kinds"]
    rate = kinds["1/tied"]["rate"]
    assert rate in PLAN.rates
    expected = []
    for seed, after in ((1, 2), (2, 1)):
        mine, tied = (
            np.load(job.matrices_path(done, r))
            for r in (replace(run, seed=seed), replace(SMALL, layers=1, lr=rate, seed=after))
        )
        model = tiedgpt.GPT2.random(job.config(run)).untie("zeros")
        model.W_E[...], model.W_U[...] = mine["W_E"], mine["W_U"]
        expected.append(embeddings(model, Corpus.of(data.tokens, 280), tied["W_E"]))
    for measure in ("in_tied", "out_tied", "in_out"):
        mean = np.mean([numbers[measure] for numbers in expected])
        assert kinds["1/untied"]["measures"][measure][0] == pytest.approx(mean, rel=1e-5)


def test_a_run_that_diverges_is_a_line_and_no_rate_to_choose(corpus, tmp_path):
    text = corpus.read_text(encoding="utf-8")
    job.prepare(text, 280, job.data_path(tmp_path, 280))
    lines = {}
    for lr in (1e-3, 1e30):
        run = replace(SMALL, lr=lr, seed=1)
        lines[run] = job.do_run(run, tmp_path, studied=False)
    assert [line["result"]["diverged"] for line in lines.values()] == [0, 1]
    rates = results.choose_rates(lines)["text, 0 layers, tied"]
    assert rates["best"] == 1e-3
    assert rates["losses"]["1e+30"] is None


# The grid


@pytest.mark.parametrize("plan", [Plan(), PLAN])
def test_the_pilot_has_a_rate_for_every_run_and_its_own_seeds(plan):
    pilot = plan.pilot()
    assert len(set(pilot)) == len(pilot)
    assert not {run.seed for run in pilot} & set(plan.seeds)
    rates = dict.fromkeys((run.kind for run in pilot), 0.5)
    sets = tying_experiment.with_rates(plan.sets(), rates)
    runs = list(runs_of(sets, plan.seeds))
    given = {plan.first_rate, *plan.rates[-2:], *plan.rates_of(plan.small)[::2]}
    given |= {plan.large_rate} if plan.large else set()
    assert {run.lr for run in runs} == {0.5} | given
    assert len({s.name for s in sets}) == len(sets)
    for s in sets:
        names = set(s.kinds) | set(s.options)
        assert {name for pair in s.compare for name in pair} <= names, s.name
        for a, b in s.compare:
            assert a != b


def test_each_claim_has_its_pilot_and_all_claims_have_the_whole():
    plan = Plan()
    assert {name for names in CLAIMS.values() for name in names} == {s.name for s in plan.sets()}
    assert set(pilot_of(plan, plan.sets())) == set(plan.pilot())
    for names in CLAIMS.values():
        sets = [s for s in plan.sets() if s.name in names]
        rates = {run.kind: 0.5 for run in pilot_of(plan, sets)}
        assert all(run.lr for s in tying_experiment.with_rates(sets, rates) for run in s.kinds.values())


def test_a_kind_without_a_rate_is_an_error():
    with pytest.raises(
        tiedgpt.TiedGPTError, match="no learning rate for this kind of model: chain, 0 layers"
    ):
        tying_experiment.with_rates(PLAN.sets(), {"text, 0 layers, tied": 0.5})


def test_the_quick_grid_is_a_part_of_the_whole():
    rates = {kind: rate["best"] for kind, rate in tying_experiment.published()["rates"].items()}
    quick, whole = (
        set(runs_of(tying_experiment.with_rates(plan.sets(), rates), plan.seeds)) for plan in (QUICK, Plan())
    )
    assert quick < whole


def test_the_published_plan_has_the_controls():
    plan = Plan()
    assert len(plan.seeds) == 8
    assert plan.layers == (0, 1, 4)
    for layers in plan.layers:
        for head in ("tied", "random"):
            kind = replace(plan.small, layers=layers, head=head).kind
            assert len({run.lr for run in plan.pilot() if run.kind == kind}) >= 4


def test_matched_models_have_about_as_many_parameters():
    for kind, run in Plan().matched().kinds.items():
        tied = Plan().matched().kinds[kind.replace("untied", "tied")]
        sizes = [
            tiedgpt.count_parameters(job.config(r))[h]["total"] for r, h in ((run, "untied"), (tied, "tied"))
        ]
        if run.head != "tied":
            assert sizes[0] == pytest.approx(sizes[1], rel=0.06)


# The statistics


def t_density(x: np.ndarray, df: int) -> np.ndarray:
    scale = math.gamma((df + 1) / 2) / math.gamma(df / 2) / math.sqrt(df * math.pi)
    return scale * (1 + x * x / df) ** (-(df + 1) / 2)


@pytest.mark.parametrize("df", range(1, len(results.T_975) + 1))
def test_the_quantiles_of_t(df):
    x = np.linspace(0, results.T_975[df - 1], 200_001)
    y = t_density(x, df)
    assert (y[1:] + y[:-1]) @ np.diff(x) / 2 == pytest.approx(0.475, abs=2e-5)


def test_an_interval_holds_the_mean_of_95_of_100_samples():
    rng = np.random.default_rng(0)
    figures = [results.interval(list(map(float, rng.normal(3, 2, 8)))) for _ in range(4000)]
    assert 0.94 < np.mean([low < 3 < high for _, low, high in figures]) < 0.96
    assert results.interval([2.5]) == [2.5, None, None]
    assert [
        results.sign(figure) for figure in ([1, 0.5, 2], [-1, -2, -0.5], [1, -1, 3], [1, None, None])
    ] == list("+-00")


def test_differences_are_paired_by_seed_and_options_chosen_by_the_other_half():
    base = {"a": [1.0, 2.0, 3.0, 4.0], "b": [1.5, 2.5, 3.4, 4.6], "c": [0.0, 0.0, 9.0, 9.0]}
    s = Set(
        "s",
        "?",
        {name: replace(SMALL, head=name) for name in base},
        (("b", "a"), ("best", "a")),
        {"best": ("a", "c")},
    )
    lines = {
        replace(SMALL, head=name, seed=seed): {"result": {"loss": losses[seed]}}
        for name, losses in base.items()
        for seed in range(4)
    }
    found = results.summarize(s, (0, 1, 2, 3), lines, {}, None)
    assert found["differences"]["b - a"]["measures"]["loss"] == results.interval([0.5, 0.5, 0.4, 0.6])
    # c is best for seeds 0 and 1, so it is reported for 2 and 3; a is best for 2 and 3
    assert found["kinds"]["best"]["chosen"] == ["a", "a", "c", "c"]
    assert found["differences"]["best - a"]["measures"]["loss"] == results.interval([0.0, 0.0, 6.0, 5.0])


def test_verdicts_are_compared_with_the_published_ones(done):
    found = found_in(done)
    verdicts = found["verdicts"]
    assert all(verdict["sign"] == results.sign(verdict["figure"]) for verdict in verdicts)
    *lines, last = results.agreement(found, found)
    assert {line.rpartition(": ")[2] for line in lines} == {"same sign", "no difference found in both"}
    assert sum(map(int, re.findall(r": (\d+)", last))) == len(verdicts)
    opposite = {"-": "+", "+": "-", "0": "0"}
    against = found | {"verdicts": [verdict | {"sign": opposite[verdict["sign"]]} for verdict in verdicts]}
    lines = results.agreement(found, against)
    opposites = sum(line.endswith(": OPPOSITE SIGN") for line in lines)
    assert opposites == sum(verdict["sign"] != "0" for verdict in verdicts) > 0
    assert f"OPPOSITE SIGN: {opposites}" in lines[-1]
    open_ones = found | {"verdicts": [verdict | {"sign": "0"} for verdict in verdicts]}
    assert f"found in one only: {opposites}" in results.agreement(found, open_ones)[-1]
    others = {"verdicts": [verdict | {"what": "?"} for verdict in verdicts]}
    assert results.agreement(found, others)[-1] == f"not published: {len(verdicts)}"


def test_every_verdict_of_the_published_plan_has_its_runs():
    plan = Plan()
    sets = {s.name: s for s in plan.sets()}
    names = results.names_in(tying_experiment.asdict(plan))
    for _, _, set_name, what, _ in results.VERDICTS:
        for key, value in names.items():
            what = what.replace(f"${key}", value)
        s = sets[set_name]
        assert what in {**s.kinds, **s.options} or tuple(what.split(" - ")) in s.compare, what


# The page

TEMPLATE = page.PAGE.read_text(encoding="utf-8")
FREE = {"3.012", "2.998", "3.026", "1.414", "0.693"}  # an example; sqrt(2); ln 2


def test_the_page_is_made_of_the_numbers_of_the_results(done):
    found = json.loads((done / "results.json").read_text(encoding="utf-8"))
    rendered = page.render(found)
    assert rendered.startswith(f"*{page.NOT_THE_WHOLE}*")
    assert "{{" not in rendered
    mean, low, high = found["sets"]["heads"]["kinds"]["1/untied"]["measures"]["loss"]
    assert f"{mean:.3f} [{low:.3f}, {high:.3f}]" in rendered
    mean, low, high = found["sets"]["heads"]["differences"]["1/untied - 1/tied"]["measures"]["loss"]
    assert f"| {mean:+.3f} [{low:+.3f}, {high:+.3f}]" in rendered


def test_another_text_or_one_claim_has_tables_and_no_sentence_of_the_page(done, corpus, tmp_path, inline):
    assert not {"README.md", "verdicts.txt"} & {path.name for path in done.iterdir()}
    out = shutil.copytree(done, tmp_path / "out")
    assert tying_experiment.main([str(corpus), str(out), "--claim", "9"], PLAN) == 0
    assert not inline.done, "a claim needs a part of the grid"
    found = json.loads((out / "results.json").read_text(encoding="utf-8"))
    whole = json.loads((done / "results.json").read_text(encoding="utf-8"))
    assert list(found["sets"]) == ["heads", "steps", "time"]
    assert found["sets"]["heads"] == whole["sets"]["heads"]
    assert found["rates"].items() < whole["rates"].items()
    text = (out / "tables.md").read_text(encoding="utf-8")
    mean, low, high = whole["sets"]["heads"]["kinds"]["1/untied"]["measures"]["loss"]
    assert f"| 1/untied | {mean:.3f} [{low:.3f}, {high:.3f}] |" in text
    assert "shakespeare" not in text


def test_no_figure_is_written_by_hand():
    """But for the table of parameters and the commands, which other tests check."""
    text = re.sub(r"\{\{.*?\}\}|```.*?```|\]\(.*?\)|^\| (?:distil)?gpt2.*?$", "", TEMPLATE, flags=re.S | re.M)
    assert set(re.findall(r"\d+\.\d+", text)) == FREE


def test_the_whole_grid_has_every_name_of_the_template():
    """The page of the whole grid is rendered from results of the plan's names, with a 1 for each measure."""
    plan = Plan()
    figure = defaultdict(lambda: [1.0, 1.0, 1.0])

    def of(kinds):
        steps = [0, 80, 800]
        course = defaultdict(lambda: [[1.0, 1.0, 1.0]] * len(steps), steps=steps)
        return {kind: {"measures": figure, "course": course, "rate": 0.1} for kind in kinds}

    numbers = defaultdict(lambda: defaultdict(lambda: 1.0))
    found = {
        "plan": {"seed_count": 8, **tying_experiment.asdict(plan)},
        "text": defaultdict(lambda: 1.0, fits=numbers),
        "rates": {run.kind: {"best": 1.0} for run in plan.pilot()},
        "sets": {
            s.name: {"kinds": of([*s.kinds, *s.options]), "differences": of(map(" - ".join, s.compare))}
            for s in plan.sets()
        }
        | {"time": {"kinds": of(map(str, plan.vocabularies))}},
    }
    text = page.render(found)
    assert "{{" not in text
    gaps = len(plan.jsds) - 3  # chains that no model with a layer reads
    assert text.count("|  |") == 1 + gaps, "and the difference of a start from itself"


def test_names_of_the_template():
    found = {
        "plan": {
            "name": "whole",
            "steps": [1],
            "jsds": [0, 1],
            "small": {"std": 0.02, "steps": 1},
            "stds": [0.1],
            "rates": [1],
            "more_rates": [2],
        },
        "text": {"jsd": 0.58765, "tokens": 12345},
        "sets": {
            "s": {
                "kinds": {
                    "0/tied": {
                        "measures": {"x": [1.0, 0.5, 1.5]},
                        "course": {"steps": [0, 5, 50], "x": [[0, 0, 0], [7, 6, 8], [9, 9, 9]]},
                    },
                    "1/tied": {"measures": {"x": [2.0, 2.0, 2.0]}},
                },
                "differences": {"0/tied - 1/tied": {"measures": {"x": [-1.0, -2.0, 0.1]}}},
            }
        },
    }
    shown = {
        "{{s: 0/tied: x}}": "1.000 [0.500, 1.500]",
        "{{s: 1/tied: x: .1f}}": "2.0",
        "{{s: 0/tied: x: mean}}": "1.000",
        "{{s: 0/tied: x@0.1}}": "7.000 [6.000, 8.000]",
        "{{s: 0/tied - 1/tied: x}}": "-1.000 [-2.000, +0.100], no difference found",
        "{{s: 0/tied - 1/tied: x? a | b | c}}": "c",
        "{{s: 0/tied: x? a | b | c}}": "b",
        "{{value: text/jsd: .2f}} {{value: text/tokens}} $std $long": "0.59 12,345 0.02 1",
        "{{header: n: s: */tied}}\n{{row: r: s: */tied: x: mean}}": (
            "| n | 0 | 1 |\n| --- | --- | --- |\n| r | 1.000 | 2.000 |"
        ),
        "{{header: n: s: */tied}}\n{{row: {{value: text/jsd}}: s: 0/*: x: mean}}": (
            "| n | 0 | 1 |\n| --- | --- | --- |\n| 0.588 |  |  |"
        ),
    }
    for name, expected in shown.items():
        assert page.render(found, name) == expected
    for name in (
        "{{s: 2/tied: x}}",
        "{{s: 0/tied: y}}",
        "{{t: 0/tied: x}}",
        "{{value: text/x}}",
        "{{row: r: s: 2/*: x}}",
    ):
        with pytest.raises(KeyError, match="is not in the results"):
            page.render(found, name)


def test_the_pictures_show_the_numbers_of_the_results(done):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -e .[plot]")
    found = json.loads((done / "results.json").read_text(encoding="utf-8"))
    for name, data in page.pictures(found).items():
        assert f"]({name})" in TEMPLATE
        assert data.startswith(b"\x89PNG")
        assert int.from_bytes(data[16:20], "big") == 900, "pixels wide"
        assert 3000 < len(data) < 100_000
    line = page.chains(found).axes[1].lines[1]
    expected = [
        found["sets"]["chains"]["kinds"][f"1/{jsd:g}/untied"]["measures"]["excess"][0] for jsd in PLAN.jsds
    ]
    np.testing.assert_allclose(line.get_ydata(), expected)
    heads = found["sets"]["heads"]
    panels = page.course(found).axes
    itself = [line.get_ydata() for line in panels[3].lines]  # tied and untied without layers, with one layer
    kinds = ("0/tied", "0/untied", "1/tied", "1/untied")
    for shown, kind in zip(itself, kinds, strict=True):
        np.testing.assert_allclose(shown, [point[0] for point in heads["kinds"][kind]["course"]["self"]])
    differences = heads["differences"]["1/untied - 1/tied"]["course"]["loss"]
    np.testing.assert_allclose(panels[5].lines[1].get_ydata(), [point[0] for point in differences])


def test_the_time_of_a_step_is_untied_over_tied(monkeypatch):
    """With a clock that gives 2 s to each step of the first model, the tied one, and 3 s to the second."""
    times = iter(itertools.accumulate(itertools.cycle([0.0, 2.0, 0.0, 3.0])))
    monkeypatch.setattr(job, "process_time", lambda: next(times))
    assert job.time_ratio(PLAN, 300) == 1.5


def test_without_matplotlib_a_line_says_how_to_get_it(done, corpus, tmp_path, monkeypatch, capsys):
    out = shutil.copytree(done, tmp_path / "out")
    monkeypatch.setattr(tying_experiment, "PUBLISHED", done / "results.json")
    monkeypatch.setattr(tying_experiment, "find_spec", lambda name: None)
    assert tying_experiment.main([str(corpus), str(out)], PLAN) == 0
    assert "pip install -e .[plot]" in capsys.readouterr().err


# The published results

RESULTS = SCRIPTS / "tying_results"
PUBLISHED = (RESULTS / "README.md").read_text(encoding="utf-8")


def test_the_published_page_is_made_of_the_published_results():
    found = json.loads((RESULTS / "results.json").read_text(encoding="utf-8"))
    assert page.render(found) == PUBLISHED
    assert page.as_json(found) == (RESULTS / "results.json").read_text(encoding="utf-8")
    assert found["plan"] == json.loads(json.dumps({"seed_count": 8, **tying_experiment.asdict(Plan())}))


def test_the_repeated_verdicts_are_beside_the_published_ones():
    text = (RESULTS / "again.txt").read_text(encoding="utf-8")
    *lines, last = text.splitlines()
    verdicts = tying_experiment.published()["verdicts"]
    assert len(lines) == len(verdicts)
    words = Counter(line.rpartition(": ")[2] for line in lines)
    assert last == ", ".join(f"{word}: {number}" for word, number in words.items())
    assert f"`{last}`" in PUBLISHED
    seeds = Plan().repeated(1000).seeds
    assert f"{len(seeds)} other seeds, {seeds[0]} to {seeds[-1]}," in PUBLISHED.replace("four", "4")
    for line, verdict in zip(lines, verdicts, strict=True):
        assert line.startswith(f"{verdict['claim']}  {verdict['name']}: ")
        assert f"; published: {results.show(verdict['figure'], True)}: " in line
        if line.endswith(": found in one only"):
            means = re.findall(r": ([+-])", line)
            assert means[0] == means[1], line


def test_the_readme_has_published_figures():
    found = json.loads((RESULTS / "results.json").read_text(encoding="utf-8"))
    readme = (SCRIPTS.parent / "README.md").read_text(encoding="utf-8")
    for name in (
        "heads: 0/untied - 0/tied: loss",
        "heads: 4/untied - 4/tied: loss",
        "sublayers: mlp/untied - mlp/tied: loss",
        "sublayers: attention/untied - attention/tied: loss",
        "heads: 4/untied: loss",
        "heads: 4/untied: swapped",
        "value: text/uniform_loss",
    ):
        assert page.render(found, f"{{{{{name}}}}}") in readme, name


@pytest.mark.parametrize("text", [PUBLISHED, TEMPLATE])
def test_the_parameters_of_the_page(text):
    rows = re.findall(r"^\| (\S+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d.]+ %) \|$", text, re.M)
    assert len(rows) == 5
    for name, *figures in rows:
        counts = tiedgpt.count_parameters(known_config(name))
        tied, untied = counts["tied"]["total"], counts["untied"]["total"]
        saved = untied - tied
        assert figures == [f"{tied:,}", f"{untied:,}", f"{saved:,}", f"{100 * saved / untied:.1f} %"]


@pytest.mark.parametrize("line", sorted({*re.findall(r"^\$ (tiedgpt .*)$", PUBLISHED + TEMPLATE, re.M)}))
def test_the_commands_of_the_page(line, capsys):
    line, _, comment = line.partition("#")
    argv = shlex.split(line)[1:]
    cli.parse(argv)
    if comment:  # tying saves NUMBER, PERCENT
        assert cli.main(argv) == 0
        assert comment.strip() in capsys.readouterr().out


def test_the_links_of_the_page():
    for link, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", PUBLISHED):
        assert (RESULTS / link).exists(), link
        headings = re.findall(r"^#+ (.*)$", PUBLISHED, re.M)
        slugs = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
        assert not anchor or anchor in slugs, anchor


def test_the_examples_in_the_docstrings():
    found = doctest.testmod(results)
    assert found.attempted > 0
    assert found.failed == 0
