"""The reader of kernel messages, on fixtures of our own and on what goes wrong in life."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from rtdebug.oom.dressing import LogLine
from rtdebug.oom.kernel_log import OomLogReader, read_oom_log
from rtdebug.oom.lines import parse_counter, parse_killed, parse_task_row

FIXTURES = Path(__file__).parent / "fixtures" / "oom"
KIB = 1024
S = 1_000_000_000


def fixture_records(name):
    with (FIXTURES / name).open(encoding="utf-8") as lines:
        return read_oom_log(lines)


def test_v1_dump_of_6_18():
    (record,) = fixture_records("memcg-v1-6.18.dmesg")
    assert record.complete
    assert record.missing == ()
    assert (record.constraint, record.oom_memcg, record.task_memcg) == ("memcg", "/shop-api", "/shop-api")
    assert record.memory == parse_counter(20480, 20480, 20)
    assert record.memory_swap.unlimited
    assert record.kmem.usage_bytes == 60 * KIB
    assert record.limiting_counter == "memory"
    assert record.trigger.comm == "python3"
    assert record.trigger.tid == 7828
    assert record.trigger.order == 0
    assert record.memory_stat["rss"] == record.memory_stat["total_rss"] == 20905984
    assert record.memory_stat["hierarchical_memory_limit"] == 20 << 20
    (row,) = record.tasks
    assert (row.rss_anon_pages, row.rss_file_pages, row.rss_shmem_pages) == (6812, 1620, 0)
    (victim,) = record.victims
    assert victim.anon_rss_bytes == 27248 * KIB == row.rss_anon_pages * record.page_size_bytes
    assert record.time_ns is not None


def test_v2_group_kill_with_a_limit_above():
    (record,) = fixture_records("memcg-v2-group.journal")
    assert record.complete
    assert (record.oom_memcg, record.task_memcg) == ("/kubepods/pod77", "/kubepods/pod77/search")
    assert record.group_memcg == "/kubepods/pod77/search"
    assert [victim.pid for victim in record.victims] == [5107, 5101]
    assert record.kill_lines == 3
    assert record.skipped_pids == (5113,)
    assert record.mems_allowed == "0-1"
    assert record.nodemask is None
    assert record.swap.limit_bytes == 0
    assert not record.swap.unlimited
    assert record.memory_stat["shmem"] == 8 << 20
    assert record.swap_bytes(record.victims[0]) == 13 * 4096
    assert [reaped.shmem_rss_bytes for reaped in record.reaped] == [16 * KIB]


def test_v1_tree_hits_memory_plus_swap():
    (record,) = fixture_records("memcg-v1-3.10-tree.messages")
    assert record.limiting_counter == "memory+swap"
    assert record.memory.headroom_bytes == 32 * KIB
    assert record.memory_stat["rss"] == 100 * KIB
    assert record.child_memory_stats["/batch/web"]["rss"] == 130900 * KIB
    assert record.selected.pid == 7741
    (victim,) = record.victims
    assert (victim.pid, victim.uid, victim.comm) == (7702, 500, "java")
    assert victim.page_table_bytes is None


@pytest.mark.parametrize("room_kib", [0, 4, 28], ids=lambda room: f"{room} KiB of room")
@pytest.mark.parametrize(("memory_failcnt", "memsw_failcnt"), [(0, 7), (7, 0), (0, 0)])
def test_of_two_equal_limits_the_one_that_refused_counts(room_kib, memory_failcnt, memsw_failcnt):
    """memory.memsw.limit_in_bytes equal to memory.limit_in_bytes, with pages given back before the dump or not."""
    (record,) = fixture_records("memcg-v1-6.18.dmesg")
    record = replace(
        record,
        memory=parse_counter(20480 - room_kib, 20480, memory_failcnt),
        memory_swap=parse_counter(20480 - room_kib, 20480, memsw_failcnt),
    )
    assert record.limiting_counter == ("memory" if memory_failcnt else "memory+swap")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(" (a b) total-vm:8kB, anon-rss:4kB", ("a b", None, 8, 4), id="space"),
        pytest.param(" (a) b) total-vm:8kB, anon-rss:4kB", ("a) b", None, 8, 4), id="closing bracket"),
        pytest.param(
            " (anon-rss:9kB) total-vm:8kB, anon-rss:4kB", ("anon-rss:9kB", None, 8, 4), id="figure as name"
        ),
        pytest.param(" (a\nb) total-vm:8kB, anon-rss:4kB", ("a\nb", None, 8, 4), id="newline"),
        pytest.param(", UID 17, (a) total-vm:8kB, anon-rss:4kB", ("a", 17, 8, 4), id="2.6.32"),
        pytest.param(" (a), UID 17, total-vm:8kB, anon-rss:4kB", ("a", 17, 8, 4), id="3.10 of el7"),
        pytest.param(" (a) total-vm:8kB, anon-rss:4kB, UID:17 pgtables:1kB", ("a", 17, 8, 4), id="5.x"),
        pytest.param(" (", (None, None, None, None), id="cut"),
        pytest.param("", (None, None, None, None), id="cut at the pid"),
    ],
)
def test_forms_of_the_kill_line(text, expected):
    victim = parse_killed(7, text)
    kb = tuple(
        None if size is None else size // KIB for size in (victim.total_vm_bytes, victim.anon_rss_bytes)
    )
    assert (victim.comm, victim.uid, *kb) == expected


COLUMNS = ["uid", "tgid", "total_vm", "rss", "nr_ptes", "swapents", "oom_score_adj", "name"]


@pytest.mark.parametrize(
    ("cells", "cut", "name", "total_vm"),
    [
        pytest.param("0 7 611 30 2 0 -997 tmux: server", False, "tmux: server", 611, id="name with a space"),
        pytest.param("0 7 611 30 2 0 -997 [x] 12", False, "[x] 12", 611, id="name like a row"),
        pytest.param("0 7 611 30", True, None, 611, id="cut by an ellipsis"),
    ],
)
def test_rows(cells, cut, name, total_vm):
    row = parse_task_row(COLUMNS, 7, cells, cut)
    assert (row.comm, row.total_vm_pages) == (name, total_vm)


@pytest.mark.parametrize("cells", ["0 7 61", "0 7 x 30 2 0 -997 a", ""])
def test_half_rows_are_no_tasks(cells):
    assert parse_task_row(COLUMNS, 7, cells) is None


@pytest.mark.parametrize(
    ("limit_kb", "unlimited"),
    [
        (9007199254740988, True),
        (9007199254740992, True),
        (18014398509481983, True),
        (9007199254740928, True),
        (8589934588, True),
        (1 << 40, False),
        (0, False),
    ],
)
def test_no_limit_is_not_a_large_limit(limit_kb, unlimited):
    assert parse_counter(1, limit_kb, 0).unlimited == unlimited


def kill_line(pid, comm="a"):
    return f"Memory cgroup out of memory: Killed process {pid} ({comm}) total-vm:8kB, anon-rss:4kB"


def summary_line(pid, memcg="/a"):
    return (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
        f"oom_memcg={memcg},task_memcg={memcg},task=a,pid={pid},uid=0"
    )


def trigger_line(comm="a"):
    return f"{comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"


def test_rate_limited_kills_are_kills_of_their_own():
    records = read_oom_log([summary_line(23), kill_line(23), kill_line(29), kill_line(31)])
    assert [[victim.pid for victim in record.victims] for record in records] == [[23], [29], [31]]
    assert [record.oom_memcg for record in records] == ["/a", None, None]
    assert [record.constraint for record in records] == ["memcg"] * 3


def test_two_cpus_are_told_apart_by_the_caller():
    reader, records = OomLogReader(), []
    for caller, message in [
        ("T1", trigger_line("one")),
        ("T2", trigger_line("two")),
        ("T1", "memory: usage 8kB, limit 8kB, failcnt 1"),
        ("T2", "memory: usage 16kB, limit 16kB, failcnt 2"),
        ("T1", summary_line(11, "/one")),
        ("T2", summary_line(13, "/two")),
        ("T2", kill_line(13)),
        ("T1", kill_line(11)),
        ("T99", "oom_reaper: reaped process 11 (a), now anon-rss:0kB, file-rss:0kB, shmem-rss:4kB"),
    ]:
        records += reader.feed(LogLine(message, caller=caller))
    first, second = records + reader.flush()
    assert (first.trigger.comm, first.oom_memcg, first.memory.limit_bytes) == ("one", "/one", 8 * KIB)
    assert (second.trigger.comm, second.oom_memcg, second.memory.limit_bytes) == ("two", "/two", 16 * KIB)
    assert [reaped.pid for reaped in first.reaped] == [11]
    assert second.reaped == ()


def test_without_caller_a_second_line_of_a_kind_is_another_kill():
    lines = ["Task in /a killed as a result of limit of /a", "Task in /b killed as a result of limit of /b"]
    assert [record.oom_memcg for record in read_oom_log(lines)] == ["/a", "/b"]


def test_a_late_reaper_line_finds_its_kill():
    reaped = "oom_reaper: reaped process 23 (a), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB"
    first, second = read_oom_log(
        [kill_line(23), "docker0: port 2 entered", trigger_line(), reaped, kill_line(29)]
    )
    assert [each.pid for each in first.reaped] == [23]
    assert second.trigger is not None
    assert [victim.pid for victim in second.victims] == [29]


def test_reaper_line_alone_is_an_incomplete_kill():
    (record,) = read_oom_log(
        ["oom_reaper: reaped process 23 (a), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB"]
    )
    assert not record.complete
    assert record.victims == ()
    assert record.reaped[0].pid == 23


def test_is_over_after_the_linger_time():
    reader = OomLogReader(linger_ns=S)
    assert reader.feed(LogLine(kill_line(23)), now_ns=0) == []
    assert reader.due_ns == S
    assert reader.flush(now_ns=S - 1) == []
    (record,) = reader.flush(now_ns=S)
    assert record.victims[0].pid == 23
    assert reader.due_ns is None
    late = "oom_reaper: reaped process 23 (a), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB"
    reader.feed(LogLine(late), now_ns=2 * S)
    assert reader.flush() == []


def test_times_of_the_lines_count_where_none_is_passed():
    reader = OomLogReader(linger_ns=S)
    reader.feed(LogLine(kill_line(23), time_ns=5 * S))
    (record,) = reader.feed(LogLine("something else", time_ns=7 * S))
    assert record.time_ns == 5 * S


def test_a_dump_without_end_is_given_up():
    reader = OomLogReader(stale_ns=10 * S)
    reader.feed(LogLine(trigger_line()), now_ns=0)
    assert reader.flush(now_ns=9 * S) == []
    (record,) = reader.flush(now_ns=10 * S)
    assert "kill line" in record.missing


def test_an_endless_storm_of_dumps_does_not_pile_up():
    reader = OomLogReader()
    records = [record for _ in range(1000) for record in reader.feed(LogLine(trigger_line()))]
    assert len(records) >= 990


def test_other_programs_cannot_speak_for_the_kernel():
    assert read_oom_log([f"Mar 11 10:16:36 host impostor[7]: {kill_line(23)}"]) == []
    assert OomLogReader().feed(LogLine(kill_line(1), source="impostor")) == []


def test_stack_of_something_else_is_no_oom():
    lines = ["CPU: 0 PID: 23 Comm: a Not tainted 6.1", "Call Trace:", " warn_slowpath+0x1/0x2", kill_line(29)]
    (record,) = read_oom_log(lines)
    assert record.trigger is None


@pytest.mark.parametrize(
    "frame",
    [
        " dump_header+0x43/0x1c0",
        " [<ffffffff81641d2e>] dump_header+0x8e/0x214",
        "[<ffffffff815136fc>] ? dump_header+0x78/0x21a",
        "[c000000003d8b9c0] [c0000000003f2b90] dump_header+0x54/0x330",
        "([<00000000002ab1f2>] dump_header+0x92/0x1f0)",
        " dump_header from oom_kill_process+0x23c/0x248",
        "[<c01f58cc>] (dump_header) from [<c01b2be0>] (oom_kill_process+0x448/0x4cc)",
    ],
)
def test_the_stack_of_an_oom_names_its_trigger(frame):
    lines = ["CPU: 0 PID: 23 Comm: a Not tainted 6.1", "Call Trace:", frame, kill_line(29)]
    (record,) = read_oom_log(lines)
    assert (record.trigger.comm, record.trigger.tid) == ("a", 23)


def test_old_statistics_wrapped_at_a_blank():
    lines = [
        "Memory cgroup stats for /pool/a: cache:17KB rss:71023KB",
        "rss_huge:2048KB mapped_file:3KB inactive_anon:5KB",
        "unevictable:0KB",
        "elsewhere:7KB and so on",
    ]
    (record,) = read_oom_log(lines)
    kib = {"cache": 17, "rss": 71023, "rss_huge": 2048, "mapped_file": 3, "inactive_anon": 5, "unevictable": 0}
    assert record.memory_stat == {key: value * KIB for key, value in kib.items()}


def test_paths_printed_as_records_of_their_own():
    lines = ["Task in /pool/a", " killed as a result of limit of ", "/pool"]
    lines += ["Memory cgroup stats for ", "/pool: rss:7KB"]
    (record,) = read_oom_log([f"[   71.00000{number}] {line}" for number, line in enumerate(lines)])
    assert (record.task_memcg, record.oom_memcg, record.memory_stat) == ("/pool/a", "/pool", {"rss": 7 * KIB})


@pytest.mark.parametrize("dots", ["...", "…"])
def test_a_path_shortened_in_the_middle_is_none(dots):
    path = f"/system.slice/docker-71023{dots}.scope"
    (record,) = read_oom_log([summary_line(23, path), kill_line(23)])
    assert (record.constraint, record.oom_memcg, record.task_memcg, record.chosen.pid) == ("memcg", None, None, 23)
    assert not record.complete


def test_a_name_ends_where_the_figures_begin():
    victim = parse_killed(7, " (a (b)) total-vm:8kB, anon-rss:3kB, and (something else) behind it")
    assert (victim.comm, victim.total_vm_bytes, victim.anon_rss_bytes) == ("a (b)", 8 * KIB, 3 * KIB)
    assert parse_killed(7, " (a" + "b" * 80 + ") total-vm:8kB").comm is None


def test_blanks_at_the_end_are_no_part_of_a_line():
    lines = [f"[   71.000001] {line}    " for line in (trigger_line("a"), "a cpuset=pool mems_allowed=0-1")]
    (record,) = read_oom_log(lines)
    assert (record.cpuset, record.mems_allowed) == ("pool", "0-1")


def test_two_machines_in_one_log():
    def of(host, pid):
        lines = [trigger_line(host), summary_line(pid, f"/{host}"), kill_line(pid, host)]
        return [f"Mar 11 10:16:36 {host} kernel: {line}" for line in lines]

    interleaved = [line for pair in zip(of("north", 71), of("south", 73), strict=True) for line in pair]
    systemd = "Mar 11 10:16:36 north systemd[1]: a.service: A process of this unit has been killed by the OOM killer."
    records = read_oom_log([*interleaved, systemd])
    assert [(r.machine, r.trigger.comm, r.oom_memcg, [v.pid for v in r.victims], r.unit) for r in records] == [
        ("north", "north", "/north", [71], "a.service"),
        ("south", "south", "/south", [73], None),
    ]


def test_a_clock_that_goes_back_is_of_another_machine():
    lines = [f"[  {seconds}.000001] {line}" for seconds, line in ((531, trigger_line("a")), (517, kill_line(23)))]
    first, second = read_oom_log(lines)
    assert first.victims == ()
    assert second.trigger is None


def test_a_summary_after_its_kill():
    (record,) = read_oom_log([kill_line(23), summary_line(23, "/a")])
    assert (record.oom_memcg, record.chosen.pid, [victim.pid for victim in record.victims]) == ("/a", 23, [23])
    assert record.victims[0].uid == record.chosen.uid


@pytest.mark.parametrize(("usage_kib", "page_bytes"), [(71020, 4096), (71024, None), (65536, None)])
def test_the_page_size_without_a_kill_line(usage_kib, page_bytes):
    (record,) = read_oom_log([f"memory: usage {usage_kib}kB, limit 131072kB, failcnt 3"])
    assert record.page_size_bytes == page_bytes


def test_a_garbled_pid_is_no_pid():
    (record,) = read_oom_log([summary_line(23).replace("pid=23", "pid=:23")])
    assert record.chosen is None
    assert record.cut


def test_kernels_of_before_2_6_36():
    text = """\
