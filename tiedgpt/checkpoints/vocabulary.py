"""The tokenizer of a folder: which of its files are read, and how they are written.

tokenizer.json is read where there is one, as in transformers; else merges.txt with vocab.json, as
OpenAI published them. Without vocab.json, the ids follow from the merges.

As in transformers, a text is searched for the tokens that tokenizer.json adds or that a file names
("pad_token": "<pad>"), and for <|endoftext|>. No text has the other names of a vocabulary that no
merge makes.

Other files may name tokens, too: vocab.json and merges.txt beside tokenizer.json,
added_tokens.json, tokenizer_config.json and special_tokens_map.json. Those that list ids add their
tokens to merges.txt and vocab.json. If one names a token that the vocabulary lacks or has
otherwise, transformers might give other ids, and the folder is refused.
"""

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import CheckpointError, TiedGPTWarning, TokenizerError, short_repr
from ..gpt2.special_tokens import Flags
from ..gpt2.tokenizer import EOT, Tokenizer, spelled_ids
from .json_files import MAX_TEXT, open_to_read, read_json

TOKENIZER_JSON = "tokenizer.json"
ADDED = "added_tokens.json"
SETTINGS = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
OTHER_FILES = (ADDED, SETTINGS, SPECIAL_TOKENS_MAP)
MERGES_AND_VOCAB = ("merges.txt", "vocab.json")
OPENAIS_NAMES = ("vocab.bpe", "encoder.json")  # of the same two files

# The fields of tokenizer.json that change ids, and the values they may have: those of GPT-2 first.
# None: the field may be absent. Truncation and padding, which add or remove tokens, do not matter.
GPT2_VALUES: dict[str, tuple[Any, ...]] = {
    "normalizer": (None,),
    "model.type": ("BPE", None),  # absent in GPT-2's own file
    "model.dropout": (None, 0),
    "model.continuing_subword_prefix": ("", None),
    "model.end_of_word_suffix": ("", None),
    "model.ignore_merges": (False, None),
    "pre_tokenizer.type": ("ByteLevel",),
    "pre_tokenizer.add_prefix_space": (False, True),
    "pre_tokenizer.use_regex": (True, None),
}
GPT2_TOKENS = 50257
# Files of tokenizers that are not read -> whose they are.
OTHER_TOKENIZERS = {
    "vocab.txt": "of a BertTokenizer",
    "spiece.model": "of SentencePiece",
    "sentencepiece.bpe.model": "of SentencePiece",
    "tokenizer.model": "of SentencePiece",
}
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
# The values of tokenizer_class for which transformers adds <|endoftext|> to a vocabulary, unless
# all of NAMED_AS_EOT name another token. None: the field is absent.
GPT2_CLASSES = (None, "GPT2Tokenizer", "GPT2TokenizerFast")
NAMED_AS_EOT = {"unk_token", "bos_token", "eos_token"}
# Those for which it adds nothing to tokenizer.json.
GENERAL_CLASSES = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend")
# Those that add the tokens of all ALL_NAMES, unless the settings name others.
ROBERTA_CLASSES = tuple(
    f"{model}Tokenizer{fast}"
    for model in ("Roberta", "Bart", "Longformer", "LED")
    for fast in ("", "Fast")
)
ALL_NAMES = NAMED_AS_EOT | {"sep_token", "pad_token", "cls_token", "mask_token"}
# The fields of the settings that hold more special tokens, in different versions of transformers.
EXTRA_TOKENS = (
    "extra_special_tokens",
    "additional_special_tokens",
    "model_specific_special_tokens",
)
MEND = (
    "load the folder once with transformers' AutoTokenizer and write it with save_pretrained, "
    "which puts all tokens into tokenizer.json"
)
MEND_CLASS = (
    f'if {TOKENIZER_JSON} alone has the right ids, write "tokenizer_class": '
    f'"PreTrainedTokenizerFast" into {SETTINGS}'
)


