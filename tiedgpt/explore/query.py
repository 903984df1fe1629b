"""A request of the page: its fields as values that the library takes.

The library checks most values, as it does for the command line. What only a page sends is checked
here.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import ArgumentError, Range, short_repr
from ..generation import check_prompt_ids
from ..gpt2.model import GPT2
from ..gpt2.run import Tape
from ..sampling import Sampling
from ..study import paths
from .shown import ShownModels


@dataclass(frozen=True)
class Query:
    """The fields that the page sent, and the models that it shows.

    Each attribute reads and checks its own field. It raises ArgumentError for one that is missing
    or wrong.
    """

    shown: ShownModels
    fields: dict[str, Any]

    @property
    def side(self) -> int:
        """Which of the models the page asks about, 0 or 1."""
        return self.number("side", Range(0, len(self.shown.models) - 1), default=0)

    @property
    def head(self) -> str:
        """The head of the model that the page asks about, its own if it does not say."""
        heads = list(self.shown.by_head[self.side])
        head = self.fields.get("head", heads[0])
        return self.one_of("head", head, heads)

    @property
    def model(self) -> GPT2:
        """The model that the page asks about, with the head that it asks for."""
        return self.shown.by_head[self.side][self.head]

    @cached_property
    def text_ids(self) -> list[int]:
        """The whole text, sent as ids or as a string. It fits the context of each model."""
        ids = self.fields.get("ids")
        if ids is None:
            text = self.fields.get("text")
            if not isinstance(text, str):
                raise ArgumentError(f"text must be a string, got {short_repr(text)}")
            ids = self.shown.tokenizer.encode(text, special="text")
        for model in self.shown.models:
            ids = check_prompt_ids(ids, model.config)
        return ids

    @property
    def prompt_ids(self) -> list[int]:
        """The text up to the token that the reader has chosen."""
        last = len(self.text_ids) - 1
        if self.fields.get("place") is not None:
            last = self.number("place", Range(0, last))
        return self.text_ids[: last + 1]

    @property
    def tape(self) -> Tape:
        """The activations of the prompt's last tokens."""
        return self.shown.tape(self.side, self.prompt_ids)

    @property
    def logits(self) -> np.ndarray:  # -> [V]
        """The logits of the token after the prompt."""
        return self.shown.logits(self.side, self.head, self.prompt_ids)

    @property
    def sampling(self) -> Sampling:
        """How tokens are drawn. A field that is not sent, or null, has its default."""
        sent = {}
        for setting in fields(Sampling):
            value = self.fields.get(setting.name)
            if value is not None:
                sent[setting.name] = value
        return Sampling(**sent)

    @property
    def path(self) -> paths.Path:
        """The path from a token to logits that the page asks for."""
        known_paths = paths.paths_of(self.model)
        name = self.one_of("path", self.fields.get("path"), list(known_paths))
        return known_paths[name]

    @property
    def removed_parts(self) -> list[str]:
        """The names of the parts that a prediction does without."""
        removed = self.fields.get("removed", [])
        if not isinstance(removed, list):
            raise ArgumentError(f"removed must be a list of parts, got {short_repr(removed)}")
        return [str(name) for name in removed]

    def number(self, name: str, accepted: Range, default: Any = None) -> int:
        """A whole number that the page sent."""
        number: int = accepted.check(name, self.fields.get(name, default))
        return number

    def one_of(self, name: str, value: Any, known: list[str]) -> str:
        """A word that the page sent, if it is known. (A value without a hash is in no set.)"""
        if value not in known:
            raise ArgumentError(
                f"{name} must be one of {', '.join(known)}, got {short_repr(value)}"
            )
        return str(value)
