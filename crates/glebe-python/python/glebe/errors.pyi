class Error(Exception): ...

class BadArgument(Error, ValueError):
    errno: int | None
    limit: int | None

class Forked(Error, RuntimeError): ...

class NoMemory(MemoryError, Error):
    available: int | None
    errno: int | None
    limit: int | None

class NoRun(MemoryError, Error):
    asked: int
    longest: int

class WouldWait(Error):
    errno: int | None
    limit: int | None

class SystemRefused(Error, OSError): ...
class Unsupported(Error): ...

class Purged(Error):
    offset: int

class Budget(MemoryError, Error):
    pinned: int
    budget: int

class Stale(Error, LookupError): ...
class Pinned(Error): ...
class Damaged(Error): ...

class Cuda(Error, RuntimeError):
    call: str | None
    code: int | None
    offset: int | None
    length: int | None
