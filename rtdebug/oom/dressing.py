"""Kernel messages out of the dressing that dmesg, syslog, the journal and collectors put around a line.

What is not recognised stays as it is. Whole texts: `undress`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

ELLIPSES = ("...", "…")

_FACILITY = re.compile(
    r"(?P<facility>kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d) *: *"
    r"(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug) *: ?"
)
_PRIORITY = re.compile(r"<\d{1,3}>")
_CLOCK = r"\d{2}:\d{2}:\d{2}(?:[.,]\d+)?"
_SYSLOG_DATE = re.compile(
    r"(?:(?:[^\s\d\[\]{]{2,6} )?[^\s\[\]{]{2,8} {1,2}\d{1,2}"  # Dec 14 17:13:12, Tue Jul 29 06:26:59 2025
    rf" (?:\d{{4}} )?{_CLOCK}(?: (?:19|20)\d\d(?= ))?"
    rf"|(?:[^\s\d\[]{{2,6}} )?\d{{4}}-\d\d-\d\d[T ]{_CLOCK}(?: ?(?:Z|[A-Z]{{3,5}}|[+-]\d\d:?\d\d))?"  # ISO
    r"|\d{9,11}\.\d{6})(?= )"  # journalctl -o short-unix
)
_HOST_AND_TAG = re.compile(  # busybox and OpenWrt add `kern.warn`
    r" +(?:(?!kern\.)(?P<host>\S{0,255}[^\s:]) )?(?:(?:kern|user|daemon)\.[a-z]+ )?(?P<tag>[^\s:\[\]]+)(?:\[\d+\])?: ?")
_PROGRAM = re.compile(r"(?P<tag>[\w.@-]+)\[\d+\]: ")
_UPTIME = re.compile(
    r"\s*(?:\[\s*(?P<seconds>\d+\.\d{1,9})(?: *< *[\d.]+ *>)?|(?P<headless>\d+\.\d{6}))\] ?"  # its `[` lost
)
_BRACKETED_DATE = re.compile(r"\s*\[(?P<date>[^\[\]]{0,40}\d{1,2}:\d{2}[^\[\]]{0,40}| *\+ *\d+\.\d+)\]:? ?")
_CALLER = re.compile(r" ?\[ *(?P<caller>[TC]\d+)\] ?")
_KERNEL_TAG = re.compile(r"(?:(?P<host>[\w.:@/-]*\w) )?kernel: ?")
_KERN_LOG = re.compile(  # the commonest of all in large files, in one step
    r"(?P<date>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?P<host>[\w.:@/-]*\w) kernel: "
    r"\[ *(?P<seconds>\d+)\.(?P<us>\d{6})\] (?! *\[)"
)
_WRAPPER = re.compile(  # CRI's log files, klog, `kubectl describe node` and `kubectl get events`
    rf"(?P<date>\d{{4}}-\d\d-\d\dT{_CLOCK}(?:Z|[+-]\d\d:\d\d)) (?:stdout|stderr) [FP] "
    rf"|[IWEF]\d{{4}} {_CLOCK} +\d+ [\w.-]+:\d+\] "
    r"|(?:\s*\S+)??\s*Warning\s+OOMKilling\s[^\n]{0,120}?(?:kernel-monitor(?:, \S+)?|kernel|kubelet)\s+"
    r"|(?:\S+\s+){1,2}Warning\s+OOMKilling\s+node/\S+\s+"
)
_OUTER = (  # what may be before a dressing
    re.compile(r"[\s`*|-]+(?=[^\s`*|-])"),  # an indent, or what marks a list, a table or code
    re.compile(  # grep's `kern.log:`, `kern.log-12-`
        r"\S{1,200}?[:-](?=[A-Z][a-z]{2} [ \d]\d \d\d:|\d{4}-\d\d-\d\d[T ]|\[ *\d+\.\d+\])"
    ),
    re.compile(  # a date of any form, or none
        r"[^\n]{1,100}? (?=kernel: ?\[ *\d+\.\d+\])|[^\n]{0,100}?\d\d:\d\d:\d\d[^\n]{0,100}? (?=kernel: )"
        r"|[^\n]{1,200}?(?=\[ *\d+\.\d{6}\])"
    ),
)
_RFC5424 = re.compile(
    rf"\d (?P<date>\d{{4}}-\d\d-\d\dT{_CLOCK}\S*) (?P<host>\S+) (?P<tag>\S+) \S+ \S+ (?:-|\[[^\n]*?\]) "
)
_DATED = re.compile(r"\d\d:\d\d:\d\d|MESSAGE=|\"(?:MESSAGE|message|msg|log)\" ?: ?\"")
_KERNEL_WORDS = re.compile(
    r"(?:Memory cgroup out|Out) of memory: [KO]|Killed process \d+ \(|oom-kill:constraint=CONSTRAINT_"
    r"|oom_reaper: reaped process \d|Memory cgroup stats for /|Task in /\S* killed as"
    r"|(?:memory(?:\+swap)?|kmem|swap): usage \d+kB, limit"
)
"""What nobody else says. Longer than a comm, which may be anything."""
_JSON_TEXTS = ("message", "msg", "textPayload")
_JSON_OBJECTS = ("jsonPayload", "_source", "fields")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One message of the kernel log, without its dressing."""

    message: str
    """May hold newlines: some kernels print memory.stat and Mem-Info as one record."""
    time_ns: int | None = None
    """When the dressing gives a number: seconds since boot (or the epoch), in nanoseconds."""
    time_text: str | None = None
    """The time as written."""
    source: str | None = None
    """The program named in the line: `kernel`, `systemd`; None when none is named."""
    caller: str | None = None
    """printk's caller id: `T<tid>` or `C<cpu>`."""
    host: str | None = None
    """The machine named in the line."""

    @property
    def dressed(self) -> bool:
        """There was a dressing."""
        return self.time_text is not None or self.source is not None

    @property
    def from_kernel(self) -> bool:
        """No other program is named."""
        return self.source in (None, "kernel")