burner invoked oom-killer: gfp_mask=0x1201d2, order=0, oomkilladj=3
Pid: 2311, comm: burner Not tainted 2.6.25
 [<c0170c07>] out_of_memory+0x167/0x1a0
 free:71023 slab:2311 mapped:811 pagetables:119 bounce:0
Normal free:3607kB min:3719kB low:4649kB high:5581kB active:0kB inactive:0kB present:880879kB
Total swap = 1863533kB
262139 pages of RAM
8209 reserved pages
Out of memory: kill process 2309 (shell) score 907 or a child
Killed process 2311 (burner) vsz:71023kB, anon-rss:61027kB, file-rss:173kB
burner invoked oom-killer: gfp_mask=0x1201d2, order=0, oomkilladj=3
Out of Memory: Killed process 2333 (burner).
"""
    first, second = read_oom_log(text.splitlines())
    assert first.complete
    assert first.constraint == "global"
    assert (first.trigger.tid, first.selected.pid, first.selected.comm, first.selected.score) == (
        *(2311, 2309, "shell", 907),
    )
    (victim,) = first.victims
    assert (victim.pid, victim.comm, victim.total_vm_bytes) == (2311, "burner", 71023 * KIB)
    assert (first.host.ram_pages, first.host.reserved_pages, first.host.free_pages) == (262139, 8209, 71023)
    assert [(zone.node, zone.name, zone.min_bytes) for zone in first.host.zones] == [(None, "Normal", 3719 * KIB)]
    assert (second.constraint, second.victims[0].comm) == ("global", "burner")


def test_all_totals_of_mem_info():
    lines = [trigger_line("a"), " mapped:1297 shmem:19541", " sec_pagetables:7 bounce:0", " kernel_misc_reclaimable:3"]
    (record,) = read_oom_log(lines)
    assert record.host.pages == {
        "mapped": 1297,
        "shmem": 19541,
        "sec_pagetables": 7,
        "bounce": 0,
        "kernel_misc_reclaimable": 3,
    }


def test_nobody_eligible_in_a_cgroup():
    lines = [trigger_line("a"), "Memory limit reached of cgroup /pool/x", "Out of memory and no killable processes..."]
    (record,) = read_oom_log(lines)
    assert (record.constraint, record.oom_memcg, record.task_memcg) == ("memcg", "/pool/x", None)
    assert record.no_killable_process


def test_nobody_eligible_does_not_say_where():
    (record,) = read_oom_log([trigger_line("a"), "Out of memory and no killable processes..."])
    assert record.constraint is None
    assert record.no_killable_process


@pytest.mark.parametrize(
    ("reason", "constraint"),
    [
        ("Out of memory: system-wide panic_on_oom is enabled", "global"),
        ("Out of memory: compulsory panic_on_oom is enabled", None),
        ("Out of memory and no killable processes...", "global"),
        ("System is deadlocked on memory", "global"),
    ],
)
def test_a_panic_is_the_end_of_its_own_kill(reason, constraint):
    cpu = "CPU: 3 PID: 8287 Comm: a Not tainted 4.19.0"
    lines = [trigger_line("a"), cpu, f"Kernel panic - not syncing: {reason}", cpu, " out_of_memory+0x236/0x500"]
    (record,) = read_oom_log(lines)
    assert record.panicked
    assert (record.constraint, record.complete) == (constraint, constraint is not None)
    assert "kill line" not in record.missing


def test_a_panic_of_something_else_is_no_oom():
    assert read_oom_log(["Kernel panic - not syncing: Attempted to kill init!"]) == []


@pytest.mark.parametrize(
    "comm", ["a invoked b", "x,pid=1,uid=2", "), total-vm:9kB", "a\nb", "\x1b[31m", "(sd-pam)"]
)
def test_hostile_names_stay_names(comm):
    reader = OomLogReader()
    summary = summary_line(23).replace("task=a", f"task={comm}")
    for message in (trigger_line(comm), summary, kill_line(23, comm)):
        reader.feed(LogLine(message))
    (record,) = reader.flush()
    assert record.victims[0].comm == comm
    assert record.victims[0].total_vm_bytes == 8 * KIB
    assert (record.chosen.pid, record.chosen.comm) == (23, comm)
    assert record.trigger.comm == comm


def test_a_summary_cut_in_the_middle_keeps_what_is_whole():
    whole = summary_line(23, "/kubepods/pod77")
    (record,) = read_oom_log([whole[: whole.index("task_memcg=") + 17]])
    assert record.oom_memcg == "/kubepods/pod77"
    assert record.task_memcg is None
    assert record.cut
    assert not record.complete


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(" " * 50_000, id="blanks"),
        pytest.param("a" * 50_000 + " ...", id="cut"),
        pytest.param("[ " * 25_000, id="brackets"),
        pytest.param(summary_line(1, "/a" + ",task_memcg=x,task=y,pid=1" * 2000)[:-1] + "!", id="summary"),
        pytest.param("Memory cgroup stats for " + "a:1KB " * 10_000 + "!", id="memory.stat"),
        pytest.param("Killed process 1 (" + ") " * 25_000, id="name"),
    ],
)
def test_a_hostile_line_takes_no_time(line):
    start = time.process_time()
    read_oom_log([line])
    assert time.process_time() - start < 1
