"""Vocabulary files: folders are read as transformers reads them, or refused; and written again.

Most tokenizers here have SMALL_MERGES: the bytes, of which "!" has id 0, then 256 "lo", 257 "low",
258 " low", 259 "er" and 260 "é". Then come <|endoftext|> (EOT), 261, and other added tokens.

A folder is a table {name of a file: its text, or an object for JSON}.
"""

import json
import random
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checks import refuses
from support.models import SMALL, SMALL_MERGES, random_model
from support.reference import GPT2_MERGES, GPT2_VOCAB
from support.texts import assert_same_ids, byte_level_bpe, random_texts
from support.vocabularies import BYTE_LEVEL, added_token, bpe_model, tokenizer_json, without

import tiedgpt
from tiedgpt.checkpoints import vocabulary
from tiedgpt.checkpoints.json_files import Folder
from tiedgpt.checkpoints.vocabulary import read_tokenizer
from tiedgpt.checkpoints.writing import tokenizer_files
from tiedgpt.errors import TiedGPTError, TiedGPTWarning, TokenizerError
from tiedgpt.gpt2.special_tokens import Flags
from tiedgpt.gpt2.tokenizer import EOT, Tokenizer, spelled_ids

ORDINARY = spelled_ids(SMALL_MERGES, first_id=0)
MERGES = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in SMALL_MERGES)
PAD = added_token("<pad>", 262)
USER = added_token("<user>", 263, special=False, normalized=True)  # any text may contain it


def eot() -> dict:
    return added_token(EOT, 261)


def write(folder: Path, files: dict) -> Path:
    """Write the files of a folder, with the config.json without which transformers reads none."""
    folder.mkdir(exist_ok=True)
    for name, content in {"config.json": {"model_type": "gpt2"}, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text, encoding="utf-8", newline="")
    return folder


def merges_and_vocab(**special: int) -> dict:
    """merges.txt and vocab.json of SMALL_MERGES, EOT, and other tokens of vocab.json."""
    return {"merges.txt": MERGES, "vocab.json": ORDINARY | {EOT: 261} | special}


def with_json(*added: dict, **others: object) -> dict:
    """tokenizer.json with EOT and these added tokens, and other files by their names."""
    file = tokenizer_json(
        model=bpe_model(vocab=ORDINARY),
        added_tokens=[eot(), *added],
        decoder=BYTE_LEVEL,
    )
    return {"tokenizer.json": file, **{f"{name}.json": value for name, value in others.items()}}


def changed(**changes: object) -> dict:
    """A folder whose tokenizer.json has some fields changed."""
    return {"tokenizer.json": tokenizer_json(decoder=BYTE_LEVEL) | changes}


def decoder(*added: dict) -> dict:
    """Settings (tokenizer_config.json) that describe EOT and other tokens by their ids."""
    tokens = [eot(), *added]
    return {"added_tokens_decoder": {str(token["id"]): without(token, "id") for token in tokens}}


def parts(tokenizer: Tokenizer) -> tuple[object, ...]:
    """All that a tokenizer is made of. The order of the special tokens and of the ids counts."""
    return (
        tokenizer.merges,
        list(tokenizer.ids.items()),
        list(tokenizer.special_tokens.items()),
        tokenizer.flags,
        tokenizer.prefix_space,
    )


def assert_same_tokenizer(one: Tokenizer, other: Tokenizer) -> None:
    """Both have the same tokens, ids and flags, so they give the same ids."""
    assert parts(one) == parts(other)
    assert one.encode("a lower lowé") == other.encode("a lower lowé")


def hostile_texts(tokens: Iterable[str]) -> list[str]:
    """Texts of pieces of these tokens, of words that merge, and of characters of every kind."""
    pieces = ["low", " low", "er", " ", "  ", "\n", "<", ">", "!", "p", "é"]
    pieces += random_texts(9, seed=1)
    for token in tokens:
        pieces += [token, token[:-1], token[1:]]
    rng = random.Random(0)
    return ["".join(rng.choices(pieces, k=9)) for _ in range(60)]


def assert_as_transformers(tokenizer: Tokenizer, theirs) -> None:
    """Both give the same ids, whether special tokens are read as tokens or as text.

    Both give the same text of ids, and have the same number of tokens. One thing differs: if a file
    says that the end of a document is no special token, transformers reads it as one token where
    others are read as text. Here it is text then, as everywhere.
    """
    assert len(tokenizer.ids) == len(theirs)
    texts = hostile_texts(["<pad>", "<|end|>", *tokenizer.special_tokens])
    as_text = texts
    added_tokens = theirs.added_tokens_decoder.values()
    if any(token.content == EOT and not token.special for token in added_tokens):
        as_text = [text for text in texts if EOT not in text]
        assert tokenizer.special_tokens[EOT] not in tokenizer.encode(EOT, special="text")
    for special, is_split, compared in (("token", False, texts), ("text", True, as_text)):
        ours = partial(tokenizer.encode, special=special)
        options = {"split_special_tokens": is_split, "add_special_tokens": False}
        assert_same_ids(compared, ours, partial(theirs.encode, **options))
    for text in texts:
        ids = tokenizer.encode(text, special="token")
        assert tokenizer.decode(ids) == theirs.decode(ids)
    for token_id in tokenizer.tokens:
        assert tokenizer.decode([token_id]) == theirs.decode([token_id])


# Folders that are read

SMALL_ONE = Tokenizer(SMALL_MERGES)
PLAIN = Flags(special=False, normalized=True)
WITH_PAD = Tokenizer(SMALL_MERGES, {EOT: 261, "<pad>": 262})
WITH_USER = Tokenizer(
    SMALL_MERGES,
    {EOT: 261, "<pad>": 262, "<user>": 263},
    flags={"<user>": PLAIN},
)
MASK = added_token("<mask>", 262)


def with_mask(**flags: bool) -> Tokenizer:
    return Tokenizer(SMALL_MERGES, {EOT: 261, "<mask>": 262}, flags={"<mask>": Flags(**flags)})


