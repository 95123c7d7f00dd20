"""Make a virtual environment for each of the peers.

python -m benchmarks.peers.install              all of them
python -m benchmarks.peers.install flower       one

Each has its own, since they ask for versions that do not go together. One that cannot be installed
is left out of the comparison; the others go on.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent / ".peers"

# The same PyTorch as constraints.txt has for the package itself.
TORCH = "torch==2.13.0"

# What pip is told, one call after another.
STEPS: dict[str, list[list[str]]] = {
    "flower": [[TORCH], [TORCH, "flwr[simulation]==1.41.0"]],
    "pfl": [[TORCH], [TORCH, "pfl[pytorch]==0.6.0"]],
    # FLGo asks for torchvision, for data sets and models that are not used here; everything else
    # that it asks for is named.
    "flgo": [
        [TORCH],
        [
            *(TORCH, "tqdm", "scipy", "matplotlib", "prettytable", "ujson", "pynvml", "pyyaml"),
            *("networkx", "requests", "toolz"),
        ],
        ["--no-deps", "flgo==0.4.4"],
    ],
    # BlazeFL asks for Python 3.12, but 2.0.3 is plain Python that 3.11 reads as well, and runs on
    # the same Python and PyTorch as the others. From 3.0 on it needs 3.14.
    "blazefl": [
        [TORCH],
        [TORCH, "tqdm", "numpy>=2.3.1"],
        ["--no-deps", "--ignore-requires-python", "blazefl==2.0.3"],
    ],
    # fluke asks for torchvision, too, and imports it for its data sets and networks only.
    "fluke": [
        [TORCH],
        [
            *(TORCH, "numpy", "pandas", "scikit-learn", "torchmetrics", "rich", "typer", "wandb"),
            *("datasets", "psutil", "tensorboard", "clearml", "matplotlib", "seaborn"),
            *("diskcache", "opacus", "cerberus", "hydra-core", "requests", "pyyaml", "omegaconf"),
        ],
        ["--no-deps", "fluke-fl==0.8.1"],
    ],
    # APPFL asks for piq, which asks for torchvision and is only used for reports on data.
    "appfl": [
        [TORCH],
        [
            *(TORCH, "numpy", "grpcio", "grpcio-tools", "omegaconf", "globus-sdk>=4.4.1"),
            *("globus-compute-sdk>=4.7.0", "globus-compute-endpoint>=4.7.0"),
            *("PyJWT[crypto]>=2.6.0", "requests", "boto3", "botocore", "lz4", "zstd", "blosc"),
            *("python-xz", "matplotlib", "seaborn", "scikit-learn", "wandb", "colorama"),
            *("proxystore[all]", "ray[default]", "pandas", "opacus"),
        ],
        ["--no-deps", "appfl==1.12.0"],
    ],
    # PyTorch only reads the work here.
    "fedjax": [
        [TORCH],
        [TORCH, "jax==0.10.2", "jaxlib==0.10.2", "dm-haiku==0.0.17", "fedjax==0.0.17"],
    ],
}


def install(name: str) -> str:
    """Make one environment; gives what went wrong, if anything."""
    place = HOME / name
    stamp = place / "installed"
    wanted = repr(STEPS[name])
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    stamp.unlink(missing_ok=True)
    if not (place / "bin" / "python").exists():
        venv.create(place, with_pip=True)
    for arguments in STEPS[name]:
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *arguments]
        done = subprocess.run(pip, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return errors[-1] if errors else f"pip ended with {done.returncode}"
    # Written last: an installation that was interrupted is done again.
    stamp.write_text(wanted)
    return ""


def main() -> None:
    """Install all, or those named on the command line."""
    names = sys.argv[1:] or list(STEPS)
    unknown = [name for name in names if name not in STEPS]
    if unknown:
        print(f"{unknown[0]!r} is not one of {', '.join(STEPS)}", file=sys.stderr)
        sys.exit(2)
    failed = 0
    for name in names:
        print(f"{name} …", flush=True)
        wrong = install(name)
        failed += bool(wrong)
        print(f"{name}: {wrong or 'installed'}", flush=True)
    sys.exit(failed == len(names))


if __name__ == "__main__":
    main()
