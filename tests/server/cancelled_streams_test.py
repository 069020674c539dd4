# SPDX-License-Identifier: Apache-2.0
"""Streams whose client leaves: cancelled_streams_test.py KVSPAN MODEL

One after the other, at any moment of the answer. Afterwards answers are those of a fresh server. KVSPAN_CANCELLED_STREAMS says how many
(50).
"""
import json
import os
import pathlib
import random
import socket
import struct
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from store_servers import Server  # noqa: E402

PROGRAM = MODEL = None
STREAMS = int(os.environ.get("KVSPAN_CANCELLED_STREAMS", "50"))
WORDS = "once upon a time there was a little girl named lily she liked to play in the park with her dog and big red ball".split()


def prompts(seed, lengths):
    chance = random.Random(seed)
    return [" ".join(chance.choice(WORDS) for _ in range(length)) for length in lengths]


class CancelledStreams(unittest.TestCase):
    def start(self):
        server = Server(PROGRAM, "-m", MODEL, "--cache", "bands:calib=online,learn=64", "-c", "2048", "--parallel", "1", "-t", "1", "--cache-ram", "0")
        self.addCleanup(server.close)
        return server.wait()

    def cancel(self, server, chance, prompt):
        """Leaves before the answer, in it, or with a request that is only half sent."""
        body = json.dumps({"prompt": prompt, "n_predict": 500, "stream": True, "ignore_eos": True, "cache_prompt": chance.random() < 0.5}).encode()
        link = socket.create_connection(("127.0.0.1", server.port), timeout=120)
        with link:
            link.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
            half = chance.random() < 0.1
            link.sendall(body[:len(body) // 2] if half else body)
            if half or chance.random() < 0.3:
                time.sleep(0.001 * chance.randrange(20))
            else:
                for _ in range(chance.choice((1, 1, 3, 20))):
                    link.recv(1000)
            if chance.random() < 0.5:  # a reset in place of an orderly end
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def until_idle(self, server):
        for _ in range(6000):
            if not any(slot["is_processing"] for slot in server.get("/slots")):
                return
            time.sleep(0.02)
        self.fail("a slot stays busy")

    def answers(self, server):
        return [server.post("/completion", {"prompt": prompt, "n_predict": 24, "temperature": 0, "cache_prompt": False})["content"]
                for prompt in prompts(5, (3, 10, 40, 80, 120, 150))]

    def test_leave_no_trace_in_answers(self):
        server = self.start()
        descriptors = None
        chance = random.Random(1)
        for number, prompt in enumerate(prompts(2, [1 + i * 37 % 200 for i in range(STREAMS)])):
            self.cancel(server, chance, prompt)
            if number == min(9, STREAMS - 1):
                self.until_idle(server)
                descriptors = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        self.until_idle(server)
        cancelled = self.answers(server)
        # Connections that the server's own threads still hold end by themselves; one for each stream would be a leak.
        self.assertLess(len(os.listdir(f"/proc/{server.process.pid}/fd")), descriptors + STREAMS // 2)
        self.assertEqual(cancelled, self.answers(self.start()))


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
