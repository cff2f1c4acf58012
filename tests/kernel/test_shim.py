"""The shim kernel tree and the cache of compiled programs, with the real bcc on the real kernel."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtdebug.host.bcc import find_bcc
from rtdebug.tracing.program import program_source
from rtdebug.tracing.shim import wanted_types
from tests.kernel.tracing import ROOT, Trace, target
from tests.kernel.workload import MIB, Workload, memory_cgroup

pytestmark = pytest.mark.kernel

_STRUCT, _UNION = 4, 5
_SEE_THROUGH = {8, 9, 10, 11, 18}  # typedef, volatile, const, restrict, type tag
_ARRAY = 3
_EXTRA_BYTES = {1: 4, 3: 12, 14: 4, 17: 4}  # int, array, var, declaration tag; include/uapi/linux/btf.h
_BYTES_PER_ITEM = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}  # struct, union, enum, function, data section, enum64


class KernelBtf:
    """The kernel's type information, read here once more without libbpf: the witness."""

    def __init__(self, raw: bytes) -> None:
        header_bytes, type_offset, type_bytes, string_offset, string_bytes = struct.unpack_from("=IIIII", raw, 4)
        types = raw[header_bytes + type_offset :][:type_bytes]
        self._strings = raw[header_bytes + string_offset :][:string_bytes]
        self._types: list[tuple[int, int, int, bytes]] = [(0, 0, 0, b"")]
        self.structs: dict[str, int] = {}
        at = 0
        while at < len(types):
            name, info, size = struct.unpack_from("=III", types, at)
            kind = info >> 24 & 0x1F
            extra = _EXTRA_BYTES.get(kind, 0) + _BYTES_PER_ITEM.get(kind, 0) * (info & 0xFFFF)
            if kind == _STRUCT:
                self.structs.setdefault(self._name(name), len(self._types))
            self._types.append((kind, info, size, types[at + 12 : at + 12 + extra]))
            at += 12 + extra

    def _name(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()

    def _plain(self, number: int) -> int:
        while self._types[number][0] in _SEE_THROUGH:
            number = self._types[number][2]
        return number

    def size_bytes(self, name: str) -> int:
        return self._types[self.structs[name]][2]

    def offset_bytes(self, number: int, path: list[str]) -> int | None:
        """Return where a member is, also within unnamed ones; None: there is none, or it is a bit field.

        A name with `[0]` is that of an array, as in C: a member may be one on some kernels only.
        """
        number = self._plain(number)
        while self._types[number][0] == _ARRAY:
            number = self._plain(struct.unpack_from("=I", self._types[number][3])[0])
        kind, info, _, members = self._types[number]
        if kind not in (_STRUCT, _UNION):
            return None
        for name, kind_of, offset in struct.iter_unpack("=III", members):
            bits = offset & 0xFFFFFF if info >> 31 else offset
            is_bits = (info >> 31 and offset >> 24) or bits % 8
            called = path[0].removesuffix("[0]")
            rest = path if not name else path[1:] if self._name(name) == called else None
            if rest is None or is_bits:
                continue
            is_array = self._types[self._plain(kind_of)][0] == _ARRAY
            if name and is_array != path[0].endswith("[0]") and (rest or not is_array):
                continue
            inner = 0 if not rest else self.offset_bytes(kind_of, rest)
            if inner is not None:
                return bits // 8 + inner
        return None


PROBE = """
import json, os, sys, tempfile
from pathlib import Path
from rtdebug.host.bcc import find_bcc
from rtdebug.tracing.btf import Btf
from rtdebug.tracing.compiler import _FLAGS, _import_bcc
from rtdebug.tracing.program import program_source
from rtdebug.tracing.shim import write_shim

wanted = json.load(sys.stdin)
# pointer arithmetic, for LLVM to lay out: offsetof() is clang's, and the two have differed
text = "".join(
    f"int probe_{number}(u64 *ctx)\\n{{\\n struct {name} *p = (struct {name} *)ctx[0];\\n"
    f" return (u64)&p->{path} - (u64)p;\\n}}\\n"
    if path else f"int probe_{number}(u64 *ctx)\\n{{\\n struct {name} *p = (struct {name} *)ctx[0];\\n"
    f" return (u64)(p + 1) - (u64)p;\\n}}\\n"
    for number, (name, path) in enumerate(wanted)
)
with tempfile.TemporaryDirectory() as folder:
    flags = write_shim(Path(folder), program_source(), Btf())
    os.environ["BCC_KERNEL_SOURCE"] = folder
    module = _import_bcc(find_bcc()).BPF(text=text.encode(), cflags=[*_FLAGS, *flags])
found = [module.dump_func(f"probe_{number}".encode()).hex() for number in range(len(wanted))]
print(json.dumps(found), flush=True)
os._exit(0)
"""


def returned(code: bytes) -> int | None:
    """Return the constant that a program returns: `r0 = NUMBER; exit`."""
    instructions = list(struct.iter_unpack("=BBhi", code))
    constants = [value for opcode, registers, _, value in instructions if opcode in (0xB7, 0xB4) and not registers & 15]
    return constants[-1] if constants and instructions[-1][0] == 0x95 else None


def fields_that_the_programs_read() -> set[str]:
    """Return the members that KREAD and `&pointer->member` name in bpf/, such as `f_path.dentry`."""
    source = re.sub(r"/\*.*?\*/", "", program_source(), flags=re.DOTALL)
    named = re.findall(r"KREAD\(\(?[\w>.-]+\)?, ((?:\w|\.|\[[^]]*\])+)\)", source)
    named += re.findall(r"&\(?\w+\)?->((?:\w|\.|\[[^]]*\])+)", source)
    return {re.sub(r"\[[^]]*\]", "[0]", name) for name in named}


def test_the_layouts_that_llvm_uses_are_the_kernels() -> None:
    btf = KernelBtf(Path("/sys/kernel/btf/vmlinux").read_bytes())
    structs = [name for name in wanted_types(program_source()) if name in btf.structs]
    # memcg[] is our own struct oom_event's; the kernel's fields of that name are pointers
    fields = fields_that_the_programs_read() - {"memcg[0]"}
    expected = {(name, ""): btf.size_bytes(name) for name in structs}
    for name in structs:
        for field in sorted(fields):
            offset = btf.offset_bytes(btf.structs[name], field.split("."))
            if offset is not None:
                expected[name, field] = offset
    for known in [("task_struct", "cgroups"), ("mm_struct", "brk"), ("mem_cgroup", "memory.usage.counter")]:
        assert known in expected  # the search for what is read finds it
    assert len(structs) > 20
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        cwd=ROOT,
        input=json.dumps(list(expected)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [returned(bytes.fromhex(code)) for code in json.loads(done.stdout)]
    assert dict(zip(expected, found, strict=True)) == expected


# --- the cache ---

COMPILER = "rtdebug.tracing.compiler"


class Starts:
    """Starts of `rtdebug trace` with a cache of their own."""

    def __init__(self, cache: Path, cgroup: Path) -> None:
        self.cache = cache
        self._cgroup = cgroup

    def command(self) -> list[str]:
        return [sys.executable, "-m", "rtdebug", "trace", target(self._cgroup), "--duration", "10ms"]

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "RTDEBUG_CACHE": str(self.cache), **more}

    def compiles(self, cwd: Path = ROOT, **environment: str) -> bool:
        """Start once, and say whether a compiler process was started for it."""
        log = self.cache.parent / "execs"
        strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=execve", "-e", "signal=none", "-o", log]
        done = subprocess.run(
            [*strace, *self.command()],
            cwd=cwd,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "\nTracing " in f"\n{done.stderr}"
        return COMPILER in log.read_text()

    def files(self) -> list[Path]:
        return sorted(self.cache.iterdir())


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[Starts]:
    with memory_cgroup(limit_bytes=64 * MIB) as cgroup:
        yield Starts(tmp_path / "cache", cgroup)


def test_the_second_start_does_not_compile(starts: Starts) -> None:
    assert starts.compiles()
    (file,) = starts.files()
    before = file.stat()
    assert before.st_mode & 0o077 == 0
    assert starts.cache.stat().st_mode & 0o077 == 0
    assert not starts.compiles()
    assert file.stat().st_ino == before.st_ino


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good file of the cache."""
    folder = tmp_path_factory.mktemp("compiled")
    with memory_cgroup(limit_bytes=64 * MIB) as cgroup:
        assert Starts(folder / "cache", cgroup).compiles()
    (file,) = (folder / "cache").iterdir()
    return file


@pytest.mark.parametrize("damage", ["cut", "garbage", "other program", "writable by others", "a link"])
def test_a_damaged_file_is_replaced(starts: Starts, compiled: Path, damage: str, tmp_path: Path) -> None:
    starts.cache.mkdir()
    file, good = starts.cache / compiled.name, compiled.read_bytes()
    file.write_bytes(good)
    file.chmod(0o600)
    match damage:
        case "cut":
            file.write_bytes(good[: len(good) // 2])
        case "garbage":
            file.write_bytes(os.urandom(7919))
        case "other program":
            file.write_bytes(json.dumps({**json.loads(good), "made_for": "another kernel"}).encode())
        case "writable by others":
            file.chmod(0o666)
        case "a link":
            file.rename(tmp_path / "elsewhere")
            file.symlink_to(tmp_path / "elsewhere")
    assert starts.compiles()
    assert starts.files() == [file]
    assert file.read_bytes() == good
    assert not file.is_symlink()
    assert file.stat().st_mode & 0o077 == 0
    assert not starts.compiles()


def test_a_changed_source_is_compiled_anew(starts: Starts, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for folder in ("rtdebug", "bpf"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert starts.compiles(cwd=checkout)
    assert not starts.compiles(cwd=checkout)
    with (checkout / "bpf/oom.bpf.c").open("a") as source:
        source.write("/* one more comment */\n")
    assert starts.compiles(cwd=checkout)
    assert not starts.compiles(cwd=checkout)


def test_another_bcc_compiles_anew(starts: Starts, compiled: Path, tmp_path: Path) -> None:
    starts.cache.mkdir()
    shutil.copy(compiled, starts.cache)
    assert not starts.compiles()
    bcc = tmp_path / "bcc"
    shutil.copytree(find_bcc(), bcc, ignore=shutil.ignore_patterns("__pycache__"))
    (bcc / "version.py").write_text("__version__ = '0.26.0+other'\n")
    assert starts.compiles(RTDEBUG_BCC=str(bcc))
    assert not starts.compiles(RTDEBUG_BCC=str(bcc))


@pytest.mark.parametrize("kind", ["missing and not to be made", "read-only"])
def test_a_cache_that_cannot_be_written_is_no_error(starts: Starts, kind: str, tmp_path: Path) -> None:
    command = starts.command()
    environment = starts.environment()
    if kind == "read-only":
        starts.cache.mkdir()
        mount = f'mount -t tmpfs -o ro rtdebug-test-cache {starts.cache} && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", mount, "sh", *command]
    else:
        (tmp_path / "file").write_text("")
        environment["RTDEBUG_CACHE"] = str(tmp_path / "file" / "cache")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "\nTracing " in f"\n{done.stderr}"


def test_two_starts_at_once_with_an_empty_cache(starts: Starts) -> None:
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    running = [subprocess.Popen(starts.command(), cwd=ROOT, env=starts.environment(), **pipes) for _ in range(2)]
    for process in running:
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr.decode()
    assert len(starts.files()) == 1
    assert not starts.compiles()


def test_what_comes_from_the_cache_traces_as_well(starts: Starts) -> None:
    environment = {"RTDEBUG_CACHE": str(starts.cache)}
    for _ in range(2):
        with memory_cgroup(limit_bytes=64 * MIB) as cgroup:
            with (
                Workload("madvise", 23, "MADV_DONTDUMP", cgroup=cgroup) as workload,
                Trace(target(cgroup), environment=environment) as trace,
            ):
                workload.go()
                workload.finish()
            assert trace.result.count("madvise") == 23


def test_bcc_that_is_not_there(starts: Starts, tmp_path: Path) -> None:
    done = subprocess.run(
        starts.command(),
        cwd=ROOT,
        env=starts.environment(RTDEBUG_BCC=str(tmp_path / "nowhere")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert done.stdout == ""
    assert "run here: bcc\n" in done.stderr
    assert "apt-get install python3-bpfcc" in done.stderr
    assert "Traceback" not in done.stderr
