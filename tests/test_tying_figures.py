"""The figures of scripts/tying_results, computed again from runs.jsonl with scipy alone.

Nothing of scripts/tying is imported. A figure in figures.json is the mean over its seeds of a sum
of terms. A term is a measure of a run, times a sign: 1 or -1. A term with "above" is a count
instead: 1 if the measure is above that number, else 0. A figure of two terms or more is also a
statistical test of whether its mean is 0: "p" is the p of this test, and "holm" is p after Holm's
correction for all tests. PAGE is the README.md of the results, which prints figures.
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
SHAKESPEARE = "86c4e6aa9db7"  # the name of the text in runs.jsonl
TWELVE_SEEDS = [1, 2, 3, 4, 5, 6, 7, 8, 1001, 1002, 1003, 1004]


def key_of(run: dict, text: str) -> str:
    """The key of a line of runs.jsonl: the settings of its run, and the name of its text."""
    return json.dumps([run, text], sort_keys=True)


@pytest.fixture(scope="module")
def results() -> dict[str, dict]:
    """The measures of each run in runs.jsonl, by its key."""
    lines = (RESULTS / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    found = {}
    for text in lines:
        line = json.loads(text)
        found[key_of(line["run"], line["text"])] = line["result"]
    return found


def run_of(term: dict, seed) -> dict:
    """The settings of a term's run with one seed."""
    run = term["run"]
    if "compare" in run:
        # Two models are compared, and `seed` is a pair of seeds, one for each model.
        first_seed, second_seed = seed
        return {
            "compare": {**run["compare"], "seed": first_seed},
            "with": {**run["with"], "seed": second_seed},
        }
    if run.get("measure") == "text":
        return run  # a measure of the text has no seed
    if run.get("measure") == "step time":
        return {**run, "timing": seed}  # the number of the repetition
    return {**run, "seed": seed}


def values_of(figure: dict, results: dict[str, dict]) -> np.ndarray:  # -> [n]
    """The sum of a figure's terms for each seed."""
    values = []
    for seed in figure["seeds"]:
        total = 0.0
        for term in figure["terms"]:
            result = results[key_of(run_of(term, seed), term["text"])]
            if "above" in term:
                measure = result.get(term["measure"], math.inf)  # missing if the run diverged
                total += measure > term["above"]
            else:
                total += term["sign"] * result[term["measure"]]
        values.append(total)
    return np.array(values)


def name_of(figure: dict) -> str:
    return f"{figure['section']}: {figure['name']}"


@pytest.mark.parametrize("figure", FIGURES, ids=name_of)
def test_a_figure_is_the_mean_interval_and_p_that_scipy_computes(figure, results):
    values = values_of(figure, results)
    assert figure["mean"] == pytest.approx(values.mean(), abs=1e-9)
    if np.ptp(values) == 0:
        # All values are the same, or there is only one.
        assert (figure["low"], figure["high"]) == (figure["mean"], figure["mean"])
        return
    test = stats.ttest_1samp(values, 0)
    interval = test.confidence_interval(0.95)
    assert (figure["low"], figure["high"]) == pytest.approx(interval, abs=1e-9)
    assert figure["sd"] == pytest.approx(values.std(ddof=1))
    if len(figure["terms"]) > 1:
        assert figure["p"] == pytest.approx(test.pvalue)


def test_holms_correction_counts_each_test_once():
    """If two sections of the page have the same figure, it is one test."""
    tests = {}
    for figure in FIGURES:
        if len(figure["terms"]) > 1:
            tests[json.dumps(figure["terms"])] = figure
    p = np.array([test["p"] for test in tests.values()])
    holm = np.array([test["holm"] for test in tests.values()])

    # Holm multiplies the lowest p by the number n of tests, the next p by n - 1, and so on, to at
    # most 1. A corrected p is at least as high as the corrected p before it.
    lowest_first = np.argsort(p)
    factors = np.arange(len(tests), 0, -1)
    multiplied = np.minimum(1, p[lowest_first] * factors)
    corrected = np.maximum.accumulate(multiplied)
    np.testing.assert_allclose(holm[lowest_first], corrected)


def test_the_cost_is_the_loss_of_tied_minus_that_of_untied(results):
    """For two figures of the page, the settings of both runs are written out here."""
    bars = {figure["name"]: figure for figure in FIGURES if figure["section"] == "first screen"}
    cases = {
        "width 64": ({"layers": 1, "lr": 0.004}, {"layers": 1, "head": "untied", "lr": 0.008}),
        "no layers 64": ({"lr": 0.032}, {"head": "untied", "lr": 0.004}),
    }
    for name, (tied, untied) in cases.items():
        costs = []
        for seed in TWELVE_SEEDS:
            tied_loss = results[key_of({**tied, "seed": seed}, SHAKESPEARE)]["loss"]
            untied_loss = results[key_of({**untied, "seed": seed}, SHAKESPEARE)]["loss"]
            costs.append(tied_loss - untied_loss)
        assert bars[name]["mean"] == pytest.approx(np.mean(costs), abs=1e-9)


def printed(figure: dict) -> set[str]:
    """All forms in which the page may print a figure: with 1 to 3 digits, with its interval."""
    forms = set()
    for digits in (1, 2, 3):
        mean = f"{figure['mean']:.{digits}f}"
        low = f"{figure['low']:.{digits}f}"
        high = f"{figure['high']:.{digits}f}"
        forms |= {mean, f"{mean} [{low}, {high}]"}
    return forms


def settings_of(run: dict) -> set[str]:
    """The numbers among a run's settings, as the page prints them."""
    numbers = [run.get(name) for name in ("lr", "jsd", "input_gradient")]
    return {f"{number:g}" for number in numbers if number is not None}


def share_of_one_order(jsd: float) -> float:
    """The share of pairs of a chain that have the more frequent of their two orders.

    The JSD of the chain is ln 2 minus the entropy of the shares of the two orders.
    """
    from scipy.optimize import brentq

    def difference_of_jsd(share: float) -> float:
        jsd_of_share = math.log(2) - stats.entropy([share, 1 - share])
        return jsd_of_share - jsd

    return brentq(difference_of_jsd, 0.5, 1 - 1e-12)  # the share for which this is 0


def test_every_number_on_the_page_is_a_figure(results):
    """Two other kinds are allowed: settings of runs, and the share of one order in a chain.

    This share is that of the chain with the highest JSD, 0.65, in percent.
    """
    known = {f"{100 * share_of_one_order(0.65):.1f}"}
    for figure in FIGURES:
        known |= printed(figure)
    for key in results:
        run, _ = json.loads(key)
        known |= settings_of(run)

    # Commands, links and the version of Python are left out.
    text = re.sub(r"```.*?```|\]\(.*?\)|Python [\d.]+", "", PAGE, flags=re.S)
    text = " ".join(text.split())  # a figure may be broken over two lines
    numbers = re.findall(r"-?\d+\.\d+ \[[^]]*\]|-?\d+\.\d+", text)
    assert len(numbers) > 100
    assert [number for number in numbers if number not in known] == []


def test_the_page_prints_counts_of_runs_above_a_limit_as_n_of_12(results):
    """For example "2 of 12". A count with fewer than twelve seeds is not printed."""
    for figure in FIGURES:
        is_count = "above" in figure["terms"][0]
        if is_count and len(figure["seeds"]) == 12:
            count = values_of(figure, results).sum()
            assert f"{count:.0f} of 12" in PAGE
