"""An S3 server on loopback, moto's, that can be told to fail, to deny and to be slow; prints its port."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

logging.getLogger("werkzeug").setLevel(logging.ERROR)

Environ = dict[str, Any]
StartResponse = Callable[..., Any]

_ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{text}</Message></Error>'


class Moody:
    """A WSGI application around another, which it does not always ask."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.lock = threading.Lock()
        self.mood: dict[str, Any] = {}
        self.counts = {"seen": 0, "failed": 0, "denied": 0}

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/-mood":
            with self.lock:
                self.mood = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
                body = json.dumps(self.counts).encode()
            start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
            return [body]
        with self.lock:
            self.counts["seen"] += 1
            concerns = self.mood.get("method", environ["REQUEST_METHOD"]) == environ["REQUEST_METHOD"]
            is_due = "every" in self.mood and self.counts["seen"] % self.mood["every"] == 0
            fails = concerns and (self.mood.get("fail", 0) > 0 or is_due)
            denied = concerns and bool(self.mood.get("deny"))
            if fails:
                self.mood["fail"] = self.mood.get("fail", 0) - (not is_due)
                self.counts["failed"] += 1
            is_odd = self.counts["failed"] % 2
            self.counts["denied"] += denied
            delay = self.mood.get("delay_s", 0) if concerns else 0
        time.sleep(delay)
        if fails and is_odd:
            return _refuse(start_response, "500 Internal Server Error", "InternalError", "Please try again")
        if fails:
            return _refuse(start_response, "503 Service Unavailable", "ServiceUnavailable", "Please try again")
        if denied:
            return _refuse(start_response, "403 Forbidden", "InvalidAccessKeyId", "The key does not exist")
        answer: Iterable[bytes] = self.inner(environ, start_response)
        return answer


def _refuse(start_response: StartResponse, status: str, code: str, text: str) -> list[bytes]:
    body = _ERROR.format(code=code, text=text).encode()
    start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, Moody(DomainDispatcherApplication(create_backend_app)), threaded=True)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
