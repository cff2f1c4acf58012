"""`rtdebug export` on real containers, kills and scrapes; and a real Prometheus behind it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest
import yaml

from rtdebug.containers.model import Container
from rtdebug.export.apart import Apart
from rtdebug.export.model import Orphans
from rtdebug.export.reading import read_orphans, read_shm_usage
from rtdebug.export.server import Server, listen
from rtdebug.export.web_config import WebConfig
from rtdebug.host.cgroup import find_memory_hierarchy
from rtdebug.render.metrics import MetricsPage
from tests.kernel.runtime_fixtures import Box, Runc
from tests.kernel.tracing import ROOT, Script, small_shm
from tests.kernel.workload import MIB, UNCOUNTED_BYTES, build, memory_mount, run
from tests.unit.export_things import box, full_counts, full_state, snapshot
from tests.unit.test_export_deploy import RULES, queries, unit
from tests.unit.test_export_metrics import Labels, samples

pytestmark = pytest.mark.kernel

PATIENCE_S = 20
LIMIT = 32 * MIB
IDLE = "sleep 1000"
FILL_SHM = """
import errno, os
fd = os.open("/dev/shm/rtdebug-fill", os.O_CREAT | os.O_RDWR, 0o600)
refused = 0
for _ in range(100):
    try:
        os.write(fd, b"x" * 1048576)
    except OSError as error:
        refused += error.errno == errno.ENOSPC
        if refused == 7:
            break
say(refused=refused)
wait()
"""
T = TypeVar("T")


class Export:
    """A running exporter in a `with` block."""

    def __init__(self, *arguments: object, wrap: Sequence[str] = (), listen_at: str | None = "127.0.0.1:0") -> None:
        listening = ["--listen", listen_at] if listen_at else []
        command = [*wrap, sys.executable, "-m", "rtdebug", "export", "--interval", "1s", *listening]
        self._command = [*command, *map(str, arguments)]
        self.stderr: list[str] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.ready = until(self._ready, f"the first line of {self._command}")
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.status = self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
        self._reader.join(PATIENCE_S)

    @property
    def url(self) -> str:
        match = re.search(r"https?://\S+", self.ready)
        assert match, self.ready
        return match[0]

    def page(self) -> bytes:
        with urllib.request.urlopen(self.url, timeout=5) as answer:
            content: bytes = answer.read()
            return content

    def value(self, name: str, **labels: str) -> float | None:
        """The only such sample, None without one."""
        found = [value for has, value in samples(self.page()).get(name, ()) if labels.items() <= has.items()]
        assert len(found) <= 1, (name, labels, found)
        return found[0] if found else None

    def until(self, name: str, value: Callable[[float], bool], **labels: str) -> float:
        """Wait for a value."""

        def there() -> list[float]:
            found = self.value(name, **labels)
            return [] if found is None or not value(found) else [found]

        return until(there, lambda: f"{name} {labels}: {samples(self.page()).get(name)}; {self.stderr}")[0]

    def _ready(self) -> str | None:
        assert self.process.poll() is None, self.stderr
        return next((line for line in self.stderr if line.startswith("Exporting")), None)

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                self.stderr.append(line.rstrip("\n"))


def until(condition: Callable[[], T | None], what: str | Callable[[], str]) -> T:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what if isinstance(what, str) else what()}"
        time.sleep(0.2)
    return found


def who(each: Box) -> Labels:
    return {"container": each.name or each.id}


def cgroup_of(each: Box) -> Path:
    return memory_mount()[0] / each.id


def inside(each: Box) -> list[str]:
    """A command that executes another in the container's cgroup, as its runtime would: it joins before exec."""
    return ["sh", "-c", f'echo $$ > {cgroup_of(each)}/cgroup.procs; exec "$@"', "sh"]


def bounded(*names: str) -> list[str]:
    """A command that executes another with these capabilities only."""
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in names)
    return ["setpriv", f"--bounding-set=-all{',' if kept else ''}{kept}", "--inh-caps=-all"]


