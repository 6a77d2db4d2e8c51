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
"""Runs of lost pages: first page, pages; these pages are zeros now."""

@final
class VolatileBuffer(Buffer):
    """`bytes` of zeros, rounded up to pages, whose contents may be given up and taken back.

    A writable buffer while nothing of it is marked; else `BufferError`. So no array points to
    memory that may vanish. A forked child has a copy, of which what was lost is lost there too.
    Raises `errors.Unsupported` where the process locks its memory or the kernel cannot do this.
    """

    def __new__(cls, bytes: int) -> Self: ...
    def mark(self, start: int = 0, stop: int | None = None) -> None:
        """Lets the kernel take the bytes from `start` to `stop`, whole pages, when memory is short.

        Raises `BufferError` while arrays, views or held blocks exist.
        """

    def unmark(self, start: int = 0, stop: int | None = None) -> _Lost:
        """Takes the right back; returns what was lost. The rest has every byte."""

    def held(self) -> Held:
        """For `with`: nothing is marked inside, and `as` gives what was lost; all is marked after.

        If arrays of it are left at the end, it is marked with the end of the last of them. Of
        several at once the first is told what was lost.
        """

    def read(self, offset: int, length: int) -> bytes | None:
        """Bytes, marked or not; `None` if a page of them is lost."""

    def write(self, offset: int, data: Buffer) -> None:
        """Copies bytes to what is not marked; raises `errors.BadArgument` for what is."""

    def drop_marked(self, start: int = 0, stop: int | None = None) -> int:
        """Drops what is marked, as the kernel does under pressure; returns bytes dropped."""

    def stats(self) -> dict[str, int]:
        """Counters and gauges by name, which ends in the unit."""

    @property
    def engine(self) -> str:
        """`scan` or `tag`."""

    @property
    def marked(self) -> int:
        """Bytes marked."""

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
        """Forgets all results; arrays that are in use stay."""

    def drop_unused(self) -> int:
        """Drops the results that no array or view uses; returns the bytes that were dropped."""

    def stats(self) -> dict[str, int]:
        """Returns counters and gauges by name, which ends in the unit."""

def volatile_cache(
    addresses: int, *, hot: int | None = None, typed: bool = False
) -> Callable[[Callable[_P, _R]], _VolatileFunction[_P, _R]]: ...
