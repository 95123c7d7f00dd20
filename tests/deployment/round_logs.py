"""Hand-written logs of a fleet's rounds."""

from __future__ import annotations

import json


def round_line(t, active, *, refused=(), selected=None, everyone=True, seconds=10.0, at=1000.0):
    return {
        "round": t,
        "began_s": t * seconds,
        "ended_s": (t + 1) * seconds,
        "at": at + (t + 1) * seconds,
        "everyone": everyone,
        "active": list(active),
        "selected": list(active if selected is None else selected),
        "checksums": {},
        "bytes_up": 400 * len(active),
        "bytes_down": 1600,
        "refused": list(refused),
        "known": [],
    }


def write_log(folder, lines, *, clients=4, rounds=10, connected=(), fleet=""):
    """Write a server's folder; ``fleet`` is added to the section of that name."""
    folder.mkdir(exist_ok=True)
    (folder / "fleet.toml").write_text(
        f"clients = {clients}\nrounds = {rounds}\n[fleet]\nround_seconds = 10.0\n{fleet}"
    )
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    nodes = {i: {"node": 900 + i, "at": 1000.0} for i in connected}
    (folder / "heard.json").write_text(json.dumps(nodes))
    return folder