# The names of special tokens in transformers
NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
PREFIXED = Tokenizer(SMALL_MERGES, prefix_space=True)
PREFIX_SPACE = {"add_prefix_space": True}
ANOTHER_CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}
NO_EOT = {"vocab.json": ORDINARY}
# The ids that the file has, but no text: transformers reads these names as characters.
UNREACHABLE = {"<pad>": 262, "日": 263, "lowest": 264}
WITH_UNREACHABLE = Tokenizer(SMALL_MERGES, {EOT: 261}, ids=ORDINARY | UNREACHABLE)
SWAPPED = ORDINARY | {"low": 258, "Ġlow": 257, EOT: 261}
BY_SPELLING = {name: token_id for token_id, name in enumerate(sorted([*ORDINARY, EOT]))}
TEN_LATER = {
    name: token_id if token_id < 100 else token_id + 10
    for name, token_id in (ORDINARY | {EOT: 261}).items()
}
WITH_TEN_LATER = Tokenizer(SMALL_MERGES, {EOT: 271}, ids=TEN_LATER)
ORDINARY_BY_SPELLING = {name: token_id for token_id, name in enumerate(sorted(ORDINARY))}
WITH_A_GAP = ORDINARY | {"Ã©": 261}  # the last merge; no token has id 260
TWO_WAYS = Tokenizer([("l", "o"), ("o", "w"), ("l", "ow"), ("lo", "w")])
TWO_WAYS_TXT = "l o\no w\nl ow\nlo w\n"
NO_NAME_IS_EOT = {"unk_token": "</s>", "bos_token": "</s>", "eos_token": "</s>"}
NO_NAME_IS_OTHER = dict.fromkeys(vocabulary.ALL_NAMES, EOT)
NAMES_PAD = {"special_tokens_map.json": {"pad_token": "<pad>"}}
ENDS = Tokenizer(SMALL_MERGES, {"</s>": 262}, ids=ORDINARY | {EOT: 261})
NAMED_PAD = {"__type": "AddedToken", **without(PAD, "id")}
PADDED = {"pad_token": "<pad>", "add_bos_token": False, "sep_token": None}
FOLDERS = {
    "merges-and-vocab": (merges_and_vocab(), SMALL_ONE),
    "tokenizer-json": (with_json(), SMALL_ONE),
    "both": (with_json() | merges_and_vocab(), SMALL_ONE),
    "no-type": (changed(model=without(bpe_model(), "type")), SMALL_ONE),
    "ignore-merges-false": (changed(model=bpe_model(ignore_merges=False)), SMALL_ONE),
    "ignore-merges-null": (changed(model=bpe_model(ignore_merges=None)), SMALL_ONE),
    "dropout-0": (changed(model=bpe_model(dropout=0.0)), SMALL_ONE),
    "dropout-null": (changed(model=bpe_model(dropout=None)), SMALL_ONE),
    "prefix-null": (changed(model=bpe_model(continuing_subword_prefix=None)), SMALL_ONE),
    "prefix-empty": (changed(model=bpe_model(continuing_subword_prefix="")), SMALL_ONE),
    "suffix-null": (changed(model=bpe_model(end_of_word_suffix=None)), SMALL_ONE),
    "suffix-empty": (changed(model=bpe_model(end_of_word_suffix="")), SMALL_ONE),
    "merges-as-pairs": (changed(model=bpe_model(merges=SMALL_MERGES)), SMALL_ONE),
    "no-use-regex": (changed(pre_tokenizer=without(BYTE_LEVEL, "use_regex")), SMALL_ONE),
    "sequence-of-one": (
        changed(pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTE_LEVEL]}),
        SMALL_ONE,
    ),
    "eot-is-special": (changed(added_tokens=[{**eot(), "special": False}]), SMALL_ONE),
    "no-added-tokens": (changed(added_tokens=[]), SMALL_ONE),
    "special": (with_json(PAD), WITH_PAD),
    "plain": (with_json(PAD, USER), WITH_USER),
    "added-later": (
        with_json(PAD, USER) | merges_and_vocab(),
        WITH_USER,
    ),  # vocab.json has neither token
    "normalized": (  # it is searched for last: "!<|end|>" is "!", "<|end|>"
        with_json(added_token("<|end|>", 262), added_token("!<", 263, normalized=True)),
        Tokenizer(
            SMALL_MERGES,
            {EOT: 261, "<|end|>": 262, "!<": 263},
            flags={"!<": Flags(normalized=True)},
        ),
    ),
    "merge-is-special": (
        with_json(added_token("low", 257)),
        Tokenizer(SMALL_MERGES, {EOT: 261, "low": 257}),
    ),
    "byte-is-special": (
        with_json(added_token("!", 0)),
        Tokenizer(SMALL_MERGES, {EOT: 261, "!": 0}),
    ),
    "lstrip": (with_json({**MASK, "lstrip": True}), with_mask(lstrip=True)),
    "rstrip": (with_json({**MASK, "rstrip": True}), with_mask(rstrip=True)),
    "strip-and-normalized": (
        with_json({**MASK, "lstrip": True, "rstrip": True, "normalized": True}),
        with_mask(lstrip=True, rstrip=True, normalized=True),
    ),
    "single-word": (with_json({**MASK, "single_word": True}), with_mask(single_word=True)),
    "eot-with-flags": (
        changed(added_tokens=[{**eot(), "lstrip": True, "single_word": True}]),
        Tokenizer(SMALL_MERGES, flags={EOT: Flags(lstrip=True, single_word=True)}),
    ),
    "prefix-space": (merges_and_vocab() | {"tokenizer_config.json": PREFIX_SPACE}, PREFIXED),
    "prefix-space-in-json": (
        changed(pre_tokenizer=BYTE_LEVEL | PREFIX_SPACE) | {"tokenizer_config.json": PREFIX_SPACE},
        PREFIXED,
    ),
    "prefix-space-of-another-class": (
        changed(pre_tokenizer=BYTE_LEVEL | PREFIX_SPACE) | {"tokenizer_config.json": ANOTHER_CLASS},
        PREFIXED,
    ),
    # transformers gives <|endoftext|> the next id, unless the files name other tokens.
    "no-eot": (merges_and_vocab() | NO_EOT, SMALL_ONE),
    "no-eot-in-json": (changed(added_tokens=[], model=bpe_model(vocab=ORDINARY)), SMALL_ONE),
    "no-eot-but-pad": (
        merges_and_vocab()
        | {
            "vocab.json": ORDINARY | {"<pad>": 261},
            "tokenizer_config.json": {"pad_token": "<pad>"},
        },
        Tokenizer(SMALL_MERGES, {"<pad>": 261, EOT: 262}),
    ),
    "no-eot-of-another-class": (
        changed(added_tokens=[], model=bpe_model(vocab=ORDINARY))
        | {"tokenizer_config.json": ANOTHER_CLASS},
        Tokenizer(SMALL_MERGES, {}),
    ),
    "eot-is-not-added-by-another-class": (
        changed(added_tokens=[]) | {"tokenizer_config.json": ANOTHER_CLASS},
        Tokenizer(SMALL_MERGES, {}, ids=ORDINARY | {EOT: 261}),
    ),
    "eot-is-named-in-another-class": (
        changed(added_tokens=[]) | {"tokenizer_config.json": ANOTHER_CLASS | {"eos_token": EOT}},
        SMALL_ONE,
    ),
    "eot-is-named-in-another-class-and-is-no-token-yet": (
        changed(added_tokens=[], model=bpe_model(vocab=ORDINARY))
        | {"tokenizer_config.json": ANOTHER_CLASS | {"eos_token": EOT}},
        SMALL_ONE,
    ),
    "another-token-is-named": (
        merges_and_vocab(**{"</s>": 262}) | {"tokenizer_config.json": NO_NAME_IS_EOT},
        ENDS,
    ),
    "another-token-is-named-in-the-map": (
        merges_and_vocab(**{"</s>": 262}) | {"special_tokens_map.json": NO_NAME_IS_EOT},
        ENDS,
    ),
    "another-eos-only": (
        merges_and_vocab(**{"</s>": 262}) | {"tokenizer_config.json": {"eos_token": "</s>"}},
        Tokenizer(SMALL_MERGES, {EOT: 261, "</s>": 262}),
    ),
    # Names that no merge makes
    "unreachable": (merges_and_vocab(**UNREACHABLE), WITH_UNREACHABLE),
    "unreachable-in-json": (
        changed(model=bpe_model(vocab=ORDINARY | {EOT: 261} | UNREACHABLE)),
        WITH_UNREACHABLE,
    ),
    # Ids that do not follow from the merges
    "swapped": (
        merges_and_vocab() | {"vocab.json": SWAPPED},
        Tokenizer(SMALL_MERGES, {EOT: 261}, ids=SWAPPED),
    ),
    "sorted-by-spelling": (
        merges_and_vocab() | {"vocab.json": BY_SPELLING},
        Tokenizer(SMALL_MERGES, {EOT: BY_SPELLING[EOT]}, ids=BY_SPELLING),
    ),
    "sorted-by-spelling-in-json": (
        changed(
            model=bpe_model(vocab=BY_SPELLING), added_tokens=[added_token(EOT, BY_SPELLING[EOT])]
        ),
        Tokenizer(SMALL_MERGES, {EOT: BY_SPELLING[EOT]}, ids=BY_SPELLING),
    ),
    "ten-ids-of-no-token": (merges_and_vocab() | {"vocab.json": TEN_LATER}, WITH_TEN_LATER),
    "ten-ids-of-no-token-in-json": (
        changed(model=bpe_model(vocab=TEN_LATER), added_tokens=[added_token(EOT, 271)]),
        WITH_TEN_LATER,
    ),
    "eot-in-a-gap": (
        merges_and_vocab() | {"vocab.json": ORDINARY | {"extra": 263}},
        Tokenizer(SMALL_MERGES, {EOT: 262}, ids=ORDINARY | {"extra": 263}),
    ),
    "gap": (
        merges_and_vocab(extra=263),
        Tokenizer(SMALL_MERGES, {EOT: 261}, ids=ORDINARY | {"extra": 263}),
    ),
    "two-merges-make-one-token": (
        merges_and_vocab() | {"merges.txt": TWO_WAYS_TXT, "vocab.json": TWO_WAYS.ids},
        TWO_WAYS,
    ),
    # The other files say what the vocabulary says.
    "added-tokens": (with_json(PAD, added_tokens={"<pad>": 262}), WITH_PAD),
    "added-tokens-of-eot": (merges_and_vocab() | {"added_tokens.json": {EOT: 261}}, SMALL_ONE),
    "decoder": (with_json(PAD, tokenizer_config=decoder(PAD)), WITH_PAD),
    "one-token-alone-may-be-normalized": (
        merges_and_vocab() | {"tokenizer_config.json": decoder({**eot(), "normalized": True})},
        SMALL_ONE,
    ),
    "named": (with_json(PAD, tokenizer_config=PADDED), WITH_PAD),
    "named-in-the-map": (with_json(PAD, special_tokens_map=PADDED), WITH_PAD),
    "named-as-object": (
        with_json(PAD, special_tokens_map={"pad_token": NAMED_PAD}),
        WITH_PAD,
    ),
    "normalized-only-as-named": (
        with_json(PAD, tokenizer_config={"pad_token": {**NAMED_PAD, "normalized": True}}),
        WITH_PAD,
    ),
    "named-in-vocab-json": (
        merges_and_vocab(**{"<pad>": 262}) | {"special_tokens_map.json": {"pad_token": "<pad>"}},
        WITH_PAD,
    ),
    "extra": (
        with_json(PAD, USER, tokenizer_config={"extra_special_tokens": ["<pad>", "<user>"]}),
        WITH_USER,
    ),
    "extra-of-vocab-json": (
        merges_and_vocab(**{"<pad>": 262})
        | {"tokenizer_config.json": {"additional_special_tokens": ["<pad>"]}},
        WITH_PAD,
    ),
    "extra-in-transformers-4": (
        with_json(PAD, tokenizer_config={"additional_special_tokens": ["<pad>"]}),
        WITH_PAD,
    ),
    "extra-by-names": (
        with_json(PAD, tokenizer_config={"extra_special_tokens": {"image_token": "<pad>"}}),
        WITH_PAD,
    ),
    "another-class": (
        with_json(PAD, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast"}),
        WITH_PAD,
    ),
    "longformer": (
        with_json(tokenizer_config={"tokenizer_class": "LongformerTokenizer"} | NO_NAME_IS_OTHER),
        SMALL_ONE,
    ),
    "roberta": (
        with_json(tokenizer_config={"tokenizer_class": "RobertaTokenizerFast"} | NO_NAME_IS_OTHER),
        SMALL_ONE,
    ),
    "class-of-the-settings-before-that-of-config-json": (
        with_json(PAD, tokenizer_config=ANOTHER_CLASS)
        | {"config.json": {"model_type": "gpt2", "tokenizer_class": "RobertaTokenizer"}},
        WITH_PAD,
    ),
    "class-of-config-json": (
        changed(pre_tokenizer=BYTE_LEVEL | PREFIX_SPACE)
        | {"config.json": {"model_type": "gpt2"} | ANOTHER_CLASS},
        PREFIXED,
    ),
    "class-of-config-json-beside-null": (
        changed(pre_tokenizer=BYTE_LEVEL | PREFIX_SPACE)
        | {"tokenizer_config.json": {"tokenizer_class": None}}
        | {"config.json": {"model_type": "gpt2"} | ANOTHER_CLASS},
        PREFIXED,
    ),
    "eot-is-special-in-the-settings": (
        with_json(tokenizer_config=decoder({**eot(), "special": False})),
        SMALL_ONE,
    ),
    # merges.txt and vocab.json, and tokens that the other files add
    "added-tokens-to-the-pair": (
        merges_and_vocab() | {"added_tokens.json": {"<user>": 263, "<pad>": 262}} | NAMES_PAD,
        WITH_USER,
    ),
    "added-tokens-of-vocab-json": (
        merges_and_vocab(**{"<user>": 262}) | {"added_tokens.json": {"<user>": 262}},
        Tokenizer(SMALL_MERGES, {EOT: 261, "<user>": 262}, flags={"<user>": PLAIN}),
    ),
    "extra-in-the-map-of-transformers-4": (  # which is no special token for transformers 5
        merges_and_vocab()
        | {"added_tokens.json": {"<user>": 262}}
        | {"special_tokens_map.json": {"additional_special_tokens": ["<user>"]}},
        Tokenizer(SMALL_MERGES, {EOT: 261, "<user>": 262}, flags={"<user>": PLAIN}),
    ),
    "decoder-of-the-pair": (
        merges_and_vocab() | {"tokenizer_config.json": decoder(PAD, USER) | {"pad_token": "<pad>"}},
        WITH_USER,
    ),
    # Files that transformers does not read
    "added-tokens-beside-a-decoder": (
        merges_and_vocab()
        | {"tokenizer_config.json": decoder(PAD)}
        | {"added_tokens.json": {"<user>": 262}}
        | {"special_tokens_map.json": {"pad_token": "<x>"}},
        WITH_PAD,
    ),
    "all-files-of-a-slow-tokenizer": (
        merges_and_vocab()
        | {"tokenizer_config.json": decoder(PAD) | {"tokenizer_class": "GPT2Tokenizer"}}
        | {"added_tokens.json": {"<pad>": 262}}
        | NAMES_PAD,
        WITH_PAD,
    ),
}


