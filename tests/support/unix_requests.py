"""The requests library over the daemon's socket."""

from __future__ import annotations

import socket
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool


class _Connection(HTTPConnection):
    def __init__(self, path: str, **options: Any) -> None:
        super().__init__("sandboxd", **options)
        self._path = path

    def _new_conn(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self.timeout if isinstance(self.timeout, int | float) else None)
        connection.connect(self._path)
        return connection


class _Pool(HTTPConnectionPool):
    def __init__(self, path: str) -> None:
        super().__init__("sandboxd")
        self._path = path

    def _new_conn(self) -> _Connection:  # type: ignore[override]
        return _Connection(self._path, timeout=self.timeout.connect_timeout)


class _Adapter(HTTPAdapter):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._pool = _Pool(path)

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> _Pool:
        return self._pool

    def close(self) -> None:
        self._pool.close()
        super().close()


def unix_session(path: str) -> requests.Session:
    """Every URL with http:// goes to this socket."""
    session = requests.Session()
    session.trust_env = False
    session.mount("http://", _Adapter(path))
    return session
