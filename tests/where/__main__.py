"""`make where`: a selection of the tests, and the demo, wherever people start them.

    python -m tests.where                  everywhere, each in a fresh checkout
    python -m tests.where user ignored     in these surroundings
    python -m tests.where --ci             three, with the environment that is here, no demo

Needs root, for it makes two accounts for as long as it runs. What has passed at a commit is not
played again (`--again` does); logs and results are in bench/out/where/.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUT = ROOT / "bench" / "out" / "where"
USER, PLAIN = "spotd-where", "spotd-where-plain"  # who may become root, and who may not
LIMIT_S = 1800
_FAILED = re.compile(r"(FAILED|ERROR|E  ) ")
_LEFT_OUT = re.compile(r"^left out: [1-9]\d* tests that need root;", re.MULTILINE)
VARIABLES = dict(
    line.split("=", 1)
    for line in Path(__file__).with_name("variables.env").read_text().splitlines()
)
# On PATH before all others; the last words of each are what the old or broken one says.
PROGRAMS = {
    "py-spy": 'echo "Process $3: python"; echo "    somewhere (else.py:1)"',
    "nvidia-smi": "echo 'NVIDIA-SMI has failed' >&2; exit 9",
    "rclone": "echo 'rclone v1.53.3'; exit 1",
    "podman": "echo 'podman version 2.1.1'; exit 125",
}


@dataclass(frozen=True)
class Surroundings:
    """Where `make test` is started: after `shell`, by whom `root` and `sudo` say."""

    text: str
    shell: str = ""
    root: bool = False
    sudo: bool = True
    environ: Mapping[str, str] = field(default_factory=dict)
    programs: bool = False
    folder: str = "spotd"  # of the checkout, below HOME
    home: str = "home"
    times: int = 1  # at once
    installs: bool = False  # by itself, and not with a copy of the environment that is here


ALL = {
    "root": Surroundings("as root", root=True),
    "user": Surroundings("as an ordinary user with sudo", installs=True),
    "plain": Surroundings("as an ordinary user without sudo", sudo=False),
    "ignored": Surroundings("with SIGINT, SIGQUIT and SIGHUP ignored", "trap '' INT QUIT HUP"),
    "closed": Surroundings("without standard input and terminal", "exec <&-"),
    "umask": Surroundings("with umask 077, from the clone on", "umask 077", installs=True),
    "locale": Surroundings(
        "with LC_ALL=C and TZ=Pacific/Apia", environ={"LC_ALL": "C", "TZ": "Pacific/Apia"}
    ),
    "spaces": Surroundings(
        "with spaces in both paths", folder="the checkout", home="a home", installs=True
    ),
    "programs": Surroundings("with py-spy, nvidia-smi, old rclone and podman", programs=True),
    "variables": Surroundings("with variables of clouds set to nonsense", environ=VARIABLES),
    "twice": Surroundings("two runs at once", times=2),
}
CI = ("user", "ignored", "hostile")
# Several of them in one, where time is short.
IN_ONE = {
    "hostile": Surroundings(
        "as root: programs, variables, locale, umask",
        "umask 077; exec <&-",
        root=True,
        environ={**VARIABLES, "LC_ALL": "C", "TZ": "Pacific/Apia"},
        programs=True,
    )
}


def main() -> int:
    """The exit code: 0 when all passed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.where",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ALL | IN_ONE))
    parser.add_argument("--ci", action="store_true", help="three, in a few minutes")
    parser.add_argument("--again", action="store_true", help="also what has passed at this commit")
    given = parser.parse_args()
    names = given.names or (CI if given.ci else ALL)
    if unknown := set(names) - set(ALL | IN_ONE):
        parser.error(f"there is no {', '.join(unknown)}: {', '.join(ALL | IN_ONE)}")
    if os.geteuid() != 0:
        parser.error("it makes accounts, which needs root: sudo make where")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    OUT.mkdir(parents=True, exist_ok=True)
    passed = Passed(OUT / "passed.json", forget=given.again or given.ci)
    failed = []
    for name in names:
        if name in passed.names:
            print(f"{name:10} passed before")
        elif play(name, (ALL | IN_ONE)[name], ci=given.ci):
            passed.add(name)
        else:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}; see {OUT}", file=sys.stderr)
    return 1 if failed else 0


