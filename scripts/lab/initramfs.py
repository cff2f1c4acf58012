"""The initial file system of the guest: busybox, the modules for the shared file system, and `init`."""

from __future__ import annotations

import gzip
import lzma
import shutil
from collections.abc import Mapping
from pathlib import Path

from lab.problem import LabProblem

INIT = Path(__file__).with_name("init")
_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
_DIRECTORY, _PROGRAM, _FILE = 0o040755, 0o100755, 0o100644


def make_initramfs(modules: Path, target: Path) -> None:
    """Write it for the kernel whose modules these are. Raises LabProblem without a static busybox."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise LabProblem("busybox is not installed: apt-get install busybox-static")
    order = load_order(_MODULES, parse_depends((modules / "modules.dep").read_text(encoding="ascii")))
    entries: dict[str, tuple[int, bytes]] = dict.fromkeys(("bin", "modules"), (_DIRECTORY, b""))
    entries["bin/busybox"] = (_PROGRAM, Path(busybox).read_bytes())
    entries["init"] = (_PROGRAM, INIT.read_bytes())
    for place, name in enumerate(order):
        entries[f"modules/{place:02}-{module_name(name)}.ko"] = (_FILE, module_content(modules / name))
    target.write_bytes(gzip.compress(cpio(entries), compresslevel=1))


def parse_depends(text: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """modules.dep, man page modules.dep(5): name of a module -> its file and those it needs, nearest first."""
    found = {}
    for line in text.splitlines():
        file, _, needed = line.partition(":")
        found[module_name(file)] = (file, tuple(needed.split()))
    return found


def load_order(wanted: tuple[str, ...], depends: Mapping[str, tuple[str, tuple[str, ...]]]) -> list[str]:
    """Files to load, what is needed before what needs it. What is built into the kernel has no file."""
    order: dict[str, None] = {}
    for name in wanted:
        if name in depends:
            file, needed = depends[name]
            order |= dict.fromkeys((*reversed(needed), file))
    return list(order)


def module_name(file: str) -> str:
    """`9pnet_virtio` of `kernel/net/9p/9pnet_virtio.ko.xz`."""
    return Path(file).name.partition(".")[0].replace("-", "_")


def module_content(path: Path) -> bytes:
    """The module itself: busybox knows no compressed ones."""
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content


def cpio(entries: Mapping[str, tuple[int, bytes]]) -> bytes:
    """An archive in the form that the kernel unpacks: Documentation/driver-api/early-userspace/buffer-format.rst."""
    parts = [_member(number, name, mode, data) for number, (name, (mode, data)) in enumerate(entries.items(), 1)]
    return b"".join([*parts, _member(0, "TRAILER!!!", 0, b"")])


def _member(inode: int, name: str, mode: int, data: bytes) -> bytes:
    path = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(f"{field:08x}".encode() for field in fields)
    return _padded(head + path) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
