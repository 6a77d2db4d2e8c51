"""The CUDA runtime: finds the library, calls it, and turns its error codes into exceptions.

The library is loaded when it is first needed. The runtime keeps the current device and the last
error of each thread, so a call here leaves neither of them changed in a thread of the program.
"""

import ctypes
import os
import threading
from functools import lru_cache

from glebe import errors

# The newest first. The library that a framework has loaded comes before all of these.
NAMES = "libcudart.so", "libcudart.so.13", "libcudart.so.12"

# cudaErrorCudartUnloading: the process ends, and the driver drops all registrations.
UNLOADING = 4
# cudaErrorHostMemoryNotRegistered
NOT_REGISTERED = 713
# cudaStreamCaptureModeRelaxed
_RELAXED = 2

_int, _address, _size, _unsigned = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
_to_int = ctypes.POINTER(_int)
_FUNCTIONS = {
    "cudaHostRegister": (_address, _size, _unsigned),
    "cudaHostUnregister": (_address,),
    "cudaGetDevice": (_to_int,),
    "cudaSetDevice": (_int,),
    "cudaDeviceSynchronize": (),
    "cudaGetLastError": (),
    "cudaGetErrorString": (_int,),
}


def _load(path):
    if path is not None:
        return Runtime(ctypes.CDLL(path))
    reason = OSError("not found")
    for mode in (os.RTLD_NOLOAD | os.RTLD_LAZY, ctypes.DEFAULT_MODE):
        for name in NAMES:
            try:
                return Runtime(ctypes.CDLL(name, mode))
            except OSError:
                pass
            except AttributeError as error:
                reason = error  # another library may have the function
    raise reason


@lru_cache(8)
def runtime(path=None):
    """Returns the runtime of the library `path`, or of one that is loaded or in a usual place.

    Raises `errors.Unsupported`, with the names, if there is none.
    """
    asked = " or ".join(NAMES) if path is None else path
    try:
        return _load(path)
    except OSError as error:
        hint = "import the framework that has it first, or name its path by library="
        reason = f"the CUDA runtime, {asked}, cannot be loaded: {error}: {hint}"
        raise errors.Unsupported(reason) from None
    except AttributeError as error:
        raise errors.Unsupported(f"{asked} lacks a function that glebe needs: {error}") from None


class Runtime:
    """The functions of a loaded library."""

    def __init__(self, library):
        for name, arguments in _FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, _int
        library.cudaGetErrorString.restype = ctypes.c_char_p
        self._library = library

    def call(self, name, *arguments, piece=None):
        """Calls a function. Raises `errors.Cuda` with the `piece` (offset, length) if it fails."""
        if code := getattr(self._library, name)(*arguments):
            # Otherwise a later call of this thread would report the error as its own.
            self._library.cudaGetLastError()
            raise self._error(name, code, piece)

    def _error(self, name, code, piece):
        text = (self._library.cudaGetErrorString(code) or b"unknown error").decode(errors="replace")
        where = f" for the piece of {piece[1]} bytes at offset {piece[0]}" if piece else ""
        error = errors.Cuda(f"{name} failed{where}: {text} (error {code})")
        error.call, error.code = name, code
        if piece:
            error.offset, error.length = piece
        return error

    def device(self):
        """Returns the current device of the calling thread."""
        number = _int()
        self.call("cudaGetDevice", ctypes.byref(number))
        return number.value

    def begin_thread(self, devices):
        """Prepares a thread that registers memory while other threads may capture graphs.

        Checks that CUDA knows all devices. The first becomes current.
        """
        exchange = getattr(self._library, "cudaThreadExchangeStreamCaptureMode", None)
        if exchange:
            exchange.argtypes, exchange.restype = (_to_int,), _int
            self.call("cudaThreadExchangeStreamCaptureMode", ctypes.byref(_int(_RELAXED)))
        for device in reversed(devices):
            self.call("cudaSetDevice", device)

    def synchronize(self, devices):
        """Waits until the devices have done all work that was queued before.

        The first becomes the current device of the calling thread.
        """
        for device in reversed(devices):
            self.call("cudaSetDevice", device)
            self.call("cudaDeviceSynchronize")

    def synchronize_elsewhere(self, devices):
        """Waits as `synchronize` does, and leaves the current device of the thread alone.

        CUDA reports device 0 both for a thread that set none and for one that set 0. To set the
        device back would then start a context on it, which takes memory of a GPU that the program
        may not use. So another thread sets devices, unless the right one is current.
        """
        if devices == [self.device()]:
            self.call("cudaDeviceSynchronize")
            return
        failed = []

        def wait():
            try:
                self.synchronize(devices)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=wait, name="glebe.cuda.settle", daemon=True)
        thread.start()
        thread.join()
        if failed:
            # The error keeps this frame, and the frame must not keep the error: such a cycle
            # would keep the blocks of the callers.
            raise failed.pop()
