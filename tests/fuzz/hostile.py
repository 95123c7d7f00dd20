"""Values that have broken programs: numbers, texts, paths, TOML, JSON and bytes."""

from __future__ import annotations

import json
from random import Random
from typing import Any

INTEGERS = (0, -1, 1, 2, 3, 7, -(2**63), 2**63, 2**64, 10**21, -(10**30), 10**400)
LARGE_INTEGERS = (10**6, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1)
"""Allowed in some places, and then hours of work or more than the memory."""
FLOATS = (
    *(0.0, -0.0, 0.5, 1.0, 1.5, -1.0, 1e-9, 1e-30, 1e-45, 1e-310, 5e-324, 1e38, 3.5e38, 1e39),
    *(1e154, 1e300, 1e308, 1.7976931348623157e308, -1e308),
    *(float("nan"), float("inf"), float("-inf")),
)
CHARACTERS = (
    "\x1b[31m",
    "\x1b]0;title\x07",
    "\x1b[2J",
    "\u202e",
    "\u200f",
    "\u2066",
    "\u2028",
    "\x85",
    "\x9b1m",
    "\r",
    "\x08",
    "\x07",
    "\t",
    "\n",
    "\ufeff",
    "\u0301" * 20,
    "\U000e0041",
    "\ue000",
    "\U0001f469\u200d\U0001f4bb",
    "é",
    "日本",
    "ß",
    "١٢",
    "½",
    "²",
)
TEXTS = (
    "",
    " ",
    "x[/b]",
    "[bold]x[/bold]",
    "[link=https://example.org]x[/link]",
    "[/]",
    ":smile:",
    "%s%n",
    "{0}{x}",
    "$HOME",
    "`id`",
    "'",
    '"',
    "\\",
    "a,b",
    ",,",
    "nan",
    "inf",
    "-",
    "--",
    "-1",
    "0x10",
    "1_000",
    "1e3",
    "true",
    "null",
    "None",
    "<script>alert(1)</script>",
    "a" * 300,
    "a" * 5000,
    "é" * 5000,
    "__class__",
    "server",
    "auto",
)
PATHS = (
    "",
    ".",
    "..",
    "/",
    "~",
    "~nosuchuser/x",
    "~root/nope/x",
    "nope",
    "nope/nope.npy",
    "nope.csv",
    "mine",
    "mine.txt",
    "mine.txt/x",
    "../above.txt",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/proc/self/mem",
    "/proc/self/environ",
    "a" * 300,
    "a/" * 1500 + "b",
    "a" * 5000,
    "x\x1b[31m.npy",
    "x\u202e.csv",
    "x\udcff\udcfe.toml",
    "line\nbreak.toml",
    "loop",
    "fifo",
    "fifo.csv",
    "fifo.npy",
    "x[/b].npy",
)
"""``loop`` and ``fifo`` are made in the working folder."""


def integer(random: Random, *, large: float = 0.01) -> int:
    """A number that may be wrong; seldom one that asks for too much work."""
    return random.choice(LARGE_INTEGERS if random.random() < large else INTEGERS)


def number(random: Random) -> float | int:
    """Any number."""
    return random.choice(FLOATS) if random.random() < 0.7 else integer(random)


def text(random: Random) -> str:
    """A text that may do harm where it is shown, parsed or used as a name."""
    if random.random() < 0.5:
        return random.choice(TEXTS)
    parts = [random.choice(CHARACTERS), random.choice(("a", "name", "server", "1", ""))]
    random.shuffle(parts)
    return "".join(parts)


def path(random: Random) -> str:
    """A path that is no file, or no file that one should read."""
    return random.choice(PATHS)


def unlike(random: Random, *, depth: int = 0) -> Any:
    """Any plain value."""
    pick = random.randrange(10 if depth < 3 else 7)
    if pick < 2:
        return integer(random)
    if pick < 4:
        return random.choice(FLOATS)
    if pick < 6:
        return text(random)
    if pick < 7:
        return random.choice((True, False))
    if pick < 9:
        return [unlike(random, depth=depth + 1) for _ in range(random.randrange(4))]
    return {text(random): unlike(random, depth=depth + 1) for _ in range(random.randrange(3))}


