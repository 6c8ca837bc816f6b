"""The base of everything that is written in an audit file or a result file."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A frozen value whose keys and types are checked: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
