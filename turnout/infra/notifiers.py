"""Notifiers: whoever is to know that a remote call has failed is told so, beside the program and never in its way.

A notifier is any callable of one string. What it does is done on a thread of its own; if it is slow, fails or never
ends, the program's own error is neither hidden nor held up.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import logging
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from turnout.checks import check_number, check_text, refused
from turnout.infra.telling import tell

__all__ = ["DingTalkNotifier", "Notices", "Notifier", "SlackNotifier", "WebhookNotifier", "check_notifier"]

logger = logging.getLogger(__name__)

Notifier = Callable[[str], object]

_MOST_WAITING = 100
_LONGEST = 15_000  # characters; DingTalk takes 20,000 bytes
_CLOSE_S = 5.0


class WebhookNotifier:
    """Posts ``{"text": ...}`` as JSON.

    Args:
        webhook: where to; whatever is secret in it is never shown.
        timeout_s: for one message, after which it is given up.
    """

    def __init__(self, webhook: str, *, timeout_s: float = 5.0) -> None:
        check_text(f"{type(self).__name__}: webhook", webhook, "a URL")
        if urllib.parse.urlsplit(webhook).scheme not in ("http", "https"):
            raise refused(f"{type(self).__name__}: webhook", "...", "takes a URL that begins with http:// or https://")
        self._webhook = webhook
        self._timeout_s = check_number(f"{type(self).__name__}: timeout_s", timeout_s, above=0, unit="seconds")

    def __call__(self, text: str) -> None:
        """Post it.

        Raises:
            OSError: the other side does not answer, or not well; the text names its host alone.
        """
        request = urllib.request.Request(
            self._address(),
            json.dumps(self._message(text[:_LONGEST])).encode(),
            {"Content-Type": "application/json; charset=utf-8"},
        )
        failure = None
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                failure = self._refusal(response.read(1 << 16))
        except urllib.error.HTTPError as error:
            with error:
                failure = f"it answers with status {error.code}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            failure = f"{type(error).__name__}: {getattr(error, 'reason', None) or 'no answer that can be read'}"
        if failure is not None:  # outside of the handler, as the error there may show the address
            raise OSError(f"{self!r}: {failure}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({urllib.parse.urlsplit(self._webhook).hostname!r})"

    def _address(self) -> str:
        return self._webhook

    def _message(self, text: str) -> dict[str, Any]:  # Any: JSON
        return {"text": text}

    def _refusal(self, answer: bytes) -> str | None:
        """What is wrong by the answer's own word, if something is."""
        return None


class SlackNotifier(WebhookNotifier):
    """Posts to an incoming webhook of Slack's (https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks)."""

    def _message(self, text: str) -> dict[str, Any]:
        first, _, rest = text.partition("\n")
        return {"text": f"*{first}*\n```{rest}```" if rest else first}


class DingTalkNotifier(WebhookNotifier):
    """Posts to a robot of DingTalk's, signed if it has a secret (https://open.dingtalk.com/document/robots/).

    Args:
        webhook: of the robot.
        secret: it was given for signatures; never shown.
        timeout_s: for one message.
    """

    def __init__(self, webhook: str, secret: str | None = None, *, timeout_s: float = 5.0) -> None:
        super().__init__(webhook, timeout_s=timeout_s)
        self._secret = secret

    def _address(self) -> str:
        if self._secret is None:
            return self._webhook
        stamp = str(round(time.time() * 1000))
        digest = hmac.new(self._secret.encode(), f"{stamp}\n{self._secret}".encode(), hashlib.sha256).digest()
        signature = urllib.parse.urlencode({"timestamp": stamp, "sign": base64.b64encode(digest).decode()})
        joint = "&" if urllib.parse.urlsplit(self._webhook).query else "?"
        return f"{self._webhook}{joint}{signature}"

    def _message(self, text: str) -> dict[str, Any]:
        first, _, rest = text.partition("\n")
        return {"msgtype": "markdown", "markdown": {"title": first, "text": f"## {first}\n\n```\n{rest}\n```"}}

    def _refusal(self, answer: bytes) -> str | None:
        code = json.loads(answer or b"{}").get("errcode", 0)
        return f"it answers with errcode {code}" if code else None


def check_notifier(notifier: Notifier | None) -> None:
    """Refuse what cannot be called.

    Raises:
        UsageError: it cannot be.
    """
    if notifier is not None and not callable(notifier):
        raise refused("initialize(): notifier", notifier, "takes a callable of one string, such as SlackNotifier(...)")


class Notices:
    """The thread on which a notifier is called, one message after another.

    Args:
        notifier: is called with each.
    """

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._waiting: queue.Queue[str | Callable[[], str | None] | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def send(self, text: str | Callable[[], str | None]) -> None:
        """Have a message sent, or what something says on the thread; returns at once."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="turnout-notices", daemon=True)
                self._thread.start()
        try:
            self._waiting.put_nowait(text)
        except queue.Full:
            logger.warning("a notice was dropped, as %d wait for the notifier", _MOST_WAITING)

    def close(self, within_s: float = _CLOSE_S) -> None:
        """Send what waits, as far as there is time for it."""
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        thread.join(within_s)
        if thread.is_alive():
            logger.warning("the notifier has not ended within %g s, and what it has not sent is lost", within_s)

    def _run(self) -> None:
        while (text := self._waiting.get()) is not None:
            try:
                message = text() if callable(text) else text
                if message is not None:
                    self._notifier(message)
            except Exception as error:  # whatever it does: it is no failure of the program's
                tell(logger, logging.WARNING, f"the notifier has failed: {type(error).__name__}: {error}")
