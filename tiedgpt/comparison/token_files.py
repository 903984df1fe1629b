"""A file with another GPT-2's prompt and greedy continuation, as ids or as text.

The file is one JSON object: {"prompt": "ROMEO:", "text": "\\nI'll"} or {"prompt_ids": [813, 25],
"ids": [198, 40, 457]}. What `tiedgpt generate --greedy --json` prints is such a file, too.

A text does not say of which tokens it was made. It is split as the tokenizer splits it, and
elsewhere as our model writes it, if our model's tokens there are the same text.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, TokenizerError, short_repr
from ..generation import check_prompt_ids
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from .recording import read_json_object
from .tokens import DRAWN

EXPECTED = '{"prompt": TEXT or "prompt_ids": [IDS], "text": TEXT or "ids": [IDS]}'
# Settings of sampling with the values that a greedy continuation can have
GREEDY_SETTINGS: dict[str, tuple[Any, ...]] = {
    "greedy": (True,),
    "do_sample": (False,),
    "temperature": (0, None),
    "repetition_penalty": (1, None),
}
MOST_SPACES = 4  # tokens of white space with which a continuation may begin
CUT_CHARACTER = "\ufffd"  # what programs print for bytes that are not a whole character


@dataclass(frozen=True)
class GreedyFile:
    prompt: str | list[int]
    continuation: str | list[int]
    greedy: bool | None  # True if the file says so, else None
    # "prompt" or "text", or both, if there are ids for the same tokens, which are read instead.
    unread: list[str]


def read_greedy_file(path: Path) -> GreedyFile:
    """The prompt and the continuation of a file. Raises ArgumentError, which names the file."""
    settings = read_json_object(path, EXPECTED)
    if "samples" in settings:  # `tiedgpt generate --json` wrote it
        samples = settings["samples"]
        if not isinstance(samples, list) or [type(sample) for sample in samples] != [dict]:
            raise ArgumentError(
                f'{path}: expected one sample, {{"samples": [{{"ids": [IDS]}}]}}, got '
                f"{short_repr(samples)}"
            )
        settings |= samples[0]

    for name, greedy_values in GREEDY_SETTINGS.items():
        value = settings.get(name, greedy_values[0])  # a file without it may be greedy
        if value not in greedy_values:
            raise ArgumentError(f"{path} has {name} {short_repr(value)}: {DRAWN}")
    unread = []
    for ids, text in (("prompt_ids", "prompt"), ("ids", "text")):
        if ids in settings and text in settings:
            unread.append(text)
    return GreedyFile(
        prompt=ids_or_text(settings, "prompt_ids", "prompt", path),
        continuation=ids_or_text(settings, "ids", "text", path),
        greedy=True if settings.get("greedy") else None,
        unread=unread,
    )


def ids_or_text(settings: dict[str, Any], ids: str, text: str, path: Path) -> str | list[int]:
    """The ids under the name `ids`; without them, the text under the name `text`."""
    name = ids if ids in settings else text
    if name not in settings:
        raise ArgumentError(f"{path} has neither {ids} nor {text}: expected {EXPECTED}")
    value = settings[name]
    if name == text and isinstance(value, str):
        return value
    is_ids = isinstance(value, list) and all(type(each) is int for each in value)
    if name == ids and is_ids:
        return value
    kind = "a list of token ids" if name == ids else "a text"
    raise ArgumentError(f"{path}: {name} must be {kind}, got {short_repr(value)}")


# A text


def needed_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise ArgumentError("the model has no tokenizer to read a text with: give ids")
    return tokenizer


def ids_of_text(
    model: GPT2, tokenizer: Tokenizer | None, prompt: list[int], text: str
) -> tuple[list[int], list[str]]:
    """The ids of a greedy continuation, and notes on how the text was read.

    Raises ArgumentError for a text that cannot be the whole continuation.
    """
    tokenizer = needed_tokenizer(tokenizer)
    notes = []
    prompt = check_prompt_ids(prompt, model.config)
    if text.endswith(CUT_CHARACTER):
        text = text.rstrip(CUT_CHARACTER)
        notes.append("the text ends within a character, which is not judged")
    if CUT_CHARACTER in text:
        raise ArgumentError(
            "the text has U+FFFD in it, which stands for bytes that are no character: give ids"
        )
    if not text:
        raise ArgumentError("the text is empty: there is nothing to judge")
    try:
        ids = tokenizer.encode(text, special="token")
    except TokenizerError as error:
        raise ArgumentError(f"the text cannot be read: {error}; give ids") from error
    splitter = Splitter(model, tokenizer, prompt, ids)
    splitter.refuse_a_stripped_text()
    notes += splitter.follow_our_model()
    return splitter.ids, notes


@dataclass
class Splitter:
    """A text as tokens: as the tokenizer splits it, but for our model's tokens where these are the
    same text."""

    model: GPT2
    tokenizer: Tokenizer
    prompt: list[int]
    ids: list[int]

    def best_after(self, ids: list[int]) -> list[int]:
        """Our model's likeliest token after the prompt, and after each of these ids."""
        logits = self.model([*self.prompt, *ids])[len(self.prompt) - 1 :]
        return [int(row.argmax()) for row in logits]

    def text_of(self, token: int) -> bytes:
        """The bytes of a token; none for one that only pads the vocabulary."""
        if token not in self.tokenizer.tokens:
            return b""
        return self.tokenizer.token_bytes(token)

    def refuse_a_stripped_text(self) -> None:
        """Raise ArgumentError for the prompt with its continuation, and for a continuation that
        lacks the white space that our model begins with."""
        theirs = self.tokenizer.decode_bytes(self.ids)
        prompt = b"".join(self.text_of(token) for token in self.prompt)
        if prompt and theirs.startswith(prompt):
            raise ArgumentError(
                "the text begins with the prompt: give what comes after it, which your program "
                "appended"
            )
        # Our model's continuation, up to the first token that is not white space.
        ours = b""
        tokens: list[int] = []
        room = self.model.config.n_ctx - len(self.prompt)
        while not ours.strip() and len(tokens) <= min(room, MOST_SPACES):
            *_, next_token = self.best_after(tokens)
            tokens.append(next_token)
            ours += self.text_of(next_token)
        stripped = ours.lstrip()
        begins_with_space = stripped != ours
        if stripped and begins_with_space and theirs.startswith(stripped):
            raise ArgumentError(
                f"the text begins with {short_repr(theirs[:8].decode(errors='replace'))}, this "
                f"model with {short_repr(ours.decode(errors='replace'))}: your program may have "
                "removed white space; give the text as it is, or ids"
            )

    def follow_our_model(self) -> list[str]:
        """Put our model's tokens where they are the same text. Notes that say where."""
        notes = []
        place = 0  # the ids before it stay as they are
        # How many tokens can be predicted: a full context still predicts the one after it.
        room = self.model.config.n_ctx - len(self.prompt) + 1
        while place < min(len(self.ids), room):
            best = self.best_after(self.ids[: room - 1])
            compared = range(place, min(len(best), len(self.ids)))
            departing = [n for n in compared if best[n] != self.ids[n]]
            if not departing:
                break
            place = departing[0]
            ours, end, is_cut = self.same_text(place, room)
            if not ours:  # our model writes another text: this id is a departure, and stays
                place += 1
                continue
            theirs = self.ids[place:end]
            self.ids[place:end] = ours
            if is_cut:
                notes.append(f"the text ends within tokens[{place + len(ours) - 1}], {ours[-1]}")
            else:
                notes.append(
                    f"the text at tokens[{place}] is read as {ours}, as this model writes it; the "
                    f"tokenizer splits it into {theirs}"
                )
            place += len(ours)
        return notes

    def same_text(self, place: int, room: int) -> tuple[list[int], int, bool]:
        """Our model's tokens from a place in `ids` on, until they end where one of `ids` ends.

        Returns our tokens; the place in `ids` after them; and whether the whole text ended within
        the last of them. No tokens if our model writes another text, or fills the `room` of its
        context before one of our tokens and one of `ids` end together.
        """
        different: tuple[list[int], int, bool] = ([], place, False)
        ends = {}  # bytes of text after the place -> the place in `ids` after these bytes
        size = 0  # bytes
        for end in range(place, len(self.ids)):
            size += len(self.text_of(self.ids[end]))
            ends[size] = end + 1
        text = self.tokenizer.decode_bytes(self.ids[place:])
        ours: list[int] = []
        size = 0  # bytes that our tokens have written
        while place + len(ours) < room:
            token = self.best_after([*self.ids[:place], *ours])[-1]
            written = self.text_of(token)
            rest = text[size:]
            ours.append(token)
            size += len(written)
            if not written:  # a token that only pads the vocabulary
                return different
            if rest.startswith(written):
                if size in ends:
                    return ours, ends[size], False
            elif written.startswith(rest):  # the text ends within our token
                return ours, len(self.ids), True
            else:
                return different
        return different
