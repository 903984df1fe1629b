"""What vocabulary files say, before it is checked, and the Tokenizer that follows from it."""

from dataclasses import dataclass, field
from typing import Any

from ..errors import TokenizerError, short_repr
from ..gpt2.tokenizer import EOT, Tokenizer, spelled_ids

Merges = list[tuple[str, str]]


@dataclass
class ParsedVocabulary:
    """A vocabulary from one or several files. `name` is what errors call the files."""

    name: str
    merges: Merges
    # The ids of all tokens that a file lists. A file may give an id that is not a number.
    ids: dict[str, Any]
    added: set[str] = field(default_factory=set)  # read as one token, before any merge
    plain: set[str] = field(default_factory=set)  # those of `added` that any text may contain

    def add_token(self, text: str, token_id: Any, is_special: bool, name: str) -> None:
        """Add a token of the file `name`. Raises TokenizerError if it has another id already."""
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
        self.added.add(text)
        # A plain token may be in any text. The end of a document may not, whatever a file says.
        if not is_special and text != EOT:
            self.plain.add(text)

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
            return Tokenizer(self.merges, special_tokens, first_id, self.plain)
        except TokenizerError as error:
            raise TokenizerError(f"{self.name}: {error}") from None

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
        for token in self.ids:
            # Only an ordinary token is written with "Ġ": in a special token, a space is a space.
            if "Ġ" in token and token not in ordinary:
                raise TokenizerError(
                    f"no merge makes token {short_repr(token)}: merges are missing"
                )
        return ordinary

    def _check_merges(self) -> None:
        """Raise TokenizerError if the merges contradict themselves. Tokenizer's checks do so."""
        Tokenizer(self.merges)


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