# A pair of files, added_tokens.json, and a third file that says which of its tokens is special
for file in ("special_tokens_map.json", "tokenizer_config.json"):
    for name in (*NAMED, "extra_special_tokens"):
        says = {name: "<pad>" if name in NAMED else ["<pad>"]}
        files = merges_and_vocab() | {"added_tokens.json": {"<pad>": 262}, file: says}
        FOLDERS[f"{name}-of-{file}"] = (files, WITH_PAD)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_read(tmp_path, name):
    """Others read vocab.json and the settings, too: they are as they were."""
    files, expected = FOLDERS[name]
    folder = Folder(write(tmp_path, files))
    assert_same_tokenizer(read_tokenizer(folder), expected)
    for file in folder.objects.keys() & files.keys() - {"tokenizer.json"}:
        path = tmp_path / file
        assert folder.objects[file] == json.loads(path.read_text(encoding="utf-8")), file


@pytest.mark.parametrize("name", FOLDERS)
def test_transformers_reads_the_same_ids(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    files, tokenizer = FOLDERS[name]
    theirs = transformers.AutoTokenizer.from_pretrained(write(tmp_path, files))
    assert_as_transformers(tokenizer, theirs)


@st.composite
def added_tokens(draw) -> tuple[list[dict], dict[str, int]]:
    """Up to four added tokens, and a vocabulary with none, some or all of them."""
    texts = [EOT, "<pad>", "<p", "p>x", "!<", "<user>"]
    added: list[dict] = []
    ordinary = draw(st.sampled_from(5 * [ORDINARY] + [WITH_A_GAP, ORDINARY_BY_SPELLING]))
    vocab = dict(ordinary)  # with some of the added tokens
    for text in draw(st.lists(st.sampled_from(texts), max_size=4, unique=True)):
        flags = {flag: draw(st.booleans()) for flag in asdict(Flags())}
        flags["special"] |= text == EOT  # for tiedgpt it is special, whatever a file says
        token = added_token(text, 261 + len(added), **flags)
        if len(vocab) == token["id"] and draw(st.booleans()):
            if ordinary == WITH_A_GAP:
                token["id"] += 1
            vocab[text] = token["id"]
        added.append(token)
    return added, vocab


@st.composite
def folders(draw) -> dict:
    """A folder with up to four added tokens. Its files may say different things of them."""
    added, vocab = draw(added_tokens())
    prefix_space = draw(st.sampled_from([{}, {"add_prefix_space": False}, PREFIX_SPACE]))

    def mentioned() -> dict:
        """One of the added tokens, perhaps with another flag, text or id."""
        wrong = st.sampled_from(
            [{"special": False}, {"normalized": True}, {"content": "<s>"}, {"id": 262}]
        )
        token = draw(st.sampled_from([*added, eot()])) | draw(st.just({}) | wrong)
        return token | {"special": token["special"] or token["content"] == EOT}

    def named() -> dict:
        """Settings that name tokens, by their texts or by objects, or have an extra one."""
        name = draw(st.sampled_from(["pad_token", "eos_token", "image_token"]))
        token = without(mentioned(), "id") | {"__type": "AddedToken"}
        text = token["content"]
        extra = draw(st.sampled_from([[text], {"image_token": text}]))
        all_three = dict.fromkeys(vocabulary.NAMED_AS_EOT, text)
        fields = [{}, {name: text}, {name: token}, {"extra_special_tokens": extra}, all_three]
        return draw(st.sampled_from(fields))

    files: dict = {"merges.txt": MERGES, "vocab.json": vocab}
    classes = [*vocabulary.GPT2_CLASSES]
    if draw(st.booleans()):
        document = tokenizer_json(
            model=bpe_model(vocab=vocab),
            added_tokens=[token for token in added if draw(st.integers(0, 4))],
            pre_tokenizer=BYTE_LEVEL | draw(st.just(prefix_space) | st.just(PREFIX_SPACE)),
            decoder=BYTE_LEVEL,
        )
        files = draw(st.just({}) | st.just(files)) | {"tokenizer.json": document}
        classes += ["PreTrainedTokenizerFast", "TokenizersBackend"]  # which read no other file
        classes += ["RobertaTokenizer", "BartTokenizerFast"]
    tokenizer_class = draw(st.sampled_from(classes))
    settings = named() | prefix_space
    if tokenizer_class in vocabulary.ROBERTA_CLASSES:
        settings = dict.fromkeys(vocabulary.ALL_NAMES, EOT) | settings
    if tokenizer_class is not None:
        settings["tokenizer_class"] = tokenizer_class
    if draw(st.booleans()):
        tokens = draw(st.sampled_from([added, added[:-1], [*added, mentioned()]]))
        by_id = {str(token["id"]): without(token, "id") for token in tokens}
        settings["added_tokens_decoder"] = by_id
    files["tokenizer_config.json"] = settings
    files["special_tokens_map.json"] = named()
    if draw(st.booleans()):
        token = mentioned()
        files["added_tokens.json"] = {token["content"]: token["id"]}
    return files


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(files=folders())
def test_any_folder_is_read_as_transformers_reads_it_or_refused(tmp_path_factory, files):
    transformers = pytest.importorskip("transformers")
    folder = write(tmp_path_factory.mktemp("folder"), files)
    try:
        tokenizer = read_tokenizer(folder)
    except TokenizerError:
        return
    assert_as_transformers(tokenizer, transformers.AutoTokenizer.from_pretrained(folder))


def test_merges_that_were_removed_in_the_middle_have_a_warning(tmp_path):
    """As somebody does with those of digits, so that each digit is a token. The ids stay."""
    transformers = pytest.importorskip("transformers")
    files = merges_and_vocab() | {"merges.txt": MERGES.replace("Ġ low\n", "")}
    folder = write(tmp_path, files)
    with pytest.warns(TiedGPTWarning, match="no merge makes .*, such as 'Ġlow': no text has"):
        tokenizer = read_tokenizer(folder)
    assert tokenizer.encode(" low") == [220, 257]
    assert_as_transformers(tokenizer, transformers.AutoTokenizer.from_pretrained(folder))


# Folders that are refused: (the files, words of the message: the file, the token or the field)


def with_model(**changes: object) -> dict:
    """A folder whose tokenizer.json has some fields of its model changed."""
    return changed(model=bpe_model(**changes))


def pre_tokenized(**changes: object) -> dict:
    """A folder whose tokenizer.json has some fields of its pre_tokenizer changed."""
    return changed(pre_tokenizer=BYTE_LEVEL | changes)


def json_with(*added: object) -> dict:
    """A folder whose tokenizer.json has these added tokens. EOT is in its model.vocab, too."""
    return changed(added_tokens=list(added))


FIRST_MERGES = {"merges.txt": "l o\nlo w\n"}  # of five
REFUSED = {
    # Settings that change ids
    "normalizer": (changed(normalizer={"type": "NFC"}), "normalizer"),
    "type": (with_model(type="##"), "model.type"),
    "prefix": (with_model(continuing_subword_prefix="##"), "continuing_subword_prefix"),
    "suffix": (with_model(end_of_word_suffix="##"), "end_of_word_suffix"),
    "ignore-merges": (with_model(ignore_merges=True), "ignore_merges"),
    "no-pre-tokenizer": (changed(pre_tokenizer=None), "pre_tokenizer"),
    "pre-tokenizer": (pre_tokenized(type="##"), "pre_tokenizer.type"),
    "no-word-of-it": (pre_tokenized(add_prefix_space=None), "add_prefix_space"),
    "use-regex": (pre_tokenized(use_regex=False), "use_regex"),
    "sequence-of-two": (
        changed(pre_tokenizer={"type": "Sequence", "pretokenizers": [{}, BYTE_LEVEL]}),
        "pre_tokenizer.type",
    ),
    "prefix-space-in-settings": (
        with_json(tokenizer_config={"add_prefix_space": True}),
        "tokenizer_config.json",
        "add_prefix_space",
    ),
    "prefix-space-of-another-class": (
        with_json(tokenizer_config=ANOTHER_CLASS | PREFIX_SPACE),
        "tokenizer_config.json",
        "add_prefix_space",
    ),
    "another-class": (
        merges_and_vocab() | {"tokenizer_config.json": {"tokenizer_class": "RobertaTokenizer"}},
        "tokenizer_class",
        "RobertaTokenizer",
    ),
    "another-class-in-config-json": (
        merges_and_vocab()
        | {"config.json": {"model_type": "gpt2", "tokenizer_class": "RobertaTokenizer"}},
        "tokenizer_class",
        "RobertaTokenizer",
    ),
    "another-class-that-cuts-otherwise": (
        with_json(tokenizer_config={"tokenizer_class": "Qwen2Tokenizer"} | NO_NAME_IS_OTHER),
        "tokenizer_class",
        "Qwen2Tokenizer",
    ),
    "another-class-that-adds-tokens": (
        with_json(tokenizer_config={"tokenizer_class": "RobertaTokenizer", "pad_token": EOT}),
        "tokenizer_class",
        "RobertaTokenizer",
    ),
    "another-class-that-adds-one-token": (
        with_json(
            tokenizer_config={"tokenizer_class": "RobertaTokenizer"}
            | without(NO_NAME_IS_OTHER, "mask_token")
        ),
        "tokenizer_class",
        "RobertaTokenizer",
    ),
    "prefix-space-of-roberta": (
        changed(pre_tokenizer=BYTE_LEVEL | PREFIX_SPACE)
        | {"tokenizer_config.json": {"tokenizer_class": "LEDTokenizer"} | NO_NAME_IS_OTHER},
        "add_prefix_space",
    ),
    # Files that are malformed
    "no-model": ({"tokenizer.json": without(changed()["tokenizer.json"], "model")}, "model"),
    "no-merges": (changed(model=without(bpe_model(), "merges")), "model.merges"),
    "added-by-name": (changed(added_tokens={"a": 1}), "added_tokens"),
    "merge-with-a-list": (with_model(merges=[["l", []]]), "merge 1"),
    "merge-by-name": (with_model(merges=[{"l": "o", "a": "b"}]), "merge 1"),
    "empty-line": (merges_and_vocab() | {"merges.txt": "l o\n\nlo w\n"}, "merges.txt, line 2"),
    "two-spaces": (merges_and_vocab() | {"merges.txt": "l  o\n"}, "merges.txt, line 1"),
    "version-later": (
        merges_and_vocab() | {"merges.txt": "l o\n#version: 0.2 x\n"},
        "merges.txt, line 2",
    ),
    "not-json": (merges_and_vocab() | {"vocab.json": "{"}, "vocab.json"),
    "a-list": (merges_and_vocab() | {"vocab.json": [0, 1]}, "vocab.json"),
    "token-twice": (merges_and_vocab() | {"vocab.json": '{"!": 0, "!": 0}'}, "vocab.json", "'!'"),
    "field-twice": (
        {"tokenizer.json": json.dumps(changed()["tokenizer.json"])[:-1] + ', "model": {}}'},
        "tokenizer.json",
        "'model'",
    ),
    # Merges and ids that contradict each other
    "unknown-right": (merges_and_vocab() | {"merges.txt": "l o\nlo wer\n"}, "merge 2", "'wer'"),
    "too-early": (merges_and_vocab() | {"merges.txt": "lo w\nl o\n"}, "merge 1", "'lo'"),
    "merge-twice": (merges_and_vocab() | {"merges.txt": "l o\nl o\n"}, "merge 2", "l o"),
    "merge-of-equals-twice": ({"merges.txt": "l l\nl l\n"}, "merge 2", "l l"),
    "merge-without-id": (merges_and_vocab() | {"merges.txt": f"{MERGES}a b\n"}, "merge 6", "a b"),
    "merges-missing": (with_model(merges=["l o", "lo w"]), "tokenizer.json", "Ġlow"),
    "id-as-text": (merges_and_vocab(lo="256"), "vocab.json", "'lo'"),
    "id-true": (merges_and_vocab(**{'"': True}), "vocab.json", "True"),
    "no-id": (merges_and_vocab() | {"vocab.json": without(ORDINARY, "Ġ")}, "vocab.json", "'Ġ'"),
    "large": (merges_and_vocab(**{"!": 10**30}), "vocab.json", "10"),
    "id-twice": (merges_and_vocab(extra=261), "vocab.json", "extra"),
    # transformers gives <|endoftext|> the id 261, which "é" has.
    "ids-from-1": (
        merges_and_vocab() | {"vocab.json": spelled_ids(SMALL_MERGES, 1)},
        "vocab.json",
        "261",
    ),
    "space-in-added": (json_with(eot(), added_token("Ġx", 262)), "tokenizer.json", "Ġx"),
    "added-without-id": (json_with(without(eot(), "id")), "tokenizer.json", EOT),
    "added-merge": (json_with(added_token("low", 256)), "'low'", "256", "257"),
    # transformers gives <pad> the id 262, which another token has.
    "added-after-ten-ids-of-no-token": (
        changed(
            model=bpe_model(vocab=TEN_LATER),
            added_tokens=[added_token(EOT, 271), added_token("<pad>", 272)],
        ),
        "<pad>",
        "262",
    ),
    "added-gap": (json_with(eot(), added_token("<x>", 263)), "<x>", "263"),
    # tokenizer.json beside merges.txt and vocab.json
    "other-order": (
        with_json() | {"merges.txt": MERGES.replace("e r\nÃ ©", "Ã ©\ne r")},
        "merges.txt",
    ),
    "other-id-of-added": (
        with_json(PAD) | merges_and_vocab(**{"<pad>": 263}),
        "vocab.json",
        "<pad>",
    ),
    # Other files with another id
    "added-tokens-json": (
        with_json(PAD, added_tokens={"<pad>": 263}),
        "added_tokens.json",
        "<pad>",
    ),
    "decoder": (
        with_json(PAD, tokenizer_config=decoder({**PAD, "id": 263})),
        "tokenizer_config.json",
        "<pad>",
    ),
    "added-tokens-of-the-pair": (
        merges_and_vocab() | {"added_tokens.json": {"<pad>": 263}},
        "added_tokens.json",
        "<pad>",
    ),
    "id-of-an-added-token-as-text": (
        merges_and_vocab() | {"added_tokens.json": {"<pad>": "262"}},
        "added_tokens.json",
        "<pad>",
    ),
    "more-digits-than-python-reads": (
        merges_and_vocab() | {"tokenizer_config.json": decoder({**PAD, "id": "9" * 5000})},
        "tokenizer_config.json",
        "<pad>",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_is_refused(tmp_path, name):
    files, *words = REFUSED[name]
    message = refuses(".", read_tokenizer, write(tmp_path, files), error=TiedGPTError)
    assert f"{tmp_path}" in message
    for word in words:
        assert word in message


MEND = (
    "load the folder once with transformers' AutoTokenizer and write it with save_pretrained, "
    "which puts all tokens into tokenizer.json"
)
OTHER_CLASS = "which may add tokens, or cut a text in another way than GPT-2"
WHICH_IS_WRONG = "tokenizer.json beside it; remove the file that is wrong"
ROBERTA_SETTINGS = {"tokenizer_config.json": {"tokenizer_class": "RobertaTokenizer"}}
MESSAGES = {  # a folder, and the whole message, in which the folder is FOLDER
    "nothing": (
        {},
        "FOLDER has no tokenizer: expected merges.txt and vocab.json, or tokenizer.json",
    ),
    "class-of-the-pair": (
        merges_and_vocab() | ROBERTA_SETTINGS,
        f"FOLDER: tokenizer_class is 'RobertaTokenizer', {OTHER_CLASS}; {MEND}",
    ),
    "class-of-the-pair-with-all-names": (
        merges_and_vocab()
        | {"tokenizer_config.json": {"tokenizer_class": "RobertaTokenizer"} | NO_NAME_IS_OTHER},
        f"FOLDER: tokenizer_class is 'RobertaTokenizer', {OTHER_CLASS}; {MEND}",
    ),
    "class-beside-json": (
        with_json() | ROBERTA_SETTINGS,
        f"FOLDER: tokenizer_class is 'RobertaTokenizer', {OTHER_CLASS}; if tokenizer.json alone "
        'has the right ids, write "tokenizer_class": "PreTrainedTokenizerFast" into '
        "tokenizer_config.json",
    ),
    "special-tokens-as-text": (
        with_json(tokenizer_config={"split_special_tokens": True}),
        "FOLDER/tokenizer_config.json: split_special_tokens is set, expected false, as in GPT-2",
    ),
    "no-vocab": (
        changed(model=without(bpe_model(), "vocab")),
        "FOLDER/tokenizer.json: expected model.vocab and model.merges",
    ),
    "prefix-space": (
        pre_tokenized(add_prefix_space=True),
        "FOLDER/tokenizer.json: add_prefix_space is True, but not in tokenizer_config.json beside "
        "it, which transformers reads; write the right value into both files",
    ),
    "dropout": (
        with_model(dropout=0.1),
        "FOLDER/tokenizer.json: model.dropout is 0.1, expected None, as in GPT-2",
    ),
    "sequence-of-two": (
        changed(pre_tokenizer={"type": "Sequence", "pretokenizers": [BYTE_LEVEL, {}]}),
        "FOLDER/tokenizer.json: pre_tokenizer.type is 'Sequence', expected 'ByteLevel', as in "
        "GPT-2",
    ),
    "added-text": (
        json_with(EOT),
        "FOLDER/tokenizer.json: added_tokens: expected content and id, got '<|endoftext|>'",
    ),
    "added-id-true": (
        json_with({"content": "<s>", "id": True}),
        "FOLDER/tokenizer.json: added_tokens: expected content and id, got {'content': '<s>', "
        "'id': True}",
    ),
    "added-id-of-another": (
        json_with(added_token(EOT, 262)),
        "FOLDER/tokenizer.json: added token '<|endoftext|>' has id 262, expected 261",
    ),
    "added-to-the-pair": (
        merges_and_vocab() | {"added_tokens.json": {"<pad>": 263}} | NAMES_PAD,
        "FOLDER/added_tokens.json: added token '<pad>' has id 263, expected 262",
    ),
    "line-of-one": (
        merges_and_vocab() | {"merges.txt": "#version: 0.2\nl o\nlow\n"},
        "FOLDER/merges.txt, line 3: expected two tokens, got 'low'",
    ),
    "first-line-empty": (
        {"merges.txt": "\nl o\n"},
        "FOLDER/merges.txt, line 1: expected two tokens, got ''",
    ),
    "no-left-token": (
        {"merges.txt": "l o\n w\n"},
        "FOLDER/merges.txt, line 2: expected two tokens, got ' w'",
    ),
    "no-right-token": (
        {"merges.txt": "l o\nw \n"},
        "FOLDER/merges.txt, line 2: expected two tokens, got 'w '",
    ),
    "merge-of-one": (
        with_model(merges=["l o", "low"]),
        "FOLDER/tokenizer.json, merge 2: expected two tokens, got 'low'",
    ),
    "flag-as-text": (
        json_with({**eot(), "lstrip": "no"}),
        "FOLDER/tokenizer.json: lstrip of token '<|endoftext|>' is 'no', expected true or false",
    ),
    "lines-missing": (
        merges_and_vocab() | FIRST_MERGES,
        "FOLDER/merges.txt with vocab.json: token 'Ġlow' has a \"Ġ\", a space in ordinary tokens, "
        "but no merge makes it",
    ),
    "lines-missing-in-the-middle-and-at-the-end": (
        {
            "merges.txt": "e r\n",
            "vocab.json": spelled_ids([("Ġ", "l"), ("e", "r"), ("Ġ", "x")]) | {EOT: 259},
        },
        "FOLDER/merges.txt with vocab.json: token 'Ġx' has a \"Ġ\", a space in ordinary tokens, "
        "but no merge makes it",
    ),
    "an-added-token-with-a-space": (
        changed(
            model=bpe_model(
                merges=["e r"], vocab=spelled_ids([("Ġ", "x"), ("e", "r")]) | {EOT: 258}
            ),
            added_tokens=[added_token("Ġx", 256), added_token(EOT, 258)],
        ),
        "FOLDER/tokenizer.json: token 'Ġx' has a \"Ġ\", a space in ordinary tokens, but no merge "
        "makes it",
    ),
    "other-merges": (
        with_json() | FIRST_MERGES,
        f"FOLDER/merges.txt: its merges are not those of {WHICH_IS_WRONG}",
    ),
    "other-merges-of-openai": (
        with_json() | {"vocab.bpe": "l o\nlo w\n"},
        f"FOLDER/vocab.bpe: its merges are not those of {WHICH_IS_WRONG}",
    ),
    "other-ids": (
        with_json() | merges_and_vocab(low=258, Ġlow=257),
        f"FOLDER/vocab.json: token 'low' has id 258, but 257 in {WHICH_IS_WRONG}",
    ),
    "other-ids-of-openai": (
        with_json() | {"encoder.json": ORDINARY | {EOT: 262}},
        f"FOLDER/encoder.json: token '<|endoftext|>' has id 262, but 261 in {WHICH_IS_WRONG}",
    ),
    "unknown-token": (
        with_json() | merges_and_vocab(**{"<pad>": 262}),
        f"FOLDER/vocab.json: token '<pad>' has id 262, but none in {WHICH_IS_WRONG}",
    ),
    "named": (
        merges_and_vocab() | NAMES_PAD,
        "FOLDER/special_tokens_map.json: token '<pad>' is not in the vocabulary, or another file "
        f"differs from {{'content': '<pad>', 'special': True}}; {MEND}",
    ),
    "the-last-merge-is-named": (
        merges_and_vocab() | {"special_tokens_map.json": {"pad_token": "Ã©"}},
        "FOLDER/special_tokens_map.json: token 'Ã©' is not in the vocabulary, or another file "
        f"differs from {{'content': 'Ã©', 'special': True}}; {MEND}",
    ),
    "decoder-lacks-the-first": (
        with_json(PAD, tokenizer_config={"added_tokens_decoder": {"262": without(PAD, "id")}}),
        "FOLDER/tokenizer_config.json: added_tokens_decoder lacks token '<|endoftext|>' of the "
        f"vocabulary; {MEND}",
    ),
}


def test_the_whole_message_of_each_folder_that_is_refused(tmp_path):
    for name, (files, expected) in MESSAGES.items():
        folder = write(tmp_path / name, files)
        message = refuses(".", read_tokenizer, folder, error=TiedGPTError)
        assert message == expected.replace("FOLDER", f"{folder}"), name


def test_an_error_of_the_tokenizer_names_the_files(tmp_path):
    folder = write(tmp_path, {"merges.txt": "l o\nlo wer\n"})
    for files, name in (
        ({}, "merges.txt: "),
        ({"vocab.json": ORDINARY}, "merges.txt with vocab.json: "),
        (with_model(merges=["l o", "lo wer"]), "tokenizer.json: "),
    ):
        message = refuses("'wer'", read_tokenizer, write(folder, files), error=TokenizerError)
        assert message.startswith(f"{folder / name}")


@pytest.mark.parametrize(
    "name", ["vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model"]
)
def test_a_folder_of_another_tokenizer_is_refused_as_such(tmp_path, name):
    (tmp_path / name).touch()
    assert refuses(".", read_tokenizer, tmp_path) == (
        f"{tmp_path} has no tokenizer: expected merges.txt and vocab.json, or tokenizer.json "
        f"({name} is of another tokenizer, which is not read: encode with transformers, and pass "
        "ids)"
    )


# Settings that change nothing: the files, and the tokenizer
NO_CHANGE = {
    "no-special-tokens-as-text": (
        with_json(tokenizer_config={"split_special_tokens": False}),
        SMALL_ONE,
    ),
    "no-prefix-space": (
        merges_and_vocab() | {"tokenizer_config.json": {"add_prefix_space": False}},
        SMALL_ONE,
    ),
    "no-added-tokens": (changed(added_tokens=None), SMALL_ONE),
    "no-token-at-the-ends": (
        with_json(tokenizer_config={"add_bos_token": False, "add_eos_token": None}),
        SMALL_ONE,
    ),
    "no-extra-tokens": (
        with_json(tokenizer_config={"extra_special_tokens": None, "additional_special_tokens": []}),
        SMALL_ONE,
    ),
    "a-template-without-tokens": (
        changed(post_processor={"type": "TemplateProcessing", "special_tokens": {}}),
        SMALL_ONE,
    ),
    "a-sequence-without-tokens": (
        changed(post_processor={"type": "Sequence", "processors": [{"type": "ByteLevel"}]}),
        SMALL_ONE,
    ),
    "an-extra-token-by-itself": (
        with_json(PAD, tokenizer_config={"extra_special_tokens": "<pad>"}),
        WITH_PAD,
    ),
    "extra-tokens-of-a-model": (
        with_json(PAD, tokenizer_config={"model_specific_special_tokens": {"image": "<pad>"}}),
        WITH_PAD,
    ),
    "extra-tokens-of-the-pair": (
        merges_and_vocab()
        | {"added_tokens.json": {"<pad>": 262}}
        | {"tokenizer_config.json": {"additional_special_tokens": ["<pad>"]}},
        WITH_PAD,
    ),
    "a-decoder-without-flags": (
        merges_and_vocab(**{"<pad>": 262})
        | {"tokenizer_config.json": decoder({"id": 262, "content": "<user>"})}
        | {"vocab.json": ORDINARY | {EOT: 261, "<user>": 262}},
        Tokenizer(SMALL_MERGES, {EOT: 261, "<user>": 262}, flags={"<user>": PLAIN}),
    ),
    "a-decoder-with-one-flag": (
        merges_and_vocab()
        | {"tokenizer_config.json": decoder({"id": 262, "content": "<pad>", "special": True})},
        WITH_PAD,
    ),
    "an-id-of-six-digits": (
        merges_and_vocab(**{"<pad>": 100_000})
        | {"tokenizer_config.json": decoder({**PAD, "id": 100_000})},
        Tokenizer(
            SMALL_MERGES, {EOT: 261, "<pad>": 100_000}, ids=ORDINARY | {EOT: 261, "<pad>": 100_000}
        ),
    ),
}


def test_settings_that_say_what_is_so_without_them(tmp_path):
    for name, (files, expected) in NO_CHANGE.items():
        tokenizer = read_tokenizer(write(tmp_path / name, files))
        assert parts(tokenizer) == parts(expected), name


OF_ROBERTA = ("RobertaTokenizer", "BartTokenizerFast", "LEDTokenizer")


CLASSES = [
    "GPT2Tokenizer",
    "GPT2TokenizerFast",
    "PreTrainedTokenizer",
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
    *OF_ROBERTA,
]


def test_each_class_that_reads_a_tokenizer_json_as_it_is(tmp_path):
    """The file lacks <|endoftext|>, which GPT-2's own classes add. RoBERTa's need it there."""
    for name in CLASSES:
        files = changed(added_tokens=[], model=bpe_model(vocab=ORDINARY))
        settings = {"tokenizer_class": name}
        if name in OF_ROBERTA:
            files, settings = with_json(), settings | NO_NAME_IS_OTHER
        folder = write(tmp_path, files | {"tokenizer_config.json": settings})
        has_eot = name.startswith("GPT2") or name in OF_ROBERTA
        assert read_tokenizer(folder).special_tokens == ({EOT: 261} if has_eot else {}), name


def test_the_class_in_a_config_that_is_given_counts(tmp_path):
    """The config of a model holds the fields of config.json that are not its own."""
    config = replace(SMALL, others={"tokenizer_class": "RobertaTokenizer"}, vocab_size=262)
    write(tmp_path, merges_and_vocab())
    message = "tokenizer_class is 'RobertaTokenizer'"
    refuses(message, read_tokenizer, tmp_path, config, error=TokenizerError)


def test_a_warning_of_merges_that_were_removed_says_how_many(tmp_path):
    """It names the line that called read_tokenizer."""
    files = merges_and_vocab() | {"merges.txt": "e r\nÃ ©\n"}
    files["vocab.json"] = spelled_ids([("Ġ", "l"), ("Ġ", "x"), ("e", "r"), ("Ã", "©")]) | {EOT: 260}
    folder = write(tmp_path, files)
    with pytest.warns(TiedGPTWarning) as caught:
        read_tokenizer(folder)
    assert [str(warning.message) for warning in caught] == [
        f"{folder / 'merges.txt'} with vocab.json: no merge makes 2 tokens with a space, such as "
        "'Ġl': no text has them"
    ]
    assert [warning.filename for warning in caught] == [__file__]


def test_a_file_that_is_not_utf_8_is_refused(tmp_path):
    write(tmp_path, merges_and_vocab())
    (tmp_path / "merges.txt").write_bytes(b"#version: 0.2\nl o\nl \xff\n")
    refuses(r"merges\.txt, line 3: not UTF-8$", read_tokenizer, tmp_path)


# Files beside the vocabulary that name another token: transformers mends the folder

ELSEWHERE = {
    "added-tokens-beside-json": (with_json(), "added_tokens.json", {"<pad>": 262}, "<pad>"),
    "not-added-there": (
        changed(added_tokens=[eot()], model=bpe_model(vocab=ORDINARY | {EOT: 261, "<pad>": 262})),
        "added_tokens.json",
        {"<pad>": 262},
        "<pad>",
    ),
    "decoder-beside-json": (with_json(PAD), "tokenizer_config.json", decoder(PAD, USER), "<user>"),
    "decoder-lacks": (with_json({**USER, "id": 262}), "tokenizer_config.json", decoder(), "<user>"),
    "decoder-makes-plain": (
        with_json(PAD),
        "tokenizer_config.json",
        decoder({**PAD, "special": False}),
        "<pad>",
    ),
    "decoder-makes-special": (
        with_json(PAD, USER),
        "tokenizer_config.json",
        decoder(PAD, {**USER, "special": True}),
        "<user>",
    ),
    "decoder-makes-normalized": (
        with_json(PAD),
        "tokenizer_config.json",
        decoder({**PAD, "normalized": True}),
        "<pad>",
    ),
    "named": (merges_and_vocab(), "tokenizer_config.json", {"pad_token": "<pad>"}, "<pad>"),
    "named-beside-json": (with_json(), "tokenizer_config.json", {"pad_token": "<pad>"}, "<pad>"),
    "named-otherwise": (with_json(), "tokenizer_config.json", {"image_token": "<i>"}, "<i>"),
    "named-as-object": (
        with_json(),
        "special_tokens_map.json",
        {"pad_token": without(PAD, "id")},
        "<pad>",
    ),
    "flags-only-in-settings": (  # transformers takes the text in special_tokens_map.json
        merges_and_vocab() | {"special_tokens_map.json": {"eos_token": EOT}},
        "tokenizer_config.json",
        {"eos_token": {**NAMED_PAD, "content": EOT, "single_word": True}},
        EOT,
    ),
    "two-tokens-of-a-name": (
        merges_and_vocab(**{"<pad>": 262}) | {"special_tokens_map.json": {"image_token": "<pad>"}},
        "tokenizer_config.json",
        {"image_token": EOT},
        EOT,
    ),
    "map": (merges_and_vocab(), "special_tokens_map.json", {"pad_token": "<pad>"}, "<pad>"),
    "map-beside-json": (with_json(), "special_tokens_map.json", {"sep_token": "<pad>"}, "<pad>"),
    "ordinary-token": (with_json(), "special_tokens_map.json", {"pad_token": "low"}, "low"),
    "plain-token": (
        with_json(PAD, USER),
        "special_tokens_map.json",
        {"pad_token": "<user>"},
        "<user>",
    ),
    "extra": (with_json(), "tokenizer_config.json", {"extra_special_tokens": ["<x>"]}, "<x>"),
    "extra-by-names-makes-special": (
        with_json(PAD, USER),
        "special_tokens_map.json",
        {"extra_special_tokens": {"user": "<user>"}},
        "<user>",
    ),
    "extra-in-4": (
        merges_and_vocab(),
        "tokenizer_config.json",
        {"additional_special_tokens": ["<x>"]},
        "<x>",
    ),
    "extra-by-names": (
        with_json(),
        "tokenizer_config.json",
        {"extra_special_tokens": {"image": "<x>"}},
        "<x>",
    ),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_another_token_elsewhere_is_refused_and_mended_by_transformers(tmp_path, name):
    files, file, content, token = ELSEWHERE[name]
    write(tmp_path, {**files, file: content})
    message = refuses("save_pretrained", read_tokenizer, tmp_path, error=TokenizerError)
    assert file in message
    assert token in message

    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path / "mended")
    assert_as_transformers(read_tokenizer(tmp_path / "mended"), theirs)


@pytest.mark.parametrize(
    "content",
    [
        {"added_tokens_decoder": [1]},
        {"added_tokens_decoder": []},
        {"added_tokens_decoder": None},
        {"added_tokens_decoder": {"a": without(PAD, "id")}},
        {"added_tokens_decoder": {"261": {}}},
        {"pad_token": 3},
        {"pad_token": "<x>", "extra_special_tokens": {"image_token": "<pad>"}},
        {"pad_token": ""},
        {"pad_token": {"content": ["<pad>"]}},
        {"extra_special_tokens": 3},
        {"pad_token": {**PAD, "lstrip": True}},
    ],
    ids=str,
)
def test_settings_that_are_malformed_are_refused(tmp_path, content):
    write(tmp_path, with_json(PAD, tokenizer_config=content))
    refuses(r"tokenizer_config\.json", read_tokenizer, tmp_path, error=TokenizerError)


# Tokens that other programs put at the ends of a text

TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": EOT, "type_id": 0}}, {"Sequence": {"id": "A"}}],
    "special_tokens": {EOT: {"id": EOT, "ids": [261], "tokens": [EOT]}},
}
ROBERTA = {"type": "RobertaProcessing", "cls": [EOT, 261], "sep": [EOT, 261]}
SEQUENCE = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, TEMPLATE]}


