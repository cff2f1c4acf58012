"""What this kernel's BTF says, through libbpf: types as C text, fields, ids. Used while compiling only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cffi import FFI

from rtdebug.errors import HostUnable

_FFI = FFI()
_FFI.cdef(
    """
    struct btf; struct btf_dump;
    struct btf_type { uint32_t name_off; uint32_t info; uint32_t size; };
    struct btf_param { uint32_t name_off; uint32_t type; };
    struct btf_member { uint32_t name_off; uint32_t type; uint32_t offset; };
    typedef void (*print_function)(void *context, const char *format, void *arguments);
    struct btf *btf__parse(const char *path, void *extra);
    long libbpf_get_error(const void *pointer);
    int btf__find_by_name_kind(const struct btf *btf, const char *name, uint32_t kind);
    const struct btf_type *btf__type_by_id(const struct btf *btf, uint32_t id);
    const char *btf__name_by_offset(const struct btf *btf, uint32_t offset);
    struct btf_dump *btf_dump__new(const struct btf *btf, print_function print, void *context, void *options);
    int btf_dump__dump_type(struct btf_dump *dump, uint32_t id);
    void btf_dump__free(struct btf_dump *dump);
    void btf__free(struct btf *btf);
    int vsnprintf(char *buffer, size_t size, const char *format, void *arguments);
    """
)

KIND_PTR, KIND_STRUCT, KIND_UNION, KIND_ENUM, KIND_TYPEDEF = 2, 4, 5, 6, 8
_KIND_CONST, _KIND_FUNC, _KIND_FUNC_PROTO = 10, 12, 13
VMLINUX_BTF = "/sys/kernel/btf/vmlinux"


def _text(pointer: Any) -> bytes:  # noqa: ANN401 - a cffi pointer
    text: Any = _FFI.string(pointer)
    return bytes(text)


class Btf:
    """The BTF of one kernel. Raises HostUnable when libbpf or the BTF cannot be read."""

    def __init__(self, path: str = VMLINUX_BTF) -> None:
        self._libbpf: Any
        try:
            self._libbpf = _FFI.dlopen("libbpf.so.1")
        except OSError as error:
            raise HostUnable("libbpf.so.1 is not installed", "apt-get install libbpf1") from error
        self._libc: Any = _FFI.dlopen(None)
        self._btf: Any = self._libbpf.btf__parse(path.encode(), _FFI.NULL)
        if self._btf == _FFI.NULL or self._libbpf.libbpf_get_error(self._btf):
            raise HostUnable(
                f"cannot read the kernel's type information {path}",
                "the kernel must be built with CONFIG_DEBUG_INFO_BTF=y (all current distribution kernels are)",
            )

    def _name(self, offset: int) -> str:
        return _text(self._libbpf.btf__name_by_offset(self._btf, offset)).decode()

    def type_id(self, name: str, kind: int) -> int | None:
        """Return the id of a named type, or None."""
        found: int = self._libbpf.btf__find_by_name_kind(self._btf, name.encode(), kind)
        return found if found > 0 else None

    def function_id(self, name: str) -> int | None:
        """Return the id of a kernel function, as fentry programs attach to it."""
        return self.type_id(name, _KIND_FUNC)

    def has_field(self, struct: str, field: str) -> bool:
        """Say whether a struct has a field, also within its unnamed unions and structs."""
        found = self.type_id(struct, KIND_STRUCT)
        return found is not None and field in self._fields(found)

    def _fields(self, type_id: int) -> set[str]:
        header = self._libbpf.btf__type_by_id(self._btf, type_id)
        members = _FFI.cast("struct btf_member *", header + 1)
        names: set[str] = set()
        for index in range(header.info & 0xFFFF):
            name = self._name(members[index].name_off)
            if name:
                names.add(name)
            else:
                names |= self._fields(members[index].type)
        return names

    def tracepoint_id(self, name: str) -> int | None:
        """Return the id by which a BTF-typed raw tracepoint program names its tracepoint."""
        return self.type_id(f"btf_trace_{name}", KIND_TYPEDEF)

    def tracepoint_takes(self, name: str, struct: str, index: int = 0) -> bool:
        """Say whether the tracepoint's argument `index` is a pointer to `struct`."""
        found = self.tracepoint_id(name)
        if found is None:
            return False
        pointer = self._libbpf.btf__type_by_id(self._btf, self._libbpf.btf__type_by_id(self._btf, found).size)
        prototype = self._libbpf.btf__type_by_id(self._btf, pointer.size)
        parameters = _FFI.cast("struct btf_param *", prototype + 1)
        if index + 1 >= prototype.info & 0xFFFF:  # the first parameter is the tracepoint's own data pointer
            return False
        argument = self._libbpf.btf__type_by_id(self._btf, parameters[index + 1].type)
        if argument.info >> 24 & 0x1F != KIND_PTR:
            return False
        target = self._libbpf.btf__type_by_id(self._btf, argument.size)
        return self._name(target.name_off) == struct

    def dump(self, structs: Iterable[str], enums: Iterable[str] = ()) -> str:
        """Return the C text of these types and of all that they need. What the kernel lacks is left out."""
        parts: list[bytes] = []
        buffer = _FFI.new("char[]", 1 << 16)

        @_FFI.callback("void(void *, const char *, void *)")
        def collect(_context: object, text_format: object, arguments: object) -> None:
            # va_list reaches us as a pointer: an array on x86-64, passed by reference on arm64
            self._libc.vsnprintf(buffer, len(buffer), text_format, arguments)
            parts.append(_text(buffer))

        dump = self._libbpf.btf_dump__new(self._btf, collect, _FFI.NULL, _FFI.NULL)
        for names, kind in ((structs, KIND_STRUCT), (enums, KIND_ENUM)):
            for name in names:
                found = self.type_id(name, kind)
                if found is not None:
                    self._libbpf.btf_dump__dump_type(dump, found)
        self._libbpf.btf_dump__free(dump)
        return b"".join(parts).decode()
