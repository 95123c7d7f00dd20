"""Data sets, their partition over the clients, batches and augmentation."""

from fedpbc.data import catalogue as catalogue
from fedpbc.data.augmentation import Augmentation
from fedpbc.data.batches import Batches
from fedpbc.data.dataset import DataSet, Split
from fedpbc.data.natural import first_clients, parts_of
from fedpbc.data.normalisation import channel_statistics
from fedpbc.data.partition import class_shares, dirichlet_partition
from fedpbc.data.sources import SOURCES, Source, find_source, load, register_dataset
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
    "find_source",
    "first_clients",
    "hold_out",
    "load",
    "parts_of",
    "register_dataset",
]