@pytest.mark.parametrize(
    ("files", "field"),
    [
        pytest.param(changed(post_processor=TEMPLATE), "post_processor", id="template"),
        pytest.param(changed(post_processor=ROBERTA), "post_processor", id="roberta"),
        pytest.param(changed(post_processor=SEQUENCE), "post_processor", id="sequence"),
        pytest.param(
            changed(post_processor={"type": "BertProcessing"}), "post_processor", id="bert"
        ),
        pytest.param(
            with_json(tokenizer_config={"add_bos_token": True}), "add_bos_token", id="bos"
        ),
        pytest.param(
            with_json(tokenizer_config={"add_eos_token": True}), "add_eos_token", id="eos"
        ),
    ],
)
def test_a_warning_says_that_no_tokens_are_added_at_the_ends(tmp_path, files, field):
    with pytest.warns(TiedGPTWarning) as caught:
        assert read_tokenizer(write(tmp_path, files)).encode("low") == [257]
    file = "tokenizer.json" if field == "post_processor" else "tokenizer_config.json"
    assert [str(warning.message) for warning in caught] == [
        f"{tmp_path / file}: {field} adds tokens before or after a text, but tiedgpt adds none: "
        "write them into the text, and allow special tokens"
    ]
    assert [warning.filename for warning in caught] == [__file__]


