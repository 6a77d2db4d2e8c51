"""Memory that CUDA has pinned, registered piece by piece while the program already uses it.

    >>> import glebe.cuda
    >>> pool = glebe.cuda.PinnedPool(64 << 30)           # returns before it is registered
    >>> host = pool.tensor((1024, 1024), torch.float16)  # waits for its own piece only
    >>> del host                                         # rests until settle()
    >>> pool.settle()                                    # waits for the GPU; caches get the memory

The module loads `libcudart` at run time: the library that is loaded already, for example
PyTorch's, or else `libcudart.so`, `.so.13` or `.so.12`. `library=` names another.

Copies lie within one piece: CUDA may refuse a copy from two registrations. An array or tensor of a
pool therefore lies in one piece, and is no longer than one.

In a forked child, calls raise `errors.Forked` or do nothing, and nothing is unregistered.
"""

import ctypes
import weakref
from itertools import count
from math import prod
from operator import index

from glebe import errors
from glebe._cudart import runtime
from glebe._glebe import PAGE_BYTES, Contig, Reserve
from glebe._pieces import Pieces

__all__ = ["PIECE_BYTES", "PinnedPool", "Registration", "register"]

# A GPU does no other work while CUDA registers a piece.
PIECE_BYTES = 256 << 20
# NVIDIA's driver 580 refuses registrations of 512 GiB or more.
_PIECE_MOST = 256 << 30


def register(
    memory, *, piece=PIECE_BYTES, pause=0.0, progress=None, devices=None, library=None
):
    """Registers the memory of a `Reserve` or a `Contig` with CUDA in the background.

    Returns a `Registration` at once. `piece`: bytes of one registration, a power of two from a page
    to 256 GiB. `pause`: seconds between two pieces, which leave CUDA to other threads.
    `progress(ready, total)`: called in another thread after each piece, with bytes; the
    registration stops if it raises. `devices`: numbers of the GPUs that copy from the memory or to
    it, by default the current one; the first registers. `library`: path of the CUDA runtime.

    The memory ends its registration before it closes. A registered reserve cannot grow or shrink.

    Raises `errors.Unsupported` if the runtime is missing, `errors.Cuda` if it fails, `TypeError`
    for other memory, `errors.BadArgument` for another `piece`, `pause` or `devices`, `ValueError`
    for memory that is registered already or closed.
    """
    return Registration(memory, piece, pause, progress, devices, library)


def _check_piece(piece):
    if not PAGE_BYTES <= piece <= _PIECE_MOST or piece & (piece - 1):
        raise errors.BadArgument(
            f"piece={piece}: it is a power of two from {PAGE_BYTES} to {_PIECE_MOST} bytes"
        )


def _check_devices(cudart, devices):
    if devices is None:
        return [cudart.device()]
    devices = list(map(index, devices))
    if not devices:
        raise errors.BadArgument("devices=[]: name at least one GPU, or leave the argument out")
    return devices


