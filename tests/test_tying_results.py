"""scripts/tying_results: each figure of the pages is what scipy computes from runs.jsonl.

A figure of a page is marked by its name in a comment: 0.107 [0.098, 0.115]<!--0:width-64-->. The
names are those of tying/differences.py.
"""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy", reason="scipy is not installed: pip install -e .[tying]")

import tying_experiment
from scipy import stats
from tying import differences, pictures, runs
from tying.differences import RESULTS, Figure, all_figures

from tiedgpt import cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = [RESULTS / "README.md", RESULTS / "claims.md", ROOT / "README.md"]
NUMBER = r"(-?\d+\.\d+)"
MARK = r"<!--(\S+?)-->"
MARKED = re.compile(rf"{NUMBER}(?: \[{NUMBER}, {NUMBER}\])?{MARK}")
COUNT = re.compile(rf"(\d+) of (\d+){MARK}")
# Numbers that were chosen, not found: starts, rates, asymmetries of chains, factors, a version; or
# that follow from them: 5 tokens of 315, sqrt(2), the pairs in one order of the chain with 0.65
CHOSEN = {"0.005", "0.02", "0.05", "0.1", "0.2", "0.3", "0.4", "0.004", "0.008", "0.016"}
CHOSEN |= {"0.25", "0.177", "0.125", "0.088"}  # 1 / sqrt(D)
CHOSEN |= {"0.01", "0.15", "0.45", "0.65", "3.11", "1.414", "99.3"}


@pytest.fixture(scope="module")
def results() -> runs.Results:
    return tying_experiment.read_lines(tying_experiment.RUNS)


@pytest.fixture(scope="module")
def figures(results) -> dict[str, Figure]:
    return all_figures(results)


def text_of(page: Path) -> str:
    """The page with each line break as a space: a figure may go over two lines."""
    return " ".join(page.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name + "-" + page.stem)
def test_every_marked_figure_is_that_of_the_runs(page, figures):
    wrong = []
    text = text_of(page)
    for mean, low, high, name in MARKED.findall(text):
        digits = len(mean.partition(".")[2])
        figure = figures[name]
        found = [mean, low, high] if low else [mean]
        right = [f"{number:.{digits}f}" for number in (figure.mean, *figure.interval)]
        if found != right[: len(found)]:
            wrong.append((name, found, right))
    for part, whole, name in COUNT.findall(text):
        values = figures[name].values
        if (int(part), int(whole)) != (sum(values), len(values)):
            wrong.append((name, part, whole))
    assert not wrong
    marks = re.findall(MARK, text)
    assert len(marks) == len(MARKED.findall(text)) + len(COUNT.findall(text)), (
        "a mark has no figure"
    )


@pytest.mark.parametrize("page", PAGES[:2], ids=lambda page: page.stem)
def test_every_number_with_decimals_is_marked(page):
    text = text_of(page)
    for pattern in (MARKED, r"```.*?```", r"`[^`]*`", r"\]\([^)]*\)"):
        text = re.sub(pattern, "", text)
    unmarked = re.findall(r"(?<![\d.])-?\d{1,2}\.\d+", text)
    assert set(unmarked) <= CHOSEN


def test_figures_json_has_what_the_pages_show_and_no_more():
    named = [figure["name"] for figure in json.loads((RESULTS / "figures.json").read_text())]
    marks = {mark for page in PAGES for mark in re.findall(MARK, text_of(page))}
    assert len(named) == len(set(named))
    assert set(named) <= marks


@pytest.mark.parametrize(("n", "seed"), [(2, 0), (6, 1), (12, 2)])
def test_the_interval_is_that_of_scipys_t_test(n, seed):
    values = np.random.default_rng(seed).normal(0.1, 0.05, n)
    figure = Figure(tuple(values))
    test = stats.ttest_1samp(values, 0)
    assert figure.mean == pytest.approx(values.mean())
    assert figure.interval == pytest.approx(tuple(test.confidence_interval(0.95)))


def test_the_cost_is_the_loss_of_tied_minus_that_of_untied_seed_by_seed(results, figures):
    """The settings of two figures' runs are written out here."""
    twelve = [1, 2, 3, 4, 5, 6, 7, 8, 1001, 1002, 1003, 1004]
    tied = {"layers": 1, "lr": 0.004}
    untied = {"layers": 1, "head": "untied", "lr": 0.008}
    for name, seeds, more in (
        ("10:1,64,cost", twelve, {}),
        ("w64-0.02:cost", range(1, 7), {"paths": True}),
    ):
        differences_by_seed = []
        for seed in seeds:
            first = results[runs.key_of({**tied, **more, "seed": seed})]
            second = results[runs.key_of({**untied, **more, "seed": seed})]
            differences_by_seed.append(first["loss"] - second["loss"])
        assert figures[name].values == pytest.approx(tuple(differences_by_seed))


def test_runs_of_one_setting_have_one_result():
    lines = tying_experiment.RUNS.read_text(encoding="utf-8").splitlines()
    keys = [runs.key_of(json.loads(line)["run"], json.loads(line)["text"]) for line in lines]
    assert len(keys) == len(set(keys))


def test_the_pictures_show_the_figures(figures):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -e .[tying]")
    panels = pictures.starts_picture(figures).axes
    shown = {panel.get_title(): panel for panel in panels}
    curve = shown["width 64"].lines[0]  # tied
    for start, loss in zip(*curve.get_data(), strict=True):
        name = runs.start_name(64, start)
        assert loss == figures[f"{name}:tied"].mean
    assert 0.02 in curve.get_xdata()

    (panel,) = pictures.costs_picture(figures).axes
    labels = [label.get_text() for label in panel.get_yticklabels()]
    from_002 = zip(*panel.lines[0].get_data(), strict=True)
    costs = {labels[round(y)]: cost for cost, y in from_002}
    assert costs["one layer, width 64"] == figures["10:1,64,cost"].mean


@pytest.mark.parametrize(
    "line", re.findall(r"^\$ tiedgpt (.*)$", PAGES[0].read_text(encoding="utf-8"), re.M)
)
def test_a_command_of_the_page_prints_the_numbers_in_its_comment(line, capsys):
    """They are the number and the share of the parameters that tying saves."""
    arguments, _, comment = line.partition("#")
    assert cli.main(shlex.split(arguments)) == 0
    out = capsys.readouterr().out
    for number in re.search(r"tying saves (\S+), (\S+%)", comment).groups():
        assert number in out


def test_the_names_of_the_rows_are_different():
    assert len(runs.ROW) == len(runs.ROWS)
    assert set(differences.WIDTHS) == {row.size.width for row in runs.ROWS}
