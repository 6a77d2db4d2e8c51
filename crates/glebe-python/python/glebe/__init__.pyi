import os
from collections.abc import Iterator, MutableMapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol, SupportsIndex, TypeVar, final, overload

from typing_extensions import Buffer, Self, TypeAlias

from glebe import cuda as cuda, errors as errors, swap as swap, volatile as volatile
from glebe.errors import Error as Error, NoRun as NoRun

__all__ = [
    "PAGE_BYTES",
    "Block",
    "Cache",
    "Contig",
    "Error",
    "Lease",
    "NoRun",
    "Promise",
    "Reserve",
    "SharedCache",
    "contig",
    "errors",
    "lease",
    "shared_cache",
]

__version__: str
PAGE_BYTES: int

class _Integer(SupportsIndex, Protocol):
    """A NumPy integer, which is no `int`."""

    def bit_count(self) -> Any: ...

_Part: TypeAlias = bytes | str | int | _Integer | None | tuple[object, ...]
_Key: TypeAlias = bytes | str | int | _Integer | tuple[_Part, ...]

class _Array(Protocol):
    """A NumPy array or scalar. This avoids a need for NumPy's stubs."""

    @property
    def dtype(self) -> Any: ...
    @property
    def shape(self) -> Any: ...

_Default = TypeVar("_Default")
_Source: TypeAlias = Literal["auto", "hugetlb-1g", "hugetlb-2m", "thp", "plain"]

@final
class Reserve:
    """Memory set aside once, as contiguous as the machine allows. Caches use its idle pages.

    `bytes`: its length, rounded up to whole pages of its source. `room`: bytes that it may grow to.
    `node`: takes only memory of this NUMA node; `prefer_node`: takes its memory if it has enough,
    otherwise any; `nodes`: takes only memory of these nodes. Blocks keep their memory after
    `close()`.

    Raises `errors.NoMemory` with the available bytes, `errors.BadArgument` for a length of zero, a
    node that is not online or has no memory, or an empty set, `ValueError` for another source or
    more than one of the three, `errors.SystemRefused`.
    """

    def __new__(
        cls,
        bytes: int,
        *,
        source: _Source = "auto",
        room: int = 0,
        node: int | None = None,
        prefer_node: int | None = None,
        nodes: Sequence[int] | None = None,
    ) -> Self: ...
    def alloc(
        self,
        pages: int | None = None,
        *,
        bytes: int | None = None,
        align: int = 1,
        zeroed: bool = False,
        any: bool = False,
    ) -> Block:
        """Takes a physically contiguous block of `pages` pages, or of `bytes` rounded up to pages.

        Takes pages from caches if necessary; O(log n), microseconds. `align`: pages, a power of
        two. The contents are unspecified unless `zeroed`. `any`: allows a block that is contiguous
        only in virtual addresses.

        Raises `errors.NoRun` with the longest free run in pages, `errors.BadArgument` for a length
        of zero or another alignment.
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
        """Sets a run aside for one later block. No other block gets the run. Caches may use the run
        until `take`.

        The arguments and errors are those of `alloc`.
        """

    def largest_run(self) -> int:
        """Returns the length in pages of the longest block that `alloc` could take now."""

    def cache(self, name: str) -> Cache:
        """Returns the cache of this name. Two caches of one name have the same entries."""

    def nodes(self) -> list[tuple[int, int, int]]:
        """Returns the NUMA nodes of the pages: first page, number of pages, and node.

        Raises `errors.SystemRefused` if the kernel does not tell them.
        """

    def stats(self) -> dict[str, int]:
        """Returns counters and gauges by name. Names end in the unit; times are nanoseconds."""

    def grow(self, bytes: int) -> int:
        """Adds `bytes` bytes, up to the room, and returns the new length in bytes.

        Raises `errors.NoMemory` if the room or the machine has less, `errors.BadArgument` for a
        reserve without room, `ValueError` for a reserve that is registered with a device.
        """

    def shrink(self, bytes: int) -> int:
        """Gives `bytes` idle bytes back to the system and returns the new length in bytes.

        Raises `errors.NoMemory` if less is idle, `errors.BadArgument` for a reserve without room,
        `ValueError` for a reserve that is registered with a device.
        """

    @property
    def source(self) -> str:
        """The kind of pages, in words."""

    def __len__(self) -> int: ...
    def close(self) -> None:
        """Ends the reserve and its caches, whose calls then raise `ValueError`. Blocks keep their
        memory; a second call does nothing.

        First ends a registration with a device, whose errors it raises; the reserve then stays.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