# merges.txt

LOW = [("l", "o"), ("lo", "w")]
HASHES = [("#", "#"), ("##", "#")]


@pytest.mark.parametrize(
    ("text", "merges"),
    [
        ("#version: 0.2\nl o\nlo w\n", LOW),
        ("l o\nlo w", LOW),
        ("#version: 0.2 - Trained by `huggingface/tokenizers`\r\nl o\r\nlo w\r\n", LOW),
        ("#version: 0.2\nl o\nlo w\n\n\n", LOW),
        ("", []),
        ("\n", []),
        ("#version: 0.2", []),
        ("# #\n## #\n", HASHES),
        ("#version: 0.2\n# #\n## #\n", HASHES),
    ],
)
@pytest.mark.parametrize("name", ["merges.txt", "vocab.bpe"])
def test_forms_of_merges_alone(tmp_path, text, merges, name):
    assert_same_tokenizer(read_tokenizer(write(tmp_path, {name: text})), Tokenizer(merges))


def test_openais_ids_are_read(tmp_path):
    """They are those of encoder.json, in which <|endoftext|> comes before the bytes."""
    ids = {EOT: 0} | spelled_ids(LOW, first_id=1)
    write(tmp_path, {"vocab.bpe": "l o\nlo w\n", "encoder.json": ids})
    assert_same_tokenizer(read_tokenizer(tmp_path), Tokenizer(LOW, {EOT: 0}, ids=ids))