def read_tokenizer(model: Path, vocab_size: int | None = None) -> Tokenizer:
    """The tokenizer of a model: the directory itself, or the one of its file.

    If there is only merges.txt, the ids follow from it, and <|endoftext|> is the last token.
    vocab_size: that of the model; None is the one of config.json. Warns of a tokenizer that has
    more tokens: the model cannot read the last ones, and may be one of another vocabulary.

    Raises CheckpointError for files that are missing or malformed, TokenizerError for a vocabulary
    that contradicts itself or would give other ids than Tokenizer does.
    """
    directory = model if model.is_dir() else model.parent
    merges_path, vocab_path = (directory / name for name in MERGES_AND_VOCAB)
    if not merges_path.is_file():
        merges_path, vocab_path = (directory / name for name in OPENAIS_NAMES)

    others = {}  # name -> content, of the OTHER_FILES that there are
    for path in (directory / name for name in OTHER_FILES):
        if path.is_file():
            others[path.name] = read_json(path)
    has_json = (directory / TOKENIZER_JSON).is_file()
    config = {}
    if (directory / "config.json").is_file():
        config = read_json(directory / "config.json")
    _add_class_of_config(others, config)
    _check_class(others, has_json, directory)
    if has_json:
        vocabulary = _read_tokenizer_json(directory / TOKENIZER_JSON, others.get(SETTINGS, {}))
    else:
        vocabulary = _read_merges_and_vocab(merges_path, vocab_path, others, vocab_size)
    _check_that_names_agree(others, directory)
    # What the other files say of tokens: [(file, fields of a token), ...]
    said = list(_tokens_elsewhere(others, vocabulary.added, directory))
    # The tokens for which a text is searched: token -> its fields
    searched_for = vocabulary.added | _named_in_the_vocabulary(vocabulary, said)
    if EOT not in searched_for and _adds_eot(others, said, has_json):
        searched_for[EOT] = {}
        vocabulary.ids.setdefault(EOT, len(vocabulary.ids))
    tokenizer = _tokenizer(vocabulary, searched_for)
    if has_json:
        _compare_merges_and_vocab(tokenizer, merges_path, vocab_path)
    _compare_other_files(tokenizer, said, others.get(SETTINGS, {}), directory)
    V = config.get("vocab_size") if vocab_size is None else vocab_size
    if type(V) is int and V >= 0:
        _compare_with_model(tokenizer, V, vocabulary.name)
    return tokenizer


def _compare_with_model(tokenizer: Tokenizer, vocab_size: int, name: str) -> None:
    """Warn if the model cannot read all tokens: the files may be those of another model.

    name: what the warning calls the files.
    """
    unreadable = [token for token in tokenizer.ids if tokenizer.ids[token] >= vocab_size]
    if unreadable:
        warnings.warn(
            f"{name} has ids up to {tokenizer.vocab_size - 1}, more than the model of {vocab_size} "
            f"tokens has: it cannot read {short_repr(unreadable[0])} and those after it; if these "
            "are the files of another model, no text has the right ids",
            TiedGPTWarning,
            stacklevel=3,
        )


def _other_tokenizer(directory: Path, vocab_size: int | None) -> str:
    """What an error says of a tokenizer that is not read or not there; "" if that is not known.

    vocab_size: that of the model, if it is known.
    """
    if (directory / "ckpt.pt").is_file():
        if vocab_size is not None and vocab_size < GPT2_TOKENS:
            return (
                f"; ckpt.pt has {vocab_size:,} tokens, so its vocabulary is not GPT-2's: that of "
                "nanoGPT's characters is in meta.pkl, beside the text; encode with it, and pass ids"
            )
        condition = ""
        if vocab_size is None:
            condition = f"if the model has GPT-2's {GPT2_TOKENS:,} tokens, or some more, "
        return f"; {condition}copy merges.txt and vocab.json of gpt2 there"
    for name, kind in OTHER_TOKENIZERS.items():
        if (directory / name).is_file():
            return f" ({name} is {kind}, which is not read: encode with transformers, and pass ids)"
    return ""


class _Vocabulary(NamedTuple):
    """What the files of a vocabulary say."""

    name: str  # what errors call the files
    merges: list[tuple[str, str]]
    ids: dict[str, int]  # token -> id
    added: dict[str, dict]  # text -> its entry, as in the added_tokens of tokenizer.json
    prefix_space: bool


