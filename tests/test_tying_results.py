"""scripts/tying_results: its page and tables agree with its runs, runs.jsonl.

PAGE is the README.md of the results, README that of the repository. The first screen of PAGE has
the answers and a picture whose bars are costs. A model is a row of settings.TABLE, with a learning
rate for each head ("tied", "untied"). A pilot chooses this rate: trainings with several rates, with
seeds that are used for nothing else.
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


def test_the_page_has_the_default_settings_of_a_run():
    """The page has them as text, which is not computed from the settings."""
    run = settings.Run()
    text = " ".join(PAGE.split())
    assert (
        f"width {run.width}, a vocabulary of {run.vocab_size} tokens, context {run.context}" in text
    )
    assert f"{run.steps} steps of {run.batch} sequences" in text
    assert f"rank {run.width}" in text
    assert f"at least {MIN_COUNT} times" in text


def test_the_page_begins_with_three_answers_and_the_picture_in_less_than_30_lines():
    first, _, _ = PAGE.partition("## How to read")
    assert len(first.splitlines()) < 30
    assert len(re.findall(r"^\d\. ", first, re.M)) == 3
    assert "costs.png" in first


def test_the_pictures_show_the_runs(published):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -e .[plot]")
    # Of the picture of chains, one curve is compared; of the picture of costs, labels and one bar.
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


def test_the_page_the_pilots_and_repetitions_have_no_seed_in_common():
    assert not {*settings.SEEDS} & {*settings.PILOT_SEEDS}
    assert not {*settings.SEEDS, *settings.PILOT_SEEDS} & {*settings.NEW_SEEDS}


@pytest.mark.parametrize(
    "model", [model for model in settings.TABLE if model.name.endswith("narrower")], ids=str
)
def test_a_narrower_untied_model_has_as_many_parameters_as_the_tied_model(model):
    """The numbers differ by at most 6 %, because the width must be a whole number."""
    tied_model = settings.MODELS[model.rates_of]
    tied = count_parameters(settings.config(tied_model.size))["tied"]["total"]
    untied = count_parameters(settings.config(model.size))["untied"]["total"]
    assert untied == pytest.approx(tied, rel=0.06)


def models_with_a_rate() -> list:
    """Each model and head with a pilot. OPEN stands for a rate that is not chosen yet."""
    params = []
    for model, head in settings.pilot_models():
        if getattr(model, head) != settings.OPEN:
            params.append(pytest.param(model, head, id=f"{model.name}-{head}"))
    return params


@pytest.mark.parametrize(("model", "head"), models_with_a_rate())
def test_the_rate_in_the_table_is_the_best_rate_of_a_finished_pilot(model, head, published):
    rate_of_table = getattr(model, head)
    best = published.best_rate(model, head)  # None if the pilot is not finished
    assert best in (None, rate_of_table)


@pytest.mark.parametrize("head", settings.TENTH_PILOT)
def test_for_a_tenth_of_the_text_the_rate_and_the_steps_are_the_best_of_the_pilot(head, published):
    """This pilot has tried pairs of a learning rate and a number of steps."""
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
    assert model.size.steps == most_steps, "the page says that the most steps are best"


def test_the_figures_in_the_readme_are_on_the_page(published):
    """A figure is a mean and an interval, such as 0.107 [0.098, 0.115]."""
    table, _, _ = README[README.index("| small models") :].partition("\n\n")
    figures = re.findall(r"-?\d\.\d{3} \[.*?\]", table)
    assert len(figures) >= 5
    text = " ".join(PAGE.split())  # a figure may be broken over two lines
    assert [figure for figure in figures if figure not in text] == []


def test_the_readme_has_the_output_of_study(capsys, monkeypatch):
    """In the README, "..." stands for lines that are left out."""
    monkeypatch.setenv("COLUMNS", "100")
    # The command, and the lines after it to the end of the block.
    command, shown = re.search(r"^\$ tiedgpt (study .*)\n((?:.*\n)*?)```", README, re.M).groups()
    shown_lines = shown.splitlines()
    assert len(shown_lines) > 1
    assert cli.main(shlex.split(command)) == 0
    printed_lines = capsys.readouterr().out.splitlines()
    assert {*shown_lines} - {"..."} <= {*printed_lines}


@pytest.mark.parametrize("line", re.findall(r"^\$ tiedgpt (.*)$", PAGE, re.M))
def test_a_command_of_the_page_prints_the_numbers_in_its_comment(line, capsys):
    """They are the number and the share of the parameters that tying saves."""
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


def test_the_second_text_is_the_documentation_of_python():
    """Each version of Python has a different documentation."""
    if text_name(documentation()) != settings.SECOND_TEXT:
        pytest.skip(f"the published runs are from Python {settings.SECOND_TEXT_PYTHON}")
