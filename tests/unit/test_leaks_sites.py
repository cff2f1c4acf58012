"""What can be tested of allocation sites without a kernel: the sampling's arithmetic, and where allocators are."""

from __future__ import annotations

import math
import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from rtdebug.leaks.allocators import AllocatorFinder, cheap_entry
from rtdebug.leaks.site_maps import SAMPLE_BYTES, draws, weights

SAMPLES = 900
PROGRAM = "#include <stdlib.h>\n#include <unistd.h>\nint main(void) { free(malloc(7)); sleep(100); }"


def test_the_mean_of_the_draws() -> None:
    parts = list(draws())
    assert len(parts) == 1024
    assert sum(low + width / 2 for low, width in parts) / 1024 == pytest.approx(SAMPLE_BYTES, rel=0.001)


@pytest.mark.parametrize("size_bytes", [307, 3001, 100_003, 524_309, 3_000_017, 9_000_011])
def test_the_samples_stand_for_what_was_allocated(size_bytes: int) -> None:
    chance = random.Random(23)
    parts, more = list(draws()), list(weights())

    def draw() -> int:
        low, width = chance.choice(parts)
        return low + (width * chance.getrandbits(16) >> 16)

    left, calls, estimated, samples = draw(), 0, 0, 0
    while samples < SAMPLES and calls < 1_500_000:
        calls += 1
        left -= size_bytes
        if left <= 0:
            left = draw()
            samples += 1
            index = size_bytes >> 14
            estimated += size_bytes + (more[index] if index < len(more) else 0)
    assert estimated / (size_bytes * calls) == pytest.approx(1, abs=4 / math.sqrt(samples) + 0.01)


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        ("malloc", "4154 55 53 4889fb", 0),
        ("malloc", "f30f1efa 4154", 4),
        ("free", "4885ff 0f84bf000000 55", 9),
        ("free", "f30f1efa 4885ff 7410 4154", 9),
        ("free", "4885ff 0f84bf000000 4889f8", 0),
        ("free", "4885ff", 0),
        ("malloc", "4885ff 0f84bf000000 55", 0),
        ("free", "", 0),
    ],
)
def test_where_a_uprobe_costs_least(name: str, code: str, expected: int) -> None:
    assert cheap_entry(bytes.fromhex(code), name, "x86_64") == expected
    assert cheap_entry(bytes.fromhex(code), name, "aarch64") == 0


def build(folder: Path, *options: str) -> Path:
    program = folder / "program"
    subprocess.run(["gcc", "-x", "c", "-fno-builtin", "-o", program, *options, "-"], input=PROGRAM.encode(), check=True)
    return program


def found_in(program: Path) -> tuple[list[str], str | None]:
    with subprocess.Popen([program]) as process:
        try:
            deadline = time.monotonic() + 10
            while not Path(f"/proc/{process.pid}/syscall").exists() or "libc" not in _maps(process.pid):
                if time.monotonic() > deadline or "static" in program.parent.name:
                    break
            time.sleep(0.2)
            found = AllocatorFinder().find(process.pid)
        finally:
            process.kill()
    for fd, _ in found.files:
        os.close(fd)
    names = {name for _, allocator in found.files for name, _ in allocator.places}
    assert not found.files or {"malloc", "calloc", "realloc", "free"} <= names
    return [allocator.path for _, allocator in found.files], found.unseen


def _maps(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def test_the_allocator_of_the_c_library(tmp_path: Path) -> None:
    (path,), unseen = found_in(build(tmp_path))
    assert path.rsplit("/", 1)[-1].startswith("libc")
    assert unseen is None


def test_the_allocator_of_a_static_program(tmp_path: Path) -> None:
    folder = tmp_path / "static"
    folder.mkdir()
    program = build(folder, "-static")
    assert found_in(program) == ([str(program)], None)


def test_a_static_program_without_symbols_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "static"
    folder.mkdir()
    program = build(folder, "-static", "-s")
    assert found_in(program) == ([], str(program))


def test_a_process_that_is_gone() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    found = AllocatorFinder().find(process.pid)
    assert (found.files, found.unseen) == ((), None)
