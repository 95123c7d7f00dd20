"""Execute the notebooks in examples/notebooks and store them with their results.

``python tools/notebooks.py`` does all of them; the tests execute them without storing anything.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"


def executed(path: Path, folder: Path) -> Any:
    """The notebook after all of its cells were run, with a folder to write to."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook, timeout=280, startup_timeout=280, kernel_name="python3", resources=resources
    )
    return client.execute()


def main() -> None:
    """Execute and store all notebooks."""
    import tempfile

    import nbformat

    for path in sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as place:
            for file in FOLDER.glob("*.csv"):
                (Path(place) / file.name).write_bytes(file.read_bytes())
            notebook = executed(path, Path(place))
        for cell in notebook.cells:
            # Times of execution would differ each time.
            cell.metadata.pop("execution", None)
        notebook.metadata.language_info = {"name": "python"}
        nbformat.write(notebook, path)
        sys.stdout.write(f"{path.name}: {path.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main()
