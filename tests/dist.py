"""`make dist`: an sdist and a wheel, equal in every byte each time, that work once installed.

    python -m tests.dist [--out DIR] [--offline]

They are built twice from what git tracks, in two folders of other names; the wheel is built from
the sdist. It is installed into an empty environment, with its dependencies from the registry that
pip is set up for (`--offline`: those of this environment serve), and there, outside the checkout,
it runs a job on a local cloud to its end.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FIRST_EPOCH = 1_767_225_600  # 2026: for a checkout without history
JOB = """\
name: first
workdir: .
resources: {cpus: 1+}
run: |
  python3 -c 'import spotd_hook, spotd_hook.results'
  test -f "$SPOTD_HOOK"
  mkdir -p out && echo done > out/result.txt
spotd: {outputs: [out]}
"""
# `spotctl doctor` asks each of the three clouds.
ZONES = "".join(
    f'[[zone]]\npersonality = "{cloud}"\nregion = "r-{cloud}"\nname = "r-{cloud}-a"\n'
    for cloud in ("aws", "gcp", "azure")
)
PROGRAM = """
import sys
from pathlib import Path

import spotd
from spotd.cli.app import run
from spotd.demo.box import running_box

folder = Path(sys.argv[1])
assert Path(spotd.__file__).is_relative_to(folder), spotd.__file__
with running_box(folder / "box", sys.argv[2]) as box:
    for line in (
        "run -d --no-checkpoints job.yaml",
        "wait first --timeout 300s",
        "doctor",
        "ps --all",
        "show first",
        "outputs first --into kept",
    ):
        code = run(["--socket", str(box.socket_path), *line.split()])
        if code:
            sys.exit(f"spotctl {line}: exit code {code}")
"""
# What machines, the daemon and its users need of the wheel.
NEEDED = (
    "migrations/env.py",
    "migrations/script.py.mako",
    "migrations/versions/0001_",
    "providers/aws/notice.py",
    "spotd/api/metrics/rules.yml",
    "spotd/cli/files/job.yaml",
    "spotd/dashboard/static/",
    "spotd/py.typed",
    "trainer/agent/main/agent.py",
    "trainer/hook/spotd_hook/run.py",
    "trainer/node.py",
    "trainer/saver/__main__.py",
)


class DistError(Exception):
    """The archives cannot be built, differ, or do not work."""


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.dist",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--offline", action="store_true", help="fetch no dependencies")
    given = parser.parse_args()
    began_s = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="spotd-dist-") as scratch:
            made = build_twice(Path(scratch))
            smoke(made[1], Path(scratch) / "installed", offline=given.offline)
            given.out.mkdir(parents=True, exist_ok=True)
            for path in made:
                shutil.copy(path, given.out)
                print(f"{digest(path)}  {given.out / path.name}")
    except DistError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"built twice, equal; installed, and a job trained: {time.monotonic() - began_s:.0f} s")
    return 0


def build_twice(scratch: Path) -> tuple[Path, Path]:
    """The sdist and the wheel. Raises DistError if a second build differs."""
    first = build(scratch / "first")
    second = build(scratch / "a second one")
    for one, other in zip(first, second, strict=True):
        if digest(one) != digest(other):
            raise DistError(f"{one.name} differs between two builds: {differences(one, other)}")
    return first


def build(folder: Path) -> tuple[Path, Path]:
    """Build both archives from a copy of what git tracks."""
    source, before = folder / "source", os.umask(0o022)  # the wheel has modes of new files
    try:
        for name in tracked():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
        hooks = "from setuptools import build_meta; print(build_meta.build_{}({!r}))"
        run_python(sys.executable, hooks.format("sdist", str(folder)), cwd=source)
        [sdist] = folder.glob("spotd-*.tar.gz")
        normalize(sdist)
        unpacked = unpack(sdist, folder / "unpacked")
        run_python(sys.executable, hooks.format("wheel", str(folder)), cwd=unpacked)
    finally:
        os.umask(before)
    [wheel] = folder.glob("spotd-*.whl")
    return sdist, wheel


def tracked() -> list[str]:
    """The files of the checkout, or of an unpacked sdist."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        raise DistError(f"git ls-files: {listed.stderr.strip()}")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def epoch() -> int:
    """The time that the archives name: SOURCE_DATE_EPOCH, or that of the last commit."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    command = ["git", "log", "-1", "--format=%ct"]
    dated = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return int(dated.stdout) if dated.stdout.strip() else _FIRST_EPOCH


def normalize(sdist: Path) -> None:
    """Write the archive anew, without owners, times and modes of this machine."""
    data = contents(sdist)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(data):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data[name]), epoch(), 0o644
            archive.addfile(entry, io.BytesIO(data[name]))
    sdist.write_bytes(gzip.compress(buffer.getvalue(), mtime=0))


def contents(sdist: Path) -> dict[str, bytes]:
    """Every file of an archive."""
    with tarfile.open(sdist) as archive:
        files = ((member.name, archive.extractfile(member)) for member in archive)
        return {name: file.read() for name, file in files if file is not None}


def unpack(sdist: Path, folder: Path) -> Path:
    """The one folder of the archive, with the usual modes."""
    for name, data in contents(sdist).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o644)
    [unpacked] = folder.iterdir()
    return unpacked


def differences(one: Path, other: Path) -> str:
    """The members that differ, if these are wheels."""
    if one.suffix != ".whl":
        return "see both with diffoscope"
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        pairs = zip(first.infolist(), second.infolist(), strict=False)
        return ", ".join(
            a.filename for a, b in pairs if (a.CRC, a.date_time) != (b.CRC, b.date_time)
        )


def missing(wheel: Path) -> list[str]:
    """What is needed and not in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    return [need for need in NEEDED if not any(name.startswith(need) for name in names)]


