# SPDX-License-Identifier: Apache-2.0
"""A Redis that keeps what it is given, until it is told to lie."""
import socket
import threading
import time

LONG = 1 << 16

# What is sent in place of each reply; a generator goes on until the other side has left.
LIES = {
    "an array": lambda: [b"*2147483647\r\n"],
    "nested arrays": lambda: [b"*1\r\n" * 100_000],
    "a bulk without end": lambda: [b"$9223372036854775807\r\n", b"x" * LONG],
    "a huge bulk": lambda: (b"$629145600\r\n" if i == 0 else b"\0" * LONG for i in range(9600)),
    "a line without end": lambda: (b"+" if i == 0 else b"A" * LONG for i in range(9600)),
    "a wrong number": lambda: [b":12345678901234567890123\r\n"],
    "slow drips": lambda: drips(b"$1000\r\n" + b"x" * 1000),
    "silence": lambda: drips(b""),
    "a closed connection": lambda: None,
    "an error": lambda: [b"-ERR x\x1b[31m\nkvspan: all is well\r\n"],
}


def drips(text):
    for i in range(1000):
        yield text[i:i + 1]
        time.sleep(0.1)


class LyingRedis:
    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self.listener.getsockname()[1]}/0"
        self.lie = None  # a name of LIES
        self.lies = 0    # told
        self.entries = {}
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client, client.makefile("rb") as data:
            try:
                while head := data.readline():
                    command = []
                    for _ in range(int(head[1:])):
                        size = int(data.readline()[1:])
                        command.append(data.read(size))
                        data.read(2)
                    if self.lie is None:
                        client.sendall(self.answer(*command))
                        continue
                    self.lies += 1
                    pieces = LIES[self.lie]()
                    if pieces is None:
                        return
                    for piece in pieces:
                        client.sendall(piece)
            except OSError:
                return

    def answer(self, name, key, *words):
        if name == b"SET":
            self.entries[key] = words[0]
            return b"+OK\r\n"
        if name == b"EXPIRE":
            return b":%d\r\n" % (key in self.entries)
        if name == b"GETRANGE":
            found = self.entries.get(key, b"")[int(words[0]):int(words[1]) + 1]
            return b"$%d\r\n%s\r\n" % (len(found), found)
        if name == b"UNLINK":
            return b":%d\r\n" % (self.entries.pop(key, None) is not None)
        return b"-ERR unknown command\r\n"