# Files are written, and read again


@pytest.mark.slow
def test_the_files_of_gpt2_are_written_again_byte_for_byte(gpt2):
    files = tokenizer_files(gpt2)
    assert files == {
        "merges.txt": GPT2_MERGES.read_bytes(),
        "vocab.json": GPT2_VOCAB.read_bytes(),
    }


@pytest.mark.slow
def test_the_merges_of_gpt2_alone_are_enough(gpt2, tmp_path):
    shutil.copy(GPT2_MERGES, tmp_path / "merges.txt")
    assert_same_tokenizer(read_tokenizer(tmp_path), gpt2)


SAVED = {
    "eot": SMALL_ONE,
    "no-special-token": Tokenizer(SMALL_MERGES, {}),
    "pad": WITH_PAD,
    "pad-alone": Tokenizer(SMALL_MERGES, {"<pad>": 261}),
    "plain-and-normalized": WITH_USER,
    "eot-first": Tokenizer(SMALL_MERGES, {EOT: 0}, ids=spelled_ids(SMALL_MERGES, first_id=1)),
    "first-and-last": Tokenizer(
        SMALL_MERGES, {"<pad>": 1, EOT: 263, "<s>": 0}, ids=spelled_ids(SMALL_MERGES, first_id=2)
    ),
    "merge": Tokenizer(SMALL_MERGES, {EOT: 261, "low": 257}),
    "byte": Tokenizer(SMALL_MERGES, {EOT: 261, "!": 0}),
    "flags": with_mask(lstrip=True, rstrip=True, normalized=True),
    "flags-of-eot": Tokenizer(SMALL_MERGES, flags={EOT: Flags(rstrip=True)}),
    "prefix-space": PREFIXED,
    "prefix-space-alone": Tokenizer(SMALL_MERGES, {}, prefix_space=True),
    "unreachable": WITH_UNREACHABLE,
    "unreachable-eot": ENDS,
    "sorted-by-spelling": Tokenizer(SMALL_MERGES, {EOT: BY_SPELLING[EOT]}, ids=BY_SPELLING),
    "ten-ids-of-no-token": WITH_TEN_LATER,
    "two-merges-make-one-token": TWO_WAYS,
}


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_tokenizer_comes_back_and_transformers_reads_the_same_ids(tmp_path, name):
    tokenizer = SAVED[name]
    config = replace(SMALL, vocab_size=tokenizer.vocab_size)
    tiedgpt.save_model(random_model(config), tokenizer, tmp_path)
    assert_same_tokenizer(tiedgpt.load_tokenizer(tmp_path), tokenizer)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert_as_transformers(tokenizer, theirs)
    # Both know which tokens are special, so that they are not shown.
    shown = [text for text, flags in tokenizer.flags.items() if not flags.special]
    ids = list(tokenizer.special_tokens.values())
    assert theirs.decode(ids, skip_special_tokens=True) == "".join(shown)


