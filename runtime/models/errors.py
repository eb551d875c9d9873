"""What goes wrong with models, apart from the code that needs torch: the command line reads it too."""

from __future__ import annotations


class UnsupportedModel(ValueError):
    """This model cannot be trained or sampled from rightly: it is refused before anything is."""


class ModelNotSaved(Exception):
    """A model directory could not be written."""
