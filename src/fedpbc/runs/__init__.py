"""A run's folder on disk: configuration, metrics, checkpoint, resume."""

from fedpbc.runs.config import Config, read_toml
from fedpbc.runs.folder import RunFolder, load_view
from fedpbc.runs.start import Watcher, resume_run, start_run

__all__ = ["Config", "RunFolder", "Watcher", "load_view", "read_toml", "resume_run", "start_run"]
