"""The command line as a user meets it: what goes to stdout, to stderr, and the exit code."""

import argparse
import ast
import dataclasses
import io
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import CONFIG, SLOW_CONFIG, assert_one_error_line, command, random_model

import tiedgpt
from tiedgpt import TiedGPTError, Tokenizer, cli
from tiedgpt.checkpoints import hub
from tiedgpt.cli import common
from tiedgpt.cli.terminal import Progress
from tiedgpt.errors import ABOVE_0, FRACTION, RATE, Range
from tiedgpt.study.bigrams import bigrams
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.direct_path import direct_path
from tiedgpt.study.gradients import batch_gradients
from tiedgpt.study.readings import FIRST_ROWS, GROUPS, look_up
from tiedgpt.study.similarity import embeddings
from tiedgpt.study.solved import missing, solved_paths
from tiedgpt.study.swap import losses
from tiedgpt.study.symmetry import jsd_floor

EOT = 256  # <|endoftext|> of a tokenizer of bytes alone


# params


def test_params_needs_no_weights(run, no_models):
    code, out, err = run("params")
    assert (code, err) == (0, "")
    assert "124,439,808" in out
    assert "163,037,184" in out
    assert "+38,597,376" in out
    assert "tying saves 38.6M, 23.7 % of the untied model" in out
    document = json.loads(run("params", "--model", "1558M", "--json")[1])
    assert document["model"] == "1558M"
    assert document["config"]["n_layer"] == 48
    assert document["tied"]["total"] == sum(document["tied"]["groups"].values()) == 1_557_611_200
    assert document["untied"]["bytes"] == 4 * document["untied"]["total"] == 4 * 1_638_022_400
    assert document["difference"] == 80_411_200


def test_params_shows_enough_digits_and_fits_the_terminal(run, monkeypatch):
    wide = run("params", "-m", "gpt2-xl")[1]
    assert "Tied 1.558B, untied 1.638B: tying saves 80.4M, 4.9 % of the untied model." in wide
    assert re.search(r"^total .* 100\.0 %$", wide, re.M)
    for columns in (80, 50, 35):
        monkeypatch.setenv("COLUMNS", str(columns))
        out = run("params", "-m", "gpt2-xl")[1]
        assert max(map(len, out.splitlines())) <= columns
        assert set(out.split()) == set(wide.split())


def test_params_of_a_directory(run, checkpoint):
    document = json.loads(run("params", "--model", checkpoint, "--json")[1])
    assert document["config"]["vocab_size"] == 257
    model = tiedgpt.load_model(checkpoint)
    assert document["tied"]["total"] == sum(array.size for array in model.parameters.values())


@pytest.mark.parametrize(("total", "percent"), [("1e9", "20.5 %"), ("7e9", "2.9 %"), ("70e9", "0.3 %")])
def test_the_calculator_gives_the_figures_people_quote(run, total, percent):
    code, out, err = run("params", "--vocab", "50000", "--dim", "4096", "--total", total)
    assert (code, err) == (0, "")
    assert "Tied 204.8M, untied 409.6M: tying saves 204.8M, " + percent in out
    document = json.loads(run("params", "--vocab", "50e3", "--dim", "4096", "--json")[1])
    assert (document["tied"]["total"], document["untied"]["total"]) == (204_800_000, 409_600_000)
    assert document["saving_percent"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vocab", "50000"], "both --vocab and --dim are needed"),
        (["--vocab", "5", "--dim", "5", "--model", "gpt2"], "give one or the other"),
        (["--vocab", "1.5", "--dim", "5"], "--vocab: expected a whole number of at least 1, got '1.5'"),
        (["--vocab", "0", "--dim", "5"], "--vocab: expected a whole number of at least 1, got '0'"),
        (["--vocab", "nan", "--dim", "5"], "--vocab: expected a whole number"),
        (["--vocab", "inf", "--dim", "5"], "--vocab: expected a whole number"),
        (["--model", "gtp2"], "did you mean gpt2?"),
        (
            ["--vocab", "50", "--dim", "4", "--total", "199"],
            "total 199 is less than the token embedding alone, 200",
        ),
    ],
)
def test_params_refuses_in_one_line(run, arguments, message):
    assert_one_error_line(run("params", *arguments), message)


# tokenize


def test_tokenize(run, checkpoint):
    tokenizer = tiedgpt.load_tokenizer(checkpoint)
    ids = tokenizer.encode(" é")
    code, out, err = run("tokenize", "--model", checkpoint, " é")
    assert (code, err) == (0, "")
    assert out == f"{ids[0]:>6}  ' '\n{ids[1]:>6}  b'\\xc3'\n{ids[2]:>6}  b'\\xa9'\n"
    document = json.loads(run("tokenize", "--model", checkpoint, "--json", " é")[1])
    assert document == {"ids": ids, "tokens": [" ", "\\xc3", "\\xa9"]}
    assert run("tokenize", "--model", checkpoint, stdin=" é".encode())[1] == out
    assert run("tokenize", "--model", checkpoint, "-", stdin=" é".encode())[1] == out
    for text in (" ".join(map(str, ids)), str(ids)):
        assert run("tokenize", "--model", checkpoint, "--decode", text)[1] == " é\n"
    assert run("tokenize", "--model", checkpoint, "--decode", *map(str, ids))[1] == " é\n"
    assert run("tokenize", "--model", checkpoint, "--allow-special", "--json", "<|endoftext|>")[1].startswith(
        f'{{"ids": [{EOT}]'
    )


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["one", "two"], b"", "expected one TEXT, got 2: put it in quotes"),
        (["<|endoftext|>"], b"", "the text holds <|endoftext|>"),
        (["--decode", "5", "x"], b"", "--decode expects token ids, whole numbers, got 'x'"),
        (["--decode", "257"], b"", "257"),
        (["--decode", "--", "-1"], b"", "-1"),
        (["--decode"], b"", "--decode expects token ids"),
        ([], b"\xc3", "stdin is not UTF-8 text: byte 0xc3 at position 0"),
    ],
)
def test_tokenize_refuses_in_one_line(run, checkpoint, arguments, stdin, message):
    assert_one_error_line(run("tokenize", "--model", checkpoint, *arguments, stdin=stdin), message)


