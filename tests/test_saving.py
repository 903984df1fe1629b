"""What is written beside a model: new files of a tokenizer, or copies of a checkpoint's files.

copied_files(checkpoint) returns the files to copy: name -> content.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.checks import contents, refuses
from support.models import CONFIG, SMALL, SMALL_MERGES, random_model
from support.openai_files import write_openai_model
from support.vocabularies import added_token, tokenizer_json

import tiedgpt
from tiedgpt import Tokenizer
from tiedgpt.checkpoints import tensorflow
from tiedgpt.checkpoints.saving import copied_files
from tiedgpt.checkpoints.vocabulary import read_tokenizer, vocabulary_files
from tiedgpt.errors import TiedGPTWarning, TokenizerError
from tiedgpt.gpt2.tokenizer import EOT

# Files beside a model that tiedgpt does not read, or does not read completely.
OTHER_FILES = {
    "tokenizer_config.json": b'{"pad_token": "<pad>", "model_max_length": 9}',
    "special_tokens_map.json": b'{"pad_token": "<pad>"}',
    "chat_template.jinja": b"{{ messages }}",
    "chat_template.json": b'{"chat_template": "{{ messages }}"}',
    "generation_config.json": b'{"do_sample": true, "pad_token_id": 262}',
}


@pytest.fixture
def source(tmp_path) -> Path:
    """A tied checkpoint with a tokenizer.json of 263 tokens, of which <pad> is the last.

    The files of OTHER_FILES are there, too.
    """
    folder = tmp_path / "source"
    added = [added_token(EOT, 261), added_token("<pad>", 262)]
    tiedgpt.save_model(random_model(replace(SMALL, vocab_size=263)), None, folder)
    text = json.dumps(tokenizer_json(added_tokens=added))
    (folder / "tokenizer.json").write_text(text)
    for name, content in OTHER_FILES.items():
        (folder / name).write_bytes(content)
    return folder


def files_beside_model(folder: Path) -> dict[str, bytes]:
    """The contents of a checkpoint's folder, without the files of the model itself."""
    files = contents(folder)
    for name in ("config.json", "model.safetensors"):
        del files[name]
    return files


# Copies


def test_the_files_beside_a_model_are_copied_as_they_are(source):
    assert copied_files(source) == files_beside_model(source)


def test_the_files_beside_a_model_that_is_named_by_its_file_are_copied(source):
    assert copied_files(source / "model.safetensors") == files_beside_model(source)


def test_a_tokenizer_that_tiedgpt_cannot_read_is_copied(source):
    """A tokenizer.json with a normalizer is refused by read_tokenizer."""
    normalizer = {"type": "NFC"}
    (source / "tokenizer.json").write_text(json.dumps(tokenizer_json(normalizer=normalizer)))
    refuses("normalizer is", read_tokenizer, source, error=TokenizerError)
    assert copied_files(source) == files_beside_model(source)


def test_openais_files_get_the_names_that_transformers_knows(tmp_path, monkeypatch):
    """They are vocab.bpe, which becomes merges.txt, and encoder.json, which becomes vocab.json."""
    monkeypatch.setattr(tensorflow, "HEAD_WIDTH", SMALL.head_width)  # OpenAI's is 64
    config = replace(SMALL, n_inner=4 * SMALL.n_embd)  # OpenAI's files have no other n_inner
    write_openai_model(tmp_path, random_model(config))
    files = vocabulary_files(Tokenizer(SMALL_MERGES))
    (tmp_path / "vocab.bpe").write_text(files["merges.txt"])
    (tmp_path / "encoder.json").write_text(files["vocab.json"])
    copied = copied_files(tmp_path)
    assert copied == {name: text.encode() for name, text in files.items()}


def test_a_vocabulary_that_transformers_cannot_read_is_completed(tmp_path):
    """For tiedgpt, merges.txt is enough. transformers needs vocab.json, too. The copy has both."""
    files = vocabulary_files(Tokenizer(SMALL_MERGES))
    (tmp_path / "merges.txt").write_text(files["merges.txt"])
    copied = copied_files(tmp_path)
    assert copied == {name: text.encode() for name, text in files.items()}


