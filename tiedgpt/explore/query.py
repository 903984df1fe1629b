"""A request of the page: its fields as values that the library takes, and the models it is about.

The library checks most values, as it checks those of the command line. What only a page sends is
checked here.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ..errors import ArgumentError, Range, short_repr
from ..generation import Sampling, check_prompt_ids
from ..gpt2.model import GPT2, unembed
from ..gpt2.run import Tape
from ..gpt2.tokenizer import Tokenizer
from ..study import paths, predictions
from ..study.corpus import Corpus
from ..threads import one_blas_thread

ATTENTION_TOKENS = 32  # the most tokens of a prompt that a tape has
FEW_TOKENS = 4  # of a prompt for which BLAS has all its threads
SHAKESPEARE_PROMPTS = (
    "ROMEO:\nMy lord, I will not",
    "to be, or not to be",
    "What say you, my lord?",
    "I have been a man of",
)
OTHER_PROMPTS = (
    "New York City is in New York",
    "Alan Turing theorized that computers would one day become",
    "The capital of France is Paris. The capital of Italy is",
    "In the United States of America, the United States",
)


class ShownModels:
    """One or two models with their names, their tokenizer, and a named corpus to compare with.

    `by_head` has each model with the heads that it can use, its own first. A tied model has no
    separate W_U, so it has the tied head only.
    """

    def __init__(
        self,
        named_models: Sequence[tuple[str, GPT2]],
        tokenizer: Tokenizer,
        named_corpus: tuple[str, Corpus] | None = None,
    ) -> None:
        self.names = [name for name, _ in named_models]
        self.models = [model for _, model in named_models]
        self.by_head = []
        for model in self.models:
            # Of a tied model, both keys are "tied".
            self.by_head.append({model.config.head: model, "tied": model.tie()})
        self.tokenizer = tokenizer
        self.corpus_name: str | None = None
        self.corpus: Corpus | None = None
        if named_corpus is not None:
            self.corpus_name, self.corpus = named_corpus

        # GPT-2's vocabulary has a token for a name such as " York", and can predict it. The small
        # vocabulary of the Shakespeare models splits the name.
        york_tokens = tokenizer.encode(" York")
        self.prompts = OTHER_PROMPTS if len(york_tokens) == 1 else SHAKESPEARE_PROMPTS

        # The page asks for a tape again and again while the reader changes one thing. It takes much
        # memory, so few are kept.
        self._tape = lru_cache(maxsize=4)(self._read_tape)

    def tape(self, side: int, ids: list[int]) -> Tape:
        """The activations of a prompt's last tokens. They do not depend on the head."""
        return self._tape(side, tuple(ids))

    def logits(self, side: int, head: str, ids: list[int]) -> np.ndarray:  # -> [V]
        """The logits of the token after a prompt."""
        final = self.tape(side, ids)["final"][0, -1]  # [D]
        return unembed(final, self.by_head[side][head].W_U)

    def _read_tape(self, side: int, ids: tuple[int, ...]) -> Tape:
        with blas_threads_for(ids):
            tape = predictions.last_tape(self.models[side], list(ids), ATTENTION_TOKENS)

        # A pattern has a column for each token of the prompt. The copy has the last columns only,
        # and the memory of the whole pattern is freed.
        for name in tape:
            if "pattern" in name:
                tape[name] = tape[name][..., -ATTENTION_TOKENS:].copy()
        return tape


def blas_threads_for(ids: Sequence[int]) -> AbstractContextManager[None]:
    """One BLAS thread for a long prompt: two wait for each other when the cores are busy."""
    if len(ids) > FEW_TOKENS:
        return one_blas_thread()
    return nullcontext()


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
        """The path from a token to logits that the page names."""
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
        """A word that the page sent, if it is known."""
        # known is a list: a value of any type may be sent, and a set refuses one without a hash.
        if value not in known:
            raise ArgumentError(
                f"{name} must be one of {', '.join(known)}, got {short_repr(value)}"
            )
        return str(value)
