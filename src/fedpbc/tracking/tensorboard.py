"""TensorBoard: event files in RUN/tensorboard, with TensorBoard's own formats and no TensorFlow.

Records are written and flushed here and now, not by a thread as TensorBoard's writer does it: a
full disk is met where it can be dealt with, and a killed run has lost nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from fedpbc.errors import MissingExtraError
from fedpbc.tracking.tracker import Setting, State, TrackedRun

__all__ = ["FOLDER", "TensorBoardTracker", "check", "clear_events", "make"]

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


def clear_events(folder: Path) -> bool:
    """Remove the event files of a run, and the folder if it is empty then; were there any?"""
    place = folder / FOLDER
    found = list(place.glob(f"{EVENTS}*")) if place.is_dir() else []
    for file in found:
        file.unlink()
    if found and not any(place.iterdir()):
        place.rmdir()
    return bool(found)


class TensorBoardTracker:
    """Scalars with every digit that metrics.jsonl has, the configuration, and how it ended."""

    _file: IO[bytes]

    def begin(self, run: TrackedRun, kept: Mapping[str, str]) -> dict[str, str]:
        """A run that goes on is written anew: it is told of all evaluations again."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        went_on = clear_events(run.folder)
        place = run.folder / FOLDER
        place.mkdir(exist_ok=True)
        # In the order of these names TensorBoard reads them.
        name = f"{EVENTS}{time.time_ns() // 1000:020d}.{socket.gethostname()}.{os.getpid()}"
        self._file = (place / name).open("wb")
        self._records = RecordWriter(self._file)
        self._write(Event(file_version="brain.Event:2"), time.time())
        if went_on:
            # One that is looking on forgets what it has seen.
            self._write(Event(session_log=SessionLog(status=SessionLog.START)), time.time())
        self._begin_session(run.settings() | {"folder": run.name})
        self._flush()
        return {}

    def log(self, round: int, values: Mapping[str, float], at: float) -> None:
        """Everything over rounds, and accuracies (else losses) over local steps and uploads."""
        self._scalars(round, values, at)
        for step in OVER:
            if step in values:
                judged = {f"over_{step}/{k}": v for k, v in values.items() if _is_judgement(k)}
                self._scalars(int(values[step]), judged, at)
        self._flush()

    def end(self, state: State) -> None:
        """How it ended is what the page «HParams» shows as the status."""
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        info = plugin_data_pb2.SessionEndInfo(
            status=api_pb2.Status.Value(STATUS[state]), end_time_secs=time.time()
        )
        data = plugin_data_pb2.HParamsPluginData(session_end_info=info)
        self._metadata(metadata.SESSION_END_INFO_TAG, data)
        self._flush()
        self._file.close()

    def _begin_session(self, settings: Mapping[str, Setting]) -> None:
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
        self._metadata(metadata.SESSION_START_INFO_TAG, data)

    def _scalars(self, step: int, values: Mapping[str, float], at: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto

        plugin = SummaryMetadata.PluginData(plugin_name="scalars")
        summary = Summary(
            value=[
                Summary.Value(
                    tag=tag,
                    # In double precision: counts go beyond what a float can hold.
                    tensor=TensorProto(dtype="DT_DOUBLE", double_val=[value]),
                    metadata=SummaryMetadata(plugin_data=plugin),
                )
                for tag, value in values.items()
            ]
        )
        self._write(Event(step=step, summary=summary), at)

    def _metadata(self, tag: str, data: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import metadata

        about = metadata.create_summary_metadata(data)
        value = Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)
        self._write(Event(summary=Summary(value=[value])), time.time())

    def _write(self, event: Any, at: float) -> None:
        event.wall_time = at
        self._records.write(event.SerializeToString())

    def _flush(self) -> None:
        self._records.flush()


def _is_judgement(name: str) -> bool:
    return name.endswith(("/test_accuracy", "/test_loss"))
