"""Presses keys in `glebe top`, in a terminal of 80 columns and 24 rows. Called by tests/it/top.rs."""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

GLEBE, PID, PATIENCE = sys.argv[1], sys.argv[2], float(sys.argv[3])
LEAVE = "\x1b[?1049l"


class Top:
    def __init__(self):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            # The parent sets the size first.
            os.read(0, 1)
            os.execv(GLEBE, [GLEBE, "top", "--interval", "0.2"])
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        self.modes = termios.tcgetattr(self.terminal)
        self.seen = ""
        self.press("\n")

    def press(self, keys):
        os.write(self.terminal, keys.encode())

    def until(self, *wanted):
        begin = time.monotonic()
        while not all(text in self.seen for text in wanted):
            assert time.monotonic() - begin < PATIENCE, (wanted, self.seen[-3000:])
            if select.select([self.terminal], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.terminal, 65536).decode(errors="replace")
                except OSError:
                    # The program has ended.
                    assert all(text in self.seen for text in wanted), self.seen[-3000:]

    def ends(self):
        self.until(LEAVE)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert status == 0, status
        assert termios.tcgetattr(self.terminal)[3] == self.modes[3], "the terminal's modes"


def main():
    top = Top()
    # Words only: the program may skip a space that is there already.
    top.until("size", PID, "caches", "quit")
    top.seen = ""
    top.press("s")
    top.until("blocks")
    top.press("p")
    top.until("paused")
    top.press("h")
    top.until("Yellow")
    top.press("h")
    top.press("m")
    top.until("Physical" if os.geteuid() == 0 else "map:")
    top.press("q")
    top.ends()
    for number in [signal.SIGTERM, signal.SIGHUP]:
        top = Top()
        top.until(PID)
        os.kill(top.pid, number)
        top.ends()
    top = Top()
    top.until(PID)
    top.press("\x03")
    top.ends()


if __name__ == "__main__":
    main()
