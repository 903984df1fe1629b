"""The tokenizer of a directory: which of its vocabulary files are read, and how they are written.

tokenizer.json comes first, as in transformers; else merges.txt with vocab.json, as OpenAI published
them. The ids of ordinary tokens follow from the merges. They are compared with vocab.json
nevertheless, and tokenizer.json with merges.txt, because files that disagree do not describe one
vocabulary. added_tokens.json, tokenizer_config.json and special_tokens_map.json may add tokens to
both.
"""

import json
import re
import warnings
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, TiedGPTWarning, TokenizerError, short_repr
from ..gpt2.tokenizer import EOT, Tokenizer, spelled_ids
from .named_tokens import NamedTokens, merged_settings, parse_named_tokens
from .parsed_vocabulary import AddedToken, ParsedVocabulary, parse_merges
from .reading import directory_of, read_json, read_text
from .tokenizer_json import TOKENIZER_JSON, add_token, parse_tokenizer_json, tokenizer_json

ADDED = "added_tokens.json"
SETTINGS = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
MERGES_AND_VOCAB = (
    ("merges.txt", "vocab.json"),  # Hugging Face's names
    ("vocab.bpe", "encoder.json"),  # OpenAI's
)


def read_tokenizer(model: Path) -> Tokenizer:
    """The tokenizer of a model: the directory itself, or the one of its file.

    Raises CheckpointError for files that are missing or malformed, TokenizerError for a vocabulary
    that contradicts itself or would give other ids than Tokenizer does. So do the functions below.
    """
    directory = directory_of(model)
    vocabulary = _parse_vocabulary(directory)
    settings = {}
    if (directory / SETTINGS).is_file():
        settings = read_json(directory / SETTINGS)
        _check_settings(settings, directory / SETTINGS)
    named_tokens = _named_tokens(settings, directory)
    if (directory / ADDED).is_file():
        _add_from_added_tokens(vocabulary, directory / ADDED, named_tokens.texts())
    _add_from_decoder(vocabulary, settings, directory / SETTINGS)
    named_tokens.add_to(vocabulary)
    return vocabulary.tokenizer()


def _parse_vocabulary(directory: Path) -> ParsedVocabulary:
    """The vocabulary of tokenizer.json or of merges, without the tokens that other files add."""
    merges_and_vocab = _find_merges_and_vocab(directory)
    if (directory / TOKENIZER_JSON).is_file():
        vocabulary = parse_tokenizer_json(directory / TOKENIZER_JSON)
        if merges_and_vocab is not None:
            _check_same_merges(vocabulary, *merges_and_vocab)
        return vocabulary
    if merges_and_vocab is not None:
        return _parse_merges_and_vocab(*merges_and_vocab)
    raise CheckpointError(
        f"{directory} has no tokenizer: expected merges.txt and vocab.json, or tokenizer.json"
    )


def _find_merges_and_vocab(directory: Path) -> tuple[Path, Path] | None:
    """The paths of merges.txt and vocab.json under either name; None if there are no merges.

    vocab.json itself may be missing.
    """
    for merges, vocab in MERGES_AND_VOCAB:
        if (directory / merges).is_file():
            return directory / merges, directory / vocab
    return None


def read_merges(path: Path, vocab_path: Path | None = None) -> Tokenizer:
    """The tokenizer of merges.txt (OpenAI: vocab.bpe) and, if given, vocab.json (encoder.json)."""
    return _parse_merges_and_vocab(path, vocab_path).tokenizer()


def read_tokenizer_json(path: Path) -> Tokenizer:
    """The tokenizer of tokenizer.json alone."""
    return parse_tokenizer_json(path).tokenizer()


def _parse_merges_and_vocab(path: Path, vocab_path: Path | None) -> ParsedVocabulary:
    """The vocabulary of merges.txt and vocab.json, or of merges.txt alone.

    `path` is merges.txt. `vocab_path` may be None or missing: the ids then follow from the merges,
    and <|endoftext|> is the last token.
    """
    merges = _parse_merges_txt(path)
    if vocab_path is None or not vocab_path.is_file():
        ids = spelled_ids(merges, 0) | {EOT: 256 + len(merges)}
        return ParsedVocabulary(f"{path}", merges, ids)
    return ParsedVocabulary(f"{path} with {vocab_path.name}", merges, read_json(vocab_path))


def _parse_merges_txt(path: Path) -> list[tuple[str, str]]:
    """The merges, one a line: "h e". The first line may be "#version: 0.2"."""
    lines = read_text(path).replace("\r\n", "\n").rstrip("\n").split("\n")
    is_empty = lines == [""]
    has_version = lines[0].startswith("#version")
    first_line = 1  # the number of the line with the first merge
    if has_version or is_empty:  # an empty text is one empty line, which is not a merge
        first_line = 2
    return parse_merges(lines[first_line - 1 :], f"{path}, line", first_line)


