"""The commands `tie` and `untie`: a copy with the other head, whatever config.json and file say.

config.json says tied or untied. The file of weights may hold no W_U (as that of TIED), a copy of
wte.T as W_U (as that of COPY), or another head: a W_U that is not wte.T (as that of UNTIED).
"""

import json

import numpy as np
import pytest
from support.checkpoint_files import assert_same, write_tensors
from support.commands import answer, assert_one_error_line
from support.models import CONFIG, SMALL, random_model

from tiedgpt import Tokenizer, load_model, load_tokenizer, save_model, score
from tiedgpt.checkpoints.model_names import weight_folders

TIED = random_model(SMALL)  # without a W_U in its file
UNTIED = random_model(SMALL.with_head("untied"))  # its W_U is not wte.T
COPY = TIED.untie("copy")  # its W_U is wte.T
FRESH = TIED.untie("random", seed=3)
RANDOM = ("--init", "random", "--seed", "3")


@pytest.mark.parametrize(
    ("head_of_config", "model", "words", "expected"),
    [
        ("tied", TIED, ["untie"], COPY),
        ("tied", COPY, ["untie"], COPY),
        ("tied", UNTIED, ["untie"], UNTIED),  # the W_U that config.json does not mention is kept
        ("untied", TIED, ["untie"], COPY),
        ("tied", TIED, ["untie", *RANDOM], FRESH),
        ("tied", COPY, ["untie", *RANDOM], FRESH),
        ("tied", UNTIED, ["untie", *RANDOM], UNTIED.tie().untie("random", seed=3)),
        ("untied", TIED, ["untie", *RANDOM], FRESH),
        ("untied", COPY, ["untie"], "untied already"),
        ("untied", UNTIED, ["untie"], "untied already"),
        ("untied", UNTIED, ["untie", *RANDOM], "untied already"),
        ("untied", COPY, ["tie"], TIED),
        ("untied", UNTIED, ["tie"], UNTIED.tie()),
        ("tied", UNTIED, ["tie"], UNTIED.tie()),
        ("untied", TIED, ["tie"], TIED),
        ("tied", TIED, ["tie"], "tied already"),
        ("tied", COPY, ["tie"], "tied already"),
    ],
)
def test_what_the_copy_holds(run, tmp_path, head_of_config, model, words, expected):
    """config.json says `head_of_config`, and the file has the parameters of `model`."""
    source = write_tensors(tmp_path / "source", model.parameters, SMALL.with_head(head_of_config))
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    copy = tmp_path / "copy"
    result = run(*words, str(source), str(copy))
    if isinstance(expected, str):
        assert_one_error_line(result, f"{source} is {expected}\n")
        assert not copy.exists()
    else:
        code, out, err = result
        assert (code, out) == (0, "")
        assert f"wrote {copy}: {expected.config.head}" in err
        assert_same(load_model(copy), expected)
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


@pytest.mark.parametrize(
    ("head_of_config", "model", "said"),
    [
        ("tied", UNTIED, "says tied, but the file has a W_U that is not wte.T: it is kept"),
        ("untied", TIED, "says untied, but there is no W_U: it begins with wte.T"),
    ],
)
def test_a_note_says_what_becomes_of_a_contradiction(run, tmp_path, head_of_config, model, said):
    config = SMALL.with_head(head_of_config)
    source = write_tensors(tmp_path / "source", model.parameters, config)
    _, _, err = run("untie", str(source), str(tmp_path / "copy"))
    assert err.startswith(f"tiedgpt: note: config.json of {source} {said}\n")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("checkpoint", ["untie"]),
        ("checkpoint", ["untie", "--init", "zeros"]),
        ("untied", ["tie"]),
    ],
)
def test_a_note_says_what_happens_to_the_loss_of_a_text(
    run, tmp_path, monkeypatch, request, model, words
):
    """None is there if the logits are the same. By zeros, every token has the same probability."""
    source = request.getfixturevalue(model)
    copy = tmp_path / "copy"
    # The shipped sonnets are longer.
    sonnets = tmp_path / "sonnets.txt"
    sonnets.write_text("Shall I compare thee to a summer's day?\n" * 3, encoding="utf-8")
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(tmp_path))
    code, _, err = run(*words, source, str(copy))
    assert code == 0
    tokenizer = load_tokenizer(source)
    ids = tokenizer.encode(sonnets.read_text(encoding="utf-8"))
    before = score(load_model(source), tokenizer, ids).nll
    after = score(load_model(copy), tokenizer, ids).nll
    note = f"goes from {before:.2f} to {after:.2f} nats per token"
    assert (note in err) == (words != ["untie"])
    assert ("sonnets" in err) == (words != ["untie"])


