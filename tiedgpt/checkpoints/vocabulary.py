"""The tokenizer of a folder: which of its files are read, and how they are written.

tokenizer.json is read where there is one, as in transformers; else merges.txt with vocab.json, as
OpenAI published them. The ids of bytes and merges follow from the merges, and the files must list
the same ids. Each other token is special, unless tokenizer.json says that it is not.

Other files may name tokens, too: vocab.json and merges.txt beside tokenizer.json,
added_tokens.json, tokenizer_config.json and special_tokens_map.json. They are only compared. If
they name a token that the tokenizer lacks or has otherwise, transformers might give other ids, and
the folder is refused.
"""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, TiedGPTWarning, TokenizerError, short_repr
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
    "pre_tokenizer.add_prefix_space": (False,),
    "pre_tokenizer.use_regex": (True, None),
}
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
CHANGES_SPACES = ("lstrip", "rstrip", "single_word")  # fields of an added token; here all false
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


def read_tokenizer(model: Path) -> Tokenizer:
    """The tokenizer of a model: the directory itself, or the one of its file.

    If there is only merges.txt, the ids follow from it, and <|endoftext|> is the last token.

    Raises CheckpointError for files that are missing or malformed, TokenizerError for a vocabulary
    that contradicts itself or would give other ids than Tokenizer does.
    """
    directory = model if model.is_dir() else model.parent
    merges_path, vocab_path = (directory / name for name in MERGES_AND_VOCAB)
    if not merges_path.is_file():
        merges_path, vocab_path = (directory / name for name in OPENAIS_NAMES)

    added: dict[str, dict] = {}
    if (directory / TOKENIZER_JSON).is_file():
        tokenizer, added = _read_tokenizer_json(directory / TOKENIZER_JSON)
        _compare_merges_and_vocab(tokenizer, merges_path, vocab_path)
    elif merges_path.is_file():
        merges = _read_merges_txt(merges_path)
        name = f"{merges_path}"
        ids = spelled_ids(merges, 0) | {EOT: 256 + len(merges)}
        if vocab_path.is_file():
            name = f"{merges_path} with {vocab_path.name}"
            ids = read_json(vocab_path)
        tokenizer = _tokenizer(merges, ids, {}, name)
    else:
        hint = ""
        if (directory / "ckpt.pt").is_file():
            hint = "; nanoGPT's is that of GPT-2: copy merges.txt and vocab.json of gpt2 there"
        raise CheckpointError(
            f"{directory} has no tokenizer: expected merges.txt and vocab.json, or tokenizer.json"
            f"{hint or _other_tokenizer(directory)}"
        )
    others = {}
    for path in (directory / name for name in OTHER_FILES):
        if path.is_file():
            others[path.name] = read_json(path)
    if others:
        _compare_other_files(tokenizer, added, others, directory)
    return tokenizer


def _other_tokenizer(directory: Path) -> str:
    """What an error says of a tokenizer that is not read; "" if there is none."""
    for name, kind in OTHER_TOKENIZERS.items():
        if (directory / name).is_file():
            return f" ({name} is {kind}, which is not read: encode with transformers, and pass ids)"
    return ""


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


def _read_tokenizer_json(path: Path) -> tuple[Tokenizer, dict[str, dict]]:
    """(the tokenizer of tokenizer.json, text -> its entry in added_tokens).

    Raises TokenizerError for a tokenizer that would give other ids than Tokenizer does.
    """
    file = read_json(path)
    _check_settings(file, path)
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
        for field in CHANGES_SPACES:
            if token.get(field):
                raise TokenizerError(
                    f"{path}: added token {short_repr(text)}: {field} is {token[field]}, which "
                    "changes ids; expected false"
                )
        token_id = token.get("id")
        if ids.setdefault(text, token_id) != token_id:
            raise TokenizerError(
                f"{path}: token {short_repr(text)} has two ids, {short_repr(ids[text])} and "
                f"{token_id}"
            )
        added[text] = token
    return _tokenizer(_merges_of_json(merges, path), ids, added, f"{path}"), added


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


