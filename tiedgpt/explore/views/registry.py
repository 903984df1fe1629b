"""The views by name. `@view("name")` adds a function to them.

A view is called as view(query, turn). It returns one answer, or yields several, which the page gets
one by one.
"""

import json
from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import Any, TypeVar

from .query import Query

Answer = dict[str, Any]  # what `to_json` can write


class Turn:
    """The turn of a request to compute. This one is never interrupted; the server's can be."""

    def pause(self, _: int = 0) -> None:
        """Let other requests compute. Raises an exception if this request is not wanted any more.

        A view calls it between pieces of work. It can be an OnProgress, whose number is not needed.
        """

    def report(self, part: float) -> None:
        """Pause, and tell the page which part of the work is done, from 0 to 1."""
        self.pause()


View = Callable[[Query, Turn], Answer | Iterator[Answer]]
AnyView = TypeVar("AnyView", bound=View)
VIEWS: dict[str, View] = {}


def view(name: str) -> Callable[[AnyView], AnyView]:
    """Decorate the function that answers the page's requests with this name."""

    def add(function: AnyView) -> AnyView:
        VIEWS[name] = function
        return function  # as it is, so that it can be called in the usual way too

    return add


def to_json(answer: Any) -> str:
    """An answer as JSON: arrays as lists, NumPy's numbers as Python's."""
    return json.dumps(answer, allow_nan=False, default=methodcaller("tolist"))
