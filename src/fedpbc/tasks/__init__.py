"""Tasks: what is minimised. A task has ``init``, ``local_steps`` and ``evaluate``.

Public names are listed in ``__init__.pyi`` and loaded when they are first used: the command line
reads defaults from this package, and must not wait for torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
