"""The special tokens that settings name: {"pad_token": "<pad>"}. transformers 5 reads them so, too.

A named token is special, whatever other files say of it. One that is not in the vocabulary is
appended to it, so its id follows from the order of the names.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import TokenizerError, short_repr
from ..gpt2.tokenizer import EOT
from .parsed_vocabulary import AddedToken, ParsedVocabulary
from .tokenizer_json import parse_added_token

# The names that transformers knows, in the order in which it appends their tokens.
NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# Those that stand for <|endoftext|> if the settings lack them.
NAMES_OF_EOT = ("bos_token", "eos_token", "unk_token")
EXTRA = "extra_special_tokens"
EXTRA_IN_4 = "additional_special_tokens"  # their name in transformers 4


@dataclass
class NamedTokens:
    """The special tokens of settings. `path` is the file that errors name."""

    path: Path
    named: dict[str, AddedToken]  # by name
    extra: list[AddedToken]  # without names
    implies_eot: bool  # a name is missing that stands for <|endoftext|> then

    def texts(self) -> set[str]:
        """The texts of all tokens."""
        return {token.text for token in [*self.named.values(), *self.extra]}

    def add_to(self, vocabulary: ParsedVocabulary) -> None:
        """Make the tokens special. Append those that the vocabulary lacks.

        Raises TokenizerError where it is not certain which id transformers gives.
        """
        for name, token in self.named.items():
            if token.text not in vocabulary.added:
                self._append(vocabulary, token, name)
            vocabulary.added[token.text].is_special = True
        for token in self.extra:
            # Without a name, a token that another file describes stays as it is there.
            if token.text not in vocabulary.added:
                self._append(vocabulary, token, EXTRA)

    def _append(self, vocabulary: ParsedVocabulary, token: AddedToken, name: str) -> None:
        """Add a token with its id in the vocabulary, or else with the next id."""
        ids = vocabulary.ids
        is_new = token.text not in ids and token.text != EOT
        # GPT2Tokenizer would append <|endoftext|> before it, TokenizersBackend would not.
        if is_new and self.implies_eot and EOT not in ids:
            raise TokenizerError(
                f"{self.path}: {name} is {short_repr(token.text)}, and neither this nor {EOT} is "
                "in the vocabulary: which ids transformers gives them depends on tokenizer_class; "
                "add both to added_tokens_decoder"
            )
        token_id = ids.get(token.text, len(ids))
        vocabulary.add_token(token, token_id, f"{self.path}")


def merged_settings(settings: dict[str, Any], special_tokens_map: dict[str, Any]) -> dict[str, Any]:
    """The settings of tokenizer_config.json with those of special_tokens_map.json, which win.

    Of the extra tokens, those of both files count.
    """
    merged = settings | special_tokens_map
    extra = settings.get(EXTRA)
    more = special_tokens_map.get(EXTRA)
    if isinstance(extra, list) and isinstance(more, list):
        merged[EXTRA] = extra + [token for token in more if token not in extra]
    return merged


def parse_named_tokens(settings: dict[str, Any], path: Path) -> NamedTokens:
    """The tokens that settings name. Raises TokenizerError for what is not a token."""
    named = {}
    for name in NAMES:
        if settings.get(name) is not None:
            named[name] = _parse_token(settings[name], name, path)

    # Models may have names of their own. A setting such as add_bos_token ends like a name, but its
    # value is not a text.
    for name, value in settings.items():
        if name.endswith("_token") and name not in NAMES and isinstance(value, str):
            named[name] = _parse_token(value, name, path)

    extra = settings.get(EXTRA) or settings.get(EXTRA_IN_4) or []
    if isinstance(extra, dict):  # these have names too
        for name, value in extra.items():
            named[name] = _parse_token(value, name, path)
        extra = []
    if not isinstance(extra, list):
        raise TokenizerError(f"{path}: {EXTRA} must be a list, got {short_repr(extra)}")
    return NamedTokens(
        path=path,
        named=named,
        extra=[_parse_token(value, EXTRA, path) for value in extra],
        implies_eot=any(name not in settings for name in NAMES_OF_EOT),
    )


def _parse_token(value: Any, name: str, path: Path) -> AddedToken:
    """A token that is given as its text, or as an object, as in added_tokens."""
    if isinstance(value, dict):
        return parse_added_token(value, path)
    if not isinstance(value, str) or not value:
        raise TokenizerError(f"{path}: {name} is {short_repr(value)}, expected the text of a token")
    return AddedToken(value, is_special=True, is_normalized=False)
