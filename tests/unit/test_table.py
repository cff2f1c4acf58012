import io
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtdebug.render.escape import display_width
from rtdebug.render.table import Columns, TableRenderer, container_label, detail, format_line
from rtdebug.render.terminal import Style, paint, terminal_width, use_colour
from rtdebug.tracing.summary import SummaryBuilder
from tests.unit.lines import HOSTILE, NOON, VALUES, event_line, utc  # noqa: F401 - a fixture

MIB = 1 << 20
EVENTS = {
    "shm_open": (
        {
            "path": "/dev/shm/psm_1",
            "flags": ["O_RDWR", "O_CREAT"],
            "created": True,
            "length_bytes": 0,
            "ret": 3,
        },
        "/dev/shm/psm_1 O_RDWR|O_CREAT created",
    ),
    "shm_unlink": ({"path": "/dev/shm/psm_1", "length_bytes": 64 * MIB, "ret": 0}, "/dev/shm/psm_1 64 MiB"),
    "ftruncate": ({"path": "/dev/shm/psm_1", "length_bytes": 64 * MIB}, "/dev/shm/psm_1 to 64 MiB"),
    "memfd_create": ({"path": "memfd:buf", "flags": ["MFD_CLOEXEC"]}, "memfd:buf MFD_CLOEXEC"),
    "shmget": (
        {"key": -2, "length_bytes": 32 * MIB, "flags": ["IPC_CREAT"], "shm_id": 5, "ret": 5},
        "key 0xfffffffe 32 MiB IPC_CREAT -> id 5",
    ),
    "shmat": ({"shm_id": 0, "length_bytes": MIB, "address": 0x7F00}, "id 0 1 MiB at 0x7f00"),
    "shmdt": ({"shm_id": None, "address": 0x7F00}, "at 0x7f00"),
    "shmctl": ({"shm_id": 5, "command": "IPC_RMID"}, "id 5 IPC_RMID"),
    "mmap": (
        {
            "address": 0x7F00,
            "length_bytes": MIB,
            "prot": ["PROT_READ"],
            "flags": ["MAP_SHARED"],
            "errno": None,
        },
        "1 MiB PROT_READ MAP_SHARED at 0x7f00",
    ),
    "munmap": ({"address": 0x7F00, "length_bytes": MIB}, "1 MiB at 0x7f00"),
    "mremap": (
        {"old_length_bytes": MIB, "length_bytes": 2 * MIB, "flags": ["MREMAP_MAYMOVE"]},
        "1 MiB to 2 MiB MREMAP_MAYMOVE",
    ),
    "brk": ({"length_bytes": 132 << 10, "address": 0x55AA}, "+132 KiB to 0x55aa"),
    "madvise": (
        {"advice": "MADV_HUGEPAGE", "length_bytes": 2 * MIB, "address": 0x7F00},
        "MADV_HUGEPAGE 2 MiB at 0x7f00",
    ),
    "process_madvise": (
        {"advice": "MADV_COLD", "length_bytes": MIB, "target_pid": 42},
        "MADV_COLD 1 MiB of pid 42",
    ),
    "shm_full": (
        {
            "path": "/dev/shm/psm_1",
            "syscall": "fallocate",
            "length_bytes": 8 * MIB,
            "used_bytes": 60 * MIB,
            "size_bytes": 64 * MIB,
        },
        "/dev/shm/psm_1: no room for 8 MiB, 60 MiB of 64 MiB used, in fallocate",
    ),
    "sigbus": (
        {
            "signal_code": "BUS_ADRERR",
            "address": 0x7F00,
            "path": "/dev/shm/psm_1",
            "file_offset_bytes": 4096,
            "file_length_bytes": 0,
            "reason": "beyond_end_of_file",
        },
        "beyond end of file: /dev/shm/psm_1 at 4 KiB of its 0 B, BUS_ADRERR at 0x7f00",
    ),
    "oom_kill": (
        {
            "constraint": "memcg",
            "oom_memcg": "/docker/8f3c",
            "usage_bytes": 128 * MIB,
            "limit_bytes": 128 * MIB,
            "anon_rss_bytes": 100 * MIB,
            "file_rss_bytes": 0,
            "shmem_rss_bytes": None,
            "trigger_pid": 9,
            "trigger_comm": "worker",
        },
        "memcg limit of /docker/8f3c, 128 MiB of 128 MiB used, anon 100 MiB, file 0 B, triggered by 9 worker",
    ),
    "memcg_limit": ({"limit_bytes": MIB, "new\n": "x\x1b"}, r"limit_bytes=1 MiB new\n=x\x1b"),
}


@pytest.mark.parametrize(("event", "fields", "shown"), [(name, *case) for name, case in EVENTS.items()])
def test_detail(event, fields, shown):
    assert detail(event, fields) == shown


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        pytest.param({"ret": -12, "errno": "ENOMEM"}, "1 MiB = ENOMEM", id="failed"),
        pytest.param({"count": 2323, "failures": 0, "aggregated": True}, "1 MiB x2,323", id="aggregated"),
        pytest.param({"count": 23, "failures": 3}, "1 MiB x23 (3 failed)", id="some of them failed"),
        pytest.param({"count": 3, "failures": 3, "errno": "EINVAL"}, "1 MiB x3 = EINVAL", id="all of them"),
    ],
)
def test_outcome(fields, shown):
    assert detail("munmap", {"length_bytes": MIB, **fields}) == shown


