"""Vocabulary files: every form is read, they are checked against each other, and written again.

Most tests use a tokenizer of SMALL_MERGES: the bytes, of which "!" has id 0, then 256 "lo", 257
"low", 258 " low", 259 "er" and 260 "é". By default, <|endoftext|> (EOT) is 261.

An ordinary token is a byte or a merge. An added token is found in a text before any merge; it is a
new token, or also an ordinary one. An added token is special or plain. By default, `encode` refuses
a text with a special token; a plain token it always reads as one token. A normalized token is an
added token for which transformers searches after the others.

The settings are the file tokenizer_config.json. They may hold added tokens by id, in
added_tokens_decoder, and they may name tokens ("pad_token": "<pad>"), which makes them special. The
map, special_tokens_map.json, may name tokens too.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support.checks import refuses
from support.models import SMALL, SMALL_MERGES, random_model
from support.reference import GPT2_MERGES, GPT2_VOCAB
from support.texts import assert_same_ids, byte_level_bpe, random_texts
from support.vocabularies import BYTE_LEVEL, added_token, bpe_model, tokenizer_json, without

import tiedgpt
from tiedgpt.checkpoints.vocabulary import (
    read_merges,
    read_tokenizer,
    read_tokenizer_json,
    vocabulary_files,
)
from tiedgpt.errors import TiedGPTError, TiedGPTWarning
from tiedgpt.gpt2.tokenizer import EOT, Tokenizer, spelled_ids


def assert_same_tokenizer(read: Tokenizer, tokenizer: Tokenizer) -> None:
    """Both are written as the same files, and encode a text to the same ids."""
    assert vocabulary_files(read) == vocabulary_files(tokenizer)
    assert read.plain_tokens == tokenizer.plain_tokens
    assert read.encode("a lower low é") == tokenizer.encode("a lower low é")


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """Save the tokenizer, with a model of its size."""
    config = replace(SMALL, vocab_size=tokenizer.vocab_size)
    tiedgpt.save_model(random_model(config), tokenizer, directory)


# Special tokens

SPECIAL_TOKENS = [  # the special tokens, the id of the first byte, the id of EOT
    pytest.param(None, 0, 261, id="eot-by-default"),
    pytest.param({}, 0, None, id="none"),
    pytest.param({"<pad>": 261}, 0, None, id="after"),
    pytest.param({EOT: 0}, 1, 0, id="before"),
    pytest.param({"<pad>": 1, EOT: 263, "<s>": 0}, 2, 263, id="before-and-after"),
]


@pytest.mark.parametrize(("special_tokens", "first_id", "eot_id"), SPECIAL_TOKENS)
def test_special_tokens_come_before_or_after_the_ordinary_tokens(special_tokens, first_id, eot_id):
    """Special tokens before the bytes add first_id to the ids of all ordinary tokens."""
    tokenizer = Tokenizer(SMALL_MERGES, special_tokens, first_id)
    assert tokenizer.eot_id == eot_id
    n_ordinary = 256 + len(SMALL_MERGES)
    assert tokenizer.vocab_size == n_ordinary + len(tokenizer.special_tokens)
    low = first_id + 257
    exclamation_mark = first_id  # the first byte
    assert tokenizer.encode("low!") == [low, exclamation_mark]
    for text, token_id in tokenizer.special_tokens.items():
        assert tokenizer.encode(f"!{text}", special="token") == [exclamation_mark, token_id]
        assert tokenizer.decode([token_id]) == text


@pytest.mark.parametrize(("special_tokens", "first_id", "eot_id"), SPECIAL_TOKENS)
def test_a_saved_tokenizer_comes_back(tmp_path, special_tokens, first_id, eot_id):
    tokenizer = Tokenizer(SMALL_MERGES, special_tokens, first_id)
    save(tokenizer, tmp_path)
    read = tiedgpt.load_tokenizer(tmp_path)
    assert_same_tokenizer(read, tokenizer)
    assert read.eot_id == eot_id


@pytest.mark.parametrize(
    ("special_tokens", "first_id", "message"),
    [
        pytest.param(
            {EOT: 257}, 0, r"special token '<\|endoftext\|>' has id 257, expected 256", id="gap"
        ),
        pytest.param(
            {"<a>": 0, "<b>": 256}, 1, r"special token '<b>' has id 256, expected 257", id="taken"
        ),
        pytest.param(
            {},
            1,
            r"the first byte has id 1, expected 0 to 0: only special tokens come before it",
            id="nothing-before",
        ),
        pytest.param({"<a>": 0}, -1, r"the first byte has id -1, expected 0 to 1", id="negative"),
        pytest.param(
            {"<" * 129: 256},
            0,
            r"special token '<+\.\.\. has 129 characters, expected 1 to 128",
            id="long",
        ),
        pytest.param(
            {"é": 165},
            0,
            r"special token 'é' is also the spelling of an ordinary token of another text",
            id="spelling-of-another",
        ),
        pytest.param(
            {"\ud800": 256},
            0,
            r"character 0 of special token '\\ud800' is '\\ud800', half of a surrogate",
            id="surrogate",
        ),
    ],
)
def test_special_tokens_that_do_not_fit_are_refused(special_tokens, first_id, message):
    """The tokenizer has no merges, so a special token after the bytes has id 256 or more."""
    refuses(message, Tokenizer, [], special_tokens, first_id, error=TiedGPTError)


def test_a_special_token_with_another_id_than_its_merge_is_refused():
    message = r"special token 'lo' has id 257, expected 256"
    refuses(message, Tokenizer, [("l", "o")], {"lo": 257}, error=TiedGPTError)


# merges.txt


def test_the_files_of_gpt2_are_written_again_byte_for_byte(gpt2):
    files = vocabulary_files(gpt2)
    assert files["merges.txt"].encode() == GPT2_MERGES.read_bytes()
    assert files["vocab.json"].encode() == GPT2_VOCAB.read_bytes()


def test_the_merges_of_gpt2_alone_are_enough(gpt2):
    assert_same_tokenizer(read_merges(GPT2_MERGES), gpt2)


LOW = [("l", "o"), ("lo", "w")]


@pytest.mark.parametrize(
    ("text", "merges"),
    [
        pytest.param("#version: 0.2\nl o\nlo w\n", LOW, id="usual"),
        pytest.param("l o\nlo w", LOW, id="merges-alone"),
        pytest.param(
            "#version: 0.2 - Trained by `huggingface/tokenizers`\r\nl o\r\nlo w\r\n",
            LOW,
            id="windows",
        ),
        pytest.param("#version: 0.2\nl o\nlo w\n\n\n", LOW, id="empty-lines-at-the-end"),
        pytest.param("", [], id="empty"),
        pytest.param("\n", [], id="empty-line"),
        pytest.param("#version: 0.2\n", [], id="version-alone"),
        pytest.param("#version: 0.2", [], id="version-without-a-line-end"),
        pytest.param("# #\n## #\n", [("#", "#"), ("##", "#")], id="merges-of-hashes"),
        pytest.param(
            "#version: 0.2\n# #\n## #\n",
            [("#", "#"), ("##", "#")],
            id="version-and-merges-of-hashes",
        ),
    ],
)
def test_forms_of_merges_txt(text, merges, tmp_path):
    path = tmp_path / "merges.txt"
    path.write_text(text, encoding="utf-8", newline="")
    assert read_merges(path).merges == merges


@pytest.mark.parametrize(
    ("merges", "message"),
    [
        pytest.param(
            [("l", "o"), ("lo", "wer")],
            "merge 2, 'lo wer': 'wer' is no byte and no earlier merge",
            id="unknown-right",
        ),
        pytest.param(
            [("lo", "w"), ("l", "o")],
            "merge 1, 'lo w': 'lo' is no byte and no earlier merge",
            id="too-early",
        ),
        pytest.param([("l", "o"), ("l", "o")], "merge 2, 'l o': exists already", id="twice"),
        pytest.param(
            [("a", "b"), ("b", "c"), ("a", "bc"), ("ab", "c")],
            "merge 4, 'ab c': exists already",
            id="one-token-in-two-ways",
        ),
    ],
)
def test_wrong_merges_are_refused_as_an_argument_and_in_a_file(merges, message, tmp_path):
    refuses(f"^{message}$", Tokenizer, merges, error=TiedGPTError)
    path = tmp_path / "merges.txt"
    path.write_text("".join(f"{left} {right}\n" for left, right in merges))
    refuses(rf"merges\.txt: {message}", read_merges, path, error=TiedGPTError)


def test_a_merge_with_a_space_is_refused():
    """Merges spell a space as "Ġ"."""
    message = "^merge 1, 'l  ': ' ' is no byte and no earlier merge$"
    refuses(message, Tokenizer, [("l", " ")], error=TiedGPTError)


# merges.txt and vocab.json


def vocab_with(**changes: object) -> bytes:
    """The vocab.json of bytes, "lo", "low" and <|endoftext|> (258), with some ids changed."""
    ids = spelled_ids(LOW, first_id=0) | {EOT: 258} | changes
    return json.dumps(ids).encode()


def vocab_without(token: str) -> bytes:
    """The vocab.json of vocab_with(), without one token."""
    ids = json.loads(vocab_with())
    return json.dumps(without(ids, token)).encode()


@pytest.fixture
def vocabulary(tmp_path) -> Path:
    """A directory with merges.txt and vocab.json of bytes, "lo", "low" (257) and EOT (258)."""
    (tmp_path / "merges.txt").write_text("#version: 0.2\nl o\nlo w\n")
    (tmp_path / "vocab.json").write_bytes(vocab_with())
    return tmp_path


def test_merges_and_vocab(vocabulary):
    assert read_tokenizer(vocabulary).eot_id == 258


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(
            b"#version: 0.2\nl o\nlow\n", ", line 3: expected two tokens, got 'low'", id="one"
        ),
        pytest.param(b"l o\n\nlo w\n", ", line 2: expected two tokens, got ''", id="empty-line"),
        pytest.param(b"l  o\n", ", line 1: expected two tokens, got 'l  o'", id="two-spaces"),
        pytest.param(
            b"l o\n#version: 0.2 x\n", ", line 2: expected two tokens", id="version-later"
        ),
        pytest.param(b"#version: 0.2\nl o\nl \xff\n", ", line 3: not UTF-8", id="not-utf-8"),
        pytest.param(
            b"l " + b"o" * 1000,
            r" with .*: merge 1, 'l o{50,60}\.\.\.: 'o+\.\.\. is no byte and",
            id="long",
        ),
    ],
)
def test_a_malformed_merges_txt_is_refused(vocabulary, content, message):
    (vocabulary / "merges.txt").write_bytes(content)
    refuses(rf"merges\.txt{message}", read_tokenizer, vocabulary, error=TiedGPTError)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"\xff", ", line 1: not UTF-8", id="not-utf-8"),
        pytest.param(b"[0, 1]", r": expected a JSON object, got \[0, 1\]", id="list"),
        pytest.param(
            vocab_with(lo="256"), ": token 'lo' has id '256', expected an integer", id="text"
        ),
        pytest.param(
            vocab_with(**{'"': True}), ": token '\"' has id True, expected an integer", id="true"
        ),
        pytest.param(vocab_without("Ġ"), ": token 'Ġ' has no id, expected 220", id="no-id"),
        pytest.param(
            vocab_with(low=258, **{EOT: 257}),
            ": token 'low' has id 258, expected 257",
            id="swapped",
        ),
        pytest.param(
            vocab_with(**{"!": 10**30}), ": token '\"' has id 1, expected 10{29}1", id="large"
        ),
        pytest.param(
            vocab_with(extra=260), ": special token 'extra' has id 260, expected 259", id="gap"
        ),
        pytest.param(
            vocab_with(Ġlow=258, **{EOT: 259}), ": no merge makes token 'Ġlow'", id="no-merge"
        ),
        pytest.param(
            json.dumps(spelled_ids(LOW, first_id=1)).encode(),
            ": the first byte has id 1, expected 0 to 0: only special tokens come",
            id="nothing-before",
        ),
    ],
)
def test_a_vocab_that_is_malformed_or_contradicts_the_merges_is_refused(
    vocabulary, content, message
):
    (vocabulary / "vocab.json").write_bytes(content)
    refuses(rf"vocab\.json{message}", read_tokenizer, vocabulary, error=TiedGPTError)


# added_tokens.json


def test_added_tokens_json_holds_more_special_tokens(tmp_path):
    """transformers 4 saves a token that was added to a model only in this file."""
    save(Tokenizer(SMALL_MERGES), tmp_path)
    (tmp_path / "added_tokens.json").write_text('{"<|pad|>": 262}')
    ids = {EOT: 261, "<|pad|>": 262}
    expected = Tokenizer(SMALL_MERGES, ids, normalized_tokens=["<|pad|>"])
    assert_same_tokenizer(read_tokenizer(tmp_path), expected)


def test_with_more_special_tokens_than_eot_two_more_files_are_written():
    """From vocab.json alone, transformers would not know that they are special."""
    files_with_eot = vocabulary_files(Tokenizer(SMALL_MERGES))
    files_with_pad = vocabulary_files(Tokenizer(SMALL_MERGES, {EOT: 261, "<|pad|>": 262}))
    new_files = files_with_pad.keys() - files_with_eot.keys()
    assert new_files == {"added_tokens.json", "tokenizer.json"}


def test_a_second_save_removes_the_added_tokens_of_the_first_save(tmp_path):
    with_pad = Tokenizer(SMALL_MERGES, {EOT: 261, "<|pad|>": 262})
    without_pad = Tokenizer(SMALL_MERGES)
    save(with_pad, tmp_path)
    save(without_pad, tmp_path)
    assert_same_tokenizer(tiedgpt.load_tokenizer(tmp_path), without_pad)


# Added tokens that may also be ordinary ones

TEXT = f"low! lower!!{EOT}flower low<p>"
MERGES = [*SMALL_MERGES, ("!", "!")]  # "!!" has id 261, so EOT has 262
ADDED = [  # an added token, and the tokens of which TEXT then consists
    pytest.param(
        "!",
        ["low", "!", " low", "er", "!", "!", EOT, "f", "low", "er", " low", "<", "p", ">"],
        id="a-byte",
    ),
    pytest.param(
        "low",
        ["low", "!", " ", "low", "er", "!!", EOT, "f", "low", "er", " ", "low", "<", "p", ">"],
        id="a-merge",
    ),
    pytest.param(
        "<p>",
        ["low", "!", " low", "er", "!!", EOT, "f", "low", "er", " low", "<p>"],
        id="a-new-token",
    ),
]


def write_added(directory: Path, token: str) -> Path:
    """A model whose tokenizer.json has <|endoftext|> and this token in added_tokens.

    A token that is also an ordinary one keeps its id.
    """
    ids = spelled_ids(MERGES, first_id=0) | {EOT: 262}
    if token not in ids:
        ids[token] = 263
    merges = [f"{left} {right}" for left, right in MERGES]
    file = tokenizer_json(
        model=bpe_model(vocab=ids, merges=merges),
        added_tokens=[added_token(token, ids[token]), added_token(EOT, 262)],
    )
    tiedgpt.save_model(random_model(), None, directory)
    (directory / "tokenizer.json").write_text(json.dumps(file))
    return directory


@pytest.mark.parametrize(("token", "pieces"), ADDED)
def test_an_added_token_is_read_as_one_token_before_any_merge(tmp_path, token, pieces):
    tokenizer = read_tokenizer(write_added(tmp_path, token))
    ids = tokenizer.encode(TEXT, special="token")
    assert [tokenizer.token_text(token_id) for token_id in ids] == pieces
    assert tokenizer.decode(ids) == TEXT


@pytest.mark.parametrize("token", ["!", "low", "<p>"])
def test_if_special_is_text_an_added_token_is_read_as_ordinary_text(tmp_path, token):
    tokenizer = read_tokenizer(write_added(tmp_path, token))
    without_added_token = Tokenizer(MERGES)
    expected = without_added_token.encode(TEXT, special="text")
    assert tokenizer.encode(TEXT, special="text") == expected


@pytest.mark.parametrize("token", ["!", "low"])
def test_an_added_token_that_is_also_an_ordinary_one_is_not_refused(tmp_path, token):
    """By default, `encode` refuses EOT in a text, but reads "!" or "low" as the added token."""
    tokenizer = read_tokenizer(write_added(tmp_path, token))
    ids = tokenizer.encode(TEXT, special="token")
    message = r"the text contains special token '<\|endoftext\|>' at character"
    refuses(message, tokenizer.encode, TEXT, error=TiedGPTError)
    ids_without_eot = [token_id for token_id in ids if token_id != tokenizer.eot_id]
    assert tokenizer.encode(TEXT.replace(EOT, "")) == ids_without_eot


@pytest.mark.parametrize("token", ["!", "low", "<p>"])
def test_an_added_token_comes_back_from_a_saved_model(tmp_path, token):
    tokenizer = read_tokenizer(write_added(tmp_path / "original", token))
    save(tokenizer, tmp_path / "saved")
    assert_same_tokenizer(read_tokenizer(tmp_path / "saved"), tokenizer)


@pytest.mark.parametrize("token", ["!", "low", "<p>"])
def test_transformers_reads_an_added_token_in_the_same_way(tmp_path, token):
    """It reads the directory that tiedgpt read, and the directory that tiedgpt saved."""
    transformers = pytest.importorskip("transformers")
    original = write_added(tmp_path / "original", token)
    tokenizer = read_tokenizer(original)
    ids = tokenizer.encode(TEXT, special="token")
    save(tokenizer, tmp_path / "saved")
    for directory in (original, tmp_path / "saved"):
        theirs = transformers.AutoTokenizer.from_pretrained(directory)
        assert theirs.encode(TEXT, add_special_tokens=False) == ids


@pytest.mark.parametrize("token", ["!", "low", "<p>"])
def test_what_transformers_saves_of_an_added_token_is_read(tmp_path, token):
    transformers = pytest.importorskip("transformers")
    original = write_added(tmp_path / "original", token)
    theirs = transformers.AutoTokenizer.from_pretrained(original)
    theirs.save_pretrained(tmp_path / "theirs")
    read = read_tokenizer_json(tmp_path / "theirs" / "tokenizer.json")
    assert_same_tokenizer(read, read_tokenizer(original))


# Added tokens that are not special

EOT_AND_PLAIN_USER = [added_token(EOT, 261), added_token("<user>", 262, special=False)]


@pytest.fixture
def with_plain_token(tmp_path) -> Path:
    """A directory whose tokenizer.json has <user>, with id 262, which is not special."""
    write_json(tmp_path, tokenizer_json(added_tokens=EOT_AND_PLAIN_USER))
    return tmp_path


def test_a_plain_token_is_read_with_each_value_of_special(with_plain_token):
    """The plain token is <user>, with id 262."""
    tokenizer = read_tokenizer(with_plain_token)
    for special in ("error", "token", "text"):
        assert tokenizer.encode("low<user>!", special) == [257, 262, 0]
    assert tokenizer.decode([257, 262]) == "low<user>"


def test_a_plain_token_does_not_hide_a_special_one(with_plain_token):
    """<user>, a plain token of six characters, comes before EOT."""
    tokenizer = read_tokenizer(with_plain_token)
    message = r"the text contains special token '<\|endoftext\|>' at character 6"
    refuses(message, tokenizer.encode, f"<user>{EOT}", error=TiedGPTError)


def test_the_end_of_text_is_special_whatever_the_file_says(tmp_path):
    file = tokenizer_json(added_tokens=[added_token(EOT, 261, special=False)])
    tokenizer = read_tokenizer_json(write_json(tmp_path, file))
    assert tokenizer.find_special(f"a{EOT}") == EOT


def test_transformers_reads_a_plain_token_in_the_same_way(with_plain_token):
    """The plain token is <user>. transformers also needs the config.json of a saved model."""
    transformers = pytest.importorskip("transformers")
    tokenizer = read_tokenizer(with_plain_token)
    tiedgpt.save_model(random_model(), None, with_plain_token)
    theirs = transformers.AutoTokenizer.from_pretrained(with_plain_token)
    text = f"low<user>!{EOT}"
    assert theirs.encode(text) == tokenizer.encode(text, special="token")
    assert theirs.encode(text, split_special_tokens=True) == tokenizer.encode(text, special="text")


def test_transformers_knows_which_tokens_of_a_saved_model_are_special(tmp_path):
    """<user> is plain, so that it is not skipped."""
    transformers = pytest.importorskip("transformers")
    added_tokens = {EOT: 261, "<pad>": 262, "<user>": 263}
    tokenizer = Tokenizer(SMALL_MERGES, added_tokens, plain_tokens=["<user>"])
    save(tokenizer, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    low = 257
    ids = [added_tokens["<pad>"], added_tokens["<user>"], low, added_tokens[EOT]]
    assert theirs.decode(ids, skip_special_tokens=True) == "<user>low"
    assert_same_tokenizer(read_tokenizer(tmp_path), tokenizer)


def test_an_added_token_with_the_spelling_of_a_space_is_refused(tmp_path):
    file = tokenizer_json(added_tokens=[added_token(EOT, 261), added_token("Ġx", 262)])
    message = r"tokenizer\.json: added token 'Ġx' contains \"Ġ\", which stands for a space in"
    refuses(message, read_tokenizer_json, write_json(tmp_path, file), error=TiedGPTError)


# Tokens that are normalized: transformers searches for them last


@pytest.fixture
def with_normalized_token(tmp_path) -> Path:
    """A directory whose tokenizer.json has <|end|> (262) and the normalized token "!<" (263).

    In the text "!<|end|>" the two tokens overlap in "<", and the normalized token begins first.
    """
    added_tokens = [
        added_token(EOT, 261),
        added_token("<|end|>", 262),
        added_token("!<", 263, special=False, normalized=True),
    ]
    write_json(tmp_path, tokenizer_json(added_tokens=added_tokens))
    return tmp_path


def test_a_normalized_token_takes_no_part_of_another_added_token(with_normalized_token):
    """<|end|> is 262, and the normalized token "!<" is 263. "!<|end|>" is read as "!", <|end|>."""
    tokenizer = read_tokenizer(with_normalized_token)
    assert tokenizer.encode("low!<|end|>!<", special="token") == [257, 0, 262, 263]


def test_a_normalized_token_does_not_hide_a_special_one(with_normalized_token):
    """The normalized token "!<" begins before <|end|>."""
    tokenizer = read_tokenizer(with_normalized_token)
    assert tokenizer.find_special("low!<|end|>") == "<|end|>"
    refuses("special token '<|end|>'", tokenizer.encode, "!<|end|>", error=TiedGPTError)


def test_a_special_token_that_is_read_as_text_is_read_whole(tmp_path):
    """The plain token "end" is not read within <|end|>. transformers does the same."""
    tokens = [added_token("<|end|>", 261), added_token("end", 262, special=False)]
    model = bpe_model(vocab=spelled_ids(SMALL_MERGES, first_id=0))
    path = write_json(tmp_path, tokenizer_json(added_tokens=tokens, model=model))
    tokenizer = read_tokenizer_json(path)
    expected = Tokenizer(SMALL_MERGES).encode("<|end|>", special="text")
    assert tokenizer.encode("<|end|>end", special="text") == [*expected, 262]


def test_normalized_tokens_come_back_from_a_saved_model(with_normalized_token, tmp_path):
    tokenizer = read_tokenizer(with_normalized_token)
    save(tokenizer, tmp_path / "saved")
    read = read_tokenizer(tmp_path / "saved")
    assert read.normalized_tokens == {"!<"}
    assert_same_tokenizer(read, tokenizer)


@pytest.mark.parametrize("is_split", [False, True], ids=["as-tokens", "as-text"])
def test_transformers_reads_normalized_tokens_in_the_same_way(with_normalized_token, is_split):
    """The tokens are <|end|>, and the normalized one "!<"."""
    transformers = pytest.importorskip("transformers")
    tokenizer = read_tokenizer(with_normalized_token)
    tiedgpt.save_model(random_model(), None, with_normalized_token)
    theirs = transformers.AutoTokenizer.from_pretrained(with_normalized_token)
    text = "low!<|end|>!<user!<|end|"
    if is_split:
        ids = tokenizer.encode(text, special="text")
    else:
        ids = tokenizer.encode(text, special="token")
    assert theirs.encode(text, split_special_tokens=is_split) == ids


# tokenizer.json beside merges.txt: it comes first, as in transformers


@pytest.fixture
def saved_in_place(tmp_path) -> Path:
    """A directory in which transformers 5 added tokens to a saved tokenizer.

    tokenizer.json has the plain token <user>, 262, and the special token <pad>, 263. merges.txt and
    vocab.json are unchanged, and have neither.
    """
    save(Tokenizer(SMALL_MERGES), tmp_path)
    added_tokens = [*EOT_AND_PLAIN_USER, added_token("<pad>", 263)]
    write_json(tmp_path, tokenizer_json(added_tokens=added_tokens))
    return tmp_path


def test_the_added_tokens_of_tokenizer_json_are_read(saved_in_place):
    """They are <user>, with id 262, and the special token <pad>."""
    tokenizer = read_tokenizer(saved_in_place)
    assert tokenizer.encode("<user>low") == [262, 257]
    assert tokenizer.find_special("<user>low<pad>") == "<pad>"


def test_tokens_that_transformers_adds_to_a_saved_tokenizer_are_read(tmp_path):
    """It adds <user>, a plain token, and the special token <pad> to a saved tokenizer."""
    transformers = pytest.importorskip("transformers")
    save(Tokenizer(SMALL_MERGES), tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs.add_tokens(["<user>"])
    theirs.add_special_tokens({"pad_token": "<pad>"})
    theirs.save_pretrained(tmp_path)
    tokenizer = read_tokenizer(tmp_path)
    text = "<user>lower<pad>"
    assert tokenizer.encode(text, special="token") == theirs.encode(text)
    assert tokenizer.plain_tokens == {"<user>"}


def test_different_merges_in_tokenizer_json_and_merges_txt_are_refused(saved_in_place):
    (saved_in_place / "merges.txt").write_text("l o\n")
    message = r"tokenizer\.json: its 5 merges are not the 1 of merges\.txt beside it"
    refuses(message, read_tokenizer, saved_in_place, error=TiedGPTError)


def test_different_ids_in_tokenizer_json_and_vocab_json_are_refused(saved_in_place):
    vocab = spelled_ids(SMALL_MERGES, first_id=1)
    (saved_in_place / "vocab.json").write_text(json.dumps(vocab))
    message = r"tokenizer\.json: token '!' has id 0, but 1 in vocab\.json beside it"
    refuses(message, read_tokenizer, saved_in_place, error=TiedGPTError)


def test_the_id_of_an_added_token_in_vocab_json_does_not_matter(saved_in_place):
    """The id of <pad> is 263, as in tokenizer.json."""
    vocab = spelled_ids(SMALL_MERGES, first_id=0) | {"<pad>": 261}
    (saved_in_place / "vocab.json").write_text(json.dumps(vocab))
    assert read_tokenizer(saved_in_place).special_tokens["<pad>"] == 263


def test_added_tokens_json_adds_to_tokenizer_json(saved_in_place):
    """tokenizer.json has the plain token <user>, 262, and <pad>, 263, but not <b>."""
    (saved_in_place / "added_tokens.json").write_text('{"<user>": 262, "<b>": 264}')
    tokenizer = read_tokenizer(saved_in_place)
    assert tokenizer.special_tokens["<b>"] == 264
    assert tokenizer.plain_tokens == {"<user>"}


def test_a_save_replaces_the_files_of_the_earlier_tokenizer(saved_in_place):
    """From the earlier tokenizer.json and settings, transformers would read <pad> as special."""
    names = ["special_tokens_map.json", "tokenizer_config.json"]
    for name in names:
        (saved_in_place / name).write_text('{"pad_token": "<pad>", "add_prefix_space": true}')
    tokenizer = Tokenizer([("h", "e")])
    save(tokenizer, saved_in_place)
    assert_same_tokenizer(read_tokenizer(saved_in_place), tokenizer)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(saved_in_place)
    assert theirs.encode("he<pad>") == tokenizer.encode("he<pad>")  # <pad> is ordinary text


# tokenizer_config.json


def settings_with(added_tokens: dict[str, object]) -> bytes:
    """A tokenizer_config.json with these added tokens, each by its id."""
    return json.dumps({"added_tokens_decoder": added_tokens}).encode()


def test_added_tokens_of_the_settings_are_read(vocabulary):
    """Without them, the vocabulary ends with EOT, whose id is 258."""
    added_tokens = {
        "258": added_token(EOT, 258),
        "259": added_token("<user>", 259, special=False),
        "260": added_token("<pad>", 260),
    }
    settings = settings_with(added_tokens)
    (vocabulary / "tokenizer_config.json").write_bytes(settings)
    tokenizer = read_tokenizer(vocabulary)
    assert tokenizer.special_tokens == {EOT: 258, "<user>": 259, "<pad>": 260}
    assert tokenizer.plain_tokens == {"<user>"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(
            b'{"added_tokens_decoder": [1]}',
            r"added_tokens_decoder must be an object, got \[1\]",
            id="list",
        ),
        pytest.param(
            settings_with({"259": "<user>"}), "added token '<user>': expected content", id="text"
        ),
        pytest.param(
            settings_with({"a": added_token("<user>", 259)}),
            "token '<user>' has id None, expected an integer",
            id="no-number",
        ),
        pytest.param(
            settings_with({"261": added_token("low", 261)}),
            "token 'low' has two ids, 257 and 261",
            id="two",
        ),
        pytest.param(
            settings_with({"259": added_token("<user>", 259, lstrip=True)}),
            "added token .*, and not lstrip, rstrip or single_word",
            id="lstrip",
        ),
    ],
)
def test_wrong_added_tokens_of_the_settings_are_refused(vocabulary, settings, message):
    """The vocabulary has the tokens "low", 257, and EOT, 258, which is the last."""
    (vocabulary / "tokenizer_config.json").write_bytes(settings)
    refuses(rf"tokenizer_config\.json: {message}", read_tokenizer, vocabulary, error=TiedGPTError)


def test_a_warning_says_that_add_bos_token_has_no_effect(vocabulary):
    (vocabulary / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    with pytest.warns(TiedGPTWarning, match=r"tokenizer_config\.json: add_bos_token is true, but"):
        assert read_tokenizer(vocabulary).encode("low") == [257]


def test_a_warning_says_that_add_eos_token_has_no_effect(vocabulary):
    (vocabulary / "tokenizer_config.json").write_text('{"add_eos_token": true}')
    with pytest.warns(TiedGPTWarning, match=r"tokenizer_config\.json: add_eos_token is true, but"):
        assert read_tokenizer(vocabulary).encode("low") == [257]


# Special tokens that settings name

USER = added_token("<user>", 262, special=False, normalized=True)
EOT_AND_USER = [added_token(EOT, 261), USER]


def without_id(token: dict) -> dict:
    """An added token as added_tokens_decoder has it."""
    return without(token, "id")


DECODER = {"261": without_id(added_token(EOT, 261)), "262": without_id(USER)}
NAMED = {  # settings that name special tokens, each with an id for tests
    "pad": {"pad_token": "<pad>"},
    "several": {"pad_token": "<pad>", "mask_token": "<m>", "eos_token": "<e>"},
    "null": {"pad_token": None, "bos_token": None, "eos_token": "<e>"},
    "extra": {"extra_special_tokens": ["<x>", "<m>"], "pad_token": "<pad>"},
    "extra-in-transformers-4": {"additional_special_tokens": ["<x>"], "sep_token": "<pad>"},
    "extra-twice": {"additional_special_tokens": ["<x>"], "extra_special_tokens": ["<m>"]},
    "extra-with-names": {"extra_special_tokens": {"image_token": "<x>"}, "cls_token": "<m>"},
    "another-name": {"image_token": "<x>", "pad_token": "<pad>", "add_bos_token": False},
    "object": {"pad_token": {**without_id(USER), "content": "<pad>", "__type": "AddedToken"}},
    "ordinary": {"pad_token": "low", "sep_token": "!"},
    "plain-token": {"pad_token": "<user>"},
    "plain-token-of-the-settings": {"pad_token": "<user>", "added_tokens_decoder": DECODER},
    "plain-token-as-extra": {"extra_special_tokens": ["<user>", "<x>"]},
    "decoder-makes-special": {
        "added_tokens_decoder": {**DECODER, "262": {**without_id(USER), "special": True}}
    },
    "another-class": {"pad_token": "<pad>", "tokenizer_class": "PreTrainedTokenizerFast"},
}
NAMED_TEXT = f"low<pad>! <user><x><e> <m>lower{EOT}<pad><"


def write_named(directory: Path, file: str, settings: dict) -> Path:
    """A directory with a tokenizer.json that has <user>, 262, and with these settings in `file`."""
    write_json(directory, tokenizer_json(added_tokens=EOT_AND_USER, decoder=BYTE_LEVEL))
    (directory / file).write_text(json.dumps(settings))
    (directory / "config.json").write_text('{"model_type": "gpt2"}')
    return directory


def assert_reads_as_transformers(directory: Path) -> None:
    """Both read NAMED_TEXT as the same ids, with special tokens as tokens and as text."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer = read_tokenizer(directory)
    assert tokenizer.vocab_size == len(theirs)
    assert tokenizer.encode(NAMED_TEXT, special="token") == theirs.encode(NAMED_TEXT)
    as_text = theirs.encode(NAMED_TEXT, split_special_tokens=True)
    assert tokenizer.encode(NAMED_TEXT, special="text") == as_text


