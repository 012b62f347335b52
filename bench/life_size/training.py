"""One micro-step of an experiment at its real size: trained, saved, loaded, evaluated, compared.

Uses the project's own commands.
"""

import json
import math
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.life_size.plan import PAIRS, MicroStep
from bench.life_size.processes import GB, Failed, apart, require_disk, require_memory, revela
from bench.life_size.reference import by_hand, by_revela, cosines
from bench.life_size.twins import write_twin

_PASSAGES, _QUERIES, _COMPARED = 64, 16, 8
_DISK_GB = 20.0  # for the largest twins, their adapters and the optimizer's state


class Training:
    """One experiment's micro-step."""

    def __init__(self, step: MicroStep, folder: Path) -> None:
        self.step, self.name, self.folder = step, step.name, folder
        self.work = folder / "models" / step.name
        names = zip(("retriever", "language_model"), step.models, strict=False)
        self.settings = step.settings | {key: str(self._twin(model)) for key, model in names}
        self.environment = {
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(folder / "cache" / "datasets"),
        }

    @property
    def key(self) -> str:
        """The inputs that the result depends on."""
        return json.dumps([self.step.settings, self.step.row], sort_keys=True)

    @property
    def tflop(self) -> float:
        """The amount of work."""
        return self.step.flops / 1e12 + 5

    def run(self) -> dict[str, Any]:
        """Run all of it and return the findings.

        Raises:
            Skipped: the machine is too small.
            Failed: a command failed, or its output is not as expected.
        """
        require_memory(self.step.training_gb, "a training, as estimated,")
        require_disk(self.folder, _DISK_GB, "a training")
        shutil.rmtree(self.work, ignore_errors=True)
        try:
            for name in dict.fromkeys(self.step.models):
                _tell(f"twin of {name}")
                apart(write_twin, self._twin(name), name, self.folder / "merges.json")
            return {
                "step": asdict(self.step),
                "training": self._train(self._data()),
                "evaluation": self._evaluate(),
                "embeddings": self._compare(),
            }
        finally:
            shutil.rmtree(self.work, ignore_errors=True)

    # ------------------------------------------------------------------------ prerequisites

    def _twin(self, name: str) -> Path:
        return (self.folder / "twins" / name.rpartition("/")[2]).resolve()

    def _revela(self, command: str, *arguments: Any) -> Any:
        log = self.folder / "logs" / f"{self.name}-{command}.log"
        return revela(log, self.environment, command, *map(str, arguments))

    def _data(self) -> Path:
        """Make chunks of an installed package, the collection, and one batch or several pairs."""
        chunks = self.folder / "chunks.parquet"
        if not chunks.exists():
            corpus = {"source": "python-packages", "packages": ["networkx"]}
            self._revela("chunk", "--settings", json.dumps(corpus), "--output", chunks)
        _write_collection(chunks, self.folder / "collection")
        if self.step.pairs:
            command, size = "pair", {"num_pairs": PAIRS, "negatives": self.step.row - 2}
        else:
            command, size = "batch", {"num_batches": 1, "batch_size": self.step.row}
        settings = json.dumps({"corpora": ["wikipedia"], **size})
        data = self.work / "data.parquet"
        self._revela(
            command, "--settings", settings, "--input", f"wikipedia={chunks}", "--output", data
        )
        return data

    # ------------------------------------------------------------------------ measurements

    def _train(self, data: Path) -> dict[str, Any]:
        _tell("rate of matrix products")
        rate = apart(matmul_rate)
        output = self.work / "trained"
        settings = json.dumps(self.settings)
        given = ("--settings", settings, "--data", data, "--gradient-checkpointing")
        self._revela("train", *given, "--output", output)
        manifest = json.loads((output / "manifest.json").read_text(encoding="utf-8"))
        lines = map(json.loads, (output / "log.jsonl").read_text(encoding="utf-8").splitlines())
        steps = [line for line in lines if "loss" in line]
        if len(steps) != 1:
            raise Failed(f"{len(steps)} steps were logged")
        return {
            "gb": manifest["peak_memory_gb"],
            "seconds": manifest["train_seconds"],
            "precision": manifest["precision"],
            "matmul_rate": rate,
            "loss": steps[0]["loss"],
            "finite": all(math.isfinite(x) for x in steps[0].values() if isinstance(x, float)),
        }

    def _evaluate(self) -> dict[str, Any]:
        require_memory(self.step.encoding_gb, "encoding, as estimated,")
        benchmark = {"source": "folder", "path": str(self.folder), "tasks": ["collection"]}
        scores, ranked = self.work / "scores.json", self.work / "run.trec"
        spent = self._revela(
            "evaluate",
            "collection",
            *("--name", self.name),
            *("--model", json.dumps(self._encoder())),
            *("--benchmark", json.dumps(benchmark)),
            *("--folder", self.folder / "collection"),
            *("--cache", self.work / "embeddings"),
            *("--scores", scores),
            *("--run", ranked),
        )
        found = [float(line.split()[4]) for line in ranked.read_text("utf-8").splitlines()]
        if len(found) != _PASSAGES * _QUERIES:
            raise Failed(f"{len(found)} passages are ranked, not {_PASSAGES * _QUERIES}")
        manifest = json.loads(scores.with_suffix(".manifest.json").read_text(encoding="utf-8"))
        finite = all(map(math.isfinite, found))
        return {"gb": manifest["peak_memory_gb"], "seconds": spent.seconds, "finite": finite}

    def _compare(self) -> dict[str, float]:
        """Compare the reloaded retriever with its backbone and adapter combined by hand."""
        require_memory(4.5 * self.step.parameters / GB, "a reference in float32")
        texts = _passages(self.folder / "collection")[-_COMPARED:]
        _tell("embeddings by hand")
        merged, bare = apart(by_hand, self._encoder(), texts)
        found = {"backbone": max(cosines(bare, merged))}
        for precision in ("float32", "bfloat16"):
            _tell(f"embeddings of the reloaded retriever in {precision}")
            ours = apart(by_revela, self._encoder(), texts, precision)
            found[precision] = min(cosines(ours, merged))
        return found

    def _encoder(self) -> dict[str, Any]:
        folder, encoding = self.work / "trained" / "retriever", self.settings.get("encoding", {})
        return {"kind": "encoder", "retriever": str(folder), "encoding": encoding}


