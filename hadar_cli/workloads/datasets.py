"""Finding and reading the real data sets' files; a missing one ends the script with exit code 2."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn


def refuse(message: str) -> NoReturn:
    """Leave with one line on stderr and the exit code that hadar uses for bad input."""
    print(message, file=sys.stderr)
    raise SystemExit(2)


def find(data_dir: Path | None, folder: str, names: Sequence[str], source: str) -> list[Path]:
    """The files ``names`` in ``data_dir`` or its ``folder``, as the data set's archive unpacks."""
    if data_dir is None:
        refuse(f"no --data-dir given: {', '.join(names)} needed. Get {source}")
    places = (data_dir, data_dir / folder)
    present = [[name for name in names if (place / name).is_file()] for place in places]
    best = max((0, 1), key=lambda i: len(present[i]))
    if absent := [name for name in names if name not in present[best]]:
        looked = places[best] if present[best] else " and ".join(map(str, places))
        refuse(f"missing {', '.join(absent)}: looked in {looked}. Get {source}")
    return [places[best] / name for name in names]


def read_lines(path: Path) -> list[str]:
    """Lines ended by a newline alone: other separators of Unicode occur within sentences."""
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        refuse(f"{path} is not UTF-8 text: {error}")


class Vocabulary:
    """Words to numbers, most frequent first; the specials come before all words."""

    def __init__(
        self, sentences: Iterable[Sequence[str]], specials: Sequence[str], min_count: int = 1
    ) -> None:
        counts = Counter(word for sentence in sentences for word in sentence)
        # Ties are broken by spelling, so that every node numbers the words alike.
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        frequent = [word for word, n in ranked if n >= min_count and word not in specials]
        self.words = [*specials, *frequent]
        self.index = {word: i for i, word in enumerate(self.words)}
        self.unknown = self.index["<unk>"]

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> list[int]:
        return [self.index.get(word, self.unknown) for word in words]
