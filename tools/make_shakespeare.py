#!/usr/bin/env python3
"""Make the text inside the package, src/fedpbc/data/embedded/shakespeare.npz.

    python tools/make_shakespeare.py tinyshakespeare/input.txt

The file is the 40,000 lines of Shakespeare's plays of the public repository karpathy/char-rnn
(data/tinyshakespeare/input.txt, 1,115,394 bytes). Speeches are separated by empty lines, and
begin with a line that names the speaker. What is picked follows from the file alone: the speeches
of every speaker with more than 2,000 characters, joined by line breaks in the order of the plays.
The speaker with most text comes first; of equals, the one who speaks first.

The same Python writes the same bytes every time. Another version of zlib may compress them
otherwise; the arrays are the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

EMBEDDED = Path(__file__).resolve().parent.parent / "src/fedpbc/data/embedded"
LEAST_CHARACTERS = 2000
"""A speaker has more than so many."""


def speeches_by_speaker(text: str) -> dict[str, str]:
    """All that each speaker says, in the order of their first speeches."""
    speeches: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        heading, _, speech = block.strip("\n").partition("\n")
        if heading.endswith(":") and speech:
            speeches.setdefault(heading.removesuffix(":"), []).append(speech)
    return {speaker: "\n".join(each) for speaker, each in speeches.items()}


def make_shakespeare(text: str) -> dict[str, Any]:
    """The texts as bytes, one after another, where each ends, and whose each is."""
    texts = {
        speaker: speech
        for speaker, speech in speeches_by_speaker(text).items()
        if len(speech) > LEAST_CHARACTERS
    }
    speakers = sorted(texts, key=lambda speaker: -len(texts[speaker]))
    joined = "".join(texts[speaker] for speaker in speakers)
    return {
        "text": np.frombuffer(joined.encode("ascii"), dtype=np.uint8),
        "ends": np.cumsum([len(texts[speaker]) for speaker in speakers]).astype(np.int64),
        "speakers": np.array(speakers),
    }


def main() -> None:
    """Write the file into the package, or another folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="the plays as text")
    parser.add_argument("--out", type=Path, default=EMBEDDED, help="where to write")
    options = parser.parse_args()
    arrays = make_shakespeare(options.file.read_text(encoding="ascii"))
    path = options.out / "shakespeare.npz"
    # NumPy dates the members 1980, so equal arrays make equal bytes.
    np.savez_compressed(path, **arrays)
    count, characters = len(arrays["ends"]), len(arrays["text"])
    print(f"{path}: {path.stat().st_size:,} bytes: {count} speakers, {characters:,} characters")


if __name__ == "__main__":
    main()
