"""The networks of the paper, and how a module becomes one flat vector and back."""

from fedpbc.models.flat import Layout, layout_of, parameters_of
from fedpbc.models.networks import MODELS, build_model

__all__ = ["MODELS", "Layout", "build_model", "layout_of", "parameters_of"]
