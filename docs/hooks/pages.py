"""Pages that stand outside `docs/` or are no Markdown, and equations as MathML."""

import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
REPOSITORY_ONLY = r"\[([^\]]*)\]\((?:LICENSE|data/pydocs/LICENSE\.txt|CITATION\.cff)\)"


def on_files(files: Files, config: Any) -> Files:
    """Add the top level's Markdown, and notebooks as Markdown."""
    for source, page in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, its_page in OUTSIDE.items():
            text = text.replace(f"]({other}", f"]({its_page}")
        text = re.sub(REPOSITORY_ONLY, r"\1", text)
        files.append(File.generated(config, page, content=text))
    for notebook in sorted((ROOT / "docs").rglob("*.ipynb")):
        page = notebook.relative_to(ROOT / "docs").with_suffix(".md").as_posix()
        text = from_notebook(json.loads(notebook.read_text(encoding="utf-8")))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn `$$…$$` and $`…`$, as GitHub reads them, into MathML; link notebooks' pages."""
    markdown = re.sub(
        r"^\$\$\n(.+?)\n\$\$$",
        lambda found: convert(found[1], display="block"),
        markdown,
        flags=re.DOTALL | re.MULTILINE,
    )
    markdown = re.sub(r"\$`(.+?)`\$", lambda found: convert(found[1]), markdown, flags=re.DOTALL)
    return markdown.replace(".ipynb)", ".md)")


def from_notebook(notebook: dict[str, Any]) -> str:
    """Return a notebook's cells and outputs as Markdown; pictures stand in the page itself."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                continue
            data = output.get("data", {})
            if "image/png" in data:
                picture = data["image/png"].replace("\n", "")
                parts.append(f"![Output](data:image/png;base64,{picture})")
            elif text := output.get("text") or data.get("text/plain"):
                parts.append(f"```text\n{''.join(text).rstrip()}\n```")
    return "\n\n".join(parts)
