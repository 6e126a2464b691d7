"""A schema registry's HTTP answers, as a test wants them: also those that something in front of it gives."""

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from streaming.settings import SchemaRegistry

NOT_THERE = {"error_code": 40403, "message": "Schema 7 not found"}

Answer = tuple[int, bytes]
"""HTTP status and body."""


class RegistryServer:
    """A server with these answers by path, of which the last stays; others are 404, as a registry says it."""

    def __init__(self, answers: Mapping[str, list[Answer]]) -> None:
        self.asked = list[str]()
        asked = self.asked

        class RegistryHandler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                asked.append(path)
                left = answers.get(path, [(404, json.dumps(NOT_THERE).encode())])
                status, body = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("location", "/login")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, format: str, *arguments: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), RegistryHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.settings = SchemaRegistry(url=f"http://127.0.0.1:{self._server.server_port}")

    def __enter__(self) -> "RegistryServer":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(20)