@pytest.mark.parametrize("name", NAMED)
def test_transformers_reads_named_tokens_in_the_same_way(tmp_path, name):
    assert_reads_as_transformers(write_named(tmp_path, "tokenizer_config.json", NAMED[name]))


@pytest.mark.parametrize("name", ["pad", "several", "extra-in-transformers-4"])
def test_transformers_reads_the_map_of_special_tokens_in_the_same_way(tmp_path, name):
    assert_reads_as_transformers(write_named(tmp_path, "special_tokens_map.json", NAMED[name]))


@pytest.mark.parametrize("name", ["pad", "several", "extra", "another-name", "ordinary"])
def test_transformers_reads_named_tokens_beside_merges_txt_in_the_same_way(tmp_path, name):
    tokenizer = Tokenizer(SMALL_MERGES)
    save(tokenizer, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(NAMED[name]))
    assert_reads_as_transformers(tmp_path)


@pytest.mark.parametrize(
    "decoder", [{}, {"added_tokens_decoder": DECODER}], ids=["no-decoder", "decoder"]
)
def test_transformers_reads_the_settings_and_the_map_in_the_same_way(tmp_path, decoder):
    """If they name different tokens, the map is right. With added_tokens_decoder it is not read."""
    settings = {"pad_token": "<x>", "extra_special_tokens": ["<e>"], **decoder}
    write_named(tmp_path, "tokenizer_config.json", settings)
    special_tokens_map = {"pad_token": "<pad>", "extra_special_tokens": ["<m>", "<e>"]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special_tokens_map))
    assert_reads_as_transformers(tmp_path)


