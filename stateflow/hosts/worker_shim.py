"""Stands in for the Python that Spark starts its workers from: the zygote forks that process, with everything imported.

Spark sees this process: it lives as long as the forked one, which has its standard input, output and error. Standard library only:
`python worker_shim.py SOCKET PLACE [arguments of Spark]`.
"""

import os
import signal
import socket
import struct
import sys


def main() -> None:
    place = sys.argv[2].encode()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(sys.argv[1])
    entries = b"\0".join(name + b"=" + value for name, value in os.environb.items())
    modules = b"\0".join(word.encode() for word in sys.argv[3:] if word != "-m")
    body = b"\0\0".join((place, modules, entries))
    socket.send_fds(sock, [struct.pack(">I", len(body)) + body], [0, 1, 2])
    # The forked process has these. Spark must see the end of its output when it ends, and it the end of its input.
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while sock.recv(1):
        pass


if __name__ == "__main__":
    main()
