"""The dressings people paste: every common one gives the same message."""

import json

import pytest

from rtdebug.oom.dressing import strip_dressing
from rtdebug.oom.undress import undress

MESSAGE = "memory: usage 8192kB, limit 8192kB, failcnt 23"


@pytest.mark.parametrize(
    ("dressing", "source", "time_ns", "caller"),
    [
        pytest.param("", None, None, None, id="none"),
        pytest.param("[  271.641879] ", None, 271641879000, None, id="dmesg"),
        pytest.param("271.641879] ", None, 271641879000, None, id="dmesg, first character lost"),
        pytest.param("[  271.641879] [  T713] ", None, 271641879000, "T713", id="caller id"),
        pytest.param("[  271.641879][    C3] ", None, 271641879000, "C3", id="caller id, console"),
        pytest.param("[  271.641879 <    0.000017>] ", None, 271641879000, None, id="dmesg -d"),
        pytest.param("<4>[  271.641879] ", None, 271641879000, None, id="dmesg -r"),
        pytest.param("kern  :warn  : [  271.641879] ", "kernel", 271641879000, None, id="dmesg -x"),
        pytest.param("[Tue Mar 11 10:16:36 2025] ", None, None, None, id="dmesg -T"),
        pytest.param("[Di Aug 12 03:54:03 2025] ", None, None, None, id="dmesg -T, German"),
        pytest.param("[mar. août 12 03:54:03 2025] ", None, None, None, id="dmesg -T, French"),
        pytest.param("[二 8月 12 03:54:03 2025] ", None, None, None, id="dmesg -T, Chinese"),
        pytest.param("[Mar11 10:16] ", None, None, None, id="dmesg -e"),
        pytest.param("[  +0.000017] ", None, None, None, id="dmesg -e, within a minute"),
        pytest.param("2025-03-11T10:16:36,271641+00:00 ", None, None, None, id="dmesg iso"),
        pytest.param("Mar 11 10:16:36 edge-7 kernel: ", "kernel", None, None, id="syslog"),
        pytest.param(
            "Mar  1 10:16:36 edge-7 kernel: [  271.641879] ", "kernel", 271641879000, None, id="both"
        ),
        pytest.param("Dez 14 17:13:12 kernel: ", "kernel", None, None, id="journal without host, German"),
        pytest.param(
            "2025-03-11T10:16:36.271641+01:00 edge-7 kernel: ", "kernel", None, None, id="rsyslog iso"
        ),
        pytest.param(
            "2025-03-11T10:16:36+0100 edge-7 kernel: ", "kernel", None, None, id="journal short-iso"
        ),
        pytest.param(
            "Tue 2025-03-11 10:16:36 CET edge-7 kernel: ", "kernel", None, None, id="journal short-full"
        ),
        pytest.param("1741684596.271641 edge-7 kernel: ", "kernel", None, None, id="journal short-unix"),
        pytest.param(
            "[  271.641879] edge-7 kernel: ", "kernel", 271641879000, None, id="journal short-monotonic"
        ),
        pytest.param("kernel: ", "kernel", None, None, id="the date left out"),
        pytest.param("kernel: [  271.641879] ", "kernel", 271641879000, None, id="the date left out, uptime"),
        pytest.param("... kernel: [  271.641879] ", "kernel", 271641879000, None, id="the date as dots"),
        pytest.param("11/03/25 10h16 edge-7 kernel: [  271.641879] ", "kernel", 271641879000, None, id="any date"),
        pytest.param("[  271.641] ", None, 271641000000, None, id="to the millisecond"),
        pytest.param("Mar 11 10:16:36 edge-7 kern.warn kernel: ", "kernel", None, None, id="busybox"),
        pytest.param(
            "Tue Mar 11 10:16:36 2025 kern.info kernel: [  271.641879] ", "kernel", 271641879000, None, id="OpenWrt"
        ),
        pytest.param("Mar 11 10:16:36 fe80::1 kernel: ", "kernel", None, None, id="an address as host"),
        pytest.param("/var/log/kern.log:Mar 11 10:16:36 edge-7 kernel: ", "kernel", None, None, id="grep -r"),
        pytest.param("Jun 25, 2021 @ 12:42:13.029 | kernel | [  271.641879] ", None, 271641879000, None, id="a table"),
        pytest.param("Mar 11 10:16:36 ** kernel: ", "kernel", None, None, id="the host blotted out"),
        pytest.param("kern:     err: [2026-07-25T14:23:17.527Z]: ", "kernel", None, None, id="Talos"),
        pytest.param("kern.log.1-70-[  271.641879] ", None, 271641879000, None, id="grep -n -A"),
        pytest.param("- `[  271.641879] ", None, 271641879000, None, id="a list, as code"),
        pytest.param("| Mar 11 10:16:36 edge-7 kernel: ", "kernel", None, None, id="a cell"),
        pytest.param("    Mar 11 10:16:36 edge-7 kernel: ", "kernel", None, None, id="indented"),
        pytest.param("\tkern  :warn  : [  271.641879] ", "kernel", 271641879000, None, id="indented, dmesg -x"),
        pytest.param("x.log:Mar 11 10:16:36 edge-7 sshd[7]: ", "sshd", None, None, id="another program, grep"),
        pytest.param("Mar 11 10:16:36 edge-7 systemd[1]: ", "systemd", None, None, id="another program"),
        pytest.param("oomd[640]: ", "oomd", None, None, id="another program, no date"),
    ],
)
def test_one_line(dressing, source, time_ns, caller):
    line = strip_dressing(f"{dressing}{MESSAGE}\n")
    assert line.message == MESSAGE
    assert (line.source, line.time_ns, line.caller) == (source, time_ns, caller)
    assert line.dressed == bool(dressing)
    assert line.from_kernel == (source in (None, "kernel"))