def test_named_tokens_are_appended_in_the_order_of_transformers(vocabulary):
    """The order is: eos, pad, extra. Without these tokens, the vocabulary ends with EOT, 258."""
    settings = {"extra_special_tokens": ["<x>"], "pad_token": "<pad>", "eos_token": "<e>"}
    (vocabulary / "tokenizer_config.json").write_text(json.dumps(settings))
    expected = {EOT: 258, "<e>": 259, "<pad>": 260, "<x>": 261}
    assert read_tokenizer(vocabulary).special_tokens == expected


def test_named_tokens_of_the_map_are_appended(vocabulary):
    """The vocabulary has "low", 257, and ends with EOT, 258."""
    (vocabulary / "special_tokens_map.json").write_text('{"pad_token": "<pad>"}')
    assert read_tokenizer(vocabulary).encode("low<pad>", special="token") == [257, 259]


def test_a_named_token_is_special(tmp_path):
    write_named(tmp_path, "tokenizer_config.json", {"pad_token": "<user>"})
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.plain_tokens == set()
    assert tokenizer.find_special("low<user>") == "<user>"


@pytest.mark.parametrize("is_special", [True, False], ids=["special", "plain"])
def test_the_settings_win_over_tokenizer_json(tmp_path, is_special):
    """The two disagree on <user>: whether it is special, and whether it is normalized."""
    in_settings = {**without_id(USER), "special": is_special, "normalized": False}
    settings = {"added_tokens_decoder": {"262": in_settings}}
    write_named(tmp_path, "tokenizer_config.json", settings)
    in_tokenizer_json = {**USER, "special": not is_special}
    added_tokens = [added_token(EOT, 261), in_tokenizer_json]
    write_json(tmp_path, tokenizer_json(added_tokens=added_tokens))
    tokenizer = read_tokenizer(tmp_path)
    if is_special:
        assert tokenizer.plain_tokens == set()
    else:
        assert tokenizer.plain_tokens == {"<user>"}
    assert tokenizer.normalized_tokens == set()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"pad_token": 3}, "pad_token is 3, expected the text of a token", id="number"),
        pytest.param({"pad_token": ""}, "pad_token is '', expected the text", id="empty"),
        pytest.param(
            {"extra_special_tokens": 3}, "extra_special_tokens must be a list, got 3", id="no-list"
        ),
        pytest.param(
            {"pad_token": added_token("<pad>", 0, lstrip=True)},
            "added token .*, and not lstrip",
            id="lstrip",
        ),
    ],
)
def test_wrong_named_tokens_are_refused(vocabulary, settings, message):
    (vocabulary / "tokenizer_config.json").write_text(json.dumps(settings))
    refuses(rf"tokenizer_config\.json: {message}", read_tokenizer, vocabulary, error=TiedGPTError)


