"""The rules of ARCHITECTURE.md and the promises of the documents, held against the code."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from triplu_ray.cli import _parser

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "triplu_ray"
FLOW = ["space", "plan", "raytune", "train", "store", "compare", "report"]
# Their place in the flow is that of the data; these call what stands below them.
CALLERS = {"raytune": {"train", "store"}}
MODULES = sorted(PACKAGE.rglob("*.py"))
DOCUMENTS = sorted(ROOT.glob("*.md"))


def imports(path: Path) -> set[str]:
    """Dotted names of everything that a file imports, at its top or within functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def test_only_raytune_imports_ray() -> None:
    importers = {
        path.parent.name
        for path in MODULES
        if any(name.split(".")[0] == "ray" for name in imports(path))
    }
    assert importers == {"raytune"}


@pytest.mark.parametrize("library", ["datasets", "tokenizers"])
def test_only_the_corpus_imports_what_a_gpu_machine_may_lack(library: str) -> None:
    """And there only functions do, so that characters need neither."""
    for path in MODULES:
        at_import = [
            node
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        top = {alias.name for node in at_import for alias in node.names}
        top |= {node.module or "" for node in at_import if isinstance(node, ast.ImportFrom)}
        assert library not in top, path
    importers = {path.parent.name for path in MODULES if library in imports(path)}
    assert importers == {"corpus"}


def test_who_does_not_search_never_waits_for_optuna() -> None:
    importers = [
        path for path in MODULES if any(n.split(".")[0] == "optuna" for n in imports(path))
    ]
    assert importers == [PACKAGE / "raytune" / "sampling.py"]
    for path in MODULES:
        at_import = [
            node.module
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ImportFrom)
        ]
        assert "triplu_ray.raytune.search" not in at_import, path


def test_who_only_reads_results_waits_for_no_library_that_is_slow_to_load() -> None:
    """`status` and `report` without figures: each of these takes longer than most answers."""
    slow = {"torch", "ray", "matplotlib", "scipy.stats"}
    code = f"import sys, triplu_ray.cli, triplu_ray.report; print(*{slow!r} & {{*sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("stage", FLOW)
def test_a_stage_imports_nothing_that_comes_after_it(stage: str) -> None:
    later = set(FLOW[FLOW.index(stage) + 1 :]) - CALLERS.get(stage, set())
    room = PACKAGE / stage
    for path in sorted(room.glob("*.py")) if room.is_dir() else [PACKAGE / f"{stage}.py"]:
        used = {name.split(".")[1] for name in imports(path) if name.startswith("triplu_ray.")}
        assert not used & later, path


def test_nothing_but_the_command_line_imports_the_command_line() -> None:
    assert not [path for path in MODULES if "triplu_ray.cli" in imports(path)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_files_stay_readable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_commands_of_the_readme_are_commands() -> None:
    lines = re.findall(r"^ {4}.*?(triplu-ray .+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    commands = [shlex.split(line, comments=True)[1:] for line in lines]
    told = {"plan", "sweep", "report", "variants", "bench", "status"}
    assert {words[0] for words in commands} == told
    for words in commands:
        options = _parser().parse_args(words)
        if getattr(options, "space", None):
            assert (ROOT / options.space).exists()


def test_every_space_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    for path in (ROOT / "search_spaces").glob("*.yaml"):
        assert f"(search_spaces/{path.name})" in text, path.name
