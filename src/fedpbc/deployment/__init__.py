"""Real fleets: the algorithms on devices, over Flower. Needs the extra ``[flower]``.

Nothing is imported here: the client app must start without torch.
"""
