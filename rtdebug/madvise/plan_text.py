"""Plans as people write them: TOML files, the shipped ones, and one line. Errors name the line and what is allowed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.host.sizes import parse_bytes
from rtdebug.host.text import read_regular
from rtdebug.madvise.plan import ACCESS, MEMORY, MODES, MOMENT_OF, MOMENTS, MOST_CASES, MOST_RUNS, Case, Plan

_PLAN_KEYS = ("question", "runs", "warm_up", "seed", "case")
_CASE_KEYS = ("memory", "advice", "size", "access", "mode", "when", "stride", "accesses", "file")
_LARGEST_FILE_BYTES = 1 << 20
_HEADER = re.compile(r"\s*\[\[\s*case\s*\]\]")
_SPACED_UNIT = re.compile(r"\b(\d+) ([kKmMgGtT](?:i?B)?)\b")
_FORMS = "the name of a shipped plan, a .toml file, or a line like: anon 64M random read HUGEPAGE,COLLAPSE"


def shipped_plans() -> dict[str, str]:
    """Text of each plan that comes with rtdebug, by name."""
    folder = resources.files("rtdebug.madvise") / "plans"
    files = sorted(folder.iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text() for file in files if file.name.endswith(".toml")}


def read_plan(words: Sequence[str]) -> Plan:
    """A plan from the words of the command line. Raises UsageProblem."""
    line = " ".join(words).strip()
    if line.endswith(".toml") or "/" in line.split("=")[0]:
        text = _read(Path(line))
        return parse_toml(text, Path(line).name)
    shipped = shipped_plans()
    if line in shipped:
        return parse_toml(shipped[line], line)
    if re.fullmatch(r"[\w-]+", line) and line not in MEMORY:
        raise UsageProblem(f"no plan '{line}'", f"shipped are {', '.join(shipped)}; a plan is {_FORMS}")
    return parse_line(line)


def parse_line(line: str) -> Plan:
    """A plan of one case: words in any order, each known by what it is, and `key=value`. Raises UsageProblem."""
    given: dict[str, Any] = {}
    for word in _SPACED_UNIT.sub(r"\1\2", line).split():
        key, value = _sort_word(word)
        if key in given:
            raise UsageProblem(f"plan: '{word}' is a second {key}", "give several with commas between them")
        given[key] = value
    top: dict[str, Any] = {key: given.pop(key) for key in ("runs", "warm_up", "seed") if key in given}
    return _plan("plan", top, [given], Where("plan", ()))


def parse_toml(text: str, name: str) -> Plan:
    """A plan of a file. Raises UsageProblem."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise UsageProblem(f"{name} is no TOML: {why}", "see docs/madvise-run.md for an example") from None
    cases = document.pop("case", [])
    where = Where(name, tuple(text.splitlines()))
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise UsageProblem(f"{where('case')}: 'case' is not a list of tables", "write [[case]], with two brackets")
    return _plan(name, document, cases, where)


@dataclass(frozen=True, slots=True)
class Where:
    """Finds the line of a key, for tomllib does not tell."""

    name: str
    lines: tuple[str, ...]
    """None for a plan that is one line itself."""

    def __call__(self, key: str, case: int | None = None) -> str:
        """`web.toml, line 7`, or only the name where the key is not found."""
        for number, line in self._block(case):
            if re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return f"{self.name}, line {number}"
        first = next(self._block(case), None) if case is not None else None
        return f"{self.name}, line {first[0]}" if first else self.name

    def _block(self, case: int | None) -> Iterator[tuple[int, str]]:
        seen = -1
        for number, line in enumerate(self.lines, 1):
            seen += bool(_HEADER.match(line))
            if seen == (-1 if case is None else case):
                yield number, line


