"""`revela train`."""

import gc
from pathlib import Path
from typing import Annotated

import typer

from revela.config.training import Experiment
from revela.step import command

app = typer.Typer()

Folder = Annotated[
    Path, typer.Option("--output", help="Folder to write; an interrupted training resumes there.")
]


@command(app)
def train(
    settings: Experiment,
    data: Annotated[
        Path, typer.Option(exists=True, help="Batch file or, for an objective on pairs, pair file.")
    ],
    folder: Folder,
    checkpoint_minutes: Annotated[
        float, typer.Option(min=0, help="Minutes between checkpoints; 0 saves after every step.")
    ] = 15,
    zero: Annotated[int, typer.Option(help="ZeRO stage of DeepSpeed, 2 or 3; 0 uses DDP.")] = 0,
    batches_per_forward: Annotated[
        int, typer.Option(min=0, help="Maximum of Revela's batches per forward pass; 0: by memory.")
    ] = 0,
    gradient_checkpointing: Annotated[
        bool | None,
        typer.Option(help="Recompute activations; by default only if they do not fit."),
    ] = None,
    loader_workers: Annotated[
        int, typer.Option(min=0, help="Processes that tokenize ahead of a GPU; unused on a CPU.")
    ] = 2,
) -> None:
    """Train a retriever.

    On several GPUs: python -m revela.training.launch --standalone --nproc_per_node GPUS
    -m revela train …
    """
    from accelerate import PartialState

    from revela.training.checkpoints import Stopped
    from revela.training.trainer import train as run

    options = (batches_per_forward, gradient_checkpointing, loader_workers)
    try:
        run(settings, data, folder, checkpoint_minutes, zero, *options)
        gc.collect()  # a model that is freed after its process group may wait for gloo forever
    except Stopped:
        PartialState().destroy_process_group()  # frees NCCL's resources
        raise
    PartialState().destroy_process_group()