class Passed:
    """What has passed at the commit that is checked out."""

    def __init__(self, path: Path, *, forget: bool) -> None:
        self._path = path
        head = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "rev-parse", "HEAD"]
        self._commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout
        known = json.loads(path.read_text()) if path.exists() and not forget else {}
        self.names: list[str] = known.get(self._commit.strip(), [])

    def add(self, name: str) -> None:
        self.names.append(name)
        self._path.write_text(json.dumps({self._commit.strip(): self.names}))


def play(name: str, where: Surroundings, *, ci: bool) -> bool:
    """Whether all was as it should be."""
    began_s = time.monotonic()
    with ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spotd-where-")))
        top.chmod(0o755)
        home = top / where.home
        home.mkdir()
        user = "root" if where.root else stack.enter_context(account(home, sudo=where.sudo))
        starter = Starter(where, user, home, stack)
        troubles = starter.lay_out(ci=ci)
        log = OUT / f"{name}.log"
        log.write_bytes(b"")
        commands = [f"make test STAGES=tests TESTS=@tests/where/{'ci' if ci else 'selection'}.txt"]
        commands += [] if ci else ["make demo"]
        for command in commands if not troubles else ():
            troubles += starter.start(command, log)
        troubles += starter.left_behind()
        if not where.sudo and not _LEFT_OUT.search(log.read_text(errors="replace")):
            troubles.append("it does not say what it left out")
    took = f"{time.monotonic() - began_s:.0f} s"
    print(f"{name:10} {where.text}: {'; '.join(troubles) or 'passed'} ({took})", flush=True)
    if troubles:
        print(*what_failed(log.read_text(errors="replace")), sep="\n  ", flush=True)
    return not troubles


def what_failed(text: str) -> list[str]:
    """Of what a run printed: the tests that failed, each with its error, and its last lines."""
    lines = text.splitlines()
    named = [line for line in lines if _FAILED.match(line)]
    return ["", *named[:40], *(line for line in lines[-15:] if line not in named)]


@contextmanager
def account(home: Path, *, sudo: bool) -> Iterator[str]:
    """An ordinary user, for as long as it is needed."""
    name, rule = (USER if sudo else PLAIN), Path("/etc/sudoers.d") / USER
    _remove_account(name)  # of a run that was killed
    subprocess.run(["useradd", "--home-dir", home, "--shell", "/bin/bash", name], check=True)
    shutil.chown(home, name, name)
    if sudo:
        rule.write_text(f"{name} ALL=(ALL) NOPASSWD: ALL\n")
        rule.chmod(0o440)
    try:
        yield name
    finally:
        rule.unlink(missing_ok=True)
        _remove_account(name)


def _remove_account(name: str) -> None:
    subprocess.run(["pkill", "-KILL", "-u", name], check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["userdel", "--force", name], check=False, stderr=subprocess.DEVNULL)


