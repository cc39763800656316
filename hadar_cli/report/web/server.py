"""Answers a browser on this computer: GET, two paths, both below a secret."""

from __future__ import annotations

import hmac
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hadar_cli.errors import HadarError, InputError
from hadar_cli.report.web.live_page import LivePage

HERE = "127.0.0.1"
_NAMES = (HERE, "localhost")
_IDLE_S = 15.0  # a connection that says nothing is closed
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address is the secret
    "X-Content-Type-Options": "nosniff",
}


class PageServer(ThreadingHTTPServer):
    """Serves one run's page at ``address``, which nobody can guess."""

    daemon_threads = True

    def __init__(self, live_page: LivePage, port: int = 0) -> None:
        self.live_page, self.token = live_page, secrets.token_urlsafe(24)
        try:
            super().__init__((HERE, port), _Answer)
        except OSError as error:
            raise InputError(
                f"port {port} cannot be used: {error.strerror}",
                field="--port",
                fix="name another, or leave it out: then a free one is found",
            ) from error

    @property
    def address(self) -> str:
        return f"http://{HERE}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that leaves in the middle of an answer is no news."""


class _Answer(BaseHTTPRequestHandler):
    server: PageServer
    timeout = _IDLE_S
    server_version, sys_version = "hadar", ""

    def do_GET(self) -> None:  # the name http.server asks for
        if not self._is_meant():
            self._send(HTTPStatus.FORBIDDEN, b"This page answers to its own address only.\n")
            return
        _, token, *rest = self.path.split("/") if self.path.startswith("/") else ("", "")
        is_known = hmac.compare_digest(token.encode(), self.server.token.encode())
        if not is_known or rest not in ([""], ["now"]):
            self._send(HTTPStatus.NOT_FOUND, b"There is nothing here.\n")
            return
        try:
            self._show(is_page=rest == [""])
        except HadarError as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode())

    def _is_meant(self) -> bool:
        """A page of another site can make its name point here; it cannot change what is asked."""
        names = {f"{name}:{self.server.server_port}" for name in _NAMES}
        return self.headers.get_all("Host", []) in [[name] for name in names]

    def _show(self, is_page: bool) -> None:
        if is_page:
            page = self.server.live_page.page().encode()
            self._send(HTTPStatus.OK, page, "text/html; charset=utf-8")
            return
        tag, moment = self.server.live_page.now()
        if self.headers.get("If-None-Match") == tag:
            self._send(HTTPStatus.NOT_MODIFIED, b"", tag=tag)
        else:
            self._send(HTTPStatus.OK, moment.encode(), "application/json", tag)

    def _send(
        self,
        status: HTTPStatus,
        body: bytes,
        kind: str = "text/plain; charset=utf-8",
        tag: str = "",
    ) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if tag:
            self.send_header("ETag", tag)
        if body:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a line would hold the address."""