def test_tokens_that_transformers_adds_to_a_saved_tokenizer_are_read(tmp_path):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(write(tmp_path, merges_and_vocab()))
    theirs.add_tokens(["<user>"])
    theirs.add_special_tokens({"pad_token": "<pad>"})
    theirs.save_pretrained(tmp_path)
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.flags["<user>"] == Flags(special=False, normalized=True)
    assert_as_transformers(tokenizer, theirs)


# Hugging Face's own tokenizers

ONE_FILE = [name for name, (files, _) in FOLDERS.items() if list(files) == ["tokenizer.json"]]
# transformers makes <|endoftext|> a special token of these two, and so do we.
for name in ("no-added-tokens", "no-eot-in-json"):
    ONE_FILE.remove(name)


@pytest.mark.parametrize("name", ONE_FILE)
def test_a_tokenizer_json_is_read_as_tokenizers_reads_it(tmp_path, name):
    tokenizers = pytest.importorskip("tokenizers")
    folder = write(tmp_path, FOLDERS[name][0])
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours = tiedgpt.load_tokenizer(folder)
    texts = hostile_texts(["<pad>", *ours.special_tokens])
    expected = [encoding.ids for encoding in theirs.encode_batch(texts, add_special_tokens=False)]
    assert [ours.encode(text, special="token") for text in texts] == expected


