"""What the local hub serves: miniatures of every model and data set that a config names.

Each has the name, the files, the fields and the nesting of the real one; texts and code are taken
from Python's own documentation and source, weights are random.
"""

import ast
import gzip
import json
import random
import re
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from revela.config import Config
from revela.settings import HubCorpus, MtebBenchmark

Rows = list[dict[str, Any]]

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_LOCAL = ("data/", "results/")


def make(config: Config, folder: Path) -> None:
    """Write the models and data sets that a config names under a folder of the local hub.

    Raises:
        KeyError: the config names one of which no miniature is known.
    """
    for name in sorted(_models(config)):
        write_model(folder / "models" / name, name)
    sets = [c.dataset for c in config.corpora.values() if isinstance(c, HubCorpus)]
    sets += [batches.hub for batches in config.batches.values() if batches.hub]
    for name in sets:
        CORPORA[name](folder / "datasets" / name)
    for benchmark in config.benchmarks.values():
        if isinstance(benchmark, MtebBenchmark):
            for task in benchmark.tasks:
                write_task(folder / "datasets", task)
    for name, subset, row in LANGUAGE_MODEL_TASKS:
        write_multiple_choice(folder / "datasets" / name, subset, row)


def _models(config: Config) -> set[str]:
    """Return the hub names among the settings of experiments and models, with adapters' bases."""
    entries = [*config.experiments.values(), *config.models.values()]
    found = {
        value
        for entry in entries
        for key, value in entry.model_dump().items()
        if key != "data" and isinstance(value, str) and _HUB_NAME.fullmatch(value)
        if not value.startswith(_LOCAL)
    }
    return found | {_base(name) for name in found if _is_adapter(name)}


# ---------------------------------------------------------------------------- texts


@dataclass(frozen=True)
class Function:
    """A function of the standard library."""

    name: str
    summary: str  # the first line of its docstring
    description: str  # the rest of it
    source: str


@cache
def functions() -> list[Function]:
    """Return the documented functions of a part of the standard library, always in one order."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-p]*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef):
                continue
            summary, _, description = (ast.get_docstring(node) or "").partition("\n")
            if len(description.split()) > 30:
                source = ast.get_source_segment(text, node) or ""
                name = f"{path.stem}.{node.name}"
                found.append(Function(name, summary, description.strip(), source))
    random.Random(0).shuffle(found)
    return found


def _articles() -> list[tuple[str, str]]:
    """Return (title, text) of long texts in English."""
    return sorted(topics.items())


# ---------------------------------------------------------------------------- files


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write rows as JSON lines, compressed where the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def write_parquet(path: Path, rows: Rows) -> None:
    """Write rows as Parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_card(folder: Path, configs: dict[str, dict[str, str]]) -> None:
    """Write a data set's card: its configurations, each with the files of its splits."""
    listed = [
        {
            "config_name": name,
            "data_files": [{"split": split, "path": path} for split, path in splits.items()],
        }
        for name, splits in configs.items()
    ]
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({"configs": listed}, sort_keys=False)
    (folder / "README.md").write_text(f"---\n{text}---\nA miniature.\n")


# ---------------------------------------------------------------------------- corpora


def _wikipedia(folder: Path) -> None:
    """Passages of 100 words, the consecutive ones of a title being one article."""
    rows = []
    for title, text in _articles():
        words = text.split()
        passages = [" ".join(words[n : n + 100]) for n in range(0, len(words), 100)]
        rows += [{"title": title.capitalize(), "text": passage} for passage in passages]
    numbered = ({"docid": str(number), **row} for number, row in enumerate(rows))
    write_jsonl(folder / "corpus.jsonl.gz", numbered)
    (folder / "README.md").write_text("A miniature.\n")


def _library_documentation(folder: Path) -> None:
    rows = [
        {"doc_id": function.name, "doc_content": f"{function.summary}\n\n{function.description}"}
        for function in functions()[:200]
    ]
    write_parquet(folder / "data" / "train-00000-of-00001.parquet", rows)
    write_card(folder, {"default": {"train": "data/train-*"}})


