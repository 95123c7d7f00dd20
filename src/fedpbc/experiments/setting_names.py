"""The names of the settings that an entry of a comparison may override."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedpbc.algorithms import Algorithm
from fedpbc.experiments.settings import SECTIONS, General, command_options
from fedpbc.options import options_of

__all__ = ["CONFIGURATION", "SHARED_ONLY", "SettingNames"]

SHARED_ONLY = ("algorithm", "seed", "plugins", "track")
"""What an entry cannot override."""
SPELLED_OUT = ("data.alpha",)
"""Keys that labels have in full, whatever options there are: folders of before are named so."""


@dataclass(frozen=True)
class SettingNames:
    """The settings that an entry may override, besides its algorithm's options.

    Attributes:
        sections: names of tables.
        keys: the dotted key of each other name that may be given.
    """

    sections: Sequence[str]
    keys: Mapping[str, str]

    def find(self, name: str) -> str | None:
        """Return the dotted key that a name stands for."""
        if name in self.keys:
            return self.keys[name]
        section, dot, option = name.partition(".")
        known = dot and option and section in self.sections
        return name if known else None

    def short(self, key: str, algorithm: type[Algorithm]) -> str:
        """Return the shortest name of a dotted key that is not an option of the algorithm."""
        if key in SPELLED_OUT:
            return key
        algorithm_options = options_of(algorithm.__init__)
        names = [
            name
            for name, other in self.keys.items()
            if other == key and name not in algorithm_options
        ]
        return min([*names, key], key=len)


CONFIGURATION = SettingNames(
    [name for name in SECTIONS if name not in SHARED_ONLY],
    {
        **{name: name for name in General.__dataclass_fields__ if name not in SHARED_ONLY},
        **{
            option.name: option.key
            for option in command_options()
            if option.key.partition(".")[0] not in SHARED_ONLY
        },
    },
)
"""Of a configuration: options of the command line by their names, others by their dotted keys."""
