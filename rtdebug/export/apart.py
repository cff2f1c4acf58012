"""Reading many containers in a child, each with a deadline: one that hangs is put aside, and nobody waits for it.

What a container sees at /dev/shm is reached through its own file systems. One that is a FUSE mount whose server does
not answer blocks whoever looks, beyond the reach of signals (fs/fuse/dev.c, request_wait_answer()).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rtdebug.export.helper import Helper
from rtdebug.export.messages import Receiver, send

I = TypeVar("I")  # noqa: E741 - item
R = TypeVar("R")

_MOST_STUCK = 3
"""In one pass: so the time it takes is bounded. The rest is read in the next."""
_FIRST_ASIDE_S = 60.0
_LONGEST_ASIDE_S = 3600.0


@dataclass(slots=True)
class _Aside:
    """A key that is not read for a while."""

    helper: Helper
    until_s: float
    wait_s: float


class Apart(Generic[I, R]):
    """Calls `read` for each item in a child. Whatever makes no progress for `patience_s` is put aside."""

    def __init__(
        self, read: Callable[[I], R], patience_s: float = 2.0, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._read_one = read
        self._patience_s = patience_s
        self._now_s = now_s
        self._aside: dict[str, _Aside] = {}
        self._first: str | None = None
        """Where the next pass begins: what the last one had no time for."""

    @property
    def stuck(self) -> frozenset[str]:
        """Keys that are put aside."""
        return frozenset(self._aside)

    def read(self, items: Mapping[str, I]) -> dict[str, R]:
        """The results by key; what could not be read, or is put aside, is not in it."""
        self._aside = {key: aside for key, aside in self._aside.items() if key in items or not aside.helper.is_over()}
        keys = [key for key in items if self._may_read(key)]
        start = keys.index(self._first) if self._first in keys else 0
        keys = keys[start:] + keys[:start]
        self._first = None
        results: dict[str, R] = {}
        hung = 0
        while keys:
            done = self._read_some(keys, items, results)
            keys = keys[done:]
            if keys:
                hung += 1
                keys = keys[1:]
            if hung >= _MOST_STUCK:
                self._first = keys[0] if keys else None
                break
        return results

    def close(self) -> None:
        """Let go of what hangs: it has been killed, and ends when the kernel lets it."""
        for aside in self._aside.values():
            aside.helper.is_over()

    def _may_read(self, key: str) -> bool:
        aside = self._aside.get(key)
        return aside is None or (aside.helper.is_over() and self._now_s() >= aside.until_s)

    def _read_some(self, keys: Sequence[str], items: Mapping[str, I], results: dict[str, R]) -> int:
        """Read as far as it goes; how many keys are done. The one after them hangs, or killed the child."""
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        helper = Helper(lambda: self._answer(keys, items, write_fd), (write_fd,))
        os.close(write_fd)
        answers = Receiver(read_fd)
        done = 0
        while batch := answers.receive(self._patience_s):
            for key, result in batch:
                done += 1
                self._aside.pop(key, None)
                if result is not None:
                    results[key] = result
        if done < len(keys):
            helper.kill()
            self._put_aside(keys[done], helper)
        else:
            helper.end(self._patience_s)
        answers.close()
        return done

    def _answer(self, keys: Sequence[str], items: Mapping[str, I], fd: int) -> None:
        for key in keys:
            try:
                result = self._read_one(items[key])
            except Exception:  # this one cannot be read: the others can
                result = None
            send(fd, (key, result))

    def _put_aside(self, key: str, helper: Helper) -> None:
        before = self._aside.get(key)
        wait_s = _FIRST_ASIDE_S if before is None else min(_LONGEST_ASIDE_S, 2 * before.wait_s)
        self._aside[key] = _Aside(helper, self._now_s() + wait_s, wait_s)
