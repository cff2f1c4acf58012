"""Real leaks in real containers, recorded and judged; and the page in a real browser."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

import pytest

from tests.kernel.leakers import leakers, rootfs_of_leakers
from tests.kernel.runtime_fixtures import MIB, Runc

pytestmark = pytest.mark.kernel

SECONDS = 36
STEP_KIB, PAUSE_MS = 1024, 400
FLOORS = ("--min-span", "24s", "--min-growth", "8M")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-headless-shell")


def rtdebug(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rtdebug", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """All leakers at once, recorded: the store, what each container is, and the report."""
    folder = tmp_path_factory.mktemp("leakers")
    runc = Runc(folder, rootfs_of_leakers(folder / "rootfs"))
    programs = leakers(STEP_KIB, PAUSE_MS)
    if subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True).stdout.strip() == "tmpfs":
        programs = [each for each in programs if each.name != "cache"]  # its file would be no page cache
    try:
        boxes = {
            each.name: runc.start(script=each.script, memory_bytes=512 * MIB, shm_bytes=512 * MIB) for each in programs
        }
        store = folder / "store"
        ids = [box.id for box in boxes.values()]
        rtdebug("leaks", "record", *ids, "--store", store, "--interval", "500ms", "--duration", f"{SECONDS}s")
        document = json.loads(rtdebug("leaks", "report", store, *FLOORS, "-o", "json"))
        yield store, {boxes[each.name].id: each for each in programs}, document
    finally:
        runc.close()


def test_leaks_are_found_and_nothing_else(recording):
    _, programs, document = recording
    leaking = {
        (programs[each["container_id"]].name, each["kind"])
        for each in document["series"]
        if each["verdict"] == "leak" and each["process"] is None
    }
    expected = {(each.name, each.kind) for each in programs.values() if each.kind}
    why = [(programs[each["container_id"]].name, each["kind"], each["verdict"], each["reason"])
           for each in document["series"] if each["process"] is None]  # fmt: skip
    assert expected <= leaking, why
    assert {name for name, _ in leaking} == {name for name, _ in expected}, why


def test_how_fast_and_how_long(recording):
    _, programs, document = recording
    rate = STEP_KIB * 1024 * 3600 * 1000 / PAUSE_MS
    for each in document["series"]:
        if (
            each["process"] is None
            and programs[each["container_id"]].name in ("mmap", "heap")
            and each["kind"] == "anon"
        ):
            # a machine under load makes its steps late, never early
            assert 0.5 * rate < each["growth_bytes_per_hour"] < 1.05 * rate
            assert each["limit"] == 512 * MIB
            left = (512 * MIB - each["last"]) / each["growth_bytes_per_hour"] * 3600
            assert each["time_to_limit_s"] == pytest.approx(left, rel=0.1)
            assert each["executable"] == "grow"


def test_patterns_and_clusters(recording):
    _, programs, document = recording
    patterns = {
        programs[each["container_id"]].name: each["pattern"]
        for each in document["series"]
        if each["verdict"] == "leak" and each["kind"] == programs[each["container_id"]].kind
    }
    for program in programs.values():
        if program.pattern:
            assert program.pattern in patterns[program.name]
    members = [frozenset(member["container_id"] for member in each["members"]) for each in document["clusters"]]
    names = [{programs[container].name for container in cluster} for cluster in members]
    assert any({"mmap", "heap"} <= cluster for cluster in names)  # one program, one kind, one course
    assert not any("shm" in cluster and "heap" in cluster for cluster in names)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_page_in_a_browser(recording, tmp_path):
    """Without network; what it draws is looked at: the colours of curve, floor and trend are there."""
    store, _, _ = recording
    page, picture = tmp_path / "leaks.html", tmp_path / "leaks.png"
    rtdebug("leaks", "report", store, *FLOORS, "--html", page)
    subprocess.run(
        ["unshare", "--net", str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,1600", f"--screenshot={picture}",
         page.as_uri()],
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    colours = count_colours(picture)
    assert sum(colours.values()) == 1200 * 1600
    for wanted in ((0x0B, 0x5C, 0xAD), (0xC4, 0x16, 0x1C), (0xB3, 0x00, 0x00)):
        near = sum(count for colour, count in colours.items() if distance(colour, wanted) < 40)
        assert near > 50, f"nothing is drawn in {wanted}"


def distance(one, other):
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))


def count_colours(path: Path) -> Counter[tuple[int, int, int]]:
    """Pixels of an 8-bit PNG by colour (RFC 2083); a library for images would be one more dependency."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, width, height, channels = 8, b"", 0, 0, 0
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour_type = struct.unpack(">IIBB", body[:10])
            assert depth == 8
            channels = {2: 3, 6: 4}[colour_type]
        packed += body if kind == b"IDAT" else b""
        at += length + 12
    rows, stride = zlib.decompress(packed), width * channels
    above = bytearray(stride)
    colours: Counter[tuple[int, int, int]] = Counter()
    for row in range(height):
        start = row * (stride + 1)
        above = unfiltered(rows[start], bytearray(rows[start + 1 : start + 1 + stride]), above, channels)
        colours.update(zip(above[0::channels], above[1::channels], above[2::channels], strict=True))
    return colours


def unfiltered(kind: int, line: bytearray, above: bytearray, channels: int) -> bytearray:
    for i in range(len(line)):
        left = line[i - channels] if i >= channels else 0
        corner = above[i - channels] if i >= channels else 0
        up = above[i]
        if kind == 4:
            guess = left + up - corner
            line[i] = (
                line[i]
                + min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
            ) & 255
        elif kind:
            line[i] = (line[i] + (0, left, up, (left + up) // 2)[kind]) & 255
    return line
