"""Embeddings by APIs: keys, prompts and the type of the input."""

import sys
from pathlib import Path
from types import SimpleNamespace

import mteb
import pytest

from revela.common.errors import RevelaError
from revela.config import load_config
from revela.config.evaluation import (
    ApiModel,
)
from revela.evaluation import measure as evaluation
from revela.evaluation.benchmarks import local_task
from tests.conftest import TEXTS
from tests.evaluation.common import searcher_of


def test_an_api_needs_its_key_and_its_package(tmp_path, monkeypatch):
    monkeypatch.delenv("SOME_KEY", raising=False)
    model = ApiModel(kind="api", name="Cohere/Cohere-embed-english-v3.0", key="SOME_KEY")
    with pytest.raises(RevelaError, match="needs the environment variable SOME_KEY"):
        searcher_of(model, tmp_path)
    monkeypatch.setenv("SOME_KEY", "-")
    monkeypatch.setitem(sys.modules, "cohere", None)
    with pytest.raises(RevelaError, match=r"^model 'tiny': .* missing .*cohere") as caught:
        searcher_of(model, tmp_path)
    assert "\n" not in str(caught.value)


CONFIG = load_config(Path(__file__).parents[2] / "config.yaml")
APIS = [model for model in CONFIG.models.values() if isinstance(model, ApiModel)]


@pytest.mark.parametrize("model", APIS, ids=lambda model: model.name)
def test_api_models_distinguish_queries_from_documents(model):
    """OpenAI's API is the exception: it has no input types."""
    described = mteb.get_model_meta(model.name)
    assert described.modalities == ["text"]
    prompts = described.loader_kwargs.get("model_prompts", {})
    if not model.name.startswith("openai/"):
        assert {"query", "document"} <= prompts.keys()
        assert prompts["query"] != prompts["document"]


def test_cohere_gets_the_type_of_its_input(collection, tmp_path, monkeypatch):
    asked = {}

    class Client:
        def tokenize(self, text, model):
            return SimpleNamespace(tokens=text.split())

        def embed(self, texts, input_type, **_):
            asked.setdefault(input_type, []).extend(texts)
            vectors = [[1.0, len(text)] for text in texts]
            return SimpleNamespace(embeddings=SimpleNamespace(float=vectors))

    monkeypatch.setenv("COHERE_API_KEY", "-")
    monkeypatch.setattr("mteb.models.model_meta.ModelMeta._check_requirements", lambda _: None)
    monkeypatch.setitem(sys.modules, "cohere", SimpleNamespace(Client=Client))
    task = local_task("tiny-task", collection, collection)
    evaluation.evaluate(searcher_of(CONFIG.models["cohere-v3"], tmp_path), task)
    assert asked["search_query"] == ["rivers and mud", "jobs and workers", "transpose of a matrix"]
    assert asked["search_document"] == [f"Title {n} {text}" for n, text in enumerate(TEXTS)]
    assert len(asked) == 2
