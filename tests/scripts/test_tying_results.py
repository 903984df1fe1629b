"""scripts/tying_results: each figure of the pages is what scipy computes from runs.jsonl.

A figure of a page is marked by its name in a comment: 0.107 [0.098, 0.115]<!--0:width-64-->. The
names are those of tying/differences.py, or of a registered test, such as P1:512-1.
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
from tying.described import registered_figures
from tying.differences import RESULTS, Figure, all_figures
from tying.tables import table_figures

import tiedgpt
from tiedgpt import cli
from tiedgpt.study.bigrams import mlp_numbers
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.embeddings import knowledge

WEIGHTS = Path(__file__).resolve().parents[2] / "weights"

PAGES = [RESULTS / "README.md", RESULTS / "claims.md"]
NUMBER = r"(-?\d+\.\d+)"
MARK = r"<!--(\S+?)-->"
MARKED = re.compile(rf"{NUMBER}(?: \[{NUMBER}, {NUMBER}\])?{MARK}")
COUNT = re.compile(rf"(\d+) of (\d+){MARK}")
# Numbers that were chosen, not found: starts, rates, asymmetries of chains, factors, a version; or
# that follow from them: 5 tokens of 315, sqrt(2), the pairs in one order of the chain with 0.65
CHOSEN = {"0.005", "0.02", "0.05", "0.1", "0.2", "0.3", "0.4", "0.004", "0.008", "0.016"}
CHOSEN |= {"0.25", "0.177", "0.125", "0.088"}  # 1 / sqrt(D)
CHOSEN |= {"0.01", "0.15", "0.45", "0.65", "3.11", "1.414", "99.3"}
CHOSEN |= {"0.001", "0.0005", "0.9", "0.99", "1.0"}  # rates, AdamW, clipping
CHOSEN |= {"3.3"}  # million tokens: 3,200 steps of 16 texts of 64
CHOSEN |= {"3.1", "3.2", "0.1", "0.014", "0.028"}  # Llamas; ln V / D, and twice that
# What others have found, and the sizes of their models
OF_OTHERS = {"3.874", "3.692", "0.019", "0.2", "1.2", "1.5"}
# What tests below compute
COMPUTED = {"0.10", "0.09", "0.08", "0.20", "0.007", "1.6", "1.7", "2.3"}
OF_THE_PAIR = {
    "tied": {"W_E": ("0.60", "0.74"), "normed": "3.58", "model": "0.56"},
    "untied": {"W_E": ("0.70", "0.32"), "W_U": ("0.19", "0.75"), "normed": "1.72", "model": "0.54"},
}
PAIR_MLPS = {"0.85", "3.13", "3.08", "0.68", "0.77", "2.56"}
PAIR_BOUNDS = {"0.02", "0.03", "0.06"}


@pytest.fixture(scope="module")
def results() -> runs.Results:
    return tying_experiment.read_lines(tying_experiment.RUNS)


@pytest.fixture(scope="module")
def figures(results) -> dict[str, Figure]:
    registered = tying_experiment.read_lines(tying_experiment.REGISTERED)
    figures = all_figures(results | registered) | table_figures(results, measured())
    return figures | registered_figures(registered)


def measured() -> runs.Results:
    return tying_experiment.read_lines(tying_experiment.TABLES)


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
        right = [figure.mean, *figure.interval][: len(found)]
        # On another machine, the last bits of a mean may differ. A mean that lies half way between
        # two figures, such as 0.125, may be shown as either of them.
        rounding = 0.5 * 10**-digits + 1e-9
        errors = [abs(float(shown) - number) for shown, number in zip(found, right, strict=True)]
        if max(errors) > rounding:
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_number_with_decimals_is_marked(page):
    text = text_of(page)
    for pattern in (MARKED, r"```.*?```", r"`[^`]*`", r"\]\([^)]*\)"):
        text = re.sub(pattern, "", text)
    unmarked = re.findall(r"(?<![\d.])-?\d{1,2}\.\d+", text)
    of_the_pair = set(re.findall(r"\d\.\d\d", str(OF_THE_PAIR))) | PAIR_MLPS | PAIR_BOUNDS
    assert set(unmarked) <= CHOSEN | OF_OTHERS | COMPUTED | of_the_pair


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


def holm(figures, names) -> dict[str, float]:
    """Two-sided p values of t tests against 0, with Holm's correction."""
    p = {name: stats.ttest_1samp(figures[name].values, 0).pvalue for name in names}
    corrected, highest = {}, 0.0
    for place, name in enumerate(sorted(p, key=p.__getitem__)):
        highest = max(highest, (len(p) - place) * p[name])
        corrected[name] = min(1, highest)
    return corrected


def test_the_costs_that_remain_after_holms_correction(figures):
    of_widths = [f"w{width}-best:cost" for width in differences.WIDTHS]
    rows = ("2-layers", "4-layers", "2-layers-w128", "1600-steps", "3200-steps", "2048-tokens")
    p = holm(figures, of_widths + [f"{row}:cost" for row in rows])
    assert f"{p.pop('w128-best:cost'):.2f}" == "0.10"
    assert f"{p.pop('2-layers:cost'):.1f} {p.pop('4-layers:cost'):.1f}" == "0.2 0.2"
    assert p.pop("2-layers-w128:cost") > 0.5
    assert max(p.values()) < 0.02