def test_a_named_token_in_a_vocabulary_without_eot_is_refused(vocabulary):
    """Its id is not certain: of two classes of transformers, one would append EOT before it."""
    (vocabulary / "vocab.json").write_bytes(vocab_without(EOT))
    (vocabulary / "tokenizer_config.json").write_text('{"pad_token": "<pad>"}')
    message = r"pad_token is '<pad>', and neither this nor <\|endoftext\|> is in the vocabulary"
    refuses(message, read_tokenizer, vocabulary, error=TiedGPTError)


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": EOT, "type_id": 0}}, {"Sequence": {"id": "A"}}],
    "special_tokens": {EOT: {"id": EOT, "ids": [261], "tokens": [EOT]}},
}


@pytest.mark.parametrize(
    "post_processor",
    [
        pytest.param(TEMPLATE, id="template"),
        pytest.param(
            {"type": "RobertaProcessing", "cls": [EOT, 261], "sep": [EOT, 261]}, id="pair"
        ),
        pytest.param(
            {"type": "Sequence", "processors": [{"type": "ByteLevel"}, TEMPLATE]}, id="sequence"
        ),
    ],
)
def test_a_warning_says_that_a_post_processor_adds_no_tokens_here(tmp_path, post_processor):
    path = write_json(tmp_path, tokenizer_json(post_processor=post_processor))
    with pytest.warns(TiedGPTWarning, match=r"tokenizer\.json: post_processor adds tokens"):
        assert read_tokenizer_json(path).encode("low") == [257]


