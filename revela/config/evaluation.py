"""Settings of models and benchmarks."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from revela.config.encoding import EncodingKeys
from revela.config.names import BenchmarkName, CorpusName, EvaluatedName, LanguageWeights, Weights
from revela.config.settings import LocalPath, Natural, Positive, Precision, Range, Settings, Tokens

Language = Literal[
    "arabic", "armenian", "basque", "catalan", "czech", "danish", "dutch", "english", "esperanto",
    "estonian", "finnish", "french", "german", "greek", "hindi", "hungarian", "indonesian", "irish",
    "italian", "lithuanian", "nepali", "norwegian", "persian", "polish", "portuguese", "romanian",
    "russian", "serbian", "sesotho", "spanish", "swedish", "tamil", "turkish", "yiddish",
]  # fmt: skip
"""Languages with a stemmer, as Snowball names them."""


class Bm25Model(Settings):
    """BM25 by bm25s, as mteb ships it."""

    kind: Literal["bm25s"]
    language: Language = Field("english", description="language of the stemmer and stop words")


class LuceneModel(Settings):
    """BM25 by Lucene; the defaults are the parameters of BEIR's published figures."""

    kind: Literal["lucene"]
    k1: float = Field(0.9, ge=0)
    b: float = Field(0.4, ge=0, le=1)


class EncoderModel(Settings):
    """A trained or pretrained encoder: a hub name or a folder."""

    kind: Literal["encoder"]
    retriever: Weights
    adapter: Weights | None = Field(None, description="LoRA adapter of the retriever")
    revision: str | None = None
    """commit of the adapter or, without one, of the retriever"""
    encoding: EncodingKeys = EncodingKeys()
    max_length: Tokens | None = None
    """maximum number of tokens in a text; if null, that of the model's files"""
    times_bm25: bool = False
    """multiply scores by those of BM25, on its top 1,000 documents (LaPraDoR)"""


class ApiModel(Settings):
    """A model behind an API, called through mteb if its key is in the environment."""

    kind: Literal["api"]
    name: str = Field(description="its name in mteb")
    key: str = Field(description="environment variable with the API key")


class HybridModel(Settings):
    """BM25 and a retriever: their runs, fused with the weight that is best on other queries.

    Its weights are the retriever's: 0, 0.1 … 1, and BM25's is the rest. The one with the highest
    mean nDCG@10 over the other tasks of the benchmark is used.
    """

    kind: Literal["hybrid"]
    of: list[EvaluatedName] = Field(min_length=2)
    """BM25, then one or more retrievers, of which the best on the same queries is used"""
    tuned_on: BenchmarkName | None = None
    """benchmark whose tasks choose the weight, instead of the other tasks"""


class LanguageModel(Settings):
    """A language model, evaluated on tasks other than retrieval."""

    kind: Literal["language-model"]
    language_model: LanguageWeights
    revision: str | None = None


Retriever = Bm25Model | LuceneModel | EncoderModel | ApiModel
AnyRetriever = Annotated[Retriever, Field(discriminator="kind")]
AnyModel = Annotated[Retriever | HybridModel | LanguageModel, Field(discriminator="kind")]
SplitName = Annotated[str, Field(pattern=r"^\w+$")]
TaskName = Annotated[str, Field(pattern=r"^[\w.+-]+$")]
TextsTask = Literal["halves", "titles"]


# Tasks of hubs are large; a cluster evaluates them at the same time.
_ONE_PER_JOB: Any = Field(1, description="as of other benchmarks, but 1 by default")


class Benchmark(Settings):
    """Keys of all benchmarks for retrievers."""

    max_length: Tokens = Field(2048, description="maximum number of tokens in a text")
    precision: Precision = "bfloat16"
    tasks_per_job: Positive | None = None
    """a job evaluates a model on this number of the tasks; null: on all"""
    shares_corpus: str | dict[str, str] = {}
    """task → one with most of its passages (or one for all), evaluated in the same job"""


class PydocsBenchmark(Benchmark):
    """Three retrieval tasks built from functions of the Python standard library."""

    source: Literal["pydocs"]
    tasks: list[
        Literal["docstring-to-function", "function-to-docstring", "first-to-second-half"]
    ] = Field(min_length=1)
    max_queries: Positive = 500
    max_documents: Positive = Field(2000, description="maximum, including the relevant ones")
    max_length: Tokens = Field(512, description="maximum number of tokens in a text")
    seed: Natural = 0


def _by_name(tasks: Any) -> Any:
    strings = isinstance(tasks, list) and all(isinstance(task, str) for task in tasks)
    return {task: task for task in tasks} if strings else tasks


class TextsBenchmark(Benchmark):
    """Two retrieval tasks built from a corpus, which should be held out from training.

    `halves`: the first half of a chunk must retrieve the second. `titles`: a document's title, or
    its first line if that is short, must retrieve the document's chunks.
    """

    source: Literal["texts"]
    corpus: CorpusName
    tasks: Annotated[
        dict[TaskName, TextsTask],
        BeforeValidator(_by_name, json_schema_input_type=list[TextsTask] | dict[str, TextsTask]),
    ] = Field(min_length=1)
    """names of your choice → halves or titles, or a list of both"""
    queries: Range = (0.0, 1.0)
    """keep queries whose hash is in this range: [0, 0.5] to choose models, [0.5, 1] to report"""
    max_queries: Positive = 500
    max_length: Tokens = Field(512, description="maximum number of tokens in a text")
    seed: Natural = 0


class IrDatasetsBenchmark(Benchmark):
    """Test collections of ir_datasets, downloaded unless they are on disk."""

    source: Literal["ir_datasets"]
    tasks: dict[TaskName, str] = Field(min_length=1)
    """name of your choice → id in ir_datasets, e.g. beir/scifact/test"""
    tasks_per_job: Positive | None = _ONE_PER_JOB


class MtebBenchmark(Benchmark):
    """Retrieval tasks of mteb, by their names."""

    source: Literal["mteb"]
    tasks: list[str] = Field(min_length=1)
    instructions: dict[str, str] = {}
    """task → text for `{instruction}` in a query prefix; mteb's prompt by default"""
    tasks_per_job: Positive | None = _ONE_PER_JOB


class FolderBenchmark(Benchmark):
    """Collections in BEIR layout, each in the folder `<path>/<task>`.

    It holds `{corpus,queries}.jsonl[.gz]` and `qrels/<split>.tsv` (for `test` also `qrels.tsv`),
    or, in the layout of mteb's data sets, `{corpus,queries,qrels}/<split>-*.parquet`. A relevance
    below 0 counts as 0, as in trec_eval's measures of gain, precision and recall.
    """

    source: Literal["folder"]
    path: LocalPath
    split: SplitName = Field("test", description="split of the judgements, such as `dev`")
    tasks: list[TaskName] = Field(min_length=1)


class LmEvalBenchmark(Settings):
    """Tasks of lm-eval for language models, by their names."""

    source: Literal["lm-eval"]
    tasks: list[str] = Field(min_length=1)
    path: LocalPath | None = Field(None, description="folder of your own tasks, in YAML")
    limit: Positive | None = Field(None, description="use only the first N examples of a task")
    batch_size: Positive = 16


MadeHere = PydocsBenchmark | TextsBenchmark | IrDatasetsBenchmark
ForRetrievers = MadeHere | MtebBenchmark | FolderBenchmark
MadeBenchmark = Annotated[MadeHere, Field(discriminator="source")]
RetrievalBenchmark = Annotated[ForRetrievers, Field(discriminator="source")]
AnyBenchmark = Annotated[ForRetrievers | LmEvalBenchmark, Field(discriminator="source")]
