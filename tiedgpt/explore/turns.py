"""Requests that compute in turns, first come, first served."""

import threading
import time
from collections import deque
from collections.abc import Callable

from .views.registry import Turn

CHECK_SECONDS = 0.05  # between two checks of a request that waits
PROGRESS_SECONDS = 0.2  # between two reports of a computation


class TurnQueue:
    """The requests that wait for their turns; the first one has it."""

    def __init__(self) -> None:
        self._requests: deque[object] = deque()
        self._changed = threading.Condition()

    def wait_for_turn(self, request: object, check: Callable[[], None]) -> None:
        """Wait for the turn. The request must call `end_turn` afterwards.

        Raises what `check` raises; then too, the request must call `end_turn`.
        """
        with self._changed:
            self._requests.append(request)
            while self._requests[0] is not request:
                self._changed.wait(CHECK_SECONDS)
                check()
        check()  # for a request that did not wait too

    def end_turn(self, request: object) -> None:
        """Give the turn to the next request, or leave the queue before the turn."""
        with self._changed:
            self._requests.remove(request)
            self._changed.notify_all()


class QueuedTurn(Turn):
    """A turn that ends at each pause, and begins again after those of the requests that wait.

    `with QueuedTurn(...)` waits for the first one. `check` raises if the request is not wanted any
    more. `send_part` tells the page which part is done, at most every PROGRESS_SECONDS.
    """

    def __init__(
        self, queue: TurnQueue, check: Callable[[], None], send_part: Callable[[float], None]
    ) -> None:
        self.queue = queue
        self.check = check
        self.send_part = send_part
        self.last_report = time.monotonic()

    def __enter__(self) -> "QueuedTurn":
        try:
            self.queue.wait_for_turn(self, self.check)
        except BaseException:
            self.queue.end_turn(self)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.queue.end_turn(self)

    def pause(self, _: int = 0) -> None:
        """Let the requests that wait compute first. The argument is not needed: see Turn.pause."""
        self.queue.end_turn(self)
        self.queue.wait_for_turn(self, self.check)

    def report(self, part: float) -> None:
        """Pause, and tell the page which part is done. A report too soon after one is not sent."""
        self.pause()
        now = time.monotonic()
        if now - self.last_report > PROGRESS_SECONDS:
            self.last_report = now
            self.send_part(part)
