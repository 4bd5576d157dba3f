"""`make fuzz`: a coverage-guided fuzzer on each target for some seconds.

What crashes a target is left in `bench/out/fuzz/<target>/` and named; exit 1 then. Put it into
`tests/fuzz/corpus/<target>/`, mend the product, and it is run with the tests from then on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
# Not from targets.py: what it imports must come in through the fuzzer, which counts branches.
NAMES = sorted(path.name for path in CORPUS.iterdir())
MAX_BYTES = 4096


def main() -> int:
    """One process a target, because libFuzzer ends its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", default=[], help=", ".join(NAMES))
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("--out", type=Path, default=Path("bench/out/fuzz"))
    parser.add_argument("--one", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := sorted(set(options.targets) - set(NAMES)):
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if options.one:
        return fuzz(options.one, options.out / options.one, options.seconds)
    crashed = []
    for name in options.targets or NAMES:
        command = [sys.executable, "-m", "tests.fuzz", "--one", name, "--out", str(options.out)]
        command += ["--seconds", str(options.seconds)]
        print(f"--- {name}", flush=True)
        if subprocess.run(command, check=False).returncode:
            crashed.append(name)
    print(f"{len(options.targets or NAMES) - len(crashed)} passed, {len(crashed)} failed")
    for name in crashed:
        print(f"{name}: see {options.out / name}")
    return 1 if crashed else 0


def fuzz(name: str, out: Path, seconds: int) -> int:
    """Never returns where libFuzzer runs: that ends the process."""
    import atheris

    parsers = ["spotd", "providers", "trainer", "yaml", "tarfile", "urllib3"]
    with atheris.instrument_imports(include=parsers):
        from tests.fuzz.targets import TARGETS

    seen = out / "seen"
    seen.mkdir(parents=True, exist_ok=True)
    flags = [f"-max_total_time={seconds}", f"-artifact_prefix={out}/", "-timeout=10"]
    flags += [f"-max_len={MAX_BYTES}", "-print_final_stats=1", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *flags, str(seen), str(CORPUS / name)], TARGETS[name])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
