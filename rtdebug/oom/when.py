"""When: the time of a log line, as far as the line says it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import Literal

from rtdebug.oom.dressing import LogLine

TimeKind = Literal["utc", "local", "printed", "boot"]
"""utc: date, year and zone are known. local: no zone. printed: no year, or a form we do not know. boot: since boot."""

_NS = 1_000_000_000
_TOMORROW_S = 86400
_MONTHS = (  # by their beginning: English, German, French, Spanish, Italian, Portuguese, Dutch
    ("jan", "ene", "gen", "jän"),
    ("feb", "fév", "fev"),
    ("mar", "mär", "mrz", "mrt", "maa"),
    ("apr", "avr", "abr"),
    ("may", "mai", "mag", "mei"),
    ("jun", "juin", "giu"),
    ("jul", "juil", "lug"),
    ("aug", "aoû", "ago"),
    ("sep", "set"),
    ("oct", "okt", "ott", "out"),
    ("nov",),
    ("dec", "dez", "déc", "dic"),
)
_MONTH_OF = {name: number for number, names in enumerate(_MONTHS, 1) for name in names}
_ISO = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d+))?"
    r" ?(?P<zone>Z|UTC|GMT|[+-]\d\d:?\d\d)?"
)
_WORDS = re.compile(
    r"(?:.*\s)?(?P<month>[^\s\d.]+)\.?\s+(?P<day>\d{1,2})\s+(?:(?P<year>\d{4})\s+)?"
    r"(?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d+))?(?:\s+(?P<last>\d{4}))?$"
)
_CHINESE = re.compile(r"\S+\s+(?P<month>\d{1,2})月\s+(?P<day>\d{1,2})\s+(?P<clock>\d\d:\d\d:\d\d)\s+(?P<last>\d{4})$")


@dataclass(frozen=True, slots=True)
class When:
    """A moment: what was said of it, and what that comes to."""

    kind: TimeKind | None = None
    """None: nothing was printed."""
    text: str | None = None
    """utc: RFC 3339. local: the same without zone. printed: as printed. boot: `boot+271.641879`, in seconds."""
    epoch_ns: int | None = None
    """Unix time; a missing zone is taken for this machine's, a missing year for the latest that is not to come."""

    @property
    def to_the_second(self) -> str | None:
        """For people: `2026-03-01 14:05:09Z`; what has no date as `text`."""
        if self.text is None or self.kind not in ("utc", "local"):
            return self.text
        return self.text.partition(".")[0].removesuffix("Z").replace("T", " ") + ("Z" if self.kind == "utc" else "")


def when(time_text: str | None, uptime_ns: int | None, clock_offset_ns: int | None = None) -> When:
    """The time of a record. `clock_offset_ns`: Unix time less uptime, of a log of this very boot."""
    if clock_offset_ns is not None and uptime_ns is not None:
        return _utc(clock_offset_ns + uptime_ns)
    found = _parse(time_text) if time_text else When()
    if found.kind in (None, "printed") and uptime_ns is not None and found.epoch_ns is None:
        return When("boot", f"boot+{uptime_ns // _NS}.{uptime_ns % _NS // 1000:06d}")
    return found


def line_clock_ns(line: LogLine) -> int | None:
    """A clock to tell by how far two lines of one log are apart."""
    found = _parse(line.time_text) if line.time_text else None
    return line.time_ns if found is None or found.epoch_ns is None else found.epoch_ns


@lru_cache(maxsize=512)
def _parse(text: str) -> When:
    try:
        return _of_number(text) or _of_iso(text) or _of_words(text) or When("printed", text)
    except (ValueError, OverflowError, OSError):  # a 32nd of March, or a year that no clock knows
        return When("printed", text)


def _of_number(text: str) -> When | None:
    if re.fullmatch(r"\d{15,17}", text, re.ASCII):  # microseconds: the journal's JSON
        return _utc(int(text) * 1000)
    if re.fullmatch(r"\d{9,11}\.\d{6}", text, re.ASCII):  # journalctl -o short-unix
        return _utc(int(text.replace(".", "")) * 1000)
    return None


def _of_iso(text: str) -> When | None:
    match = _ISO.search(text)
    if match is None:
        return None
    moment = datetime.fromisoformat(f"{match['date']}T{match['clock']}")
    fraction_ns = _fraction_ns(match["fraction"])
    if match["zone"] is None:
        return _local(moment, fraction_ns)
    return _utc(_seconds(moment.replace(tzinfo=_zone(match["zone"]))) * _NS + fraction_ns)


def _of_words(text: str) -> When | None:
    match = _WORDS.match(text) or _CHINESE.match(text)
    if match is None:
        return None
    found = match.groupdict()
    month = _month(found["month"])
    if month is None:
        return None
    fraction_ns = _fraction_ns(found.get("fraction"))
    hour, minute, second = map(int, found["clock"].split(":"))
    year = found.get("year") or found.get("last")
    if year is not None:
        return _local(datetime(int(year), month, int(found["day"]), hour, minute, second), fraction_ns)
    this_year = datetime.now(UTC).year
    for candidate in (this_year + 1, this_year, this_year - 1, this_year - 2, this_year - 3, this_year - 4):
        try:
            moment = datetime(candidate, month, int(found["day"]), hour, minute, second)
        except ValueError:  # the 29th of February
            continue
        epoch_s = _seconds(moment)
        if epoch_s <= time.time() + _TOMORROW_S:
            return When("printed", text, epoch_s * _NS + fraction_ns)
    return None


def _month(word: str) -> int | None:
    if word.isdecimal():
        return int(word)
    small = word.casefold()
    return _MONTH_OF.get(small[:4]) or _MONTH_OF.get(small[:3])


def _zone(text: str) -> timezone:
    if text in ("Z", "UTC", "GMT"):
        return UTC
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes))


def _fraction_ns(digits: str | None) -> int:
    return int((digits or "0")[:9].ljust(9, "0"))


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())  # of a naive one: in this machine's zone


def _local(moment: datetime, fraction_ns: int) -> When:
    text = moment.isoformat(timespec="seconds")
    if fraction_ns:
        text += f".{fraction_ns:09d}".rstrip("0")
    return When("local", text, _seconds(moment) * _NS + fraction_ns)


def _utc(epoch_ns: int) -> When:
    seconds, ns = divmod(epoch_ns, _NS)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return When("utc", f"{text}.{ns:09d}Z" if ns else f"{text}Z", epoch_ns)
