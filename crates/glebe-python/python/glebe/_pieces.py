"""`Pieces` registers memory with a device piece by piece, in a thread of its own.

The thread makes all calls that register and unregister. It lives until the registration has ended,
and only then lets the memory go. So no other thread gets the runtime's current device or last error
from here, and nobody frees memory whose addresses the device has.

Garbage collection may call `request_end` and `died` in any thread at any moment. They do not wait,
and the lock is one that its holder may take again.
"""

import atexit
import copy
import os
import threading
from bisect import bisect_right
from collections import deque
from contextlib import suppress

from glebe import errors
from glebe._cudart import NOT_REGISTERED, UNLOADING

# Registrations that have not ended; the end of the process ends them.
_alive: set["Pieces"] = set()


def cut(parts, piece, first_border):
    """Cuts `parts` (offset, length) at `first_border` and each multiple of `piece` from there."""
    pieces = []
    for offset, length in parts:
        end = offset + length
        while offset < end:
            edge = offset + piece - (offset - first_border) % piece
            pieces.append((offset, min(edge, end) - offset))
            offset = min(edge, end)
    return pieces


class Pieces:
    """The pieces of some memory, and the thread that registers them."""

    def __init__(self, memory, runtime, pause, progress):
        self._runtime, self._memory = runtime, memory
        self._pause, self._progress = pause, progress
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._pieces, self._starts, self._is_ready = [], [], []
        self._wanted = []  # numbers of pieces that come first
        self._next = 0  # the pieces before are ready, or were tried
        self._has_begun = self._is_stopped = self._is_ending = self._has_ended = False
        self._thread = None
        self._runs = threading.Event()
        self.ready = self.total = 0
        self.error = self.end_error = None
        self.lent = {}  # number of an array in use: its length; operations are atomic
        self.resting = deque()  # blocks whose arrays died, but which the device may still use
        self._ends_unused = False
        self._settling = threading.Lock()

    def start(self, devices, base, parts, piece, first_border):
        """Starts to register memory at address `base`."""
        self._devices, self._base = devices, base
        self._pieces = cut(parts, piece, first_border)
        self._starts = [offset for offset, _ in self._pieces]
        self._is_ready = [False] * len(self._pieces)
        self.total = sum(length for _, length in self._pieces)
        thread = threading.Thread(target=self._run, name="glebe.cuda", daemon=True)
        with self._changed:
            if self._is_ending:  # the memory was closed meanwhile
                raise errors.Error("the memory was closed before its registration began")
            self._thread = thread
            _alive.add(self)
        try:
            thread.start()
        except BaseException as error:
            # After an interrupt the thread may run. It then lets the memory go.
            if isinstance(error, RuntimeError) or not self._runs.wait(1):
                self._thread = None
                _alive.discard(self)
            self.request_end()
            raise

    def has_thread(self):
        return self._thread is not None

    # What the thread does.

    def _run(self):
        self._runs.set()
        while not self._has_ended:
            try:
                number = self._take()
                if number is None:
                    self._end()
                else:
                    self._register(number)
            except BaseException as error:  # for example a MemoryError; others wait for this thread
                with self._changed:
                    self.error = self.end_error = error
                    self._is_stopped, self._is_ending = True, False
                    self._changed.notify_all()

    def _take(self):
        """Waits for work. Returns the number of the next piece, or `None` to end."""
        with self._changed:
            while not self._is_ending:
                if not self._is_stopped and (number := self._choose()) is not None:
                    return number
                self._changed.wait()
        return None

    def _choose(self):
        while self._wanted:
            if not self._is_ready[number := self._wanted.pop(0)]:
                return number
        while self._next < len(self._pieces):
            self._next += 1
            if not self._is_ready[self._next - 1]:
                return self._next - 1
        return None

    def _register(self, number):
        offset, length = piece = self._pieces[number]
        try:
            if not self._has_begun:
                self._runtime.begin_thread(self._devices)
                self._has_begun = True
            self._runtime.call("cudaHostRegister", self._base + offset, length, 0, piece=piece)
            self._is_ready[number] = True
        except errors.Cuda as error:
            self._stop(error)
            return
        with self._changed:
            self.ready += length
            self._changed.notify_all()
        try:
            if self._progress:
                self._progress(self.ready, self.total)
        except BaseException as error:
            self._stop(error)
        if self._pause:
            with self._changed:
                self._changed.wait_for(lambda: self._is_ending, self._pause)

    def _stop(self, error):
        with self._changed:
            self.error, self._is_stopped = error, True
            self._changed.notify_all()

    def _end(self):
        """Unregisters all pieces. If the device keeps some, `end_error` says why."""
        failed = None
        self._has_begun = False  # a wait that fails may leave another device current
        if self.resting or any(self._is_ready):
            failed = self._last_call(self._runtime.synchronize, self._devices)
        if failed is None:
            for number in reversed(range(len(self._pieces))):
                if self._is_ready[number]:
                    failed = self._unregister(number) or failed
        is_over = not any(self._is_ready)
        if is_over:
            self.resting.clear()
            self._memory._unregister()
            _alive.discard(self)
        with self._changed:
            self._has_ended = self._is_ending = is_over
            self._is_stopped, self.end_error = True, failed
            self._changed.notify_all()

    def _unregister(self, number):
        offset, length = piece = self._pieces[number]
        error = self._last_call(
            self._runtime.call, "cudaHostUnregister", self._base + offset, piece=piece
        )
        # After a reset of the device the piece is not registered any more.
        if error is not None and error.code != NOT_REGISTERED:
            return error
        with self._changed:
            self._is_ready[number] = False
            self.ready -= length
        return None

    @staticmethod
    def _last_call(function, *arguments, **named):
        """Calls a function. Returns its error, or `None` also if the driver is gone already."""
        try:
            function(*arguments, **named)
        except errors.Cuda as error:
            return None if error.code == UNLOADING else error
        return None

    # What other threads ask.

    def own(self):
        """Raises `errors.Forked` in a child of the process that registered."""
        if self._process != os.getpid():
            raise errors.Forked("the registration belongs to the parent process")

    def numbers(self, offset, length):
        """Returns the numbers of the pieces that have a range of the memory, or all behind it."""
        if length is None and 0 <= offset < sum(self._pieces[-1]):
            first = bisect_right(self._starts, offset) - 1
            return list(range(max(first, 0), len(self._pieces)))
        if length is None or length < 1 or offset < 0:
            raise errors.BadArgument(f"a range of {length} bytes at offset {offset} is no range")
        numbers, at = [], offset
        number = max(bisect_right(self._starts, offset) - 1, 0)
        for number in range(number, len(self._pieces)):
            start, more = self._pieces[number]
            if not start <= at < start + more:
                break
            numbers.append(number)
            at = start + more
            if at >= offset + length:
                return numbers
        raise errors.BadArgument(
            f"the range of {length} bytes at offset {offset} is not all in the memory, "
            f"which has {self.total} bytes"
        )

    def wait(self, numbers, timeout):
        """Waits until some pieces are ready. Returns false if they are not.

        Pieces that somebody waits for come next, in the order of the calls.
        """
        self.own()
        if threading.current_thread() is self._thread:
            raise RuntimeError("a progress function cannot wait for its registration")
        ready = self._is_ready.__getitem__

        def is_over():
            return self._is_stopped or self._is_ending or all(map(ready, numbers))

        with self._changed:
            # All pieces come anyway. Who asks first is served first.
            if timeout != 0 and len(numbers) < len(self._pieces):
                asked = [number for number in numbers if not ready(number)]
                self._wanted += [number for number in asked if number not in self._wanted]
                self._changed.notify_all()
            self._changed.wait_for(is_over, timeout)
            self._check_not_closed()
            if all(map(ready, numbers)):
                return True
            if self._is_stopped:
                self._raise_stopped()
        return False

    def _check_not_closed(self):
        if self._is_ending:
            raise ValueError("the registration was closed before")

    def _raise_stopped(self):
        if isinstance(self.error, errors.Cuda):
            raise copy.copy(self.error)
        if self.error is not None:
            raise errors.Error(f"the registration stopped: {self.error!r}") from self.error
        raise errors.Error(
            f"the registration was cancelled: {self.ready} of {self.total} bytes are registered"
        )

    def cancel(self):
        self.own()
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def resume(self):
        self.own()
        with self._changed:
            self._check_not_closed()
            self.error, self._is_stopped, self._next = None, False, 0
            self._changed.notify_all()

    def request_end(self):
        """Lets the thread end the registration, and does not wait."""
        if self._process == os.getpid():
            with self._changed:
                self._is_ending = True
                self._changed.notify_all()

    def end(self):
        """Ends the registration. The child of a fork has none, so there the call does nothing.

        Raises `BufferError` if arrays are in use; the error of the runtime, and then some pieces
        may still be registered, and another call tries again.
        """
        if self._process == os.getpid():
            self.wait_for_end(is_last=False)

    def wait_for_end(self, is_last):
        """Ends the registration, also with arrays in use if it `is_last`."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a progress function cannot close its registration: cancel() can")
        with self._changed:
            if self.lent and not is_last:
                raise BufferError(
                    f"{len(self.lent)} arrays or tensors of the pool exist: delete them first"
                )
            if self._has_ended or self._thread is None:
                self._is_ending = True
                return
            self._is_ending, self.end_error = True, None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._has_ended or not self._is_ending)
            error = self.end_error
        if self._has_ended:
            self._thread.join()
        if isinstance(error, errors.Cuda):
            raise copy.copy(error)
        if error is not None:
            raise errors.Error(f"the registration did not end: {error!r}") from error

    # Arrays of a pool.

    def lend(self, number, length):
        """Notes an array in use, which delays the end."""
        with self._changed:
            self._check_not_closed()
            self.lent[number] = length

    def end_unused(self):
        """Lets the registration end when no array is in use any more."""
        if self._process == os.getpid():  # a child has no thread that frees the lock
            with self._changed:
                self._ends_unused = True
                if not self.lent:
                    self.request_end()

    def died(self, number, block, pool):
        """Keeps the block of an array that has died. `pool` lived until now."""
        self.resting.append(block)
        if self._process == os.getpid():  # as above
            with self._changed:
                self.lent.pop(number, None)
                if self._ends_unused and not self.lent:
                    self.request_end()

    def settle(self):
        """Waits for the devices, then frees what rested before. Returns the number of bytes."""
        self.own()
        with self._settling:
            taken = []
            try:
                with suppress(IndexError):
                    while True:
                        taken.append(self.resting.popleft())
                if not taken:
                    return 0
                self._runtime.synchronize_elsewhere(self._devices)
            except BaseException:
                self.resting.extendleft(reversed(taken))
                taken.clear()  # the error keeps this frame
                raise
            freed = sum(map(len, taken))
            taken.clear()
            return freed


@atexit.register
def _end_all():
    for pieces in list(_alive):
        if pieces._process == os.getpid():
            # The process ends, and the driver drops what is left.
            with suppress(errors.Error, RuntimeError):
                pieces.wait_for_end(is_last=True)