def _read_merges_and_vocab(
    merges_path: Path, vocab_path: Path, others: dict[str, dict], vocab_size: int | None
) -> _Vocabulary:
    """The vocabulary of merges.txt and vocab.json, with the tokens that `others` add.

    others: the contents of those of OTHER_FILES that there are, by name. vocab_size: that of the
    model, if it is known.
    """
    directory = merges_path.parent
    if not merges_path.is_file():
        raise CheckpointError(
            f"{directory} has no tokenizer: expected merges.txt and vocab.json, or tokenizer.json"
            f"{_other_tokenizer(directory, vocab_size)}"
        )
    merges = _read_merges_txt(merges_path)
    name = f"{merges_path}"
    ids: dict[str, Any] = spelled_ids(merges) | {EOT: 256 + len(merges)}
    if vocab_path.is_file():
        name = f"{merges_path} with {vocab_path.name}"
        ids = read_json(vocab_path)
    _check_ids_are_numbers(ids, name)
    added = _added_beside(others, directory)
    _add_tokens(ids, added, name)
    prefix_space = bool(others.get(SETTINGS, {}).get("add_prefix_space"))
    return _Vocabulary(name, merges, ids, added, prefix_space)


def _add_tokens(ids: dict[str, int], added: dict[str, dict], name: str) -> None:
    """Add the ids of added tokens to those of a vocabulary.

    Raises TokenizerError for another id than the one that transformers gives an added token, which
    is the number of tokens before it. name: what the error calls the files.
    """
    for text, token in sorted(added.items(), key=lambda item: item[1]["id"]):
        token_id = token["id"]
        if text not in ids and token_id != len(ids):
            raise TokenizerError(
                f"{name}: added token {short_repr(text)} has id {token_id}, expected {len(ids)}"
            )
        ids.setdefault(text, token_id)  # `_compare_other_files` refuses another id


def _added_beside(others: dict[str, dict], directory: Path) -> dict[str, dict]:
    """Text -> entry of each token that is added to merges.txt and vocab.json.

    transformers reads added_tokens.json only if the settings have no added_tokens_decoder. A token
    of that file is special if it has one of ALL_NAMES, or is an extra one.
    """
    settings = others.get(SETTINGS, {})
    special_tokens_map = others.get(SPECIAL_TOKENS_MAP, {})
    special = list(_extra_tokens(special_tokens_map, ("extra_special_tokens",)))
    special += _extra_tokens(settings)
    for fields in (settings, special_tokens_map):
        special += [_fields_of(fields[name]) for name in ALL_NAMES & fields.keys()]
    special_texts = [token.get("content") for token in special]

    listing = SETTINGS if "added_tokens_decoder" in settings else ADDED
    added = {}
    for file, token in _tokens_elsewhere(others, {}, directory):
        text = token.get("content")
        token_id = f"{token.get('id')}"
        if file == listing and isinstance(text, str) and token_id.isdecimal():
            is_special = token["special"] or text in special_texts
            added[text] = {**token, "id": int(token_id), "special": is_special}
    return added


def _add_class_of_config(others: dict[str, dict], config: dict[str, Any]) -> None:
    """Put the tokenizer_class of config.json into the settings, if they have none."""
    settings = others.get(SETTINGS, {})
    tokenizer_class = config.get("tokenizer_class")
    if settings.get("tokenizer_class") is None and tokenizer_class is not None:
        others[SETTINGS] = {**settings, "tokenizer_class": tokenizer_class}


def _check_class(others: dict[str, dict], has_json: bool, directory: Path) -> None:
    """Raise TokenizerError for a tokenizer_class that gives other ids than GPT-2's."""
    settings = others.get(SETTINGS, {})
    tokenizer_class = settings.get("tokenizer_class")
    if tokenizer_class in GPT2_CLASSES + GENERAL_CLASSES:
        return
    if has_json and tokenizer_class in ROBERTA_CLASSES and settings.keys() >= ALL_NAMES:
        return
    raise TokenizerError(
        f"{directory}: tokenizer_class is {short_repr(tokenizer_class)}, which may add tokens, or "
        f"cut a text in another way than GPT-2; {MEND_CLASS if has_json else MEND}"
    )


def _check_ids_are_numbers(ids: dict[str, Any], name: str) -> None:
    """Raise TokenizerError for an id that is no integer. name: what the error calls the files."""
    for token, token_id in ids.items():
        if type(token_id) is not int:  # isinstance would accept True
            raise TokenizerError(
                f"{name}: token {short_repr(token)} has id {short_repr(token_id)}, expected an "
                "integer"
            )


