"""An HTTP server of a test on this machine, with TLS or without, that serves while its block runs."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

_HOST = "127.0.0.1"


class LocalHttpServer:
    """`certificate_and_key`: a PEM file; without one there is no TLS."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], certificate_and_key: Path | None) -> None:
        self._server = ThreadingHTTPServer((_HOST, 0), handler)
        self._server.daemon_threads = True
        if certificate_and_key is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate_and_key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._scheme = "http" if certificate_and_key is None else "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def authority(self) -> str:
        return f"{_HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self.authority}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