def test_a_note_says_that_the_sonnets_are_missing(run, untied, tmp_path, monkeypatch):
    monkeypatch.setattr("tiedgpt.cli.models.weight_folders", lambda: [tmp_path])
    code, _, err = run("tie", untied, str(tmp_path / "copy"))
    assert code == 0
    assert "is not measured: sonnets.txt is missing from tiedgpt: install tiedgpt again" in err


def test_the_sonnets_are_shipped():
    assert any((folder / "sonnets.txt").is_file() for folder in weight_folders())


def test_a_note_says_that_the_loss_is_not_measured_without_a_tokenizer(run, tmp_path):
    source = write_tensors(tmp_path / "source", UNTIED.parameters, UNTIED.config)
    code, _, err = run("tie", str(source), str(tmp_path / "copy"))
    assert code == 0
    assert "loss of a text is not measured" in err
    assert "; the copy is written without a tokenizer\n" in err


# A checkpoint that contradicts its config.json, in other commands


def test_params_shows_the_head_that_is_loaded(run, tmp_path):
    write_tensors(tmp_path, UNTIED.parameters, SMALL)
    document = answer(run, "params", "-m", str(tmp_path))
    assert document["config"]["tied"] is False


@pytest.mark.filterwarnings("always::tiedgpt.errors.TiedGPTWarning")
def test_a_command_says_that_the_head_of_the_file_is_used(run, tmp_path):
    """config.json says tied, and the file holds a W_U that is not wte.T."""
    save_model(random_model(CONFIG), Tokenizer([]), tmp_path)
    untied = random_model(CONFIG.with_head("untied"), seed=1)
    write_tensors(tmp_path, untied.parameters, CONFIG)  # beside the tokenizer
    code, out, err = run("score", "-m", str(tmp_path), "--json", stdin=b"abcdef")
    assert code == 0
    assert json.loads(out)["head"] == "untied"
    assert "note: " in err
    assert "untied, as transformers 5 reads it" in err


# A damaged model


@pytest.mark.parametrize("words", [["untie"], ["resize", "--vocab-size", "300"]], ids=" ".join)
def test_a_copy_of_a_model_with_nan_is_not_written(run, save, tmp_path, words):
    """np.errstate is there because NumPy's own warnings about NaN would be errors in a test."""
    model = random_model(CONFIG)
    model.parameters["wte.weight"][-1, 0] = np.nan
    damaged = save("damaged", model)
    with np.errstate(invalid="ignore"):
        result = run(*words, damaged, str(tmp_path / "copy"))
    assert_one_error_line(result, "checkpoint is damaged")
    assert not (tmp_path / "copy").exists()


def test_weights_that_are_too_large_are_no_warning_of_numpy(run, save, tmp_path):
    model = random_model(CONFIG)
    model.parameters["wte.weight"][:] = 3e38
    copy = tmp_path / "copy"
    result = run("untie", save("large", model), str(copy))
    assert_one_error_line(result, "the model's logits are not finite numbers")
    assert not copy.exists()


@pytest.mark.parametrize(
    ("number", "words"),
    [(np.inf, ["resize", "--vocab-size", "300"]), (np.nan, ["next", "--head", "both", "a", "-m"])],
)
def test_a_w_u_that_is_not_finite(run, save, tmp_path, number, words):
    model = random_model(CONFIG.with_head("untied"))
    model.parameters["lm_head.weight"][-1, 0] = number
    damaged = save("damaged", model)
    copy = [str(tmp_path / "copy")] if words[0] == "resize" else []
    with np.errstate(invalid="ignore"):
        result = run(*words, damaged, *copy)
    assert_one_error_line(result, "checkpoint is damaged")