KILL = "Memory cgroup out of memory: Killed process 71023 (indexer) total-vm:8kB, oom_score_adj:7"


@pytest.mark.parametrize(
    "dressing",
    [
        "<3>1 2025-03-11T10:16:36.271641+01:00 edge-7 kernel - - - [  271.641879] ",
        '<3>1 2025-03-11T10:16:36+01:00 edge-7 kernel - - [quality tz="1"] ',
        "2025-03-11T10:16:36.271641123Z Mar 11 10:16:36 edge-7 kernel: [  271.641879] ",
        "2025-03-11T10:16:36.271641123Z [  271.641879] ",
        '2025-03-11T10:16:36Z {job="kmsg", node="edge-7"} [  271.641879] ',
        "2025-03-11 10:16:36 UTC | edge-7 | kernel: ",
        "03/11/2025 10:16:36 AM edge-7 kernel: ",
        "2025 Mar 11 10:16:36 edge-7 kernel: ",
        "03-11 10:16:36.271     0     0 E kernel  : ",
        "    MESSAGE=",
        "edge-7 login: [  271.641879] ",
        "   712\t[  271.641879] ",
        "[  271.641879 <    0.000012 >] edge-7 kernel: ",
        "\ufeff[  271.641879] ",
    ],
)
def test_a_kill_in_rarer_dressings(dressing):
    line = strip_dressing(f"{dressing}{KILL}")
    assert line.message == KILL
    assert line.from_kernel


@pytest.mark.parametrize(
    "entry",
    [
        {"message": KILL, "host": "edge-7"},
        {"textPayload": f"[  271.641879] {KILL}"},
        {"jsonPayload": {"MESSAGE": KILL, "SYSLOG_IDENTIFIER": "kernel"}},
    ],
)
def test_what_collectors_make_of_a_kill(entry):
    assert strip_dressing(json.dumps(entry)).message == KILL


