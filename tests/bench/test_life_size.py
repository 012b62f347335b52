"""The tools of `make life-size`, on tiny shapes: twins, the reference by hand, generated rows."""

import itertools
import json
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers

from bench.life_size import reference, results, text, twins
from bench.life_size.plan import EXPERIMENTS
from revela.config.training import Lora
from revela.retriever.encode import add_lora, load_model

ROOT = Path(__file__).parents[2]
TINY = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
}


@pytest.fixture
def shapes(monkeypatch):
    monkeypatch.chdir(ROOT)
    return twins.shapes()


def merges(count):
    """Merges that make `count` different tokens, each of the first ones with a letter."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = list(itertools.product(alphabet, alphabet))
    pairs += [("".join(pair), letter) for pair in pairs[:600] for letter in alphabet]
    return pairs[:count]


@pytest.mark.parametrize("name", twins.BACKBONES)
def test_a_twin_loads_whole_from_its_shards(tmp_path, shapes, name):
    config = shapes[name] | TINY | {"vocab_size": 300}
    (tmp_path / "config.json").write_text(json.dumps(config))
    twins.write_weights(tmp_path, config, shard_bytes=6_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    loader = transformers.AutoModelForCausalLM
    model, problems = loader.from_pretrained(tmp_path, output_loading_info=True, dtype="auto")
    assert not any(problems.values())
    assert model.dtype == torch.bfloat16
    weights = model.state_dict()
    assert all((weights[name] == 1).all() for name in weights if "norm" in name)
    spread = weights["model.layers.1.mlp.up_proj.weight"].float().std()
    assert spread == pytest.approx(config["initializer_range"], rel=0.15)
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("name", twins.BACKBONES[:3])  # both Llamas have the same tokenizer
def test_a_twin_has_the_ids_of_the_real_vocabulary(tmp_path, shapes, name):
    config = shapes[name]
    twins._tokenizer(config, merges(twins._learnt(config) - 256)).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.eos_token_id == config["eos_token_id"]
    ids = tokenizer("naïve 日本 text")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "naïve 日本 text"
    begins = ids[0] == config["bos_token_id"]
    assert begins == ("Llama" in name)
    assert max(tokenizer.get_vocab().values()) < config["vocab_size"]
    assert len(tokenizer) > 0.99 * config["vocab_size"]


def test_the_reference_is_the_backbone_and_its_adapter(tmp_path, backbone):
    model = add_lora(load_model(str(backbone)), Lora(rank=4, alpha=2), seed=0)
    model.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(backbone).save_pretrained(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    torch.manual_seed(0)
    trained = {
        name: torch.randn_like(weight) if "lora_B" in name else weight
        for name, weight in load_file(file).items()
    }
    save_file(trained, file)
    encoder = {"kind": "encoder", "retriever": str(tmp_path), "encoding": {}}
    texts = ["Rivers carry water to the sea.", "The queue holds jobs."]
    merged, bare = reference.by_hand(encoder, texts)
    ours = reference.by_revela(encoder, texts, "float32")
    assert min(reference.cosines(ours, merged)) > results.SAME
    assert max(reference.cosines(bare, merged)) < results.SAME


@pytest.mark.parametrize("corpus", text.CORPORA)
def test_generated_rows_have_the_fields_of_the_corpus(tmp_path, corpus):
    settings = yaml.safe_load((ROOT / "config.yaml").read_text())["corpora"][corpus]
    fields = settings.get("fields", {"text": "text"})
    rows, characters = text.write_corpus(corpus, tmp_path, fields["text"], 20_000)
    some = list(itertools.islice(text.CORPORA[corpus].rows(text.Prose()), rows))
    assert sum(len(row[fields["text"]]) for row in some) == characters >= 20_000
    assert all(name in row for name in fields.values() for row in some)
    assert (tmp_path / text.CORPORA[corpus].file).stat().st_size > 1000


def test_articles_end_with_their_beginning():
    rows = list(itertools.islice(text._wikipedia(text.Prose()), 100))
    articles = [list(group) for _, group in itertools.groupby(rows, lambda row: row["title"])]
    assert {len(row["text"].split()) for row in rows} == {100}
    copied = []
    for article in articles[:-1]:  # the last one may be truncated
        first, last = article[0]["text"].split(), article[-1]["text"].split()
        copied.append(max((n for n in range(1, 100) if last[-n:] == first[:n]), default=0))
    # All but those whose length happens to be a multiple of 100, or nearly so.
    assert sum(count > 2 for count in copied) > 0.7 * len(copied) > 2


def test_every_backbone_and_objective_of_the_paper_is_run():
    config = yaml.safe_load((ROOT / "config.yaml").read_text())["experiments"]
    assert all(name in config for name, added in EXPERIMENTS.items() if not added)
    assert all(added["base"] in config for added in EXPERIMENTS.values() if added)
