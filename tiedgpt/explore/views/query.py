"""A request of the page: its fields as values that the library takes.

The library checks most values, as it does for the command line. What only a page sends is checked
here.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import ArgumentError, Range, short_repr
from ...gpt2.checks import check_prompt_ids
from ...gpt2.model import GPT2
from ...sampling import Sampling
from ...study import paths, toy
from ..shown import ShownModels

NEW_TOKENS = Range(1, 200)
SEED = Range(0, 2**32)
SIZES = {"vocab": Range(1, 10**7), "dim": Range(1, 10**6), "total": Range(1, 10**15)}
MAX_TOY_SIZE = 8  # rows and columns
MAX_TOY_NUMBER = 100


@dataclass(frozen=True)
class Query:
    """The fields that the page sent, and the models that it shows.

    Each attribute reads and checks its own field. It raises ArgumentError for one that is missing
    or wrong.
    """

    shown: ShownModels
    fields: dict[str, Any]

    @cached_property
    def model(self) -> GPT2:
        """The model that the page asks about, "side" 0 or 1, with the "head" that it asks for."""
        last_side = len(self.shown.models) - 1
        side = Range(0, last_side).check("side", self.fields.get("side", 0))
        models = self.shown.by_head[side]
        heads = list(models)
        head = self.fields.get("head", heads[0])
        if head not in heads:  # `heads` is a list, because `head` may have no hash
            raise ArgumentError(f"head must be one of {', '.join(heads)}, got {short_repr(head)}")
        return models[head]

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

    @cached_property
    def prompt_ids(self) -> list[int]:
        """The text up to the token that the reader has chosen."""
        ids = self.text_ids
        place = self.fields.get("place")
        if place is None:
            return ids
        last = Range(0, len(ids) - 1).check("place", place)
        return ids[: last + 1]

    @cached_property
    def sampling(self) -> Sampling:
        """How tokens are drawn. A field that is not sent, or null, has its default."""
        sent = {}
        for setting in fields(Sampling):
            value = self.fields.get(setting.name)
            if value is not None:
                sent[setting.name] = value
        return Sampling(**sent)

    @property
    def new_tokens(self) -> int:
        """How many tokens the model writes."""
        return NEW_TOKENS.check("n", self.fields.get("n"))

    @property
    def seed(self) -> int:
        """The seed of the text that the model writes."""
        return SEED.check("seed", self.fields.get("seed"))

    @property
    def path(self) -> paths.Path:
        """The path from a token to logits that the page asks for."""
        known_paths = paths.paths_of(self.model)
        name = self.fields.get("path")
        if name not in list(known_paths):  # a list, because `name` may have no hash
            names = ", ".join(known_paths)
            raise ArgumentError(f"path must be one of {names}, got {short_repr(name)}")
        return known_paths[name]

    @property
    def removed_parts(self) -> list[str]:
        """The names of the parts that a prediction does without."""
        removed = self.fields.get("removed", [])
        if not isinstance(removed, list):
            raise ArgumentError(f"removed must be a list of parts, got {short_repr(removed)}")
        return [str(name) for name in removed]

    @property
    def token(self) -> Any:
        """The token whose prediction is shown; None for the likeliest. The library checks it."""
        return self.fields.get("token")

    @property
    def solves_W_E(self) -> bool:
        """Whether the best W_E takes the place of the reader's."""
        return bool(self.fields.get("solve_W_E"))

    def toy_matrix(self, name: str) -> np.ndarray:
        """A small matrix, "W_E" or "P", of the model of three words."""
        matrix = toy.as_matrix(name, self.fields.get(name))
        if max(matrix.shape) > MAX_TOY_SIZE or abs(matrix).max() > MAX_TOY_NUMBER:
            raise ArgumentError(
                f"{name} must have at most {MAX_TOY_SIZE} rows and columns, "
                f"of numbers from -{MAX_TOY_NUMBER} to {MAX_TOY_NUMBER}"
            )
        return matrix

    def size(self, name: str) -> int:
        """The "vocab", "dim" or "total" of the calculator."""
        return SIZES[name].check(name, self.fields.get(name))