# untie, tie


def test_untie_and_tie(run, checkpoint, tmp_path):
    untied, tied = str(tmp_path / "untied"), str(tmp_path / "tied")
    code, out, err = run("untie", checkpoint, untied)
    assert (code, out) == (0, "")
    assert err.startswith(f"tiedgpt: note: wrote {untied}: untied, ")
    assert run("tie", "--quiet", tied, "--model", untied) == (0, "", "")
    original, copy, back = (tiedgpt.load_model(path) for path in (checkpoint, untied, tied))
    np.testing.assert_array_equal(copy.W_U, original.W_E.T)
    assert not copy.config.tied
    assert back.config == original.config
    for name, array in original.parameters.items():
        np.testing.assert_array_equal(back.parameters[name], array)
    assert tiedgpt.load_tokenizer(tied).encode("ab") == tiedgpt.load_tokenizer(checkpoint).encode("ab")


@pytest.mark.parametrize("first", ["its own", "of GPT-2"])
def test_tie_refuses_to_drop_a_trained_matrix(run, tmp_path, tmp_path_factory, first):
    """It says what that does to the loss; --force does it."""
    source, tied = "shakespeare-untied", str(tmp_path / "tied")
    if first == "of GPT-2":  # a bos_token_id that many small models have, outside their vocabulary
        model, tokenizer = tiedgpt.load_model(source), tiedgpt.load_tokenizer(source)
        source = str(tmp_path_factory.mktemp("source"))
        config = dataclasses.replace(model.config, bos_token_id=50256)
        tiedgpt.save_model(tiedgpt.GPT2(config, model.parameters), tokenizer, source)
    result = run("tie", source, tied)
    assert_one_error_line(result, f"the W_U of {source} is not wte.T: the loss of 64 tokens that the model")
    own, swapped = map(
        float, re.findall(r"from ([\d.]+) to ([\d.]+) nats per token; .* --force", result[2])[0]
    )
    assert own + 3 < swapped
    assert list(tmp_path.iterdir()) == []
    assert run("tie", "-q", "--force", source, tied) == (0, "", "")
    np.testing.assert_array_equal(tiedgpt.load_model(tied).W_E, tiedgpt.load_model(source).W_E)


def test_untie_starts_the_matrix_as_asked(run, checkpoint, tmp_path):
    for init, *more in (["zeros"], ["random", "--seed", "1"], ["random", "--seed", "2"]):
        name = "".join([init, *more])
        assert run("untie", checkpoint, str(tmp_path / name), "--init", init, *more)[0] == 0
    W_U = {path.name: tiedgpt.load_model(path).W_U for path in tmp_path.iterdir()}
    assert not W_U["zeros"].any()
    assert not np.array_equal(W_U["random--seed1"], W_U["random--seed2"])
    np.testing.assert_array_equal(W_U["random--seed1"], tiedgpt.load_model(checkpoint).untie("random", 1).W_U)


def test_untie_and_tie_refuse_in_one_line(run, checkpoint, tmp_path):
    assert_one_error_line(run("tie", checkpoint, str(tmp_path / "x")), f"{checkpoint} is tied already")
    assert run("untie", checkpoint, str(tmp_path / "u"))[0] == 0
    assert_one_error_line(run("untie", str(tmp_path / "u"), str(tmp_path / "x")), "is untied already")
    for taken in (checkpoint, str(tmp_path / "u"), f"{checkpoint}/config.json"):
        assert_one_error_line(
            run("untie", checkpoint, taken), "exists and is not empty; choose a new directory"
        )
    assert_one_error_line(run("untie", checkpoint, f"{checkpoint}/config.json/x"), "Not a directory")
    assert_one_error_line(
        run("untie", checkpoint, str(tmp_path / "x"), "--init", "ones"), "invalid choice: 'ones'"
    )
    for arguments in ([checkpoint], ["-m", checkpoint, "a", "b"], []):
        assert_one_error_line(run("untie", *arguments), "expected SRC and DST, got ")
    new = str(tmp_path / "x")
    assert_one_error_line(run("untie", "--force", checkpoint, new), "--force is for tie")
    assert_one_error_line(run("tie", "--init", "zeros", checkpoint, new), "--init and --seed are for untie")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["u"]


# study, lens, next


@pytest.fixture(scope="module")
def untied_checkpoint(tmp_path_factory):
    """A small untied checkpoint of the same vocabulary."""
    path = tmp_path_factory.mktemp("models") / "untied"
    tiedgpt.save_model(random_model(CONFIG.with_head("untied"), seed=1), Tokenizer([]), path)
    return str(path)


@pytest.fixture
def text_file(tmp_path):
    """A text of which twelve bytes are frequent."""
    path = tmp_path / "text.txt"
    path.write_text("aab" + "ab" * 119 + "aac" * 20 + "defghijklm" * 100 + "the end\n", encoding="utf-8")
    return str(path)


def assert_alike(numbers, expected):
    """The same names, with the same numbers up to float32's rounding, or None."""
    assert numbers.keys() == expected.keys()
    for name, x in expected.items():
        assert numbers[name] == (x if x is None else pytest.approx(x, rel=1e-4)), name


