# SPDX-License-Identifier: Apache-2.0
"""A local stand-in for Hugging Face: one repository, files with ranges, redirects to a second host, faults on demand."""

import hashlib
import http.server
import json
import threading

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer:
    """files: path -> bytes. Attributes may be changed between requests."""

    def __init__(self, repo, files):
        self.repo, self.files = repo, files
        self.token = None          # what Authorization has to carry
        self.wrong_hash = False    # announce another SHA-256
        self.stop_after = None     # bytes of a file's answer after which the connection ends, once
        self.ranges = True         # answer a Range
        self.redirect = False      # files are on the other host
        self.page = 1000           # entries of one page of the tree
        self.requests = []         # (host, path, range, authorization)
        self.servers = [self.serve() for _ in range(2)]
        self.endpoint, self.other = (f"http://127.0.0.1:{s.server_address[1]}" for s in self.servers)

    def serve(self):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                hub.answer(self)

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def tree(self):
        entries = [{"type": "directory", "path": "folder"}]
        for path, data in self.files.items():
            digest = hashlib.sha256(data).hexdigest() if not self.wrong_hash else "0" * 64
            entries.append({"type": "file", "path": path, "size": len(data), "oid": "f" * 40,
                            "lfs": {"oid": digest, "size": len(data)}})
        return entries

    def send(self, handler, code, body=b"", headers=()):
        handler.send_response(code)
        for name, value in headers:
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def answer(self, handler):
        path, _, query = handler.path.partition("?")
        given = handler.headers.get("Authorization")
        self.requests.append((handler.headers["Host"], path, handler.headers.get("Range"), given))
        elsewhere = handler.headers["Host"] in self.other
        if self.token and given != f"Bearer {self.token}" and not elsewhere:
            return self.send(handler, 401, b'{"error": "Invalid username or password."}')
        if path == f"/api/models/{self.repo}/refs":
            body = {"branches": [{"name": "main", "ref": "refs/heads/main", "targetCommit": COMMIT}]}
            return self.send(handler, 200, json.dumps(body).encode())
        if path == f"/api/models/{self.repo}/tree/{COMMIT}":
            start = int(query.partition("cursor=")[2] or 0)
            entries, end = self.tree(), start + self.page
            link = [("Link", f'<{self.endpoint}{path}?recursive=true&cursor={end}>; rel="next"')] if end < len(entries) else []
            return self.send(handler, 200, json.dumps(entries[start:end]).encode(), link)
        data = self.files.get(path.removeprefix(f"/{self.repo}/resolve/").partition("/")[2])
        if data is None:
            return self.send(handler, 404, b'{"error": "Repository not found"}')
        if self.redirect and not elsewhere:
            return self.send(handler, 302, headers=[("Location", self.other + path)])
        return self.send_file(handler, data)

    def send_file(self, handler, data):
        start = 0
        asked = handler.headers.get("Range")
        if asked and self.ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                return self.send(handler, 416)
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            handler.send_response(200)
        handler.send_header("Content-Length", str(len(data) - start))
        handler.end_headers()
        end, self.stop_after = len(data) if self.stop_after is None else start + self.stop_after, None
        handler.wfile.write(data[start:end])
        handler.close_connection = True