def test_tmpfs_full_found_by_a_page_fault_and_full_of_files():
    assert detail("shm_full", {"path": "/dev/shm/a", "by_fault": True}) == (
        "/dev/shm/a: no room, found by a page fault"
    )
    full = {"path": "/dev/shm/a", "syscall": "openat", "size_inodes": 23, "free_inodes": 0}
    assert detail("shm_full", full) == "/dev/shm/a: no room, no free inodes, in openat"
    assert detail("shm_full", {"length_bytes": MIB}) == "no room for 1 MiB"


PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("event", "more", "used_bytes", "shown"),
    [
        pytest.param("shm_full", {}, 64 * MIB, "64 MiB full", id="full"),
        pytest.param("shm_full", {}, 64 * MIB - 32 * PAGE, "64 MiB full", id="behind by one CPU's batch"),
        pytest.param("shm_full", {}, 59 * MIB, "59 MiB of 64 MiB used", id="too little room for a large write"),
        pytest.param("shm_full", {"by_fault": True}, 59 * MIB, "64 MiB full", id="no room for a page"),
        pytest.param("sigbus", {"reason": "tmpfs_full"}, 59 * MIB, "64 MiB full", id="SIGBUS for want of a page"),
        pytest.param("sigbus", {"reason": "beyond_end_of_file"}, 3 * MIB, "3 MiB of 64 MiB used", id="not full"),
    ],
)
def test_a_tmpfs_is_full_though_its_counter_is_behind(event, more, used_bytes, shown):
    words = detail(event, {"used_bytes": used_bytes, "size_bytes": 64 * MIB, **more})
    assert shown in words.split(", ")


SIGBUS = {
    "path": "/dev/shm/torch_4711_" + "weights" * 9,
    "address": 0x7F0012345000,
    "signal_code": "BUS_ADRERR",
    "reason": "tmpfs_full",
    "file_offset_bytes": 60 * MIB,
    "file_length_bytes": 96 * MIB,
    "size_bytes": 64 * MIB,
    "used_bytes": 64 * MIB,
}


def test_an_alarm_is_wrapped_not_cut_and_what_matters_comes_first(utc):  # noqa: F811
    shown = format_line(event_line("sigbus", **SIGBUS), Columns(width=80))
    assert shown == [
        "12:00:00.000  sigbus              4711  postgres         tmpfs full:",
        "              /dev/shm/torch_4711_weightsweightsweightsweightsweightsweightsweig",
        "              htsweightsweights at 60 MiB of its 96 MiB, 64 MiB full, BUS_ADRERR",
        "              at 0x7f0012345000",
    ]
    painted = format_line(event_line("sigbus", **SIGBUS), Columns(width=80, colour=True))
    assert painted == [paint(row, Style.ALARM, True) for row in shown]
    assert len(format_line(event_line("sigbus", **SIGBUS), Columns())) == 1


@pytest.mark.parametrize("show_container", [False, True])
@pytest.mark.parametrize("width", [60, 80, 100, 132])
def test_no_word_of_an_alarm_is_lost(width, show_container):
    for event in ("sigbus", "shm_full", "oom_kill"):
        fields = {**EVENTS[event][0], "path": "/dev/shm/psm_1"}
        rows = format_line(event_line(event, **fields), Columns(show_container, width))
        words = detail(event, fields).split()
        assert " ".join(rows).split()[-len(words) :] == words
        assert all(display_width(row) <= width for row in rows)


@pytest.mark.parametrize("show_container", [False, True])
def test_how_a_call_ended_survives_the_cut(show_container):
    fields = {"advice": "MADV_HUGEPAGE", "length_bytes": 1234 * MIB, "address": 0x7F0012345000}
    line = event_line("madvise", **fields, count=1234, errno="EINVAL")
    (shown,) = format_line(line, Columns(show_container, 80))
    assert shown.endswith("… x1,234 = EINVAL")
    assert display_width(shown) == 80
    (shown,) = format_line(event_line("madvise", **fields), Columns(show_container, 80))
    assert shown.endswith("…")


def test_brk_that_shrinks_and_private_segments():
    assert detail("brk", {"length_bytes": -4096}) == "-4 KiB"
    assert detail("shmget", {"key": 0, "shm_id": 0}) == "IPC_PRIVATE -> id 0"


def test_container_by_the_name_its_owner_knows():
    assert container_label(event_line("brk")) == "db"
    nameless = event_line("brk", 1, "c", None)
    assert container_label(nameless) == "/docker/8f3c"


