"""Run the AWS stand-in, with the resources of `spotctl init aws` and a profile by which the SDK
finds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import boto3
from moto.backends import get_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from spotd.demo.s3 import QuietRequestHandler
from tests.clouds.aws.ec2 import ACCOUNT, Ec2
from tests.clouds.aws.market import REGIONS
from tests.clouds.machines import Machines

PROFILE = "standin"


class _Kept(QuietRequestHandler):
    """Keep connections open, as EC2 does."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits for the client's delayed ACK


@dataclass(frozen=True)
class StandIn:
    """`environ` is the environment that a process needs to find the stand-in by its profile."""

    endpoint: str
    ec2: Ec2
    environ: dict[str, str]


@contextmanager
def serving(
    folder: Path,
    regions: Sequence[str] = REGIONS,
    address: str = "127.0.0.1",
    network: str = "public",
    machines: Machines | None = None,
) -> Iterator[StandIn]:
    """Run AWS for the duration of the block, with credentials in `folder` and a network of that
    kind."""
    ec2 = Ec2(DomainDispatcherApplication(create_backend_app), machines)
    server = make_server(address, 0, ec2, True, request_handler=_Kept)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    endpoint = f"http://{address}:{server.server_port}"
    try:
        _prepare(endpoint, ec2, regions, network)
        yield StandIn(endpoint, ec2, _profile(folder, endpoint))
    finally:
        ec2.fleet.close()
        server.shutdown()
        thread.join()
        server.server_close()


def _profile(folder: Path, endpoint: str) -> dict[str, str]:
    config, credentials = folder / "aws-config", folder / "aws-credentials"
    config.write_text(f"[profile {PROFILE}]\nendpoint_url = {endpoint}\n")
    credentials.write_text(f"[{PROFILE}]\naws_access_key_id = test\naws_secret_access_key = test\n")
    return {
        "AWS_CONFIG_FILE": str(config),
        "AWS_SHARED_CREDENTIALS_FILE": str(credentials),
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _prepare(endpoint: str, ec2: Ec2, regions: Sequence[str], network: str) -> None:
    """Create tagged subnets and a security group in each region, as `spotctl init aws` does."""
    for region in regions:
        client = boto3.client(
            "ec2",
            endpoint_url=endpoint,
            region_name=region,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        tag = [{"Key": "spotd-network", "Value": network}]
        zones = sorted({z for zones in ec2.market.spot.values() for z in zones})
        subnets = client.describe_subnets()["Subnets"]
        made = [row["SubnetId"] for row in subnets if row["AvailabilityZone"] in zones]
        groups = [client.describe_security_groups()["SecurityGroups"][0]["GroupId"]]
        client.create_tags(Resources=[*made, *groups], Tags=tag)
        # Of moto itself: to list all its images takes seconds.
        ec2.image = next(iter(get_backend("ec2")[ACCOUNT][region].amis))
        client.close()