def test_the_cost_with_2048_tokens_is_higher_by_these_factors(figures):
    per_token = figures["2048-tokens:cost"].mean / figures["w64-best:cost"].mean
    per_byte = figures["1:bits,2048"].mean / figures["1:bits,512"].mean
    assert (f"{per_token:.1f}", f"{per_byte:.1f}") == ("2.3", "1.7")


def test_a_start_chosen_without_the_seed_that_measures_moves_the_costs_little(results, figures):
    """The page says by 0.007 at most. A start is a row; its rate is the pilot's."""
    for width in differences.WIDTHS:
        losses = {}
        for head in runs.HEADS:
            rows = [runs.start_name(width, start) for start in runs.BEST_OF]
            found = [
                differences.final_results(row, head, results)
                for row in rows
                if row in runs.ROW and head in runs.ROW[row].heads
            ]
            table = np.array([[run.get("loss", np.inf) for run in finals] for finals in found])
            losses[head] = []
            for seed in range(table.shape[1]):
                others = np.delete(table, seed, axis=1).mean(axis=1)
                losses[head].append(table[others.argmin(), seed])
        cost = np.mean(losses["tied"]) - np.mean(losses["untied"])
        assert abs(cost - figures[f"w{width}-best:cost"].mean) < 0.0075


def test_on_a_tenth_of_the_text_a_tie_restrains_at_one_rate(results):
    """The pairs of pilots of one rate, length and seed: 14, of which 4 overfit."""
    pairs = {}
    for key, result in results.items():
        run, _ = json.loads(key)
        if run.get("text") == "tenth" and run["seed"] in (101, 102) and "loss" in result:
            setting = (run.get("steps", 800), run["lr"], run["seed"])
            pairs.setdefault(setting, {})[run.get("head", "tied")] = result
    pairs = {setting: pair for setting, pair in pairs.items() if len(pair) == 2}
    assert len(pairs) == 14
    for pair in pairs.values():
        assert pair["tied"]["training loss"] > pair["untied"]["training loss"]
    better = {
        setting for setting, pair in pairs.items() if pair["tied"]["loss"] < pair["untied"]["loss"]
    }
    overfits = {
        (steps, rate, seed) for steps, rate in ((1600, 0.001), (800, 0.004)) for seed in (101, 102)
    }
    for steps, rate, seed in overfits:
        fewer_steps = pairs[steps // 2, rate, seed]["untied"]
        assert pairs[steps, rate, seed]["untied"]["loss"] > fewer_steps["loss"]
    assert overfits <= better
    assert len(better - overfits) == 1


def test_the_figures_of_the_two_models_that_come_with_tiedgpt():
    """Those of parts 3 and 9. A last digit may differ between processors."""
    corpus = Corpus.read(WEIGHTS / "shakespeare-bigrams.npz")

    def near(text):
        return pytest.approx(float(text), abs=0.0101)

    numbers = {}
    for head, expected in OF_THE_PAIR.items():
        model = tiedgpt.load_model(f"shakespeare-{head}")
        tables = knowledge(model, corpus)
        numbers[head] = mlp_numbers(model, corpus)
        assert numbers[head]["table"] == near(expected["normed"])
        assert numbers[head]["model"] == near(expected["model"])
        for name in ("W_E", "W_U"):
            by_thing = zip(("successors", "predecessors"), expected.get(name, ()), strict=False)
            for thing, r2 in by_thing:
                known = tables[name][thing]
                assert known["r2"] == near(r2)
                assert known["high"] - 0.035 < known["r2"] < known["low"] + 0.035
                for by_penalty in known["by_penalty"].values():
                    assert by_penalty == pytest.approx(known["r2"], abs=0.06)
        for control in ("random", "counts"):
            assert max(known["r2"] for known in tables[control].values()) < 0.025
    tied, untied = numbers["tied"], numbers["untied"]
    assert (tied["first_alone"], tied["other_alone"]) == (near("0.85"), near("3.13"))
    assert (tied["without_first"], tied["without_other"]) == (near("3.08"), near("0.68"))
    assert (untied["first_alone"], untied["without_first"]) == (near("0.77"), near("2.56"))


@pytest.mark.parametrize(
    ("width", "table", "known", "paid", "overlap"),
    [
        (32, "W_E", "successors", "0.20", False),
        (32, "W_U", "predecessors", "0.08", False),
        (64, "W_E", "successors", "0.08", False),
        (64, "W_U", "predecessors", "0.05", False),
        (128, "W_E", "successors", "0.06", False),
        (128, "W_U", "predecessors", "0.01", True),
    ],
)
def test_a_tied_table_knows_less_than_each_table_of_an_untied_model(
    width, table, known, paid, overlap, figures
):
    """R2 of what follows or precedes: that of the untied model's table minus the tied one's."""
    untied = figures[f"tables:w{width}:untied:{table}.{known}"]
    tied = figures[f"tables:w{width}:tied:W_E.{known}"]
    assert f"{untied.mean - tied.mean:.2f}" == paid
    assert (tied.interval[1] > untied.interval[0]) == overlap


def test_the_models_of_tables_jsonl_are_those_of_runs_jsonl(results):
    """They are trained once more, so they have the same loss."""
    for key, line in measured().items():
        assert line["loss"] == pytest.approx(results[key]["loss"], rel=1e-4)


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
