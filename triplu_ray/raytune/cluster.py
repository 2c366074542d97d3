"""The Ray that a sweep runs on, and what its workers can do."""

import contextlib
import logging
import os
import socket
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from rich.console import Console

from triplu_ray.environment import worker_environment
from triplu_ray.errors import UserError
from triplu_ray.execution import Abilities, abilities
from triplu_ray.model import Precision
from triplu_ray.plan import Plan
from triplu_ray.sizing import Machine
from triplu_ray.space import Granted, Resources

JOINING_SECONDS = 60.0
"""How long the first node may take to join: `ray up` is back before the machines have."""


@contextlib.contextmanager
def running_ray(origin: str, granted: Granted | None) -> Iterator[None]:
    """Ray, quiet: connected to RAY_ADDRESS, or started here and stopped at the end.

    `granted` is what a cohort gets of this machine, and None on a cluster; `origin` is what an
    error line names first.
    """
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {} if address else {"include_dashboard": False}
    warnings.filterwarnings("ignore", module="ray")
    if address:
        _check_reachable(address)
    try:
        ray.init(
            address=address or "local",
            runtime_env={"env_vars": worker_environment()},
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            **options,
        )
    except Exception as error:  # a start that takes too long raises no other class
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        where = f"RAY_ADDRESS={address}: no Ray cluster answers" if address else "Ray did not start"
        raise UserError(f"{where}: {reason}") from error
    # Ray prints what it hears of nodes that die; stdout is for data.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            if granted is not None:
                _check_enough(origin, granted)
            yield
        finally:
            ray.shutdown()


def _check_enough(origin: str, granted: Granted) -> None:
    there = _resources_there()
    for key, asked in granted._asdict().items():
        has = there.get(key.upper(), 0)
        if asked > has:
            raise UserError(
                f"{origin}: resources.{key}: expected at most what this machine has ({has:g}), "
                f"got {asked:g}"
            )


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes; a port that nobody listens on is known at once."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except OSError as error:
            raise UserError(
                f"RAY_ADDRESS={address}: no Ray cluster answers there: {error}"
            ) from error


def granted_there(origin: str, resources: Resources, console: Console) -> Granted:
    """What a cohort gets of the cluster; UserError if no node joins that would tell."""
    there, until = _resources_there(), time.monotonic() + JOINING_SECONDS
    if resources.gpu == "auto" and not _could_train(there):
        console.print(f"waits up to {JOINING_SECONDS:.0f} s for a node that could train")
        while not _could_train(there):
            if time.monotonic() > until:
                raise UserError(
                    f"{origin}: resources.gpu: auto: the cluster has no node yet that could train; "
                    "say how many GPUs a cohort shall have, or 0"
                )
            time.sleep(1)
            there = _resources_there()
    return resources.granted(gpus=bool(there.get("GPU")))


def _could_train(there: Mapping[str, float]) -> bool:
    return bool(there.get("GPU") or there.get("CPU"))


def worker_abilities(plan: Plan, granted: Granted) -> list[Abilities]:
    """What the workers of each of `kinds_of_shares` can do: of this machine, or of some node.

    Raises UserError if it is less than the precision or `compile: on` needs.
    """
    runs = (*plan.missing, *plan.stand_ins)
    precisions = sorted({run.config.precision for run in runs})
    found = [_abilities(precisions, share) for share in kinds_of_shares(plan, granted)]
    for can in found:
        for precision, units in can.missing_units.items():
            raise UserError(f"{plan.space.origin}: precision: {precision} needs {units}")
        if plan.space.header.compile is True and can.missing_compiler:
            raise UserError(f"{plan.space.origin}: compile: on needs {can.missing_compiler}")
    return found


def kinds_of_shares(plan: Plan, granted: Granted) -> list[Granted]:
    """What GPU cohorts get, and those on cores alone, if there are any."""
    helps = granted.gpu and plan.space.header.cpu_share
    return [granted, Granted(granted.cpu)] if helps else [granted]


def _abilities(precisions: Sequence[Precision], granted: Granted) -> Abilities:
    if "RAY_ADDRESS" not in os.environ:
        return abilities(precisions, granted.device)
    ask = ray.remote(num_cpus=granted.cpu, num_gpus=granted.gpu)(abilities)
    can: Abilities = ray.get(ask.remote(precisions, granted.device))
    return can


def machine_of(granted: Granted, can: Abilities) -> Machine:
    """The cluster, as large as it is now, as cohorts see it."""
    there = _resources_there()
    asked = {key.upper(): share for key, share in granted._asdict().items() if share}
    workers = min(int(there.get(key, 0) / share) for key, share in asked.items())
    gpu_bytes = can.gpu_bytes and int(min(1.0, granted.gpu) * can.gpu_bytes)
    return Machine(max(1, workers), gpu_bytes)


def _resources_there() -> dict[str, float]:
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return there
