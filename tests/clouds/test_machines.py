"""A stand-in's machine boots by its user data alone, receives its notice in its cloud's format, and
leaves nothing behind."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import paramiko
import pytest
import yaml

from providers import cloud_init
from providers.base import CapacityType, Instance, InstanceState, LaunchRequest, NoticeKind
from providers.local.documents import MachineFacts
from spotd.demo.box import wait_for
from tests.clouds.machines import Machines, machines_on, nowhere
from tests.fixtures import netns
from tests.fixtures.local_cloud import Ran, host_key, run, user_key
from tests.fixtures.processes import alive

pytestmark = pytest.mark.root

UP_S = 180.0
REQUEST = LaunchRequest(
    token="t",
    name="n",
    region="r",
    zone="z",
    instance_type="c5.xlarge",
    capacity_type=CapacityType.SPOT,
    tags={},
    ssh_user="spotd",
    ssh_public_key=user_key().public,
    host_private_key=host_key().private,
    host_public_key=host_key().public,
)
DEADLINE_US = 1_795_000_000_000_000  # 2026-11-18T11:06:40Z


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("machines")
    with netns.network() as network, machines_on(network, folder) as running:
        yield running


@pytest.fixture(autouse=True)
def _nothing_is_left(machines: Machines) -> Iterator[None]:
    yield
    machines.end_all()


def facts(name: str, cloud: str = "aws") -> MachineFacts:
    return MachineFacts(name, cloud, name, "region", "zone", "type", spot=True)


def told(request: LaunchRequest = REQUEST, *, without: str = "", host_key: bool = True) -> str:
    """The product's user data as the cloud receives it, or without one key."""
    text = cloud_init.user_data(request, host_key=host_key)
    config = yaml.safe_load(text)
    config.pop(without, None)
    return text if not without else "#cloud-config\n" + json.dumps(config)


def at(host: str) -> Instance:
    state, sold = InstanceState.RUNNING, CapacityType.SPOT
    return Instance("i", "t", {}, state, "r", "z", "c", sold, host=host, ssh_user="spotd")


def up(machines: Machines, name: str) -> None:
    def listens() -> bool:
        with suppress(Exception):
            return machines.machine(name).path("/run/sshd/pid").exists()
        return False

    wait_for(f"{name} to be up", listens, UP_S)


def prepared(host: str) -> str:
    """The outcome of its preparation."""
    output = wait_for(
        "the preparation", lambda: run(at(host), f"cat {cloud_init.STATE_FILE}").out, UP_S
    )
    return str(output).strip()


def test_it_comes_up_by_the_products_user_data(machines: Machines) -> None:
    host = machines.boot(facts("i-1"), told())
    up(machines, "i-1")
    output = run(at(host), "whoami; sudo -n whoami; hostname; stat -c %U ~")
    assert output.out.split() == ["spotd", "root", "i-1", "spotd"]
    assert prepared(host) == "ok"
    assert run(at(host), f"stat -c %U {cloud_init.DATA_DIR}").out == "spotd\n"
    assert machines.host_key("i-1").split()[:2] == host_key().public.split()[:2]


@pytest.mark.parametrize(
    ("without", "error"),
    [
        ("users", paramiko.AuthenticationException),
        ("ssh_keys", paramiko.SSHException),  # somebody else's host key
    ],
)
def test_without_its_keys_nobody_logs_in(
    machines: Machines, without: str, error: type[Exception]
) -> None:
    host = machines.boot(facts("i-1"), told(without=without))
    up(machines, "i-1")
    with pytest.raises(error):
        run(at(host), "true")


def test_a_cloud_may_make_the_account_and_tell_the_host_key(machines: Machines) -> None:
    host = machines.boot(
        facts("i-1", "gcp"),
        told(host_key=False, without="users"),
        accounts={"spotd": user_key().public},
    )
    up(machines, "i-1")
    key = paramiko.Ed25519Key(data=base64.b64decode(machines.host_key("i-1").split()[1]))
    with paramiko.Transport((host, 22)) as transport:
        transport.connect(username="spotd", pkey=user_key().load(), hostkey=key)
        assert transport.is_authenticated()


