"""The shim kernel tree: the few headers bcc asks for, made from the running kernel's BTF, so that no kernel
headers need be installed.

bcc looks below BCC_KERNEL_SOURCE for a kernel's source; it needs a dozen small headers there and the types that
our programs use. The types come from BTF, so they are this very kernel's.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
from pathlib import Path

from rtdebug.tracing.btf import Btf

_ARCH = {"x86_64": "x86", "aarch64": "arm64"}

_BASE_TYPES = """
typedef signed char __s8; typedef unsigned char __u8; typedef short int __s16; typedef short unsigned int __u16;
typedef int __s32; typedef unsigned int __u32; typedef long long int __s64; typedef long long unsigned int __u64;
typedef __s8 s8; typedef __u8 u8; typedef __s16 s16; typedef __u16 u16;
typedef __s32 s32; typedef __u32 u32; typedef __s64 s64; typedef __u64 u64;
typedef __u64 __attribute__((aligned(8))) __aligned_u64;
typedef unsigned long uintptr_t;
typedef __u16 __be16; typedef __u32 __be32; typedef __u64 __be64; typedef __u32 __wsum; typedef __u16 __sum16;
typedef _Bool bool;
enum { false = 0, true = 1 };
#ifndef NULL
#define NULL ((void *)0)
#endif
"""


def wanted_types(source: str) -> list[str]:
    """Return the kernel structs a program's text names, in order, without those it defines itself."""
    text = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    defined = set(re.findall(r"\bstruct\s+(\w+)\s*\{", text))
    return [name for name in dict.fromkeys(re.findall(r"\bstruct\s+(\w+)", text)) if name not in defined]


def feature_macros(source: str, btf: Btf) -> list[str]:
    """Return those of the HAS_... macros that a program asks for which are true on this kernel."""
    found = []
    for macro in sorted(set(re.findall(r"\bHAS_(?:FIELD|TYPE|TASK_ARG)_\w+", source))):
        kind, _, rest = macro.removeprefix("HAS_").partition("_")
        if kind == "FIELD":
            struct, _, field = rest.partition("__")
            true = btf.has_field(struct, field)
        elif kind == "TYPE":
            true = btf.type_id(rest, 4) is not None
        else:
            true = btf.tracepoint_takes(rest.removeprefix("ARG_"), "task_struct")
        if true:
            found.append(macro)
    return found


def kernel_version_code(release: str) -> int:
    """Return LINUX_VERSION_CODE of a release such as `6.1.0-18-amd64`; the third number stops at 255."""
    numbers = [int(number) for number in re.findall(r"\d+", release)[:3]] + [0, 0, 0]
    return (numbers[0] << 16) + (numbers[1] << 8) + min(numbers[2], 255)


def kernel_types(btf: Btf, names: list[str]) -> str:
    """Return the C text of the kernel's types. The names that bcc's own bpf.h defines too get a prefix."""
    text = btf.dump(names, ["cgroup_subsys_id", "maple_type"])
    text = re.sub(r"\b(bpf_\w+|xdp_md|sk_msg_md|sk_reuseport_md|__sk_buff|btf_ptr)\b", r"kernel_\1", text)
    return name_padding(re.sub(r"\bBPF_(\w+)", r"KERNEL_BPF_\1", text))


def name_padding(text: str) -> str:
    """Return C text in which padding by unnamed bit fields (`long: 64;`) has become members.

    clang joins a run of them to one integer (seven of them to an i448 in mm_struct). LLVM aligns that to 16 bytes
    for BPF where the host's layout has 8, and every field behind it is then read from the wrong place.
    """
    numbers = itertools.count()
    return re.sub(r"\blong: 64;", lambda _: f"long rtdebug_padding_{next(numbers)};", text)


def write_shim(folder: Path, source: str, btf: Btf) -> list[str]:
    """Write the shim tree for `source` below `folder`; returns the compiler flags that go with it."""
    arch = _ARCH.get(platform.machine(), platform.machine())
    headers = {
        "include/linux/kconfig.h": "#define CONFIG_BPF_SYSCALL 1\n",
        "include/linux/types.h": "#ifndef RTDEBUG_TYPES_H\n#define RTDEBUG_TYPES_H\n"
        + _BASE_TYPES
        + kernel_types(btf, wanted_types(source))
        + "#endif\n",
        "include/linux/bpf_common.h": "",
        "include/linux/version.h": f"#define LINUX_VERSION_CODE {kernel_version_code(os.uname().release)}\n"
        "#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))\n",
        "include/linux/log2.h": "#define roundup_pow_of_two(n) (n)\n",
        "include/uapi/linux/bpf.h": "#include <bcc/bpf.h>\n",
        "include/uapi/linux/if_packet.h": "",
        "include/uapi/linux/if_ether.h": "",
        "include/uapi/linux/ptrace.h": "",
        f"arch/{arch}/include/asm/page.h": f"#define PAGE_SIZE {os.sysconf('SC_PAGE_SIZE')}UL\n",
    }
    for name, text in headers.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [f"-D{macro}=1" for macro in feature_macros(source, btf)]
