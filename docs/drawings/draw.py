"""Draw the two diagrams of the documentation: `python docs/drawings/draw.py` writes them here."""

from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape

INK, GREY, FAINT, RED = "#1f2430", "#5c6370", "#e3e6eb", "#c0392b"
BLUE, GREEN, ORANGE, VIOLET = "#2f6db3", "#3c8a4b", "#d9822b", "#6f53a3"
TINTS = {BLUE: "#e3eefa", GREEN: "#e4f3e6", ORANGE: "#fdf0e0", VIOLET: "#eee9f7"}
FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"


def text(x: float, y: float, line: str, size: int = 13, colour: str = INK, **style: str) -> str:
    """Return a line of text; `style` are attributes of SVG such as anchor or weight."""
    attributes = "".join(
        f' {"text-anchor" if key == "anchor" else f"font-{key}"}="{value}"'
        for key, value in style.items()
    )
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}"{attributes}>'
        f"{escape(line)}</text>"
    )


def lines(x: float, y: float, texts: Iterable[str], size: int = 13, colour: str = INK) -> str:
    """Return lines of text below each other."""
    return "".join(text(x, y + 1.4 * size * n, one, size, colour) for n, one in enumerate(texts))


def box(x: float, y: float, width: float, height: float, stroke: str, fill: str = "") -> str:
    """Return a rounded box, filled with its stroke's tint unless told otherwise."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" '
        f'fill="{fill or TINTS[stroke]}" stroke="{stroke}" stroke-width="1.5"/>'
    )


def cell(x: float, y: float, width: float, height: float, fill: str, opacity: float = 1) -> str:
    """Return a filled rectangle between white lines."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" '
        f'fill-opacity="{opacity:g}" stroke="#ffffff"/>'
    )


def outline(x: float, y: float, width: float, height: float, colour: str, dashes: str = "") -> str:
    """Return a rectangle that is not filled."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="none" '
        f'stroke="{colour}" stroke-width="1.6"{dashed}/>'
    )


def line(x: float, y: float, to_x: float, to_y: float, width: float, colour: str) -> str:
    """Return a line."""
    return (
        f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke="{colour}" '
        f'stroke-width="{width:g}" stroke-linecap="round"/>'
    )


def arrow(x: float, y: float, to_x: float, to_y: float, gradient: bool = False) -> str:
    """Return an arrow along an axis; those of gradients are dashed and red."""
    colour, dashed = (RED, ' stroke-dasharray="5 3"') if gradient else (INK, "")
    along, down = (to_x > x) - (to_x < x), (to_y > y) - (to_y < y)
    back_x, back_y = to_x - 9 * along, to_y - 9 * down
    head = f"{to_x:g},{to_y:g} {back_x + 4 * down:g},{back_y + 4 * along:g} "
    head += f"{back_x - 4 * down:g},{back_y - 4 * along:g}"
    return (
        f'<line x1="{x:g}" y1="{y:g}" x2="{back_x:g}" y2="{back_y:g}" stroke="{colour}" '
        f'stroke-width="2"{dashed}/><polygon points="{head}" fill="{colour}"/>'
    )


def drawing(width: int, height: int, title: str, *shapes: str) -> str:
    """Return a whole SVG on white, so that it can be read on dark pages too."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="{FONT}" role="img">'
    )
    paper = f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", paper, *shapes, "</svg>"]) + "\n"


# ---------------------------------------------------------------------------- the framework

CHUNKS = {
    "A1": (BLUE, "Otters hunt in cold rivers", "all winter long."),
    "A2": (BLUE, "Their fur traps air, which", "keeps them warm."),
    "B1": (GREEN, "A compiler turns source", "into machine code."),
    "B2": (GREEN, "It checks all types before", "it emits anything."),
}
SIMILARITY = {
    "A1": {"A2": 0.85, "B1": 0.06, "B2": 0.09},
    "A2": {"A1": 0.88, "B1": 0.05, "B2": 0.07},
    "B1": {"A1": 0.05, "A2": 0.06, "B2": 0.89},
    "B2": {"A1": 0.08, "A2": 0.07, "B1": 0.85},
}