def _read_merges_txt(path: Path) -> list[tuple[str, str]]:
    """The merges, one a line: "h e". The first line may be "#version: 0.2"."""
    with open_to_read(path, limit=MAX_TEXT) as file:
        content = file.read()
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise CheckpointError(f"{path}, line {number}: not UTF-8") from error
    text = text.replace("\r\n", "\n").rstrip("\n")
    merges = []
    for number, line in enumerate(text.split("\n") if text else [], start=1):
        if number == 1 and line.startswith("#version"):
            continue
        match line.split(" "):
            case [left, right] if left and right:
                merges.append((left, right))
            case _:
                raise TokenizerError(
                    f"{path}, line {number}: expected two tokens, got {short_repr(line)}"
                )
    return merges


def _read_tokenizer_json(path: Path, settings: dict[str, Any]) -> _Vocabulary:
    """The vocabulary of tokenizer.json. settings: those of tokenizer_config.json.

    Raises TokenizerError for a tokenizer that would give other ids than Tokenizer does.
    """
    file = read_json(path)
    prefix_space = _check_settings(file, path)
    model = file.get("model")
    added_tokens = file.get("added_tokens") or []
    if not isinstance(model, dict) or not isinstance(added_tokens, list):
        raise TokenizerError(f"{path}: expected an object `model` and a list of added_tokens")
    ids = model.get("vocab")
    merges = model.get("merges")
    if not isinstance(ids, dict) or not isinstance(merges, list):
        raise TokenizerError(f"{path}: expected model.vocab and model.merges")

    added = {}
    for token in added_tokens:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise TokenizerError(f"{path}: added token {short_repr(token)}: expected its content")
        text = token["content"]
        token_id = token.get("id")
        if ids.get(text, token_id) != token_id:
            raise TokenizerError(
                f"{path}: token {short_repr(text)} has two ids, {short_repr(ids[text])} and "
                f"{token_id}"
            )
        _check_ids_are_numbers({text: token_id}, f"{path}")
        added[text] = token
    _check_ids_are_numbers(ids, f"{path}")
    _add_tokens(ids, added, f"{path}")

    # A class of one model takes it from the settings, the general classes from tokenizer.json.
    is_general = settings.get("tokenizer_class") in GENERAL_CLASSES
    default = prefix_space if is_general else False
    if bool(settings.get("add_prefix_space", default)) != prefix_space:
        raise TokenizerError(
            f"{path}: add_prefix_space is {prefix_space}, but not in {SETTINGS} beside it, which "
            "transformers reads; write the right value into both files"
        )
    return _Vocabulary(f"{path}", _merges_of_json(merges, path), ids, added, prefix_space)


def _is_gpt2s_class(settings: dict[str, Any]) -> bool:
    """Whether transformers reads the tokenizer as GPT2Tokenizer, by its tokenizer_config.json."""
    return settings.get("tokenizer_class") in GPT2_CLASSES


def _merges_of_json(merges: list[Any], path: Path) -> list[tuple[str, str]]:
    """The merges of tokenizer.json, where each is "a b" or ["a", "b"]. Raises TokenizerError."""
    pairs = []
    for number, merge in enumerate(merges, start=1):
        match merge.split(" ") if isinstance(merge, str) else merge:
            case [str(left), str(right)] if left and right:
                pairs.append((left, right))
            case _:
                raise TokenizerError(
                    f"{path}, merge {number}: expected two tokens, got {short_repr(merge)}"
                )
    return pairs


def _check_settings(file: dict[str, Any], path: Path) -> bool:
    """Whether tokenizer.json puts a space before a text.

    Raises TokenizerError for a setting that would give other ids than Tokenizer does.
    """
    pre_tokenizer: Any = file.get("pre_tokenizer")
    match pre_tokenizer:
        case {"type": "Sequence", "pretokenizers": [only]}:  # does what its one part does
            pre_tokenizer = only
    fields = {**file, "pre_tokenizer": pre_tokenizer}
    for name, accepted in GPT2_VALUES.items():
        value: Any = fields
        for key in name.split("."):  # "model.type" is the field "type" of the field "model"
            if isinstance(value, dict):
                value = value.get(key)
        # A "model" that is no object is its own value, and is accepted only if it is missing: None.
        if value not in accepted:
            raise TokenizerError(
                f"{path}: {name} is {short_repr(value)}, expected {accepted[0]!r}, as in GPT-2"
            )
    if _adds_tokens(file.get("post_processor")):
        _warn_of_tokens_at_the_ends(f"{path}: post_processor")
    return bool(pre_tokenizer["add_prefix_space"])


