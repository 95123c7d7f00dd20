"""FedPBC and the other algorithms in any Flower app: strategies, and a mod for the clients.

In the server app, a strategy of this package where the app has Flower's ``FedAvg``; in the client
app, ``ClientApp(mods=[catch_up_mod])``. Nothing else changes.

Public names are listed in ``__init__.pyi`` and loaded when they are first used: a client needs the
mod alone, which imports no torch.
"""

import lazy_loader

from fedpbc.flower.supported import check_flower

check_flower()

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
