"""What a store makes of files that are broken, or go away while they are read."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fabricate import curve, planned_run, stored_run

from triplu_ray.store import SCHEMAS, Store, parquet_bytes
from triplu_ray.upkeep import merge


def a_run(seed: int, loss: float = 1.5, **row: Any) -> dict[str, Any]:
    return stored_run(planned_run("triplu", seed), loss, **row)


def write(store: Store, *runs: dict[str, Any]) -> None:
    for run in runs:
        store.write_run(run, curve(run, num_evals=4))


def damaged_contents() -> dict[str, bytes]:
    """A table in every state between nothing and whole that a crash or a disk may leave."""
    whole = parquet_bytes(pa.Table.from_pylist([a_run(1)], SCHEMAS["runs"]))
    return {
        "empty": b"",
        "zeros": bytes(len(whole)),
        "no table": b"PAR1 not really",
        "json": b'{"run_id": "x", "seed": 1}',
        "cut": whole[: len(whole) // 2],
        "without the last byte": whole[:-1],
    }


@pytest.mark.parametrize("kind", damaged_contents())
@pytest.mark.parametrize("table", ["runs", "evals", "probes"])
def test_a_damaged_table_is_left_out_and_named_once(
    store: Store, capsys: pytest.CaptureFixture[str], table: str, kind: str
) -> None:
    run = a_run(1)
    write(store, run)
    folder = Path(store.location, table)
    folder.mkdir(exist_ok=True)
    broken = folder / "broken.parquet"
    broken.write_bytes(damaged_contents()[kind])
    # Unfinished runs' evaluations and probes are not even opened: this one has a row in `runs`.
    if table != "runs":
        store.write_run({**a_run(2), "run_id": "broken"}, [])
        broken.write_bytes(damaged_contents()[kind])
    expected = [run["run_id"]] if table == "runs" else sorted([run["run_id"], "broken"])
    for _ in range(2):
        assert store.read_runs()["run_id"].to_pylist() == expected
        assert store.read_evals()["run_id"].unique().to_pylist() == [run["run_id"]]
        assert store.read_probes().num_rows == 0
    assert list(store.results()) == expected
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{broken}: damaged, left out: ")


def test_no_bit_of_the_columns_changes_unnoticed(store: Store) -> None:
    run = a_run(1)
    write(store, run)
    file = Path(store.location, "runs", f"{run['run_id']}.parquet")
    whole, rows = file.read_bytes(), store.read_runs().to_pylist()
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    for position in range(4, len(whole) - footer, 61):
        flipped = bytes([whole[position] ^ 1])
        file.write_bytes(whole[:position] + flipped + whole[position + 1 :])
        # Noticed, or of no consequence: of a page's own statistics, say.
        assert store.read_runs().to_pylist() in ([], rows)


def test_a_damaged_record_is_left_out_and_named(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.write_record("spaces/a/1", {"n": 1})
    broken = Path(store.location, "spaces", "a", "2.json")
    broken.write_text("{")
    assert store.read_records("spaces") == [{"n": 1}]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{broken}: damaged, left out: expected JSON: ")


def test_a_checkpoint_is_set_aside_under_a_name_that_says_so(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store.write_checkpoint("c", b"half a")
    store.set_aside_checkpoint("c", "it ends too early")
    assert store.read_checkpoint("c") is None
    (aside,) = Path(store.location, "checkpoints").iterdir()
    assert re.fullmatch(r"c\.damaged-\d{8}T\d{6}\.safetensors", aside.name)
    assert aside.read_bytes() == b"half a"
    assert f"c.safetensors: damaged: it ends too early; set aside as {aside.name}" in (
        capsys.readouterr().err
    )


def test_a_file_that_is_merged_while_it_is_read_is_found_where_it_went(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [a_run(seed) for seed in (1, 2, 3)]
    write(store, *runs)
    with monkeypatch.context() as meanwhile:
        original = Store._paths

        def paths(self: Store, *arguments: Any) -> list[str]:
            found = original(self, *arguments)
            meanwhile.setattr(Store, "_paths", original)
            assert merge(Store(self.location)) == 3
            return found

        meanwhile.setattr(Store, "_paths", paths)
        assert store.read_runs().num_rows == 3
