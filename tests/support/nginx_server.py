"""A real web server on loopback: nginx with a folder of static files, plain and over TLS."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.05
_CONFIG = """
daemon off;
worker_processes 1;
pid {home}/nginx.pid;
error_log {home}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    default_type application/octet-stream;
    sendfile on;
    keepalive_requests 1000000;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    root {root};
    server {{ listen 127.0.0.1:{port}; listen [::1]:{port}; }}
    server {{
        listen {tls_port} ssl;
        ssl_certificate {home}/tls.crt;
        ssl_certificate_key {home}/tls.key;
        ssl_protocols TLSv1.3;
    }}
}}
"""


def find_nginx() -> str | None:
    """Path of the nginx program; Debian puts it where only root's PATH looks."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class NginxServer:
    """Use inside ``with``.

    Args:
        root: the folder whose files are given.

    Attributes:
        root: as given.
        url: of the folder, over http.
        tls_url: of the folder, over https.
        certificate: file with the certificate to trust.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._home = Path(tempfile.mkdtemp(prefix="nginx-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._port, self._tls_port = _free_ports(2)
        self.url = f"http://127.0.0.1:{self._port}"
        self.tls_url = f"https://127.0.0.1:{self._tls_port}"
        self.certificate = self._home / "tls.crt"

    @property
    def port(self) -> int:
        """Of the plain server, on 127.0.0.1 and on ::1."""
        return self._port

    def __enter__(self) -> Self:
        program = find_nginx()
        assert program is not None
        make_certificate(self._home)
        config = self._home / "nginx.conf"
        config.write_text(
            _CONFIG.format(
                home=self._home, root=self.root, port=self._port, tls_port=self._tls_port
            )
        )
        # Its workers would run as nobody, who may not search the folders of tests.
        user = ["-g", "user root;"] if os.geteuid() == 0 else []
        self._process = subprocess.Popen(
            [program, "-p", str(self._home), "-c", str(config), *user],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the server and removes its files."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        shutil.rmtree(self._home, ignore_errors=True)

    def _await_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._tls_port), timeout=1).close()
            except OSError:
                pass
            else:
                return
            try:
                status = self._process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
                status = None
            log = self._home / "error.log"
            told = log.read_text() if log.exists() else ""
            raise RuntimeError(f"nginx did not start (status {status}): {told}")


def make_certificate(folder: Path) -> None:
    """``tls.crt`` and ``tls.key`` for 127.0.0.1 and localhost, signed by themselves."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")),
            *("-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
