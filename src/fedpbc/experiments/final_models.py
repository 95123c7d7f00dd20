"""The final models of a run, read back."""

from __future__ import annotations

import errno
from hashlib import sha256
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedpbc.errors import InputError, one_line
from fedpbc.experiments.run_directory import RunDirectory
from fedpbc.limits import check_path, parse_json
from fedpbc.storage.files import read_own_file
from fedpbc.tasks.parameter_layout import Layout
from fedpbc.text import command

__all__ = ["load_view"]


def _check_final(run: RunDirectory) -> None:
    """Raise if the final models are not those that the summary knows."""
    if not run.finished:
        return  # Whoever reads them finds out why.
    checksums = run.summary().get("checksums")
    known = checksums.get(run.final_path.name) if isinstance(checksums, dict) else None
    content = read_own_file(run.path, run.final_path.name, 1 << 40)
    if known is not None and sha256(content).hexdigest() != known:
        raise InputError(
            f"{run.final_path} is damaged: its checksum does not fit; "
            f"{command('fedpbc', 'resume', run.path)} makes it again"
        )


def load_view(folder: Path | str, view: str) -> dict[str, Tensor]:
    """The parameters of a finished run's final model, by name.

    ``module.load_state_dict(load_view("runs/a", "reported"))`` puts them to use.

    Example:
        >>> import tempfile, torch
        >>> run = RunDirectory(tempfile.mkdtemp())
        >>> run.save_final({"server": torch.ones(6)}, Layout(("weight",), ((2, 3),)))
        >>> load_view(run.path, "server")["weight"].shape
        torch.Size([2, 3])
    """
    check_path(folder, "folder")
    run = RunDirectory(folder)
    path = run.final_path
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise OSError(errno.EINVAL, "it is not a regular file of this folder", str(path))
        _check_final(run)
        with safe_open(path, framework="pt") as file:
            views = list(file.keys())
            if view not in views:
                raise InputError("view", view, f"one of {', '.join(sorted(views))}")
            parameters = parse_json((file.metadata() or {})["parameters"])
            flat = file.get_tensor(view).clone()
        names = tuple(str(p["name"]) for p in parameters)
        return Layout(names, tuple(tuple(p["shape"]) for p in parameters)).named(flat)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or one_line(error)
        raise InputError(f"{path} cannot be read: {reason}; is the run finished?") from None
