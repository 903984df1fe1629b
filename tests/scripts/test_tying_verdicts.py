"""The analysis of the registered experiment, on made-up results whose verdicts are known."""

import math

import numpy as np
import pytest

pytest.importorskip("scipy", reason="scipy is not installed: pip install -e .[tying]")

from scipy import stats
from tying import described, registered, verdicts
from tying.registered import ARMS, COUNTS, PILOT_SEEDS, TEXT
from tying.runs import key_of
from tying.verdicts import TESTS, Verdict


def made_up(losses, only=None) -> dict:
    """Pilots whose best rate is in the middle, and final runs with these losses.

    losses: (arm, seed) -> the loss, or None for a run that diverged.
    """
    results = {}
    for arm in ARMS:
        if only is not None and arm.cell not in only:
            continue
        for start in arm.starts:
            for rate in arm.rates:
                for seed in PILOT_SEEDS:
                    run = registered.pilot_run(arm, start, rate, seed)
                    loss = 3.0 if rate == arm.rates[1] else 3.5
                    if arm.name == "tied":
                        loss += 0.001 * (seed - 100)
                    results[key_of(run.as_json, TEXT)] = {"loss": loss}
        for run in registered.final_runs(arm, results):
            loss = losses(arm, run.seed)
            line = {"diverged": 1}
            if loss is not None:
                nats = {300: 6 * loss, math.inf: 4 * loss}  # of rare tokens, and of others
                by_count = [[10, nats.get(limit, 0.0)] for limit in COUNTS]
                curve = [[400, 2 * loss], [3200, loss]]
                line = {
                    "loss": loss,
                    "bits per byte": loss / 2,
                    "curve": curve,
                    "by count": by_count,
                }
            # The shallower arm of 512-2 has runs of the untied arm of 512-1.
            results.setdefault(key_of(run.as_json, TEXT), line)
    return results


def noisy(costs: dict[tuple[str, str], float], spread: float = 0.01):
    """Losses of 3 and noise; those of the tied arm of a cell are higher by what is asked for."""

    def loss(arm, seed):
        rng = np.random.default_rng([seed, sum(arm.cell.encode()), sum(arm.name.encode())])
        return 3 + spread * rng.normal() - costs.get((arm.cell, arm.name), 0.0)

    return loss


def by_test(results) -> dict[tuple[str, str], Verdict]:
    return {(one.test.prediction, one.test.cell): one for one in verdicts.verdicts(results)}


def test_every_registered_test_is_one_of_the_page():
    assert {(test.prediction, test.cell) for test in TESTS} == {
        *(("P1", cell) for cell in ("512-1", "2048-1", "8192-1")),
        *(("P2", cell) for cell in ("512-4", "2048-4", "8192-4")),
        *(("P3", cell) for cell in ("512-1", "2048-1", "512-2", "2048-2", "8192-2")),
        *(("P4", cell) for cell in ("2048-1", "8192-1")),
    }
    for prediction, size in verdicts.FAMILY_SIZE.items():
        assert sum(test.prediction == prediction for test in TESTS) == size


def test_without_runs_nothing_is_decided():
    assert {one.verdict for one in verdicts.verdicts({})} == {"not run"}


def test_what_was_predicted_holds():
    costs = {("2048-1", "narrower"): 0.05, ("8192-1", "narrower"): 0.05}
    costs |= {(f"{V}-4", "narrower"): -0.03 for V in (512, 2048, 8192)}
    costs |= {(cell, "untied"): 0.03 for cell in ("512-1", "2048-1", "512-2", "2048-2", "8192-2")}
    found = by_test(made_up(noisy(costs)))
    assert {one.verdict for key, one in found.items() if key[0] != "P4"} == {"holds"}
    pairs = {"P1": 18, "P2": 18, "P3": 12, "P4": 12}
    assert all(len(one.values) == pairs[key[0]] for key, one in found.items())


