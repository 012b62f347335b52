"""Train one experiment after the other in the processes of a launcher."""

import json
import os
import sys
from pathlib import Path

import torch
from accelerate import PartialState

from revela import cli
from revela.common.errors import RevelaError
from revela.config.training import Experiment
from revela.inbatch import losses
from revela.retriever.save import check_folder
from revela.training import trainer
from revela.training.objectives.revela import Revela


def diverge(rank: int) -> None:
    """Make the similarities of one process NaN in the second step."""
    original, calls = Revela.similarity, []

    def similarity(self: Revela, *inputs: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        found = original(self, *inputs)
        second = len(calls) == 1 + 4 // int(os.environ["WORLD_SIZE"])  # four batches per step
        return found * float("nan") if second and int(os.environ["RANK"]) == rank else found

    Revela.similarity = similarity


for job in json.loads(Path(sys.argv[1]).read_text()):
    losses._LOGITS_AT_A_TIME = job["logits_at_a_time"]
    if "diverging_rank" in job:
        diverge(job["diverging_rank"])
    settings = Experiment.model_validate(job["settings"])
    trainer.check_folder = check_folder if job.get("checked") else lambda *_: {}
    options = {"zero_stage": job["zero"], "gradient_checkpointing": job["gradient_checkpointing"]}
    try:
        trainer.train(settings, Path(job["data"]), Path(job["output"]), **options)
    except RevelaError as error:
        PartialState().destroy_process_group()
        cli._fail(f"revela: error: {error}")
cli.leave(0)
