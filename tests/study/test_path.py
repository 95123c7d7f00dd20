"""How much code is between a call and the first local step, and how often a run is validated."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import json, sys
from fedpbc.study import spec
calls = []
complete = spec._completed
spec._completed = lambda values: calls.append(1) or complete(values)
from fedpbc.study.study import Study
study = Study.of({"algorithms": ["fedpbc", "fedau:cutoff=5"], "links": "markov", "seeds": "0-4",
                  "ceiling": True, "data": "digits", "clients": 5, "rounds": 1})
runs = study.runs()
from fedpbc.study.execute import Watcher, execute
execute(runs[0], sys.argv[1])
ours = ("study", "choices", "experiments", "report", "python", "cli", "paper")
names = [name for name in sys.modules
         if name.startswith("fedpbc.") and name.split(".")[1] in ours
         and not hasattr(sys.modules[name], "__path__")]
print(json.dumps({"validated": len(calls), "runs": len(runs), "modules": sorted(names)}))
"""


def test_from_the_call_to_the_first_local_step(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "run")]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (found["validated"], found["runs"]) == (3, 15)
    # Four of them are of the old package, until they are moved; plugins.py joins another one then.
    assert len(found["modules"]) <= 13, found["modules"]