def test_study_json(run, checkpoint, untied_checkpoint, text_file):
    code, out, err = run("study", untied_checkpoint, checkpoint, "--corpus", text_file, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["corpus"] == {"file": text_file, "bytes": 1309, "min_count": 100}
    untied, tied = document["models"]
    assert [report["model"] for report in (untied, tied)] == [untied_checkpoint, checkpoint]
    assert [report["head"] for report in (untied, tied)] == ["untied", "tied"]

    models = {report["model"]: tiedgpt.load_model(report["model"]) for report in (untied, tied)}
    characters = Path(text_file).read_text(encoding="utf-8")
    text = Corpus.of(tiedgpt.load_tokenizer(checkpoint).encode(characters), 257)
    for report, tied_W_E in ((tied, None), (untied, models[checkpoint].W_E)):
        model = models[report["model"]]
        assert report["parameters"] == sum(array.size for array in model.parameters.values())
        assert report["corpus"] == {
            "tokens": 1309,
            "frequent": 12,
            "self_prediction": 0.0,
            "jsd_floor": pytest.approx(jsd_floor(text)),
        }
        ids = text.ids[None, -model.config.n_ctx - 1 :]
        assert_alike(report["gradients"], batch_gradients(model, ids[:, :-1], ids[:, 1:]).whole())
        assert_alike(report["direct_path"], direct_path(model, text))
        assert_alike(report["embeddings"], embeddings(model, text, tied_W_E))
        assert_alike(report["loss"], losses(model, text.ids))
        for path, expected in bigrams(model, text, None, solved_paths(model, text)).items():
            assert_alike(report["bigrams"][path], expected)
        assert_alike(report["missing"], missing(report["bigrams"]))
    assert (tied["direct_path"]["asymmetry"], tied["loss"]["swapped"]) == (0, None)
    assert None not in untied["embeddings"].values()


def label_and_numbers(line: str) -> tuple[str, list[str]]:
    """A line of study's table in its parts; no label or number has two spaces in it."""
    label, *numbers = re.split(r" {2,}", line.strip())
    return label, numbers


def test_study_table(run, checkpoint, untied_checkpoint, text_file, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    code, out, err = run("study", checkpoint, untied_checkpoint, "--corpus", text_file)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == [checkpoint, untied_checkpoint]
    document = json.loads(run("study", checkpoint, untied_checkpoint, "--corpus", text_file, "--json")[1])
    labels = [*FIRST_ROWS.items(), *(row for group in GROUPS for row in group.rows.items())]
    rows = [parts for parts in map(label_and_numbers, lines) if len(parts[1]) == 2]
    assert [label for label, _ in rows] == [label for _, label in labels], "every number has its row"
    assert len(lines) <= 40
    assert len(GROUPS) <= 8
    for (place, _), (_, numbers) in zip(labels, rows, strict=True):
        for report, number in zip(document["models"], numbers, strict=True):
            value = look_up(report, place)
            if value is None:
                assert number == "-", place
            elif isinstance(value, str):
                assert number == value
            else:
                share = number.endswith(" %")
                number = float(number.removesuffix(" %").replace(",", "")) / (100 if share else 1)
                assert number == pytest.approx(value, abs=5.1e-4), place


def test_study_fits_narrow_terminals(run, checkpoint, untied_checkpoint, text_file, monkeypatch):
    numbers = {}
    for width in (30, 50, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        out = run("study", *[checkpoint, untied_checkpoint] * 2, "--corpus", text_file)[1]
        assert max(map(len, out.splitlines())) <= width
        numbers[width] = sorted(re.findall(r"(?<= )[-\d,]*\d\.\d\d\d(?!\S)", out))
    assert numbers[30] == numbers[50] == numbers[80]
    assert len(numbers[30]) >= 4 * 9
    monkeypatch.setenv("COLUMNS", "80")
    header = run("study", checkpoint, untied_checkpoint)[1].partition("  Output head")[0].splitlines()
    end = re.match(" +[^ ]+", header[0]).end()
    columns = [[line[:end].strip() for line in header], [line[end:].strip() for line in header]]
    assert ["".join(parts) for parts in columns] == [checkpoint, untied_checkpoint], "names are wrapped"


def test_study_without_a_corpus(run, checkpoint, untied_checkpoint):
    code, out, err = run("study", checkpoint, untied_checkpoint)
    assert code == 0
    assert err.startswith("tiedgpt: note: no --corpus: only the measurements that need no text")
    assert err.count("\n") == 1
    for text in ("symmetric?", "All tokens, by A", "W_U and the tied model's W_E"):
        assert text in out, text
    for text in ("requent", "mlp0", "Nats", "normed", "Loss", "corpus"):
        assert text not in out, text
    assert run("study", checkpoint, "-m", untied_checkpoint)[1] == out
    document = json.loads(run("study", checkpoint, "--json")[1])
    assert document["corpus"] is None
    assert [document["models"][0][key] for key in ("corpus", "bigrams", "loss")] == [None] * 3


def test_study_of_different_vocabularies(run, checkpoint, tmp_path, text_file):
    other = str(tmp_path / "other")
    config = replace(CONFIG.with_head("untied"), vocab_size=258)
    tiedgpt.save_model(random_model(config), Tokenizer([("a", "b")]), other)
    code, out, err = run("study", checkpoint, other, "--corpus", text_file, "--json")
    assert code == 0
    assert "have different vocabularies: do not compare their losses and other numbers per token" in err
    assert err.count("\n") == 1
    ours, theirs = json.loads(out)["models"]
    assert (ours["corpus"]["tokens"], theirs["corpus"]["tokens"]) == (1309, 1189)
    assert theirs["embeddings"]["out_tied"] is None
    assert theirs["bigrams"] is not None


def test_study_goes_on_without_what_is_not_there(run, checkpoint, untied_checkpoint, tmp_path, text_file):
    bare = tmp_path / "bare"
    shutil.copytree(untied_checkpoint, bare)
    for name in ("merges.txt", "vocab.json"):
        (bare / name).unlink()
    code, out, err = run("study", checkpoint, str(bare), "--corpus", text_file, "--json")
    assert code == 0
    assert "has no tokenizer" in err
    assert "is not measured on the corpus or compared with other models" in err
    report = json.loads(out)["models"][1]
    assert (report["bigrams"], report["loss"], report["embeddings"]["out_tied"]) == (None, None, None)
    assert report["direct_path"]["asymmetry"] > 1
    shutil.copytree(bare, tmp_path / "tied")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(Path(checkpoint) / name, tmp_path / "tied")
    models = json.loads(run("study", str(tmp_path / "tied"), str(bare), "--json")[1])["models"]
    assert models[1]["embeddings"]["out_tied"] is None, "their vocabularies are not known to be the same"

    code, out, err = run("study", checkpoint, "--corpus", "-", "--json", stdin=b"a" * 99)
    assert code == 0
    assert "stdin is too small for the rows about frequent tokens: 0 of the tokens of" in err
    report = json.loads(out)["models"][0]
    assert report["bigrams"] is None
    assert report["loss"]["tokens"] == 97, "98 follow a token, but one is the first of the second window"
    code, out, err = run("study", checkpoint, "--corpus", "-", stdin=b"")
    assert code == 0
    assert "stdin is too small for a loss" in err
    assert "Loss" not in out


def test_study_of_a_few_frequent_tokens_reports_no_average_over_them(run, checkpoint):
    code, out, err = run("study", checkpoint, "--corpus", "-", stdin=b"abc" * 1000)
    assert code == 0
    assert "3 of the tokens of" in err
    assert "occur 100 times or more in it; expected at least 10" in err
    assert "mlp0" not in out
    assert "by A" in out
    assert "Frequent tokens, " not in out


def test_lens(run, checkpoint, untied_checkpoint, monkeypatch):
    code, out, err = run("lens", "-m", untied_checkpoint, "abcdefgh", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert (document["head"], document["prompt_ids"]) == ("untied", list(range(64, 72)))
    assert [layer["name"] for layer in document["layers"]] == ["resid_pre.0", "resid_post.0", "resid_post.1"]
    logits = tiedgpt.load_model(untied_checkpoint)(document["prompt_ids"])
    for row, position in zip(logits, document["layers"][-1]["positions"], strict=True):
        assert [token["id"] for token in position] == np.argsort(-row)[:5].tolist()
    tied = json.loads(run("lens", "-m", untied_checkpoint, "abcdefgh", "--json", "--head", "tied")[1])
    assert tied["head"] == "tied"
    assert tied["layers"] != document["layers"]

    monkeypatch.setenv("COLUMNS", "1000")
    title, _, *whole = run("lens", "-m", untied_checkpoint, "abcdefgh")[1].splitlines()
    assert title.startswith("The likeliest next token and its probability")
    assert whole[0].split()[0] == "'a'"
    assert [line[:9].strip() for line in whole[1:]] == ["embedding", "block 0", "block 1"]
    assert whole[-1].split()[-1] == f"{document['layers'][-1]['positions'][-1][0]['probability']:.0%}"
    monkeypatch.setenv("COLUMNS", "50")
    narrow = run("lens", "-m", untied_checkpoint, "abcdefgh")[1].splitlines()
    assert max(map(len, narrow)) <= 50
    pieces = [line.split() for line in narrow if line.startswith("   ")]
    assert len(pieces) > 1
    assert [token for piece in pieces for token in piece] == whole[0].split()


def test_next_by_paths(run, checkpoint, untied_checkpoint, monkeypatch):
    arguments = ("next", "-m", checkpoint, "--paths", "a")
    code, out, err = run(*arguments, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    model = tiedgpt.load_model(checkpoint)
    (a,) = document["prompt_ids"]
    paths = document["paths"]
    assert list(paths) == ["raw", "normed", "mlp0", "model"]
    for name, scores in (("raw", model.W_E @ model.W_E[a]), ("model", model([a])[0])):
        assert [row["id"] for row in paths[name]] == np.argsort(-scores)[:10].tolist()
        assert paths[name][0]["logit"] == pytest.approx(scores.max(), rel=1e-4)
    monkeypatch.setenv("COLUMNS", "90")
    text = run(*arguments)[1].splitlines()
    assert text[0] == "Likeliest next tokens after 'a', tied:"
    assert text[1].split() == ["raw", "normed", "mlp0", "model"]
    first = paths["raw"][0]
    assert text[2].split()[:3] == ["1", repr(first["token"]), f"{first['logit']:.2f}"], "raw is a score"
    assert text[2].endswith(f"{paths['model'][0]['probability']:.1%}")
    assert " ".join(text[-2:]).startswith("raw: W_E, W_U; normed: ")


@pytest.fixture
def small_vocabulary(tmp_path):
    """A model with fewer tokens than its tokenizer."""
    tiedgpt.save_model(random_model(replace(CONFIG, vocab_size=70)), Tokenizer([]), tmp_path / "small")
    return str(tmp_path / "small")


def test_what_a_model_has_no_token_for(run, checkpoint, small_vocabulary, text_file):
    result = run("next", "-m", small_vocabulary, "--paths", "z")
    assert_one_error_line(result, "'z' has id 89, and the model has tokens 0 to 69")
    code, out, err = run("study", small_vocabulary, checkpoint, "--corpus", text_file, "--json")
    small, other = json.loads(out)["models"]
    assert (code, small["loss"], small["bigrams"]) == (0, None, None)
    assert other["loss"]["own"] > 0
    assert f"{text_file} in the tokens of {small_vocabulary}: the corpus holds token id" in err


def test_study_names_the_model_that_is_damaged(run, checkpoint, tmp_path, text_file):
    model = tiedgpt.load_model(checkpoint)
    model.parameters["wpe.weight"][:] = np.nan
    tiedgpt.save_model(model, Tokenizer([]), tmp_path / "damaged")
    damaged = str(tmp_path / "damaged")
    assert_one_error_line(run("study", checkpoint, damaged, "--corpus", text_file), f"{damaged}: the model's")


def test_study_of_a_context_of_one_token_says_that_it_has_no_loss(run, tmp_path, text_file):
    tiedgpt.save_model(random_model(replace(CONFIG, n_ctx=1)), Tokenizer([]), tmp_path / "one")
    code, out, err = run("study", str(tmp_path / "one"), "--corpus", text_file, "--json")
    assert (code, json.loads(out)["models"][0]["loss"]) == (0, None)
    assert "has a context of one token: it has no loss" in err


def test_study_goes_on_without_a_tokenizer_and_compares_across_it(run, checkpoint, tmp_path):
    tiedgpt.save_model(random_model(CONFIG), Tokenizer([]), tmp_path / "bare")
    (tmp_path / "bare" / "merges.txt").write_text("#version: 0.2\nab cd\n", encoding="utf-8")
    tiedgpt.save_model(random_model(CONFIG), Tokenizer([("a", "b")], {}), tmp_path / "other")
    code, _, err = run("study", checkpoint, str(tmp_path / "bare"), str(tmp_path / "other"))
    assert code == 0
    assert "neither a byte nor an earlier merge; " in err
    assert f"{checkpoint} and {tmp_path / 'other'} have different vocabularies" in err


def test_a_text_in_place_of_a_model(run, checkpoint, text_file):
    message = f"{text_file} is not a checkpoint: expected a directory or a .safetensors file"
    for arguments in (
        ("study", checkpoint, text_file),
        ("next", "-m", text_file, "a"),
        ("lens", "-m", text_file, "a"),
    ):
        assert_one_error_line(run(*arguments), message)


def test_tokens_that_pad_the_vocabulary_have_no_text(run, tmp_path):
    model = random_model(replace(CONFIG, vocab_size=300))
    model.parameters["wte.weight"][299] = 40 * model.parameters["wte.weight"][65]
    tiedgpt.save_model(model, Tokenizer([]), tmp_path / "padded")
    padded = str(tmp_path / "padded")
    assert "[299] 100.0%" in run("next", "-m", padded, "--paths", "b")[1]
    report = json.loads(run("next", "-m", padded, "--paths", "b", "--json")[1])
    assert report["paths"]["raw"][0]["token"] is None
    assert run("lens", "-m", padded, "abc")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("study", "MODEL", "--corpus", "-"), "stdin is not UTF-8 text"),
        (("study", "MODEL", "no-such-model"), "no model 'no-such-model'"),
        (("next", "-m", "MODEL", "<|endoftext|>"), "add --allow-special"),
        (("lens", "-m", "MODEL", ""), "the prompt is empty"),
        (("lens", "-m", "MODEL", "a" * 65), "65 tokens, more than the model's context of 64"),
    ],
)
def test_study_lens_and_next_refuse_in_one_line(run, checkpoint, arguments, message):
    arguments = [checkpoint if argument == "MODEL" else argument for argument in arguments]
    assert_one_error_line(run(*arguments, stdin=b"\xff"), message)


# All commands


def test_being_ended_leaves_nothing_half_written(tmp_path, checkpoint):
    """SIGTERM in mid-save: exit 143 and no trace of the new checkpoint."""
    big = tmp_path / "big"
    tiedgpt.save_model(random_model(SLOW_CONFIG), None, big)
    before = sorted(tmp_path.iterdir())
    with subprocess.Popen(
        command("untie", str(big), str(tmp_path / "new")), stderr=subprocess.PIPE
    ) as process:
        while process.poll() is None and sorted(tmp_path.iterdir()) == before:
            time.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=60)
    assert sorted(tmp_path.iterdir()) == before if code == 143 else code == 0


def test_control_characters_do_not_reach_a_terminal():
    text = "a\x1b[2Jb\x07\tc\n\x9b\x7f\u2028é"
    assert text.translate(cli.terminal.CONTROLS) == "a\ufffd[2Jb\ufffd\tc\n\ufffd\ufffd\u2028é"


def test_help_and_version(run, monkeypatch):
    assert run("--version") == (0, f"tiedgpt {tiedgpt.__version__}\n", "")
    commands = run("-h")[1]
    assert run() == (0, commands, "")
    for name in (*(cli.MODULES.keys() - {"documents"}), "documents score", "documents generate"):
        code, out, err = run(*name.split(), "-h")
        assert (code, err) == (0, "")
        assert f"usage: tiedgpt {name} [-h] [-q]" in " ".join(out.split())
        assert "\nexamples:\n  tiedgpt" in out
        assert f"\n  {name} " in commands
        flags = re.findall(r"^  -", out, re.M)
        assert 2 <= len(flags) <= 20, name
        examples = out.partition("\nexamples:\n")[2].splitlines()
        for example in examples:
            assert cli.parse(shlex.split(example.rpartition("tiedgpt ")[2].partition(" | ")[0]))
        with monkeypatch.context() as patch:
            patch.setenv("COLUMNS", "60")
            narrow = run(*name.split(), "-h")[1].partition("\nexamples:\n")[0]
        assert max(map(len, narrow.splitlines())) <= 60
    page = run("untie", "-h")[1].partition("\n\n")[2]
    assert page == run("tie", "-h")[1].partition("\n\n")[2], "one page"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generat"], "no command 'generat'; did you mean generate? (try: tiedgpt -h)"),
        (["help"], "no command 'help'; did you mean -h? (try: tiedgpt -h)"),
        (["run", "a"], "no command 'run'; did you mean generate?"),
        (["pull", "gpt2"], "no command 'pull'; did you mean download?"),
        (["models"], "no command 'models'; did you mean list?"),
        (["params", "gpt2-small"], "; did you mean gpt2?"),
        (["params", "gpt2", "-m", "gpt2-xl"], "expected one MODEL, got 2"),
        (["study"], "expected at least one MODEL (try: tiedgpt study -h)"),
        (["xyz"], "no command 'xyz' (try: tiedgpt -h)"),
        (["--verson"], "unknown flag --verson; did you mean --version? (try: tiedgpt -h)"),
        (["params", "--modl", "x"], "unknown flag --modl; did you mean --model? (try: tiedgpt params -h)"),
        (["train", "--heads", "3"], "unknown flag --heads; did you mean --n-head? (try: tiedgpt train -h)"),
        (["untie", "--sed=1"], "unknown flag --sed; did you mean --seed? (try: tiedgpt untie -h)"),
        (["list", "x"], "unexpected argument x (try: tiedgpt list -h)"),
        (["params", "-z"], "unknown flag -z (try: tiedgpt params -h)"),
        (["-q", "list"], "unknown flag -q (try: tiedgpt -h)"),
        (["generate", "--", "-x", "-n"], "unexpected argument -n (try: tiedgpt generate -h)"),
        (["download"], "expected one MODEL, got 0"),
        (["download", ""], "no model ''"),
        (["score", "a\0b"], r"'a\x00b' is not the name of a file: embedded null byte"),
        (["score", "\ud800"], r"'\ud800' is not the name of a file: 'utf-8' codec can't encode"),
        (["download", "gpt2", "-m", "gpt2"], "expected one MODEL, got 2"),
    ],
)
def test_usage_errors_are_one_line(run, arguments, message):
    assert_one_error_line(run(*arguments), message)


