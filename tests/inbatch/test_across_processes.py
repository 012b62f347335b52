"""Batches that span processes equal one batch in one process.

Each process averages over its own tokens; therefore both halves here predict the same number.
"""

from pathlib import Path

import pytest
import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing

from revela.inbatch.cross_document import all_gather
from revela.inbatch.in_batch import in_batch_loss, in_batch_similarity
from revela.retriever.encode import pad
from tests.conftest import attend_as_on_a_gpu, tiny_llama

CHUNKS = [[5, 3, 8, 9], [7, 2], [4, 4, 6], [9, 8, 7], [3, 3, 3, 1], [11, 12]]


def losses(
    rank: int,
    world: int,
    temperature: float,
    reading: str,
    folder: str,
    way: str = "padded",
    min_similarity: float = 1e-12,
) -> None:
    """Compute one process's loss and write it to a file, with all gradients."""
    group = None
    if world > 1:
        if way == "flash":
            attend_as_on_a_gpu(pytest.MonkeyPatch())
        distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
        group = distributed.group.WORLD
    size = len(CHUNKS) // world
    mine = slice(rank * size, (rank + 1) * size)
    ids, mask = pad(CHUNKS[mine], 0)
    embedding = torch.rand(
        len(CHUNKS), 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )[mine].requires_grad_()
    model = tiny_llama(vocab_size=50).double()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    columns = all_gather(embedding, group) if group else embedding
    similarity = in_batch_similarity(embedding @ columns.T, temperature, group)
    loss = in_batch_loss(
        model, ids, mask, similarity, reading=reading, group=group, min_similarity=min_similarity
    )
    loss.backward()
    kept = (similarity.detach() >= min_similarity).sum()
    found = {"loss": loss.detach(), "kept": kept, "embedding": embedding.grad / world}
    found |= {name: weight.grad / world for name, weight in model.named_parameters()}
    torch.save(found, Path(folder) / f"{world}-{rank}.pt")
    if group:
        distributed.destroy_process_group()


@pytest.mark.parametrize(("temperature", "reading"), [(1.0, "sum"), (0.01, "sum"), (0.3, "joint")])
def test_a_batch_over_two_processes_equals_one_over_one(tmp_path, temperature, reading, both_ways):
    spawn(tmp_path, temperature, reading, both_ways)


@pytest.mark.parametrize("reading", ["sum", "joint"])
def test_a_process_whose_chunks_read_nothing_does_not_hang(tmp_path, reading, both_ways):
    """At this bound one process keeps a pair for each of its chunks, the other one keeps none."""
    spawn(tmp_path, 1.0, reading, both_ways, 0.36)
    kept = [torch.load(tmp_path / f"2-{rank}.pt")["kept"] for rank in (0, 1)]
    assert [int(pairs) for pairs in kept] == [0, 3]


def spawn(
    folder: Path, temperature: float, reading: str, way: str, min_similarity: float = 1e-12
) -> None:
    """Compare the results of one process and of two."""
    options = (temperature, reading, str(folder), way, min_similarity)
    losses(0, 1, *options)
    multiprocessing.spawn(losses, (2, *options), nprocs=2)
    whole, first, second = (torch.load(folder / f"{n}.pt") for n in ("1-0", "2-0", "2-1"))
    torch.testing.assert_close((first["loss"] + second["loss"]) / 2, whole["loss"])
    torch.testing.assert_close(
        torch.cat([first.pop("embedding"), second.pop("embedding")]), whole.pop("embedding")
    )
    for name, expected in whole.items():
        if name not in ("loss", "kept"):  # processes' gradients are averaged
            torch.testing.assert_close(first[name] + second[name], expected, msg=name)
