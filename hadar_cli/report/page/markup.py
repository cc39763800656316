"""HTML from data: every text is escaped here, and only here."""

from __future__ import annotations

import html
import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from hadar_cli.report.format import plain
from hadar_cli.report.page.figure import Figure

_LONGEST = 400
_NUMERIC = frozenset("$0123456789.,-+–% ×/smhdBkMGTe*")


def text(words: str, limit: int = _LONGEST) -> str:
    """Foreign text as harmless HTML."""
    return html.escape(plain(words, limit))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    best: Collection[tuple[int, int]] = (),
    code: Collection[int] = (),
) -> str:
    """A table; columns of numbers are set to the right, ``best`` cells (row, column) stand out."""
    kept = list(rows)
    numeric = [
        bool(kept) and all(set(row[i]) <= _NUMERIC for row in kept) for i in range(len(columns))
    ]

    def cell(tag: str, row: int, column: int, words: str) -> str:
        kinds = ["number"] * numeric[column] + ["best"] * ((row, column) in best)
        if not numeric[column] and len(words) > 60:
            kinds.append("words")
        shown = f"<code>{text(words)}</code>" if column in code and row >= 0 else text(words)
        attribute = f' class="{" ".join(kinds)}"' if kinds else ""
        return f"<{tag}{attribute}>{shown}</{tag}>"

    head = "".join(cell("th", -1, i, name) for i, name in enumerate(columns))
    body = "\n".join(
        "<tr>" + "".join(cell("td", n, i, words) for i, words in enumerate(row)) + "</tr>"
        for n, row in enumerate(kept)
    )
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def chart(figure: Figure, heading: str = "h2") -> str:
    """A figure's place in the page: its words, its drawing, and its data as a table."""
    says = text(figure.says, 1000)
    remark = f" {text(figure.remark)}" if figure.remark else ""
    return f"""<figure>
<{heading}>{text(figure.title)}</{heading}>
<figcaption>{says}{remark}</figcaption>
<div class="chart" id="{figure.id}" role="img" style="--height: {figure.layout["height"]}px"
 aria-label="{text(figure.title)}: {says}"></div>
<details><summary>Data as a table</summary>
{table(figure.columns, figure.rows)}
</details>
</figure>"""


def section(*parts: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<section{attribute}>\n" + "\n".join(parts) + "\n</section>"


def tile(name: str, value: str, remark: str = "") -> str:
    return (
        f'<div class="tile"><span>{text(name)}</span><b>{text(value)}</b>'
        f"<span>{text(remark)}</span></div>"
    )


def embedded(content: Any) -> str:
    """JSON that can stand in a script element: nothing in it can end the element."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