def _online_tutorials(folder: Path) -> None:
    rows = [
        {"title": title, "text": text, "parsed": [{"type": "text", "content": text[:80]}]}
        for title, text in _articles()[:30]
    ]
    write_jsonl(folder / "online_tutorials.json", rows)
    (folder / "README.md").write_text("A miniature.\n")


def _stackoverflow(folder: Path) -> None:
    for shard in range(3):
        rows = [
            {"text": f"{function.summary}\n{function.source}", "meta": {"score": shard}}
            for function in functions()[shard * 80 : (shard + 1) * 80]
        ]
        write_jsonl(folder / f"stackoverflow_{shard:04}.jsonl", rows)
    (folder / "README.md").write_text("A miniature.\n")


def _fineweb(folder: Path) -> None:
    rows = [
        {
            "text": text,
            "id": f"<urn:uuid:{number}>",
            "dump": "CC-MAIN-2024-10",
            "url": f"https://example.org/{title}",
            "file_path": "s3://example",
            "language": "en",
            "language_score": 0.9,
            "token_count": len(text) // 4,
            "score": 3.1,
            "int_score": 3,
        }
        for number, (title, text) in enumerate(_articles())
    ]
    write_parquet(folder / "sample" / "10BT" / "000_00000.parquet", rows[:40])
    write_parquet(folder / "sample" / "10BT" / "001_00000.parquet", rows[40:])
    write_card(
        folder,
        {"default": {"train": "data/*/*"}, "sample-10BT": {"train": "sample/10BT/*"}},
    )


def _published_batches(folder: Path) -> None:
    """Batches as lists of 16 texts."""
    write_jsonl(folder / "train.jsonl", _sixteens())


def _published_code_batches(folder: Path) -> None:
    """Batches with the name of their corpus."""
    write_jsonl(folder / "train.jsonl", ({"src": "stackoverflow", "text": b} for b in _sixteens()))


def _sixteens() -> list[list[str]]:
    texts = [function.description for function in functions()]
    return [texts[first : first + 16] for first in range(0, 160, 16)]


CORPORA: dict[str, Callable[[Path], None]] = {
    "Tevatron/wikipedia-nq-corpus": _wikipedia,
    "code-rag-bench/library-documentation": _library_documentation,
    "code-rag-bench/online-tutorials": _online_tutorials,
    "code-rag-bench/stackoverflow-posts": _stackoverflow,
    "HuggingFaceFW/fineweb-edu": _fineweb,
    "trumancai/revela_training_corpus": _published_batches,
    "trumancai/revela_code_training_corpus": _published_code_batches,
}


# ---------------------------------------------------------------------------- retrieval tasks


@dataclass(frozen=True)
class _Collection:
    documents: Rows  # _id, title, text
    queries: Rows  # _id, text
    judgements: Rows  # query-id, corpus-id, score


def _collection(name: str) -> _Collection:
    """Cut a small collection: a function's summary asks for its description, or its code."""
    code = "Code" in name or "CoIR" in name
    chosen = random.Random(name).sample(functions(), 20)
    documents = [
        {
            "_id": f"d{number}",
            "title": "" if code else function.name,
            "text": function.source if code else function.description,
        }
        for number, function in enumerate(chosen)
    ]
    queries = [{"_id": f"q{n}", "text": f.summary or f.name} for n, f in enumerate(chosen[:6])]
    judgements = [
        {"query-id": f"q{n}", "corpus-id": f"d{document}", "score": grade}
        for n in range(6)
        for document, grade in ((n, 2), (n + 1, 1), (n + 2, 0))
    ]
    if name == "mteb/arguana":  # whose queries stand in its corpus, under the same ids
        queries = [{"_id": d["_id"], "text": d["text"]} for d in documents[:6]]
        judgements = [
            {"query-id": f"d{n}", "corpus-id": f"d{n + 6}", "score": 1} for n in range(6)
        ]
    return _Collection(documents, queries, judgements)


