"""Vocabulary files: every form is read, they are checked against each other, and written
unchanged."""

import json
import re
from functools import partial

import pytest
from support.checks import refuses
from support.models import SMALL_MERGES, random_model
from support.reference import GPT2_MERGES, GPT2_VOCAB
from support.texts import assert_same_ids, byte_level_bpe, random_texts

import tiedgpt
from tiedgpt.checkpoints.vocabulary import (
    read_merges,
    read_tokenizer,
    read_tokenizer_json,
    vocabulary_files,
)
from tiedgpt.errors import TiedGPTError
from tiedgpt.gpt2.tokenizer import EOT, Tokenizer, spelled_ids


@pytest.mark.parametrize(
    ("special_tokens", "first_id", "eot_id"),
    [
        (None, 0, 261),
        ({}, 0, None),
        ({"<pad>": 261}, 0, None),
        ({EOT: 0}, 1, 0),
        ({"<pad>": 1, EOT: 263, "<s>": 0}, 2, 263),
    ],
)
def test_special_tokens_before_and_after(special_tokens, first_id, eot_id, tmp_path):
    tokenizer = Tokenizer(SMALL_MERGES, special_tokens, first_id)
    assert tokenizer.eot_id == eot_id
    assert tokenizer.vocab_size == 261 + len(tokenizer.special_tokens)
    assert tokenizer.encode("low!") == [first_id + 257, first_id]
    for text, token_id in tokenizer.special_tokens.items():
        assert tokenizer.encode(f"!{text}", special="token") == [first_id, token_id]
        assert tokenizer.decode([token_id]) == text
    tiedgpt.save_model(random_model(), tokenizer, tmp_path)
    assert_same_tokenizer(read_merges(tmp_path / "merges.txt", tmp_path / "vocab.json"), tokenizer)


def assert_same_tokenizer(read: Tokenizer, tokenizer: Tokenizer) -> None:
    assert vocabulary_files(read) == vocabulary_files(tokenizer)
    assert read.encode("a lower low é") == tokenizer.encode("a lower low é")


def test_the_files_of_gpt2_come_back_byte_for_byte_and_its_merges_alone_are_enough(gpt2):
    files = vocabulary_files(gpt2)
    assert files["merges.txt"].encode() == GPT2_MERGES.read_bytes()
    assert files["vocab.json"].encode() == GPT2_VOCAB.read_bytes()
    assert_same_tokenizer(read_merges(GPT2_MERGES), gpt2)


@pytest.mark.parametrize(
    ("text", "merges"),
    [
        ("#version: 0.2\nl o\nlo w\n", "l o,lo w"),
        ("l o\nlo w", "l o,lo w"),
        ("#version: 0.2 - Trained by `huggingface/tokenizers`\r\nl o\r\nlo w\r\n", "l o,lo w"),
        ("#version: 0.2\nl o\nlo w\n\n\n", "l o,lo w"),
        *((text, "") for text in ("", "\n", "#version: 0.2\n", "#version: 0.2")),
        *(
            (f"{version}# #\n## #\n", "# #,## #") for version in ("", "#version: 0.2\n")
        ),  # a merge of "#"
    ],
)
def test_forms_of_merges_txt(text, merges, tmp_path):
    path = tmp_path / "merges.txt"
    path.write_text(text, encoding="utf-8", newline="")
    assert read_merges(path).merges == [
        tuple(merge.split()) for merge in merges.split(",") if merge
    ]


@pytest.mark.parametrize(
    ("merges", "message"),
    [
        ([("l", "o"), ("lo", "wer")], r"merge 2, 'lo wer': 'wer' is no byte and no earlier merge"),
        ([("lo", "w"), ("l", "o")], r"merge 1, 'lo w': 'lo' is no byte and no earlier merge"),
        ([("l", " ")], r"merge 1, 'l  ': ' ' is no byte and no earlier merge"),
        ([("l", "o"), ("l", "o")], r"merge 2, 'l o': exists already"),
        ([("a", "b"), ("b", "c"), ("a", "bc"), ("ab", "c")], r"merge 4, 'ab c': exists already"),
    ],
)
def test_merges_that_contradict_themselves(merges, message, tmp_path):
    refuses(f"^{message}$", Tokenizer, merges, error=TiedGPTError)
    if merges[0][1] != " ":  # which is two spaces to merges.txt, another error
        (tmp_path / "merges.txt").write_text("".join(f"{left} {right}\n" for left, right in merges))
        refuses(
            rf"merges\.txt: {message}", read_merges, tmp_path / "merges.txt", error=TiedGPTError
        )