@pytest.mark.parametrize("arguments", [["x" * 10**6], ["list", "x" * 10**6], ["score", "x" * 10**6]])
def test_of_a_very_long_argument_only_the_ends_are_printed(run, arguments):
    """For example of a prompt without the word generate."""
    result = run(*arguments)
    assert_one_error_line(result, "xxx ... xxx")
    assert len(result[2]) < 2100


def test_after_two_dashes_there_are_no_flags(run, checkpoint):
    assert run("tokenize", "-m", checkpoint, "--decode", "--", "--x")[2].startswith(
        "tiedgpt: error: --decode expects token ids"
    )


@pytest.mark.parametrize(
    ("numbers", "words", "accepted", "refused"),
    [
        (
            Range(1),
            "a whole number of at least 1",
            {"1": 1, "7e9": 7 * 10**9, str(10**18): 10**18},
            "0 -1 1.5 nan inf 1e400 1e19 x",
        ),
        (Range(0, 9), "a whole number from 0 to 9", {"0": 0, "3": 3, "9e0": 9}, "-1 10 0.5 nan x"),
        (ABOVE_0, "a number above 0", {"1": 1, "3e-4": 3e-4}, "0 -1 nan inf x"),
        (
            FRACTION,
            "a number above 0 and at most 1",
            {"1": 1, "0.5": 0.5},
            "0 1.01 -1 nan x",
        ),
        (
            RATE,
            "a number of at least 0 and below 1",
            {"0": 0, "0.5": 0.5},
            "1 -0.1 nan x",
        ),
    ],
)
def test_a_number_in_a_range(numbers, words, accepted, refused):
    """As text of a flag, and as an argument of a function."""
    for text, value in accepted.items():
        assert common.number(numbers)(text) == numbers.check("n", value) == value
    for text in [*refused.split(), "", "\x1b", "9" * 5000]:
        with pytest.raises(argparse.ArgumentTypeError, match=r"^expected a (whole )?number .*, got '"):
            common.number(numbers)(text)
    for value in (-1, True, None, "1", [], math.nan, math.inf, 0.5 if numbers.whole else 10**400):
        with pytest.raises(TiedGPTError, match=f"^n must be {words}, got "):
            numbers.check("n", value)
    assert type(numbers.check("n", np.int8(1) if numbers.whole else np.float32(0.5))) in (int, float)