def _first_border(memory, base, piece):
    """Returns where aligned blocks begin, as an offset below `piece`."""
    try:
        with memory.alloc(1, align=piece // PAGE_BYTES, any=True) as aligned:
            return (aligned.address - base) % piece
    except errors.NoRun:
        return 0


def _numbers(shape):
    shape = [index(n) for n in ((shape,) if hasattr(shape, "__index__") else shape)]
    if min(shape, default=0) < 0:
        raise errors.BadArgument(f"shape {tuple(shape)}: a length below zero")
    return shape


class Registration:
    """Memory that is registered with CUDA, as far as `ready` says. `register` makes it.

    The end of a `with` block closes it. So do the end of its memory, the end of the program, and
    garbage collection.
    """

    def __init__(self, memory, piece, pause, progress, devices, library):
        if not isinstance(memory, (Reserve, Contig)):
            raise TypeError(
                f"a {type(memory).__name__} cannot be registered: only a Reserve or a Contig keeps "
                "its pages, volatile memory does not"
            )
        _check_piece(piece)
        if not 0 <= pause < 1e9:
            raise errors.BadArgument(f"pause={pause}: it is a number of seconds, 0 or more")
        cudart = runtime(library)
        pieces = Pieces(memory, cudart, pause, progress)
        # Refuses a forked child, whose calls of CUDA fail.
        base, parts = memory._register(pieces.end)
        try:
            devices = _check_devices(cudart, devices)
            # Memory in one piece needs no alignment.
            is_cut = isinstance(memory, Reserve) and sum(length for _, length in parts) > piece
            first_border = _first_border(memory, base, piece) if is_cut else 0
            pieces.start(devices, base, parts, piece, first_border)
        except BaseException:
            if not pieces.has_thread():
                memory._unregister()
            raise
        self._memory, self._base, self._piece, self._pieces = memory, base, piece, pieces
        weakref.finalize(self, pieces.request_end).atexit = False

    def wait(self, offset=0, length=None, timeout=None):
        """Waits until a range of the memory is registered, in bytes; by default all from `offset`.

        The pieces of the range come next. Returns false after `timeout` seconds; 0 only asks. The
        offset of a block is its address minus the registration's `address`.

        Unless the range is registered, raises the `errors.Cuda` that stopped the registration, or
        `errors.Error` if it was cancelled or its progress function raised.
        `errors.BadArgument` for a range outside of the memory, `ValueError` after `close`.
        """
        return self._pieces.wait(self._pieces.numbers(offset, length), timeout)

    def cancel(self):
        """Registers no further piece. Does not wait; the pieces that are registered stay usable."""
        self._pieces.cancel()

    def resume(self):
        """Continues after `cancel` or an error, with the pieces that are not registered."""
        self._pieces.resume()

    def close(self):
        """Waits for the piece under way and for the GPUs, and unregisters all; a second call does
        nothing.

        Raises `BufferError` while arrays or tensors of a pool exist. Raises `errors.Cuda` if the
        runtime fails; pieces that it still has stay registered, and another call tries again.
        """
        self._pieces.end()

    @property
    def address(self):
        """The virtual address of the memory's first byte."""
        return self._base

    @property
    def ready(self):
        """The number of bytes that are registered."""
        self._pieces.own()
        return self._pieces.ready

    @property
    def total(self):
        """The number of bytes to register."""
        return self._pieces.total

    @property
    def piece(self):
        """The greatest length of a piece in bytes."""
        return self._piece

    @property
    def error(self):
        """The exception that stopped the registration, or `None`."""
        return self._pieces.error

    def __enter__(self):
        return self

    def __exit__(self, _type, value, _traceback):
        # The traceback of an exception may have arrays of the pool.
        if value is not None and self._pieces.lent:
            self._pieces.end_unused()
        else:
            self.close()

    def __repr__(self):
        name = type(self).__name__
        return f"<glebe.cuda.{name}, {self._pieces.ready} of {self.total} bytes registered>"


class PinnedPool(Registration):
    """A reserve whose blocks, arrays and tensors are pinned memory. Caches use what is idle.

    `memory`: bytes, for a reserve of its own of the kind `source`; or a `Reserve`. The other
    arguments and the errors are those of `register`, and of `Reserve`.

    An array that dies leaves its memory *resting*, because a GPU may still copy. `settle` ends
    the rest.
    """

    def __init__(
        self,
        memory,
        *,
        source="thp",
        piece=PIECE_BYTES,
        pause=0.0,
        progress=None,
        devices=None,
        library=None,
    ):
        # What is wrong is refused before memory is taken, because that takes long.
        _check_piece(piece)
        cudart = runtime(library)
        self._is_own = not isinstance(memory, Reserve)
        if self._is_own:
            devices = _check_devices(cudart, devices)
            memory = Reserve(memory, source=source)
        super().__init__(memory, piece, pause, progress, devices, library)
        self._numbers = count()

    @property
    def reserve(self):
        """The reserve. Its blocks are pinned memory too, after `wait` for their range."""
        return self._memory

    def cache(self, name):
        """Returns the reserve's cache of this name: a mapping in the idle memory."""
        return self._memory.cache(name)

    def block(self, bytes, *, zeroed=False):
        """Takes a block in one piece, and waits until the piece is registered.

        `free()` gives the memory back at once: wait for the copies before. Raises
        `errors.BadArgument` for a length of zero or of more than a piece, `errors.NoRun` with the
        longest free run, and the errors of `wait`.
        """
        self._pieces.own()
        length = -(-index(bytes) // PAGE_BYTES) * PAGE_BYTES
        if not 0 < length <= min(self._piece, self.total):
            raise errors.BadArgument(
                f"a block of {bytes} bytes: it has at least 1, and at most a piece of "
                f"{min(self._piece, self.total)} bytes (piece= of the pool)"
            )
        try:
            block, offset = self._in_one_piece(length, zeroed)
        except errors.NoRun:
            self.settle()  # also waits for another thread that does so
            block, offset = self._in_one_piece(length, zeroed)
        try:
            self.wait(offset, length)
        except BaseException:
            block.free()
            raise
        return block

    def _in_one_piece(self, length, zeroed):
        pages = length // PAGE_BYTES
        # A block that is aligned to its length lies in one piece. Another may, by chance.
        aligned = 1 << (pages - 1).bit_length() if self.total > self._piece else 1
        for align in sorted({aligned, 1}, reverse=True):
            try:
                block = self._memory.alloc(pages, align=align, zeroed=zeroed, any=True)
            except errors.NoRun:
                if align == 1:
                    raise
                continue
            offset = block.address - self._base
            if len(self._pieces.numbers(offset, length)) == 1:
                return block, offset
            block.free()
        error = errors.NoRun(f"no piece has a free run of {pages} pages")
        error.asked, error.longest = pages, self._memory.largest_run()
        raise error

    def array(self, shape, dtype="uint8", *, zeroed=False):
        """Returns a NumPy array in pinned memory. Its contents are unspecified unless `zeroed`.

        When the array and its views are gone, its memory rests until `settle`. Raises what `block`
        raises, and `TypeError` for Python objects.
        """
        import numpy

        kind = numpy.dtype(dtype)
        if kind.hasobject:
            raise TypeError("pinned memory cannot have Python objects")
        shape = _numbers(shape)
        items = prod(shape)
        length = items * kind.itemsize
        block = self.block(length, zeroed=zeroed)
        owner = (ctypes.c_char * length).from_buffer(block)
        number = next(self._numbers)
        weakref.finalize(owner, self._pieces.died, number, block, self).atexit = False
        self._pieces.lend(number, length)
        return numpy.frombuffer(owner, kind, items).reshape(shape)

    def tensor(self, shape, dtype=None, *, zeroed=False):
        """Returns a PyTorch tensor in pinned memory, as `array` does. `dtype`: PyTorch's default.

        Raises what `array` raises, and `ImportError` without PyTorch.
        """
        import torch

        dtype = torch.get_default_dtype() if dtype is None else dtype
        shape = _numbers(shape)
        length = prod(shape) * torch.empty(0, dtype=dtype).element_size()
        return torch.from_numpy(self.array(length, zeroed=zeroed)).view(dtype).view(shape)

    def settle(self):
        """Waits until the GPUs have done all their work, then gives resting memory back to caches.

        Returns the number of bytes. An allocation that finds no memory does this too. CUDA
        allows no such wait while a stream captures a graph.
        """
        return self._pieces.settle()

    @property
    def resting(self):
        """The number of bytes whose arrays have died and that no `settle` has given back."""
        self._pieces.own()
        return sum(map(len, list(self._pieces.resting)))

    def close(self):
        """Closes the registration as `Registration.close` does, then the reserve, unless it was
        given."""
        super().close()
        if self._is_own:
            self._memory.close()
