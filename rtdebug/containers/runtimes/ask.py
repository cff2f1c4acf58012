"""Questions to runtimes: all at once, and none may keep us waiting."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from rtdebug.errors import RtdebugError
from rtdebug.host.text import decode

TIMEOUT_S = 2.0
"""The limit for all questions together."""

T = TypeVar("T")


def run(argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> str:
    """Standard output of a runtime's command line.

    Raises RtdebugError if it is missing, fails, or does not answer in time (then it is killed).
    """
    program = argv[0]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=True)
    except FileNotFoundError:
        raise RtdebugError(f"{program} is not installed") from None
    except subprocess.TimeoutExpired:
        raise RtdebugError(f"{program} did not answer within {timeout_s:g} s") from None
    except subprocess.CalledProcessError as error:
        said = decode(error.stderr).strip().rpartition("\n")[2][:300]
        raise RtdebugError(f"{program} failed with exit status {error.returncode}: {said!r}") from None
    except OSError as error:
        raise RtdebugError(f"{program} cannot be run: {error.strerror}") from None
    return decode(done.stdout)


def is_installed(program: str) -> bool:
    """Whether `program` is found in PATH."""
    return shutil.which(program) is not None


def ask_all(questions: Mapping[str, Callable[[], T]], timeout_s: float = TIMEOUT_S) -> tuple[dict[str, T], list[str]]:
    """The answers by question, and a note for every question that got none.

    Each question has a thread of its own. One that does not return in time is left alone: its thread is a
    daemon, it cannot keep the program from ending.
    """
    answers: dict[str, T] = {}
    failures: dict[str, str] = {}

    def answer(name: str, question: Callable[[], T]) -> None:
        try:
            answers[name] = question()
        except RtdebugError as error:
            failures[name] = error.message
        except OSError as error:  # out of descriptors or processes: nobody above the thread could catch it
            failures[name] = str(error)

    threads = {
        name: threading.Thread(target=answer, args=(name, question), daemon=True)
        for name, question in questions.items()
    }
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + timeout_s + 0.1  # a child killed at timeout_s may still be reaped
    for name, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        if name not in answers and name not in failures:
            failures[name] = f"no answer within {timeout_s:g} s"
    notes = [f"{name}: {failures[name]}; what it alone knows is missing" for name in questions if name in failures]
    return {name: answers[name] for name in questions if name in answers and name not in failures}, notes