def _check_same_merges(vocabulary: ParsedVocabulary, path: Path, vocab_path: Path) -> None:
    """Raise TokenizerError if merges.txt or vocab.json have other ordinary tokens."""
    merges = _parse_merges_txt(path)
    if merges != vocabulary.merges:
        raise TokenizerError(
            f"{vocabulary.name}: its {len(vocabulary.merges)} merges are not the {len(merges)} of "
            f"{path.name} beside it; remove the file that is wrong"
        )
    if not vocab_path.is_file():
        return
    for token, token_id in read_json(vocab_path).items():
        # Only ordinary tokens are compared, if both files have them.
        is_ordinary = token in vocabulary.ids and token not in vocabulary.added
        if is_ordinary and token_id != vocabulary.ids[token]:
            expected = vocabulary.ids[token]
            raise TokenizerError(
                f"{vocabulary.name}: token {short_repr(token)} has id {short_repr(expected)}, but "
                f"{short_repr(token_id)} in {vocab_path.name} beside it; remove the file that is "
                "wrong"
            )


def _add_from_added_tokens(vocabulary: ParsedVocabulary, path: Path, named: set[str]) -> None:
    """Add the tokens of added_tokens.json: text -> id. `named` are the texts of named tokens."""
    for text, token_id in read_json(path).items():
        # A token that is there already is from tokenizer.json, which also says if it is special.
        if text not in vocabulary.added:
            token = AddedToken(text, is_special=True, is_normalized=text not in named)
            vocabulary.add_token(token, token_id, f"{path}")
    vocabulary.name += f" and {path.name}"


def _named_tokens(settings: dict[str, Any], directory: Path) -> NamedTokens:
    """The tokens that tokenizer_config.json or special_tokens_map.json name.

    transformers reads the second file only if the first has no added_tokens_decoder.
    """
    path = directory / SPECIAL_TOKENS_MAP
    if "added_tokens_decoder" in settings or not path.is_file():
        return parse_named_tokens(settings, directory / SETTINGS)
    return parse_named_tokens(merged_settings(settings, read_json(path)), path)


def _check_settings(settings: dict[str, Any], path: Path) -> None:
    """Raise TokenizerError for a prefix space, which would give other ids.

    A first or a last token that other programs would add is named in a warning.
    """
    if settings.get("add_prefix_space"):
        raise TokenizerError(f"{path}: add_prefix_space is true, expected false, as in GPT-2")
    if settings.get("add_bos_token"):
        warnings.warn(
            f"{path}: add_bos_token is true, but tiedgpt puts no token before a text: write "
            "<|endoftext|> there, and allow special tokens",
            TiedGPTWarning,
            stacklevel=3,  # the line that called read_tokenizer
        )
    if settings.get("add_eos_token"):
        warnings.warn(
            f"{path}: add_eos_token is true, but tiedgpt puts no token after a text: write "
            "<|endoftext|> there, and allow special tokens",
            TiedGPTWarning,
            stacklevel=3,
        )


def _add_from_decoder(vocabulary: ParsedVocabulary, settings: dict[str, Any], path: Path) -> None:
    """Add the tokens of added_tokens_decoder. What it says of them wins, as in transformers."""
    decoder = settings.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise TokenizerError(
            f"{path}: added_tokens_decoder must be an object, got {short_repr(decoder)}"
        )
    for key, token in decoder.items():  # "50257": {"content": "<pad>", ...}
        is_number = re.fullmatch("[0-9]{1,19}", key)
        token_id = int(key) if is_number else None  # add_token refuses None
        add_token(vocabulary, token, token_id, path)
    if decoder:
        vocabulary.name += f" and {path.name}"


def vocabulary_files(tokenizer: Tokenizer) -> dict[str, str]:
    """The contents of merges.txt and vocab.json, by name. For GPT-2 they are OpenAI's files.

    If there are other special tokens than <|endoftext|>, added_tokens.json and tokenizer.json are
    written too. Without them, transformers would read these tokens as text.
    """
    lines = ["#version: 0.2"] + [f"{left} {right}" for left, right in tokenizer.merges]
    ids = spelled_ids(tokenizer.merges, tokenizer.first_id) | tokenizer.special_tokens
    vocab = dict(sorted(ids.items(), key=lambda item: item[1]))
    files = {
        "merges.txt": "".join(f"{line}\n" for line in lines),
        "vocab.json": json.dumps(vocab),
    }
    added_ids = {}
    for token, token_id in tokenizer.special_tokens.items():
        if token != EOT:
            added_ids[token] = token_id
    if added_ids:
        files[ADDED] = json.dumps(added_ids)
        files[TOKENIZER_JSON] = json.dumps(tokenizer_json(tokenizer))
    return files
