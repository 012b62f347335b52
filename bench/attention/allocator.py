"""What keeping freed memory gives a training step of a small model on a CPU.

Runs the same steps with and without `keep_freed_memory` of `revela.training.trainlog`, in
processes of their own that take turns, since the setting cannot be taken back.

    python -m bench.attention.allocator
"""

import statistics
import subprocess
import sys

STEPS = """
import sys, time, torch, transformers
from revela.training.trainlog import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
torch.manual_seed(0)
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=4096, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
    num_attention_heads=4))
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.randint(0, 4096, (16, 128))
def step():
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
for _ in range(3):
    step()
start = time.perf_counter()
for _ in range(10):
    step()
print((time.perf_counter() - start) / 10)
"""


def main() -> None:
    """Print the median step times and their ratio."""
    seconds: dict[str, list[float]] = {"plain": [], "keep": []}
    for _ in range(3):
        for kind, times in seconds.items():
            result = subprocess.run(
                [sys.executable, "-c", STEPS, kind], capture_output=True, text=True, check=True
            )
            times.append(float(result.stdout))
    plain, keep = (statistics.median(times) for times in seconds.values())
    print(f"a step: {plain * 1000:.0f} ms as it is, {keep * 1000:.0f} ms keeping freed memory")
    print(f"ratio {plain / keep:.2f}")


if __name__ == "__main__":
    main()
