"""Background: one question at a time to a helper process, asked again and again without ever waiting for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from rtdebug.export.helper import Helper
from rtdebug.export.messages import Receiver, send

R = TypeVar("R")


class Background(Generic[R]):
    """Runs functions in helper processes, one after the other; what takes longer than `patience_s` is given up.

    A pause of `cost_share` times what it took follows each: so little of a CPU it takes at most.
    """

    def __init__(
        self, patience_s: float, pause_s: float, cost_share: float = 20, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._patience_s = patience_s
        self._pause_s = pause_s
        self._cost_share = cost_share
        self._now_s = now_s
        self._helper: Helper | None = None
        self._answer: Receiver | None = None
        self._began_s = 0.0
        self._next_s = 0.0

    def may_ask(self) -> bool:
        """Whether nothing runs, what was given up has gone, and the pause is over."""
        return self._answer is None and self._is_free() and self._now_s() >= self._next_s

    def ask(self, function: Callable[[], R]) -> None:
        """Call it in a helper process."""
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        self._began_s = self._now_s()
        self._helper = Helper(lambda: send(write_fd, function()), (write_fd,))
        os.close(write_fd)
        self._answer = Receiver(read_fd)

    def poll(self) -> R | None:
        """What the function returned, once; None: nothing yet, or it failed or took too long."""
        if self._answer is None or self._helper is None:
            return None
        answers = self._answer.receive(0)
        took_s = self._now_s() - self._began_s
        if not answers and self._answer.is_open and took_s < self._patience_s:
            return None
        if self._answer.is_open and not answers:
            self._helper.kill()
        self._answer.close()
        self._answer = None
        self._next_s = self._now_s() + max(self._pause_s, self._cost_share * took_s)
        return answers[0] if answers else None

    def close(self) -> None:
        """End what runs."""
        if self._helper is not None:
            self._helper.kill()
            self._helper.end(1.0)
        if self._answer is not None:
            self._answer.close()
            self._answer = None

    def _is_free(self) -> bool:
        return self._helper is None or self._helper.is_over()