@final
class Block(Buffer):
    """Pages of a reserve for the caller alone, until `free`. The block is a writable buffer.

    `free()` and the end of `with` raise `BufferError` while arrays or views of the block exist.
    In a forked child inherited arrays read as zeros, and a `RuntimeWarning` says so.
    """

    def free(self) -> None:
        """Frees the pages; a second call does nothing. Raises `BufferError` while arrays or views
        of the block exist."""

    def locate(self, offset: int = 0) -> tuple[int | None, int]:
        """Returns the page frame number at `offset` (bytes) and the number of contiguous bytes from
        there on. The frame number is `None` if the kernel hides frame numbers.

        Raises `ValueError` for an offset beyond the end.
        """

    @property
    def pages(self) -> int:
        """The length in pages."""

    @property
    def address(self) -> int:
        """The virtual address of the first byte."""

    @property
    def contiguity(self) -> str:
        """The contiguity: `proved`, `within N pages`, or `in virtual addresses only`."""

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
        """The length in pages; 0 after `take` or `give_up`."""

    def take(self) -> Block:
        """Returns the block, and never raises `errors.NoRun`. A second call raises `ValueError`."""

    def give_up(self) -> None:
        """Releases the run to other blocks; a second call does nothing."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

class Cache(MutableMapping[_Key, Any]):
    """A mapping of keys to values in idle pages. A value is `bytes`, or an array."""

    def __new__(cls, reserve: Reserve, name: str) -> Self: ...
    def put(self, key: _Key, value: Buffer | _Array) -> bool:
        """Stores a copy of a value, as `cache[key] = value` does, and returns true if the cache
        kept it.

        Otherwise the key has no value. The cache keeps no value that is longer than the reserve's
        memory outside of allocated blocks. Raises `TypeError` for a key or a value of another type,
        `ValueError` for a key of more than 1 MiB, `OverflowError` for an integer beyond 64 bits,
        `BufferError` for a buffer that is not C-contiguous.
        """

    def get_into(self, key: _Key, out: Buffer) -> int | None:
        """Copies the bytes of a value into a writable buffer and returns their number, or `None` if
        the cache has no value for the key.

        Raises `ValueError` if the buffer is too short, `BufferError` if it is read-only or not
        C-contiguous. After a miss the contents of `out` are unspecified.
        """

    @property
    def lost(self) -> int:
        """The number of entries that were found lost."""

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
        """Returns each physical run as first page, number of pages, and first page frame or `None`.

        If page frames are hidden, each proved huge page is one run; other pages are in no run.
        """

    def nodes(self) -> list[tuple[int, int, int]]:
        """Returns the NUMA nodes of the pages: first page, number of pages, and node.

        Raises `errors.SystemRefused` if the kernel does not tell them.
        """

    @property
    def longest_run(self) -> int:
        """The length of the longest run in pages."""

    @property
    def proof(self) -> str:
        """The evidence for the runs, in words."""

    @property
    def source(self) -> str:
        """The kind of pages, in words."""

    @property
    def held_by(self) -> str:
        """The mechanism that keeps the pages in their frames."""

    @property
    def address(self) -> int:
        """The virtual address of the first byte."""

    def verify(self) -> list[tuple[int, int]]:
        """Returns first page and number of pages of each run that has moved to other page frames.

        Raises `errors.SystemRefused` if the page frames can no longer be read.
        """

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def close(self) -> None:
        """Frees the memory; a second call does nothing.

        First ends a registration with a device, whose errors it raises. Raises `BufferError` while
        arrays or views of the memory exist. After an error the memory stays.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

def contig(
    bytes: int,
    *,
    source: _Source = "auto",
    require_run: int | None = None,
    node: int | None = None,
    prefer_node: int | None = None,
    nodes: Sequence[int] | None = None,
) -> Contig:
    """Returns contiguous memory of `bytes` bytes, rounded up to whole pages of its source.

    `require_run`: bytes that must be contiguous. `node`: takes only memory of this NUMA node;
    `prefer_node`: takes its memory if it has enough, otherwise any; `nodes`: takes only memory of
    these nodes. Raises `errors.NoMemory` with the bytes of the longest run or of available memory;
    `errors.BadArgument` for a length of zero, a node that is not online or has no memory, or an
    empty set; `ValueError` for another source or more than one of the three.
    """