def test_a_post_processor_without_tokens_has_no_warning(tmp_path):
    """transformers 5 writes such a one. A warning would fail this test."""
    template = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}]}
    path = write_json(tmp_path, tokenizer_json(post_processor=template))
    assert read_tokenizer_json(path).encode("low") == [257]


def test_settings_without_a_prefix_space_are_read(vocabulary):
    (vocabulary / "tokenizer_config.json").write_text('{"add_prefix_space": false}')
    assert read_tokenizer(vocabulary).encode("low") == [257]


def test_settings_with_a_prefix_space_are_refused(vocabulary):
    """A space before every text would change its ids."""
    (vocabulary / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    message = r"tokenizer_config\.json: add_prefix_space is true, expected false"
    refuses(message, read_tokenizer, vocabulary, error=TiedGPTError)


# tokenizer.json


def write_json(directory: Path, file: dict) -> Path:
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    return path


SEQUENCE = {"type": "Sequence", "pretokenizers": [BYTE_LEVEL]}
FORMS = [
    pytest.param(tokenizer_json(), id="usual"),
    pytest.param(
        tokenizer_json(model=bpe_model(merges=[list(pair) for pair in SMALL_MERGES])),
        id="merges-as-pairs",
    ),
    pytest.param(
        tokenizer_json(
            model=without(bpe_model(), "type"),
            pre_tokenizer=without(BYTE_LEVEL, "use_regex"),
        ),
        id="as-in-gpt2s-own-file",
    ),
    pytest.param(tokenizer_json(model=bpe_model(ignore_merges=False)), id="ignore_merges"),
    pytest.param(tokenizer_json(pre_tokenizer=SEQUENCE), id="sequence-of-one"),
    pytest.param(without(tokenizer_json(), "added_tokens"), id="no-added-tokens"),
    pytest.param(
        tokenizer_json(model=bpe_model(vocab=spelled_ids(SMALL_MERGES, first_id=0))),
        id="eot-in-added-tokens-alone",
    ),
]


@pytest.mark.parametrize("file", FORMS)
def test_forms_of_tokenizer_json(tmp_path, file):
    path = write_json(tmp_path, file)
    assert_same_tokenizer(read_tokenizer_json(path), Tokenizer(SMALL_MERGES))


OTHER_IDS = [  # settings that would give other ids
    pytest.param(
        tokenizer_json(normalizer={"type": "NFC"}),
        r"normalizer is \{'type': 'NFC'\}, expected None, as in GPT-2",
        id="normalizer",
    ),
    pytest.param(
        tokenizer_json(model=bpe_model(type="##")), r"model\.type is '##', expected", id="type"
    ),
    pytest.param(
        tokenizer_json(model=bpe_model(dropout="##")),
        r"model\.dropout is '##', expected",
        id="dropout",
    ),
    pytest.param(
        tokenizer_json(model=bpe_model(continuing_subword_prefix="##")),
        r"model\.continuing_subword_prefix is '##', expected",
        id="subword-prefix",
    ),
    pytest.param(
        tokenizer_json(model=bpe_model(end_of_word_suffix="##")),
        r"model\.end_of_word_suffix is '##', expected",
        id="word-suffix",
    ),
    pytest.param(
        tokenizer_json(model=bpe_model(ignore_merges=True)),
        r"model\.ignore_merges is True, expected",
        id="ignore-merges",
    ),
    pytest.param(
        tokenizer_json(pre_tokenizer=None),
        r"pre_tokenizer\.type is None, expected 'ByteLevel'",
        id="no-pre-tokenizer",
    ),
    pytest.param(
        tokenizer_json(pre_tokenizer={**BYTE_LEVEL, "type": "##"}),
        r"pre_tokenizer\.type is '##', expected",
        id="pre-tokenizer",
    ),
    pytest.param(
        tokenizer_json(pre_tokenizer={**BYTE_LEVEL, "add_prefix_space": True}),
        r"pre_tokenizer\.add_prefix_space is True, expected",
        id="prefix-space",
    ),
    pytest.param(
        tokenizer_json(pre_tokenizer=without(BYTE_LEVEL, "add_prefix_space")),
        r"pre_tokenizer\.add_prefix_space is None, expected",
        id="no-word-of-a-prefix-space",
    ),
    pytest.param(
        tokenizer_json(pre_tokenizer={**BYTE_LEVEL, "use_regex": False}),
        r"pre_tokenizer\.use_regex is False, expected",
        id="no-regex",
    ),
    pytest.param(
        tokenizer_json(pre_tokenizer={"type": "Sequence", "pretokenizers": [{}, BYTE_LEVEL]}),
        r"\.type is 'Sequence'",
        id="sequence-of-two",
    ),
    pytest.param(
        tokenizer_json(added_tokens=[added_token(EOT, 261, lstrip=True)]),
        r"added token .*, and not lstrip, rstrip or single_word",
        id="lstrip",
    ),
    pytest.param(
        tokenizer_json(added_tokens=[added_token(EOT, 261, rstrip=True)]),
        r"added token .*, and not lstrip, rstrip or single_word",
        id="rstrip",
    ),
    pytest.param(
        tokenizer_json(added_tokens=[added_token(EOT, 261, single_word=True)]),
        r"added token .*, and not lstrip, rstrip or single_word",
        id="single-word",
    ),
]


@pytest.mark.parametrize(("file", "message"), OTHER_IDS)
def test_a_tokenizer_json_that_would_give_other_ids_is_refused(tmp_path, file, message):
    path = write_json(tmp_path, file)
    refuses(rf"tokenizer\.json.*{message}", read_tokenizer_json, path, error=TiedGPTError)


INCOMPLETE = r"expected model\.vocab, model\.merges and a list of added_tokens"
MALFORMED = [
    pytest.param(without(tokenizer_json(), "model"), INCOMPLETE, id="no-model"),
    pytest.param(tokenizer_json(model=without(bpe_model(), "merges")), INCOMPLETE, id="no-merges"),
    pytest.param(tokenizer_json(added_tokens={"a": 1}), INCOMPLETE, id="added-tokens-by-name"),
    pytest.param(
        tokenizer_json(model=bpe_model(merges=["l o", "low"])),
        ", merge 2: expected two tokens, got 'low'",
        id="merge-of-one",
    ),
    pytest.param(
        tokenizer_json(model=bpe_model(merges=[["l", []]])),
        r", merge 1: expected two tokens, got \['l', \[\]\]",
        id="merge-with-a-list",
    ),
    pytest.param(
        tokenizer_json(model=bpe_model(merges=[{"l": "o", "a": "b"}])),
        r", merge 1: expected two tokens, got \{'l': 'o', 'a'",
        id="merge-by-name",
    ),
    pytest.param(
        tokenizer_json(model=bpe_model(merges=["l o", "lo w"])),
        ": no merge makes token 'Ġlow': merges are missing",
        id="merges-missing",
    ),
    pytest.param(
        tokenizer_json(added_tokens=[EOT]),
        r"added token '<\|endoftext\|>': expected content",
        id="added-text",
    ),
    pytest.param(
        tokenizer_json(added_tokens=[without(added_token(EOT, 261), "id")]),
        r"token '<\|endoftext\|>' has id None, expected an integer",
        id="no-id",
    ),
    pytest.param(
        tokenizer_json(added_tokens=[added_token(EOT, 262)]),
        r"token '<\|endoftext\|>' has two ids, 261 and 262",
        id="another-id",
    ),
    pytest.param(
        tokenizer_json(added_tokens=[added_token("low", 256)]),
        "token 'low' has two ids, 257 and 256",
        id="another-id-of-an-ordinary-token",
    ),
    pytest.param(
        tokenizer_json(added_tokens=[added_token("<x>", 263)]),
        "special token '<x>' has id 263, expected 262",
        id="gap",
    ),
]


@pytest.mark.parametrize(("file", "message"), MALFORMED)
def test_a_malformed_tokenizer_json_is_refused(tmp_path, file, message):
    path = write_json(tmp_path, file)
    refuses(rf"tokenizer\.json.*{message}", read_tokenizer_json, path, error=TiedGPTError)


# Hugging Face's own tokenizers


@pytest.mark.parametrize("file", ["tokenizer.json", "merges.txt"])
def test_a_tokenizer_trained_by_hugging_faces_library_is_read(tmp_path, file):
    """The trainer puts special tokens first: EOT has id 0 and <pad> id 1."""
    tokenizers = pytest.importorskip("tokenizers")
    theirs, trainer = byte_level_bpe(tokenizers, 700, special_tokens=[EOT, "<pad>"])
    texts = random_texts(500, seed=8)
    theirs.train_from_iterator(texts, trainer)
    if file == "tokenizer.json":
        theirs.save(str(tmp_path / "tokenizer.json"))
    else:
        theirs.model.save(str(tmp_path))  # merges.txt and vocab.json
    ours = read_tokenizer(tmp_path)
    assert ours.special_tokens == {EOT: 0, "<pad>": 1}
    assert ours.vocab_size > 600, "few merges were learned"  # of at most 700 tokens
    assert ours.vocab_size == theirs.get_vocab_size()
    texts_with_special_tokens = [f"{text}{EOT}<pad>{text}" for text in texts[:50]]
    assert_same_ids(
        texts + texts_with_special_tokens,
        lambda text: ours.encode(text, special="token"),
        lambda text: theirs.encode(text).ids,
    )


@pytest.mark.slow
def test_the_tokenizer_json_that_transformers_saves_for_gpt2_is_read(gpt2, tmp_path):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPT2TokenizerFast(vocab=str(GPT2_VOCAB), merges=str(GPT2_MERGES))
    theirs.save_pretrained(tmp_path)
    ours = read_tokenizer_json(tmp_path / "tokenizer.json")
    assert_same_tokenizer(ours, gpt2)
    assert_same_ids(
        random_texts(500, seed=7), ours.encode, partial(theirs.encode, add_special_tokens=False)
    )