def test_list(run, checkpoint, no_models, monkeypatch):
    weights = no_models / "weights"
    for name in ("gpt2", "gpt2-xl"):
        shutil.copytree(checkpoint, weights / name)
    (weights / "gpt2-xl" / "config.json").write_text("{}")
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(weights))
    code, out, err = run("list", "--json")
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("tiedgpt: note: gpt2-xl is left out: ")
    document = json.loads(out)
    (model,) = document["here"]
    assert (model["model"], model["head"], model["path"]) == ("gpt2", "tied", str(weights / "gpt2"))
    assert model["parameters"] == sum(a.size for a in tiedgpt.load_model(checkpoint).parameters.values())
    assert model["bytes"] == sum(path.stat().st_size for path in Path(checkpoint).iterdir())
    sizes = {model["model"]: model["parameters"] for model in document["not_here"]}
    assert list(sizes) == ["gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2"]
    assert sizes["gpt2-xl"] == 1_557_611_200
    for model in document["not_here"]:  # within the header of the file
        pinned = hub.PINNED[model["model"]][1].size
        assert pinned is None or 0 < pinned - model["bytes"] < 50_000

    text = run("list", "-q")
    assert (text[0], text[2]) == (0, "")
    for part in (f"{model['parameters']:,}", f"\n  {weights / 'gpt2'}\n", "1,557,611,200", "download MODEL"):
        assert part in text[1]


