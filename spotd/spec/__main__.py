"""`python -m spotd.spec` prints the JSON Schema of job files, as checked in under schemas/."""

import json
import sys
from typing import Any

from spotd.spec.file import JobFile


def schema() -> dict[str, Any]:
    """JSON Schema 2020-12, for editors."""
    body = JobFile.model_json_schema()
    title = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "spotd job, version 1",
        "required": ["run"],
    }
    return {**body, **title}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=2, sort_keys=True) + "\n")