@pytest.mark.parametrize(
    ("special_tokens", "first_id", "message"),
    [
        ({EOT: 257}, 0, r"special token '<\|endoftext\|>' has id 257, expected 256"),
        ({"<a>": 0, "<b>": 256}, 1, r"special token '<b>' has id 256, expected 257"),
        ({}, 1, r"the first byte has id 1, expected 0 to 0: only special tokens come before it"),
        ({"<a>": 0}, -1, r"the first byte has id -1, expected 0 to 1"),
        ({"<" * 129: 256}, 0, r"special token '<+\.\.\. has 129 characters, expected 1 to 128"),
        ({"lo": 257}, 0, r"special token 'lo' has id 257, expected 256"),
        (
            {"é": 165},
            0,
            r"special token 'é' is also the spelling of an ordinary token of another text",
        ),
        (
            {"\ud800": 256},
            0,
            r"character 0 of special token '\\ud800' is '\\ud800', half of a surrogate",
        ),
    ],
)
def test_special_tokens_that_do_not_fit(special_tokens, first_id, message):
    merges = [("l", "o")] if "lo" in special_tokens else []
    refuses(message, Tokenizer, merges, special_tokens, first_id, error=TiedGPTError)


def vocab_with(**changes: object) -> str:
    """The vocab.json of bytes, "lo", "low" and <|endoftext|>, with some ids changed, or removed by
    None."""
    ids = spelled_ids([("l", "o"), ("lo", "w")], 0) | {EOT: 258} | changes
    return json.dumps({token: token_id for token, token_id in ids.items() if token_id is not None})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"#version: 0.2\nl o\nlow\n", r"merges\.txt, line 3: expected two tokens, got 'low'"),
        (b"l o\n\nlo w\n", r"merges\.txt, line 2: expected two tokens, got ''"),
        (b"l  o\n", r"merges\.txt, line 1: expected two tokens, got 'l  o'"),
        (b"l o\n#version: 0.2 x\n", r"merges\.txt, line 2: expected two tokens"),
        (b"#version: 0.2\nl o\nl \xff\n", r"merges\.txt, line 3: not UTF-8"),
        (
            b"l " + b"o" * 1000,
            r"merges\.txt with .*: merge 1, 'l o{50,60}\.\.\.: 'o+\.\.\. is no byte and",
        ),
        (b"\xff", r"vocab\.json, line 1: not UTF-8"),
        (b"[0, 1]", r"vocab\.json: expected a JSON object, got \[0, 1\]"),
        (vocab_with(lo="256"), r"vocab\.json: token 'lo' has id '256', expected an integer"),
        (vocab_with(**{'"': True}), r"vocab\.json: token '\"' has id True, expected an integer"),
        (vocab_with(**{"Ġ": None}), r"vocab\.json: token 'Ġ' has no id, expected 220"),
        (vocab_with(low=258, **{EOT: 257}), r"vocab\.json: token 'low' has id 258, expected 257"),
        (vocab_with(**{"!": 10**30}), r"vocab\.json: token '\"' has id 1, expected 10{29}1"),
        (vocab_with(extra=260), r"vocab\.json: special token 'extra' has id 260, expected 259"),
        (vocab_with(Ġlow=258, **{EOT: 259}), r"vocab\.json: no merge makes token 'Ġlow'"),
        (
            json.dumps(spelled_ids([("l", "o"), ("lo", "w")], 1)),
            r"vocab\.json: the first byte has id 1, expected 0 to 0: only special tokens come",
        ),
    ],
)
def test_files_that_are_malformed_or_contradict_each_other(content, message, tmp_path):
    files = {"merges.txt": "#version: 0.2\nl o\nlo w\n", "vocab.json": vocab_with()}
    wrong = re.match(r"\w+\\\.\w+", message)[0].replace("\\", "")
    for name, text in {**files, wrong: content}.items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    refuses(message, read_tokenizer, tmp_path, error=TiedGPTError)
    (tmp_path / wrong).write_text(files[wrong], encoding="utf-8")
    assert read_tokenizer(tmp_path).eot_id == 258


def test_added_tokens_json_holds_more_special_tokens(tmp_path):
    """As transformers 4 saves a fine-tune that added a token: vocab.json does not know it."""
    added, plain = Tokenizer(SMALL_MERGES, {EOT: 261, "<|pad|>": 262}), Tokenizer(SMALL_MERGES)
    for tokenizer in (added, plain):  # those of an earlier save are gone
        tiedgpt.save_model(random_model(), tokenizer, tmp_path)
        assert_same_tokenizer(tiedgpt.load_tokenizer(tmp_path), tokenizer)
    (tmp_path / "added_tokens.json").write_text('{"<|pad|>": 262}')
    assert_same_tokenizer(read_tokenizer(tmp_path), added)
    assert vocabulary_files(added).keys() - vocabulary_files(plain) == {"added_tokens.json"}


