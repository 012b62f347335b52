"""A whole training step at the paper's shapes on one GPU, against the chip's own matmul rate.

Retriever and language model of one shape with random weights, LoRA of rank 256 on both, bfloat16,
batches of 16 chunks of real lengths, AdamW included. Prints chunks and tokens a second, the share
of the measured matmul rate, peak memory, how often a step waits for the device, and the hours that
the paper's 320,000 batches would take.

    python -m bench.training.paper_step            # needs a GPU
    python -m bench.training.paper_step --tiny     # the same code on whatever there is
"""

import sys
import time
import warnings

import torch
from torch import Tensor, nn

from bench.common import SHAPES, chunk_lengths, medians, ragged_batch, random_model, report
from revela.config.steps import Encoding, Lora, RevelaObjective
from revela.encoder import Encoder, add_lora
from revela.training.objectives.revela import Revela

BATCHES = 320_000
TINY = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
}


def matmul_rate(device: torch.device, size: int) -> float:
    """Return FLOP/s of large matrix products in bfloat16."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = medians({"matmul": lambda: [left @ right for _ in range(10)]})["matmul"] / 10
    return 2 * size**3 / seconds


def layer_flops(model: nn.Module, tokens: int) -> float:
    """Return FLOPs of the layers' products: two a token of a frozen weight, three of a trained."""
    named = [item for item in model.named_parameters() if "embed" not in item[0]]
    frozen = sum(weight.numel() for _, weight in named if not weight.requires_grad)
    trained = sum(weight.numel() for _, weight in named if weight.requires_grad)
    return tokens * (4.0 * frozen + 6.0 * trained)


def measure(shape: str, device: torch.device, rate: float, tiny: bool) -> dict[str, str]:
    """Return one row of the table."""
    small = TINY if tiny else {}
    lora = Lora(rank=8 if tiny else 256)
    torch.manual_seed(0)
    models = [random_model(shape, **small).to(device, torch.bfloat16) for _ in range(2)]
    models[0] = models[0].model
    adapted = [add_lora(model, lora, seed=0) for model in models]
    module = Revela(
        Encoder(adapted[0], None, Encoding()), adapted[1], RevelaObjective(name="revela")
    )
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-4)
    vocabulary = models[1].config.vocab_size
    lengths = chunk_lengths(16, 156)
    inputs: list[Tensor] = [
        *ragged_batch([length + 4 for length in lengths] * 2, vocabulary),
        *ragged_batch(lengths, vocabulary),
    ]
    inputs = [tensor.to(device) for tensor in inputs]

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = module(*inputs)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = medians({"step": step}, repeats=10)["step"]
    waits = 0
    if cuda:
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
        torch.cuda.set_sync_debug_mode("default")
        waits = len(caught)
    tokens = int(inputs[1].sum()), int(inputs[3].sum())
    rows: list[int] = []  # tokens of e and h rows that went through the language model
    hook = models[1].model.register_forward_pre_hook(
        lambda _, args, kwargs: rows.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    step()
    hook.remove()
    head = models[1].get_output_embeddings()
    flops = layer_flops(adapted[0], tokens[0]) + layer_flops(models[1].model, rows[0])
    flops += 4.0 * head.weight.numel() * tokens[1]  # of the h rows alone
    return {
        "Shape": shape,
        "chunks/s": f"{16 / seconds:.0f}",
        "tokens/s": f"{sum(tokens) / seconds:,.0f}",
        "of matmul rate": f"{flops / seconds / rate:.0%}",
        "GB": f"{torch.cuda.max_memory_allocated() / 1024**3:.1f}" if cuda else "",
        "waits": str(waits) if cuda else "",
        "hours": f"{seconds * BATCHES / 3600:.1f}",
    }


def main() -> None:
    """Measure every shape."""
    tiny = "--tiny" in sys.argv
    if not torch.cuda.is_available() and not tiny:
        sys.exit("this bench needs a GPU; --tiny runs it small on a CPU")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rate = matmul_rate(device, 512 if tiny else 8192)
    start = time.time()
    rows = [measure(shape, device, rate, tiny) for shape in SHAPES]
    print(f"{rate / 1e12:.0f} TFLOP/s in matmul; {time.time() - start:.0f} s")
    if tiny:
        print(*rows, sep="\n")
    else:
        report("The paper's step on one GPU", "python -m bench.training.paper_step", rows)


if __name__ == "__main__":
    main()