def framework() -> str:
    """Return the drawing of how retriever and language model learn together."""
    return drawing(
        980,
        440,
        "Revela: the retriever's similarities weigh what a language model reads in other chunks",
        *_batch(24, 62),
        line(272, 68, 272, 386, 2, INK),
        arrow(272, 114, 326, 114),
        box(326, 76, 164, 76, ORANGE),
        text(408, 108, "Retriever", 16, anchor="middle", weight="bold"),
        text(408, 131, "a vector for each chunk", 12, GREY, anchor="middle"),
        arrow(490, 102, 596, 102),
        text(542, 91, "softmax(cos / τ)", 12, GREY, anchor="middle"),
        arrow(596, 128, 490, 128, gradient=True),
        *_similarities(626, 62),
        arrow(676, 206, 676, 262),
        arrow(712, 262, 712, 206, gradient=True),
        text(664, 239, "weights of row A2", 12, GREY, anchor="end"),
        arrow(272, 331, 326, 331),
        *_language_model(326, 262),
        arrow(836, 318, 874, 318),
        arrow(874, 344, 836, 344, gradient=True),
        box(874, 299, 92, 64, RED, "#fbe9e7"),
        text(920, 326, "next-token", 12, anchor="middle", weight="bold"),
        text(920, 343, "loss", 12, anchor="middle", weight="bold"),
        arrow(24, 424, 66, 424, gradient=True),
        text(
            76,
            428,
            "Gradients train both models: better similarities make better predictions. No queries, "
            "no labels. Afterwards the retriever works alone.",
            13,
        ),
    )


def _batch(x: float, y: float) -> list[str]:
    shapes = [text(x, y - 26, "A batch: B chunks of raw text", 15, weight="bold")]
    shapes += [text(x, y - 8, "neighbours in their documents, A and B", 12, GREY)]
    for n, (name, (colour, *words)) in enumerate(CHUNKS.items()):
        top = y + 6 + 84 * n
        shapes.append(box(x, top, 238, 66, colour))
        shapes.append(text(x + 14, top + 39, name, 16, colour, weight="bold"))
        shapes.append(lines(x + 50, top + 28, words, 14))
    return shapes


def _similarities(x: float, y: float) -> list[str]:
    side = 36
    shapes = [
        text(x, y - 26, "Similarities", 15, weight="bold"),
        lines(
            x + 4 * side + 16,
            y + 42,
            [
                "Row i: how much chunk i",
                "reads of each other one.",
                "Rows sum to one; none",
                "reads itself.",
            ],
            12,
            GREY,
        ),
    ]
    for row, name in enumerate(CHUNKS):
        top = y + side * row
        shapes.append(text(x - 8, top + 23, name, 12, CHUNKS[name][0], anchor="end", weight="bold"))
        middle = x + side * (row + 0.5)
        shapes.append(
            text(middle, y - 6, name, 12, CHUNKS[name][0], anchor="middle", weight="bold")
        )
        for column, other in enumerate(CHUNKS):
            left = x + side * column
            if name == other:
                shapes.append(cell(left, top, side, side, FAINT))
                continue
            weight = SIMILARITY[name][other]
            shapes.append(cell(left, top, side, side, ORANGE, 0.12 + 0.8 * weight))
            number = f"{weight:.2f}".lstrip("0")
            shapes.append(text(left + side / 2, top + 22, number, 11, anchor="middle"))
    return [*shapes, outline(x, y + side, 4 * side, side, INK)]


def _language_model(x: float, y: float) -> list[str]:
    shapes = [
        box(x, y, 510, 138, VIOLET),
        text(x + 14, y + 24, "Language model", 16, weight="bold"),
        text(x + 196, y + 24, "reads the others by in-batch attention", 12, GREY),
    ]
    top, token = y + 72, x + 196
    for n, (name, weight) in enumerate(SIMILARITY["A2"].items()):
        middle = y + 51 + 31 * n
        shapes.append(line(x + 62, middle, token - 8, top + 12, 10 * weight, ORANGE))
        shapes.append(box(x + 16, middle - 12, 46, 24, CHUNKS[name][0]))
        shapes.append(text(x + 39, middle + 5, name, 13, anchor="middle", weight="bold"))
    for n, word in enumerate(["Their", "fur", "traps"]):
        left = token + 56 * n
        shapes.append(box(left, top, 50, 26, BLUE))
        shapes.append(text(left + 25, top + 18, word, 13, anchor="middle"))
    shapes += [
        arrow(token + 164, top + 13, token + 204, top + 13),
        box(token + 204, top, 90, 26, VIOLET, "#ffffff"),
        text(token + 249, top + 18, "air ?", 13, anchor="middle", weight="bold"),
        text(token, top - 10, "A2: its own prefix", 12, GREY),
        text(token + 204, top - 10, "next token", 12, GREY),
        text(token, top + 46, "and the other chunks, weighted", 12, ORANGE),
    ]
    return shapes


# ---------------------------------------------------------------------------- in-batch attention

LENGTHS = (4, 3, 5)  # tokens of three chunks
WEIGHTS = ((0, 0.75, 0.25), (0.9, 0, 0.1), (0, 1, 0))
SIDE, GAP = 14, 10


def in_batch_attention() -> str:
    """Return the drawing of what the tokens of a batch attend to in a layer."""
    x, y = 96, 92
    return drawing(
        980,
        476,
        "In-batch attention: which tokens attend to which, in one layer",
        text(24, 36, "One layer: who reads whom", 16, weight="bold"),
        text(24, 56, "three chunks of 4, 3 and 5 tokens, each once as an e row and once as an h "
             "row", 12, GREY),
        *_attention_map(x, y),
        *_legend(544, 100),
    )  # fmt: skip


