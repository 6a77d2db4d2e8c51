from collections.abc import Iterator, MutableMapping
from types import TracebackType
from typing import Any, Literal, Protocol, SupportsIndex, final

from typing_extensions import Buffer, Self, TypeAlias

from glebe import errors as errors, swap as swap, volatile as volatile
from glebe.errors import Error as Error, NoRun as NoRun

__all__ = [
    "PAGE_BYTES",
    "Block",
    "Cache",
    "Contig",
    "Error",
    "NoRun",
    "Promise",
    "Reserve",
    "contig",
    "errors",
]

__version__: str
PAGE_BYTES: int

class _Integer(SupportsIndex, Protocol):
    """An integer of NumPy, which is no `int`."""

    def bit_count(self) -> Any: ...

_Part: TypeAlias = bytes | str | int | _Integer | None | tuple[object, ...]
_Key: TypeAlias = bytes | str | int | _Integer | tuple[_Part, ...]

class _Array(Protocol):
    """An array or a scalar of NumPy, whose stubs are not needed here."""

    @property
    def dtype(self) -> Any: ...
    @property
    def shape(self) -> Any: ...

_Source: TypeAlias = Literal["auto", "hugetlb-1g", "hugetlb-2m", "thp", "plain"]

@final
class Reserve:
    """Memory set aside once, as contiguous as the machine allows, whose idle pages work as a cache.

    `room`: bytes that it may grow to. Blocks keep the memory after `close()`.

    Raises `errors.NoMemory` with what is available, `errors.BadArgument`, `errors.SystemRefused`.
    """

    def __new__(cls, bytes: int, *, source: _Source = "auto", room: int = 0) -> Self: ...
    def alloc(
        self,
        pages: int | None = None,
        *,
        bytes: int | None = None,
        align: int = 1,
        zeroed: bool = False,
        any: bool = False,
    ) -> Block:
        """Takes a physically contiguous block of `pages`, or of `bytes` rounded up to pages.

        Never fails because of the cache, whose pages it takes; O(log n) and microseconds. `align`:
        pages, a power of two. Contents are anything unless `zeroed`. `any`: contiguous in virtual
        addresses only, if need be.

        Raises `NoRun` with the longest free run in pages.
        """

    def promise(
        self,
        pages: int | None = None,
        *,
        bytes: int | None = None,
        align: int = 1,
        zeroed: bool = False,
        any: bool = False,
    ) -> Promise:
        """Sets the run of one later block aside: the cache uses it until then, other blocks cannot."""

    def largest_run(self) -> int:
        """Pages of the longest block that could be had now."""

    def cache(self, name: str) -> Cache:
        """The cache of this name; two of one name are the same entries."""

    def stats(self) -> dict[str, int]:
        """Counters and gauges by name, which ends in the unit; times are nanoseconds."""

    def grow(self, bytes: int) -> int:
        """Adds memory, up to the room; returns the new length in bytes."""

    def shrink(self, bytes: int) -> int:
        """Gives idle memory back to the system; returns the new length in bytes."""

    @property
    def source(self) -> str:
        """What the memory is made of: the kind of pages, in words."""

    def __len__(self) -> int: ...
    def close(self) -> None:
        """Ends the reserve and its caches; blocks keep their memory."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

@final
class Block(Buffer):
    """Contiguous pages, the caller's alone until they are freed; a writable buffer of bytes.

    `free()` and the end of a `with` block raise `BufferError` while arrays or views of it exist.
    A forked child reads zeros in arrays that it inherited, and a `RuntimeWarning` says so.
    """

    def free(self) -> None:
        """Gives the pages back. Raises `BufferError` while arrays or views of it exist."""

    def locate(self, offset: int = 0) -> tuple[int | None, int]:
        """The page frame of the byte at `offset`, if it can be read, and bytes contiguous from there."""

    @property
    def pages(self) -> int:
        """Its length in pages."""

    @property
    def address(self) -> int:
        """The virtual address of its first byte."""

    @property
    def contiguity(self) -> str:
        """`proved`, `within N pages`, or `in virtual addresses only`."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

@final
class Promise:
    """A run set aside for one later block."""

    @property
    def pages(self) -> int:
        """Its length in pages; 0 once it was taken or given up."""

    def take(self) -> Block:
        """The block. It cannot fail for want of room. A second call raises `ValueError`."""

    def give_up(self) -> None:
        """Lets other blocks have the run."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

class Cache(MutableMapping[_Key, Any]):
    """A mapping; its values are `bytes`, or arrays where arrays were put."""

    def __new__(cls, reserve: Reserve, name: str) -> Self: ...
    def put(self, key: _Key, value: Buffer | _Array) -> bool:
        """Stores a copy of a value, as `cache[key] = value` does, and returns whether it was kept.

        If not, nothing is kept under the key: a value that is longer than what no block holds is
        never kept.
        """

    def get_into(self, key: _Key, out: Buffer) -> int | None:
        """Copies a value into a writable buffer; returns its length, or `None` if it is not there.

        Raises `ValueError` if the buffer is too short. After a miss `out` may hold anything.
        """

    @property
    def lost(self) -> int:
        """How many entries were found to be lost."""

    def __getitem__(self, key: _Key, /) -> Any: ...
    def __setitem__(self, key: _Key, value: Buffer | _Array, /) -> None: ...
    def __delitem__(self, key: _Key, /) -> None: ...
    def __iter__(self) -> Iterator[_Key]: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: object, /) -> bool: ...
    def clear(self) -> None:
        """Removes all entries."""


@final
class Contig(Buffer):
    """Physically contiguous memory, populated and kept in place; a writable buffer of bytes."""

    def runs(self) -> list[tuple[int, int, int | None]]:
        """First page, pages and, where it can be read, first page frame of each physical run.

        Where frames are hidden each huge page is one; empty where even that is not proved.
        """

    @property
    def longest_run(self) -> int:
        """Pages."""

    @property
    def proof(self) -> str:
        """What the runs rest on, in words."""

    @property
    def source(self) -> str:
        """What the memory is made of: the kind of pages, in words."""

    @property
    def held_by(self) -> str:
        """What keeps the pages in their frames."""

    @property
    def address(self) -> int:
        """The virtual address of its first byte."""

    def verify(self) -> list[tuple[int, int]]:
        """First page and pages of each run that is no longer where it was."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def close(self) -> None:
        """Gives the memory back. Raises `BufferError` while arrays or views of it exist."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

def contig(bytes: int, *, source: _Source = "auto", require_run: int | None = None) -> Contig:
    """Contiguous memory of `bytes`, rounded up to whole pages of its source.

    `require_run`: bytes that must be contiguous. Raises `errors.NoMemory` with the longest run or
    what is available, in bytes.
    """
