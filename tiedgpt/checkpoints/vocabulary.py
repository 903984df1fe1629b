"""The tokenizer of a directory: which of its vocabulary files are read, and how they are written.

tokenizer.json comes first, as in transformers; else merges.txt with vocab.json, as OpenAI published
them. The ids of ordinary tokens follow from the merges. They are compared with vocab.json
nevertheless, and tokenizer.json with merges.txt, because files that disagree do not describe one
vocabulary. added_tokens.json and tokenizer_config.json may add tokens to both.
"""

import json
import re
import warnings
from pathlib import Path

from ..errors import CheckpointError, TiedGPTWarning, TokenizerError, short_repr
from ..gpt2.tokenizer import EOT, Tokenizer, spelled_ids
from .parsed_vocabulary import ParsedVocabulary, parse_merges
from .reading import directory_of, read_json, read_text
from .tokenizer_json import TOKENIZER_JSON, add_token, parse_tokenizer_json, tokenizer_json

ADDED = "added_tokens.json"
SETTINGS = "tokenizer_config.json"
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
    if (directory / ADDED).is_file():
        _add_from_added_tokens(vocabulary, directory / ADDED)
    if (directory / SETTINGS).is_file():
        _apply_settings(vocabulary, directory / SETTINGS)
    return vocabulary.tokenizer()


def _parse_vocabulary(directory: Path) -> ParsedVocabulary:
    """The vocabulary of tokenizer.json or of merges, without the tokens that other files add."""
    vocabulary = None
    if (directory / TOKENIZER_JSON).is_file():
        vocabulary = parse_tokenizer_json(directory / TOKENIZER_JSON)
    for merges, vocab in MERGES_AND_VOCAB:  # under Hugging Face's names, else under OpenAI's
        if not (directory / merges).is_file():
            continue
        if vocabulary is None:
            return _parse_merges_and_vocab(directory / merges, directory / vocab)
        _check_same_merges(vocabulary, directory / merges, directory / vocab)
        return vocabulary
    if vocabulary is None:
        raise CheckpointError(
            f"{directory} has no tokenizer: expected merges.txt and vocab.json, or tokenizer.json"
        )
    return vocabulary


def read_merges(path: Path, vocab_path: Path | None = None) -> Tokenizer:
    """From merges.txt (OpenAI: vocab.bpe), and vocab.json (encoder.json) if it is given."""
    return _parse_merges_and_vocab(path, vocab_path).tokenizer()


def read_tokenizer_json(path: Path) -> Tokenizer:
    """From tokenizer.json alone."""
    return parse_tokenizer_json(path).tokenizer()


def _parse_merges_and_vocab(path: Path, vocab_path: Path | None) -> ParsedVocabulary:
    """The vocabulary of two files; of the merges alone if the other one is not there."""
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
    first_line = 1  # the number of the line of the first merge
    if has_version or is_empty:
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
        # A token that tokenizer.json does not have is no contradiction.
        expected = vocabulary.ids.get(token, token_id)
        if token not in vocabulary.added and token_id != expected:
            raise TokenizerError(
                f"{vocabulary.name}: token {short_repr(token)} has id {short_repr(expected)}, but "
                f"{short_repr(token_id)} in {vocab_path.name} beside it; remove the file that is "
                "wrong"
            )


def _add_from_added_tokens(vocabulary: ParsedVocabulary, path: Path) -> None:
    """Add the tokens of added_tokens.json: text -> id."""
    for text, token_id in read_json(path).items():
        if text not in vocabulary.added:  # else tokenizer.json has it, and says more of it
            vocabulary.add_token(text, token_id, is_special=True, name=f"{path}")
    vocabulary.name += f" and {path.name}"


def _apply_settings(vocabulary: ParsedVocabulary, path: Path) -> None:
    """Add the tokens of tokenizer_config.json. Refuse or name what would give other ids."""
    settings = read_json(path)
    if settings.get("add_prefix_space"):
        raise TokenizerError(f"{path}: add_prefix_space is true, expected false, as in GPT-2")
    if settings.get("add_bos_token"):
        warnings.warn(
            f"{path}: add_bos_token is true, but tiedgpt puts no token before a text: write "
            "<|endoftext|> there, and allow special tokens",
            TiedGPTWarning,
            stacklevel=3,
        )
    decoder = settings.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise TokenizerError(
            f"{path}: added_tokens_decoder must be an object, got {short_repr(decoder)}"
        )
    for key, token in decoder.items():  # "50257": {"content": "<pad>", ...}
        token_id = int(key) if re.fullmatch("[0-9]{1,19}", key) else None
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
    added = {token: n for token, n in tokenizer.special_tokens.items() if token != EOT}
    if added:
        files[ADDED] = json.dumps(added)
        files[TOKENIZER_JSON] = json.dumps(tokenizer_json(tokenizer))
    return files