def write_task(folder: Path, name: str) -> None:
    """Write the data set of a retrieval task of mteb as mteb's loader of this task reads it.

    Args:
        folder: where data sets stand.
        name: the task's.
    """
    import mteb

    task = mteb.get_task(name)
    path = task.metadata.dataset["path"]
    if path.endswith("/BRIGHT"):
        _write_bright(folder / path)
        return
    configs: dict[str, dict[str, str]] = {}
    for subset in task.hf_subsets:
        collection = _collection(path + ("" if subset == "default" else f"/{subset}"))
        before = "" if subset == "default" else f"{subset}-"
        judgements = f"{before}qrels" if before else "default"
        if path.startswith("mteb/"):
            files = [f"{before}corpus.jsonl", f"{before}queries.jsonl", f"{before}qrels/"]
            write, qrels_suffix = write_jsonl, ".jsonl"
        else:
            files = [f"{before}{part}/{part}.parquet" for part in ("corpus", "queries")]
            files += [f"{judgements}/"]
            write, qrels_suffix = write_parquet, ".parquet"
        partitioned = [{**query, "partition": "test"} for query in collection.queries]
        write(folder / path / files[0], collection.documents)
        write(folder / path / files[1], partitioned)
        splits = {split: f"{files[2]}{split}{qrels_suffix}" for split in task.eval_splits}
        for file in splits.values():
            write(folder / path / file, collection.judgements)
        configs[judgements] = splits
        configs[f"{before}corpus"] = {"corpus": files[0]}
        configs[f"{before}queries"] = {"queries": files[1]}
    write_card(folder / path, configs)


def _write_bright(folder: Path) -> None:
    """Write BRIGHT: a split a domain, some with documents that a query must not find."""
    from mteb.tasks.retrieval.eng.bright_retrieval import DOMAINS, DOMAINS_LONG

    configs: dict[str, dict[str, str]] = {}

    def write(config: str, domain: str, rows: Rows) -> None:
        file = f"{config}/{domain}-00000-of-00001.parquet"
        write_parquet(folder / file, rows)
        configs.setdefault(config, {})[domain] = file

    for domain in DOMAINS:
        collection = _collection(f"{folder.name}/{domain}")
        excludes = domain not in DOMAINS_LONG
        documents = [{"id": d["_id"], "content": d["text"]} for d in collection.documents]
        examples = [
            {
                "id": query["_id"],
                "query": query["text"],
                "reasoning": "N/A",
                "excluded_ids": ["d18", "d19"] if excludes else ["N/A"],
                "gold_ids": [f"d{number}", f"d{number + 1}"],
                "gold_ids_long": ["N/A"] if excludes else [f"d{number}"],
                "gold_answer": "N/A",
            }
            for number, query in enumerate(collection.queries)
        ]
        write("documents", domain, documents)
        write("examples", domain, examples)
        if domain in DOMAINS_LONG:
            write("long_documents", domain, documents)
    write_card(folder, configs)


# ---------------------------------------------------------------------------- language model tasks


def _labelled(number: int, answers: list[str]) -> dict[str, Any]:
    return {"text": answers, "label": [chr(ord("A") + n) for n in range(len(answers))]}


def _ai2(number: int, question: str, answers: list[str]) -> dict[str, Any]:
    key = chr(ord("A") + number % len(answers))
    choices = _labelled(number, answers)
    return {"id": str(number), "question": question, "choices": choices, "answerKey": key}


def _openbookqa(number: int, question: str, answers: list[str]) -> dict[str, Any]:
    row = _ai2(number, question, answers)
    return {"question_stem": row.pop("question"), **row}


def _copa(number: int, question: str, answers: list[str]) -> dict[str, Any]:
    asked = "cause" if number % 2 else "effect"
    row = {"premise": f"{question}.", "choice1": answers[0], "choice2": answers[1]}
    return {**row, "question": asked, "idx": number, "label": number % 2}


