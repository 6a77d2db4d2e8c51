#!/usr/bin/env python3
"""Speaks the lease protocol from its description alone (the head of crates/glebe-lease/src/lib.rs).

Usage: conformance.py SOCKET. Ends with 1 at the first difference.
"""

import array
import errno
import fcntl
import mmap
import os
import socket
import struct
import sys

HEAD = struct.Struct("<HHIQ")
HELLO, LEASE, MAPPED, RELEASE, PROMISE, TAKE, LIST, STATS = range(1, 9)
WELCOME, LEASED, DONE, PROMISED, LISTED, STATISTICS = range(0x81, 0x87)
REFUSED = 0xFF


class Connection:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(path)
        self.last = 0

    def ask(self, kind, lease=0, body=b""):
        """Returns (kind, lease, body, descriptors) of the answer."""
        self.last += 1
        self.socket.sendall(HEAD.pack(1, kind, self.last, lease) + body)
        return self.answer()

    def answer(self):
        room = socket.CMSG_SPACE(253 * array.array("i").itemsize)
        data, control, flags, _ = self.socket.recvmsg(1 << 16, room)
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC), "something was cut"
        files = array.array("i")
        for level, kind, rights in control:
            assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            files.frombytes(rights)
        version, kind, call, lease = HEAD.unpack_from(data)
        assert (version, call) == (1, self.last), (version, call)
        return kind, lease, data[HEAD.size :], list(files)


def wish(size, flags=0, align=0, node=-1, name=b"conformance"):
    return struct.pack("<QQiI32s", size, align, node, flags, name)


def main():
    with_files = Connection(sys.argv[1])
    kind, _, body, _ = with_files.ask(HELLO, body=struct.pack("32s", b"stranger"))
    assert kind == WELCOME and len(body) == 32
    brick, total, free, longest = struct.unpack("<4Q", body)
    assert 0 < brick <= longest <= total and free <= total, (brick, total, free, longest)

    kind, lease, body, files = with_files.ask(LEASE, body=wish(3 * brick))
    assert kind == LEASED and lease > 0
    size, a_file, page, first, count = struct.unpack_from("<QQQII", body)
    frames = struct.unpack_from(f"<{(len(body) - 32) // 8}Q", body, 32)
    assert (size, first, count, len(files)) == (3 * brick, 0, 3, 3) and a_file * count == size
    assert len(frames) == size // page
    for fd in files:
        memory = mmap.mmap(fd, a_file)
        assert memory[:] == bytes(a_file), "not zeroed"
        memory[:7] = b"written"
        memory.close()
    kind, same, _, _ = with_files.ask(MAPPED, lease)
    assert (kind, same) == (DONE, lease)
    F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2
    try:
        fcntl.fcntl(files[0], F_ADD_SEALS, F_SEAL_SHRINK)
        raise AssertionError("sealed against the daemon's cut")
    except PermissionError:
        pass

    kind, _, body, _ = with_files.ask(LIST)
    (rows,) = struct.unpack_from("<Q", body)
    assert kind == LISTED and rows >= 1 and len(body) == 8 + 64 * rows
    mine = [struct.unpack_from("<QQIIII32s", body, 8 + 64 * nth) for nth in range(rows)]
    mine = [row for row in mine if row[0] == lease]
    assert mine[0][1:4] == (size, os.getuid(), os.getpid()), mine
    assert mine[0][6].rstrip(b"\0") == b"conformance"

    kind, _, _, _ = with_files.ask(RELEASE, lease)
    assert kind == DONE
    kind, promise, body, _ = with_files.ask(PROMISE, body=wish(brick))
    assert kind == PROMISED and struct.unpack("<Q", body) == (brick,)
    kind, _, body, files = with_files.ask(TAKE, promise)
    assert kind == LEASED and len(files) == 1

    kind, lease, body, files = with_files.ask(LEASE, body=wish(2 * brick, flags=2))
    assert kind == LEASED and len(files) == 1 and os.fstat(files[0]).st_size == 2 * brick

    kind, _, body, _ = with_files.ask(LEASE, body=wish(1 << 62))
    number, _, limit = struct.unpack_from("<iIQ", body)
    assert kind == REFUSED and number == errno.ENOMEM and limit <= total, (kind, number, limit)
    assert body[16:].decode().startswith("4 EiB asked for"), body[16:]
    kind, _, body, _ = with_files.ask(STATS)
    assert kind == STATISTICS and b"glebe_lease_leased_total" in body

    kind, _, body, _ = with_files.ask(HELLO, body=struct.pack("32s", b"again"))
    assert kind == REFUSED and struct.unpack_from("<i", body)[0] == errno.EPROTO


if __name__ == "__main__":
    main()
