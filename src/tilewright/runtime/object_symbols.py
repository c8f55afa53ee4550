"""The symbol table of a relocatable object: what it defines, what it needs, and for which processor it is.

Reads just enough of 64-bit ELF (System V ABI, chapter 4), Mach-O (`mach-o/loader.h`, `nlist.h`) and COFF (Microsoft's PE format
specification) to check an object before a linker sees it, so that a missing symbol is an error with a name and not a fault in LLVM.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tilewright.support.errors import ArtifactError

ELF_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 22: "s390x", 21: "ppc64", 258: "loongarch64"}
MACHO_MACHINES = {0x01000007: "x86_64", 0x0100000C: "aarch64"}
COFF_MACHINES = {0x8664: "x86_64", 0xAA64: "aarch64"}

# ELF linkers define it themselves where position-independent code asks for it.
LINKER_DEFINED = frozenset({"_GLOBAL_OFFSET_TABLE_"})


@dataclass(frozen=True, slots=True)
class ObjectSymbols:
    """machine: as in `ELF_MACHINES`. defined, undefined: names of global symbols as the source spelt them (no `_` of Mach-O)."""

    machine: str
    defined: frozenset[str]
    undefined: frozenset[str]


def read_symbols(data: bytes) -> ObjectSymbols:
    """The global symbols of one relocatable object. Raises ArtifactError if it is no 64-bit ELF, Mach-O or COFF object or is damaged."""
    try:
        if data[:4] == b"\x7fELF":
            return _read_elf(data)
        if data[:4] == b"\xcf\xfa\xed\xfe":
            return _read_macho(data)
        if len(data) >= 20 and struct.unpack_from("<H", data)[0] in COFF_MACHINES:
            return _read_coff(data)
    except (struct.error, IndexError, ValueError, KeyError) as error:
        raise ArtifactError("an object file is damaged", why=f"its symbol table cannot be read: {error}") from error
    raise ArtifactError(
        "an object file has no known format", why=f"it starts with {data[:4].hex() or 'nothing'}; ELF, Mach-O and COFF are known"
    )


def _read_elf(data: bytes) -> ObjectSymbols:
    if data[4] != 2:
        raise ArtifactError("an object file is not 64-bit", why="only 64-bit processes can load compiled code")
    order = "<" if data[5] == 1 else ">"
    (machine,) = struct.unpack_from(order + "H", data, 18)
    (section_offset,) = struct.unpack_from(order + "Q", data, 40)
    entry_size, count = struct.unpack_from(order + "HH", data, 58)
    if count == 0:
        # More than 65279 sections: the number stands in the first section header.
        (count,) = struct.unpack_from(order + "Q", data, section_offset + 32)
    sections = [struct.unpack_from(order + "IIQQQQIIQQ", data, section_offset + index * entry_size) for index in range(count)]
    defined: set[str] = set()
    undefined: set[str] = set()
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind != 2:
            continue
        strings = data[sections[link][4] : sections[link][4] + sections[link][5]]
        for name, info, _, section, _, _ in struct.iter_unpack(order + "IBBHQQ", _slice(data, offset, size)):
            if info >> 4:
                (defined if section else undefined).add(_string(strings, name))
    return ObjectSymbols(ELF_MACHINES.get(machine, f"ELF machine {machine}"), frozenset(defined), frozenset(undefined) - LINKER_DEFINED)


def _read_macho(data: bytes) -> ObjectSymbols:
    machine, _, _, commands = struct.unpack_from("<IIII", data, 4)
    defined: set[str] = set()
    undefined: set[str] = set()
    offset = 32
    for _ in range(commands):
        command, size = struct.unpack_from("<II", data, offset)
        if command == 2:
            symbols, count, strings_offset, strings_size = struct.unpack_from("<IIII", data, offset + 8)
            strings = _slice(data, strings_offset, strings_size)
            for name, kind, _, _, value in struct.iter_unpack("<IBBHQ", _slice(data, symbols, count * 16)):
                debugging, external, absent = kind & 0xE0, kind & 1, kind & 0x0E == 0 and value == 0
                if external and not debugging:
                    (undefined if absent else defined).add(_string(strings, name).removeprefix("_"))
        offset += size
    return ObjectSymbols(MACHO_MACHINES.get(machine, f"Mach-O machine {machine:#x}"), frozenset(defined), frozenset(undefined))


def _read_coff(data: bytes) -> ObjectSymbols:
    machine, _, _, symbols, count = struct.unpack_from("<HHIII", data)
    strings = data[symbols + 18 * count :]
    defined: set[str] = set()
    undefined: set[str] = set()
    index = 0
    while index < count:
        name, value, section, _, storage, auxiliary = struct.unpack_from("<8sIhHBB", data, symbols + 18 * index)
        if storage in (2, 105):
            text = _string(strings, struct.unpack("<I", name[4:])[0]) if name[:4] == bytes(4) else name.rstrip(b"\0").decode()
            (undefined if section == 0 and value == 0 else defined).add(text)
        index += 1 + auxiliary
    return ObjectSymbols(COFF_MACHINES[machine], frozenset(defined), frozenset(undefined))


def _slice(data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise ValueError(f"{size} bytes at {offset} of {len(data)}")
    return data[offset : offset + size]


def _string(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode()
