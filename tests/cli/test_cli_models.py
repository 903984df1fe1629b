"""The commands about models and their tokens: params, list, tokenize, untie, tie."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import loopback_hub
from support.commands import answer, assert_one_error_line, output
from support.loopback_hub import visible_files
from support.models import CONFIG, SMALL, random_model

import tiedgpt
from tiedgpt.checkpoints.model_names import MODELS
from tiedgpt.cli import os_error_message
from tiedgpt.cli.anymodel import short


def parameter_count(path) -> int:
    """The numbers in all arrays of a checkpoint."""
    parameters = tiedgpt.load_model(path).parameters
    return sum(array.size for array in parameters.values())


# What a command needs of a model


@pytest.fixture
def without_weights(no_models, checkpoint, monkeypatch):
    """The name of a model of which config.json and the vocabulary are here."""
    folder = no_models / "weights" / "someone" / "small"
    folder.mkdir(parents=True)
    for path in Path(checkpoint).iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, folder)
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(no_models / "weights"))
    return "someone/small"


def test_params_and_tokenize_need_no_weights_of_a_model_that_is_found(
    run, checkpoint, without_weights, monkeypatch
):
    document = answer(run, "params", without_weights)
    assert document["tied"]["total"] == parameter_count(checkpoint)
    assert answer(run, "tokenize", "-m", without_weights, "ab")["ids"] == [64, 65]
    monkeypatch.setenv("TIEDGPT_MODEL", without_weights)
    assert answer(run, "params") == document
    assert answer(run, "tokenize", "ab")["ids"] == [64, 65]


def test_params_downloads_no_weights(run, hub_server, hub_files, weights_folder):
    code, out, err = run("params", loopback_hub.NAME, "--json")
    assert code == 0
    assert f"note: downloading the vocabulary of {loopback_hub.NAME}" in err
    document = json.loads(out)
    assert document["tied"] == tiedgpt.count_parameters(loopback_hub.CONFIG)["tied"]
    assert document["model"] == loopback_hub.NAME
    assert set(visible_files(weights_folder / loopback_hub.NAME)) == {
        name for name in hub_files if not name.endswith(".safetensors")
    }


@pytest.mark.parametrize("words", [["generate"], ["next"], ["score", "-"], ["lens"]])
def test_a_model_without_its_weights_is_not_on_this_machine(run, without_weights, words):
    result = run(*words, "-m", without_weights, stdin=b"ab")
    assert_one_error_line(result, f"{without_weights} is not on this machine")


# params


def test_params_needs_no_weights(run, no_models):
    out = output(run, "params")
    assert "124,439,808" in out
    assert "163,037,184" in out
    assert "+38,597,376" in out
    assert "+154.4 MB" in out
    assert "+77.2 MB" in out  # in bfloat16
    assert "Tied 124.4M, untied 163.0M: tying saves 38.6M, 23.7% of the untied model." in out
    assert re.search(r"^total .* 100\.0%$", out, re.M)


def test_an_empty_variable_names_no_model(run, no_models, monkeypatch):
    monkeypatch.setenv("TIEDGPT_MODEL", "")
    assert answer(run, "params")["model"] == "gpt2"


def test_params_json(run, no_models):
    document = answer(run, "params", "--model", "1558M")
    assert document["model"] == "1558M"
    assert document["config"]["n_layer"] == 48
    assert document["difference"] == 80_411_200
    counts = tiedgpt.count_parameters(tiedgpt.Config(**document["config"]))
    assert document["tied"] == counts["tied"]
    assert document["untied"] == counts["untied"]


def test_params_of_several_models(run, no_models):
    alone = [answer(run, "params", name) for name in ("gpt2", "gpt2-xl")]
    assert answer(run, "params", "gpt2", "gpt2-xl") == {"models": alone}
    rows = [line.split() for line in output(run, "params", "gpt2", "gpt2-xl").splitlines()]
    assert rows[0] == ["parameters", "gpt2", "gpt2-xl"]
    for head, row in zip(("tied", "untied"), rows[1:], strict=False):
        assert row == [head, *(f"{document[head]['total']:,}" for document in alone)]
    for row, head in zip(rows[4:], ("tied", "untied"), strict=True):
        shares = [document["difference"] / document[head]["total"] for document in alone]
        assert row == ["of", head, *(f"{share:.1%}" for share in shares)]


def test_one_layer_and_one_head_are_said_so(run, save):
    config = replace(SMALL, n_layer=1, n_head=1)
    assert "1 layer, 1 head\n" in output(run, "params", save("small", random_model(config)))


def test_params_reads_k_as_thousands(run, no_models):
    assert answer(run, "params", "--vocab", "128k", "--dim", "4096")["vocab"] == 128_000


def test_params_counts_the_numbers_in_the_arrays_of_a_checkpoint(run, checkpoint):
    document = answer(run, "params", "--model", checkpoint)
    assert document["tied"]["total"] == parameter_count(checkpoint)


@pytest.mark.parametrize("fault", ["truncated", "tensor of another shape", "untied without a W_U"])
def test_params_refuses_weights_that_cannot_be_loaded(run, save, fault):
    folder = Path(save("model", random_model()))
    weights = folder / "model.safetensors"
    if fault == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif fault == "tensor of another shape":
        other = Path(save("other", random_model(replace(SMALL, vocab_size=SMALL.vocab_size + 1))))
        weights.write_bytes((other / "model.safetensors").read_bytes())
    else:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    assert_one_error_line(run("params", str(folder)), str(folder))
    weights.unlink()
    assert run("params", str(folder))[0] == 0  # config.json is enough
    assert run("params", str(folder / "config.json"))[0] == 0


def test_a_config_json_without_a_model_type_is_of_gpt2(run, save):
    """As in checkpoints of the first years."""
    folder = Path(save("model", random_model()))
    expected = answer(run, "params", str(folder))
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config))
    assert answer(run, "params", str(folder)) == expected


@pytest.mark.parametrize("columns", [50, 35])
def test_params_fits_narrow_terminals(run, monkeypatch, columns):
    wide = output(run, "params")
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = output(run, "params")
    longest = max(len(line) for line in narrow.splitlines())
    assert longest <= columns
    assert set(narrow.split()) == set(wide.split()), "the same words, in other lines"


def test_the_calculator_without_a_total(run):
    document = answer(run, "params", "--vocab", "50e3", "--dim", "4096")
    assert document["tied"]["total"] == 204_800_000
    assert document["untied"]["total"] == 409_600_000
    assert document["saving_percent"] is None


@pytest.mark.parametrize(("total", "has_both"), [("399", False), ("400", True)])
def test_the_calculator_takes_a_total_for_that_of_an_untied_model_if_it_can_be(
    run, total, has_both
):
    """Two matrices of 50 x 4 have 400 numbers."""
    out = " ".join(output(run, "params", "--vocab", "50", "--dim", "4", "--total", total).split())
    assert (f", 50.0% of an untied model of {total} (33.3% if" in out) == has_both
    assert f"if {total} is the tied one" in out


# list


@pytest.fixture
def weights(checkpoint, no_models, monkeypatch):
    """A folder for models by name, with a gpt2 and a damaged gpt2-xl."""
    weights = no_models / "weights"
    shutil.copytree(checkpoint, weights / "gpt2")
    shutil.copytree(checkpoint, weights / "gpt2-xl")
    (weights / "gpt2-xl" / "config.json").write_text("{}")
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(weights))
    return weights


def test_list_of_the_models_here(run, checkpoint, weights):
    (weights / "gpt2" / "logs").mkdir()  # its bytes are not the model's
    code, out, err = run("list", "--json")
    assert code == 0
    assert err.startswith("tiedgpt: note: gpt2-xl is left out: ")
    assert err.count("\n") == 1
    size = sum(path.stat().st_size for path in Path(checkpoint).iterdir())
    assert json.loads(out)["here"] == [
        {
            "model": "gpt2",
            "head": "tied",
            "path": str(weights / "gpt2"),
            "parameters": parameter_count(checkpoint),
            "bytes": size,
        }
    ]


def test_a_folder_that_may_not_be_read_is_left_out_of_the_list(run, weights, monkeypatch):
    iterdir = Path.iterdir

    def refuse_one(folder):
        if folder == weights / "gpt2":
            raise PermissionError(13, "Permission denied", str(folder))
        return iterdir(folder)

    monkeypatch.setattr(Path, "iterdir", refuse_one)
    code, out, err = run("list", "--json")
    assert (code, json.loads(out)["here"]) == (0, [])
    assert "tiedgpt: note: gpt2 is left out: [Errno 13] Permission denied: " in err


def models_not_here(run):
    """The models that can be downloaded, as `list --json` describes them."""
    _, out, _ = run("list", "--json")
    return json.loads(out)["not_here"]


def test_list_without_models_to_download(run, checkpoint, weights):
    for name in models_not_here(run):
        shutil.copytree(checkpoint, weights / name["model"], dirs_exist_ok=True)
    out = output(run, "list")
    assert [line.split()[0] for line in out.splitlines()[1::2]] == list(MODELS)
    assert "Not on this machine" not in out


def test_list_on_a_machine_without_models(run, no_models):
    out = output(run, "list")
    assert out.startswith("\nNot on this machine; `tiedgpt download MODEL` fetches one:\n\n")
    assert [line.split()[0] for line in out.splitlines()[4:]] == list(MODELS)
    assert answer(run, "list")["here"] == []


@pytest.mark.usefixtures("weights")
def test_list_of_the_models_that_can_be_downloaded(run):
    """gpt2 is here. gpt2-xl is here too, but it is damaged."""
    parameters = {model["model"]: model["parameters"] for model in models_not_here(run)}
    assert list(parameters) == ["gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2"]
    assert parameters["gpt2-xl"] == 1_557_611_200


@pytest.mark.usefixtures("weights")
def test_list_says_how_large_a_download_is(run):
    sizes = {model["model"]: model["bytes"] for model in models_not_here(run)}
    for name, size_of_file in {"gpt2-medium": 1_519_984_962, "distilgpt2": 352_824_413}.items():
        # A file of weights begins with a header of a few kB; "bytes" is without it.
        assert 0 < size_of_file - sizes[name] < 50_000


# tokenize


def test_tokenize_prints_a_line_for_each_token(run, checkpoint):
    """The tokens of `checkpoint` are bytes, and é has two."""
    space, first_byte, second_byte = tiedgpt.load_tokenizer(checkpoint).encode(" é")
    out = output(run, "tokenize", "--model", checkpoint, " é")
    assert out.splitlines() == [
        f"{space:>6}  ' '",
        f"{first_byte:>6}  b'\\xc3'",
        f"{second_byte:>6}  b'\\xa9'",
    ]


def test_tokenize_shows_a_long_token_whole(run, save):
    letters = "a" * 100
    path = save("long", random_model(CONFIG), tiedgpt.Tokenizer([], {letters: 256}))
    assert (
        output(run, "tokenize", "-m", path, "--allow-special", letters) == f"   256  {letters!r}\n"
    )


def test_tokenize_json(run, checkpoint):
    document = answer(run, "tokenize", "--model", checkpoint, " é")
    ids = tiedgpt.load_tokenizer(checkpoint).encode(" é")
    assert document == {"ids": ids, "tokens": [" ", "\\xc3", "\\xa9"]}


def test_tokenize_reads_a_special_token_if_that_is_allowed(run, checkpoint):
    document = answer(run, "tokenize", "--model", checkpoint, "--allow-special", "<|endoftext|>")
    assert document["ids"] == [tiedgpt.load_tokenizer(checkpoint).eot_id]


def test_tokenize_decodes_ids(run, checkpoint):
    ids = tiedgpt.load_tokenizer(checkpoint).encode(" é")
    words = [str(token) for token in ids]
    decode = ("tokenize", "--model", checkpoint, "--decode")
    assert output(run, *decode, *words) == " é\n"
    assert output(run, *decode, " ".join(words)) == " é\n"
    assert output(run, *decode, str(ids)) == " é\n", "a list, as --json prints it"


# untie and tie


def test_tie_undoes_untie(run, checkpoint, tmp_path):
    copy = str(tmp_path / "copy")
    back = str(tmp_path / "back")
    assert run("untie", "--quiet", checkpoint, copy) == (0, "", "")
    assert run("tie", "--quiet", back, "--model", copy) == (0, "", "")
    original = tiedgpt.load_model(checkpoint)
    tied = tiedgpt.load_model(back)
    assert tied.config == original.config
    np.testing.assert_equal(dict(tied.parameters), dict(original.parameters))
    ids = tiedgpt.load_tokenizer(checkpoint).encode("ab")
    assert tiedgpt.load_tokenizer(back).encode("ab") == ids


@pytest.mark.parametrize(
    ("flags", "init", "seed"),
    [
        pytest.param(["--init", "zeros"], "zeros", 0, id="zeros"),
        pytest.param(["--init", "random", "--seed", "1"], "random", 1, id="random-seed-1"),
        pytest.param(["--init", "random"], "random", 0, id="random"),
    ],
)
def test_untie_starts_the_matrix_as_asked(run, checkpoint, tmp_path, flags, init, seed):
    assert run("untie", checkpoint, str(tmp_path / "copy"), *flags)[0] == 0
    expected = tiedgpt.load_model(checkpoint).untie(init, seed)
    np.testing.assert_array_equal(tiedgpt.load_model(tmp_path / "copy").W_U, expected.W_U)


WITHOUT_SEED = "--seed is for --init random: the mean of the old rows needs no seed"
# Flags, what the line says. SRC has 257 tokens. transcript.txt has more.
RESIZE_REFUSED = [
    (["--vocab-size", "300", "--seed", "1"], WITHOUT_SEED),
    (["--vocab-size", "300", "--seed", "0"], WITHOUT_SEED),
    (["--vocab-size", "257", "--shrink"], "SRC has 257 tokens already"),
]


@pytest.mark.parametrize(("flags", "message"), RESIZE_REFUSED)
def test_a_size_that_does_not_fit_is_refused(run, checkpoint, tmp_path, flags, message):
    new = tmp_path / "new"
    _, _, err = run("resize", checkpoint, str(new), *flags)
    assert err.replace(checkpoint, "SRC") == f"tiedgpt: error: {message}\n"
    assert not new.exists()


def test_resize_says_which_ids_have_no_text(run, checkpoint, tmp_path):
    new = str(tmp_path / "new")
    flags = ("--vocab-size", "300", "--init", "random", "--seed", "3")
    code, _, err = run("resize", checkpoint, new, *flags)
    assert code == 0
    assert "note: the tokenizer has 257 tokens: ids from 257 on have no text yet\n" in err
    old, model = tiedgpt.load_model(checkpoint), tiedgpt.load_model(new)
    expected = old.resize(300, "random", 3).parameters["wte.weight"]
    np.testing.assert_array_equal(model.parameters["wte.weight"], expected)
    assert "no text" not in run("resize", new, new + "2", "--vocab-size", "257", "--shrink")[2]


def test_new_rows_are_the_mean_of_the_old_ones_by_default(run, checkpoint, tmp_path):
    assert run("resize", checkpoint, str(tmp_path / "new"), "--vocab-size", "300")[0] == 0
    new, old = tiedgpt.load_model(tmp_path / "new").W_E, tiedgpt.load_model(checkpoint).W_E
    np.testing.assert_allclose(new[257:] - old.mean(axis=0), 0, atol=1e-6)


@pytest.mark.parametrize("models", [[], ["gpt2", "gpt2-xl"]])
def test_download_takes_one_model(run, models):
    message = f"expected one MODEL, got {len(models)}"
    assert_one_error_line(run("download", *models), message)


def test_download_prints_where_the_model_is(run, hub_server, hub_files, weights_folder):
    code, out, _ = run("download", loopback_hub.NAME)
    folder = weights_folder / loopback_hub.NAME
    assert (code, out) == (0, f"{folder}\n")
    assert visible_files(folder) == hub_files


def test_tokenize_decodes_into_json(run, checkpoint):
    document = answer(run, "tokenize", "-m", checkpoint, "--decode", "72", "105")
    assert document["text"] == tiedgpt.load_tokenizer(checkpoint).decode([72, 105])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(2, "No such file", "a"), "a: No such file"),
        (OSError(2, "No such file", ""), "'': No such file"),
        (OSError(28, "No space left"), "No space left"),
        (OSError("odd"), "odd"),
    ],
)
def test_the_message_of_an_error_of_the_system(error, message):
    assert os_error_message(error) == message


@pytest.mark.parametrize(
    ("n", "text"),
    [(96, "96"), (999, "999"), (1000, "1.0K"), (999_949, "999.9K"), (999_950, "1.0M")]
    + [(7e9, "7.0B"), (2e12, "2.0T"), (1e15, "1000.0T")],
)
def test_a_count_with_a_unit(n, text):
    assert short(int(n)) == text