def test_a_note_says_that_the_copy_has_no_tokenizer(tmp_path):
    (tmp_path / "generation_config.json").write_text("{}")
    notes = []
    assert copied_files(tmp_path, notes.append) == {"generation_config.json": b"{}"}
    (note,) = notes
    assert "has no tokenizer" in note
    assert note.endswith("; the copy is written without a tokenizer")


MORE_TEMPLATES = {"rag.jinja": b"{{ documents }}", "tool_use.jinja": b"{{ tools }}"}


@pytest.fixture
def with_more_templates(source) -> Path:
    """The checkpoint `source` with two more chat templates in additional_chat_templates/.

    transformers 5 saves them in this folder.
    """
    folder = source / "additional_chat_templates"
    folder.mkdir()
    for name, content in MORE_TEMPLATES.items():
        (folder / name).write_bytes(content)
    return source


def test_more_chat_templates_are_copied(with_more_templates):
    copied = copied_files(with_more_templates)
    for name, content in MORE_TEMPLATES.items():
        assert copied[f"additional_chat_templates/{name}"] == content


# Commands that copy


def test_untie_and_tie_copy_the_tokenizer_as_it_is(run, source, tmp_path):
    untied = tmp_path / "untied"
    tied = tmp_path / "tied"
    assert run("untie", "-q", str(source), str(untied)) == (0, "", "")
    assert run("tie", "-q", str(untied), str(tied)) == (0, "", "")
    assert files_beside_model(untied) == files_beside_model(source)
    assert files_beside_model(tied) == files_beside_model(source)


SHORT_TRAINING = ("--steps", "1", "--batch", "1", "--context", "4")


@pytest.fixture
def text_file(tmp_path) -> str:
    """The path of a text to train on."""
    (tmp_path / "text").write_text("lower, low and lowlow. " * 20)
    return str(tmp_path / "text")


def assert_has_files_of(source: Path, out: Path) -> None:
    """The directory `out` has the files beside the model in `source`, and perhaps others."""
    files = files_beside_model(out)
    for name, content in files_beside_model(source).items():
        assert files[name] == content, name


def test_train_copies_the_tokenizer_of_its_model_as_it_is(run, source, text_file, tmp_path):
    out = tmp_path / "out"
    arguments = ["train", "-q", text_file, "--from", str(source), "--out", str(out)]
    code, _, err = run(*arguments, *SHORT_TRAINING)
    assert (code, err) == (0, "")
    assert_has_files_of(source, out)


def test_untie_and_tie_copy_more_chat_templates(run, with_more_templates, tmp_path):
    run("untie", "-q", str(with_more_templates), str(tmp_path / "untied"))
    run("tie", "-q", str(tmp_path / "untied"), str(tmp_path / "tied"))
    assert contents(tmp_path / "untied" / "additional_chat_templates") == MORE_TEMPLATES
    assert contents(tmp_path / "tied" / "additional_chat_templates") == MORE_TEMPLATES


def test_resize_copies_more_chat_templates(run, with_more_templates, tmp_path):
    arguments = ("resize", "-q", str(with_more_templates), str(tmp_path / "out"))
    code, _, _ = run(*arguments, "--vocab-size", "270")
    assert code == 0
    assert contents(tmp_path / "out" / "additional_chat_templates") == MORE_TEMPLATES


def test_train_copies_more_chat_templates(run, with_more_templates, text_file, tmp_path):
    """It saves after each of two steps. At the second save the folder of templates is there."""
    out = tmp_path / "out"
    arguments = ("train", "-q", text_file, "--from", str(with_more_templates), "--out", str(out))
    two_saves = ("--steps", "2", "--eval-every", "1")
    code, _, _ = run(*arguments, *SHORT_TRAINING, *two_saves)
    assert code == 0
    assert contents(out / "additional_chat_templates") == MORE_TEMPLATES