def smoke(wheel: Path, folder: Path, *, offline: bool) -> None:
    """Install the wheel under `folder` and use it there. Raises DistError."""
    if lacks := missing(wheel):
        raise DistError(f"{wheel.name} lacks {', '.join(lacks)}")
    folder.mkdir()
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    binaries = folder / "venv" / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(binaries / "python"), "install", "-q"]
    # `torch` brings what the saver needs; a machine of the local cloud has the box's Python.
    options = ["--no-deps", "--no-index"] if offline else ["-c", str(ROOT / "constraints.txt")]
    run([*pip, *options, str(wheel), *([] if offline else ["obstore", "xxhash"])], cwd=folder)
    if offline:
        [site] = (folder / "venv" / "lib").glob("python3.*/site-packages")
        paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        (site / "third-party.pth").write_text("\n".join(sorted(paths)) + "\n")
    run_job(binaries, folder)


def run_job(binaries: Path, folder: Path) -> None:
    """Use the commands of the tutorial, from `spotctl --help` to a job's outputs."""
    work, new = folder / "work", folder / "new"
    work.mkdir()
    new.mkdir()
    (work / "job.yaml").write_text(JOB)
    for words in (["--help"], ["init", "job"], ["init", "aws", "--help"]):
        run([str(binaries / "spotctl"), *words], cwd=new)
    schema = run([str(binaries / "python"), "-m", "spotd.spec"], cwd=folder)
    if schema != (ROOT / "schemas" / "job-v1.json").read_text():
        raise DistError("the wheel's schema of job files is not schemas/job-v1.json")
    run([str(binaries / "python"), "-c", PROGRAM, str(folder), ZONES], cwd=work)
    results = [path.read_text() for path in work.rglob("kept/**/result.txt")]
    if results != ["done\n"]:
        raise DistError(f"the job's outputs are {results}")


def run_python(python: str, code: str, *, cwd: Path) -> str:
    """Its standard output."""
    return run([python, "-c", code], cwd=cwd)


def run(command: Sequence[str], *, cwd: Path) -> str:
    """Its standard output. Raises DistError with what it said."""
    env = {name: value for name, value in os.environ.items() if name not in _ours()}
    env |= {"SOURCE_DATE_EPOCH": str(epoch()), "HOME": str(cwd)}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-3000:]
        raise DistError(f"{' '.join(command)[:200]}: exit {done.returncode}\n{said}")
    return done.stdout


def _ours() -> Iterator[str]:
    """Variables through which the checkout would be found."""
    return (name for name in os.environ if name.startswith(("PYTHON", "SPOTD_", "SPOTCTL_")))


def digest(path: Path) -> str:
    """The sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
