"""Tables of published results: data of a folder like docs/results, of which pages are made."""

import json
from pathlib import Path
from typing import Literal

from dpaudit.strict import Strict

TableEntry = float | str | None  # an infinite number is a text, which JSON can hold


class ResultTable(Strict):
    """One table: a row of entries for its columns."""

    title: str
    about: str = ""  # what stands between the title and the table
    columns: tuple[str, ...]
    rows: tuple[tuple[TableEntry, ...], ...]


class ResultTables(Strict):
    """Tables that one command made."""

    schema_version: Literal[1] = 1
    title: str
    about: str = ""
    command: str = ""  # that makes the same again
    date: str = ""
    tables: tuple[ResultTable, ...]

    @classmethod
    def read(cls, path: Path) -> "ResultTables":
        return cls.model_validate_json(path.read_bytes())

    def to_json(self) -> str:
        """JSON with one row of a table a line, so that a changed row is a changed line."""
        about = self.model_dump(mode="json", exclude={"tables"})
        head = json.dumps(about, ensure_ascii=False, indent=2).removesuffix("\n}")
        tables = []
        for table in self.tables:
            content = table.model_dump(mode="json")
            rows = ",\n    ".join(json.dumps(r, ensure_ascii=False) for r in content.pop("rows"))
            own = json.dumps(content, ensure_ascii=False).removesuffix("}")
            tables.append(own + ',\n   "rows": [\n    ' + rows + "\n   ]}")
        return head + ',\n  "tables": [\n  ' + ",\n  ".join(tables) + "\n  ]\n}\n"
