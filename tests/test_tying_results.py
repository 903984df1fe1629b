"""What scripts/tying_results has: the page, its tables, and the runs that both are made of."""

import json
import math
import re
import shlex
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import tying_experiment
from tying import engine, grid, page, results

from tiedgpt import cli
from tiedgpt.gpt2.parameters import count_parameters
from tiedgpt.study.corpus import MIN_COUNT

ROOT = Path(__file__).resolve().parents[1]
RESULTS, README = (
    ROOT / "scripts" / "tying_results",
    (ROOT / "README.md").read_text(encoding="utf-8"),
)


@pytest.fixture(scope="module")
def published() -> results.Found:
    plan = tying_experiment.plan(tying_experiment.PUBLISHED, RESULTS, None)
    return results.collect(plan, engine.read_lines(RESULTS / "runs.jsonl"))


def test_the_published_page_and_tables_are_made_of_the_published_runs(published):
    files = tying_experiment.files_of(published, published=True)
    for name in ("README.md", "tables.md"):
        assert files[name] == (RESULTS / name).read_bytes()
    readme = files["README.md"].decode()
    assert len(readme.splitlines()) <= 150
    assert len(re.findall(r"^\| -", readme, re.M)) <= 8
    shown = [
        readme,
        files["tables.md"].decode(),
        *(page.claim(published, claim) for claim in range(1, 10)),
    ]
    assert not any("not measured" in text for text in shown)
    of = grid.SMALL
    sizes = f"width {of.width}, {of.vocab_size} tokens, context {of.context}, "
    sizes += f"{of.steps} steps of {of.batch} "
    named = [
        sizes,
        f"rank {of.width}",
        f"{MIN_COUNT} times or more",
        *map("{:,}".format, grid.VOCABULARIES),
    ]
    assert [each for each in named if each not in readme] == []
    assert (
        {grid.MODELS[kind][0]["steps"] for kind in ("longer", "tenth")} == {2 * of.steps} == {1600}
    )


def test_the_pictures_show_the_runs(published):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -e .[plot]")
    chains, tenth = (picture(published).axes[0].lines for picture in page.PICTURES.values())
    assert chains[3].get_label() == "one layer, tied"
    excess = [
        fmean(of["excess"] for of in published["chains"][f"1/{jsd}/tied"]) for jsd in ("0", "0.65")
    ]
    assert chains[3].get_ydata() == pytest.approx(excess)
    untied, tied = (published["models"][f"tenth/{head}"] for head in ("untied", "tied"))
    assert [*tenth[0].get_ydata()] == [
        a["loss"] - b["loss"] for a, b in zip(untied, tied, strict=True)
    ]


def test_the_grid_has_its_seeds_and_controls_and_each_claim_its_part():
    assert not {*grid.SEEDS} & {*grid.PILOT_SEEDS}
    models = grid.sets()["models"]
    assert all(run.lr for run in models.values())
    assert models["one layer/copy"].lr == models["one layer/untied"].lr
    tied, untied = (
        count_parameters(grid.config(models[of])) for of in ("one layer/tied", "narrow/untied")
    )
    assert tied["tied"]["total"] == pytest.approx(untied["untied"]["total"], rel=0.06)
    plans = {claim: tying_experiment.plan("", RESULTS, claim) for claim in range(1, 10)}
    assert {kind for plan in plans.values() for kind in plan["models"]} == {*models}
    assert [*plans[9]["models"]] == [f"one layer/{head}" for head in ("untied", "copy", "zeros")]
    assert len(plans[3]["chains"]) == 6
    for number, name in ((7, "similarity"), (8, "step time")):
        assert [claim for claim, plan in plans.items() if plan[name]] == [number]


def test_numpy_finds_the_same_verdicts(published):
    """From the lines of runs.jsonl alone."""
    losses = {}
    for line in map(json.loads, (RESULTS / "runs.jsonl").read_text(encoding="utf-8").splitlines()):
        of = line["run"]
        if "seed" in of and of.get("text", "whole") == "whole":
            what = (
                of.get("layers", 0),
                of.get("head", "tied"),
                of.get("only", ""),
                of["lr"],
                of["seed"],
            )
            losses.setdefault(
                (what, of.get("steps", 800), of.get("width", 64)), line["result"]["loss"]
            )
    shown = page.Page(published)
    for only, name, rates in (("", "one layer", (0.008, 0.004)), ("MLP", "MLP", (0.004, 0.008))):
        pairs = [
            [losses[(1, head, only, rate, seed), 800, 64] for seed in grid.SEEDS]
            for head, rate in zip(("untied", "tied"), rates, strict=True)
        ]
        difference = np.subtract(*pairs)
        test = shown.tests["models", f"{name}/untied - {name}/tied", "loss"]
        assert test.mean == pytest.approx(difference.mean(), abs=1e-9)
        assert test.sd == pytest.approx(difference.std(ddof=1))
    ps = np.array(sorted(test.p for test in shown.tests.values()))
    corrected = np.maximum.accumulate(np.minimum(1, ps * np.arange(len(ps), 0, -1)))
    np.testing.assert_allclose(sorted(shown.corrected.values()), corrected)


def test_the_rates_are_the_best_of_the_pilot(published):
    losses: dict = {}
    for run, of in zip(grid.pilot(), published["pilot"].values(), strict=True):
        assert len(of) == len(grid.PILOT_SEEDS)
        kind = run.text, run.layers, run.only, run.head
        losses.setdefault(kind, {})[run.steps, run.lr] = fmean(r.get("loss", math.inf) for r in of)
    for (text, layers, only, head), tried in losses.items():
        rate = grid.RATES[text, layers, only][head]
        steps = grid.MODELS["tenth"][0]["steps"] if text == "tenth" else 800
        assert min(tried, key=tried.get) == (steps, rate), (text, layers, only, head)
        assert steps == max(steps for steps, _ in tried), "the page says that it is the longest"


def test_the_readme_has_published_figures(published):
    table = README[README.index("| small models") :].partition("\n\n")[0]
    figures = re.findall(r"[+-]?\d\.\d{3} \[.*?\]", table)
    assert len(figures) >= 5
    known = page.Page(published).render()
    assert [each for each in figures if each not in known] == []


def test_the_readme_has_the_output_of_study(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    command, shown = re.search(r"^\$ tiedgpt (study .*)\n((?:.*\n)*?)```", README, re.M).groups()
    assert cli.main(shlex.split(command)) == 0
    assert {*shown.splitlines()} - {"..."} <= {*capsys.readouterr().out.splitlines()}
    assert shown.count("\n") > 1


@pytest.mark.parametrize(
    "line", re.findall(r"^\$ (tiedgpt .*)$", page.PAGE.read_text(encoding="utf-8"), re.M)
)
def test_the_commands_of_the_page(line, capsys):
    line, _, comment = line.partition("#")
    assert cli.main(shlex.split(line)[1:]) == 0
    out = capsys.readouterr().out
    for figure in re.search(r"tying saves (\S+), (\S+ %)", comment).groups():
        assert figure in out
