"""``hadar schema mix`` and ``hadar schema nodes``: for editors that complete and check."""

from __future__ import annotations

from typing import Annotated

import typer

from hadar_cli.errors import unknown

KINDS = ("mix", "nodes")


def schema(
    kind: Annotated[str, typer.Argument(metavar="mix|nodes", help="Of which kind of file.")],
) -> None:
    """Print the JSON Schema of mixes or of nodes.toml, for your editor."""
    if kind not in KINDS:
        raise unknown(f"there is no schema of {kind!r}", kind, KINDS, fix="mix or nodes")
    from hadar_cli.config.schemas import text

    print(text(kind), end="")