HOSTILE = "a\nb\x1b[31m\x9b\u202e"


def test_messages_are_one_line_without_escape_codes(run, tmp_path, monkeypatch):
    """Whatever a file, a token, a model, a directory or a flag is called."""
    folder, vocabulary = tmp_path / HOSTILE, Tokenizer([], {f"<{HOSTILE}>": 256})
    model = str(folder / "model")
    tiedgpt.save_model(random_model(CONFIG), vocabulary, model)
    tiedgpt.save_model(random_model(CONFIG), None, folder / "bare")
    shutil.copytree(model, folder / "gpt2")
    shutil.copytree(model, folder / "gpt2-xl")
    (folder / "gpt2-xl" / "config.json").write_text(json.dumps({"model_type": HOSTILE}))
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(folder))
    monkeypatch.setattr("tiedgpt.cli.terminal.sys.stdout.isatty", lambda: True)
    for code, arguments in (
        (2, [HOSTILE]),
        (2, [f"--{HOSTILE}"]),
        (2, ["params", f"--{HOSTILE}"]),
        (2, ["params", HOSTILE]),
        (2, ["params", "--vocab", HOSTILE]),
        (2, ["params", "--model", HOSTILE]),
        (0, ["params", "--model", model]),
        (2, ["score", "--model", model, HOSTILE]),
        (2, ["tokenize", "--model", HOSTILE, "a"]),
        (2, ["tokenize", "--model", model, f"<{HOSTILE}>"]),
        (2, ["tokenize", "--model", str(folder / "bare"), "a"]),
        (2, ["tokenize", "--model", model, "--decode", HOSTILE]),
        (0, ["tokenize", "--model", model, "--allow-special", f"<{HOSTILE}>{HOSTILE}"]),
        (2, ["download", HOSTILE]),
        (2, ["download", f"owner/{HOSTILE}"]),
        (2, ["download", "gpt2", "--source", HOSTILE]),
        (0, ["list"]),
        (2, ["untie", HOSTILE, "x"]),
        (2, ["untie", model, model]),
        (2, ["untie", model, HOSTILE, HOSTILE]),
        (2, ["tie", model, HOSTILE]),
        (0, ["untie", str(folder / "bare"), str(folder / "new")]),
        (2, ["untie", model, f"{model}/config.json/{HOSTILE}"]),
    ):
        result, out, err = run(*arguments)
        assert result == code, (arguments, err)
        for line in out.splitlines():
            assert line.isprintable(), (arguments, out)
        assert err.endswith("\n") or (code, err) == (0, ""), arguments
        for line in err.split("\n")[:-1]:
            assert re.match("tiedgpt: (note|error): ", line), (arguments, err)
            assert line.isprintable(), (arguments, err)
        assert err.count("tiedgpt: error: ") == (1 if code else 0)


