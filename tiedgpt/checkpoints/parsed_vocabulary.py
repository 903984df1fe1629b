"""What vocabulary files say, before it is checked, and the Tokenizer that follows from it."""

from dataclasses import dataclass, field
from typing import Any

from ..errors import TokenizerError, short_repr
from ..gpt2.tokenizer import EOT, Tokenizer, spelled_ids

Merges = list[tuple[str, str]]


@dataclass
class AddedToken:
    """A token that is read as one, before any merge."""

    text: str
    is_special: bool  # not every text may contain it
    is_normalized: bool  # it is searched for last: see Tokenizer


@dataclass
class ParsedVocabulary:
    """A vocabulary from one or several files. `name` is what errors call the files."""

    name: str
    merges: Merges
    # The ids of all tokens that a file lists. A file may give an id that is not a number.
    ids: dict[str, Any]
    added: dict[str, AddedToken] = field(default_factory=dict)  # by their texts

    def add_token(self, token: AddedToken, token_id: Any, name: str) -> None:
        """Add a token of the file `name`, which wins over the files before it.

        Raises TokenizerError if the token has another id already.
        """
        text = token.text
        if type(token_id) is not int:  # isinstance would accept True
            raise TokenizerError(
                f"{name}: token {short_repr(text)} has id {short_repr(token_id)}, expected an "
                "integer"
            )
        if self.ids.setdefault(text, token_id) != token_id:
            raise TokenizerError(
                f"{name}: token {short_repr(text)} has two ids, {short_repr(self.ids[text])} and "
                f"{token_id}"
            )
        self.added[text] = token

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, if the ids are those that follow from the merges.

        Tokens that no merge makes are special, and so are those that were added. Raises
        TokenizerError for a vocabulary that contradicts itself.
        """
        try:
            ordinary = self._ordinary_ids()
            first_id = ordinary["!"]  # the ids begin with the byte "!"
            special_tokens = {}
            for token, token_id in self.ids.items():
                if token not in ordinary or token in self.added:
                    special_tokens[token] = token_id
            return Tokenizer(
                merges=self.merges,
                special_tokens=special_tokens,
                first_id=first_id,
                plain_tokens=self._plain_tokens(),
                normalized_tokens=self._normalized_tokens(),
            )
        except TokenizerError as error:
            raise TokenizerError(f"{self.name}: {error}") from None

    def _plain_tokens(self) -> list[str]:
        """The added tokens that any text may contain."""
        plain = []
        for text, token in self.added.items():
            # The end of a document is special, whatever a file says.
            if not token.is_special and text != EOT:
                plain.append(text)
        return plain

    def _normalized_tokens(self) -> list[str]:
        """The added tokens that are searched for last."""
        return [text for text, token in self.added.items() if token.is_normalized]

    def _ordinary_ids(self) -> dict[str, int]:
        """The ids of bytes and merges. Raises TokenizerError if the files give others.

        The ids follow from the merges and from the first id, which is that of the byte "!".
        """
        for token, token_id in self.ids.items():
            if type(token_id) is not int:
                raise TokenizerError(
                    f"token {short_repr(token)} has id {short_repr(token_id)}, expected an integer"
                )
        first_id = self.ids.get("!", 0)  # if there is no "!", the loop raises
        ordinary = spelled_ids(self.merges, first_id)
        for token, token_id in ordinary.items():
            if self.ids.get(token) != token_id:
                self._check_merges()  # wrong merges make wrong ids, so they are the first error
                id_in_file = f"id {short_repr(self.ids[token])}" if token in self.ids else "no id"
                raise TokenizerError(
                    f"token {short_repr(token)} has {id_in_file}, expected {token_id}"
                )
        self._check_spaces(ordinary)
        return ordinary

    def _check_merges(self) -> None:
        """Raise TokenizerError if the merges contradict themselves. Tokenizer's checks do so."""
        Tokenizer(self.merges)

    def _check_spaces(self, ordinary: dict[str, int]) -> None:
        """Raise TokenizerError for a token with "Ġ" that is not ordinary.

        Only an ordinary token is written with "Ġ": in a special token, a space is a space.
        """
        for token in self.ids:
            if "Ġ" not in token or token in ordinary:
                continue
            if token in self.added:
                raise TokenizerError(
                    f'added token {short_repr(token)} contains "Ġ", which stands for a space in '
                    "ordinary tokens: such an added token is not read"
                )
            raise TokenizerError(f"no merge makes token {short_repr(token)}: merges are missing")


def parse_merges(spelled: list[Any], name: str, first: int) -> Merges:
    """The merges from a list of "a b" or ["a", "b"]. Raises TokenizerError.

    An error calls the first merge f"{name} {first}".
    """
    merges = []
    for number, merge in enumerate(spelled, first):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not _is_pair(pair):
            raise TokenizerError(f"{name} {number}: expected two tokens, got {short_repr(merge)}")
        left, right = pair
        merges.append((left, right))
    return merges


def _is_pair(pair: Any) -> bool:
    """Whether a value is a list of two texts that are not empty."""
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    left, right = pair
    return isinstance(left, str) and isinstance(right, str) and left != "" and right != ""
