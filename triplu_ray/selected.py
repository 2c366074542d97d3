"""What is done once, at the end, with the runs' best checkpoints: heldout loss, probes, keeping."""

import json
import math

import safetensors.torch
import torch

from triplu_ray.config import RunConfig
from triplu_ray.corpus import Corpus
from triplu_ray.members import Evaluation, Measurement
from triplu_ray.model import Decoder
from triplu_ray.probes import run_probes
from triplu_ray.probes.scoring import token_losses
from triplu_ray.train import CohortTrainer


def examine_selected(trainer: CohortTrainer, corpus: Corpus) -> None:
    """Score the heldout text and run the probes with each member's best parameters.

    What is found is added to the members' evaluations and measurements; the trainer's training is
    over then. Runs that never had a finite loss, and values that are no numbers, are left out.
    """
    trainer.optimizer.values.copy_(trainer.best_values)
    trainer.begin_evaluation([member.best_step or 0 for member in trainer.members])
    if corpus.heldout is not None:
        _score_heldout(trainer, corpus)
    probes = run_probes(
        trainer.model, trainer.config, corpus, trainer.validation, trainer.micro_batch_size
    )
    for probed in probes:
        for member, value in zip(trainer.members, probed.values.tolist(), strict=True):
            if member.best_step is not None and not math.isnan(value):
                where = (probed.probe, probed.group, member.best_step)
                row = Measurement(member.run_id, *where, value, probed.count)
                member.measurements.append(row)


def _score_heldout(trainer: CohortTrainer, corpus: Corpus) -> None:
    """One evaluation a member: every token but the first, scored once."""
    context_length, text = trainer.config.context_length, corpus.heldout
    assert text is not None
    losses = token_losses(trainer.model, text, context_length, trainer.micro_batch_size).mean(1)
    num_bytes = corpus.num_bytes(text[1:])
    bits_per_byte = num_bytes and (len(text) - 1) / num_bytes / math.log(2)
    for member, loss in zip(trainer.members, losses.tolist(), strict=True):
        if member.best_step is not None:
            best = next(row for row in member.evaluations if row.step == member.best_step)
            member.heldout = Evaluation(
                run_id=member.run_id,
                step=best.step,
                tokens=best.tokens,
                split="heldout",
                loss=loss,
                bits_per_byte=bits_per_byte and bits_per_byte * loss,
                train_loss=None,
                seconds=best.seconds,
            )


def model_bytes(trainer: CohortTrainer, member: int, vocab_size: int) -> bytes:
    """A member's parameters as they are now, with what `load_model` needs, as safetensors."""
    tensors = {
        name: parameter[member].detach().cpu().contiguous()
        for name, parameter in trainer.model.named_parameters()
    }
    metadata = {
        "config": trainer.configs[member].model_dump_json(),
        "vocab_size": str(vocab_size),
    }
    return safetensors.torch.save(tensors, metadata)


def load_model(content: bytes) -> tuple[Decoder, RunConfig]:
    """The decoder, of one member, that `model_bytes` kept, and its run's configuration."""
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size])["__metadata__"]
    config = RunConfig.model_validate_json(metadata["config"])
    shape = config.shape(int(metadata["vocab_size"]))
    model = Decoder([config.ffn], shape, config.initialization, config.precision)
    with torch.no_grad():
        for name, tensor in safetensors.torch.load(content).items():
            model.get_parameter(name)[0] = tensor
    return model, config
