"""The files of texts that a corpus reads."""

import os
from pathlib import Path
from typing import NoReturn

from revela.common.errors import RevelaError, reading
from revela.config.text import AnyCorpus
from revela.text.formats import ALLOWED, ROWS, is_aside, is_plain, row_format

PUNKT = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")
"""The files of a Punkt model."""


def text_files(path: Path) -> list[Path]:
    """Return the files that a corpus reads, in order; of a folder, all that it can.

    Hidden files, and the results of this workflow if they are in the folder, are not texts; nor are
    a README, a licence and the like beside rows. Formats are told by content in a folder in which
    no name tells one.

    Raises:
        RevelaError: there are none, rows and plain texts, or a name that is not UTF-8.
    """
    with reading(path, "texts"):  # it may be without permission
        if not path.exists():
            raise RevelaError(f"{path}: no such file or folder")
        if not path.is_dir() and (is_plain(path) or not row_format(path)):
            raise RevelaError(f"{path}: unknown format; allowed: {ALLOWED}, a folder")
        files = _in_folder(path) if path.is_dir() else [path]
    for file in files:  # ids of documents, manifests and Snakemake's lists of files are UTF-8
        try:
            str(file).encode()
        except UnicodeEncodeError as error:
            raise RevelaError(f"{str(file)!r}: rename it: its name is not UTF-8") from error
    return files


def _in_folder(folder: Path) -> list[Path]:
    visible = [file for file in _visible(folder) if file.is_file()]
    plain = [file for file in visible if is_plain(file)]
    texts = [file for file in plain if not is_aside(file)]
    others = [file for file in visible if not is_plain(file) and not is_aside(file)]
    rows = [file for file in others if file.name.lower().endswith(ROWS)]
    if rows and texts:
        both = f"both files of rows and plain texts, such as {texts[0].name}"
        raise RevelaError(f"{folder}: contains {both}; use one kind")
    files = rows or (plain if texts else [file for file in others if row_format(file)] or plain)
    if not files:
        raise RevelaError(f"{folder}: no .txt or .md file in it, nor {ALLOWED}")
    return files


def corpus_files(corpus: AnyCorpus) -> list[Path]:
    """Return the local files of a corpus: its texts and the model that splits its sentences."""
    texts = text_files(Path(corpus.path)) if corpus.source == "files" else []
    model = [Path(corpus.punkt, name) for name in PUNKT] if corpus.punkt else []
    for file in model:
        if not file.is_file():
            raise RevelaError(f"{corpus.punkt}: no Punkt model: no {file.name} in it")
    return texts + model


def unread_files(path: Path) -> list[str]:
    """Return the names of a folder's other files and linked folders, which a corpus skips."""
    if not path.is_dir():
        return []
    read = {*text_files(path)}
    return [
        f"{file.name} (a link)" if file.is_symlink() else file.name
        for file in _visible(path)
        if file not in read
    ]


def _visible(folder: Path) -> list[Path]:
    def fail(error: OSError) -> NoReturn:
        raise RevelaError(f"{error.filename}: {error.strerror}") from error

    paths: list[Path] = []
    results = Path("results").resolve()
    within = results in folder.absolute().parents
    for parent, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        here = [Path(parent, name) for name in folders + files if not name.startswith(".")]
        paths += [path for path in here if within or results not in path.absolute().parents]
    return sorted(path for path in paths if path.is_file() or path.is_symlink())