ASK = {
    "aws": """
token=$(curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' $base/latest/api/token)
curl -s -H "X-aws-ec2-metadata-token: $token" $base/latest/meta-data/spot/instance-action
""",
    "gcp": """
curl -s -H 'Metadata-Flavor: Google' $base/computeMetadata/v1/instance/preempted
""",
    "azure": """
curl -s -H 'Metadata: true' "$base/metadata/scheduledevents?api-version=2020-07-01"
""",
}
SAYS = {"aws": '"action":"terminate"', "gcp": "TRUE", "azure": '"EventType":"Preempt"'}


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_a_notice_is_told_in_the_dialect_of_its_cloud(machines: Machines, cloud: str) -> None:
    host = machines.boot(facts("i-1", cloud), told())
    up(machines, "i-1")

    def ask() -> Ran:
        return run(at(host), f"base=http://169.254.169.254{ASK[cloud]}")

    before = ask()
    assert before.code == 0
    assert SAYS[cloud] not in before.out
    machines.warn("i-1", DEADLINE_US)
    after = ask().out
    assert SAYS[cloud] in after
    machines.withdraw("i-1")
    if cloud != "gcp":  # what it has said there, it goes on saying
        assert SAYS[cloud] not in ask().out
    machines.warn("i-1", DEADLINE_US, NoticeKind.MAINTENANCE, "event-1")


KINDS = ("net", "mnt", "pid", "uts")


def namespaces(pid: int) -> set[str]:
    folder = Path(f"/proc/{pid}/ns")
    return {str((folder / kind).readlink()) for kind in KINDS}


@contextmanager
def named(pid: int) -> Iterator[None]:
    """Its namespaces have unique names, so that the next machine's cannot collide."""
    with ExitStack() as stack:
        for kind in KINDS:
            stack.callback(os.close, os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY))
        yield


def in_use() -> set[str]:
    """The namespaces that any process is in."""
    result: set[str] = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                result |= namespaces(int(folder.name))
    return result


@pytest.mark.parametrize("how", ["end", "cut_power"])
def test_nothing_is_left_of_one_that_has_ended(machines: Machines, how: str) -> None:
    host = machines.boot(facts("i-1"), told())
    up(machines, "i-1")
    nap = "setsid -f sleep 1000 </dev/null >/dev/null 2>&1"
    run(at(host), f"{nap}; sudo -n {nap}")
    machine = machines.machine("i-1")
    had = namespaces(machine.init) - namespaces(os.getpid())
    assert len(had) == 4
    disk = Path(machines._folder) / "i-1"
    assert disk.exists()
    processes = machine.group / "cgroup.procs"
    pids = processes.read_text().split()
    assert len(pids) > 4
    with named(machine.init):
        getattr(machines, how)("i-1")
        assert not had & in_use()
    assert not [pid for pid in pids if alive(int(pid))]
    assert not machine.group.exists()
    assert not Path(f"/sys/class/net/{machine.port}").exists()
    assert not disk.exists()
    assert "i-1" not in Path("/proc/mounts").read_text()
    assert machines.running() == []
    machines.end("i-1")  # again is nothing


# A run with one machine that waits to be killed.
_RUN = """
import sys, time
from pathlib import Path
from tests.clouds.machines import machines_on
from tests.clouds.test_machines import facts, told, up
from tests.fixtures import netns
with netns.network() as network, machines_on(network, Path(sys.argv[1])) as machines:
    machines.boot(facts("i-1"), told())
    up(machines, "i-1")
    print(*(machines.machine("i-1").group / "cgroup.procs").read_text().split(), flush=True)
    time.sleep(600)
"""


def test_a_run_that_is_killed_takes_its_machines_along(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    with process.stdout:
        pids = [int(number) for number in process.stdout.readline().split()]
    assert len(pids) > 4
    process.kill()
    process.wait()
    wait_for("its processes to end", lambda: not any(map(alive, pids)), UP_S)
    with netns.network():  # the next one sweeps what is not a process
        pass


def test_one_that_is_switched_off_from_inside_says_so(machines: Machines) -> None:
    off = threading.Event()
    host = machines.boot(facts("i-1"), told(), off=off.set)
    up(machines, "i-1")
    run(at(host), "sudo -n shutdown -h now")
    assert off.wait(UP_S)
    assert machines.running() == []


def test_several_come_up_side_by_side_and_know_nothing_of_each_other(machines: Machines) -> None:
    hosts = [machines.boot(facts(name), told()) for name in ("i-1", "i-2")]
    assert len(set(hosts)) == 2
    for name, host in zip(("i-1", "i-2"), hosts, strict=True):
        up(machines, name)
        run(at(host), f"echo {name} > mine")
    assert [run(at(host), "cat mine; hostname").out.split() for host in hosts] == [
        ["i-1", "i-1"],
        ["i-2", "i-2"],
    ]


def test_addresses_that_lead_nowhere_are_of_the_test_net() -> None:
    addresses = nowhere()
    result = [next(addresses) for _ in range(300)]
    assert all(address.startswith("192.0.2.") for address in result)
    assert len(set(result)) == 254