GOLDEN = """\
TIME          EVENT            CONTAINER                 PID  COMM             DETAIL
12:00:00.000  shm_open         db                       4711  postgres         /dev/shm/a created
12:00:00.007  madvise          漢字                  4194304  \\x1b[31mevil     MADV_COLD 4 KiB = EINVAL
12:00:01.000  munmap           a-very-long-contain…       42  -                1 MiB x23
    free+0x12 (libc.so.6)
    [unknown] (\\n)
"""


def golden_lines():
    return [
        event_line("shm_open", path="/dev/shm/a", created=True),
        event_line(
            "madvise",
            4194304,
            "\x1b[31mevil",
            "漢字",
            NOON + 7_000_000,
            advice="MADV_COLD",
            length_bytes=4096,
            errno="EINVAL",
        ),
        event_line(
            "munmap",
            42,
            None,
            "a-very-long-container-name",
            NOON + 10**9,
            length_bytes=MIB,
            count=23,
            stack=["free+0x12 (libc.so.6)", "[unknown] (\n)"],
        ),
    ]


def test_golden(utc):  # noqa: F811
    out = io.StringIO()
    TableRenderer(out, Columns(show_container=True)).lines(golden_lines())
    assert out.getvalue() == GOLDEN


def test_container_only_when_there_is_more_than_one(utc):  # noqa: F811
    (shown,) = format_line(golden_lines()[0], Columns())
    assert shown == "12:00:00.000  shm_open            4711  postgres         /dev/shm/a created"


def test_the_heading_comes_once_and_with_the_first_line():
    out = io.StringIO()
    renderer = TableRenderer(out, Columns())
    renderer.lines([])
    assert out.getvalue() == ""
    renderer.line(event_line("brk"))
    renderer.line(event_line("brk"))
    assert out.getvalue().count("TIME") == 1
    assert len(out.getvalue().splitlines()) == 3


def test_a_block_stands_below_the_line_of_its_event_only():
    out = io.StringIO()
    renderer = TableRenderer(
        out, Columns(), {"oom_kill": lambda line, width: f"report on {line.pid}\n{width}"}
    )
    renderer.lines([event_line("oom_kill"), event_line("brk")])
    rows = out.getvalue().splitlines()
    assert rows[2:4] == ["report on 4711", "80"]
    assert len(rows) == 5


def test_summary_below_the_lines_and_alone():
    out = io.StringIO()
    renderer = TableRenderer(out, Columns())
    renderer.summary(SummaryBuilder().finish(0, 10**9, 0))
    assert out.getvalue() == "0 events in 1.0 s (0.0/s), 0 failed, 0 lost\n"
    renderer.line(event_line("brk"))
    renderer.summary(SummaryBuilder().finish(0, 10**9, 0))
    assert out.getvalue().endswith("\n\n0 events in 1.0 s (0.0/s), 0 failed, 0 lost\n")


@given(
    event=st.sampled_from(sorted(EVENTS)) | HOSTILE,
    comm=HOSTILE,
    container=HOSTILE,
    values=st.lists(VALUES, min_size=8, max_size=8),
    width=st.integers(60, 200),
)
def test_any_values_give_printable_lines_within_the_width(event, comm, container, values, width):
    keys = [*EVENTS.get(event, ({},))[0], "errno", "count", "failures", "x\x1b"]
    fields = dict(zip(keys, values, strict=False))
    shown = format_line(event_line(event, 1, comm, container, **fields), Columns(True, width))
    assert len(shown) == 1 or event in ("sigbus", "shm_full", "oom_kill")
    assert all(row.isprintable() and display_width(row) <= width for row in shown)


def test_colour_is_for_failures_and_alarms_only():
    columns = Columns(colour=True)
    assert format_line(event_line("sigbus"), columns)[0].startswith("\x1b[1;31m")
    assert format_line(event_line("brk", errno="ENOMEM"), columns)[0].startswith("\x1b[33m")
    assert "\x1b" not in format_line(event_line("brk"), columns)[0]
    assert "\x1b" not in format_line(event_line("sigbus"), Columns())[0]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "expected"),
    [
        pytest.param(Terminal(), {"TERM": "xterm"}, True, id="terminal"),
        pytest.param(Terminal(), {"NO_COLOR": "1"}, False, id="NO_COLOR"),
        pytest.param(Terminal(), {"NO_COLOR": ""}, True, id="NO_COLOR set but empty"),
        pytest.param(Terminal(), {"TERM": "dumb"}, False, id="dumb"),
        pytest.param(io.StringIO(), {"TERM": "xterm"}, False, id="pipe"),
    ],
)
def test_use_colour(stream, environ, expected):
    assert use_colour(stream, environ) is expected


def test_what_is_no_terminal_has_no_width(tmp_path):
    assert terminal_width(io.StringIO()) is None
    with (tmp_path / "file").open("w") as file:
        assert terminal_width(file) is None


def test_nothing_is_painted_where_nothing_is():
    assert paint("", Style.ALARM, True) == ""


def test_the_streaming_path_stays_light():
    code = (
        "import sys, rtdebug.render.table, rtdebug.render.jsonl, rtdebug.render.summary;"
        "print(sorted({'rich', 'numpy', 'pandas', 'cffi', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
