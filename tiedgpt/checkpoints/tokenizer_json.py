"""Read and write tokenizer.json, the file of Hugging Face's library `tokenizers`.

Its truncation and padding, which add or remove tokens, are ignored, and so is its post_processor.
"""

import warnings
from pathlib import Path
from typing import Any

from ..errors import TiedGPTWarning, TokenizerError, short_repr
from ..gpt2.tokenizer import Tokenizer, spelled_ids
from .parsed_vocabulary import AddedToken, ParsedVocabulary, parse_merges
from .reading import read_json

TOKENIZER_JSON = "tokenizer.json"
# The fields that change ids, and the values they may have. None: the field may be absent.
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
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


def parse_tokenizer_json(path: Path) -> ParsedVocabulary:
    """The vocabulary of a file. Raises TokenizerError for one that would give other ids."""
    file = read_json(path)
    _check_neutral(file, path)
    if _adds_tokens(file.get("post_processor")):
        warnings.warn(
            f"{path}: post_processor adds tokens to a text, but tiedgpt adds none: write them into "
            "the text, and allow special tokens",
            TiedGPTWarning,
            stacklevel=4,  # the line that called read_tokenizer
        )
    model = file.get("model")
    if not isinstance(model, dict):
        model = {}
    ids = model.get("vocab")
    merges = model.get("merges")
    added = file.get("added_tokens") or []
    if not isinstance(ids, dict) or not isinstance(merges, list) or not isinstance(added, list):
        raise TokenizerError(
            f"{path}: expected model.vocab, model.merges and a list of added_tokens"
        )
    vocabulary = ParsedVocabulary(f"{path}", parse_merges(merges, f"{path}, merge", 1), ids)
    for token in added:
        token_id = token.get("id") if isinstance(token, dict) else None  # add_token refuses None
        add_token(vocabulary, token, token_id, path)
    return vocabulary


def add_token(vocabulary: ParsedVocabulary, token: Any, token_id: Any, path: Path) -> None:
    """Add a token as Hugging Face's files describe it, of the file `path`.

    Raises TokenizerError as parse_added_token does, and for an id that is not an integer or not the
    token's id in another file.
    """
    added = parse_added_token(token, path)
    vocabulary.add_token(added, token_id, f"{path}")


def parse_added_token(token: Any, path: Path) -> AddedToken:
    """A token as Hugging Face's files describe it: {"content": text, "special": true, ...}.

    A token without the field "special" is taken for a special one. `path` is the file. Raises
    TokenizerError for a token of another form.
    """
    if not _is_supported(token):
        raise TokenizerError(
            f"{path}: added token {short_repr(token)}: expected content, and not lstrip, rstrip or "
            "single_word, which change ids"
        )
    return AddedToken(
        text=token["content"],
        is_special=bool(token.get("special", True)),
        is_normalized=bool(token.get("normalized", not token.get("special"))),
    )


def _is_supported(token: Any) -> bool:
    """Whether a token has a text and is found as it is, wherever it stands.

    With lstrip or rstrip, it would take the spaces around it away. With single_word, it would not
    be found inside a word.
    """
    if not isinstance(token, dict) or not isinstance(token.get("content"), str):
        return False
    return not (token.get("lstrip") or token.get("rstrip") or token.get("single_word"))


def _adds_tokens(post_processor: Any) -> bool:
    """Whether a post_processor adds tokens to a text, for example at its beginning."""
    if not isinstance(post_processor, dict):
        return False
    if isinstance(post_processor.get("processors"), list):  # a sequence
        return any(_adds_tokens(part) for part in post_processor["processors"])
    kind = post_processor.get("type")
    if kind == "TemplateProcessing":
        return bool(post_processor.get("special_tokens"))
    return kind in ("BertProcessing", "RobertaProcessing")


def _check_neutral(file: dict[str, Any], path: Path) -> None:
    """Raise TokenizerError for a setting that would give other ids."""
    pre_tokenizer = file.get("pre_tokenizer")
    # A sequence of one pre-tokenizer does what that one does.
    match pre_tokenizer:
        case {"type": "Sequence", "pretokenizers": [only]}:
            pre_tokenizer = only
    # A name in NEUTRAL_VALUES is a section and a key. The section of the file's own fields is "".
    sections = {"": file, "model": file.get("model"), "pre_tokenizer": pre_tokenizer}
    for name, accepted in NEUTRAL_VALUES.items():
        section_name, _, key = name.rpartition(".")  # "model.type" -> "model", "type"
        value = sections[section_name]
        if isinstance(value, dict):
            value = value.get(key)
        # A section that is missing or not an object stands for its fields: None, or a wrong value.
        if value not in accepted:
            raise TokenizerError(
                f"{path}: {name} is {short_repr(value)}, expected {accepted[0]!r}, as in GPT-2"
            )


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """The contents of the file for a tokenizer, as transformers writes them."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    added = []
    for text, token_id in tokenizer.special_tokens.items():
        added.append(
            {
                "id": token_id,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": text in tokenizer.normalized_tokens,
                "special": text not in tokenizer.plain_tokens,
            }
        )
    ids = spelled_ids(tokenizer.merges, tokenizer.first_id) | tokenizer.special_tokens
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": dict(sorted(ids.items(), key=lambda item: item[1])),
            "merges": [[left, right] for left, right in tokenizer.merges],
        },
    }
