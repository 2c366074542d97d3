"""The Ray that a sweep runs on, and what its workers can do."""

import contextlib
import logging
import os
import socket
import warnings
from collections.abc import Iterator
from typing import Any

import ray

from triplu_ray.environment import worker_environment
from triplu_ray.errors import UserError
from triplu_ray.execution import Abilities, abilities
from triplu_ray.plan import Plan
from triplu_ray.sizing import Machine


@contextlib.contextmanager
def running_ray(plan: Plan) -> Iterator[None]:
    """Ray, quiet: connected to RAY_ADDRESS, or started here and stopped at the end."""
    resources = plan.space.header.resources
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
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        where = f"RAY_ADDRESS={address}: no Ray cluster answers" if address else "Ray did not start"
        raise UserError(f"{where}: {reason}") from error
    try:
        if not address:
            there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
            for key, asked in (("CPU", resources.cpu), ("GPU", resources.gpu)):
                if asked > there.get(key, 0):
                    raise UserError(
                        f"{plan.space.origin}: resources.{key.lower()}: expected at most what this "
                        f"machine has ({there.get(key, 0):g}), got {asked:g}"
                    )
        yield
    finally:
        ray.shutdown()


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


def worker_abilities(plan: Plan) -> Abilities | None:
    """What the workers can do; None before Ray is there, if they are on other machines.

    Raises UserError if it is less than the precision or `compile: on` needs.
    """
    runs = (*plan.missing, *plan.stand_ins)
    precisions = sorted({run.config.precision for run in runs})
    resources, device = plan.space.header.resources, device_of(plan)
    if "RAY_ADDRESS" not in os.environ:
        can = abilities(precisions, device)
    elif ray.is_initialized():
        ask = ray.remote(num_cpus=resources.cpu, num_gpus=resources.gpu)(abilities)
        can = ray.get(ask.remote(precisions, device))
    else:
        return None
    for precision, units in can.missing_units.items():
        raise UserError(f"{plan.space.origin}: precision: {precision} needs {units}")
    if plan.space.header.compile is True and can.missing_compiler:
        raise UserError(f"{plan.space.origin}: compile: on needs {can.missing_compiler}")
    return can


def device_of(plan: Plan) -> str:
    """Where a plan's cohorts are trained: `cuda` or `cpu`."""
    return "cuda" if plan.space.header.resources.gpu else "cpu"


def machine_of(plan: Plan, can: Abilities) -> Machine:
    """The cluster, as large as it is now, as the plan's cohorts see it."""
    resources = plan.space.header.resources
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    asked = {"CPU": resources.cpu, "GPU": resources.gpu}
    workers = min(int(there.get(key, 0) / share) for key, share in asked.items() if share)
    gpu_bytes = can.gpu_bytes and int(min(1.0, resources.gpu) * can.gpu_bytes)
    return Machine(max(1, workers), gpu_bytes)
