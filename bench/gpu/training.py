"""Short trainings by the package's Trainer: time of a step, memory, checkpoints, resuming."""

import math
import os
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers

from bench.gpu.steps import BATCHES_A_STEP, REVELA, batches_of, models_of, peak
from revela.training.checkpoints import work_folder
from revela.training.loop import Trainer, training_arguments
from revela.training.trainlog import LOG, read_log

STEPS = 3


class _StopsAt(transformers.TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop |= state.global_step == self.step


def measure(device: torch.device, tiny: bool, stages: tuple[int, ...]) -> Iterator[dict[str, str]]:
    """Yield for each ZeRO stage a training, and the difference of one that was resumed."""
    for stage in stages:
        if stage and not find_spec("deepspeed"):
            yield {"ZeRO": str(stage), "s a step": "not run: deepspeed is missing"}
            continue
        losses = []
        for resumed in (False, True):
            with tempfile.TemporaryDirectory() as folder, work_folder(Path(folder), "", []) as work:
                if resumed:  # stopped before its last step
                    _train(device, tiny, stage, work, STEPS - 1)
                start = time.perf_counter()
                _train(device, tiny, stage, work, STEPS)
                seconds = time.perf_counter() - start
                log = read_log(work / LOG)
            assert [line["step"] for line in log] == [*range(1, STEPS + 1)], log
            losses.append(log[-1]["loss"])
            yield {
                "ZeRO": str(stage),
                "": "resumed" if resumed else "",
                "s a step": f"{log[-1]['seconds']:.2f}",
                "tokens/s": f"{log[-1]['tokens_per_second']:,.0f}",
                "s in all": f"{seconds:.1f}",
                "GB": peak(device),
                "last loss": f"{losses[-1]:.4f}",
            }
        assert math.isclose(*losses, rel_tol=1e-2), losses


def _train(device: torch.device, tiny: bool, stage: int, folder: Path, last: int) -> None:
    """Train to step `last` of `STEPS`, from the last checkpoint, and save one at each step."""
    size, together, batches = (2, 1, 2) if tiny else (16, 2, BATCHES_A_STEP)
    experiment: Any = SimpleNamespace(
        batches_per_step=batches,
        steps=STEPS,
        precision="bfloat16",
        learning_rate=1e-4,
        weight_decay=0.0,
        max_gradient_norm=1.0,
        seed=0,
        warmup="linear",
        warmup_steps=1,
        objective=REVELA,
    )
    if stage:
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    arguments = training_arguments(experiment, folder, together, stage)
    shape = "SmolLM2-135M" if tiny else "Llama-3.2-1B"
    _, causal, module = models_of(shape, device, tiny, "unfused" if stage else "")
    if not arguments.bf16:
        module.float()
    elif stage:  # as in training, which has no autocast then
        module.bfloat16()
    torch.manual_seed(0)
    batch = batches_of(size, together, causal.config.vocab_size, torch.device("cpu"), tiny)[0]
    batch = {name: value for name, value in batch.items() if value is not None}
    trainer = Trainer(
        experiment,
        model=module,
        args=arguments,
        data_collator=lambda _: dict(batch),
        train_dataset=[{}] * STEPS * batches,
    )
    trainer.add_callback(_StopsAt(last))
    trainer.run(checkpoint_minutes=0)
