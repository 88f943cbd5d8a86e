"""Notifiers: one message for a call that has failed, beside the program and never in its way."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import turnout.infra as infra
from tests.infra.programs import Model
from turnout.errors import UsageError
from turnout.infra import DeviceGroup, DingTalkNotifier, SlackNotifier, WebhookNotifier, on_group

GROUPS = [DeviceGroup("model", 4, "cuda")]


class Server:
    """A server of webhooks, that keeps what was posted."""

    def __init__(self, status: int = 200, answer: bytes = b'{"errcode": 0}') -> None:
        posted = self.posted = list[tuple[str, dict[str, Any]]]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                posted.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?access_token=hush"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def failing_program(notifier: Any, caplog: pytest.LogCaptureFixture) -> float:
    """How long it takes until the program has its own error."""
    infra.initialize("local", simulate=True, groups=GROUPS, notifier=notifier, name="run-7")
    result = on_group(Model, "model")().fail("CUDA out of memory")
    started = time.monotonic()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="CUDA out of memory"):
            result()
    return time.monotonic() - started


def test_a_call_that_failed_on_four_ranks_is_one_message_with_all_there_is_to_say(
    caplog: pytest.LogCaptureFixture,
) -> None:
    messages: list[str] = []
    failing_program(messages.append, caplog)
    infra.shutdown()
    (message,) = messages
    assert message.startswith("run-7: Model.fail has failed: RuntimeError\nrun: run-7\n")
    for told in (
        "call: Model.fail, group 'model', at tests/infra/test_notifiers.py:",
        "error: RuntimeError: [turnout driver caller: ",
        "raised in Model.fail on rank 0 of group 'model'",
        "on host ",
        "Traceback (most recent call last):",
        "raise RuntimeError(text)",
        "rank 3 has failed too",
    ):
        assert told in message


def test_a_constructor_that_fails_is_told_too() -> None:
    messages: list[str] = []

    @infra.remote_class()
    class Broken:
        def __init__(self) -> None:
            raise FileNotFoundError("weights.pt")

    infra.initialize("local", simulate=True, groups=GROUPS, notifier=messages.append)
    for build in (Broken, on_group(Broken, "model")):
        with pytest.raises(FileNotFoundError, match=r"weights\.pt"):
            build()
    infra.shutdown()
    assert [message.partition("\n")[0].partition(": ")[2] for message in messages] == [
        "Broken.__init__ has failed: FileNotFoundError"
    ] * 2


def test_a_notifier_that_is_slow_or_raises_neither_masks_nor_delays_the_error(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    took_s = failing_program(lambda text: release.wait(30), caplog)
    assert took_s < 2
    release.set()
    infra.shutdown()

    def fail(text: str) -> None:
        raise ValueError("no network")

    failing_program(fail, caplog)
    infra.shutdown()
    assert "the notifier has failed: ValueError: no network" in caplog.text


def test_webhooks_are_posted(server: Server) -> None:
    WebhookNotifier(server.url)("headline\ndetails")
    SlackNotifier(server.url)("headline\ndetails")
    assert [body for _, body in server.posted] == [
        {"text": "headline\ndetails"},
        {"text": "*headline*\n```details```"},
    ]


def test_dingtalk_is_signed_with_its_secret(server: Server) -> None:
    DingTalkNotifier(server.url, secret="SEC1")("headline\ndetails")
    ((path, body),) = server.posted
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)
    text = f"{query['timestamp'][0]}\nSEC1".encode()
    assert query["access_token"] == ["hush"]
    assert query["sign"] == [base64.b64encode(hmac.new(b"SEC1", text, hashlib.sha256).digest()).decode()]
    assert body["msgtype"] == "markdown"
    assert body["markdown"]["title"] == "headline"
    assert "details" in body["markdown"]["text"]


def test_what_is_secret_is_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    refusing, failing = Server(answer=b'{"errcode": 310000}'), Server(status=500)
    notifiers = [
        DingTalkNotifier(refusing.url, secret="SEC1"),
        WebhookNotifier(failing.url),
        SlackNotifier("http://127.0.0.1:1/hush"),
        WebhookNotifier("http://127.0.0.1:1/hush\x00"),
    ]
    with caplog.at_level(logging.DEBUG):
        for notifier in notifiers:
            failing_program(notifier, caplog)
            infra.shutdown()
            assert repr(notifier) == f"{type(notifier).__name__}('127.0.0.1')"
    refusing.close()
    failing.close()
    assert caplog.text.count("the notifier has failed") == 4
    assert "errcode 310000" in caplog.text
    assert "status 500" in caplog.text
    assert "hush" not in caplog.text
    assert "SEC1" not in caplog.text
    with pytest.raises(UsageError, match="http:// or https://") as caught:
        WebhookNotifier("ftp://user:hush@host")
    assert "hush" not in str(caught.value)
