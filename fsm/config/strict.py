"""The base of every configuration block: unknown keys are errors, values do not change after loading."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A block of the configuration. Unknown keys are refused, and nothing can be changed after loading.

    Nothing is converted silently: "8", true and 8.0 are no whole numbers, 1 is not true. The one exception
    is a whole number where a number is wanted. A field of a type that YAML has no word for (a path, a tuple)
    needs `Field(strict=False)`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)