@dataclass
class Starter:
    """Commands in one of the surroundings."""

    where: Surroundings
    user: str
    home: Path
    stack: ExitStack

    @property
    def checkout(self) -> Path:
        return self.home / self.where.folder

    def lay_out(self, *, ci: bool) -> list[str]:
        """The checkout, as it is here without what git ignores, and the programs; and what went
        wrong."""
        private = "umask 077" in self.where.shell
        files = ["git", "-c", "safe.directory=*", "ls-files", "-coz", "--exclude-standard"]
        listed = subprocess.run(files, cwd=ROOT, capture_output=True, check=True).stdout
        there = b"\0".join(
            name for name in listed.split(b"\0") if (ROOT / os.fsdecode(name)).exists()
        )
        self.checkout.mkdir()
        pack = subprocess.run(
            ["tar", "-c", "--null", "-T", "-"],
            cwd=ROOT,
            input=there,
            capture_output=True,
            check=True,
        )
        subprocess.run(["tar", "-x", "-C", self.checkout], input=pack.stdout, check=True)
        if private:
            subprocess.run(["chmod", "-R", "go=", self.checkout], check=True)
        if self.where.programs:
            (self.home / "bin").mkdir()
            for name, text in PROGRAMS.items():
                (self.home / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
                (self.home / "bin" / name).chmod(0o755)
        install = self.where.installs and not ci
        if not install:
            borrow_environment(self.checkout)
        if self.user != "root":
            subprocess.run(["chown", "-R", f"{self.user}:", self.home], check=True)
        if not install:
            return []
        return self.start("make .venv/.ready .venv/azurite/.ready", OUT / "install.log", plain=True)

    def start(self, command: str, log: Path, *, plain: bool = False) -> list[str]:
        """What went wrong with it, as often at once as is to be. `plain`: with no variables and
        programs of others, which it could not be installed with."""
        where = self.where
        environ = {**inherited(), "HOME": str(self.home), "USER": self.user, "LOGNAME": self.user}
        environ |= {} if plain else where.environ
        if not where.sudo:
            environ.pop("CI", None)  # which leaves nothing out
        if where.programs and not plain:
            environ["PATH"] = f"{self.home}/bin:{environ['PATH']}"
        become = [] if self.user == "root" else ["setpriv", "--reuid", self.user, "--regid"]
        become += [self.user, "--init-groups"] if become else []
        script = f"{where.shell}\nexec {command}"
        with log.open("ab") as file:
            running = [
                subprocess.Popen(
                    ["timeout", "--kill-after=30", str(LIMIT_S), "setsid", "--wait", *become]
                    + ["env", "-i", *(f"{key}={value}" for key, value in environ.items())]
                    + ["bash", "-c", script],
                    cwd=self.checkout,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
                for _ in range(1 if plain else where.times)
            ]
            codes = [process.wait() for process in running]
        return [f"{command.partition(' TESTS')[0]} ended with {code}" for code in codes if code]

    def left_behind(self) -> list[str]:
        """Files in the checkout that are not the user's own, and processes."""
        uid = pwd.getpwnam(self.user).pw_uid
        strange = [str(path) for path in self.checkout.rglob("*") if path.lstat().st_uid != uid]
        troubles = [f"{len(strange)} files are not the user's: {strange[0]}"] if strange else []
        if self.user != "root":
            show = ["ps", "-u", self.user, "-o", "pid=,args="]
            left = subprocess.run(show, capture_output=True, text=True, check=False).stdout
            troubles += [f"left running: {line.strip()[:120]}" for line in left.splitlines()]
        return troubles


def inherited() -> dict[str, str]:
    """What a machine says of its certificates and package index, and nothing else."""
    kept = ("PIP_", "SSL_", "NODE_EXTRA_CA", "REQUESTS_CA", "CURL_CA", "OPENBLAS_", "CI")
    environ = {key: value for key, value in os.environ.items() if key.startswith(kept)}
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return environ | {"PATH": path, "LANG": "C.UTF-8", "TERM": "xterm", "SHELL": "/bin/bash"}


def borrow_environment(checkout: Path) -> None:
    """A copy of the .venv that is here, as if it had been installed there."""
    subprocess.run(["cp", "-a", "--reflink=auto", ROOT / ".venv", checkout], check=True)
    own = checkout / ".venv"
    texts = [*own.glob("bin/*"), *own.glob("lib/*/site-packages/*.pth"), own / "pyvenv.cfg"]
    for path in texts:
        if path.is_symlink() or not path.is_file():
            continue
        data = path.read_bytes()
        if os.fsencode(ROOT) in data and b"\0" not in data[:512]:
            path.write_bytes(data.replace(os.fsencode(ROOT), os.fsencode(checkout)))


if __name__ == "__main__":
    sys.exit(main())
