"""The registered experiment: its text, its table, its pilots, its measures."""

import json
import math
import re
import struct
import sys
import zlib
from dataclasses import replace

import numpy as np
import pytest
import tying_experiment
from tying import english, registered, trainer
from tying.registered import ARMS, PILOT_SEEDS, TEXT, Arm, pilot
from tying.runs import Run, key_of

from tiedgpt.training.merges import learn_tokenizer

PAGE = tying_experiment.REGISTERED.with_name("registered.md").read_text(encoding="utf-8")
TINY = Run(layers=2, vocab_size=280, width=6, context=7, batch=3, steps=20, lr=0.01, once=True)


# ---- The text ----


def test_a_paragraph_is_one_line_without_markup_and_titles_are_left_out():
    long = (
        "He said \u201cthe king\u2019s men\u201d <i>were</i> here &amp; there \u2014 "
        + "word " * 20
    )
    page = f"<html><head><title>x</title></head><h1>A title</h1><p>{long}\n more</p><p>short</p>"
    (found,) = english.paragraphs(page)
    assert found == 'He said "the king\'s men" were here & there - ' + "word " * 20 + "more"


def test_the_blocks_of_a_module_are_its_documents_the_old_testament_first(tmp_path):
    for name, texts in (("nt.czz", ["John"]), ("ot.czz", ["Genesis", "", "Exodus"])):
        blocks = [zlib.compress(text.encode()) if text else b"" for text in texts]
        starts = np.cumsum([0, *map(len, blocks)])
        index = [
            struct.pack("<III", start, len(block), len(text))
            for start, block, text in zip(starts, blocks, texts, strict=False)
        ]
        (tmp_path / name).write_bytes(b"".join(blocks))
        (tmp_path / name.replace("czz", "czs")).write_bytes(b"".join(index))
    assert list(english.sword_documents(tmp_path)) == ["Genesis", "Exodus", "John"]


def test_a_document_is_in_one_part_and_a_paragraph_in_one_document():
    def document(package: int, number: int) -> str:
        own = f"package {package}, document {number}: " + "word " * 20
        return f"<p>{own}</p><p>{'The same in all of the documents. ' * 4}</p>"

    parts = english.split([[document(p, n) for n in range(40)] for p in range(2)])
    places = {
        part: [re.findall(r"package (\d+), document (\d+)", text) for text in kept]
        for part, kept in parts.items()
    }
    assert len(parts["choose.txt"]) == len(parts["held-out.txt"]) == 4
    assert len(parts["train.txt"]) == 80 - 8 + 1
    assert places["held-out.txt"] == [[("0", "14")], [("0", "34")], [("1", "14")], [("1", "34")]]
    everything = [text for kept in parts.values() for text in kept]
    assert len(everything) == len(set(everything))


def test_another_text_is_refused(tmp_path, monkeypatch, capsys):
    for name in english.FILES:
        (tmp_path / name).write_text("another text")
    monkeypatch.setattr(sys, "argv", ["x", "registered", str(tmp_path)])
    assert tying_experiment.main() == 2
    assert "train.txt: the SHA-256 is" in capsys.readouterr().err


# ---- Training ----


def test_no_token_is_trained_on_twice():
    """A token is the input of one sequence at most, and the target of one."""
    tokens = np.arange(20 * 3 * 7 + 5)  # each token is another one
    run = replace(TINY, seed=3)
    batches = [trainer.draw(tokens, run, step) for step in range(run.steps)]
    ids = np.concatenate([ids.ravel() for ids, _ in batches])
    targets = np.concatenate([targets.ravel() for _, targets in batches])
    assert ids.size == 20 * 3 * 7
    np.testing.assert_array_equal(targets, ids + 1)
    assert len(set(ids)) == ids.size
    other, _ = trainer.draw(tokens, replace(run, seed=4), 0)
    assert not np.array_equal(other, batches[0][0])
    same, _ = trainer.draw(tokens, replace(run, width=8, head="untied"), 0)
    np.testing.assert_array_equal(same, batches[0][0])


def test_a_text_that_is_too_short_for_the_steps_is_an_error():
    with pytest.raises(ValueError, match="20 steps need 60 sequences, and the text has 59"):
        trainer.draw(np.zeros(59 * 7 + 1, int), TINY, 0)


