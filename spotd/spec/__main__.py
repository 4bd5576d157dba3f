"""Print the JSON Schema of job files: `python -m spotd.spec > schemas/job-v1.json`."""

import json
import sys
from typing import Any

from spotd.spec.file import JobFile


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) that editors use to check a job file."""
    body = JobFile.model_json_schema()
    title = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "spotd job, version 1",
        "required": ["run"],
    }
    return {**body, **title}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=2, sort_keys=True) + "\n")