def test_the_opposite_is_refuted():
    costs = {("512-1", "narrower"): 0.06, ("512-4", "narrower"): 0.03}
    costs |= {(cell, "untied"): -0.03 for cell in ("512-1", "2048-1", "512-2", "2048-2", "8192-2")}
    found = by_test(made_up(noisy(costs)))
    assert found["P1", "512-1"].verdict == "refuted"
    assert found["P1", "2048-1"].verdict == "refuted"  # no difference, and 0.02 was predicted
    assert found["P2", "512-4"].verdict == "refuted"
    assert {one.verdict for key, one in found.items() if key[0] == "P3"} == {"refuted"}


def test_what_is_too_noisy_is_not_decided():
    found = by_test(made_up(noisy({}, spread=0.2)))
    assert found["P1", "512-1"].verdict == "not decided"


def test_a_test_waits_for_all_of_its_runs():
    results = made_up(noisy({}), only=["512-1"])
    assert by_test(results)["P3", "512-1"].verdict != "not run"
    last = next(
        key for key in reversed(results) if '"head": "untied"' in key and '"seed": 12' in key
    )
    del results[last]
    assert by_test(results)["P3", "512-1"].verdict == "not run"


def test_one_pair_may_diverge_and_two_decide_nothing():
    costs = noisy({("512-1", "untied"): 0.05})

    def losses(how_many):
        def loss(arm, seed):
            return None if arm.name == "tied" and seed <= how_many else costs(arm, seed)

        return loss

    one = by_test(made_up(losses(1)))["P3", "512-1"]
    assert (one.verdict, len(one.values), one.lost) == ("holds", 11, 1)
    two = by_test(made_up(losses(2)))["P3", "512-1"]
    assert (two.verdict, two.lost) == ("not decided", 2)


def test_p_is_corrected_for_the_whole_family_also_for_tests_that_were_not_run():
    results = made_up(noisy({("512-1", "untied"): 0.012}), only=["512-1"])
    (one,) = [v for v in verdicts.verdicts(results) if v.test.prediction == "P3" and v.values]
    plain = stats.ttest_1samp(one.values, 0.005, alternative="greater").pvalue
    assert one.p == pytest.approx(min(1, 5 * plain))
    low, high = stats.t.interval(0.95, 11, np.mean(one.values), stats.sem(one.values))
    assert one.interval == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("values", "p"),
    [((0.019, 0.021, 0.02, 0.018), "high"), ((0.001, -0.001, 0.0, 0.002), "low")],
)
def test_no_difference_needs_both_sides(values, p):
    """Two one-sided tests: the mean is above -0.02, and below 0.02."""
    found = verdicts.between(-0.02, 0.02)(values)
    assert (found < 0.05) == (p == "low")
    assert verdicts.between(-0.02, 0.02)([-value for value in values]) == pytest.approx(found)


def test_the_part_of_rare_tokens():
    """Tokens seen fewer than 300 times, minus all others, in nats for each held-out token."""
    tied = {"by count": [[0, 0.0]] * 11, "loss": 0}
    untied = {"by count": [[0, 0.0]] * 11, "loss": 0}
    tied["by count"] = [list(pair) for pair in tied["by count"]]
    tied["by count"][COUNTS.index(300)] = [4, 10.0]
    tied["by count"][COUNTS.index(1_000)] = [6, 12.0]
    untied["by count"] = [list(pair) for pair in untied["by count"]]
    untied["by count"][COUNTS.index(300)] = [4, 7.0]
    untied["by count"][COUNTS.index(1_000)] = [6, 11.0]
    assert verdicts.rare_minus_others((tied, untied)) == pytest.approx((3 - 1) / 10)


def test_the_law_finds_its_own_coefficients_and_needs_ten_cells():
    def cost(cell):
        return float(np.dot(verdicts.terms(cell), [0.03, 0.01, -0.005, -0.02]))

    cells = {(arm.model.vocab_size, arm.model.layers, arm.model.width)
             for arm in ARMS if arm.name == "tied"}  # fmt: skip
    rng = np.random.default_rng(0)
    costs = {cell: (cost(cell) + 0.001 * rng.normal(), 0.001) for cell in sorted(cells)}
    low, high = verdicts.law(costs)
    assert low < cost(verdicts.EXTRA) < high
    assert high - low < 0.02
    costs.popitem()
    assert verdicts.law(costs) is None


