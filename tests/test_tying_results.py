"""What scripts/tying_results has: the page, its tables, and the runs that both are made of."""

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
    lines = pictures.chains_picture(published).axes[0].lines
    assert lines[3].get_label() == "one layer, tied"
    excess = [
        published.measure(f"chain {jsd}, one layer", "tied", "excess").mean for jsd in ("0", "0.65")
    ]
    assert lines[3].get_ydata() == pytest.approx(excess)

    ax = pictures.costs_picture(published).axes[0]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == [bar.label for bar in BARS]
    widths = [bar.get_width() for bar in ax.patches]
    assert published.cost("one layer").mean in widths


def test_pilot_and_page_have_no_seed_in_common():
    assert not {*settings.SEEDS} & {*settings.PILOT_SEEDS}
    assert not {*settings.SEEDS, *settings.PILOT_SEEDS} & {*settings.NEW_SEEDS}


@pytest.mark.parametrize(
    "model", [model for model in settings.TABLE if model.name.endswith("narrower")], ids=str
)
def test_a_narrower_untied_model_has_as_many_parameters(model):
    tied = settings.MODELS[model.rates_of].size
    wide = count_parameters(settings.config(tied))["tied"]["total"]
    narrow = count_parameters(settings.config(model.size))["untied"]["total"]
    assert narrow == pytest.approx(wide, rel=0.06)


def pilots() -> list:
    rows = []
    for model, head in settings.pilot_models():
        if getattr(model, head) != settings.OPEN:
            rows.append(pytest.param(model, head, id=f"{model.name}-{head}"))
    return rows


@pytest.mark.parametrize(("model", "head"), pilots())
def test_the_rate_is_the_best_of_a_finished_pilot(model, head, published):
    best = published.best_rate(model, head)
    assert best in (None, getattr(model, head))


@pytest.mark.parametrize("head", settings.TENTH_PILOT)
def test_the_rate_and_the_steps_for_a_tenth_are_the_best_of_the_pilot(head, published):
    losses = {}
    for rate, steps in settings.TENTH_PILOT[head]:
        run = settings.Run(layers=1, head=head, text="tenth", steps=steps, lr=rate)
        figure = published.figure(
            published.run_term(1, run, "loss"), seeds=settings.PILOT_SEEDS[:2]
        )
        losses[rate, steps] = fmean(figure.values)
    chosen = settings.MODELS["tenth"]
    assert min(losses, key=losses.get) == (getattr(chosen, head), chosen.size.steps)
    assert chosen.size.steps == max(steps for _, steps in losses), (
        "the page says that it is longest"
    )


def test_the_readme_has_published_figures(published):
    table = README[README.index("| small models") :].partition("\n\n")[0]
    figures = re.findall(r"-?\d\.\d{3} \[.*?\]", table)
    assert len(figures) >= 5
    text = " ".join(PAGE.split())
    assert [figure for figure in figures if figure not in text] == []


def test_the_readme_has_the_output_of_study(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    command, shown = re.search(r"^\$ tiedgpt (study .*)\n((?:.*\n)*?)```", README, re.M).groups()
    assert cli.main(shlex.split(command)) == 0
    assert {*shown.splitlines()} - {"..."} <= {*capsys.readouterr().out.splitlines()}
    assert shown.count("\n") > 1


@pytest.mark.parametrize("line", re.findall(r"^\$ (tiedgpt .*)$", PAGE, re.M))
def test_the_commands_of_the_page(line, capsys):
    command, _, comment = line.partition("#")
    assert cli.main(shlex.split(command)[1:]) == 0
    out = capsys.readouterr().out
    for figure in re.search(r"tying saves (\S+), (\S+ %)", comment).groups():
        assert figure in out


@pytest.mark.parametrize("number", CLAIMS)
def test_a_claim_is_shown_alone(number, published):
    shown = page.claim(published, number)
    assert shown.startswith(f"# Claim {number}: ")
    assert "| p, Holm |" in shown


def test_the_second_text_is_that_of_its_python():
    """Another version of Python has other help texts."""
    if text_name(documentation()) != settings.SECOND_TEXT:
        pytest.skip(f"the published runs are from Python {settings.SECOND_TEXT_PYTHON}")
