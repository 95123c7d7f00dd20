"""TensorBoard: event files in RUN/tensorboard, with TensorBoard's own formats and no TensorFlow.

Records are written here and now, not by a thread as TensorBoard's own writer does it: a full disk
is met where it can be dealt with, and a killed run has lost nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpbc.errors import MissingExtraError
from fedpbc.experiments.tracking.tracker import Setting, State, TrackedRun

__all__ = ["FOLDER", "TensorBoardTracker", "check", "make", "remove_files"]

FOLDER = "tensorboard"
"""In a run's folder."""
EVENTS = "events.out.tfevents."
OVER = ("local_steps", "uploads")
"""What accuracies are shown over besides rounds: TensorBoard itself has no such choice."""
STATUS = {"finished": "STATUS_SUCCESS", "failed": "STATUS_FAILURE", "killed": "STATUS_UNKNOWN"}


def check() -> None:
    """Is the package there?"""
    try:
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("tracking with 'tensorboard'", "tensorboard") from error


def make() -> TensorBoardTracker:
    """A tracker for one run."""
    check()
    return TensorBoardTracker()


def remove_files(run: Path) -> None:
    """Remove the event files of a run, and their folder if nothing else is in it."""
    folder = run / FOLDER
    files = list(folder.glob(f"{EVENTS}*"))
    for file in files:
        file.unlink()
    if files and not any(folder.iterdir()):
        folder.rmdir()


class TensorBoardTracker:
    """Scalars in single precision, the configuration, and how it ended."""

    _path: Path
    _older: list[Path]

    def begin(self, run: TrackedRun, kept: Mapping[str, str]) -> dict[str, str]:
        """A run that goes on gets another file, with all evaluations in it."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        place = run.folder / FOLDER
        place.mkdir(exist_ok=True)
        self._older = list(place.glob(f"{EVENTS}*"))
        # In the order of these names TensorBoard reads them.
        name = f"{EVENTS}{time.time_ns() // 1000:020d}.{socket.gethostname()}.{os.getpid()}"
        self._path = place / name
        now = time.time()
        self._append(
            Event(file_version="brain.Event:2", wall_time=now),
            # At the second one of a run all that was read before is forgotten.
            Event(session_log=SessionLog(status=SessionLog.START), wall_time=now),
            self._session_start(run.settings() | {"folder": run.name}),
        )
        return {}

    def log(self, round: int, values: Mapping[str, float], at: float) -> None:
        """Everything over rounds, and accuracies (else losses) over local steps and uploads."""
        events = [_scalars(round, values, at)]
        for step in OVER:
            if step in values:
                judged = {f"over_{step}/{k}": v for k, v in values.items() if _is_judgement(k)}
                events.append(_scalars(int(values[step]), judged, at))
        self._append(*events)

    def end(self, state: State) -> None:
        """How it ended is what the page «HParams» shows as the status."""
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        info = plugin_data_pb2.SessionEndInfo(
            status=api_pb2.Status.Value(STATUS[state]), end_time_secs=time.time()
        )
        data = plugin_data_pb2.HParamsPluginData(session_end_info=info)
        self._append(_hparams(metadata.SESSION_END_INFO_TAG, data))
        # Not before: a TensorBoard that is looking on would lose its way without the file it reads.
        for file in self._older:
            file.unlink(missing_ok=True)

    def _session_start(self, settings: Mapping[str, Setting]) -> Any:
        """The configuration, for the page «HParams»."""
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        info = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time())
        for key, value in settings.items():
            # A truth value is an integer, too.
            if isinstance(value, bool):
                info.hparams[key].bool_value = value
            elif isinstance(value, str):
                info.hparams[key].string_value = value
            else:
                info.hparams[key].number_value = value
        data = plugin_data_pb2.HParamsPluginData(session_start_info=info)
        return _hparams(metadata.SESSION_START_INFO_TAG, data)

    def _append(self, *events: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        with self._path.open("ab") as file:
            records = RecordWriter(file)
            for event in events:
                records.write(event.SerializeToString())


def _scalars(step: int, values: Mapping[str, float], at: float) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    # In single precision: there is a format for double, but TensorBoard's fast reader shows nothing
    # of it (2.21).
    found = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    return Event(step=step, wall_time=at, summary=Summary(value=found))


def _hparams(tag: str, data: Any) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata

    about = metadata.create_summary_metadata(data)
    value = Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)
    return Event(wall_time=time.time(), summary=Summary(value=[value]))


def _is_judgement(name: str) -> bool:
    return name.endswith(("/test_accuracy", "/test_loss"))