def _piqa(number: int, question: str, answers: list[str]) -> dict[str, Any]:
    return {"goal": question, "sol1": answers[0], "sol2": answers[1], "label": number % 2}


def _rte(number: int, question: str, answers: list[str]) -> dict[str, Any]:
    return {"sentence1": question, "sentence2": answers[0], "label": number % 2, "idx": number}


def _wic(number: int, question: str, answers: list[str]) -> dict[str, Any]:
    word = question.split()[0]
    row = {"word": word, "sentence1": question, "sentence2": f"{word} {answers[0]}"}
    places = {"start1": 0, "start2": 0, "end1": len(word), "end2": len(word)}
    return {**row, **places, "idx": number, "label": number % 2}


def _winogrande(number: int, question: str, answers: list[str]) -> dict[str, Any]:
    row = {"sentence": f"{question} because _ {answers[2]}"}
    options = {"option1": answers[0].split()[0], "option2": answers[1].split()[0]}
    return {**row, **options, "answer": str(1 + number % 2)}


LANGUAGE_MODEL_TASKS: list[tuple[str, str, Callable[[int, str, list[str]], dict[str, Any]]]] = [
    ("allenai/ai2_arc", "ARC-Easy", _ai2),
    ("allenai/ai2_arc", "ARC-Challenge", _ai2),
    ("allenai/openbookqa", "main", _openbookqa),
    ("allenai/winogrande", "winogrande_xl", _winogrande),
    ("aps/super_glue", "copa", _copa),
    ("aps/super_glue", "wic", _wic),
    ("baber/piqa", "default", _piqa),
    ("nyu-mll/glue", "rte", _rte),
]
"""Data sets of lm-eval's tasks: name, configuration, and how a row is made."""


def write_multiple_choice(
    folder: Path, subset: str, row: Callable[[int, str, list[str]], dict[str, Any]]
) -> None:
    """Write the splits of a multiple-choice data set, and add its configuration to the card."""
    summaries = [f.summary for f in functions() if len(f.summary.split()) > 3]
    texts = random.Random(subset).sample(summaries, 40)
    rows = [row(n, texts[4 * n], texts[4 * n + 1 : 4 * n + 4] + ["None"]) for n in range(8)]
    configs = {subset: {}}
    for split in ("train", "validation", "test"):
        file = f"{subset}/{split}-00000-of-00001.parquet"
        write_parquet(folder / file, rows)
        configs[subset][split] = file
    card = folder / "README.md"
    if card.exists():
        present = yaml.safe_load(card.read_text().split("---")[1])["configs"]
        configs |= {
            c["config_name"]: {f["split"]: f["path"] for f in c["data_files"]} for c in present
        }
    write_card(folder, configs)


# ---------------------------------------------------------------------------- models


