"""Kills and kernel messages in any order, with time passed in."""

import pytest

from rtdebug.host.kmsg import KmsgRecord
from rtdebug.oom.kill import OomKill
from rtdebug.oom.live import OomJoiner
from rtdebug.oom.report import Surroundings

MS = 1_000_000
WAIT = 300 * MS
SUMMARY = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg={memcg},task_memcg={memcg},task=a,pid={pid},uid=0"
)
KILLED = "Memory cgroup out of memory: Killed process {pid} (a) total-vm:8kB, anon-rss:4kB, file-rss:0kB"
GROUP = "Tasks in {memcg} are going to be killed due to memory.oom.group set"
AROUND = Surroundings()


def kill(pid, tid=None):
    return OomKill(time_ns=1, pid=pid, tid=tid or pid)


def message(text, facility=0, **values):
    return KmsgRecord(1, 1, facility, 6, text.format(**values))


class Session:
    """Drives a joiner and keeps what it gave."""

    def __init__(self, **options):
        self.joiner = OomJoiner(**options)
        self.reports = []

    def kill(self, now_ms, pid, tid=None):
        self.reports += self.joiner.add_kill(kill(pid, tid), AROUND, now_ms * MS)

    def log(self, now_ms, *texts, **values):
        for text in texts:
            self.reports += self.joiner.add_message(message(text, **values), now_ms * MS)

    def at(self, now_ms):
        self.reports += self.joiner.advance(now_ms * MS)
        return [(report.pid, report.oom_memcg) for report in self.reports]


def test_event_first():
    session = Session()
    session.kill(0, 23)
    session.log(5, SUMMARY, KILLED, pid=23, memcg="/a")
    assert session.at(10) == []
    assert session.joiner.due_ns == 55 * MS
    assert session.at(55) == [(23, "/a")]
    assert session.joiner.due_ns is None
    assert session.at(1000) == [(23, "/a")]


def test_log_first():
    session = Session()
    session.log(0, SUMMARY, KILLED, pid=23, memcg="/a")
    session.log(60, "something else")
    session.kill(200, 23)
    assert session.at(200) == [(23, "/a")]


def test_no_log_is_waited_for_a_short_time():
    session = Session()
    session.kill(0, 23)
    assert session.joiner.due_ns == WAIT
    assert session.at(299) == []
    assert session.at(300) == [(23, None)]


def test_no_access_to_the_log_waits_for_nothing():
    session = Session(wait_ns=0)
    session.kill(0, 23)
    assert session.at(0) == [(23, None)]


def test_rate_limited_dump_still_gives_the_kill_line():
    session = Session()
    session.kill(0, 23)
    session.log(1, KILLED, pid=23)
    session.at(100)
    (report,) = session.reports
    assert (report.constraint, report.oom_memcg, report.anon_rss_bytes) == ("memcg", None, 4096)


def test_several_kills_within_a_second_keep_their_own_limits():
    session = Session()
    pids = [11, 13, 17, 19, 23]
    for number, pid in enumerate(pids):
        session.kill(number * 100, pid)
        session.log(number * 100 + 1, SUMMARY, KILLED, pid=pid, memcg=f"/m{pid}")
    assert session.at(1000) == [(pid, f"/m{pid}") for pid in pids]


def test_group_kill_gives_a_report_for_each_member():
    session = Session()
    for pid in (11, 13, 17):
        session.kill(0, pid)
    session.log(1, SUMMARY, KILLED, GROUP, pid=11, memcg="/a")
    for pid in (11, 13, 17):
        session.log(2, KILLED, pid=pid)
    assert session.at(60) == [(11, "/a"), (13, "/a"), (17, "/a")]
    assert all(report.oom_group for report in session.reports)


def test_slow_console_gives_what_is_known_at_the_deadline():
    session = Session()
    session.kill(0, 23)
    session.log(299, SUMMARY, pid=23, memcg="/a")
    assert session.at(300) == [(23, "/a")]


def test_a_thread_id_in_the_log():
    session = Session()
    session.kill(0, 23, tid=29)
    session.log(1, KILLED, pid=29)
    assert session.at(100) == [(23, None)]
    assert session.reports[0].anon_rss_bytes == 4096


def test_kills_that_the_filter_left_out_give_nothing():
    session = Session()
    session.log(0, SUMMARY, KILLED, pid=23, memcg="/other")
    assert session.at(10_000) == []


def test_an_old_record_is_not_taken_for_a_new_process_of_that_pid():
    session = Session()
    session.log(0, SUMMARY, KILLED, pid=23, memcg="/old")
    session.at(100)
    session.kill(20_000, 23)
    assert session.at(20_300) == [(23, None)]


def test_user_space_cannot_fake_a_kill():
    session = Session()
    session.kill(0, 23)
    session.log(1, SUMMARY, KILLED, pid=23, memcg="/fake", facility=1)
    assert session.at(300) == [(23, None)]


@pytest.mark.parametrize("texts", [(), (SUMMARY,), (SUMMARY, KILLED)])
def test_finish_gives_what_waits(texts):
    session = Session()
    session.kill(0, 23)
    session.log(1, *texts, pid=23, memcg="/a")
    reports = session.joiner.finish()
    assert [(report.pid, report.oom_memcg) for report in reports] == [(23, "/a" if texts else None)]
    assert session.joiner.finish() == []