@pytest.mark.parametrize(("same_layers", "blocks"), [(0, 4), (2, 3), (3, 2), (4, 1)])
def test_the_last_layers_have_the_same_weights(same_layers, blocks):
    training = trainer.Training(replace(TINY, layers=4, head="untied", same_layers=same_layers))
    training.fill_model()
    parameters = training.model.parameters
    layers = [parameters[f"h.{layer}.mlp.c_fc.weight"].tobytes() for layer in range(4)]
    assert len(set(layers)) == blocks
    assert len(set(layers[4 - same_layers :])) == min(same_layers, 1)


# ---- The table ----


@pytest.mark.parametrize("arm", ARMS[::5], ids=lambda arm: f"{arm.cell}-{arm.name}")
def test_the_number_of_parameters_is_that_of_the_trained_ones(arm):
    trained = trainer.Training(arm.model).parameters.values()
    assert registered.number_of_parameters(arm.model) == sum(array.size for array in trained)


def test_no_narrower_model_is_nearer_to_the_tied_one():
    found = {(arm.cell, arm.name): arm.model for arm in ARMS}
    for cell in {arm.cell for arm in ARMS}:
        tied, narrower = found[cell, "tied"], found[cell, "narrower"]
        wanted = registered.number_of_parameters(tied)
        assert narrower == replace(tied, head="untied", width=narrower.width)
        distance = abs(registered.number_of_parameters(narrower) - wanted)
        assert distance < 0.022 * wanted
        for width in (narrower.width - 2, narrower.width + 2):
            other = registered.number_of_parameters(replace(narrower, width=width))
            assert abs(other - wanted) > distance


def test_the_table_is_the_registered_one():
    """Its cells, arms, widths, seeds, starts and rates stand in registered.md."""
    cells = {arm.cell for arm in ARMS}
    assert len(cells) == 10
    assert all(cell in PAGE for cell in cells)
    widths = re.search(r"nearest to that of the tied model: (.*?); it is", PAGE)[1]
    of_vocabularies, of_width_128 = widths.split(", 90 (width 128)")
    in_page = [int(width) for width in re.findall(r"\b(\d\d)\b", of_vocabularies)] + [90]
    assert of_width_128 == ""
    narrow = [arm.model.width for arm in ARMS if arm.name == "narrower"]
    assert sorted(narrow) == sorted(in_page)
    seeds = {"tied": 18, "untied": 12, "narrower": 18, "shallower": 18, "sharing": 18}
    assert {arm.name: len(arm.seeds) for arm in ARMS} == seeds
    assert {arm.starts for arm in ARMS} == {(0.05, 0.1), (0.1, 0.2)}
    for arm in ARMS:
        at_64 = arm.rates if "w128" not in arm.cell else tuple(2 * rate for rate in arm.rates)
        assert at_64 == (0.004, 0.008, 0.016)
    assert not set(PILOT_SEEDS) & {seed for arm in ARMS for seed in arm.seeds}


def test_every_run_of_the_file_is_one_of_the_plan_and_comes_once():
    results = tying_experiment.read_lines(tying_experiment.REGISTERED)
    planned = set()
    for arm in ARMS:
        for start, rate in pilot(arm, results).losses:
            runs = [registered.pilot_run(arm, start, rate, seed) for seed in PILOT_SEEDS]
            planned |= {key_of(run.as_json, TEXT) for run in runs}
        finals = registered.final_runs(arm, results) or []
        planned |= {key_of(run.as_json, TEXT) for run in finals}
    assert set(results) <= planned
    lines = tying_experiment.REGISTERED.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(results)


# ---- Pilots ----

ARM = Arm("cell", "tied", Run(layers=1, once=True), (0.05, 0.1), (0.004, 0.008, 0.016), (1, 2))


def results_of(losses: dict[tuple[float, float], float]) -> dict:
    return {
        key_of(registered.pilot_run(ARM, start, rate, seed).as_json, TEXT): {"loss": loss}
        for (start, rate), loss in losses.items()
        for seed in PILOT_SEEDS
    }


MIDDLE = {(start, rate): 3.0 for start in ARM.starts for rate in ARM.rates}


