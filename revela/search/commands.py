"""`revela index`, `search`, `serve`."""

import contextlib
import itertools
import json
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from revela.common.errors import RevelaError, check_name, printable, reading
from revela.common.outputs import write_text
from revela.config.evaluation import Language
from revela.evaluation.benchmarks import read_queries
from revela.search import Ranking
from revela.step import command
from revela.text.formats import ROWS

app = typer.Typer()

_WORDS = 120  # of a chunk, at most
_WIDTH = 160  # characters of a snippet
_WORD = re.compile(r"\w{2,}")
_ID_HEADINGS = ("id", "_id", "qid", "query-id", "query_id", "topic")

FOLDER = Annotated[Path, typer.Argument(help="Folder of the index.")]


@app.command()
def index(
    texts: Annotated[str, typer.Argument(help="Folder or file of texts, or a corpus of --config.")],
    model: Annotated[
        list[str], typer.Option(help="Folder or hub name of a retriever; repeatable.")
    ],
    output: Annotated[Path, typer.Option(help="Folder of the index.")],
    config: Annotated[Path | None, typer.Option(help="Config with the corpus.")] = None,
    field: Annotated[
        str | None, typer.Option(help="Field of the rows that holds the text.")
    ] = None,
    max_words: Annotated[
        int | None,
        typer.Option(min=1, help="Words per chunk; by default half of --max-length, at most 120."),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(min=8, help="Tokens per chunk; by default the models' own, at most 512."),
    ] = None,
    language: Annotated[
        Language | None,
        typer.Option(help="Language of BM25's stemmer and stop words; by default the texts'."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that cut texts.")] = (
        os.cpu_count() or 1
    ),
) -> None:
    """Index texts for search: BM25 and a retriever's embeddings of their chunks.

    A second call resumes an interrupted one, or updates the index to texts that have changed. The
    weight of the retriever in the hybrid is chosen on titles and halves of the chunks.
    """
    from revela.config.read import load_config
    from revela.config.text import AnyCorpus, FilesCorpus
    from revela.search.build import build, fitting_length
    from revela.text.fields import field_names
    from revela.text.files import text_files, unread_files
    from revela.text.formats import is_plain

    max_length = max_length or fitting_length(model)
    if config:
        if max_words or field:
            raise RevelaError("--max-words, --field: with --config, the corpus sets them")
        corpora = load_config(config).corpora
        check_name(str(config), "corpus", texts, corpora)
        corpus: AnyCorpus = corpora[texts]
    else:
        files = text_files(Path(texts))
        fields = field_names(files, field)
        if not is_plain(files[0]):
            print(f"fields: {fields.dump()}")
        corpus = FilesCorpus(
            source="files",
            path=str(Path(texts).resolve()),  # an index is updated from any folder
            max_words=max_words or min(_WORDS, max_length // 2),
            fields=fields,
            on_bad_row="skip",
        )
    if unread := unread_files(Path(corpus.path)) if corpus.source == "files" else []:
        print(f"{len(unread)} other files not read, such as {unread[0]}")
    made = build(corpus, model, output, max_length, language, workers)
    print(f"{output}: {made['documents']} documents, {made['chunks']} chunks")


@command(app)
def search(
    folder: FOLDER,
    query: Annotated[str | None, typer.Argument(help="A question or keywords.")] = None,
    queries: Annotated[
        Path | None, typer.Option(help="Lines `id<tab>query`, or queries.jsonl as in BEIR.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="File for the TREC run of --queries; else it is printed.")
    ] = None,
    depth: Annotated[
        int | None, typer.Option(min=1, help="Documents per query: 10, or with --compare 3.")
    ] = None,
    chunks: Annotated[bool, typer.Option("--chunks", help="Chunks instead of documents.")] = False,
    by: Annotated[
        Ranking | None,
        typer.Option(help="Rank by both, the retriever (with --compare the default) or BM25."),
    ] = None,
    dense_weight: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="The retriever's in a hybrid; by default the index's own."),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show what each model of the index finds, in columns.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Search an index: print rank, score, source and a snippet of each document found.

    A document is ranked by its best chunk. With --queries, the result is a TREC run.
    """
    from revela.search.index import Index, without_spaces

    if (query is None) == (queries is None) or (output and (compare or not queries)):
        raise RevelaError("give a query or --queries; --output is for --queries, without --compare")
    opened = Index(folder)
    text = (query or "").encode(errors="replace").decode()  # not UTF-8: it has surrogates
    asked = _read_queries(queries) if queries else {"": text}
    by = by or ("dense" if compare else "hybrid")
    depth = depth or (3 if compare else 10)
    found = {
        label: opened.search(list(asked.values()), depth, by, number, dense_weight, chunks)
        for number, label in enumerate(opened.labels if compare else opened.labels[:1])
    }
    if compare and not as_json:
        _print_columns(opened, asked, found)
        return
    lines = []
    for label, rankings in found.items():
        model = without_spaces(label)
        system = {"bm25": "bm25", "dense": model, "hybrid": f"bm25+{model}"}[by]
        for (name, text), hits in zip(asked.items(), rankings, strict=True):
            for rank, hit in enumerate(hits, start=1):
                row = opened.row(hit)
                if as_json:
                    named = {"query": name} if queries else {}
                    named |= {"model": label} if compare else {}
                    lines.append(json.dumps(named | {"rank": rank, **row}, ensure_ascii=False))
                elif queries:
                    document = opened.trec_id(hit.chunk, chunks)
                    lines.append(f"{name} Q0 {document} {rank} {hit.score:.9g} {system}")
                else:
                    source, snippet = _shown(row, text)
                    lines += [f"{rank:2}. {hit.score:.3f}  {source}", f"    {snippet}"]
    if output:
        write_text(output, "".join(f"{line}\n" for line in lines))
        print(f"{output}: {len(asked)} queries")
    elif lines:
        print("\n".join(lines))
    elif not as_json:
        print("nothing found", file=sys.stderr)


def _print_columns(opened: Any, asked: dict[str, str], found: dict[str, list[Any]]) -> None:
    """Print a table for each query: a column for each model, a row for each rank."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for (name, text), *rankings in zip(asked.items(), *found.values(), strict=True):
        table = Table(title=Text(printable(f"{name}  {text}".strip())), title_justify="left")
        for label in found:
            table.add_column(Text(label), ratio=1, overflow="fold")
        for hits in itertools.zip_longest(*rankings):
            shown = ["\n".join(_shown(opened.row(hit), text)) if hit else "" for hit in hits]
            table.add_row(*map(Text, shown), end_section=True)
        console.print(table)


@app.command()
def serve(
    folder: FOLDER,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 chooses a free port.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address; any but loopback requires REVELA_TOKEN to be set.")
    ] = "127.0.0.1",
) -> None:
    """Search an index in a browser: BM25, the hybrid and each retriever side by side."""
    from revela.search.index import Index

    try:
        from revela.search.server import run
    except ModuleNotFoundError as error:
        raise RevelaError(f"{error.name} is missing: pip install 'revela[serve]'") from error
    run(Index(folder), host, port, os.environ.get("REVELA_TOKEN"))


def _shown(row: dict[str, Any], query: str) -> tuple[str, str]:
    """Return the source of a hit, and a snippet."""
    source = f"{row['document']} [{row['position']}]  {row['title']}".rstrip()
    return printable(source), printable(_snippet(row["text"], query))


def _read_queries(path: Path) -> dict[str, str]:
    if path.name.lower().endswith(ROWS):
        with contextlib.redirect_stdout(sys.stderr):  # notes do not belong into a printed run
            return read_queries([path])
    queries: dict[str, str] = {}
    with reading(path, "queries"), path.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, start=1):
            name, _, text = line.rstrip("\n").partition("\t")
            if number == 1 and name.lower() in _ID_HEADINGS:
                continue
            if name.split() != [name] or not text.strip() or "\t" in text or name in queries:
                expected = "expected a unique id without spaces, a tab and a query"
                raise RevelaError(f"{path}:{number}: {expected}; got {line.strip()[:80]!r}")
            queries[name] = text
    if not queries:
        raise RevelaError(f"{path}: no queries")
    return queries


def _snippet(text: str, query: str) -> str:
    """Return a line of a text that begins shortly before the first occurrence of a query's word."""
    words = " ".join(text.split())
    asked = {word.lower() for word in _WORD.findall(query)}
    first = next((m.start() for m in _WORD.finditer(words) if m[0].lower() in asked), 0)
    start = max(0, min(first - _WIDTH // 4, len(words) - _WIDTH))
    start = words.rfind(" ", 0, start) + 1 if start else 0
    part = words[start : start + _WIDTH]
    return ("… " if start else "") + part + (" …" if start + _WIDTH < len(words) else "")