def _check_settings(file: dict[str, Any], path: Path) -> None:
    """Raise TokenizerError for a setting of tokenizer.json that would give other ids."""
    pre_tokenizer = file.get("pre_tokenizer")
    match pre_tokenizer:
        case {"type": "Sequence", "pretokenizers": [only]}:  # does what its one part does
            pre_tokenizer = only
    # A name in GPT2_VALUES is a section and a key. The section of the file's own fields is "".
    sections = {"": file, "model": file.get("model"), "pre_tokenizer": pre_tokenizer}
    for name, accepted in GPT2_VALUES.items():
        section_name, _, key = name.rpartition(".")  # "model.type" -> "model", "type"
        value = sections[section_name]
        if isinstance(value, dict):
            value = value.get(key)
        # Where the whole section is missing, the value is None. Where it is not an object, it is
        # the section itself, which is not accepted.
        if value not in accepted:
            raise TokenizerError(
                f"{path}: {name} is {short_repr(value)}, expected {accepted[0]!r}, as in GPT-2"
            )
    if _adds_tokens(file.get("post_processor")):
        _warn_of_tokens_at_the_ends(f"{path}: post_processor")


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


def _tokenizer(
    merges: list[tuple[str, str]], ids: dict[str, Any], added: dict[str, dict], name: str
) -> Tokenizer:
    """The tokenizer of a vocabulary, if its ids are those that follow from the merges.

    ids: token -> id, as a file lists them. added: text -> its entry in the added_tokens of
    tokenizer.json. name: what errors call the files.
    """
    for token, token_id in ids.items():
        if type(token_id) is not int:  # isinstance would accept True
            raise TokenizerError(
                f"{name}: token {short_repr(token)} has id {short_repr(token_id)}, expected an "
                "integer"
            )
    first_id = ids.get("!", 0)  # the ids begin with the byte "!"; without "!", an error follows
    ordinary = spelled_ids(merges, first_id)
    special_tokens = {}
    for token, token_id in ids.items():
        if token not in ordinary or token in added:
            special_tokens[token] = token_id
    plain_tokens = []
    normalized_tokens = []
    for text, entry in added.items():
        # The end of a document is special, whatever a file says.
        if not entry.get("special", True) and text != EOT:
            plain_tokens.append(text)
        if entry.get("normalized", not entry.get("special")):
            normalized_tokens.append(text)
    try:
        tokenizer = Tokenizer(merges, special_tokens, first_id, plain_tokens, normalized_tokens)
    except TokenizerError as error:
        raise TokenizerError(f"{name}: {error}") from None
    _check_ordinary(ordinary, ids, name)
    return tokenizer


