"""The figures of scripts/tying_results, computed again from runs.jsonl with scipy alone.

Nothing of scripts/tying is imported. figures.json says which runs a figure is made of: a figure is
the mean over seeds of a sum of terms, and a term is a measure of a run, added or subtracted by its
sign. With "above" a term is a count instead: 1 where the measure is above that number, else 0. A
figure of two terms or more is a test of whether the mean is 0; "holm" is its p after Holm's
correction for all tests.
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
    """What tells one line of runs.jsonl from the others: the settings of its run, and its text."""
    return json.dumps([run, text], sort_keys=True)


@pytest.fixture(scope="module")
def results() -> dict[str, dict]:
    """What was measured, by key_of."""
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
        # The matrices of two models are compared, each with a seed of its own.
        first_seed, second_seed = seed
        return {
            "compare": {**run["compare"], "seed": first_seed},
            "with": {**run["with"], "seed": second_seed},
        }
    if run.get("measure") == "text":
        return run  # the same for every seed
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
                # A run that diverged has no such measure, and counts as above.
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
    """Two sections of the page may have the same test."""
    tests = {}
    for figure in FIGURES:
        if len(figure["terms"]) > 1:
            tests[json.dumps(figure["terms"])] = figure
    ps_as_shown = np.array([test["p"] for test in tests.values()])
    corrected_as_shown = np.array([test["holm"] for test in tests.values()])

    # The lowest p is multiplied by the number of tests, the next by one less, and so on. No p is
    # then above 1, or below that of a lower p.
    lowest_first = np.argsort(ps_as_shown)
    factors = np.arange(len(tests), 0, -1)
    multiplied = np.minimum(1, ps_as_shown[lowest_first] * factors)
    corrected = np.maximum.accumulate(multiplied)
    np.testing.assert_allclose(corrected_as_shown[lowest_first], corrected)


def test_the_cost_is_the_loss_of_tied_minus_that_of_untied(results):
    """Two bars of the page, whose settings are written out here."""
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
    """The share of the more frequent order among the pairs of a chain, from its JSD.

    The JSD is ln 2 minus the entropy of the two orders of a pair.
    """
    from scipy.optimize import brentq

    def too_much(share: float) -> float:
        jsd_of_share = math.log(2) - stats.entropy([share, 1 - share])
        return jsd_of_share - jsd

    return brentq(too_much, 0.5, 1 - 1e-12)


def test_every_number_on_the_page_is_a_figure(results):
    """Or a setting of a run, or the share of one order in the most asymmetric chain, JSD 0.65."""
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


def test_the_shares_of_failures_are_counts(results):
    """Such as "2 of 12" in the table of claim 11; with fewer seeds nothing is printed."""
    for figure in FIGURES:
        is_count = "above" in figure["terms"][0]
        if is_count and len(figure["seeds"]) == 12:
            count = values_of(figure, results).sum()
            assert f"{count:.0f} of 12" in PAGE