def strip_dressing(line: str) -> LogLine:
    """Take the usual dressings off one line: dmesg (any time format, any language), syslog, journal."""
    found = _strip(line)
    return found if found.dressed else _strip_unknown(line) or found


def _strip_unknown(line: str) -> LogLine | None:
    """A dressing of no form that we know: by where it ends, else by the words that follow it."""
    for outer in _OUTER:
        if match := outer.match(line):
            inner = _strip(line[match.end() :].rstrip("`| \r\n"))
            if inner.dressed:
                return inner
    if (match := _KERNEL_WORDS.search(line)) and _DATED.search(line, 0, match.start()):
        return LogLine(line[match.start() :].rstrip("\"'`|, \r\n"), source="kernel")
    return None


def _strip(line: str) -> LogLine:
    if match := _KERN_LOG.match(line):
        date, host, seconds, us = match.groups()
        return LogLine(line[match.end() :].rstrip(), int(seconds + us) * 1000, date, "kernel", None, host)
    if line.startswith("{"):
        return _json(line)
    if (line[0:1] in "IWEF" or " std" in line or "OOMKilling" in line) and (match := _WRAPPER.match(line)):
        inner = _strip(line[match.end() :])
        return replace(inner, time_text=inner.time_text or match["date"] or "", source=inner.source or "kernel")
    rest = _PRIORITY.sub("", line.rstrip("\r\n"), count=1) if line.startswith("<") else line.rstrip("\r\n")
    source = time_text = caller = host = None
    time_ns = None
    if match := _FACILITY.match(rest):
        source = "kernel" if match["facility"] == "kern" else match["facility"]
        rest = rest[match.end() :]
    if match := _RFC5424.match(rest):
        time_text, host, source, rest = match["date"], match["host"], match["tag"], rest[match.end() :]
    elif match := _SYSLOG_DATE.match(rest):
        time_text, rest = match[0], rest[match.end() :]
        if "," in time_text:  # dmesg --time-format iso: no host, no program
            rest = rest.removeprefix(" ")
        elif match := _HOST_AND_TAG.match(rest):
            source, host, rest = match["tag"], match["host"], rest[match.end() :]
        else:  # `kubectl logs --timestamps`
            inner = _strip(rest.lstrip(" "))
            if inner.source is not None or inner.time_ns is not None:
                return replace(inner, time_text=time_text)
            words = _KERNEL_WORDS.search(rest)
            rest = rest[words.start() :] if words else rest.lstrip(" ")
    elif match := _BRACKETED_DATE.match(rest):
        time_text, rest = match["date"], rest[match.end() :]
    elif match := _PROGRAM.match(rest):
        source, rest = match["tag"], rest[match.end() :]
    elif rest.startswith("kernel: "):
        source, rest = "kernel", rest[8:]
    if source in (None, "kernel") and (match := _UPTIME.match(rest)):
        uptime = match["seconds"] or match["headless"]
        seconds, _, fraction = uptime.partition(".")
        time_ns = int(seconds + fraction.ljust(9, "0"))
        time_text, rest = time_text or uptime, rest[match.end() :]
    if time_text is not None and source in (None, "kernel"):
        if match := _CALLER.match(rest):
            caller, rest = match["caller"], rest[match.end() :]
        if source is None and (match := _KERNEL_TAG.match(rest)):  # journalctl -o short-monotonic
            source, host, rest = "kernel", match["host"], rest[match.end() :]
    return LogLine(rest.rstrip(), time_ns, time_text, source, caller, host)


def _json(line: str) -> LogLine:
    """One line of `journalctl -o json`, systemd.journal-fields(7), or of docker's json-file driver."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return LogLine(line)
    if not isinstance(entry, dict):
        return LogLine(line)
    if isinstance(entry.get("log"), str) and not entry["log"].startswith("{"):
        inner = strip_dressing(entry["log"])
        return replace(inner, time_text=inner.time_text or str(entry.get("time", "")))
    if "MESSAGE" in entry:
        return _journal_entry(entry)
    text = next((entry[key] for key in _JSON_TEXTS if isinstance(entry.get(key), str)), None)
    if text is not None and not text.startswith("{"):
        inner = strip_dressing(text)
        return replace(inner, time_text=inner.time_text or str(entry.get("timestamp", entry.get("@timestamp", ""))))
    within = next((entry[key] for key in _JSON_OBJECTS if isinstance(entry.get(key), dict)), None)
    return _journal_entry(within) if within and "MESSAGE" in within else LogLine(line)


def _journal_entry(entry: Mapping[str, Any]) -> LogLine:
    message = entry["MESSAGE"]
    if isinstance(message, list):  # the journal's way to hold bytes that are not UTF-8
        message = bytes(byte & 0xFF for byte in message if isinstance(byte, int)).decode("utf-8", "surrogateescape")
    if entry.get("_TRANSPORT") == "kernel":
        source = "kernel"
    else:
        source = str(entry.get("SYSLOG_IDENTIFIER") or entry.get("_COMM") or entry.get("_TRANSPORT") or "unknown")
    boot_us, epoch_us = entry.get("_SOURCE_MONOTONIC_TIMESTAMP"), entry.get("__REALTIME_TIMESTAMP")
    return LogLine(
        str(message),
        time_ns=int(str(boot_us)) * 1000 if str(boot_us).isdecimal() else None,
        time_text=str(epoch_us or boot_us or "") or None,
        source=source,
        host=str(entry["_HOSTNAME"]) if "_HOSTNAME" in entry else None,
    )