def _adds_tokens(post_processor: Any) -> bool:
    """Whether a post_processor adds tokens to a text, for example at its beginning."""
    match post_processor:
        case {"processors": list(parts)}:  # a sequence
            return any(_adds_tokens(part) for part in parts)
        case {"type": "TemplateProcessing"}:
            return bool(post_processor.get("special_tokens"))
        case {"type": "BertProcessing" | "RobertaProcessing"}:
            return True
    return False


def _warn_of_tokens_at_the_ends(name: str) -> None:
    """Warn that other programs would add tokens to each text. `name` is the file and the field."""
    warnings.warn(
        f"{name} adds tokens before or after a text, but tiedgpt adds none: write them into the "
        "text, and allow special tokens",
        TiedGPTWarning,
        stacklevel=2,
    )


def _named_in_the_vocabulary(
    vocabulary: _Vocabulary, said: list[tuple[str, dict[str, Any]]]
) -> dict[str, dict]:
    """text -> what is said of it, for tokens of the vocabulary that tokenizer.json does not add.

    A text is searched for them. Tokens that merges make are left out: `_compare_other_files`
    refuses them.
    """
    named: dict[str, dict] = {}
    for file, token in said:
        text = token.get("content")
        if file != ADDED and isinstance(text, str) and text in vocabulary.ids:
            named.setdefault(text, token)
    for text in vocabulary.added:
        named.pop(text, None)
    if named:
        for left, right in vocabulary.merges:
            named.pop(left + right, None)
    return named


def _adds_eot(
    others: dict[str, dict], said: list[tuple[str, dict[str, Any]]], has_json: bool
) -> bool:
    """Whether transformers adds <|endoftext|> to the tokens for which it searches a text.

    It does if a file beside the vocabulary names this token, or if it reads the folder with its
    GPT2Tokenizer, which takes <|endoftext|> for each of NAMED_AS_EOT that no file names.
    """
    if any(token.get("content") == EOT for _, token in said):
        return True
    settings = others.get(SETTINGS, {})
    if has_json and not _is_gpt2s_class(settings):
        return False
    named = set(settings)
    if "added_tokens_decoder" not in settings:  # with it, transformers does not read the other file
        named.update(others.get(SPECIAL_TOKENS_MAP, {}))
    return any(name not in named for name in NAMED_AS_EOT)


def _tokenizer(vocabulary: _Vocabulary, searched_for: dict[str, dict]) -> Tokenizer:
    """The tokenizer of a vocabulary.

    searched_for: a token for which a text is searched -> what the files say of it.
    """
    name = vocabulary.name
    flags = {text: _flags(text, entry, name) for text, entry in searched_for.items()}
    if len(flags) == 1:  # it is the same whether the only token is searched for first or last
        flags = {text: replace(only, normalized=False) for text, only in flags.items()}
    special_tokens = {text: vocabulary.ids[text] for text in searched_for}
    try:
        tokenizer = Tokenizer(
            vocabulary.merges, special_tokens, vocabulary.ids, flags, vocabulary.prefix_space
        )
    except TokenizerError as error:
        raise TokenizerError(f"{name}: {error}") from None
    _check_that_merges_are_whole(tokenizer, name)
    return tokenizer


def _flags(text: str, entry: dict[str, Any], name: str) -> Flags:
    """The flags of a special token, from its entry in added_tokens. Raises TokenizerError.

    name: what the error calls the file.
    """
    special = entry.get("special", True)
    fields = {"special": special, "normalized": not special}
    for field in ("normalized", "lstrip", "rstrip", "single_word"):
        if field in entry:
            fields[field] = entry[field]
    for field, value in fields.items():
        if not isinstance(value, bool):
            raise TokenizerError(
                f"{name}: {field} of token {short_repr(text)} is {short_repr(value)}, expected "
                "true or false"
            )
    if text == EOT:  # the end of a document is special, whatever a file says
        fields["special"] = True
    return Flags(**fields)


def _check_that_merges_are_whole(tokenizer: Tokenizer, name: str) -> None:
    """Raise TokenizerError if the last lines of merges.txt seem to be lost.

    Then no merge makes the last ordinary tokens of the vocabulary. Most of them have a "Ġ", which
    is how a space is written. Somebody may have removed merges in the middle (such as those of
    digits, so that each digit is a token): then a warning says so. name: what messages call the
    files.
    """
    made = {left + right for left, right in tokenizer.merges} | {"Ġ"}
    unmade = [token for token in tokenizer.ids if "Ġ" in token and token not in made]
    last_made = max((tokenizer.ids[token] for token in made & tokenizer.ids.keys()), default=-1)
    for token in unmade:
        if tokenizer.ids[token] > last_made or token in tokenizer.special_tokens:
            raise TokenizerError(
                f'{name}: token {short_repr(token)} has a "Ġ", a space in ordinary tokens, but no '
                "merge makes it"
            )
    if unmade:
        warnings.warn(
            f"{name}: no merge makes {len(unmade)} tokens with a space, such as "
            f"{short_repr(unmade[0])}: no text has them",
            TiedGPTWarning,
            stacklevel=4,
        )


