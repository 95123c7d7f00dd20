"""Work in a process of its own, so that a worker stays without threads and as it was."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def apart(function: Callable[[], object]) -> bool:
    """Call a function in a fork; returns whether it raised no error."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
