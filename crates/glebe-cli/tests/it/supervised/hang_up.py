"""Runs a program as the leader of a terminal's session, and hangs the terminal up.

Exits with 1 unless the program exits with 3.
"""

import os
import pty
import signal
import sys
import time

child, terminal = pty.fork()
if child == 0:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a shell cannot trap what was ignored at its start
    os.execvp(sys.argv[1], sys.argv[1:])

said = b""
while b"up" not in said:
    said += os.read(terminal, 4096)
os.close(terminal)
end = time.monotonic() + 20
while time.monotonic() < end:
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        sys.exit(os.waitstatus_to_exitcode(status) != 3)
    time.sleep(0.01)
os.kill(child, signal.SIGKILL)
sys.exit("the program did not end")
