"""What every section of a settings file has in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _numbers_are_numbers(cls, values: Any) -> Any:
        """YAML 1.2 reads 1e-6 as a number: quotes around one, or a yes/no in its place, are a mistake."""
        numeric = {"int", "float", "Positive", "Count", "Rate"}
        for name in cls.model_fields:
            value = values.get(name) if isinstance(values, dict) else None
            kind = str(cls.__annotations__.get(name, ""))
            quoted = isinstance(value, str) and _is_number(value)  # any other text pydantic refuses itself
            if (quoted or isinstance(value, bool)) and (kind in numeric or kind.startswith("Annotated[")):
                raise ValueError(
                    f"{name}={value!r} must be a number without quotes, not a {type(value).__name__}"
                )
        return values