def toml_value(random: Random, value: Any = None) -> str:
    """A value as TOML writes it; sometimes not quite."""
    if value is None:
        value = unlike(random)
    special = random.random()
    if special < 0.04:
        return random.choice(
            ("1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "[" * 3000, "[" * 50 + "]" * 50)
        )
    if special < 0.06:
        return random.choice(("1" * 5000, "0x" + "f" * 5000, "1.2.3", "1..2", "=", "'''", "[1,"))
    return as_toml(value)


def as_toml(value: Any) -> str:
    """A value in TOML's notation."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return toml_string(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    pairs = (f"{toml_string(str(key))} = {as_toml(inner)}" for key, inner in value.items())
    return "{" + ", ".join(pairs) + "}"


def toml_string(value: str) -> str:
    """A basic string, with escapes."""
    escaped = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
    return '"' + "".join(escaped).encode("utf-8", "replace").decode() + '"'


def json_value(random: Random) -> str:
    """A value as JSON writes it; sometimes not quite."""
    special = random.random()
    if special < 0.15:
        return random.choice(
            ("NaN", "1e999", "-Infinity", "[" * 100_000, '{"a":' * 2000, "1" * 5000, "", "\ufeff1")
        )
    return json.dumps(unlike(random))


def mutate(random: Random, content: bytes) -> bytes:
    """Bytes with one or two damages."""
    for _ in range(random.choice((1, 1, 2))):
        content = _mutate_once(random, content)
    return content


def _mutate_once(random: Random, content: bytes) -> bytes:
    data = bytearray(content)
    size = len(data)
    at = random.randrange(size) if size else 0
    what = random.randrange(12)
    if what == 0 and size:
        data[at] ^= 1 << random.randrange(8)
    elif what == 1 and size:
        data[at] = random.choice((0, 9, 10, 13, 27, 34, 44, 45, 48, 57, 127, 128, 255))
    elif what == 2:
        del data[at:]
    elif what == 3:
        del data[at : at + random.choice((1, 2, 8, 64))]
    elif what == 4:
        data[at:at] = random.randbytes(random.choice((1, 2, 8, 64)))
    elif what == 5:
        data[at:at] = data[at : at + random.choice((1, 8, 64, 512))]
    elif what == 6:
        return _mutate_line(random, content)
    elif what == 7:
        data[at:at] = text(random).encode("utf-8", "surrogateescape")
    elif what == 8:
        return _mutate_number(random, content)
    elif what == 9:
        data[at : at + 8] = bytes(8)
    elif what == 10:
        data += random.choice((b"\n", b"\0", b"garbage", b"\xff\xfe", b"\n\n{}\n"))
    else:
        data = bytearray(
            random.choice((b"", b"\n", b"\0" * 64, b"{}", b"[]", b"null", b"\xef\xbb\xbf"))
        )
    return bytes(data)


def _mutate_line(random: Random, content: bytes) -> bytes:
    lines = content.split(b"\n")
    at = random.randrange(len(lines))
    what = random.randrange(5)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(at, lines[at])
    elif what == 2:
        other = random.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif what == 3:
        lines[at] = lines[at][: len(lines[at]) // 2]
    else:
        lines[at] = random.choice(lines)
    return b"\n".join(lines)


def _mutate_number(random: Random, content: bytes) -> bytes:
    """Another number in the place of one."""
    starts = [i for i, byte in enumerate(content) if 48 <= byte <= 57]
    if not starts:
        return content
    start = end = random.choice(starts)
    while end < len(content) and content[end : end + 1] in b"0123456789.e":
        end += 1
    other = random.choice(
        (
            "0",
            "-1",
            "1.5",
            "1e308",
            "1e999",
            "nan",
            "NaN",
            "99",
            "1" * 5000,
            "7",
            "3",
            "true",
            '"x"',
        )
    )
    return content[:start] + other.encode() + content[end:]
