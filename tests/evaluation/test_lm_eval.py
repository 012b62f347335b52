"""Evaluation of language models by lm-eval, compared with a loop over log-likelihoods."""

import json
import random
import sys

import pytest
import torch
from typer.testing import CliRunner

from revela.common.errors import RevelaError
from revela.config.catalogue import lm_eval_task_files
from revela.config.evaluation import LanguageModel, LmEvalBenchmark
from revela.config.training import Lora
from revela.evaluation import lm_eval
from revela.evaluation.commands import app
from revela.retriever.load import load_language_model, load_tokenizer
from revela.retriever.lora import add_lora
from revela.retriever.source import Source
from tests.conftest import TEXTS, write_choices

SENTENCES = [sentence for text in TEXTS for sentence in text.split(". ")]
RANDOM = random.Random(0)
EXAMPLES = [
    {"question": q, "choices": RANDOM.sample(SENTENCES, 3), "answer": RANDOM.randrange(3)}
    for q in SENTENCES * 2
]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return write_choices(tmp_path_factory.mktemp("tasks"), "tiny-choice", EXAMPLES)


@pytest.fixture(scope="module")
def trained(backbone, tmp_path_factory):
    """An adapter with random weights that changes the backbone's predictions."""
    folder = tmp_path_factory.mktemp("trained") / "language_model"
    model = add_lora(load_language_model(Source(str(backbone))), Lora(rank=4), seed=0)
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights)
    model.save_pretrained(folder)
    load_tokenizer(Source(str(backbone))).save_pretrained(folder)
    return model.eval(), folder


@torch.no_grad()
def expected(model, tokenizer, examples):
    """Return accuracy by log-likelihood and by log-likelihood per character."""
    right = {"acc": 0, "acc_norm": 0}
    for example in examples:
        likelihoods = []
        for choice in example["choices"]:
            start = len(tokenizer(example["question"])["input_ids"])
            ids = tokenizer(f"{example['question']} {choice}")["input_ids"]
            logits = model(input_ids=torch.tensor([ids])).logits[0]
            likelihood = 0.0
            for place in range(start, len(ids)):
                likelihood += logits[place - 1].log_softmax(-1)[ids[place]].item()
            likelihoods.append(likelihood)
        by_length = [x / len(c) for x, c in zip(likelihoods, example["choices"], strict=True)]
        right["acc"] += likelihoods.index(max(likelihoods)) == example["answer"]
        right["acc_norm"] += by_length.index(max(by_length)) == example["answer"]
    return {name: count / len(examples) for name, count in right.items()}


def measure(folder, tasks, **settings):
    model = LanguageModel(kind="language-model", language_model=str(folder))
    suite = LmEvalBenchmark(source="lm-eval", path=str(tasks), tasks=["tiny-choice"], **settings)
    return lm_eval.evaluate(model, suite, "tiny-choice")


def test_accuracy_matches_a_plain_loop(backbone, trained, tasks):
    source = Source(str(backbone))
    tokenizer, plain = load_tokenizer(source), load_language_model(source)
    found, facts = measure(backbone, tasks)
    before = expected(plain, tokenizer, EXAMPLES)
    assert {name: found[name] for name in before} == pytest.approx(before)
    assert facts["task_version"] == 3.0
    assert facts["measures"]["acc"] == "acc,none"
    assert facts["examples"] == {"original": len(EXAMPLES), "effective": len(EXAMPLES)}
    after = expected(trained[0], tokenizer, EXAMPLES)
    found, _ = measure(trained[1], tasks)
    assert {name: found[name] for name in after} == pytest.approx(after)
    assert before != after


def test_the_command_writes_scores_and_where_they_come_from(backbone, tasks, tmp_path):
    model = {"kind": "language-model", "language_model": str(backbone)}
    suite = {"source": "lm-eval", "path": str(tasks), "tasks": ["tiny-choice"], "limit": 3}
    scores = tmp_path / "scores.json"
    given = ["--model", json.dumps(model), "--benchmark", json.dumps(suite)]
    given += ["--scores", str(scores), "--name", "tiny"]
    result = CliRunner().invoke(app, ["evaluate-lm", "tiny-choice", *given])
    assert set(json.loads(scores.read_text())) >= {"task", "acc", "acc_norm", "acc_stderr"}
    manifest = json.loads((tmp_path / "scores.manifest.json").read_text())
    assert manifest["examples"]["effective"] == 3
    assert manifest["versions"]["lm_eval"]
    assert str(backbone) in manifest["inputs"]
    assert result.stdout.splitlines()[-1].startswith("tiny on tiny-choice: acc ")


def test_a_missing_package_is_one_line(backbone, tasks, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(RevelaError, match=r"lm-eval is missing: pip install 'revela\[lm-eval\]'"):
        measure(backbone, tasks)


def test_tasks_are_found_without_the_index_of_lm_eval():
    files = lm_eval_task_files()
    assert len(files) > 10_000
    assert files["arc_challenge"].name == "arc_challenge.yaml"
    assert {"copa", "openbookqa", "piqa", "rte", "wic", "winogrande"} <= set(files)