def test_a_training_that_is_resumed_keeps_the_files_beside_the_model(
    run, source, text_file, tmp_path
):
    out = tmp_path / "out"
    arguments = ["train", "-q", text_file, "--from", str(source), "--out", str(out)]
    run(*arguments, *SHORT_TRAINING)
    before = files_beside_model(out)
    code, _, _ = run("train", "-q", text_file, "--resume", str(out), "--steps", "2")
    assert code == 0
    assert_has_files_of(source, out)
    assert files_beside_model(out).keys() == before.keys()


def test_transformers_knows_the_pad_token_of_a_copy(run, source, tmp_path):
    """Token 257 of `source` is "low", and 262 is <pad>."""
    transformers = pytest.importorskip("transformers")
    run("untie", "-q", str(source), str(tmp_path / "untied"))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "untied")
    assert theirs.pad_token == "<pad>"
    assert theirs.decode([257, 262], skip_special_tokens=True) == "low"


# What a save does to the files of another model


def test_the_chat_templates_of_another_tokenizer_are_removed(with_more_templates):
    """A new tokenizer is saved to the directory. The templates there belong to the old one."""
    tiedgpt.save_model(random_model(CONFIG), Tokenizer([]), with_more_templates)
    names = contents(with_more_templates).keys()
    assert "chat_template.jinja" not in names
    assert "chat_template.json" not in names
    assert contents(with_more_templates / "additional_chat_templates") == {}


def test_a_save_without_a_tokenizer_leaves_the_chat_templates(with_more_templates):
    before = contents(with_more_templates)
    tiedgpt.save_model(random_model(), None, with_more_templates)
    assert contents(with_more_templates).keys() == before.keys()
    assert contents(with_more_templates / "additional_chat_templates") == MORE_TEMPLATES


def test_transformers_finds_no_chat_template_of_another_tokenizer(with_more_templates):
    transformers = pytest.importorskip("transformers")
    tiedgpt.save_model(random_model(CONFIG), Tokenizer([]), with_more_templates)
    theirs = transformers.AutoTokenizer.from_pretrained(with_more_templates)
    assert theirs.chat_template is None


def test_a_generation_config_with_another_end_of_a_text_is_replaced(tmp_path):
    """Tokens 3 and 4 end a text of the model that is saved. In the file, token 5 ends a text.

    transformers and load_model prefer the end in this file to that in config.json.
    """
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 5, "temperature": 0.7}')
    model = random_model(replace(SMALL, eos_token_id=(3, 4)))
    tiedgpt.save_model(model, None, tmp_path)
    assert tiedgpt.load_model(tmp_path).config.eos_token_ids == (3, 4)
    file = json.loads((tmp_path / "generation_config.json").read_text())
    assert file == {"bos_token_id": 0, "eos_token_id": [3, 4]}


@pytest.mark.parametrize("text", ['{"temperature": 0.7}', '{"eos_token_id": 0, "top_k": 9}'])
def test_a_generation_config_that_contradicts_nothing_stays(tmp_path, text):
    """It does not say which token ends a text, or it says the same as the model: token 0."""
    (tmp_path / "generation_config.json").write_text(text)
    tiedgpt.save_model(random_model(), None, tmp_path)
    assert (tmp_path / "generation_config.json").read_text() == text


def test_a_generation_config_that_is_damaged_is_replaced(tmp_path):
    (tmp_path / "generation_config.json").write_text("{")
    tiedgpt.save_model(random_model(), None, tmp_path)
    assert tiedgpt.load_model(tmp_path).config == SMALL


def test_a_tokenizer_of_another_size_is_written_with_a_warning(tmp_path):
    """The warning names the file of the line that calls save_model, which is this file."""
    message = "^the tokenizer has 257 tokens, and the model has 101$"
    with pytest.warns(TiedGPTWarning, match=message) as caught:
        tiedgpt.save_model(random_model(), Tokenizer([]), tmp_path)
    assert caught[0].filename == __file__
    assert tiedgpt.load_tokenizer(tmp_path).vocab_size == 257


def test_a_tokenizer_of_the_models_size_is_written_without_a_warning(tmp_path):
    """In these tests, a warning is an error."""
    tiedgpt.save_model(random_model(CONFIG), Tokenizer([]), tmp_path)