def _tell(what: str) -> None:
    print(f"    {what}", flush=True)


def matmul_rate() -> float:
    """Return FLOP/s of large matrix products, in the precision of a training on this machine."""
    import torch

    from bench.common import medians
    from revela.retriever.encode import native_dtype

    size = 1536
    left, right = (torch.randn(size, size).to(native_dtype("bfloat16")) for _ in range(2))
    return 2 * size**3 / medians({"matmul": lambda: left @ right})["matmul"]


# ---------------------------------------------------------------------------- the collection


def _write_collection(chunks: Path, folder: Path) -> None:
    """Write 64 passages in BEIR layout, the first one longer than any encoder's maximum length."""
    import pyarrow.parquet as pq

    texts = pq.read_table(chunks, columns=["text"])["text"].to_pylist()
    short = [" ".join(text.split()[:60]) for text in texts[100 : 100 + _PASSAGES - 1]]
    passages = ["\n".join(texts[:60]), *short]
    queries = [" ".join(text.split()[:10]) for text in passages[:_QUERIES]]
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("corpus", passages), ("queries", queries)):
        lines = (json.dumps({"_id": str(n), "text": text}) + "\n" for n, text in enumerate(rows))
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    judged = "".join(f"{n}\t{n}\t1\n" for n in range(_QUERIES))
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged, encoding="utf-8")


def _passages(folder: Path) -> list[str]:
    lines = (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]