def test_errors_escape_text_from_outside():
    kinds = {kind.__name__: kind for kind in (TiedGPTError, *TiedGPTError.__subclasses__())}
    assert all(str(kind(HOSTILE)).isprintable() for kind in kinds.values())
    package, others = Path(tiedgpt.__file__).parent, set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = ast.unparse(node.exc.func)
                if any(isinstance(argument, ast.JoinedStr) for argument in node.exc.args):
                    others.add((path.relative_to(package).as_posix(), name))
    # The other names are functions that make one of these errors.
    assert {(path, name) for path, name in others if name.endswith("Error") and name not in kinds} == {
        ("__init__.py", "AttributeError"),
        ("checkpoints/safetensors.py", "ValueError"),  # all but testing.py become a TiedGPTError
        ("cli/common.py", "argparse.ArgumentTypeError"),
        ("cli/documents.py", "argparse.ArgumentTypeError"),
        ("training/loop.py", "ValueError"),
        ("testing.py", "AssertionError"),
        ("checkpoints/files.py", "ValueError"),
    }


def test_quiet_leaves_errors_alone(run, checkpoint, tmp_path):
    loud = run("untie", checkpoint, str(tmp_path / "a"))
    assert loud[2].startswith("tiedgpt: note: ")
    assert run("untie", "-q", checkpoint, str(tmp_path / "b")) == (0, "", "")
    assert_one_error_line(run("untie", "-q", checkpoint, str(tmp_path / "b")), "exists and is not empty")