def _check_ordinary(ordinary: dict[str, int], ids: dict[str, Any], name: str) -> None:
    """Raise TokenizerError if `ids` of a file lack an ordinary token, or have another id for it.

    ordinary: bytes and merges -> the ids that follow from the merges. name: the file.
    """
    for token, token_id in ordinary.items():
        if ids.get(token) != token_id:
            raise TokenizerError(
                f"{name}: token {short_repr(token)} has id {short_repr(ids.get(token))}, expected "
                f"{token_id}"
            )
    for token in ids:
        if "Ġ" in token and token not in ordinary:  # in a special token, a space is a space
            raise TokenizerError(
                f'{name}: token {short_repr(token)} has a "Ġ", a space in ordinary tokens, but no '
                "merge makes it"
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
    ids = _all_ids(tokenizer)
    for token, token_id in read_json(vocab_path).items():
        if ids.get(token) != token_id:
            raise TokenizerError(
                f"{vocab_path}: token {short_repr(token)} has id {short_repr(token_id)}, but "
                f"{ids.get(token, 'none')} in {TOKENIZER_JSON} beside it; remove the file that is "
                "wrong"
            )


def _compare_other_files(
    tokenizer: Tokenizer, added: dict[str, dict], others: dict[str, dict], directory: Path
) -> None:
    """Raise TokenizerError if a file beside the vocabulary has another token, or a prefix space.

    added: text -> its entry in the added_tokens of tokenizer.json, if there is one. others: the
    contents of those of OTHER_FILES that there are, by name.
    """
    settings = others.get(SETTINGS, {})
    for name in ("add_prefix_space", "split_special_tokens"):
        if settings.get(name):
            raise TokenizerError(
                f"{directory / SETTINGS}: {name} is set, expected false, as in GPT-2"
            )
    for name in ("add_bos_token", "add_eos_token"):
        if settings.get(name):
            _warn_of_tokens_at_the_ends(f"{directory / SETTINGS}: {name}")

    for file, said in _tokens_elsewhere(others, added, directory):
        if not _agrees(tokenizer, said):
            raise TokenizerError(
                f"{directory / file}: token {short_repr(said.get('content'))} is not in the "
                f"vocabulary, or is there otherwise than as {short_repr(said)}; {MEND}"
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


def _tokens_elsewhere(
    others: dict[str, dict], added: dict[str, dict], directory: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(a file, what it says of a token) for each token that is named beside the vocabulary.

    What it says are fields of an entry of added_tokens in tokenizer.json. The arguments are those
    of _compare_other_files.
    """
    settings = others.get(SETTINGS, {})
    special_tokens_map = others.get(SPECIAL_TOKENS_MAP, {})
    for text, token_id in others.get(ADDED, {}).items():
        said = {"content": text, "id": token_id}
        if text not in added:
            said["special"] = False  # so transformers takes it
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

    for file, fields in ((SETTINGS, settings), (SPECIAL_TOKENS_MAP, special_tokens_map)):
        for said in _named_tokens(fields):
            content = said.get("content")
            if isinstance(content, str) and content in added:
                said.pop("normalized", None)  # what tokenizer.json says of it counts
            yield file, said
        for said in _extra_tokens(fields):
            yield file, said


def _named_tokens(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What settings say of the tokens that they name: {"pad_token": "<pad>", ...}."""
    named = {name: value for name, value in settings.items() if name.endswith("_token")}
    for field in EXTRA_TOKENS:
        value = settings.get(field)
        if isinstance(value, dict):  # with names of their own: {"image_token": "<image>"}
            named |= value
    for value in named.values():
        if value is not None and not isinstance(value, bool):  # as add_bos_token is
            yield {**_fields_of(value), "special": True}


def _extra_tokens(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What settings say of tokens without names: {"extra_special_tokens": ["<a>", "<b>"]}."""
    for field in EXTRA_TOKENS:
        value = settings.get(field) or []
        if isinstance(value, list):
            for token in value:
                yield _fields_of(token)
        elif not isinstance(value, dict):
            yield _fields_of(value)  # it is refused, unless it is a token


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

    If there are other special tokens than <|endoftext|>, tokenizer.json is written, too. Without
    it, transformers would read these tokens as text.
    """
    merges = "".join(f"{left} {right}\n" for left, right in tokenizer.merges)
    files = {
        "merges.txt": f"#version: 0.2\n{merges}".encode(),
        "vocab.json": json.dumps(_all_ids(tokenizer)).encode(),
    }
    if tokenizer.special_tokens.keys() - {EOT}:
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
        "pre_tokenizer": BYTE_LEVEL,
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
            "vocab": _all_ids(tokenizer),
            "merges": [[left, right] for left, right in tokenizer.merges],
        },
    }


def _added_token(tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    """The entry of a special token in the added_tokens of tokenizer.json."""
    return {
        "id": tokenizer.special_tokens[text],
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": text in tokenizer.normalized_tokens,
        "special": text not in tokenizer.plain_tokens,
    }


def _all_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Token -> id, as vocab.json lists them, in the order of the ids."""
    ids = spelled_ids(tokenizer.merges, tokenizer.first_id) | tokenizer.special_tokens
    return dict(sorted(ids.items(), key=lambda item: item[1]))
