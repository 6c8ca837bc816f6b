"""What options of an audit of one function may be; ``dpaudit mechanism`` shows them in its help."""

from typing import Literal

Dtype = Literal[
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8"
]
Norm = Literal["l1", "l2", "linf"]
