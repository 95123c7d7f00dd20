"""The names of the classes of well-known data sets, in the order of their numbers."""

from __future__ import annotations

import string

__all__ = ["CHARACTERS", "CLOTHES", "DIGITS", "FINE", "OBJECTS", "SUPERCLASSES"]

DIGITS = tuple(string.digits)
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
OBJECTS = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
"""FEMNIST's 62."""
FINE = (
    *("apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle"),
    *("bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle"),
    *("caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch"),
    *("crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox"),
    *("girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard"),
    *("lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse"),
    *("mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck"),
    *("pine_tree", "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray"),
    *("road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail"),
    *("snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank"),
    *("telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle"),
    *("wardrobe", "whale", "willow_tree", "wolf", "woman", "worm"),
)
"""CIFAR-100's classes."""
SUPERCLASSES = (
    *("aquatic_mammals", "fish", "flowers", "food_containers", "fruit_and_vegetables"),
    *("household_electrical_devices", "household_furniture", "insects", "large_carnivores"),
    *("large_man-made_outdoor_things", "large_natural_outdoor_scenes"),
    *("large_omnivores_and_herbivores", "medium_mammals", "non-insect_invertebrates", "people"),
    *("reptiles", "small_mammals", "trees", "vehicles_1", "vehicles_2"),
)
"""CIFAR-100's coarse classes."""