@pytest.mark.parametrize(
    ("words", "code", "errors"),
    [
        ("--version >/dev/full", 2, ["tiedgpt: error: No space left on device"]),
        ("-h >/dev/full", 2, ["tiedgpt: error: No space left on device"]),
        ("untie CHECKPOINT OUT 2>/dev/full", 0, []),
        ("untie CHECKPOINT CHECKPOINT 2>/dev/full", 2, []),
        ("xyz 2>/dev/full", 2, []),
        ("xyz 2>&-", 2, []),
        ("tokenize -m CHECKPOINT a 2>/dev/full | true", 0, []),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_cannot_be_written(checkpoint, tmp_path, words, code, errors, unbuffered):
    """A note that cannot be written ends nothing; an answer that cannot be written is an error."""
    words = words.replace("CHECKPOINT", checkpoint).replace("OUT", str(tmp_path / "out"))
    line = f"{shlex.join(command())} {words}"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(line, shell=True, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr.splitlines()) == (code, errors)


# As a process: the command after SIGINT is set to what a terminal's commands start with.
INTERRUPTIBLE = """if 1:
    import os, signal, sys
    from tiedgpt.__main__ import main
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.write(1, b"started")
    sys.exit(main())
"""


def interrupt(arguments: list[str], seconds: float) -> int | None:
    """Run a command and send it SIGINT some time after its start; the exit code."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 7) == b"started"
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=60)[1].decode()
    assert process.returncode in (0, 130), (seconds, process.returncode, err)
    assert not re.search("Traceback|Exception ignored", err), (seconds, err)
    return process.returncode


@pytest.mark.parametrize(
    ("commands", "times"),
    [
        (["untie"], 4),
        pytest.param(["generate", "score", "study", "untie", "train", "list"], 17, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_at_any_moment_exits_130(checkpoint, tmp_path, commands, times):
    """While modules are imported, while the command runs and while the interpreter ends: no traceback."""
    text, out = str(tmp_path / "text.txt"), str(tmp_path / "out")
    Path(text).write_text("to be or not to be\n" * 300)
    arguments = {
        "generate": ["-m", checkpoint, "-n", "200", "a"],
        "score": ["-m", checkpoint, text],
        "study": [checkpoint, "--corpus", text],
        "untie": [checkpoint, out],
        "train": [text, "--out", out, "--steps", "3", "--batch", "1"],
        "list": [],
    }
    random = np.random.default_rng(times)
    for name in commands:
        start, codes = time.monotonic(), []
        subprocess.run(command(name, *arguments[name]), capture_output=True, check=True)
        for seconds in random.uniform(0, time.monotonic() - start, times):
            shutil.rmtree(out, ignore_errors=True)
            codes.append(interrupt([name, *arguments[name]], seconds))
            assert {path.name for path in tmp_path.iterdir()} <= {"text.txt", "out"}, "something is left"
        shutil.rmtree(out, ignore_errors=True)
        assert 130 in codes, name


def test_an_ignored_ctrl_c_stays_ignored():
    """As in a script's `tiedgpt ... &`."""
    code = INTERRUPTIBLE.replace("signal.default_int_handler", "signal.SIG_IGN")
    code = code.replace(
        "sys.exit(main())", "main(); print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    )
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True)
    assert done.stdout.endswith("\nTrue\n")


SIGINT = "signal.raise_signal(signal.SIGINT)"


@pytest.mark.parametrize(
    ("imported", "run", "code"),
    [
        (f"try: {SIGINT}\nexcept BaseException: pass\nraise ImportError", "pass", 130),
        ("", f"try: {SIGINT}\n    except BaseException as error: raise ImportError from error", 130),
        ("", f"try: {SIGINT}\n    finally: {SIGINT}", 130),
        ("", f"type('F', (), {{'__del__': lambda _: {SIGINT}}})(); time.sleep(60)", 130),
        ("import atexit", f"atexit.register(lambda: {SIGINT})", 0),
    ],
    ids=["import", "import in the command", "second time", "finalizer", "exit"],
)
def test_ctrl_c_at_moments_that_python_reports_or_drops(tmp_path, imported, run, code):
    (tmp_path / "interrupted.py").write_text(
        f"import signal, time\n{imported}\n"
        f"def run(args):\n    {run}\n"
        "def add_parser(commands):\n"
        "    import argparse\n"
        "    commands['params'] = argparse.ArgumentParser()\n"
        "    commands['params'].set_defaults(run=run, quiet=False)\n"
    )
    program = (
        f"import sys, importlib; sys.path.insert(0, {str(tmp_path)!r}); import tiedgpt.cli\n"
        "tiedgpt.cli.import_module = lambda *_: importlib.import_module('interrupted')\n"
    )
    arguments = [sys.executable, "-c", program + textwrap.dedent(INTERRUPTIBLE[5:]), "params"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (code, "\n" if code else "")


def test_import_tiedgpt_loads_nothing_and_finds_everything():
    code = """if 1:
        import signal, sys
        handler, before = signal.getsignal(signal.SIGINT), set(sys.modules)
        import tiedgpt
        assert not {"numpy", "regex", "typing"} & (set(sys.modules) - before)
        assert set(tiedgpt.__all__) <= set(dir(tiedgpt))
        assert {name for name in dir(tiedgpt) if name[0] != "_"} == set(tiedgpt.__all__)
        assert set(tiedgpt.__all__) == set(tiedgpt._MODULES)
        from tiedgpt import *
        assert GPT2 is tiedgpt.GPT2 and GPT2.__module__ == "tiedgpt.model"
        assert all(callable(getattr(tiedgpt, name)) for name in tiedgpt.__all__)
        assert not hasattr(tiedgpt, "nothing")
        assert signal.getsignal(signal.SIGINT) is handler
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_entry_imports_nothing_before_it_handles_ctrl_c():
    code = """if 1:
        import sys
        before = set(sys.modules)
        import tiedgpt.__main__
        new = {name for name in set(sys.modules) - before if not name.startswith(("tiedgpt", "_signal"))}
        assert not new, new
    """
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


def test_importing_loads_nothing_that_is_not_needed():
    """No oracle, no slow import that only some commands need, no module of another command."""
    code = """if 1:
        import sys, tiedgpt.cli
        tiedgpt.cli.main(["tokenize", "--model", "shakespeare-tied", "--json", ""])
        print([module for module in sys.argv[1:] if module in sys.modules])
    """
    modules = ["torch", "transformers", "tiktoken", "safetensors", "requests", "tqdm", "matplotlib"]
    modules += ["tiedgpt.training", "tiedgpt.study", "tiedgpt.cli.generate"]
    out = subprocess.run(
        [sys.executable, "-c", code, *modules], capture_output=True, text=True, check=True
    ).stdout
    assert out.endswith("\n[]\n")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "delay", "interval", "expected"),
    [
        (Terminal, 0, 3600, r".*loading a\\nb:  50%.*"),
        (Terminal, 3600, 0, ""),
        (io.StringIO, 0, 3600, ""),
        (io.StringIO, 3600, 0, "tiedgpt: note: loading a\\\\nb: 50% after 0 min\n"),
    ],
)
def test_progress_is_a_bar_on_a_terminal_and_a_line_a_minute_in_a_file(
    monkeypatch, stream, delay, interval, expected
):
    """On a terminal only if it takes long."""
    monkeypatch.setattr(sys, "stderr", stream())
    monkeypatch.setattr(Progress, "DELAY", delay)
    monkeypatch.setattr(Progress, "INTERVAL", interval)
    with Progress("loading a\nb", 10, "B") as progress:
        time.sleep(0.001)
        progress.add(5)
        shown = sys.stderr.getvalue()
    assert re.fullmatch(expected, shown, re.S), shown