def test_what_happens_in_a_container_is_counted_and_stays_counted_when_it_is_gone(runc: Runc) -> None:
    container = runc.start(memory_bytes=LIMIT, script=IDLE)
    with Export() as export:
        export.until("rtdebug_trace_up", lambda value: value == 1)
        export.until("rtdebug_oom_kills_total", lambda value: value == 0, **who(container))
        subprocess.run([*inside(container), build("madvise"), "23", "MADV_COLD"], check=True, capture_output=True)
        killed = subprocess.run([*inside(container), build("oom"), str(64 * MIB)], capture_output=True)
        assert killed.returncode == -signal.SIGKILL
        # this one is moved into the cgroup when it runs already
        assert run("oom", 64 * MIB, cgroup=cgroup_of(container)).returncode == -signal.SIGKILL
        with Script(FILL_SHM, wrap=[*inside(container), *small_shm()]) as script:
            script.go()
            assert script.hear()["refused"] == 7
            script.go()
            script.finish()
        export.until("rtdebug_oom_kills_total", lambda value: value == 2, **who(container))
        export.until("rtdebug_shm_full_total", lambda value: value == 7, **who(container))
        cold = {"advice": "MADV_COLD", "result": "ok"}
        export.until("rtdebug_madvise_calls_total", lambda value: value == 23, **cold, **who(container))
        victims = {**who(container), "victim": "oom", "limit_cgroup": f"/{container.id}"}
        told = [(labels.get("limit_owner", ""), value)
                for labels, value in samples(export.page())["rtdebug_oom_victims_total"]
                if victims.items() <= labels.items()]  # fmt: skip
        assert sum(value for _, value in told) == 2 and ("container" in dict(told))
        kill_s = export.value("rtdebug_oom_last_kill_timestamp_seconds", **who(container))
        assert kill_s is not None and abs(kill_s - time.time()) < 60
        rss = export.value("rtdebug_oom_last_kill_victim_rss_bytes", **who(container))
        assert rss is not None and LIMIT // 2 < rss <= LIMIT + MIB
        assert export.value("rtdebug_container_memory_limit_bytes", **who(container)) == LIMIT
        runc.remove(container)
        until(lambda: export.value("rtdebug_container_memory_usage_bytes", **who(container)) is None, "its end")
        assert export.value("rtdebug_oom_kills_total", **who(container)) == 2
        assert export.value("rtdebug_trace_lost_events_total") == 0
        promtool = [shutil.which("promtool") or "promtool", "check", "metrics"]
        checked = subprocess.run(promtool, input=export.page(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert checked.stdout.decode() == ""
    assert export.status == 0


def test_memory_by_kind_and_dev_shm_are_those_of_the_kernel(runc: Runc) -> None:
    container = runc.start(shm_bytes=8 * MIB, script="head -c 5242880 /dev/zero > /dev/shm/left; sleep 1000")
    with Export("--no-trace") as export:
        export.until("rtdebug_container_shm_used_bytes", lambda value: value == 5 * MIB, **who(container))
        assert export.value("rtdebug_container_shm_size_bytes", **who(container)) == 8 * MIB
        shmem_bytes = export.value("rtdebug_container_memory_kind_bytes", kind="shmem", **who(container))
        assert 5 * MIB - UNCOUNTED_BYTES <= shmem_bytes <= 5 * MIB
        kinds = [value for labels, value in samples(export.page())["rtdebug_container_memory_kind_bytes"]
                 if who(container).items() <= labels.items()]  # fmt: skip
        usage = export.value("rtdebug_container_memory_usage_bytes", **who(container))
        assert usage is not None and abs(sum(kinds) - usage) < MIB
        assert export.value("rtdebug_trace_up") == 0
    # containers take turns at this: on a host with many it takes minutes until it is on the page
    itself = Container(container.id, None, "runc", container.pid, "running", f"/{container.id}")
    assert read_orphans(itself, find_memory_hierarchy()) == Orphans(1, 5 * MIB)


def test_the_capabilities_of_the_service_are_enough(runc: Runc) -> None:
    container = runc.start(script=IDLE, shm_bytes=8 * MIB)
    (bounding,) = unit()["CapabilityBoundingSet"]
    with Export(wrap=bounded(*bounding.split())) as export:
        export.until("rtdebug_trace_up", lambda value: value == 1)
        export.until("rtdebug_container_shm_size_bytes", lambda value: value == 8 * MIB, **who(container))


def test_without_rights_it_serves_what_may_be_read(runc: Runc) -> None:
    container = runc.start(script=IDLE)
    with Export(wrap=bounded()) as export:
        until(lambda: any("no trace" in line for line in export.stderr), "what is missing")
        assert export.value("rtdebug_trace_up") == 0
        found = samples(export.page())
        assert any(labels["container"] == container.id for labels, _ in found["rtdebug_container_memory_usage_bytes"])
        assert "rtdebug_oom_kills_total" not in found


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "rtdebug", "export", "--listen", f"127.0.0.1:{port}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 3
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_textfile(tmp_path: Path) -> None:
    path = tmp_path / "rtdebug.prom"
    with Export("--no-trace", "--textfile", path, listen_at=None) as export:
        assert str(path) in export.ready and "http" not in export.ready
        assert samples(path.read_bytes())["rtdebug_trace_up"] == [({}, 0)]


def test_killed_it_leaves_nothing() -> None:
    with Export() as export:
        export.until("rtdebug_trace_up", lambda value: value == 1)
        helpers = Path(f"/proc/{export.process.pid}/task/{export.process.pid}/children").read_text().split()
        assert len(helpers) >= 2
        export.process.kill()
        export.process.wait()
        until(lambda: not any(_lives(int(pid)) for pid in helpers), "its helpers' end")


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


# --- a file system that does not answer ---

_FUSE = """
import os
fd = os.open("/dev/fuse", os.O_RDWR)
libc = _libc
assert libc.mount(b"rtdebug-test", b"/dev", b"fuse", 0, b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fd) == 0
say(mounted=True)
wait()
os.close(fd)
"""


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE here")
def test_a_container_whose_file_systems_hang_is_left_behind() -> None:
    """FUSE without a server, as it is after the server has hung: the look at /dev/shm never comes back."""
    apart = Apart(read_shm_usage, patience_s=1.0)
    with Script(_FUSE, wrap=["unshare", "--mount", "--propagation", "private"]) as hung:
        hung.go()
        assert hung.hear()["mounted"]
        items = {str(pid): Container(str(pid), None, None, pid, "running", None) for pid in (hung.pid, os.getpid())}
        started = time.monotonic()
        found = apart.read(items)
        assert time.monotonic() - started < 5
        assert apart.stuck == {str(hung.pid)}
        assert set(found) == {str(os.getpid())}
        hung.go()  # its connection is closed: whoever waits gets an error
        hung.finish()
    until(lambda: not apart.read({}) and not apart.stuck, "the reader that hung")


# --- Prometheus ---


@contextlib.contextmanager
def prometheus(folder: Path, targets: dict[str, str]) -> Iterator[str]:
    """A real one that scrapes these targets, by job, once a second."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.fail("prometheus is not installed (scripts/setup --test installs it)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    jobs = [
        {"job_name": job, "honor_labels": True, "static_configs": [{"targets": [target]}]}
        for job, target in targets.items()
    ]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": jobs,
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    arguments = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, *arguments, f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def ask(base: str, path: str, **parameters: str) -> Any:
    with contextlib.suppress(urllib.error.URLError):
        url = f"{base}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
    return None


def query(base: str, expression: str) -> list[dict[str, Any]]:
    answer = ask(base, "query", query=expression)
    return answer["result"] if answer else []


NOT_EVERYWHERE = {
    "Waiting for memory (PSI)",  # not on cgroup v1
    "Growth of what leaks or may leak",  # nothing leaks in a minute
    "Unusual figures",  # a window is not filled in it
    "Leaking containers",
}
"""Panels whose data comes from a page that has everything, which is scraped beside the exporter."""


def test_a_real_prometheus_gets_data_for_every_panel_and_fires_alerts(runc: Runc, tmp_path: Path) -> None:
    container = runc.start(memory_bytes=LIMIT, script=IDLE)
    page = MetricsPage()
    v2 = box("v2")
    server = Server(listen("127.0.0.1:0"), WebConfig(), 120)
    server.publish(page.page(snapshot((full_state(v2),), full_counts(v2))))
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        export = stack.enter_context(Export())
        export.until("rtdebug_trace_up", lambda value: value == 1)
        urls = {"rtdebug": export.url, "full": server.url}
        targets = {job: url.removeprefix("http://").removesuffix("/metrics") for job, url in urls.items()}
        base = stack.enter_context(prometheus(tmp_path, targets))
        name = who(container)["container"]
        until(lambda: query(base, f'rtdebug_oom_kills_total{{container="{name}"}}'), "the first scrape")
        subprocess.run([*inside(container), build("madvise"), "7", "MADV_COLD"], check=True, capture_output=True)
        assert run("oom", 64 * MIB, cgroup=cgroup_of(container)).returncode == -signal.SIGKILL

        def fired() -> list[str]:
            alerts = (ask(base, "alerts") or {"alerts": []})["alerts"]
            return [each for each in alerts if each["labels"].get("container") == name and each["state"] == "firing"]

        until(fired, "the alert ContainerOomKilled")
        assert {each["labels"]["alertname"] for each in fired()} == {"ContainerOomKilled"}  # type: ignore[index]
        until(lambda: query(base, "rtdebug_container_shm_orphans{job='rtdebug'}"), "a look at orphans")
        for title, expression in queries():
            filled = expression.replace("$__rate_interval", "15s").replace("$__range", "1m")
            for variable in ("$instance", "$container"):
                filled = filled.replace(variable, ".*")
            until(lambda asked=filled: query(base, asked), f"{title}: {filled}")
            if title not in NOT_EVERYWHERE:
                real = filled.replace('instance=~".*"', f'instance="{targets["rtdebug"]}"')
                until(lambda asked=real: query(base, asked), f"{title}: {real}")
        assert query(base, 'up == 0') == []
        (scrape,) = query(base, 'scrape_duration_seconds{job="rtdebug"}')
        assert float(scrape["value"][1]) < 1


def test_scrapes_never_fail_while_containers_come_and_go(runc: Runc) -> None:
    with Export("--no-trace") as export:
        stop = threading.Event()
        failures: list[object] = []

        def scrape() -> None:
            while not stop.is_set():
                try:
                    export.page()
                except Exception as error:
                    failures.append(error)

        threads = [threading.Thread(target=scrape) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            runc.remove(runc.start(script=IDLE))
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
