"""Data sets, their partition over the clients, batches and augmentation."""

from fedpbc.data.augmentation import Augmentation
from fedpbc.data.batches import Batches
from fedpbc.data.normalisation import channel_statistics
from fedpbc.data.partition import class_shares, dirichlet_partition
from fedpbc.data.sources import SOURCES, DataSet, Source, Split, load
from fedpbc.data.validation import hold_out

__all__ = [
    "SOURCES",
    "Augmentation",
    "Batches",
    "DataSet",
    "Source",
    "Split",
    "channel_statistics",
    "class_shares",
    "dirichlet_partition",
    "hold_out",
    "load",
]
