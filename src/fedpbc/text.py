"""Text that may come from anyone, made safe to show: one line, bounded, no control characters.

Also names, durations and commands as people read them.
"""

from __future__ import annotations

import os
import shlex
import unicodedata
from collections.abc import Sequence

__all__ = [
    "LINE_LIMIT",
    "command",
    "format_duration",
    "listed",
    "printable",
    "shell_quoted",
    "visible",
]

LINE_LIMIT = 500
"""Characters of a message."""

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that a terminal may obey, or that change what a reader sees: control
characters, direction marks, lone surrogates, private and unassigned characters."""


def printable(text: object, limit: int = LINE_LIMIT) -> str:
    """Return text as one line without hidden characters, shortened to ``limit`` characters.

    White space collapses to single spaces; hidden characters appear as escapes.

    Example:
        >>> printable("a\\x1b[31mred\\nline\\u202e")
        'a\\\\x1b[31mred line\\\\u202e'
        >>> printable("x" * 20, limit=10)
        'xxxxxxxx …'
    """
    # Before anything else: a text of gigabytes must not be processed whole.
    words = " ".join(str(text)[: 4 * limit + 1].split())
    shown = "".join(map(_escaped, words)) if not words.isascii() or _has_control(words) else words
    return shown if len(shown) <= limit else shown[: limit - 2].rstrip() + " …"


def visible(text: object, limit: int = LINE_LIMIT) -> str:
    """Like :func:`printable`, but spaces stay as they are: for lines that are laid out.

    Example:
        >>> visible("  name   \\x1b[31mred")
        '  name   \\\\x1b[31mred'
    """
    line = "".join(" " if c.isspace() else c for c in str(text)[: limit + 1])
    shown = line if line.isprintable() else "".join(map(_escaped, line))
    return shown if len(shown) <= limit else shown[: limit - 2].rstrip() + " …"


def shell_quoted(word: object) -> str:
    """Return a word, such as a path, as it can be pasted into a shell, in visible characters.

    Hidden characters, and bytes of a path that are not UTF-8, are in the notation that bash, zsh
    and ksh share.

    Example:
        >>> shell_quoted("runs/a"), shell_quoted("my runs/a"), shell_quoted("runs/\\udcff")
        ('runs/a', "'my runs/a'", "$'runs/\\\\xff'")
    """
    text = str(word)
    if text.isprintable():
        return shlex.quote(text)
    try:
        content = os.fsencode(text)
    except UnicodeEncodeError:  # No path on disk: half of a character.
        content = text.encode(errors="backslashreplace")
    return "$'" + "".join(map(_shell_escaped, content)) + "'"


def _shell_escaped(byte: int) -> str:
    character = chr(byte)
    if character in "\\'":
        return "\\" + character
    return character if " " <= character <= "~" else f"\\x{byte:02x}"


def _has_control(text: str) -> bool:
    return not text.isprintable()


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    # A surrogate stands for a byte that was not UTF-8, as in a file's name.
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def format_duration(seconds: float) -> str:
    """Return a duration as people say it.

    Example:
        >>> format_duration(42), format_duration(600), format_duration(9000)
        ('42 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} d"


def command(*words: object) -> str:
    """Return a command in quotes, ready to be pasted into a shell.

    Example:
        >>> command("fedpbc", "report", "runs/a"), command("fedpbc", "report", "my runs")
        ("'fedpbc report runs/a'", "`fedpbc report 'my runs'`")
    """
    line = " ".join(map(shell_quoted, words))
    return f"`{line}`" if "'" in line else f"'{line}'"


def listed(names: Sequence[str], limit: int = 6) -> str:
    """Names in a sentence; of many, the first.

    Example:
        >>> listed(["a", "b", "c"]), listed(list("abcdefgh"), limit=3)
        ('a, b and c', 'a, b, c and 5 others')
    """
    if len(names) > limit + 1:
        names = [*names[:limit], f"{len(names) - limit} others"]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
