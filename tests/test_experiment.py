"""The tying experiment on a tiny grid: interruption, tables, pictures; and its published results."""

import doctest
import importlib.util
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tiedgpt
from tiedgpt import cli
from tiedgpt.checkpoints.names import known_config
from tiedgpt.evaluation import token_losses
from tiedgpt.study import swap
from tiedgpt.study.bigrams import bigrams
from tiedgpt.study.corpus import Corpus
from tiedgpt.training.loop import Settings

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "tying_experiment.py"
spec = importlib.util.spec_from_file_location("tying_experiment", SCRIPT)
experiment = sys.modules["tying_experiment"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(experiment)

WHOLE = experiment.Text("whole", 1, 3, ("tied", "normal", "copy", "zeros"))
FOURTH = experiment.Text("fourth", 4, 3, ("tied", "normal"))
GRID = experiment.Grid(
    texts=(WHOLE, FOURTH),
    layers=(0, 1),
    seeds=(1, 2, 3),
    vocab_size=280,
    n_embd=6,
    n_head=2,
    batch=3,
    context=7,
)
RUNS = 36
NO_CLOCK = {"seconds_per_step": None}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Some thousand words, of which each has favourite successors."""
    rng = random.Random(3)
    words = ["my", "lord", "the", "king", "$", "is", "dead\n", "and", "the", "queen", "lives.\n", "é"]
    at, text = 0, []
    for _ in range(4000):
        at = (at + rng.choice([1, 1, 1, 2, 5])) % len(words)
        text.append(words[at])
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text(" ".join(text), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def done(tmp_path_factory, corpus) -> Path:
    """The directory of the grid, done without an interruption."""
    out = tmp_path_factory.mktemp("done") / "out"
    assert experiment.main([str(corpus), str(out)], GRID) == 0
    return out


@pytest.fixture
def studied(monkeypatch) -> list:
    """A list that grows by each model that is studied."""
    models, direct_path = [], experiment.direct_path
    monkeypatch.setattr(
        experiment, "direct_path", lambda model, *rest: models.append(model) or direct_path(model, *rest)
    )
    return models


def read(out: Path) -> dict[str, dict]:
    lines = [json.loads(line) for line in (out / "runs.jsonl").read_text(encoding="utf-8").splitlines()]
    return {line["name"]: line for line in lines}


def test_an_interrupted_and_resumed_experiment_has_the_same_results(
    done, corpus, tmp_path, monkeypatch, capsys
):
    whole, out = read(done), tmp_path / "out"
    assert len(whole) == RUNS
    direct_path, calls = experiment.direct_path, []

    def interrupted(model, corpus):
        calls.append(model)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return direct_path(model, corpus)

    monkeypatch.setattr(experiment, "direct_path", interrupted)
    assert experiment.main([str(corpus), str(out)], GRID) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert not (out / "results.md").exists()
    assert len(read(out)) == 4
    with open(out / "runs.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(whole["fourth-0-tied-1"])[:-2])  # the machine went off

    assert experiment.main([str(corpus), str(out)], GRID) == 0
    assert len(calls) == 5 + RUNS - 4, "done runs are not done again"
    assert list(read(out)) == list(whole)
    for name, line in read(out).items():
        assert line | NO_CLOCK == whole[name] | NO_CLOCK
    for name in ("whole-0-tied-1", "whole-1-zeros-2"):
        weights = Path("models", name, "model.safetensors")
        assert (out / weights).read_bytes() == (done / weights).read_bytes()


def test_finished_runs_are_repeated_only_if_their_settings_changed(done, corpus, tmp_path, studied, capsys):
    out = shutil.copytree(done, tmp_path / "out")
    assert experiment.main([str(corpus), str(out)], GRID) == 0
    assert not studied
    assert f"wrote {out / 'results.md'}\n" in capsys.readouterr().err
    more = replace(GRID, texts=(WHOLE, replace(FOURTH, steps=4)))
    damaged = out / "models" / "whole-0-zeros-3" / "model.safetensors"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1])
    assert experiment.main([str(corpus), str(out)], more) == 0
    assert len(studied) == 12 + 1
    assert "13 of the runs in" in capsys.readouterr().err
    assert damaged.read_bytes() == whole
    assert read(out)["fourth-1-normal-2"]["curve"][-1]["step"] == 4, "the last line of a name counts"


def test_runs_at_once_have_the_results_of_runs_in_turn(done, corpus, tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="Dask is not installed: pip install -e .[dask]")
    monkeypatch.syspath_prepend(SCRIPT.parent)
    grid, out = replace(GRID, texts=(FOURTH,), layers=(1,)), tmp_path / "out"
    assert experiment.main([str(corpus), str(out), "--workers", "2"], grid) == 0
    expected, found = read(done), read(out)
    assert len(found) == 6
    for name, line in found.items():
        assert line["settings"] == {**expected[name]["settings"], "threads": 1}
        assert line["best"]["held_out"] == pytest.approx(expected[name]["best"]["held_out"], rel=1e-5)
        for key, value in line["embeddings"].items():
            assert value == (value and pytest.approx(expected[name]["embeddings"][key], rel=1e-3)), key
        assert line["curve"][-1]["step"] == 3
    assert cells(out)[0].keys() == {("1", "tied"), ("1", "untied, normal")}
    (out / "runs.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for name, line in found.items() if name != "fourth-1-tied-2")
    )
    assert experiment.main([str(corpus), str(out), "--workers", "1"], grid) == 0  # its partner is trained
    assert read(out)["fourth-1-tied-2"] | NO_CLOCK == found["fourth-1-tied-2"] | NO_CLOCK


def test_partner_and_text_are_part_of_a_runs_settings(corpus):
    data = experiment.Data.of(corpus.read_text(encoding="utf-8"), 280)
    run = experiment.Run(FOURTH, 1, "normal", 1)
    settings = experiment.settings_of(run, GRID, data)
    assert experiment.settings_of(run, replace(GRID, seeds=(1, 2, 3, 4)), data) != settings
    assert experiment.settings_of(run, GRID, replace(data, tokens=data.tokens[:-1])) != settings


def test_heads_of_one_seed_start_from_the_same_other_weights(done):
    lines = read(done)
    for seed in (1, 2, 3):
        tied, copy, zeros, normal = (
            lines[f"whole-0-{head}-{seed}"] for head in ("tied", "copy", "zeros", "normal")
        )
        start, later = ([head["curve"][n]["held_out"] for head in (tied, copy)] for n in (0, 1))
        assert start[0] == pytest.approx(start[1], rel=1e-6), "as a copy it starts with the same logits"
        assert later[0] != pytest.approx(later[1], rel=1e-6)
        assert zeros["curve"][0]["held_out"] == pytest.approx(np.log(280), abs=1e-5)
        assert zeros["curve"][1]["train"] == pytest.approx(np.log(280), abs=1e-5)
        assert normal["curve"][0]["held_out"] != zeros["curve"][0]["held_out"]
    weights = {name: tiedgpt.load_model(done / "models" / name) for name in lines}
    started = tiedgpt.GPT2.random(weights["whole-1-tied-2"].config, 2).parameters["h.0.mlp.c_fc.weight"]
    for head in ("tied", "normal", "zeros"):
        moved = weights[f"whole-1-{head}-2"].parameters["h.0.mlp.c_fc.weight"] - started
        assert 0 < np.abs(moved).max() < 0.02


def test_a_partner_is_a_tied_model_of_another_seed_that_is_there_already():
    before = []
    for run in GRID.runs():
        partner = GRID.partner(run)
        if partner is None:
            assert (run.head, run.seed) == ("tied", 1)
        else:
            assert partner.name in before
            assert (partner.head, partner.text, partner.layers) == ("tied", run.text, run.layers)
            assert partner.seed != run.seed
        before.append(run.name)
    assert len(set(before)) == RUNS


def test_a_line_has_the_numbers_of_its_model(done, corpus, monkeypatch):
    line, data = read(done)["whole-1-normal-2"], experiment.Data.of(corpus.read_text(encoding="utf-8"), 280)
    model = tiedgpt.load_model(done / "models" / line["name"])
    own = token_losses(model, data.held_out, model.config.n_ctx - 1)
    assert line["best"]["held_out"] == pytest.approx(own.mean(), rel=1e-5)
    size = len(data.tokenizer.decode_bytes(data.held_out[1:].tolist()))
    assert line["best"]["bits_per_byte"] == pytest.approx(own.sum() / np.log(2) / size, rel=1e-5)
    assert line["parameters"] == sum(array.size for array in model.parameters.values())
    monkeypatch.setattr(swap, "MAX_TOKENS", 10)
    not_overlapping = token_losses(model, data.held_out, model.config.n_ctx)
    assert line["loss"]["own"] == pytest.approx(not_overlapping.mean(), rel=1e-5)
    A = model.W_E.astype(float) @ model.W_U
    asymmetry = np.linalg.norm(A - A.T) / np.linalg.norm(A)
    assert line["direct_path"]["asymmetry"] == pytest.approx(asymmetry, rel=1e-5)
    tied = tiedgpt.load_model(done / "models" / "whole-1-tied-1").W_E
    expected = experiment.embeddings(model, data.corpus, tied)
    assert line["embeddings"] == pytest.approx(expected, rel=1e-4)
    for path, scores in bigrams(model, Corpus.of(data.tokens, 280)).items():
        assert line["bigrams"][path] == pytest.approx(scores, rel=1e-4), path
    assert line["loss"]["tokens"] == not_overlapping.size
    assert 0 < line["seconds_per_step"] < 1


def test_the_model_that_is_saved_is_the_best_one(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "Settings", partial(Settings, lr=2.0, warm_up=0))  # too high to learn
    data = experiment.Data.of(corpus.read_text(encoding="utf-8"), 280)
    steps = []
    do = experiment.in_turn(GRID, data, tmp_path)
    [line] = do([experiment.Run(WHOLE, 0, "tied", 1)], steps.append)
    best, last = min(point["held_out"] for point in line["curve"]), line["curve"][-1]["held_out"]
    assert line["best"]["held_out"] == best < last
    model = tiedgpt.load_model(tmp_path / "models" / line["name"])
    losses = token_losses(model, data.held_out, model.config.n_ctx - 1)
    assert losses.mean() == pytest.approx(best, rel=1e-6)
    assert [point["step"] for point in line["curve"]] == [0, 1, 2, 3]
    assert len(steps) == 3
    for point in line["curve"]:
        assert point["bits_per_byte"] == point["held_out"] * data.bits


def cells(out: Path) -> list[dict[tuple[str, str], dict[str, str]]]:
    """The tables of results.md: {(layers, head): {title: cell}} each."""
    found = []
    for block in (out / "results.md").read_text(encoding="utf-8").split("\n\n"):
        if block.startswith("|"):
            titles, _, *rows = [line.strip("| ").split(" | ") for line in block.splitlines()]
            found.append({(row[0], row[1]): dict(zip(titles, row, strict=True)) for row in rows})
    return found


def shown(numbers, digits=3, sign="") -> str:
    """Mean and standard deviation, computed another way than by the script."""
    return f"{np.mean(numbers):{sign}.{digits}f} ± {np.std(numbers, ddof=1):.{digits}f}"


def test_the_tables_have_the_numbers_of_the_lines(done, corpus):
    assert experiment.main([str(corpus), str(done)], GRID) == 0
    lines, tables = read(done), cells(done)
    assert len(tables) == 8, "four for each text"
    loss, difference, direct, alike = tables[:4]
    assert len(loss) == len(direct) == len(alike) == 8
    assert set(difference) == {(n, f"untied, {head}") for n in "01" for head in ("normal", "copy", "zeros")}
    normal = [lines[f"whole-1-normal-{seed}"] for seed in (1, 2, 3)]
    tied = [lines[f"whole-1-tied-{seed}"] for seed in (1, 2, 3)]
    row = loss["1", "untied, normal"]
    assert row["parameters"] == f"{normal[0]['parameters']:,}"
    assert row["best loss"] == shown(
        [min(point["bits_per_byte"] for point in line["curve"]) for line in normal]
    )
    assert row["last loss"] == shown([line["curve"][-1]["bits_per_byte"] for line in normal])
    assert row["best step"] == "3"
    assert row["ms per step"] == shown([1000 * line["seconds_per_step"] for line in normal], 1)
    after = [
        [next(point["bits_per_byte"] for point in line["curve"] if point["step"] == 1) for line in group]
        for group in (normal, tied)
    ]
    assert row["after 1"] == shown(after[0])
    assert difference["1", "untied, normal"]["after 1"] == shown(np.subtract(*after), sign="+")
    assert direct["0", "tied"]["asymmetry"] == "0.000"
    assert direct["0", "tied"]["KL mlp0"] == "-"
    for path in ("raw", "normed", "mlp0", "model"):
        kl = [line["bigrams"][path]["kl"] for line in normal]
        assert direct["1", "untied, normal"][f"KL {path}"] == shown(kl)
    assert alike["1", "tied"]["W_E, tied"] == shown([line["embeddings"]["in_tied"] for line in tied[1:]])
    assert alike["1", "untied, normal"]["W_U, tied"] == shown(
        [line["embeddings"]["out_tied"] for line in normal]
    )
    assert alike["1", "untied, normal"]["loss, tied head"] == shown(
        [line["loss"]["swapped"] for line in normal]
    )
    assert alike["1", "tied"]["loss, tied head"] == "-"
    few = [lines[f"fourth-0-tied-{seed}"]["best"]["bits_per_byte"] for seed in (1, 2, 3)]
    assert tables[4]["0", "tied"]["best loss"] == shown(few)
    assert loss["0", "tied"]["best loss"] != shown(few)


def test_the_pictures_are_made(done, corpus):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -e .[plot]")
    assert experiment.main([str(corpus), str(done)], GRID) == 0
    pictures = {path.name: path.read_bytes() for path in done.glob("*.png")}
    names = {"loss_curves.png", "loss_differences.png", "direct_paths.png", "similarities.png"}
    assert set(pictures) == names
    for data in pictures.values():
        assert data.startswith(b"\x89PNG")
        assert int.from_bytes(data[16:20], "big") == 900, "pixels wide"
        assert 3000 < len(data) < 100_000


def test_the_pictures_show_the_numbers_of_the_lines(done, corpus):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install -e .[plot]")
    lines, data = read(done), experiment.Data.of(corpus.read_text(encoding="utf-8"), 280)

    def bits(head):
        curves = [lines[f"fourth-1-{head}-{seed}"]["curve"][1:] for seed in (1, 2, 3)]
        return np.array([[point["bits_per_byte"] for point in curve] for curve in curves])

    last = experiment.loss_curves(GRID, lines).axes[-1]
    for line, head in zip(last.lines, ("tied", "normal"), strict=True):
        np.testing.assert_allclose(line.get_ydata(), bits(head).mean(axis=0))
    _, difference = experiment.loss_differences(GRID, lines).axes[-1].lines
    np.testing.assert_allclose(difference.get_ydata(), (bits("normal") - bits("tied")).mean(axis=0))

    counts, *_ = experiment.direct_paths(GRID, data, done).axes
    tokens = np.argsort(-data.corpus.counts, kind="stable")[:12]
    follow = [[data.corpus.count(first, second) for second in tokens] for first in tokens]
    np.testing.assert_allclose(counts.images[0].get_array(), np.log10(1 + np.array(follow)))

    bar = experiment.similarities(GRID, lines).axes[1].patches[0]
    in_out = [lines[f"whole-1-normal-{seed}"]["embeddings"]["in_out"] for seed in (1, 2, 3)]
    assert bar.get_height() == pytest.approx(np.mean(in_out))


def test_without_matplotlib_a_line_says_how_to_get_it(done, corpus, monkeypatch, capsys):
    monkeypatch.setattr(experiment, "find_spec", lambda name: None)
    assert experiment.main([str(corpus), str(done)], GRID) == 0
    assert "pip install -e .[plot]" in capsys.readouterr().err


@pytest.mark.parametrize("importing", [True, False])
def test_ctrl_c_ends_with_130_and_no_traceback(corpus, tmp_path, importing):
    """While modules are imported, and while a model is trained."""
    (tmp_path / "numpy.py").write_text("print('run', flush=True); import time; time.sleep(60)")
    path = [str(SCRIPT.parents[1]), *([str(tmp_path)] if importing else [])]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(corpus), str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    out = b""
    while b"run" not in out:
        byte = process.stdout.read(1)
        assert byte, out
        out += byte
    process.send_signal(signal.SIGINT)
    out += process.communicate(timeout=60)[0]
    assert process.returncode == 130
    assert b"Traceback" not in out
    assert (b"the same command continues" in out) == (not importing)


@pytest.mark.parametrize("line", ['{"name": "whole-0-tied-1"}', "[]", "what?", "3"])
def test_a_wrong_line_is_an_error_that_names_it(corpus, tmp_path, capsys, line):
    (tmp_path / "runs.jsonl").write_text(f'{{"name": "x", "settings": {{}}}}\n{line}\n', encoding="utf-8")
    assert experiment.main([str(corpus), str(tmp_path)], GRID) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "runs.jsonl, line 2: expected a run of this script" in err


def test_bad_texts_are_one_line_errors(tmp_path, capsys):
    text = tmp_path / "text"
    assert experiment.main([str(text), str(tmp_path / "out")], GRID) == 2
    assert "No such file" in capsys.readouterr().err
    text.write_text("too short", encoding="utf-8")
    assert experiment.main([str(text), str(tmp_path / "out")], GRID) == 2
    assert "the fourth text to train on has 2 tokens" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.glob("out/models/*"))


RESULTS = SCRIPT.parent / "tying_results"


def test_the_published_tables_are_of_the_form_that_the_script_writes(done, corpus):
    """The published runs are not in the repository, so results.md cannot be written again here."""
    assert experiment.main([str(corpus), str(done)], GRID) == 0

    def without_numbers(path: Path) -> list[str]:
        lines = [*path.read_text(encoding="utf-8").splitlines(), ""]
        kept = [line for line, after in pairwise(lines) if line[:1] != "|" or after.startswith("| ---")]
        return [re.sub(r"\d[\d,.]*", "N", line) for line in kept]

    assert without_numbers(RESULTS / "results.md") == without_numbers(done / "results.md")


PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")


def test_every_number_of_the_page_is_in_the_published_tables():
    tables = (RESULTS / "results.md").read_text(encoding="utf-8")
    shipped = (SCRIPT.parents[1] / "weights" / "README.md").read_text(encoding="utf-8")
    numbers = re.findall(r"(?<!\d)[-+]?\d{1,2}\.\d{3}(?!\d)(?: ± \d\.\d{3})?", PAGE)
    assert len(numbers) > 70
    for number in set(numbers) - {"1.414"}:
        assert re.search(rf"(?<![-+\d]){re.escape(number)}(?! ±|\d)", tables + shipped), number


def test_the_parameters_of_the_page():
    rows = re.findall(r"^\| (\S+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d.]+ %) \|$", PAGE, re.M)
    assert len(rows) == 5
    for name, *figures in rows:
        counts = tiedgpt.count_parameters(known_config(name))
        tied, untied = counts["tied"]["total"], counts["untied"]["total"]
        saved = untied - tied
        assert figures == [f"{tied:,}", f"{untied:,}", f"{saved:,}", f"{100 * saved / untied:.1f} %"]


@pytest.mark.parametrize("command", re.findall(r"^\$ (tiedgpt .*)$", PAGE, re.M))
def test_the_commands_of_the_page(command, capsys):
    command, _, comment = command.partition("#")
    argv = shlex.split(command)[1:]
    cli.build_parser(argv).parse_args(argv)
    if comment:  # tying saves NUMBER, PERCENT
        assert cli.main(argv) == 0
        assert comment.strip() in capsys.readouterr().out


def test_the_links_of_the_page():
    for link, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", PAGE):
        assert (RESULTS / link).exists(), link
        headings = re.findall(r"^#+ (.*)$", PAGE, re.M)
        slugs = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
        assert not anchor or anchor in slugs, anchor


def test_the_examples_in_the_docstrings():
    results = doctest.testmod(experiment)
    assert results.attempted > 0
    assert results.failed == 0
