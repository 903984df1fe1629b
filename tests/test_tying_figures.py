"""The figures of scripts/tying_results, computed again from runs.jsonl with scipy alone.

Nothing of scripts/tying is imported. figures.json says which runs a figure is made of.
"""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

stats = pytest.importorskip("scipy.stats", reason="scipy is not installed: pip install -e .[tying]")

RESULTS = Path(__file__).resolve().parents[1] / "scripts" / "tying_results"
FIGURES = json.loads((RESULTS / "figures.json").read_text(encoding="utf-8"))
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")
SHAKESPEARE = "86c4e6aa9db7"
TWELVE = [1, 2, 3, 4, 5, 6, 7, 8, 1001, 1002, 1003, 1004]


def key_of(run: dict, text: str) -> str:
    return json.dumps([run, text], sort_keys=True)


@pytest.fixture(scope="module")
def results() -> dict[str, dict]:
    """What was measured, by the settings of the run and the text."""
    lines = (RESULTS / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    found = {}
    for line in map(json.loads, lines):
        found[key_of(line["run"], line["text"])] = line["result"]
    return found


def run_of(term: dict, seed) -> dict:
    """The settings of a term's run with one seed."""
    run = term["run"]
    if "compare" in run:
        return {
            "compare": {**run["compare"], "seed": seed[0]},
            "with": {**run["with"], "seed": seed[1]},
        }
    if run.get("measure") == "text":
        return run
    if run.get("measure") == "step time":
        return {**run, "timing": seed}
    return {**run, "seed": seed}


def values_of(figure: dict, results: dict[str, dict]) -> np.ndarray:  # -> [n]
    """The sum of a figure's terms for each seed."""
    values = []
    for seed in figure["seeds"]:
        total = 0.0
        for term in figure["terms"]:
            result = results[key_of(run_of(term, seed), term["text"])]
            if "above" in term:
                total += result.get(term["measure"], math.inf) > term["above"]
            else:
                total += term["sign"] * result[term["measure"]]
        values.append(total)
    return np.array(values)


def name_of(figure: dict) -> str:
    return f"{figure['section']}: {figure['name']}"


@pytest.mark.parametrize("figure", FIGURES, ids=name_of)
def test_a_figure_is_what_scipy_finds(figure, results):
    values = values_of(figure, results)
    assert figure["mean"] == pytest.approx(values.mean(), abs=1e-9)
    if np.ptp(values) == 0:
        assert (figure["low"], figure["high"]) == (figure["mean"], figure["mean"])
        return
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (figure["low"], figure["high"]) == pytest.approx(interval, abs=1e-9)
    assert figure["sd"] == pytest.approx(values.std(ddof=1))
    if len(figure["terms"]) > 1:
        assert figure["p"] == pytest.approx(stats.ttest_1samp(values, 0).pvalue)


def test_holms_correction_counts_each_test_once(results):
    tests = {}
    for figure in FIGURES:
        if len(figure["terms"]) > 1:
            tests[json.dumps(figure["terms"])] = figure
    p = np.array([test["p"] for test in tests.values()])
    order = np.argsort(p)
    factors = np.arange(len(p), 0, -1)
    corrected = np.maximum.accumulate(np.minimum(1, p[order] * factors))
    shown = np.array([test["holm"] for test in tests.values()])
    np.testing.assert_allclose(shown[order], corrected)


def test_the_cost_is_the_loss_of_tied_minus_that_of_untied(results):
    """The settings of two bars, written out here."""
    bars = {figure["name"]: figure for figure in FIGURES if figure["section"] == "first screen"}
    cases = {
        "width 64": ({"layers": 1, "lr": 0.004}, {"layers": 1, "head": "untied", "lr": 0.008}),
        "no layers 64": ({"lr": 0.032}, {"head": "untied", "lr": 0.004}),
    }
    for name, (tied, untied) in cases.items():
        costs = []
        for seed in TWELVE:
            tied_loss = results[key_of({**tied, "seed": seed}, SHAKESPEARE)]["loss"]
            untied_loss = results[key_of({**untied, "seed": seed}, SHAKESPEARE)]["loss"]
            costs.append(tied_loss - untied_loss)
        assert bars[name]["mean"] == pytest.approx(np.mean(costs), abs=1e-9)


def printed(figure: dict) -> set[str]:
    """All forms in which the page may print a figure."""
    forms = set()
    for digits in (1, 2, 3):
        mean = f"{figure['mean']:.{digits}f}"
        forms |= {mean, f"{mean} [{figure['low']:.{digits}f}, {figure['high']:.{digits}f}]"}
    return forms


def settings_of(run: dict) -> set[str]:
    """The numbers among a run's settings, as the page prints them."""
    numbers = [run.get(name) for name in ("lr", "jsd", "input_gradient")]
    return {f"{number:g}" for number in numbers if number is not None}


def share_of_one_order(jsd: float) -> float:
    """The share of the more frequent order among the pairs of a chain, from its JSD."""
    from scipy.optimize import brentq

    def excess(share: float) -> float:
        return math.log(2) - stats.entropy([share, 1 - share]) - jsd

    return brentq(excess, 0.5, 1 - 1e-12)


def test_every_number_on_the_page_is_a_figure(results):
    text = re.sub(r"```.*?```|\]\(.*?\)|Python [\d.]+", "", PAGE, flags=re.S)
    text = " ".join(text.split())  # a figure may be broken over two lines
    known = {f"{100 * share_of_one_order(0.65):.1f}"}
    for figure in FIGURES:
        known |= printed(figure)
    for key in results:
        known |= settings_of(json.loads(key)[0])
    numbers = re.findall(r"-?\d+\.\d+ \[[^]]*\]|-?\d+\.\d+", text)
    assert len(numbers) > 100
    assert [number for number in numbers if number not in known] == []


def test_the_shares_of_failures_are_counts(results):
    """Such as "2 of 12" in the table of claim 11."""
    for figure in FIGURES:
        if "above" not in figure["terms"][0]:
            continue
        count = f"{values_of(figure, results).sum():.0f} of 12"
        assert len(figure["seeds"]) < 12 or count in PAGE
