"""TensorBoard: event files in RUN/tensorboard, in TensorBoard's own formats, without TensorFlow.

Records are written at once, and not by a thread as in TensorBoard's own writer: a full disk raises
an error where it can be handled, and a killed run has lost nothing.
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
from fedpbc.storage.removal import remove_entries

__all__ = ["EVENTS", "FOLDER", "TensorBoardTracker", "check", "make"]

FOLDER = "tensorboard"
EVENTS = "events.out.tfevents."
OVER = ("local_steps", "uploads", "bytes_up", "bytes_down")
"""Further x axes for accuracies: TensorBoard itself cannot choose one."""
STATUS = {"finished": "STATUS_SUCCESS", "failed": "STATUS_FAILURE", "killed": "STATUS_UNKNOWN"}


def check() -> None:
    """Check that the package is installed."""
    try:
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("tracking with 'tensorboard'", "tensorboard") from error


def make() -> TensorBoardTracker:
    """A tracker for one run."""
    check()
    return TensorBoardTracker()


class TensorBoardTracker:
    """Scalars in single precision, the configuration, and the final state."""

    _path: Path
    _older: list[Path]

    def begin(self, run: TrackedRun, saved: Mapping[str, str]) -> dict[str, str]:
        """Start an event file; a resumed run gets a new one, with all evaluations."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        folder = run.folder / FOLDER
        folder.mkdir(exist_ok=True)
        self._older = list(folder.glob(f"{EVENTS}*"))
        # TensorBoard reads files in the order of their names.
        name = f"{EVENTS}{time.time_ns() // 1000:020d}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / name
        now = time.time()
        self._append(
            Event(file_version="brain.Event:2", wall_time=now),
            # At a second START, TensorBoard drops what it has read before.
            Event(session_log=SessionLog(status=SessionLog.START), wall_time=now),
            self._session_start(run.settings() | {"folder": run.name}),
        )
        return {}

    def log(self, round: int, values: Mapping[str, float], at: float) -> None:
        """Add an evaluation over rounds, and its accuracies and losses over the other x axes."""
        events = [_scalars(round, values, at)]
        for step in OVER:
            if step in values:
                quality = {
                    f"over_{step}/{key}": value
                    for key, value in values.items()
                    if key.endswith(("/test_accuracy", "/test_loss"))
                }
                events.append(_scalars(int(values[step]), quality, at))
        self._append(*events)

    def end(self, state: State) -> None:
        """Write the status that the page "HParams" shows, and remove older event files."""
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        info = plugin_data_pb2.SessionEndInfo(
            status=api_pb2.Status.Value(STATUS[state]), end_time_secs=time.time()
        )
        data = plugin_data_pb2.HParamsPluginData(session_end_info=info)
        self._append(_hparams(metadata.SESSION_END_INFO_TAG, data))
        # Only now: a running TensorBoard would not recover from losing the file that it reads.
        remove_entries(self._path.parent, [file.name for file in self._older])

    def _session_start(self, settings: Mapping[str, Setting]) -> Any:
        """The configuration, for the page "HParams"."""
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        info = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time())
        for key, value in settings.items():
            # First, since a bool is an int.
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

    # In single precision: TensorBoard's fast reader (2.21) does not show its format for doubles.
    scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    return Event(step=step, wall_time=at, summary=Summary(value=scalars))


def _hparams(tag: str, data: Any) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata

    value = Summary.Value(
        tag=tag, metadata=metadata.create_summary_metadata(data), tensor=metadata.NULL_TENSOR
    )
    return Event(wall_time=time.time(), summary=Summary(value=[value]))