@pytest.mark.parametrize("file", ["tokenizer.json", "merges.txt"])
def test_a_tokenizer_trained_by_hugging_faces_library_is_read(tmp_path, file):
    """The trainer puts special tokens first: EOT has id 0 and <pad> id 1.

    merges.txt and vocab.json do not say that <pad> is special.
    """
    tokenizers = pytest.importorskip("tokenizers")
    theirs, trainer = byte_level_bpe(tokenizers, 700, special_tokens=[EOT, "<pad>"])
    texts = random_texts(500, seed=8)
    theirs.train_from_iterator(texts, trainer)
    if file == "tokenizer.json":
        theirs.save(str(tmp_path / "tokenizer.json"))
    else:
        theirs.model.save(str(tmp_path))  # merges.txt and vocab.json
    ours = read_tokenizer(tmp_path)
    assert 600 < ours.vocab_size == theirs.get_vocab_size()
    if file == "tokenizer.json":
        assert ours.special_tokens == {EOT: 0, "<pad>": 1}
        texts += hostile_texts([EOT, "<pad>"])
    else:
        assert ours.special_tokens == {EOT: 0}
        assert ours.ids["<pad>"] == 1
        texts += hostile_texts([EOT])
    assert_same_ids(
        texts,
        partial(ours.encode, special="token"),
        lambda text: theirs.encode(text).ids,
    )


@pytest.mark.parametrize("file", ["tokenizer.json", "merges.txt"])
def test_a_tokenizer_trained_without_the_alphabet_is_read(tmp_path, file):
    """Its bytes are those of the text that it learned from. A text with another byte is refused."""
    tokenizers = pytest.importorskip("tokenizers")
    theirs, trainer = byte_level_bpe(tokenizers, 40, special_tokens=[EOT], initial_alphabet=[])
    theirs.train_from_iterator(["low lower lowest the end é\n"] * 9, trainer)
    if file == "tokenizer.json":
        theirs.save(str(tmp_path / file))
    else:
        theirs.model.save(str(tmp_path))
    ours = read_tokenizer(tmp_path)
    assert ours.vocab_size == theirs.get_vocab_size() < 40
    assert_same_ids(
        ["the lowest", f"one{EOT}end\n\n", "é", " "],
        partial(ours.encode, special="token"),
        lambda text: theirs.encode(text).ids,
    )
    refuses("0x21", ours.encode, "low!", error=TokenizerError)

    ours_again = tmp_path / "again"
    config = replace(SMALL, vocab_size=ours.vocab_size)
    tiedgpt.save_model(random_model(config), ours, ours_again)
    assert parts(tiedgpt.load_tokenizer(ours_again)) == parts(ours)


# A vocabulary that does not fit the model


def with_rows(vocab_size: object) -> dict:
    """A config.json of a model with so many tokens."""
    return {"config.json": {"model_type": "gpt2", "vocab_size": vocab_size}}


TOO_MANY = {  # the files; the number of the model's tokens; the first one that it cannot read
    "one": (merges_and_vocab(), 261, EOT),
    "appended-eot": (merges_and_vocab() | NO_EOT, 261, EOT),
    "added": (with_json(PAD, USER), 262, "<pad>"),
    "after-a-gap": (merges_and_vocab(extra=263), 262, "extra"),
    "of-another-model": (merges_and_vocab(), 65, "b"),
}


@pytest.mark.parametrize("name", TOO_MANY)
def test_a_vocabulary_with_more_tokens_than_the_model_has_a_warning(tmp_path, name):
    """The number of the model's tokens is that of config.json, or is given, for a ckpt.pt."""
    files, V, token = TOO_MANY[name]
    folder = write(tmp_path, files)
    tokenizer = read_tokenizer(folder)
    message = (
        f"has ids up to {tokenizer.vocab_size - 1}, more than the model of {V} tokens has: it "
        f"cannot read '{re.escape(token)}' and those after it; if these are the files of another "
        "model, no text has the right ids$"
    )
    config = replace(SMALL, vocab_size=V)
    with pytest.warns(TiedGPTWarning, match=message) as caught:
        assert_same_tokenizer(read_tokenizer(folder, config), tokenizer)
    assert str(folder) in str(caught[0].message)
    assert [warning.filename for warning in caught] == [__file__]
    write(folder, with_rows(V))
    with pytest.warns(TiedGPTWarning, match=message):
        assert_same_tokenizer(tiedgpt.load_tokenizer(folder), tokenizer)
    write(folder, with_rows(tokenizer.vocab_size))
    assert_same_tokenizer(tiedgpt.load_tokenizer(folder), tokenizer)
    assert_same_tokenizer(read_tokenizer(folder, replace(config, vocab_size=50304)), tokenizer)


def test_a_model_without_tokens_reads_none(tmp_path):
    write(tmp_path, merges_and_vocab() | with_rows(0))
    with pytest.warns(TiedGPTWarning, match="more than the model of 0 tokens .* cannot read '!'"):
        assert_same_tokenizer(read_tokenizer(tmp_path), SMALL_ONE)


@pytest.mark.parametrize("vocab_size", ["65", None, True, [], -1])
def test_a_number_of_tokens_that_is_none_is_left_to_the_reader_of_models(tmp_path, vocab_size):
    write(tmp_path, merges_and_vocab() | with_rows(vocab_size))
    assert_same_tokenizer(read_tokenizer(tmp_path), SMALL_ONE)


OF_CHARACTERS = (
    "so its vocabulary is not GPT-2's: that of nanoGPT's characters is in meta.pkl, beside the "
    "text; encode with it, and pass ids"
)
NANO_GPTS = {  # the number of tokens -> what the error says of nanoGPT's vocabulary
    None: (
        "if the model has GPT-2's 50,257 tokens, or some more, copy merges.txt and vocab.json of "
        "gpt2 there"
    ),
    50257: "copy merges.txt and vocab.json of gpt2 there",
    50304: "copy merges.txt and vocab.json of gpt2 there",
    50256: f"ckpt.pt has 50,256 tokens, {OF_CHARACTERS}",
    65: f"ckpt.pt has 65 tokens, {OF_CHARACTERS}",
}


@pytest.mark.parametrize("vocab_size", NANO_GPTS)
def test_gpt2s_vocabulary_is_advised_only_where_it_fits(tmp_path, vocab_size):
    (tmp_path / "ckpt.pt").touch()
    config = None if vocab_size is None else replace(SMALL, vocab_size=vocab_size)
    assert refuses(".", read_tokenizer, tmp_path, config) == (
        f"{tmp_path} has no tokenizer: expected merges.txt and vocab.json, or tokenizer.json; "
        f"{NANO_GPTS[vocab_size]}"
    )


@pytest.mark.slow
def test_the_tokenizer_json_that_transformers_saves_for_gpt2_is_read(gpt2, tmp_path):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPT2TokenizerFast(vocab=str(GPT2_VOCAB), merges=str(GPT2_MERGES))
    theirs.save_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path)
    assert_same_tokenizer(ours, gpt2)
    assert_as_transformers(ours, theirs)