@final
class Lease(Buffer):
    """Memory that a daemon lends until `close`; a writable buffer of bytes.

    The memory is zeroed at first. Forked children share it, and read zeros in it after the parent's
    `close`. If the daemon takes a revocable lease back, the memory reads as zeros.
    """

    def runs(self) -> list[tuple[int, int, int | None]]:
        """Returns each physical run: first page, number of pages, and first page frame or `None`."""

    @property
    def nbytes(self) -> int:
        """The length in bytes."""

    @property
    def number(self) -> int:
        """The lease's number in lists."""

    @property
    def address(self) -> int:
        """The virtual address of the first byte."""

    @property
    def physical(self) -> int | None:
        """The physical address of the first byte, or `None` if the daemon does not see it."""

    def fileno(self) -> int:
        """Returns the descriptor of the lease's file, open until `close`.

        Raises `ValueError` for a lease of several files: `one_file=True` asks for one.
        """

    def files(self) -> list[int]:
        """Returns the descriptors of the lease's files in order, open until `close`. All files have
        the same length.
        """

    def recalled(self, timeout: float | None = 0.0) -> float | None:
        """Waits until the daemon asks for a revocable lease, at most `timeout` seconds; without
        limit if it is `None`. Returns the seconds until the daemon takes the memory, or `None` if
        it did not ask. It asks once.

        Raises `errors.Purged` after the daemon took the memory: since some moment the memory reads
        as zeros. Raises `errors.SystemRefused` if the daemon ended.
        """

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def close(self) -> None:
        """Gives the memory back; a second call does nothing.

        Raises `BufferError` while arrays or views of it exist.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

def lease(
    size: int | str,
    *,
    contiguous: bool = False,
    align: int | str = 0,
    revocable: bool = False,
    one_file: bool = False,
    name: str | None = None,
    socket: str | os.PathLike[str] | None = None,
    node: int | None = None,
    wait: float = 2.0,
) -> Lease:
    """Leases `size` bytes of huge pages from the daemon that `glebe serve --leases` runs.

    `size`: bytes, or a text such as "2G"; rounded up to whole huge pages. `contiguous`: only memory
    in one physical run. `align`: alignment of the first physical byte, a power of two.
    `revocable`: the daemon may take the memory back (`Lease.recalled`). `one_file`: one file, to
    pass it on. `name`: the name in lists, by default the program's. `socket`: path of the daemon's
    socket. `node`: NUMA node. `wait`: seconds for which the call asks again while the daemon takes
    memory back, or adds some.

    Raises `errors.SystemRefused` if no daemon answers; `errors.NoMemory` with the longest free run,
    or with the user's `limit`; `errors.WouldWait` if memory is still on its way after `wait`
    seconds; `errors.BadArgument` for a size of zero, another alignment or node. `errno` has the
    daemon's reason.
    """

@final
class SharedCache:
    """A cache that all processes of the user find by its name.

    Keys are those of `Cache`; values are bytes and C-contiguous buffers, and come back as `bytes`.
    Any value may vanish. Forked children use the same cache, and a pickled one is opened again.
    """

    __iter__: ClassVar[None]

    def put(self, key: _Key, value: Buffer) -> bool:
        """Stores a copy of a value, as `cache[key] = value` does. A full cache drops older values.
        Returns false if there is no memory at all; the key then has no value.

        Raises `errors.BadArgument` if key and value are longer than `limit`; the key then has no
        value. Raises the errors of `Cache.put`.
        """

    def __setitem__(self, key: _Key, value: Buffer, /) -> None: ...
    def __getitem__(self, key: _Key, /) -> bytes: ...
    @overload
    def get(self, key: _Key, default: None = None) -> bytes | None:
        """Returns the value of a key, or `default`."""

    @overload
    def get(self, key: _Key, default: _Default) -> bytes | _Default: ...
    def __delitem__(self, key: _Key, /) -> None: ...
    def remove(self, key: _Key) -> bool:
        """Removes a value. Returns true if there was one."""

    def __contains__(self, key: object, /) -> bool: ...
    @property
    def name(self) -> str:
        """The cache's name."""

    @property
    def nbytes(self) -> int:
        """The size in bytes. Parts of it may have no memory at a time."""

    @property
    def limit(self) -> int:
        """The most bytes of a key with its value. A key takes up to 5 bytes more than its
        length."""

    @property
    def of_daemon(self) -> bool:
        """True if the memory is the daemon's, false if it is a file's."""

    def stats(self) -> dict[str, int]:
        """Returns this object's counters by name."""

    def end(self) -> None:
        """Ends the cache for all processes of the user. Those that have it open find it empty."""

def shared_cache(
    name: str,
    size: int | str | None = None,
    *,
    socket: str | os.PathLike[str] | None = None,
) -> SharedCache:
    """Opens the user's cache `name`, or makes it.

    The cache uses the idle memory of the daemon that `glebe serve --leases` runs, until a lease
    needs it. Where no daemon runs, a volatile file in memory serves, which `glebe reclaim` can
    purge. `name`: 1 to 32 bytes. `size`: bytes, or a text such as "2G"; 256 MiB by default. A size
    beyond the daemon's reserve becomes the reserve's, and an existing cache keeps its size
    (`nbytes`). `socket`: path of the daemon's socket; with it, no file serves.

    Raises `errors.BadArgument` for an empty or too long name and a size of zero, `errors.NoMemory`
    with the limit if the user has too many caches, `errors.SystemRefused`, also for a `socket`
    without a daemon.
    """