def write_model(folder: Path, name: str) -> None:
    """Write a random model of the real one's architecture with a tokenizer of its own.

    Raises:
        KeyError: it is not known of which architecture a model of this name is.
    """
    import torch

    torch.manual_seed(0)
    if _is_adapter(name):
        _write_adapter(folder, _base(name))
        return
    tokenizer = _tokenizer(_FAMILIES[_family(name)].tokens)
    model = _FAMILIES[_family(name)].model(tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@dataclass(frozen=True)
class _Tokens:
    """Special tokens of a family; `start` and `end` are added to every text."""

    eos: str
    bos: str | None = None
    pad: str | None = None
    start: str | None = None
    end: str | None = None


@dataclass(frozen=True)
class _Family:
    architecture: str
    tokens: _Tokens
    changes: dict[str, Any]

    def model(self, tokenizer: Any) -> Any:
        """Return a random model of a few thousand weights."""
        import transformers

        config = getattr(transformers, f"{self.architecture}Config")(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **self.changes,
        )
        for head in ("ForCausalLM", "Model"):
            if self.changes.get("num_key_value_heads") or head == "Model":
                return getattr(transformers, f"{self.architecture}{head}")(config)


_DECODER = {"num_key_value_heads": 2, "max_position_embeddings": 4096, "tie_word_embeddings": True}
_BERT_TOKENS = _Tokens("[SEP]", pad="[PAD]", start="[CLS]", end="[SEP]")
_ROBERTA_TOKENS = _Tokens("</s>", "<s>", "<pad>", start="<s>", end="</s>")
_FAMILIES = {
    "llama": _Family(
        "Llama",
        _Tokens("<|end_of_text|>", "<|begin_of_text|>", start="<|begin_of_text|>"),
        _DECODER,
    ),
    "smollm": _Family("Llama", _Tokens("<|endoftext|>", "<|endoftext|>"), _DECODER),
    "qwen": _Family("Qwen2", _Tokens("<|endoftext|>", pad="<|endoftext|>"), _DECODER),
    "mistral": _Family("Mistral", _Tokens("</s>", "<s>", start="<s>"), _DECODER),
    "bert": _Family("Bert", _BERT_TOKENS, {"max_position_embeddings": 512}),
    "roberta": _Family("Roberta", _ROBERTA_TOKENS, {"max_position_embeddings": 514}),
    "xlm-roberta": _Family("XLMRoberta", _ROBERTA_TOKENS, {"max_position_embeddings": 8194}),
}
_NAMES = {  # a part of the name, in lower case → its family; the first that fits
    "mistral": "mistral",
    "smollm": "smollm",
    "qwen": "qwen",
    "llama": "llama",
    "bge-m3": "xlm-roberta",
    "unixcoder": "roberta",
    "graphcodebert": "roberta",
    "codebert": "roberta",
    "contriever": "bert",
    "e5-": "bert",
    "laprador": "bert",
    "retromae": "bert",
    "bge": "bert",
    "bert": "bert",
}


def _family(name: str) -> str:
    for part, family in _NAMES.items():
        if part in name.lower():
            return family
    raise KeyError(f"no miniature of model {name!r}: add its family to {__name__}")


def _tokenizer(tokens: _Tokens) -> Any:
    """Return a byte-level BPE tokenizer that puts special tokens where the real one puts them."""
    import transformers
    from tokenizers import processors

    from revela.pretraining import train_tokenizer

    trained = train_tokenizer((text for _, text in _articles()[:20]), 400)
    names = {"eos_token": tokens.eos, "bos_token": tokens.bos, "pad_token": tokens.pad}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained.backend_tokenizer, **{k: v for k, v in names.items() if v}
    )
    if tokens.start:
        template = [tokens.start, "$A", *([tokens.end] if tokens.end else [])]
        special = {t: tokenizer.convert_tokens_to_ids(t) for t in {*template} - {"$A"}}
        added = [t for t, number in special.items() if number is None]
        tokenizer.add_special_tokens({"additional_special_tokens": added})
        special = {t: tokenizer.convert_tokens_to_ids(t) for t in special}
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join(template), special_tokens=sorted(special.items())
        )
    return tokenizer


def _is_adapter(name: str) -> bool:
    return name.startswith("trumancai/")


def _base(name: str) -> str:
    """Return the backbone of a published adapter, told from the size in its name."""
    sizes = {
        "3b": "meta-llama/Llama-3.2-3B",
        "1b": "meta-llama/Llama-3.2-1B",
        "500m": "Qwen/Qwen2.5-0.5B",
        "0.5b": "Qwen/Qwen2.5-0.5B",
        "135m": "HuggingFaceTB/SmolLM2-135M",
        "0.1b": "HuggingFaceTB/SmolLM2-135M",
    }
    return next(base for size, base in sizes.items() if size in name.lower())


def _write_adapter(folder: Path, base: str) -> None:
    """Write LoRA weights over a base, which an adapter's configuration names."""
    from peft import LoraConfig, get_peft_model

    family = _FAMILIES[_family(base)]
    tokenizer = _tokenizer(family.tokens)
    model = family.model(tokenizer)
    model.name_or_path = base
    targets = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=targets))
    adapted.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
