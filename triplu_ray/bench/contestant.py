"""A process that trains one model in one way whenever it is told to."""

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from triplu_ray import provenance
from triplu_ray.bench.subjects import Mode, Subject, products
from triplu_ray.corpus import Corpus, OpaqueTokens
from triplu_ray.environment import worker_environment
from triplu_ray.execution import captured
from triplu_ray.plan import Cohort, CorpusFacts, PlannedRun
from triplu_ray.reference import ReferenceDecoder, train_step
from triplu_ray.train import CohortTrainer


class Contestant:
    """A process that trains so many steps, or multiplies what they would, when it is told to."""

    def __init__(self, subject: Subject, mode: Mode, device: str, steps: int) -> None:
        self._name = f"{subject.name}: {mode.name}"
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        before = dict(os.environ)
        os.environ.update({} if mode.plain else worker_environment())  # read at the start
        try:
            arguments = (other, subject, mode, device, steps)
            self._process = context.Process(target=_serve, args=arguments)
            self._process.start()
            other.close()  # so that its death ends the pipe
        finally:
            os.environ.clear()
            os.environ.update(before)
        self._facts: dict[str, float] = self._receive()
        self.ask("steps")  # the first ones allocate

    def tell(self, task: str) -> None:
        """Begin with `steps` or `products`."""
        self._pipe.send(task)

    def hear(self) -> float:
        """Seconds that it took."""
        seconds: float = self._receive()
        return seconds

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join()
            code = self._process.exitcode
            raise RuntimeError(f"{self._name}: the process has ended, exit code {code}") from error

    def ask(self, task: str) -> float:
        """Both."""
        self.tell(task)
        return self.hear()

    def end(self) -> dict[str, float]:
        """Let it go; what is known of the process. It may have died, the others go on."""
        with suppress(OSError, RuntimeError):
            self._facts["peak_memory_mib"] = self.ask("end")
        self._process.join()
        return self._facts


def _serve(pipe: Connection, subject: Subject, mode: Mode, device: str, steps: int) -> None:
    torch.set_num_threads(1)
    step, compile_seconds = (_plain_loop if mode.plain else _engine)(subject, mode, device)

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    pipe.send(
        {
            "start_seconds": provenance.process_age() - compile_seconds,
            "compile_seconds": compile_seconds,
        }
    )
    tasks = {"steps": step}
    peak_memory_mib = 0.0
    while (task := pipe.recv()) != "end":
        if task == "products" and task not in tasks:
            peak_memory_mib = provenance.peak_memory_mib()  # that of training, not of what follows
            tasks[task] = _bare_products(subject, mode, device)
            tasks[task]()  # the first of each size sets up the library
        wait()
        started = time.perf_counter()
        for _ in range(steps):
            tasks[task]()
        wait()
        pipe.send(time.perf_counter() - started)
    pipe.send(peak_memory_mib)


Loop = tuple[Callable[[], object], float]
"""A step, and the seconds spent on compiling."""


def _engine(subject: Subject, mode: Mode, device: str) -> Loop:
    trainer = endless_trainer(subject, mode, device)
    started = time.perf_counter()
    trainer.prepare()
    return trainer.train_step, time.perf_counter() - started


def endless_trainer(
    subject: Subject, mode: Mode, device: str, *, capture: bool = True
) -> CohortTrainer:
    """A cohort of so many seeds that does not end, on random tokens."""
    endless = {"num_steps": 1_000_000_000, "precision": mode.precision}
    config = subject.config.model_copy(update=endless)
    facts = CorpusFacts(subject.vocab_size, "")
    runs = tuple(
        PlannedRun(config.model_copy(update={"seed": seed}), facts) for seed in range(mode.members)
    )
    text = _random_text(subject)
    return CohortTrainer(Cohort(runs), text, device, compiled=mode.compiled, capture=capture)


def _plain_loop(subject: Subject, _mode: Mode, device: str) -> Loop:
    config = subject.config
    tokens = torch.from_numpy(_random_text(subject).train.astype(np.int64)).to(device)
    model = ReferenceDecoder(config.ffn, subject.shape).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )

    def step() -> None:
        starts = torch.randint(len(tokens) - config.context_length, (config.batch_size,))
        windows = torch.stack([tokens[s : s + config.context_length + 1] for s in starts.tolist()])
        train_step(model, optimizer, windows[:, :-1], windows[:, 1:])

    return step, 0.0


def _bare_products(subject: Subject, mode: Mode, device: str) -> Callable[[], None]:
    dtype = torch.bfloat16 if mode.precision == "bf16" else torch.float32
    sizes = products(subject.shape, subject.config.ffn, subject.config.batch_size)
    factors = {
        (count, rows, inner, columns): (
            torch.randn(count * mode.members, rows, inner, device=device).to(dtype),
            torch.randn(count * mode.members, inner, columns, device=device).to(dtype),
        )
        for count, rows, inner, columns in set(sizes)
    }

    def multiply() -> None:
        for size in sizes:
            left, right = factors[size]
            if len(left) == 1:
                torch.mm(left[0], right[0])
            else:
                torch.bmm(left, right)

    # On a GPU so many launches one by one would last longer than the products.
    return captured(multiply, []) if device == "cuda" else multiply


def _random_text(subject: Subject) -> Corpus:
    tokens = np.random.default_rng(1).integers(subject.vocab_size, size=100_000).astype(np.uint16)
    tokenizer = OpaqueTokens("random", subject.vocab_size)
    return Corpus(tokens, tokens[:20_000], tokenizer, "", "random tokens")