@pytest.mark.parametrize(
    ("losses", "missing", "best"),
    [
        pytest.param({}, set(MIDDLE), None, id="nothing is done"),
        pytest.param({**MIDDLE, (0.1, 0.008): 2.9}, set(), (0.1, 0.008), id="in the middle"),
        pytest.param({**MIDDLE, (0.1, 0.016): 2.9}, {(0.1, 0.032)}, None, id="the highest"),
        pytest.param({**MIDDLE, (0.05, 0.004): 2.9}, {(0.05, 0.002)}, None, id="the lowest"),
        pytest.param(
            {**MIDDLE, (0.1, 0.016): 2.9, (0.1, 0.032): math.inf},
            set(),
            (0.1, 0.016),
            id="higher ones diverge",
        ),
    ],
)
def test_a_pilot_tries_more_rates_with_the_best_start(losses, missing, best):
    results = results_of(losses)
    found = pilot(ARM, results)
    assert {(run.table, run.lr) for run in found.missing} == missing
    assert {run.steps for run in found.missing} <= {1600}
    finals = registered.final_runs(ARM, results)
    if best is None:
        assert finals is None
    else:
        assert [(run.table, run.lr, run.seed, run.steps) for run in finals] == [
            (*best, 1, 3200),
            (*best, 2, 3200),
        ]


# ---- Measures ----


def test_losses_by_count_are_those_of_the_tokens_of_that_count():
    counts = np.array([0, 2, 2, 299, 300, 10**6])
    targets = np.array([0, 1, 2, 2, 3, 4, 5, 5])
    losses = np.array([1.0, 2, 3, 4, 5, 6, 7, 8])
    found = dict(zip(registered.COUNTS, registered.by_count(losses, targets, counts), strict=True))
    assert found.pop(1) == [1, 1.0]  # never in the training text
    assert found.pop(3) == [3, 9.0]
    assert found.pop(300) == [1, 5.0]  # fewer than 300 times
    assert found.pop(1_000) == [1, 6.0]
    assert found.pop(math.inf) == [2, 15.0]
    assert set(map(tuple, found.values())) == {(0, 0.0)}


def test_a_run_is_measured_on_its_part_and_counted_in_what_it_was_trained_on(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    words = ["my", "lord", "the", "king", "is", "dead", "and", "queen", "caf\u00e9"]
    for name, size in (("train.txt", 900), ("choose.txt", 200), ("held-out.txt", 300)):
        (tmp_path / name).write_text(" ".join(rng.choice(words, size)), encoding="utf-8")
    monkeypatch.setattr(registered, "CURVE", 10)
    monkeypatch.setattr(registered, "PILOT_STEPS", 10)
    parts = registered.read_parts(tmp_path, TINY.vocab_size)
    for run, tokens in (
        (replace(TINY, seed=1), parts.held_out),
        (replace(TINY, seed=1, steps=10), parts.choose),
    ):
        result = registered.do_run(run, tmp_path)
        training = trainer.Training(run)
        seen = np.concatenate(
            [trainer.draw(parts.train, run, step)[1].ravel() for step in range(run.steps)]
        )
        for step in range(run.steps):
            training.step(parts.train, step)
        assert result["loss"] == pytest.approx(trainer.loss_of(training, tokens), rel=1e-5)
        text = (tmp_path / ("choose.txt" if run.steps == 10 else "held-out.txt")).read_bytes()
        tokenizer = learn_tokenizer((tmp_path / "train.txt").read_text("utf-8"), run.vocab_size)
        first = len(tokenizer.token_bytes(int(tokens[0])))
        nats = sum(total for _, total in result["by count"])
        bits = nats / math.log(2) / (len(text) - first)
        assert result["bits per byte"] == pytest.approx(bits, rel=1e-4)
        assert [steps for steps, _ in result["curve"]] == list(range(10, run.steps + 1, 10))
        np.testing.assert_array_equal(
            registered.counts_in_training(run, parts.train),
            np.bincount(seen, minlength=run.vocab_size),
        )


def test_the_command_goes_on_where_the_file_ends(tmp_path, monkeypatch, capsys):
    todo = [replace(TINY, seed=seed) for seed in range(3)]
    monkeypatch.setattr(
        registered,
        "next_runs",
        lambda results: (run for run in todo if key_of(run.as_json, TEXT) not in results),
    )
    monkeypatch.setattr(registered, "do_run", lambda run, directory: {"loss": run.seed})
    monkeypatch.setattr(english, "check", lambda path, expected: None)
    path = tmp_path / "registered.jsonl"
    tying_experiment.do_registered(tmp_path, path)
    complete = path.read_bytes()
    assert [json.loads(line)["result"]["loss"] for line in complete.splitlines()] == [0, 1, 2]
    path.write_bytes(complete[:-9])  # as if the process had been killed while it wrote
    capsys.readouterr()
    tying_experiment.do_registered(tmp_path, path)
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert [json.loads(line)["run"] for line in path.read_text().splitlines()] == [
        run.as_json for run in todo
    ]