@pytest.mark.parametrize(
    ("token", "pieces"),
    [
        ("!", ["low", "!", " low", "er", "!", "!", EOT, "f", "low", "er", " low", "<", "p", ">"]),
        (
            "low",
            ["low", "!", " ", "low", "er", "!!", EOT, "f", "low", "er", " ", "low", "<", "p", ">"],
        ),
        ("<p>", ["low", "!", " low", "er", "!!", EOT, "f", "low", "er", " low", "<p>"]),
    ],
)
def test_an_added_token_that_may_also_be_an_ordinary_one(token, pieces, tmp_path):
    """It is always read as one token, before any merge; transformers does the same."""
    text = f"low! lower!!{EOT}flower low<p>"
    merges = [*SMALL_MERGES, ("!", "!")]
    ids = spelled_ids(merges, 0) | {EOT: 262}
    ids.setdefault(token, 263)
    added = [{"id": ids[token], "content": token}, {"id": 262, "content": EOT}]
    file = tokenizer_json(
        model__vocab=ids, model__merges=list(map(" ".join, merges)), added_tokens=added
    )
    original, saved = tmp_path / "original", tmp_path / "saved"
    tiedgpt.save_model(random_model(), None, original)
    (original / "tokenizer.json").write_text(json.dumps(file))

    tokenizer = read_tokenizer(original)
    expected = tokenizer.encode(text, special="token")
    assert [tokenizer.token_text(token_id) for token_id in expected] == pieces
    assert tokenizer.decode(expected) == text
    assert tokenizer.vocab_size == len(ids)
    assert tokenizer.encode(text, special="text") == Tokenizer(merges).encode(text, special="text")
    message = r"the text contains special token '<\|endoftext\|>' at character"
    refuses(message, tokenizer.encode, text, error=TiedGPTError)
    if token != "<p>":
        assert tokenizer.encode(text.replace(EOT, "")) == [n for n in expected if n != 262]

    tiedgpt.save_model(random_model(), tokenizer, saved)
    assert_same_tokenizer(read_tokenizer(saved), tokenizer)
    transformers = pytest.importorskip("transformers")
    for directory in (original, saved):
        theirs = transformers.AutoTokenizer.from_pretrained(directory)
        assert theirs.encode(text, add_special_tokens=False) == expected
        theirs.save_pretrained(tmp_path / "theirs")
        assert_same_tokenizer(
            read_tokenizer_json(tmp_path / "theirs" / "tokenizer.json"), tokenizer
        )


def test_a_prefix_space_would_give_other_ids(tmp_path):
    tiedgpt.save_model(random_model(), Tokenizer(SMALL_MERGES), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": false}')
    assert_same_tokenizer(read_tokenizer(tmp_path), Tokenizer(SMALL_MERGES))
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    message = r"tokenizer_config\.json: add_prefix_space is true, expected false"
    refuses(message, read_tokenizer, tmp_path, error=TiedGPTError)


BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}


