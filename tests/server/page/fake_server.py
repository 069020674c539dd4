#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server that speaks as `kvspan serve` does to its page: fake_server.py PAGE [PORT]

Answers come word by word. A question says what happens: "slow" is answered slowly, "break" ends the connection
in the middle, "full" is refused with 429, "evil" holds markup, "think" has thoughts first; else all of Markdown.
"""
import http.server
import json
import pathlib
import socket
import sys
import threading
import time

MARKDOWN = """## Answer to {question}

A *short* paragraph with **bold** words, `code` and a [link](https://example.org/a_(b)).

| recipe | bits | f16 / KV |
| :--- | ---: | ---: |
| `full` | 16 | 1x |
| `bands:bits=2` | 2.62 | 6.1x |

1. first
2. second
   - nested **item**
   - another

```python
def longest(tokens):
    return [t for t in tokens if t < 256]  # <b>not bold</b>
```

> A quotation.

The end."""
EVIL = """<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>
[click](javascript:window.pwned=1) **<b onclick=1>x</b>** `</code><script>window.pwned=1</script>`

```html
</code></pre><script>window.pwned=1</script>
```
| <i>a</i> | b |
| --- | --- |
| <svg onload=window.pwned=1> | data:text/html,x |

![picture](data:text/html,<script>window.pwned=1</script>)"""


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, page, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.page = pathlib.Path(page)
        self.requests, self.aborted, self.tokens, self.hits = [], 0, 0, 0
        self.clients = set()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def stop(self):
        """As if killed: connections end at once."""
        self.shutdown()
        self.server_close()
        for client in list(self.clients):
            try:
                client.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def setup(self):
        super().setup()
        self.server.clients.add(self.connection)

    def finish(self):
        self.server.clients.discard(self.connection)
        super().finish()

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        server = self.server
        if self.path.split("?")[0] == "/":
            self.answer(200, "text/html; charset=utf-8", server.page.read_bytes())
        elif self.path == "/kv":
            bytes_, full = 3_300_000 + 3840 * server.tokens, 23040 * (160 + server.tokens)
            layers = [{"layer": i, "bytes": bytes_ // 30 + (i * 7919) % 20000} for i in range(30)]
            self.answer(200, "application/json", json.dumps({
                "recipe": "bands:bits=2", "model": "SmolLM2 135M Instruct",
                "sequences": [{"id": 0, "tokens": 160 + server.tokens, "bytes": bytes_}], "bytes": bytes_, "f16_bytes": full,
                "ratio": full / bytes_, "budget": 2 << 30, "layers": layers,
                "store": {"hits": server.hits, "misses": len(server.requests) - server.hits, "bytes": 52_000_000,
                          "load_ms": 120.5, "save_ms": 340}}).encode())
        else:
            self.answer(404, "text/plain", b"not found")

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        self.server.hits += len(self.server.requests) % 3 != 1
        question = request["messages"][-1]["content"]
        if "full" in question:
            self.answer(429, "application/json", json.dumps({"error": {"code": 429, "message": "3.1 GiB asked for, 2.0 GiB allowed"}}).encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        text = EVIL if "evil" in question else MARKDOWN.replace("{question}", question)
        pieces = [word + " " for word in text.split(" ")] if "slow" not in question else [f"word{i} " for i in range(2000)]
        start = time.monotonic()
        try:
            if "think" in question:
                self.piece({"reasoning_content": "First I think."}, 0, start)
            for i, piece in enumerate(pieces):
                if "break" in question and i == 10:
                    return
                self.server.tokens += 1
                self.piece({"content": piece}, i + 1, start)
                time.sleep(0.02 if "slow" in question else 0.002)
            self.piece({}, len(pieces), start, "stop")
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.server.aborted += 1

    def piece(self, delta, n, start, reason=None):
        seconds = max(1e-3, time.monotonic() - start)
        event = {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
                 "timings": {"prompt_n": 112, "cache_n": 5888, "prompt_per_second": 210.0, "predicted_n": n, "predicted_per_second": n / seconds}}
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()


if __name__ == "__main__":
    fake = Server(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(fake.address, flush=True)
    while True:
        time.sleep(3600)
