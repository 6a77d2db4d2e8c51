from collections.abc import Hashable
from os import PathLike
from types import TracebackType
from typing import final

from typing_extensions import Buffer, Self

__all__ = ["Key", "Pinned", "Store"]

@final
class Key(Hashable):
    """The name of one object in one store; never that of another."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Store:
    """`budget`: bytes of objects in memory. `pool_limit`: bytes of what is compressed, as much as
    the budget unless given. `capacity`: bytes of all objects, 16 budgets unless given. `file_in`:
    a directory for a file without a name, of up to `file_limit` bytes, that what the pool has no
    room for goes to.
    """

    def __new__(
        cls,
        budget: int,
        *,
        pool_limit: int | None = None,
        capacity: int | None = None,
        file_in: str | PathLike[str] | None = None,
        file_limit: int = ...,
    ) -> Self: ...
    def insert(self, data: Buffer) -> Key:
        """Stores a copy. Raises `errors.Budget` or `errors.NoMemory` where no room can be made."""

    def pin(self, key: Key) -> Pinned:
        """The object, to read. Raises `errors.Stale`, `errors.Pinned` if it is pinned to be written,
        `errors.Damaged`, and as `insert`."""

    def pin_mut(self, key: Key) -> Pinned:
        """The object, to read and write, alone."""

    def take(self, key: Key) -> bytes:
        """Frees the object and returns its bytes."""

    def free(self, key: Key) -> None:
        """Frees the object. Raises `errors.Stale`, and `errors.Pinned` while it is pinned."""

    def cold(self, key: Key) -> None:
        """Says that the object is not needed for a while: it is among the next to leave memory."""

    def will_need(self, key: Key) -> None:
        """Brings the object to memory."""

    def dead(self, key: Key) -> None:
        """Says that the bytes are wanted no more; the key stays until it is freed."""

    def stats(self) -> dict[str, int]:
        """Counters and gauges by name, which ends in the unit."""


@final
class Pinned(Buffer):
    """An object's bytes, a buffer; they stay in memory, at one address, until it is released.

    If arrays of it are left at `release()` or the end of `with`, it is released with the last.
    A forked child may use those that it inherited, as copies.
    """

    def release(self) -> None:
        """Ends the pin, now or with the last array of it."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...