def tokenizer_json(**changes: object) -> dict:
    """What Hugging Face writes for SMALL_MERGES, with a dotted name's value changed
    ("model__dropout")."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    file: dict = {
        "version": "1.0",
        "added_tokens": [{"id": 261, "content": EOT, "special": True} | flags],
        "normalizer": None,
        "pre_tokenizer": {**BYTE_LEVEL},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "vocab": spelled_ids(SMALL_MERGES, 0) | {EOT: 261},
            "merges": [f"{left} {right}" for left, right in SMALL_MERGES],
        },
    }
    for name, value in changes.items():
        section, _, key = name.rpartition("__")
        place = file[section] if section else file
        place[key] = value
        if value is KeyError:
            del place[key]
    return file


MUST_BE_NEUTRAL = [
    *(
        "normalizer",
        "pre_tokenizer.type",
        "pre_tokenizer.add_prefix_space",
        "pre_tokenizer.use_regex",
    ),
    *("model.type", "model.dropout", "model.continuing_subword_prefix", "model.end_of_word_suffix"),
    "model.ignore_merges",
]


def added(**changes: object) -> list[dict]:
    return [{"id": 261, "content": EOT} | changes]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model__merges": [list(pair) for pair in SMALL_MERGES]},
        {"model__type": KeyError, "pre_tokenizer__use_regex": KeyError},  # GPT-2's own file
        {"model__ignore_merges": False},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTE_LEVEL]}},
        {"added_tokens": KeyError},
        {"model__vocab": spelled_ids(SMALL_MERGES, 0)},  # only added_tokens has it
    ],
)
def test_forms_of_tokenizer_json(changes, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer_json(**changes)), encoding="utf-8")
    assert_same_tokenizer(read_tokenizer_json(path), Tokenizer(SMALL_MERGES))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"normalizer": {"type": "NFC"}},
            r"normalizer is \{'type': 'NFC'\}, expected None, as in GPT-2",
        ),
        *(
            ({name.replace(".", "__"): "##"}, rf"{name} is '##', expected")
            for name in MUST_BE_NEUTRAL
        ),
        ({"pre_tokenizer": None}, r"pre_tokenizer\.type is None, expected 'ByteLevel'"),
        (
            {"pre_tokenizer__add_prefix_space": KeyError},
            r"pre_tokenizer\.add_prefix_space is None, expected",
        ),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{}, BYTE_LEVEL]}},
            r"\.type is 'Sequence'",
        ),
        ({"model": KeyError}, r"expected model\.vocab, model\.merges and a list of added_tokens"),
        (
            {"model__merges": KeyError},
            r"expected model\.vocab, model\.merges and a list of added_tokens",
        ),
        (
            {"added_tokens": {"a": 1}},
            r"expected model\.vocab, model\.merges and a list of added_tokens",
        ),
        ({"model__merges": ["l o", "low"]}, r", merge 2: expected two tokens, got 'low'"),
        ({"model__merges": [["l", []]]}, r", merge 1: expected two tokens, got \['l', \[\]\]"),
        (
            {"model__merges": [{"l": "o", "a": "b"}]},
            r", merge 1: expected two tokens, got \{'l': 'o', 'a'",
        ),
        ({"model__merges": ["l o", "lo w"]}, r": no merge makes token 'Ġlow': merges are missing"),
        ({"added_tokens": [EOT]}, r"added token '<\|endoftext\|>': expected content"),
        (
            {"added_tokens": added(id=262)},
            r"added token \{'id': 262, .* the id that vocab has for it",
        ),
        (
            {"added_tokens": added(content="low", id=256)},
            r"'content': 'low'\}: expected content, the id",
        ),
        (
            {"added_tokens": added(lstrip=True)},
            r"added token .*, and not lstrip, rstrip or single_word",
        ),
        (
            {"added_tokens": added(rstrip=True)},
            r"added token .*, and not lstrip, rstrip or single_word",
        ),
        (
            {"added_tokens": added(single_word=True)},
            r"added token .*, and not lstrip, rstrip or single_word",
        ),
        (
            {"added_tokens": added(content="<x>", id=263)},
            r"special token '<x>' has id 263, expected 262",
        ),
    ],
)
def test_tokenizer_json_that_is_malformed_or_gives_other_ids(changes, message, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer_json(**changes)), encoding="utf-8")
    refuses(rf"tokenizer\.json.*{message}", read_tokenizer_json, path, error=TiedGPTError)


def test_tokenizers_that_hugging_face_trained(tmp_path):
    """Special tokens first, as its trainer puts them: tokenizer.json and the two files give its
    ids."""
    tokenizers = pytest.importorskip("tokenizers")
    theirs, trainer = byte_level_bpe(tokenizers, 700, special_tokens=[EOT, "<pad>"])
    texts = random_texts(500, seed=8)
    theirs.train_from_iterator(texts, trainer)
    theirs.save(str(tmp_path / "tokenizer.json"))
    theirs.model.save(str(tmp_path))
    ours = read_tokenizer_json(tmp_path / "tokenizer.json")
    assert ours.special_tokens == {EOT: 0, "<pad>": 1}
    assert ours.vocab_size == theirs.get_vocab_size() > 600
    texts += [f"{text}{EOT}<pad>{text}" for text in texts[:50]]
    for tokenizer in (ours, read_merges(tmp_path / "merges.txt", tmp_path / "vocab.json")):
        assert_same_ids(
            texts,
            lambda text, encode=tokenizer.encode: encode(text, special="token"),
            lambda text: theirs.encode(text).ids,
        )


@pytest.mark.slow
def test_transformers_tokenizer_json_of_gpt2(gpt2, tmp_path):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPT2TokenizerFast(vocab=str(GPT2_VOCAB), merges=str(GPT2_MERGES))
    theirs.save_pretrained(tmp_path)
    ours = read_tokenizer_json(tmp_path / "tokenizer.json")
    assert_same_tokenizer(ours, gpt2)
    assert_same_ids(
        random_texts(500, seed=7), ours.encode, partial(theirs.encode, add_special_tokens=False)
    )
