import os
import platform
import subprocess
from pathlib import Path

import numpy as np
import psutil
import pytest

import triplu_ray
from triplu_ray import provenance


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the module takes for its project's root."""
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "triplu_ray" / "provenance.py"))
    (tmp_path / "triplu_ray").mkdir()
    (tmp_path / "triplu_ray" / "code.py").write_text("1\n")
    return tmp_path


def git(checkout: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", *identity, *arguments],
        cwd=checkout,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def test_git_sha_is_the_commit_and_tells_of_changes(checkout: Path) -> None:
    git(checkout, "init", "--quiet")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "first")
    commit = git(checkout, "rev-parse", "HEAD")
    assert provenance.git_sha() == commit
    (checkout / "README.md").write_text("not code\n")
    assert provenance.git_sha() == commit
    (checkout / "triplu_ray" / "code.py").write_text("2\n")
    assert provenance.git_sha() == f"{commit}+"


def test_an_installed_package_has_no_git_sha(checkout: Path) -> None:
    assert not (checkout / ".git").exists()
    assert provenance.git_sha() is None


def test_a_broken_checkout_has_no_git_sha(checkout: Path) -> None:
    (checkout / ".git").mkdir()
    assert provenance.git_sha() is None


def test_no_git_sha_without_git(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / ".git").mkdir()
    monkeypatch.setenv("PATH", str(checkout))
    assert provenance.git_sha() is None


def test_versions() -> None:
    versions = provenance.versions()
    assert versions.keys() == {"triplu_ray", "python", "numpy", "pyarrow", "ray", "torch"}
    assert versions["triplu_ray"] == triplu_ray.__version__
    assert versions["python"] == platform.python_version()
    assert versions["numpy"] == np.__version__


def test_hardware_in_a_few_words() -> None:
    eager = provenance.hardware("cpu", 1, 4, compiled=False)
    assert eager.endswith(", 1 thread, cohort of 4, eager")
    assert len(eager) > len(", 1 thread, cohort of 4, eager")
    compiled = provenance.hardware("cpu", 2, 1, compiled=True)
    assert compiled.endswith(", 2 threads, cohort of 1, compiled")


def test_process_age_counts_from_the_start_of_the_process() -> None:
    age = provenance.process_age()
    assert 0 < age <= provenance.process_age() < 86_400


def test_peak_memory_is_in_mebibytes() -> None:
    resident = psutil.Process().memory_info().rss / (1 << 20)
    assert 0.95 * resident < provenance.peak_memory_mib() < 100 * resident