def test_the_verdicts_are_printed(capsys):
    verdicts.print_verdicts(made_up(noisy({("512-1", "untied"): 0.05})))
    out = capsys.readouterr().out
    assert out.count("\n") == len(TESTS) + 1
    assert "P3 512-1   tied - untied   mean > 0.005           holds: 0.0" in out


# ---- Described, not tested ----


def test_an_arm_without_a_prediction_is_described_when_all_its_runs_are_done():
    costs = noisy({("512-2", "sharing"): -0.04})

    def losses(arm, seed):
        return None if (arm.name, seed) == ("sharing", 7) else costs(arm, seed)

    results = made_up(losses, only=["512-1", "512-2"])  # 512-1 has the runs of the shallower arm
    figures = described.described_figures(results)
    arms = {"narrower:512-2", "shallower:512-2", "sharing:512-2"}
    assert {name for name in figures if name.endswith(":512-2") and name.count(":") == 1} - {
        "below-300:512-2",
        "from-30000:512-2",
        "share-below-300:512-2",
    } == arms
    seeds = [seed for seed in range(1, 19) if seed != 7]  # the pair of which a run diverged
    tied, sharing = verdicts.ARM["512-2", "tied"], verdicts.ARM["512-2", "sharing"]
    differences = np.array([costs(tied, seed) - costs(sharing, seed) for seed in seeds])
    assert figures["sharing:512-2"].values == pytest.approx(differences)
    assert figures["bits:sharing:512-2"].values == pytest.approx(differences / 2)

    last = next(key for key in reversed(results) if '"same_layers"' in key and '"seed": 18' in key)
    del results[last]
    assert "sharing:512-2" not in described.described_figures(results)


def test_cells_are_compared_seed_by_seed_over_the_seeds_that_both_have():
    means = {("512-1", "tied"): 3.0, ("512-2", "tied"): 2.9}
    means |= {("512-1", "untied"): 2.95, ("512-2", "untied"): 2.88}
    means |= {("2048-1", "tied"): 4.0, ("2048-1", "untied"): 3.9}

    def losses(arm, seed):
        if (arm.cell, arm.name, seed) == ("512-2", "untied", 3):
            return None
        return means.get((arm.cell, arm.name), 3.0) + 0.01 * seed

    figures = described.described_figures(made_up(losses, only=["512-1", "512-2", "2048-1"]))
    values = {name: figure.values for name, figure in figures.items()}
    assert values["layers:tied:512"] == pytest.approx([0.1] * 11)  # 12 seeds, of which one diverged
    assert values["layers:untied:512"] == pytest.approx([0.07] * 11)
    assert values["layers:cost:512"] == pytest.approx([0.03] * 11)
    assert values["bits:vocabularies:1"] == pytest.approx([(0.1 - 0.05) / 2] * 12)
    assert not {"layers:cost:2048", "bits:vocabularies:2"} & values.keys()  # not all runs are done


def test_the_learning_curve_the_pilots_and_the_counts_of_a_cell():
    figures = described.described_figures(
        made_up(lambda arm, seed: 3.1 if arm.name == "tied" else 3.0, only=["512-1"])
    )
    assert figures["curve:untied:512-1:400"].values == pytest.approx([2 * 0.1] * 12)
    assert figures["curve:narrower:512-1:3200"].values == pytest.approx([0.1] * 18)
    # made_up: 60 % of the nats are those of tokens below 300, and each group has ten tokens
    rare_groups = [limit for limit in COUNTS if limit <= 300]
    assert figures["share-below-300:512-1"].mean == pytest.approx(0.6)
    rare = 6 * 0.1 / (10 * len(rare_groups))
    assert figures["below-300:512-1"].mean == pytest.approx(rare)
    assert figures["pilot:untied:512-1"].values == pytest.approx([0.001, 0.002, 0.003])
    assert figures["from-30000:512-1"].mean == pytest.approx(4 * 0.1 / 10)


def test_what_is_described_is_printed_after_the_runs(capsys):
    described.print_described({})
    assert capsys.readouterr().out.count("\n") == 1  # the heading alone
    described.print_described(made_up(noisy({("512-1", "untied"): 0.05}), only=["512-1"]))
    out = capsys.readouterr().out
    assert "bits:untied:512-1        0.02" in out
    assert "curve" not in out