def _starts() -> list[tuple[int, float, int]]:
    """Return the chunk, the offset and the length of each e row, then of each h row."""
    found, offset = [], 0.0
    for half in range(2):
        for chunk, length in enumerate(LENGTHS):
            found.append((chunk, offset, length))
            offset += SIDE * length + 3
        offset += GAP * (half == 0)
    return found


def _attention_map(x: float, y: float) -> list[str]:
    rows = _starts()
    shapes = []
    for n, (chunk, offset, length) in enumerate(rows):
        name, middle = f"{'eh'[n > 2]}{'₁₂₃'[chunk]}", offset + SIDE * length / 2
        shapes.append(text(x - 10, y + middle + 5, name, 15, anchor="end", weight="bold"))
        shapes.append(text(x + middle, y - 10, name, 15, anchor="middle", weight="bold"))
        for m, (other, across, width) in enumerate(rows):
            shapes += _block(x + across, y + offset, n > 2, m > 2, chunk, other, length, width)
    chunk, offset, length = rows[4]
    reading = y + offset + SIDE
    return [
        *shapes,
        outline(x - 2, reading - 1, rows[5][1] + SIDE * LENGTHS[2] + 4, SIDE + 2, INK),
        text(x - 36, reading + 12, "→", 18, anchor="end"),
        text(x + 186, y + 376, "keys and values of …", 12, GREY, anchor="middle"),
        f'<g transform="rotate(-90 30 {y + 186:g})">'
        + text(30, y + 186, "queries of …", 12, GREY, anchor="middle")
        + "</g>",
    ]


def _block(
    x: float, y: float, reads: bool, read: bool, chunk: int, other: int, length: int, width: int
) -> list[str]:
    """Return the cells of one row's queries and one row's keys."""
    weight = WEIGHTS[chunk][other] if reads and not read else 0.0
    fill, opacity = (ORANGE, 0.15 + 0.8 * weight) if weight else (FAINT, 0.55)
    shapes = [cell(x, y, SIDE * width, SIDE * length, fill, opacity)]
    if reads == read and chunk == other:
        for query in range(length):
            shapes.append(cell(x, y + SIDE * query, SIDE * (query + 1), SIDE, BLUE, 0.85))
    across = "".join(f"M{x:g} {y + SIDE * n:g}h{SIDE * width}" for n in range(1, length))
    down = "".join(f"M{x + SIDE * n:g} {y:g}v{SIDE * length}" for n in range(1, width))
    shapes.append(f'<path d="{across}{down}" stroke="#ffffff"/>')
    if reads and not read and chunk != other:
        label = f"{weight:g}" if weight else "0: skipped"
        colour = INK if weight else GREY
        middle = (x + SIDE * width / 2, y + SIDE * length / 2 + 4)
        shapes.append(text(*middle, label, 12 if weight else 10, colour, anchor="middle"))
    return shapes


def _legend(x: float, y: float) -> list[str]:
    entries = [
        (BLUE, 0.85, "Its own prefix: causal self-attention",
         ["as in the stock model, for e rows and h rows alike"]),
        (ORANGE, 0.8, "Another chunk's e row, times Sim(i, j)",
         ["all its tokens, with a softmax for each chunk j;", "the retriever gives Sim and learns "
          "through it"]),
        (FAINT, 0.9, "Nothing",
         ["a chunk never reads its own e row or any other h row;", "pairs below 10⁻¹² are not "
          "computed"]),
    ]  # fmt: skip
    shapes = []
    for colour, opacity, heading, details in entries:
        shapes.append(cell(x, y - 13, 18, 18, colour, opacity))
        shapes.append(text(x + 30, y + 1, heading, 14, weight="bold"))
        shapes.append(lines(x + 30, y + 21, details, 13, GREY))
        y += 40 + 18 * len(details)
    return [
        *shapes,
        line(x, y - 12, x + 412, y - 12, 1, FAINT),
        text(x, y + 14, "→ the second token of h₂ gets", 14, weight="bold"),
        text(x, y + 38, "causal(h₂) + 0.9 · full(h₂, e₁) + 0.1 · full(h₂, e₃)", 14, VIOLET),
        lines(
            x,
            y + 70,
            ["e rows: chunks by themselves, which give keys and values.",
             "h rows: the same chunks reading the others; the loss is theirs.",
             "Both pass through one stock model, packed without padding."],
            13,
        ),
    ]  # fmt: skip


DRAWINGS = {"framework.svg": framework, "in-batch-attention.svg": in_batch_attention}


def main(folder: Path) -> None:
    """Write all drawings."""
    for name, draw in DRAWINGS.items():
        (folder / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(__file__).parent)
