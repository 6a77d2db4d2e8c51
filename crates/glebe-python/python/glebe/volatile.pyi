from collections.abc import Callable
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, final, overload

from typing_extensions import Buffer, Self, TypeAlias

__all__ = ["Held", "VolatileBuffer", "volatile_cache"]

_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_S = TypeVar("_S")
_R = TypeVar("_R", covariant=True)

_Lost: TypeAlias = list[tuple[int, int]]
"""Runs of lost pages: first page, number of pages. These pages are zeros now."""

@final
class VolatileBuffer(Buffer):
    """`bytes` bytes of zeros, rounded up to pages. The kernel may take marked pages.

    The memory is a writable buffer while no page is marked. Otherwise an export raises
    `BufferError`, because no array may point to memory that vanishes. A forked child has a copy;
    lost pages are lost in the copy too. Raises `errors.BadArgument` for a length of zero,
    `errors.Unsupported` if the process locks its memory or the kernel has no volatile memory.
    """

    def __new__(cls, bytes: int) -> Self: ...
    def mark(self, start: int = 0, stop: int | None = None) -> None:
        """Lets the kernel take the bytes from `start` to `stop`, whole pages, when memory is short.

        Raises `BufferError` while arrays, views or held blocks exist, `errors.BadArgument` if the
        range is not whole pages of the memory.
        """

    def unmark(self, start: int = 0, stop: int | None = None) -> _Lost:
        """Unmarks the bytes from `start` to `stop`. Returns first page and number of pages of each
        lost run, which is now zeros.

        All other pages are intact. Raises `errors.BadArgument` if the range is not whole pages of
        the memory.
        """

    def held(self) -> Held:
        """Returns a context for `with`. No page is marked inside, and all pages are marked
        afterwards. `as` gives the runs that were lost.

        If arrays outlive the block, the memory is marked when the last array is gone. If blocks
        overlap, the first block gets the lost runs.
        """

    def read(self, offset: int, length: int) -> bytes | None:
        """Returns `length` bytes from `offset` on, marked or not; `None` if one of their pages is
        lost.

        Raises `errors.BadArgument` beyond the end.
        """

    def write(self, offset: int, data: Buffer) -> None:
        """Copies a buffer to the memory from byte `offset` on.

        Raises `errors.BadArgument` if some of the range is marked or beyond the end.
        """

    def drop_marked(self, start: int = 0, stop: int | None = None) -> int:
        """Drops the marked pages from byte `start` to `stop`, as the kernel does under pressure.
        Returns the number of bytes dropped.

        Raises `errors.BadArgument` if the range is not whole pages of the memory.
        """

    def stats(self) -> dict[str, int]:
        """Returns counters and gauges by name. Each name ends in its unit."""

    @property
    def engine(self) -> str:
        """The detection of losses: `scan` or `tag`."""

    @property
    def marked(self) -> int:
        """The number of marked bytes."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Held:
    def __enter__(self) -> _Lost: ...
    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

class _VolatileFunction(Protocol[_P, _R]):
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
    @overload
    def __get__(self, instance: None, owner: type[Any], /) -> Self: ...
    @overload
    def __get__(
        self: _VolatileFunction[Concatenate[_S, _Q], _R],
        instance: _S,
        owner: type[Any] | None = None,
        /,
    ) -> _VolatileFunction[_Q, _R]: ...
    def clear(self) -> None:
        """Forgets all results. Arrays in use stay."""

    def drop_unused(self) -> int:
        """Drops the results that no array or view uses. Returns the number of bytes dropped."""

    def stats(self) -> dict[str, int]:
        """Returns counters and gauges by name. Each name ends in its unit."""

def volatile_cache(
    addresses: int, *, hot: int | None = None, typed: bool = False
) -> Callable[[Callable[_P, _R]], _VolatileFunction[_P, _R]]: ...