def _read(path: Path) -> str:
    try:
        text = read_regular(path.resolve(strict=True), _LARGEST_FILE_BYTES)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, in Python before 3.13
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise RtdebugError(f"cannot read {path}: {reason}", f"a plan is {_FORMS}") from None
    if text is None:
        raise UsageProblem(f"{path} is no file of at most 1 MiB that can be read", f"a plan is {_FORMS}")
    return text


def _sort_word(word: str) -> tuple[str, Any]:
    key, equals, value = word.partition("=")
    if equals:
        if key not in (*_CASE_KEYS, "runs", "warm_up", "seed"):
            raise _not_allowed("plan", "key", key, (*_CASE_KEYS, "runs", "warm_up", "seed"))
        return key, _number_or_text(value) if key in ("runs", "warm_up", "seed", "accesses") else _several(key, value)
    first = word.split(",")[0]
    for name, allowed in (("memory", MEMORY), ("access", ACCESS), ("mode", MODES), ("when", MOMENTS)):
        if first in allowed:  # RANDOM is advice, random is an access
            return name, _several(name, word)
    if re.match(r"\d", word) or word == "auto":
        return "size", word
    if first.isupper() or _bare(first) in MOMENT_OF:
        return "advice", word.split(",")
    raise UsageProblem(
        f"plan: '{word}' means nothing",
        f"memory: {', '.join(MEMORY)}\naccess: {', '.join(ACCESS)}; {' or '.join(MODES)}\n"
        f"advice: {', '.join(MOMENT_OF)}; {' or '.join(MOMENTS)} touching\nsize: 64M, auto; and key=value: "
        f"{', '.join((*_CASE_KEYS[6:], 'runs', 'warm_up', 'seed'))}",
    )


def _several(key: str, value: str) -> str | list[str]:
    return value.split(",") if key in ("memory", "advice") else value


def _number_or_text(value: str) -> int | str:
    return int(value) if re.fullmatch(r"-?\d+", value, re.ASCII) else value


def _bare(text: str) -> str:
    """`HUGEPAGE` from `madv_hugepage`, `MADV_HUGEPAGE` or `hugepage`."""
    return text.strip().upper().removeprefix("MADV_")


def _plan(name: str, top: Mapping[str, Any], cases: Sequence[Mapping[str, Any]], where: Where) -> Plan:
    for key in top:
        if key not in _PLAN_KEYS:
            raise _not_allowed(where(key), "key", key, _PLAN_KEYS)
    if not cases:
        raise UsageProblem(f"{name} has no case", "write at least one [[case]] with memory and advice")
    whole = [each for index, case in enumerate(cases) for each in _cases(case, index, where)]
    if len(whole) > MOST_CASES:
        raise UsageProblem(f"{name} has {len(whole)} cases", f"allowed: 1 to {MOST_CASES}, by memory")
    plan = Plan(name, tuple(whole), _text(top, "question", where))
    return replace(
        plan,
        runs=_whole(top, "runs", plan.runs, (1, MOST_RUNS), where),
        warm_up=_whole(top, "warm_up", plan.warm_up, (0, MOST_RUNS), where),
        seed=_whole(top, "seed", plan.seed, (0, 2**63 - 1), where),
    )


def _cases(given: Mapping[str, Any], index: int, where: Where) -> Iterator[Case]:
    for key in given:
        if key not in _CASE_KEYS:
            raise _not_allowed(where(key, index), "key", key, _CASE_KEYS)
    case = Case(
        memory="",
        advice=_choices(given, "advice", MOMENT_OF, _bare, where, index),
        size_bytes=_size(given, "size", None, where, index),
        access=_choice(given, "access", ACCESS, "random", where, index),
        mode=_choice(given, "mode", MODES, "read", where, index),
        when=_choice(given, "when", MOMENTS, "", where, index) or None,
        stride_bytes=_stride(given, where, index),
        accesses=_accesses(given, where, index),
        file=_text(given, "file", where, index),
        where=where("size" if "size" in given else "memory", index),
    )
    for memory in _choices(given, "memory", MEMORY, str.lower, where, index):
        yield _checked(replace(case, memory=memory), where, index)


