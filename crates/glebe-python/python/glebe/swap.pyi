from collections.abc import Hashable
from os import PathLike
from types import TracebackType
from typing import final

from typing_extensions import Buffer, Self

__all__ = ["Key", "Pinned", "Store"]

@final
class Key(Hashable):
    """The name of one object in one store. No other object ever gets it."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Store:
    """Keeps objects of 1 byte to 2 MiB, and compresses objects beyond `budget`.

    `budget`: bytes of objects in memory. `pool_limit`: bytes of compressed objects; by default the
    budget. `capacity`: bytes of all objects; by default `16 * budget`. `file_in`: a directory for
    an unnamed file of up to `file_limit` bytes, used when the pool is full. Raises
    `errors.BadArgument` for a budget of zero, `errors.NoMemory`, `errors.SystemRefused`.
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
        """Stores a copy of a buffer and returns its key.

        Raises `errors.Budget` or `errors.NoMemory` if no room can be made, `errors.BadArgument` for
        a length other than 1 byte to 2 MiB.
        """

    def pin(self, key: Key) -> Pinned:
        """Returns the object for reading.

        Raises `errors.Stale` for a key without an object, `errors.Pinned` while the object is
        pinned for writing, `errors.Damaged`, and the errors of `insert` if the object must be
        brought into memory.
        """

    def pin_mut(self, key: Key) -> Pinned:
        """Returns the object for reading and writing, with no other pin.

        Raises `errors.Pinned` while the object has another pin, and the other errors of `pin`.
        """

    def take(self, key: Key) -> bytes:
        """Frees the object and returns its bytes. Raises the errors of `pin_mut` except
        `errors.Budget`."""

    def free(self, key: Key) -> None:
        """Frees the object.

        Raises `errors.Stale` for a key without an object, `errors.Pinned` for a pinned object.
        """

    def cold(self, key: Key) -> None:
        """Hints that the object is not needed for a while: it is among the next to leave memory.

        Raises `errors.Stale` for a key without an object.
        """

    def will_need(self, key: Key) -> None:
        """Brings the object into memory. Raises the errors of `pin` except `errors.Pinned`."""

    def dead(self, key: Key) -> None:
        """Frees the object's bytes, now or with the last pin. The key stays until `free`.

        Raises `errors.Stale` for a key without an object.
        """

    def stats(self) -> dict[str, int]:
        """Returns counters and gauges by name. Each name ends in its unit."""


@final
class Pinned(Buffer):
    """The bytes of an object as a buffer, in memory at one address until `release()`.

    If arrays of the buffer exist at `release()` or the end of `with`, the pin ends with the last
    array. A forked child has copies of inherited pinned objects, and may use them.
    """

    def release(self) -> None:
        """Ends the pin when no array or view uses its bytes. A second call does nothing."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...