def test_a_journal_entry_over_many_lines():
    entry = {"_TRANSPORT": "kernel", "MESSAGE": KILL, "PRIORITY": "3"}
    assert messages(json.dumps(entry, indent="\t")) == [KILL]
    assert messages(f"{{\n[1.000001] {KILL}") == ["{", KILL]
    other = entry | {"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "agent"}
    (line,) = undress(json.dumps(other, indent="\t").split("\n"))
    assert not line.from_kernel


@pytest.mark.parametrize(
    "line",
    [
        f"overlayfs: failed to resolve '{KILL}'",
        f"[  271.641879] overlayfs: failed to resolve '12:00:00 {KILL}'",
        f"Mar 11 10:16:36 edge-7 kernel: overlayfs: failed to resolve '12:00:00 {KILL}'",
        f"Mar 11 10:16:36 edge-7 agent[7]: I saw {KILL}",
    ],
)
def test_the_words_within_another_line_are_none_of_the_kernel(line):
    found = strip_dressing(line)
    assert not found.from_kernel or not found.message.startswith("Memory cgroup out")


def test_colours_are_taken_off():
    assert messages(f"\x1b[32m[  271.641879] \x1b[0m\x1b[33mMemory cgroup out of memory: \x1b[0m{KILL[29:]}") == [KILL]
    assert messages(f"Mar 11 10:16:36 edge-7 kernel: \x1b[0;1;31m{KILL}\x1b[0m") == [KILL]


@pytest.mark.parametrize(
    "message",
    [
        "[   5107]  1000  5107    93001    61711 indexer",
        "[ pid ]   uid  tgid",
        "anon 17",
        "[<ffffffff81>] dump_header+0x1",
    ],
)
def test_what_looks_like_a_dressing_is_none(message):
    assert strip_dressing(message).message == message


def test_journal_json():
    entry = {"_TRANSPORT": "kernel", "MESSAGE": MESSAGE, "_SOURCE_MONOTONIC_TIMESTAMP": "271641879"}
    line = strip_dressing(json.dumps(entry))
    assert (line.message, line.source, line.time_ns) == (MESSAGE, "kernel", 271641879000)
    line = strip_dressing(
        json.dumps({"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernelish", "MESSAGE": "x"})
    )
    assert not line.from_kernel
    line = strip_dressing(json.dumps({"_TRANSPORT": "kernel", "MESSAGE": [97, 255]}))
    assert line.message == "a\udcff"


@pytest.mark.parametrize("text", ["{", '{"MESSAGE"', "{}", '{"MESSAGE": null}', "[1]", '{"a": 1}'])
def test_other_json_does_no_harm(text):
    strip_dressing(text)


def messages(text):
    return [line.message for line in undress(text.split("\n"))]


def test_indented_lines_continue_the_record():
    assert messages("[1.000001] anon 5\n           file 7\n[1.000002] x") == ["anon 5\nfile 7", "x"]


def test_a_line_that_was_broken_at_a_comma_or_escaped():
    assert messages("[1.000001] a invoked oom-killer: order=0,    \n oom_score_adj=0") == [
        "a invoked oom-killer: order=0,oom_score_adj=0"
    ]
    assert messages("[1.000001] oom-kill:constraint=X,\\\n    cpuset=/,\\\n    uid=0") == [
        "oom-kill:constraint=X,cpuset=/,uid=0"
    ]


def test_terminal_wraps_are_undone_only_at_a_full_line():
    long = "[1.000001] " + "a" * 80
    assert messages(f"{long}\nbcd\n[1.000002] x") == ["a" * 80 + "bcd", "x"]
    assert messages("[1.000001] short\nbcd\n[1.000002] x") == ["short", "bcd", "x"]


def test_what_a_mail_quotes():
    assert messages("> [1.000001] a\n> > [1.000002] b\n>> [1.000003] c") == ["a", "b", "c"]
    assert messages(">     memory: usage 8kB") == ["memory: usage 8kB"]
    assert messages("> [1.000001] anon 5\n>            file 7\n> [1.000002] x") == ["anon 5\nfile 7", "x"]


def test_what_a_mailer_wrapped_of_ones_own():
    assert messages("[1.000001] \noom-kill:constraint=X\n[1.000002] x") == ["oom-kill:constraint=X", "x"]
    assert messages("[1.000001] Killed \nprocess 7 (a)\n[1.000002] x") == ["Killed process 7 (a)", "x"]


def test_what_a_mail_quotes_of_a_log_without_dressing():
    assert messages(": anon 5\n: file 7") == ["anon 5", "file 7"]
    wrapped = ">>     Killed process 7 (a) \n>> total-vm:8kB, \n>> anon-rss:3kB\n>>\n>> and more"
    assert messages(wrapped) == ["Killed process 7 (a) total-vm:8kB, anon-rss:3kB", "and more"]


def test_a_header_takes_no_line_that_follows_it():
    header = "[1.000001] Memory cgroup stats for /" + "a" * 80 + ":"
    assert messages(f"{header}\nanon 5\nfile 7") == [header[11:], "anon 5", "file 7"]


def test_what_a_mailer_wrapped():
    flowed = "> [1.000001] a invoked oom-killer: gfp_mask=0xd0,  \n> order=0, oom_score_adj=0\n> [1.000002] x"
    assert messages(flowed) == ["a invoked oom-killer: gfp_mask=0xd0, order=0, oom_score_adj=0", "x"]
    full = "> [1.000001] Killed process 71 (worker) " + "b" * 30
    assert messages(f"{full}\n> anon-rss:17kB\n> [1.000002] x") == [f"{full[13:]} anon-rss:17kB".strip(), "x"]
    assert messages("> [1.000001] short\n> comment of somebody\n> [1.000002] x") == [
        *("short", "comment of somebody", "x"),
    ]


def test_escaped_newlines():
    assert messages("[1.000001] anon 5#012file 7") == ["anon 5\nfile 7"]
    assert messages(r"[1.000001] a\n[1.000002] b") == ["a", "b"]


def test_a_missing_part_is_passed_on():
    assert messages("[1.000001] " + "a" * 90 + "\n...\n\n[1.000002] b")[1:] == ["...", "b"]
