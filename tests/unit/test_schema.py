"""Schema: the layouts it reads from events.h are the compiler's, and what goes in comes out."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtdebug.errors import HostUnable, RtdebugError
from rtdebug.tracing.schema import STRUCT_OF, Schema, as_dict, load_schema, text_of
from rtdebug.tracing.sources import bpf_folder, read_source

SCHEMA = load_schema()
OTHER_ORDER = "big" if sys.byteorder == "little" else "little"


def assertions(schema: Schema) -> str:
    """C that compiles only if every offset and size is as the schema says."""
    lines = [
        "#include <stddef.h>",
        *(f"typedef unsigned {c} __u{bits}; typedef signed {c} __s{bits};" for c, bits in C_TYPES),
        schema.text,
    ]
    for struct, dtype in schema.structs.items():
        lines.append(f'_Static_assert(sizeof(struct {struct}) == {dtype.itemsize}, "size of {struct}");')
        for name, (field, offset, *_) in dtype.fields.items():
            member = f"(((struct {struct} *)0)->{name})"
            lines.append(f'_Static_assert(offsetof(struct {struct}, {name}) == {offset}, "{struct}.{name}");')
            lines.append(f'_Static_assert(sizeof{member} == {field.itemsize}, "size of {struct}.{name}");')
            if field.kind in "ui":
                sign = "<" if field.kind == "i" else ">"
                one = f"(__typeof__{member})-1"
                lines.append(f'_Static_assert({one} {sign} 0, "sign of {struct}.{name}");')
    for enum in schema.enums.values():
        lines += [f'_Static_assert({name} == {value}, "{name}");' for name, value in enum.items()]
    lines += [f'_Static_assert({name} == {value}, "{name}");' for name, value in schema.constants.items()]
    return "\n".join(lines) + "\n"


C_TYPES = (("char", 8), ("short", 16), ("int", 32), ("long long", 64))


@pytest.mark.parametrize(
    "compiler",
    [("gcc", "-fsyntax-only"), ("clang", "-fsyntax-only"), ("clang", "-target", "bpf", "-fsyntax-only")],
    ids=" ".join,
)
def test_layout_is_the_compilers(compiler: tuple[str, ...]) -> None:
    if not shutil.which(compiler[0]):
        pytest.skip(f"no {compiler[0]} here")
    source = assertions(SCHEMA)
    done = subprocess.run([*compiler, "-xc", "-"], input=source, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


ODD = """
struct inner { __u8 first; __s16 second; };
struct odd {
	__u8 a; __u64 b; char c[3]; __u16 d;
	struct inner e; struct inner f[3]; __s32 g[COMM_LEN]; __u8 h;
};
enum odd_numbers { ODD_A, ODD_B = 7, ODD_C, ODD_D = 0x10, };
"""


def test_padding_that_nobody_wrote_is_the_compilers_too() -> None:
    if not shutil.which("gcc"):
        pytest.skip("no gcc here")
    schema = Schema.parse(SCHEMA.text + ODD)
    assert schema.enums["odd_numbers"] == {"ODD_A": 0, "ODD_B": 7, "ODD_C": 8, "ODD_D": 16}
    assert schema.structs["odd"].itemsize > sum(
        field.itemsize for field, *_ in schema.structs["odd"].fields.values()
    )
    source = assertions(schema)
    done = subprocess.run(["gcc", "-fsyntax-only", "-xc", "-"], input=source, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_the_assertions_can_fail() -> None:
    if not shutil.which("gcc"):
        pytest.skip("no gcc here")
    wrong = re.sub(r"(offsetof\(struct oom_event, order\) ==) \d+", r"\1 1", assertions(SCHEMA))
    done = subprocess.run(["gcc", "-fsyntax-only", "-xc", "-"], input=wrong, text=True, capture_output=True)
    assert "oom_event.order" in done.stderr


def test_names_are_those_of_the_contract() -> None:
    ids = SCHEMA.event_ids
    assert ids["mmap"] == 1
    assert ids["shm_open"] == 16
    assert ids["oom_kill"] == 26
    assert "none" not in ids
    assert "types" not in ids


def test_every_event_has_its_struct() -> None:
    assert set(SCHEMA.event_names.values()) == set(STRUCT_OF)
    assert set(STRUCT_OF.values()) <= set(SCHEMA.structs)


def test_slots_divide_a_ring() -> None:
    assert SCHEMA.call_slot.itemsize == 64
    assert SCHEMA.event_slot.itemsize == 512
    assert SCHEMA.call_slot.fields["record"][1] == 8


def scalars(dtype: np.dtype) -> st.SearchStrategy:
    if dtype.names:
        return st.tuples(*(scalars(dtype[name]) for name in dtype.names))
    if dtype.subdtype:
        base, shape = dtype.subdtype
        return st.lists(scalars(base), min_size=shape[0], max_size=shape[0])
    if dtype.kind == "S":
        return st.binary(max_size=dtype.itemsize).map(lambda raw: raw.rstrip(b"\0"))
    bounds = np.iinfo(dtype)
    return st.integers(int(bounds.min), int(bounds.max))


def leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, list):
        for part in value:
            yield from leaves(part)
    else:
        yield value


@pytest.mark.parametrize("struct", sorted(SCHEMA.structs))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_goes_in_comes_out(struct: str, data: st.DataObject) -> None:
    """Struct -> bytes -> decode, from a machine of either byte order; the order of the fields stays."""
    dtype = SCHEMA.structs[struct]
    values = data.draw(scalars(dtype))
    for order in ("little", "big"):
        schema = FOREIGN if order == OTHER_ORDER else SCHEMA
        raw = np.array([values], schema.structs[struct]).tobytes()
        assert list(leaves(as_dict(schema.record(struct, raw)))) == list(plain(dtype, values))


def plain(dtype: np.dtype, values: object) -> Iterator[object]:
    if dtype.names:
        for name, value in zip(dtype.names, values, strict=True):
            if name != "padding":
                yield from plain(dtype[name], value)
    elif dtype.subdtype:
        for value in values:
            yield from plain(dtype.subdtype[0], value)
    else:
        yield text_of(values) if isinstance(values, bytes) else values


FOREIGN = Schema.parse(SCHEMA.text, OTHER_ORDER)


def test_text_ends_at_the_first_nul() -> None:
    assert text_of(b"abc\0garbage") == "abc"
    assert text_of(b"\xff\x1b[0m").encode("utf-8", "surrogateescape") == b"\xff\x1b[0m"


def test_an_old_text_gives_an_old_layout() -> None:
    old = SCHEMA.text.replace("	__u64 total_vm_pages;        /* exec: after loading the program */\n", "")
    assert old != SCHEMA.text
    schema = Schema.parse(old)
    assert schema.structs["process_event"].itemsize == SCHEMA.structs["process_event"].itemsize - 8


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no C at all",
        "#define CALL_PAYLOAD 56\n",
        SCHEMA.text.replace("struct call_event {", "struct call_event { char more[8];"),
        SCHEMA.text.replace("__u64 time_ns;", "__u128 time_ns;"),
        SCHEMA.text.replace("#define NAME_LEN 256", "#define NAME_LEN 2000000000"),
        SCHEMA.text.replace("#define COMM_LEN 16", ""),
        SCHEMA.text + "int main(void) { return 0; }",
        SCHEMA.text + "union either { __u8 a; __u16 b; };",
        SCHEMA.text.replace("__u64 time_ns;", "__u64 time_ns : 3;"),
        SCHEMA.text.replace("__u64 time_ns;", "__u64 *time_ns;"),
        SCHEMA.text.replace("__u64 time_ns;", "struct unknown time_ns;"),
        SCHEMA.text.replace("__u64 time_ns;", "__u64 time_ns[-1];"),
        SCHEMA.text.replace("EVENT_MMAP = 1", "EVENT_MMAP = x"),
        "/* x */" * 200_000,
        "/* " * 300_000,
        "#define a\t" * 100_000,
        "struct a {" + "\n" * 900_000,
    ],
)
def test_a_foreign_text_is_an_error(text: str) -> None:
    with pytest.raises(RtdebugError) as caught:
        Schema.parse(text)
    assert caught.value.hint


def test_sources_are_found() -> None:
    assert (bpf_folder() / "events.h").is_file()
    assert read_source("events.h") == SCHEMA.text


def test_sources_that_are_missing_are_an_error(tmp_path) -> None:
    with pytest.raises(HostUnable, match="missing"):
        bpf_folder(tmp_path / "rtdebug")
    with pytest.raises(HostUnable, match=r"nothing\.h"):
        read_source("nothing.h")


@pytest.mark.parametrize("place", ["rtdebug/bpf", "bpf"])
def test_sources_lie_in_the_package_or_beside_it(tmp_path, place: str) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True)
    (folder / "events.h").touch()
    assert bpf_folder(tmp_path / "rtdebug") == folder
