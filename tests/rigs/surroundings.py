"""What tests count on, whatever pytest was started in: signals, variables, umask and limits.

A program that a test starts inherits what pytest has. `make test &` in a script ignores SIGINT,
`nohup` SIGHUP, a laptop names clouds, proxies and a cluster, a hardened login has umask 077.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

OPEN_FILES = 4096
_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# By which programs of ours, or that we start, find clouds, stores, clusters, proxies, terminals and
# supervisors. LANG, LC_* and TZ stay: what we print may not depend on them.
_VARIABLES = re.compile(
    r"(AWS|AZURE|ARM|BOTO|CLOUDSDK|GCE|GCLOUD|GOOGLE|GS)_.*|NO_GCE_CHECK"
    r"|(KUBE|KUBERNETES|DOCKER|CONTAINER|CONTAINERS|PODMAN|RCLONE|REGISTRY)_?.*"
    r"|SSH_.*|GIT_.*|PG[A-Z]+|(HTTP|HTTPS|FTP|ALL|NO)_PROXY"
    r"|SPOTD_.*|SPOTCTL_.*|SKYPILOT_.*|SLURM_.*"
    r"|(CUDA|NVIDIA|NCCL|GLOO|TORCH|OMP|MKL|HF|TRANSFORMERS|WANDB|MASTER|LOCAL|GROUP|ROLE)_.*"
    r"|RANK|WORLD_SIZE"
    r"|XDG_.*|DBUS_.*|NOTIFY_SOCKET|WATCHDOG_.*|LISTEN_.*|INVOCATION_ID|JOURNAL_STREAM"
    r"|(CREDENTIALS|RUNTIME|STATE|CACHE|LOGS|CONFIGURATION)_DIRECTORY"
    r"|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR.*|PAGER|LESS|EDITOR|VISUAL"
    r"|BASH_ENV|ENV|CDPATH|GREP_.*|POSIXLY_CORRECT|MAKE.*|MFLAGS|SUDO_.*"
    r"|PYTHON(?!DONTWRITEBYTECODE|UNBUFFERED).*",
    re.IGNORECASE,
)
# Whoever runs the tests says by these how much is to be tried, and what is to be written.
_OURS = {
    "SPOTD_EXAMPLES",
    "SPOTD_KILLS",
    "SPOTD_REHEARSE",
    "SPOTD_TERRAFORM_PLUGINS",
    "SPOTD_UPGRADE_JOBS",
    "SPOTD_WRITE_GOLDEN",
}


# Where a system has its programs comes first: an older one of somebody's own is not asked.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def settle() -> None:
    """For this process and all that it starts; to be called before anything reads them."""
    first = _PATH.split(os.pathsep)
    rest = [part for part in os.environ.get("PATH", "").split(os.pathsep) if part not in first]
    os.environ["PATH"] = os.pathsep.join([*first, *(part for part in rest if part)])
    for name in list(os.environ):
        if _VARIABLES.fullmatch(name) and name not in _OURS:
            del os.environ[name]
    os.umask(0o022)
    _set_signals()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _set_signals() -> None:
    """Programs that we start get their defaults. What was ignored here is ignored still, by a
    function: that, unlike SIG_IGN, no program inherits."""
    for number in _SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignore)
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # exit codes would be lost
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_SIGNALS, signal.SIGCHLD, signal.SIGALRM})


def _ignore(_number: int, _frame: object) -> None:
    return


def path_without(folder: Path, names: Sequence[str]) -> str:
    """A PATH without these programs: in place of each folder that has one of them, a folder below
    `folder` with links to all that it has else."""
    parts = []
    for number, part in enumerate(os.environ["PATH"].split(os.pathsep)):
        if not any(shutil.which(name, path=part) for name in names):
            parts.append(part)
            continue
        links = folder / f"path{number}"
        links.mkdir(parents=True)
        for program in Path(part).iterdir():
            if program.name not in names:
                (links / program.name).symlink_to(program)
        parts.append(str(links))
    return os.pathsep.join(parts)
