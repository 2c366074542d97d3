import contextlib
import errno
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Command

from triplu_ray.errors import UserError
from triplu_ray.files import _CREDENTIALS, PAUSES, Files, may_pass, write_atomically


class Faults:
    """Errors that come first, and the pauses that were made because of them."""

    def __init__(self, *errors: OSError) -> None:
        self.errors = list(errors)
        self.attempts = 0
        self.pauses: list[float] = []

    def __call__(self) -> str:
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr(time, "sleep", made.append)
    return made


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def files(tmp_path: Path, told: list[str]) -> Files:
    return Files(str(tmp_path / "store"), told.append)


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("fault", "passes"),
    [
        (error(errno.ENOSPC), True),
        (error(errno.EDQUOT), True),
        (error(errno.ETIMEDOUT), True),
        (error(errno.EIO), True),
        (error(errno.ESTALE), True),
        (error(errno.EACCES), False),
        (error(errno.EPERM), False),
        (error(errno.EROFS), False),
        (error(errno.ENOTDIR), False),
        (error(errno.ENOENT), False),
        # What pyarrow says for a bucket has words only.
        (OSError("When getting ...: AWS Error UNKNOWN (HTTP status 503) during HeadObject"), True),
        (OSError("AWS Error SLOW_DOWN during PutObject operation: Reduce your rate"), True),
        (OSError("AWS Error NETWORK_CONNECTION ...: curlCode: 28, Timeout was reached"), True),
        (OSError("AWS Error INTERNAL_FAILURE during UploadPart operation: no"), True),
        (OSError("AWS Error UNKNOWN (HTTP status 429) during PutObject operation"), True),
        (OSError("AWS Error ACCESS_DENIED during CreateMultipartUpload operation: no"), False),
        (OSError("AWS Error NO_SUCH_BUCKET during PutObject operation"), False),
        (OSError("AWS Error UNKNOWN (HTTP status 403) during HeadObject operation"), False),
    ],
)  # fmt: skip
def test_what_may_pass(fault: OSError, passes: bool) -> None:
    assert may_pass(fault) == passes


def test_what_passes_is_tried_again_after_growing_pauses(
    files: Files, pauses: list[float], told: list[str]
) -> None:
    attempt = Faults(*[error(errno.ENOSPC)] * len(PAUSES))
    assert files.patiently(attempt) == "done"
    assert attempt.attempts == len(PAUSES) + 1
    for pause, planned in zip(pauses, PAUSES, strict=True):
        assert 0.5 * planned <= pause <= 1.5 * planned
    assert told == [f"store {files.root}: No space left on device; again in {pause:g} s"
                    for pause in PAUSES]  # fmt: skip


def test_what_does_not_pass_in_the_end_is_raised(files: Files, pauses: list[float]) -> None:
    attempt = Faults(*[error(errno.ENOSPC)] * 99)
    with pytest.raises(OSError, match="No space left"):
        files.patiently(attempt)
    assert attempt.attempts == len(PAUSES) + 1
    assert len(pauses) == len(PAUSES)


def test_what_cannot_pass_is_raised_at_once(
    files: Files, pauses: list[float], told: list[str]
) -> None:
    attempt = Faults(error(errno.EACCES))
    with pytest.raises(PermissionError):
        files.patiently(attempt)
    assert (attempt.attempts, pauses, told) == (1, [], [])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_rights_is_a_mistake(files: Files, pauses: list[float]) -> None:
    folder = Path(files.root, "runs")
    folder.mkdir(parents=True)
    folder.chmod(0o555)
    with pytest.raises(UserError, match=r"cannot write runs/x: Permission denied"):
        files.write("runs/x", b"")
    assert pauses == []


@contextlib.contextmanager
def small_disk() -> Iterator[None]:
    """The system lets no file of this process grow beyond 4 KiB, not even pytest's output."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_write_that_breaks_off_leaves_nothing(files: Files) -> None:
    """The system itself ends the write after 4 KiB of 8."""
    files.write("runs/x", b"old")
    with small_disk(), pytest.raises(UserError, match=r"cannot write runs/x: File too large"):
        files.write("runs/x", bytes(8192))
    assert files.read("runs/x") == b"old"
    assert [path.name for path in Path(files.root, "runs").iterdir()] == ["x"]


def test_a_failed_write_keeps_the_old_file_and_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "new" / "file"
    write_atomically(file, b"old")
    with monkeypatch.context() as failing:
        failing.setattr(Path, "replace", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(file.parent.iterdir()) == [file]
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new"


def test_what_is_listed_has_path_size_and_time(files: Files) -> None:
    before = time.time()
    files.write("runs/b.parquet", b"12345")
    files.write("runs/a.parquet", b"")
    files.write("runs/.hidden.parquet", b"")
    files.write("runs/a.txt", b"")
    first, second = files.listed("runs", ".parquet")
    assert (first.path, first.size) == ("runs/a.parquet", 0)
    assert (second.path, second.size) == ("runs/b.parquet", 5)
    assert before - 1 < first.modified < time.time() + 1
    assert files.listed("nowhere", "") == []
    assert files.find("runs/a.parquet", "runs/none", "runs") == [first, None, None]
    assert files.find() == []


@pytest.mark.parametrize(
    "location",
    [
        "s3://OPEN:SESAME@bucket/sweeps",
        "s3://OPEN@bucket",
        "s3://OPEN:SES/AME@bucket",
        "s3://bucket/sweeps?access_key=OPEN&secret_key=SESAME",
        "S3://OPEN:SESAME@bucket",
        "abfss://:SESAME@account.dfs.core.windows.net/container",
        "abfss://container@account.dfs.core.windows.net/sweeps?client_secret=SESAME",
    ],
)
def test_credentials_in_a_location_are_refused_and_not_told(
    command: Command, location: str
) -> None:
    """Nor written anywhere: a location stands in records and in workers' errors."""
    for words in (["plan", "space.yaml"], ["sweep", "space.yaml"], ["status"], ["report"]):
        code, stdout, stderr = command(*words, "--store", location)
        assert (code, stdout) == (2, "")
        (line,) = stderr.splitlines()
        assert "expected a URI without credentials; they belong in the environment" in line
        assert "OPEN" not in line
        assert "SES" not in line
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize(
    "location",
    [
        "s3://bucket/me@home?region=eu-central-1&endpoint_override=127.0.0.1:9000&scheme=http",
        "abfss://container@account.dfs.core.windows.net/sweeps",
        "hdfs://namenode:8020/users/me@home",
        "results:1/me@home?token=",
    ],
)
def test_what_only_looks_like_credentials_is_not_refused(location: str) -> None:
    assert not _CREDENTIALS.search(location)


def test_what_is_absent_is_told_from_what_fails(files: Files) -> None:
    with pytest.raises(FileNotFoundError):
        files.read("runs/none")
    with pytest.raises(FileNotFoundError):
        files.move("runs/none", "runs/new")
    files.delete("runs/none")
    files.write("runs/x", b"1")
    files.move("runs/x", "runs/y")
    assert files.find("runs/x") == [None]
    assert files.read("runs/y") == b"1"
    files.delete("runs/y")
    assert files.find("runs/y") == [None]


def test_now_is_what_the_files_are_stamped_with(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)  # a clock that is wrong
    files.write("running/a", b"")
    (file,) = files.find("running/a")
    assert file is not None
    assert 0 <= files.now() - file.modified < 5
    assert [path.name for path in Path(files.root, "running").iterdir()] == ["a"]
