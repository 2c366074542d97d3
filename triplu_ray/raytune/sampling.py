"""Optuna's samplers, made to suggest the same after an interruption as without one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler
from optuna.study import Study as OptunaStudy
from optuna.trial import FrozenTrial, TrialState

from triplu_ray.config import NUMBERS
from triplu_ray.search import Search, Suggestion

STARTUP_SUGGESTIONS = 5
"""Drawn at random before tpe and gp go by results; Optuna's ten are most of a small search."""

DIGITS = 3
"""Significant digits of a suggested value: near values are then equal ones, and equal runs."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


class SeededAnew(BaseSampler):
    """A sampler whose every suggestion has a seed of its own, which its number decides.

    So a suggestion depends on those before it and on nothing else that happened in this process.
    `recorded` are suggestions by number, from 1, that were made before: they are sampled again, for
    whatever the sampler notes of it, but stay as they were. More may be added to it.
    """

    def __init__(self, search: Search, recorded: Mapping[int, Suggestion]) -> None:
        self._search = search
        self._recorded = recorded
        self._current: tuple[int, BaseSampler] | None = None

    def _sampler(self, trial: FrozenTrial) -> BaseSampler:
        if self._current is None or self._current[0] != trial.number:
            sequence = np.random.SeedSequence((self._search.seed, trial.number))
            seed = int(sequence.generate_state(1)[0])
            self._current = trial.number, make_sampler(self._search.sampler, seed)
        return self._current[1]

    def _value(self, trial: FrozenTrial, key: str, value: Any, of: BaseDistribution) -> Any:
        if trial.number + 1 in self._recorded:
            return self._recorded[trial.number + 1].values[key]
        if isinstance(of, FloatDistribution):
            return min(max(float(f"{value:.{DIGITS}g}"), of.low), of.high)
        return value

    def infer_relative_search_space(
        self, study: OptunaStudy, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """See Optuna."""
        return self._sampler(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: OptunaStudy, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """See Optuna."""
        values = self._sampler(trial).sample_relative(study, trial, search_space)
        return {k: self._value(trial, k, value, search_space[k]) for k, value in values.items()}

    def sample_independent(
        self,
        study: OptunaStudy,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """See Optuna."""
        asked = study, trial, param_name, param_distribution
        value = self._sampler(trial).sample_independent(*asked)
        return self._value(trial, param_name, value, param_distribution)

    def before_trial(self, study: OptunaStudy, trial: FrozenTrial) -> None:
        """See Optuna."""
        self._sampler(trial).before_trial(study, trial)

    def after_trial(
        self,
        study: OptunaStudy,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """See Optuna."""
        self._sampler(trial).after_trial(study, trial, state, values)


def make_sampler(name: str, seed: int) -> BaseSampler:
    """Optuna's sampler of a name in a space file."""
    if name == "tpe":
        return TPESampler(seed=seed, n_startup_trials=STARTUP_SUGGESTIONS)
    if name == "gp":
        return GPSampler(seed=seed, n_startup_trials=STARTUP_SUGGESTIONS)
    if name == "cmaes":
        return CmaEsSampler(seed=seed, warn_independent_sampling=False)
    return RandomSampler(seed=seed)


def distributions(search: Search, keys: Sequence[str]) -> dict[str, BaseDistribution]:
    """The ranges of some keys, as Optuna has them."""
    kinds = {int: IntDistribution, float: FloatDistribution}
    ranges = {key: search.keys[key] for key in keys}
    return {key: kinds[NUMBERS[key]](of.low, of.high, log=of.log) for key, of in ranges.items()}