def _checked(case: Case, where: Where, index: int) -> Case:
    if case.file is None:
        return case
    if case.memory != "file":
        raise UsageProblem(f"{where('file', index)}: 'file' with memory '{case.memory}'", "allowed with memory: file")
    destroying = [advice for advice in case.advice if advice == "REMOVE"]
    if case.mode == "write" or destroying:
        what = destroying[0] if destroying else "mode write"
        raise UsageProblem(
            f"{where('file', index)}: {what} would change {case.file!r}",
            "a file of the container is only read; without 'file' one is made in its /tmp",
        )
    return case


def _choices(
    given: Mapping[str, Any],
    key: str,
    allowed: Collection[str],
    normal: Callable[[str], str],
    where: Where,
    index: int,
) -> tuple[str, ...]:
    value = given.get(key)
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not values:
        missing = "is missing" if value is None else f"is {value!r}"
        raise UsageProblem(f"{where(key, index)}: '{key}' {missing}", f"allowed: {', '.join(allowed)}; one or a list")
    for each in values:
        if not isinstance(each, str) or normal(each) not in allowed:
            raise _not_allowed(where(key, index), key, each, allowed)
    return tuple(dict.fromkeys(map(normal, values)))


def _choice(
    given: Mapping[str, Any], key: str, allowed: Collection[str], default: str, where: Where, index: int
) -> str:
    value = given.get(key, default)
    if key in given and value not in allowed:
        raise _not_allowed(where(key, index), key, value, allowed)
    return str(value)


def _size(given: Mapping[str, Any], key: str, default: int | None, where: Where, index: int) -> int | None:
    value = given.get(key, "auto")
    if value == "auto":
        return default
    try:
        size = parse_bytes(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else 0
    except ValueError as error:
        raise UsageProblem(f"{where(key, index)}: {key} {error}", "allowed: 65536, 64 KiB, 1.5 MiB, 2 GiB") from None
    if size <= 0:
        raise UsageProblem(f"{where(key, index)}: {key} {value!r} is nothing", "allowed: 64 KiB, 1.5 MiB, 2 GiB")
    return size


def _stride(given: Mapping[str, Any], where: Where, index: int) -> int:
    stride = _size(given, "stride", 4096, where, index) or 4096
    if not 8 <= stride <= 1 << 30 or stride % 8:
        raise UsageProblem(f"{where('stride', index)}: stride {stride}", "allowed: 8 bytes to 1 GiB, a multiple of 8")
    return stride


def _accesses(given: Mapping[str, Any], where: Where, index: int) -> int | None:
    if "accesses" not in given:
        return None
    return _whole(given, "accesses", 0, (1, 1 << 24), where, index)


def _whole(
    given: Mapping[str, Any], key: str, default: int, limits: tuple[int, int], where: Where, index: int | None = None
) -> int:
    value = given.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not limits[0] <= value <= limits[1]:
        raise UsageProblem(f"{where(key, index)}: {key} is {value!r}", f"allowed: {limits[0]} to {limits[1]}")
    return value


def _text(given: Mapping[str, Any], key: str, where: Where, index: int | None = None) -> str | None:
    value = given.get(key)
    if value is not None and (not isinstance(value, str) or "\0" in value):
        raise UsageProblem(f"{where(key, index)}: {key} is {value!r}", "allowed: a text")
    return value


def _not_allowed(where: str, what: str, value: object, allowed: Collection[str]) -> UsageProblem:
    import difflib

    near = difflib.get_close_matches(str(value).upper(), [each.upper() for each in allowed], n=1, cutoff=0.5)
    guess = next((f", did you mean '{each}'?" for each in allowed if near and each.upper() == near[0]), "")
    return UsageProblem(f"{where}: no {what} {value!r}{guess}", f"allowed: {', '.join(allowed)}")
