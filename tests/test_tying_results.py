"""What scripts/tying_results has: the page, its tables, and the runs that both are made of.

PAGE is README.md there, README the one of the package. A model is a row of settings.TABLE; its
pilot is trainings with seeds of their own that choose the learning rate of each head, such as tied
or untied.
"""

import re
import shlex
from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("scipy", reason="scipy is not installed: pip install -e .[tying]")

import tying_experiment
from tying import engine, page, pictures, settings
from tying.claims import CLAIMS
from tying.data import text_name
from tying.figures import Runs
from tying.first_screen import BARS
from tying.texts import documentation

from tiedgpt import cli
from tiedgpt.gpt2.parameters import count_parameters
from tiedgpt.study.corpus import MIN_COUNT

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "scripts" / "tying_results"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def published() -> Runs:
    lines = engine.read_lines(RESULTS / "runs.jsonl")
    return Runs(lines, tying_experiment.PUBLISHED, settings.SECOND_TEXT)


@pytest.mark.parametrize(
    ("name", "write"),
    [("README.md", page.page), ("tables.md", page.tables), ("figures.json", page.figures_json)],
)
def test_the_published_files_are_made_of_the_published_runs(name, write, published):
    assert write(published) == (RESULTS / name).read_text(encoding="utf-8")


def test_the_page_names_the_usual_sizes():
    """They are written by hand in the page's text."""
    run = settings.Run()
    text = " ".join(PAGE.split())
    assert f"width {run.width}, {run.vocab_size} tokens, context {run.context}" in text
    assert f"{run.steps} steps of {run.batch} sequences" in text
    assert f"rank {run.width}" in text
    assert f"at least {MIN_COUNT} times" in text


def test_the_first_screen_is_the_first_screen():
    """The answers and the picture come before all else, in less than 30 lines."""
    first, _, _ = PAGE.partition("## How to read")
    assert len(first.splitlines()) < 30
    assert len(re.findall(r"^\d\. ", first, re.M)) == 3
    assert "costs.png" in first


def test_the_pictures_show_the_runs(published):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -e .[plot]")
    # One curve of the one picture, and all labels and one bar of the other.
    (chains_panel,) = pictures.chains_picture(published).axes
    curves = {line.get_label(): line for line in chains_panel.lines}
    excesses = []
    for jsd in ("0", "0.65"):
        excesses.append(published.measure(f"chain {jsd}, one layer", "tied", "excess").mean)
    assert curves["one layer, tied"].get_ydata() == pytest.approx(excesses)

    (costs_panel,) = pictures.costs_picture(published).axes
    labels = [label.get_text() for label in costs_panel.get_yticklabels()]
    assert labels == [bar.label for bar in BARS]
    widths = [patch.get_width() for patch in costs_panel.patches]
    assert published.cost("one layer").mean in widths


def test_pilot_and_page_have_no_seed_in_common():
    assert not {*settings.SEEDS} & {*settings.PILOT_SEEDS}
    assert not {*settings.SEEDS, *settings.PILOT_SEEDS} & {*settings.NEW_SEEDS}


@pytest.mark.parametrize(
    "model", [model for model in settings.TABLE if model.name.endswith("narrower")], ids=str
)
def test_a_narrower_untied_model_has_as_many_parameters(model):
    """As the tied one from which it has its rates, but for 6 %: the width is a whole number."""
    tied = settings.MODELS[model.rates_of].size
    wide = count_parameters(settings.config(tied))["tied"]["total"]
    narrow = count_parameters(settings.config(model.size))["untied"]["total"]
    assert narrow == pytest.approx(wide, rel=0.06)


def models_with_a_rate() -> list:
    """The models and heads that have a pilot, and for which the table has a rate."""
    params = []
    for model, head in settings.pilot_models():
        if getattr(model, head) != settings.OPEN:
            params.append(pytest.param(model, head, id=f"{model.name}-{head}"))
    return params


@pytest.mark.parametrize(("model", "head"), models_with_a_rate())
def test_the_rate_is_the_best_of_a_finished_pilot(model, head, published):
    rate_of_table = getattr(model, head)
    best = published.best_rate(model, head)  # None if the pilot is not finished
    assert best in (None, rate_of_table)


@pytest.mark.parametrize("head", settings.TENTH_PILOT)
def test_the_rate_and_the_steps_for_a_tenth_are_the_best_of_the_pilot(head, published):
    """The pilot has tried pairs of a rate and a number of steps."""
    seeds = settings.PILOT_SEEDS[: settings.TENTH_PILOT_SEEDS]
    losses = {}
    for rate, steps in settings.TENTH_PILOT[head]:
        run = settings.Run(layers=1, head=head, text="tenth", steps=steps, lr=rate)
        figure = published.figure(published.run_term(run, "loss"), seeds=seeds)
        losses[rate, steps] = fmean(figure.values)
    model = settings.MODELS["tenth"]
    chosen = (getattr(model, head), model.size.steps)
    assert min(losses, key=losses.get) == chosen

    most_steps = max(steps for _, steps in losses)
    assert model.size.steps == most_steps, "the page says so"


def test_the_readme_has_published_figures(published):
    """A figure is a mean and an interval, such as 0.107 [0.098, 0.115]."""
    table, _, _ = README[README.index("| small models") :].partition("\n\n")
    figures = re.findall(r"-?\d\.\d{3} \[.*?\]", table)
    assert len(figures) >= 5
    text = " ".join(PAGE.split())  # a figure may be broken over two lines
    assert [figure for figure in figures if figure not in text] == []


def test_the_readme_has_the_output_of_study(capsys, monkeypatch):
    """The README has some lines of it, and "..." for others."""
    monkeypatch.setenv("COLUMNS", "100")
    # The command, and the lines after it to the end of the block.
    command, shown = re.search(r"^\$ tiedgpt (study .*)\n((?:.*\n)*?)```", README, re.M).groups()
    shown_lines = shown.splitlines()
    assert len(shown_lines) > 1
    assert cli.main(shlex.split(command)) == 0
    printed_lines = capsys.readouterr().out.splitlines()
    assert {*shown_lines} - {"..."} <= {*printed_lines}


@pytest.mark.parametrize("line", re.findall(r"^\$ tiedgpt (.*)$", PAGE, re.M))
def test_the_commands_of_the_page(line, capsys):
    """Each has a comment with two numbers that it prints: how many parameters, and the share."""
    arguments, _, comment = line.partition("#")
    assert cli.main(shlex.split(arguments)) == 0
    out = capsys.readouterr().out
    parameters, share = re.search(r"tying saves (\S+), (\S+ %)", comment).groups()
    assert parameters in out
    assert share in out


@pytest.mark.parametrize("number", CLAIMS)
def test_a_claim_is_shown_alone(number, published):
    shown = page.claim(published, number)
    assert shown.startswith(f"# Claim {number}: ")
    assert "| p, Holm |" in shown


def test_the_second_text_is_that_of_its_python():
    """Another version of Python has other help texts."""
    if text_name(documentation()) != settings.SECOND_TEXT:
        pytest.skip(f"the published runs are from Python {settings.SECOND_TEXT_PYTHON}")
