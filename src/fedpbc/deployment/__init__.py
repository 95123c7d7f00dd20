"""The real deployment: our algorithms on a fleet of devices, over Flower; extra ``[flower]``.

Nothing here is imported with the package: the client's side must start without torch.
"""