# The other files are compared.


def _compare_merges_and_vocab(tokenizer: Tokenizer, merges_path: Path, vocab_path: Path) -> None:
    """Raise TokenizerError if merges.txt or vocab.json are not those of tokenizer.json."""
    if merges_path.is_file() and _read_merges_txt(merges_path) != tokenizer.merges:
        raise TokenizerError(
            f"{merges_path}: its merges are not those of {TOKENIZER_JSON} beside it; remove the "
            "file that is wrong"
        )
    if not vocab_path.is_file():
        return
    for token, token_id in read_json(vocab_path).items():
        if tokenizer.ids.get(token) != token_id:
            raise TokenizerError(
                f"{vocab_path}: token {short_repr(token)} has id {short_repr(token_id)}, but "
                f"{tokenizer.ids.get(token, 'none')} in {TOKENIZER_JSON} beside it; remove the "
                "file that is wrong"
            )


def _compare_other_files(
    tokenizer: Tokenizer,
    said: list[tuple[str, dict[str, Any]]],
    settings: dict[str, Any],
    directory: Path,
) -> None:
    """Raise TokenizerError if a file beside the vocabulary has another token or splits tokens.

    said: what `_tokens_elsewhere` yields. settings: those of tokenizer_config.json.
    """
    if settings.get("split_special_tokens"):
        raise TokenizerError(
            f"{directory / SETTINGS}: split_special_tokens is set, expected false, as in GPT-2"
        )
    for name in ("add_bos_token", "add_eos_token"):
        if settings.get(name):
            _warn_of_tokens_at_the_ends(f"{directory / SETTINGS}: {name}")

    for file, token in said:
        if not _agrees(tokenizer, token):
            raise TokenizerError(
                f"{directory / file}: token {short_repr(token.get('content'))} is not in the "
                f"vocabulary, or is there otherwise than as {short_repr(token)}; {MEND}"
            )
    if "added_tokens_decoder" in settings:  # then transformers forgets all other added tokens
        tokens = settings["added_tokens_decoder"].values()
        listed = [_fields_of(token).get("content") for token in tokens]
        for text in tokenizer.special_tokens:
            if text not in listed:
                raise TokenizerError(
                    f"{directory / SETTINGS}: added_tokens_decoder lacks token {short_repr(text)} "
                    f"of the vocabulary; {MEND}"
                )


def _check_that_names_agree(others: dict[str, dict], directory: Path) -> None:
    """Raise TokenizerError if a name, such as pad_token, has one token in the settings and another
    in special_tokens_map.json."""
    settings = others.get(SETTINGS, {})
    if "added_tokens_decoder" in settings:  # then transformers does not read the other file
        return
    names = _names(settings)
    for name, value in _names(others.get(SPECIAL_TOKENS_MAP, {})).items():
        token = _fields_of(value).get("content")
        token_in_settings = _fields_of(names.get(name, value)).get("content")
        if token != token_in_settings:
            raise TokenizerError(
                f"{directory / SPECIAL_TOKENS_MAP}: {name} is {short_repr(token)}, but "
                f"{short_repr(token_in_settings)} in {SETTINGS}; {MEND}"
            )


