"""Evaluation of a language model on tasks of lm-eval, EleutherAI's harness."""

import re
from pathlib import Path
from typing import Any

import torch

from revela.common.errors import RevelaError, check_name
from revela.common.hub import explained
from revela.config.catalogue import lm_eval_data_set, lm_eval_task_files
from revela.config.evaluation import LanguageModel, LmEvalBenchmark
from revela.retriever.encode import devices, native_dtype
from revela.retriever.load import load_language_model, load_tokenizer
from revela.retriever.source import Source


def evaluate(
    model: LanguageModel, benchmark: LmEvalBenchmark, task: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a language model's scores on a task, and facts for the manifest.

    A score is between 0 and 1 and has its name in lm-eval (`acc`, `acc_norm`, …). The facts are the
    task's version, the number of examples and lm-eval's full names of the measures.

    Raises:
        RevelaError: lm-eval or the task is missing, or its data or the model cannot be loaded.
    """
    try:
        import lm_eval
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        message = "the package lm-eval is missing: pip install 'revela[lm-eval]'"
        raise RevelaError(message) from error
    loaded, manager = load_task(benchmark, task)
    device = torch.device(devices()[0])
    dtype = torch.float32 if device.type == "cpu" else native_dtype("bfloat16")
    source = Source(model.language_model, model.revision)
    weights = load_language_model(source, dtype).to(device).eval()
    tokenizer = load_tokenizer(source)
    results = lm_eval.simple_evaluate(
        HFLM(pretrained=weights, tokenizer=tokenizer, batch_size=benchmark.batch_size),
        tasks=[loaded],
        task_manager=manager,
        num_fewshot=0,
        limit=benchmark.limit,
        log_samples=False,
    )
    # lm-eval names a measure "name,filter"; multiple choice has the filter `none`.
    measures = {
        key.removesuffix(",none"): key
        for key, value in results["results"][task].items()
        if isinstance(value, int | float) and "," in key
    }
    scores = {name: results["results"][task][key] for name, key in measures.items()}
    facts = {
        "commits": source.commits() | _commits(loaded, lm_eval_task_files(benchmark.path)[task]),
        "task_version": results["versions"].get(task),
        "measures": measures,
        "examples": results["n-samples"][task],
        "device": str(device),
        "dtype": str(dtype),
    }
    return {"task": task, **scores}, facts


def _commits(task: Any, file: Path) -> dict[str, str]:
    """Return the commit of a task's data set on the hub, which names the folder of its cache."""
    parts = task.dataset.values() if task.dataset else ()
    folders = [Path(one["filename"]).parent.name for part in parts for one in part.cache_files]
    known = [folder for folder in folders if re.fullmatch("[0-9a-f]{40}", folder)]
    return {str(lm_eval_data_set(file)): known[0]} if known else {}


def load_task(benchmark: LmEvalBenchmark, name: str) -> tuple[Any, Any]:
    """Return a task with its data, and lm-eval's manager of its tasks; errors as of `evaluate`."""
    from lm_eval.tasks import TaskManager

    files = lm_eval_task_files(benchmark.path)
    check_name("task", "task of lm-eval", name, files)
    # Only the task's own folder: indexing all 14,000 files takes lm-eval ten seconds.
    manager = TaskManager(include_path=files[name].parent, include_defaults=False)
    if name not in manager.task_index:
        raise RevelaError(f"{files[name]}: not a task that lm-eval can read")
    with explained(f"task {name!r}: data set", lm_eval_data_set(files[name]) or name):
        return manager.load([name])["tasks"][name], manager
