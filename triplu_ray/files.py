"""Files below one folder or in one bucket: whole or absent, and tried again where a fault may pass.

What is tried again, how often and after how long is decided here, for all that the store does.
"""

import contextlib
import errno
import os
import random
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow.fs as pafs

from triplu_ray.errors import UserError, reason

Result = TypeVar("Result")

PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds between attempts; a bucket's client makes some of its own, for 6 seconds each time."""

_PASSING_ERRORS = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EDQUOT,  # somebody may make room
    errno.EHOSTUNREACH,
    errno.EINTR,
    errno.EIO,
    errno.EMFILE,
    errno.ENETUNREACH,
    errno.ENFILE,
    errno.ENOSPC,
    errno.ESTALE,
    errno.ETIMEDOUT,
}
_PASSING_ANSWERS = re.compile(
    r"HTTP status (408|429|5\d\d)|SLOW_DOWN|THROTTL|INTERNAL_(FAILURE|ERROR)|SERVICE_UNAVAILABLE"
    r"|REQUEST_TIME(OUT|_TOO)|NETWORK_CONNECTION|curlCode|[Tt]imed? ?out"
)

_CREDENTIALS = re.compile(
    r"s3://[^/?]*@"  # a key alone
    r"|://[^/?]*:(?!\d+/)[^?]*@"  # a user and a password, which may hold a slash; no port
    r"|://.*\?.*(key|secret|token|password|sig)[^=&]*=",
    re.IGNORECASE,
)


def may_pass(error: OSError) -> bool:
    """Whether the same attempt may succeed later: a busy service is, a missing right is not.

    A bucket's errors have no number, only words.
    """
    if error.errno is not None:
        return error.errno in _PASSING_ERRORS
    return _PASSING_ANSWERS.search(str(error)) is not None


def to_stderr(text: str) -> None:
    """Tell a line where no display is in the way."""
    sys.stderr.write(f"{text}\n")


class Found(NamedTuple):
    """A file's path below the root, its size in bytes, and when it was written, in seconds."""

    path: str
    size: int
    modified: float


class Files:
    """A folder or bucket, given as a path or URI; paths below it are relative.

    `location` means the same place from any directory. `tell` receives a line whenever something
    is tried again. All methods raise UserError for what does not pass, except that a file that is
    not there is FileNotFoundError.
    """

    def __init__(self, location: str, tell: Callable[[str], None]) -> None:
        if _CREDENTIALS.search(location):
            # Locations are printed, and stand in records: this line must not have it either.
            raise UserError(
                "store: expected a URI without credentials; they belong in the environment "
                "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, say) or the machine's own role"
            )
        try:
            if "://" in location:
                self.system, self.root = pafs.FileSystem.from_uri(location)
                if not self.root:
                    raise ValueError("it names no bucket")
            else:
                self.system, self.root = pafs.LocalFileSystem(), str(Path(location).absolute())
            self.is_local = isinstance(self.system, pafs.LocalFileSystem)
            self.location = self.root if self.is_local else location
            # For many small files: what asks a bucket waits, what reads a folder computes.
            self.threads = 2 if self.is_local else 16
            self._tell = tell
            found = self.patiently(lambda: self.system.get_file_info(self.root)).type
        except (ValueError, OSError) as error:
            raise UserError(
                f"store {location!r}: expected a folder or a URI: {reason(error)}"
            ) from error
        if found == pafs.FileType.File:
            raise UserError(f"store {location!r}: expected a folder, found a file")

    def patiently(self, attempt: Callable[[], Result]) -> Result:
        """The result of an attempt, repeated after growing pauses while its error may pass."""
        for pause in PAUSES:
            try:
                return attempt()
            except OSError as error:
                if not may_pass(error):
                    raise
                self._tell(f"store {self.root}: {reason(error)}; again in {pause:g} s")
            # Workers that were turned away together should not come back together.
            time.sleep(pause * random.uniform(0.5, 1.5))
        return attempt()

    def listed(self, folder: str, ending: str = "", *, hidden: bool = False) -> list[Found]:
        """The visible files below a folder, or the hidden ones, in order of their paths."""
        selector = pafs.FileSelector(f"{self.root}/{folder}", recursive=True, allow_not_found=True)
        found = self._try("list", folder, lambda: self.system.get_file_info(selector))
        files = [
            self._found(info)
            for info in found
            if info.type == pafs.FileType.File
            and info.base_name.endswith(ending)
            and info.base_name.startswith(".") == hidden
        ]
        return sorted(files)

    def find(self, *paths: str) -> list[Found | None]:
        """Each path's file, or None."""
        if not paths:
            return []
        full = [f"{self.root}/{path}" for path in paths]
        found = self._try("look for", paths[0], lambda: self.system.get_file_info(full))
        return [self._found(i) if i.type == pafs.FileType.File else None for i in found]

    def _found(self, info: Any) -> Found:
        path = str(info.path).removeprefix(f"{self.root}/")
        return Found(path, info.size, info.mtime_ns / 1e9)

    def read(self, path: str) -> bytes:
        """A file's content."""

        def attempt() -> bytes:
            with self.system.open_input_stream(f"{self.root}/{path}") as stream:
                content: bytes = stream.read()
            return content

        return self._try("read", path, attempt, may_be_absent=True)

    def write(self, path: str, content: bytes, *, durable: bool = True) -> None:
        """Write a file, or replace it; not `durable` spares the wait for the disk."""

        def attempt() -> None:
            if self.is_local:
                write_atomically(Path(self.root, path), content, durable=durable)
                return
            with self.system.open_output_stream(f"{self.root}/{path}") as stream:
                stream.write(content)

        self._try("write", path, attempt)

    def move(self, path: str, new: str) -> None:
        """Give a file another name."""
        full, new_full = f"{self.root}/{path}", f"{self.root}/{new}"
        self._try("move", path, lambda: self.system.move(full, new_full), may_be_absent=True)

    def delete(self, path: str) -> None:
        """Delete a file, if it is there."""
        full = f"{self.root}/{path}"
        with contextlib.suppress(FileNotFoundError):
            self._try("delete", path, lambda: self.system.delete_file(full), may_be_absent=True)

    def now(self) -> float:
        """The time by the clock that stamps the files, which need not be this machine's; seconds.

        It is that of a file written for the purpose.
        """
        path = f"running/.clock-{uuid.uuid4().hex}"
        self.write(path, b"", durable=False)
        (file,) = self.find(path)
        self.delete(path)
        assert file is not None
        return file.modified

    def _try(
        self, verb: str, path: str, attempt: Callable[[], Result], *, may_be_absent: bool = False
    ) -> Result:
        try:
            return self.patiently(attempt)
        except OSError as error:
            if may_be_absent and isinstance(error, FileNotFoundError):
                raise
            raise UserError(
                f"store {self.location!r}: cannot {verb} {path}: {reason(error)}"
            ) from error


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a local file so that it is either absent, the old one, or whole, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