def _tokens_elsewhere(
    others: dict[str, dict], added: dict[str, dict], directory: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(a file, what it says of a token) for each token that is named beside the vocabulary.

    What a file says are fields of an entry of added_tokens in tokenizer.json. others: name ->
    content, of the OTHER_FILES that there are. added: text -> its entry in the added_tokens of
    tokenizer.json; empty without that file.
    """
    settings = others.get(SETTINGS, {})
    special_tokens_map = others.get(SPECIAL_TOKENS_MAP, {})
    for text, token_id in others.get(ADDED, {}).items():
        said = {"content": text, "id": token_id}
        if text not in added:
            said["special"] = False  # as transformers adds the tokens of this file
        yield ADDED, said

    decoder = settings.get("added_tokens_decoder", {})
    if not isinstance(decoder, dict):
        raise TokenizerError(
            f"{directory / SETTINGS}: added_tokens_decoder must be an object, got "
            f"{short_repr(decoder)}"
        )
    for token_id, token in decoder.items():  # "50257": {"content": "<pad>", ...}
        said = _fields_of(token)
        is_special = said.get("special", False)
        yield SETTINGS, {"special": False, "normalized": not is_special, **said, "id": token_id}

    # special_tokens_map.json first: transformers prefers it for a name that both files have.
    for file, fields in ((SPECIAL_TOKENS_MAP, special_tokens_map), (SETTINGS, settings)):
        for said in _named_tokens(fields):
            content = said.get("content")
            if isinstance(content, str) and content in added:
                said.pop("normalized", None)  # what tokenizer.json says of it counts
            yield file, said
        for said in _extra_tokens(fields):
            yield file, said


def _names(settings: dict[str, Any]) -> dict[str, Any]:
    """The names that settings give tokens: {"pad_token": "<pad>", ...}."""
    names = {name: value for name, value in settings.items() if name.endswith("_token")}
    for field in EXTRA_TOKENS:
        value = settings.get(field)
        if isinstance(value, dict):  # with names of their own: {"image_token": "<image>"}
            names |= value
    return names


def _named_tokens(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What settings say of the tokens that they name."""
    for value in _names(settings).values():
        # "add_bos_token" looks like a name, but its value is true or false.
        if value is not None and not isinstance(value, bool):
            yield {**_fields_of(value), "special": True}


def _extra_tokens(
    settings: dict[str, Any], its_fields: Sequence[str] = EXTRA_TOKENS
) -> Iterator[dict[str, Any]]:
    """What settings say of tokens without names: {"extra_special_tokens": ["<a>", "<b>"]}."""
    for field in its_fields:
        value = settings.get(field) or []
        if isinstance(value, dict):  # its tokens have names: _named_tokens yields them
            continue
        # A single token may stand without a list. What is no token is refused later.
        for token in value if isinstance(value, list) else [value]:
            yield _fields_of(token)


def _fields_of(token: Any) -> dict[str, Any]:
    """A token that is given as its text, or as an entry of added_tokens, as such an entry."""
    return token if isinstance(token, dict) else {"content": token}


def _agrees(tokenizer: Tokenizer, said: dict[str, Any]) -> bool:
    """Whether the tokenizer has a token as another file says: its fields `said` are the same."""
    text = said.get("content")
    if not isinstance(text, str) or text not in tokenizer.special_tokens:
        return False
    entry = _added_token(tokenizer, text)
    if text == EOT:
        del entry["special"]  # the end of a document is special, whatever a file says
    if len(tokenizer.special_tokens) == 1:
        del entry["normalized"]  # whether it is searched for first or last
    # The ids of tokenizer_config.json are texts.
    return all(str(said.get(field, value)) == str(value) for field, value in entry.items())


# Files are written.


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The contents of merges.txt and vocab.json, by name. For GPT-2 they are OpenAI's files.

    If the special tokens are not <|endoftext|> alone, or a space is put before a text, more files
    are written. Without them, transformers would give other ids.
    """
    merges = "".join(f"{left} {right}\n" for left, right in tokenizer.merges)
    files = {
        "merges.txt": f"#version: 0.2\n{merges}".encode(),
        "vocab.json": json.dumps(tokenizer.ids).encode(),
    }
    settings: dict[str, Any] = {}
    if EOT not in tokenizer.special_tokens:
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # GPT2Tokenizer would add it
    if tokenizer.prefix_space:
        settings["add_prefix_space"] = True
    if settings:
        files[SETTINGS] = json.dumps(settings).encode()
    if settings or tokenizer.flags != {EOT: Flags()}:
        files[TOKENIZER_JSON] = json.dumps(tokenizer_json(tokenizer)).encode()
    return files


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """The contents of tokenizer.json, as transformers writes them."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(tokenizer, text) for text in tokenizer.special_tokens],
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": tokenizer.prefix_space},
        "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": tokenizer.ids,
            "merges": [[left, right] for left, right in tokenizer.merges],
        },
    }


def _added_token(tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    """The entry of a special token in the added_tokens of tokenizer.json."""
    return {
        "id": tokenizer.special_tokens[text],
        "content": text,
        **asdict(tokenizer.flags[text]),
    }
