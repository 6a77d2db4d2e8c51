from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, SupportsIndex

from typing_extensions import Self, TypeAlias

from glebe import Block, Cache, Contig, Reserve

__all__ = ["PIECE_BYTES", "PinnedPool", "Registration", "register"]

PIECE_BYTES: int

_Progress: TypeAlias = Callable[[int, int], object]
_Shape: TypeAlias = SupportsIndex | Iterable[SupportsIndex]

def register(
    memory: Reserve | Contig,
    *,
    piece: int = ...,
    pause: float = 0.0,
    progress: _Progress | None = None,
    devices: Iterable[SupportsIndex] | None = None,
    library: str | None = None,
) -> Registration: ...

class Registration:
    def __init__(
        self,
        memory: Reserve | Contig,
        piece: int,
        pause: float,
        progress: _Progress | None,
        devices: Iterable[SupportsIndex] | None,
        library: str | None,
    ) -> None: ...
    def wait(
        self, offset: int = 0, length: int | None = None, timeout: float | None = None
    ) -> bool: ...
    def cancel(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def ready(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def piece(self) -> int: ...
    @property
    def error(self) -> BaseException | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _type: type[BaseException] | None,
        value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

class PinnedPool(Registration):
    def __init__(
        self,
        memory: int | Reserve,
        *,
        source: str = "thp",
        piece: int = ...,
        pause: float = 0.0,
        progress: _Progress | None = None,
        devices: Iterable[SupportsIndex] | None = None,
        library: str | None = None,
    ) -> None: ...
    @property
    def reserve(self) -> Reserve: ...
    def cache(self, name: str) -> Cache: ...
    def block(self, bytes: int, *, zeroed: bool = False) -> Block: ...
    # NumPy and PyTorch need not be installed.
    def array(self, shape: _Shape, dtype: Any = "uint8", *, zeroed: bool = False) -> Any: ...
    def tensor(self, shape: _Shape, dtype: Any = None, *, zeroed: bool = False) -> Any: ...
    def settle(self) -> int: ...
    @property
    def resting(self) -> int: ...
