"""`spotctl init aws` against the stand-in: it creates each resource once, and machines can be
launched into them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from botocore.validate import ParamValidator

from providers.aws.apply import Account
from providers.aws.policy import policies
from providers.aws.roles import role_steps
from providers.aws.script import script
from providers.aws.setup import EVENT_RULE, steps
from providers.aws.terraform import terraform
from providers.base import Launched, UnknownOutcome
from providers.iam.policy import PolicyFacts
from providers.iam.setup import (
    NETWORKS,
    Call,
    MissingError,
    SetupFacts,
    Step,
    apply,
    find_missing_steps,
    select_jmespath,
    substitute,
)
from tests.clouds.aws.serving import PROFILE
from tests.clouds.faults import Fault
from tests.fixtures.waiting import LIMIT_S
from tests.providers.aws.conftest import Rented, connected

BOX = "203.0.113.7/32"
LOOKS = ("Describe", "Get", "List")


def facts(rented: Rented, region: str, network: str = "public", queue: str = "") -> SetupFacts:
    policy = PolicyFacts(
        deployment=rented.deployment,
        regions=(region,),
        own_store="s3://ours/spotd",
        checkpoint_store="s3://runs/team",
        account={"queue": queue} if queue else {},
    )
    return SetupFacts(policy, BOX, network, queue)


def changes(rented: Rented) -> list[str]:
    return [item.action for item in rented.aws.ec2.seen if not item.action.startswith(LOOKS)]


def client(service: str, region: str) -> Any:
    """The SDK's own, shared by callers with the same arguments."""
    return connected()._client(service, region)


def account() -> Account:
    """As `spotctl init aws` uses it."""
    return Account(clients=connected())


class Region:
    """A region as its owner sees it."""

    def __init__(self, name: str) -> None:
        self.ec2: Any = client("ec2", name)
        self.iam: Any = client("iam", "us-east-1")
        self.sqs: Any = client("sqs", name)
        self.events: Any = client("events", name)

    def vpcs(self, kind: str) -> list[Any]:
        tagged = [{"Name": "tag:spotd-network", "Values": [kind]}]
        return list(self.ec2.describe_vpcs(Filters=tagged)["Vpcs"])

    def rules(self, group: str) -> set[tuple[bool, str, int, str]]:
        filters = [{"Name": "group-id", "Values": [group]}]
        rows = self.ec2.describe_security_group_rules(Filters=filters)["SecurityGroupRules"]
        return {
            (
                row["IsEgress"],
                row["IpProtocol"],
                row.get("FromPort", -1),
                row.get("CidrIpv4") or row["ReferencedGroupInfo"]["GroupId"],
            )
            for row in rows
        }


# Each test has a region that nobody else has touched.
REGIONS_OF = {"public": "eu-west-1", "private": "eu-north-1", "jump": "ap-south-1"}


@pytest.mark.parametrize("network", NETWORKS)
def test_applied_twice_it_is_there_once(rented: Rented, network: str) -> None:
    name = REGIONS_OF[network]
    wanted, setup_account = steps(facts(rented, name, network, "spotd-warnings")), account()
    reported = find_missing_steps(wanted, setup_account.execute)
    assert changes(rented) == []
    done = list(apply(wanted, setup_account.execute))
    assert [text for text, there in done if not there] == reported
    assert [there for _, there in done].count(True) == 0
    assert find_missing_steps(wanted, setup_account.execute) == []
    rented.forget()
    assert {there for _, there in apply(wanted, setup_account.execute)} == {True}
    assert changes(rented) == []
    region = Region(name)
    [vpc] = region.vpcs(network)
    subnets = region.ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc["VpcId"]]}])
    zones = Counter(
        row["AvailabilityZone"]
        for row in subnets["Subnets"]
        if {"Key": "spotd-network", "Value": network} in row["Tags"]
    )
    told_zones = region.ec2.describe_availability_zones()["AvailabilityZones"]
    assert zones == Counter(row["ZoneName"] for row in told_zones)


@pytest.mark.parametrize("network", NETWORKS)
def test_machines_are_launched_into_it(rented: Rented, network: str) -> None:
    name = REGIONS_OF[network]
    list(apply(steps(facts(rented, name, network)), account().execute))
    role = f"spotd-node-{rented.deployment}"
    cloud = rented.cloud(regions=(name,), network=network, node_role=role)
    launched = cloud.launch(rented.request("into", region=name, zone=f"{name}a"))
    assert isinstance(launched, Launched)
    [machine] = cloud.list()
    assert machine.zone == f"{name}a"
    resource_id = machine.instance_id.partition("/")[2]
    region = Region(name)
    [row] = region.ec2.describe_instances(InstanceIds=[resource_id])["Reservations"][0]["Instances"]
    assert row["VpcId"] == region.vpcs(network)[0]["VpcId"]
    assert row["IamInstanceProfile"]["Arn"].endswith(role)
    [card] = row["NetworkInterfaces"]
    assert [group["GroupName"] for group in card["Groups"]] == ["spotd"]


@pytest.mark.parametrize("network", NETWORKS)
def test_nobody_but_the_box_gets_in(rented: Rented, network: str) -> None:
    name = REGIONS_OF[network]
    list(apply(steps(facts(rented, name, network)), account().execute))
    region = Region(name)
    [vpc] = region.vpcs(network)
    inside = [{"Name": "vpc-id", "Values": [vpc["VpcId"]]}]
    groups = {
        row["GroupName"]: row["GroupId"]
        for row in region.ec2.describe_security_groups(Filters=inside)["SecurityGroups"]
    }
    ours = groups["spotd"]
    source = groups["spotd-jump"] if network == "jump" else BOX
    rules = region.rules(ours)
    assert {rule for rule in rules if not rule[0]} == {
        (False, "tcp", 22, source),
        (False, "-1", -1, ours),
    }
    assert (True, "-1", -1, ours) in rules
    if network == "jump":
        jump = {rule for rule in region.rules(groups["spotd-jump"]) if not rule[0]}
        assert jump == {(False, "tcp", 22, BOX)}
    main = [*inside, {"Name": "association.main", "Values": ["true"]}]
    routes = region.ec2.describe_route_tables(Filters=main)["RouteTables"][0]["Routes"]
    out = [row for row in routes if row.get("DestinationCidrBlock") == "0.0.0.0/0"]
    assert bool(out) == (network == "public")


def test_the_roles_are_those_of_the_policies(rented: Rented) -> None:
    wanted = facts(rented, "eu-west-1")
    list(apply(steps(wanted), account().execute))
    iam = Region("eu-west-1").iam
    for name, document in policies(wanted.policy).items():
        owner = name.replace("-rehearse-", "-control-")
        policy = iam.get_role_policy(RoleName=owner, PolicyName=name)
        assert policy["PolicyDocument"] == document
        if owner != name:
            continue
        trust = iam.get_role(RoleName=name)["Role"]["AssumeRolePolicyDocument"]
        principal = trust["Statement"][0]["Principal"]
        if "-interrupt-" in name:
            assert principal == {"Service": "fis.amazonaws.com"}
            same = {"StringEquals": {"aws:SourceAccount": "123456789012"}}
            assert trust["Statement"][0]["Condition"] == same
            continue
        profile = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        assert [role["RoleName"] for role in profile["Roles"]] == [name]
        assert principal["Service"] == "ec2.amazonaws.com"
        of_the_box = None if "-node-" in name else "arn:aws:iam::123456789012:root"
        assert principal.get("AWS") == of_the_box


_OLD = {"Effect": "Allow", "Action": ["ec2:DescribeInstances"], "Resource": ["*"]}


def test_machines_of_other_clouds_may_have_a_role_of_their_own(rented: Rented) -> None:
    trusts = {"gcp": ("77", "spotd"), "azure": ("a-tenant", "an-object", "api://spotd")}
    own = facts(rented, "eu-west-1")
    name = f"spotd-web-{rented.deployment}"
    wanted, setup_account = [*role_steps(replace(own, trusts=trusts))], account()
    who = Step(
        "who", Call("us-east-1", "sts", "get_caller_identity", {}, "Account"), name="ACCOUNT"
    )
    assert f"the role {name}" in find_missing_steps([who, *wanted], setup_account.execute)
    list(apply([who, *wanted], setup_account.execute))
    assert find_missing_steps([who, *wanted], setup_account.execute) == []
    iam = client("iam", "us-east-1")
    role = iam.get_role(RoleName=name)["Role"]["AssumeRolePolicyDocument"]
    google, entra = role["Statement"]
    assert google["Principal"] == {"Federated": "accounts.google.com"}
    assert google["Condition"]["StringEquals"] == {
        "accounts.google.com:oaud": "spotd",
        "accounts.google.com:sub": "77",
    }
    issuer = "sts.windows.net/a-tenant/"
    arn = entra["Principal"]["Federated"]
    assert arn.endswith(f":oidc-provider/{issuer}")
    assert iam.get_open_id_connect_provider(OpenIDConnectProviderArn=arn)["ClientIDList"] == [
        "api://spotd"
    ]
    assert entra["Condition"]["StringEquals"] == {
        f"{issuer}:aud": "api://spotd",
        f"{issuer}:sub": "an-object",
    }
    policy = iam.get_role_policy(RoleName=name, PolicyName=name)["PolicyDocument"]
    assert policy == policies(own.policy)[f"spotd-node-{rented.deployment}"]
    fewer = [*role_steps(replace(own, trusts={"gcp": ("78", "spotd")}))]
    assert find_missing_steps([who, *fewer], setup_account.execute) == [
        f"who may have the role {name}"
    ]
    list(apply([who, *fewer], setup_account.execute))
    role = iam.get_role(RoleName=name)["Role"]["AssumeRolePolicyDocument"]
    assert len(role["Statement"]) == 1
    alike = trusts | {"gcp": ("77", "api://spotd")}  # what `federate` of a store can say
    module = terraform(replace(own, trusts=alike))
    assert 'resource "aws_iam_openid_connect_provider" "entra"' in module
    assert "web" not in terraform(own)


def test_a_policy_that_is_another_by_now_is_put_right(rented: Rented) -> None:
    wanted, setup_account = steps(facts(rented, "eu-west-1")), account()
    list(apply(wanted, setup_account.execute))
    name = f"spotd-control-{rented.deployment}"
    old = json.dumps({"Version": "2012-10-17", "Statement": [_OLD]})
    Region("eu-west-1").iam.put_role_policy(RoleName=name, PolicyName=name, PolicyDocument=old)
    assert find_missing_steps(wanted, setup_account.execute) == [f"what the role {name} may do"]
    list(apply(wanted, setup_account.execute))
    assert find_missing_steps(wanted, setup_account.execute) == []


def test_warnings_reach_the_queue(rented: Rented) -> None:
    queue = "spotd-warnings-eu"
    list(apply(steps(facts(rented, "eu-west-1", queue=queue)), account().execute))
    region = Region("eu-west-1")
    url = region.sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    names = ["QueueArn", "Policy"]
    reported = region.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    [target] = region.events.list_targets_by_rule(Rule=EVENT_RULE)["Targets"]
    assert target["Arn"] == reported["QueueArn"]
    [statement] = json.loads(reported["Policy"])["Statement"]
    assert statement["Principal"] == {"Service": "events.amazonaws.com"}
    rule = region.events.describe_rule(Name=EVENT_RULE)
    assert statement["Condition"] == {"ArnEquals": {"aws:SourceArn": rule["Arn"]}}
    assert json.loads(rule["EventPattern"])["detail-type"] == [
        "EC2 Spot Instance Interruption Warning",
        "EC2 Instance Rebalance Recommendation",
    ]
    assert rented.cloud(regions=("eu-west-1",), queue=queue).notices() == []


def test_what_was_interrupted_is_finished(rented: Rented) -> None:
    wanted, setup_account = steps(facts(rented, "ca-central-1")), account()
    rented.aws.ec2.faults.arm(Fault("http_500", ("CreateSecurityGroup",)))
    with pytest.raises(UnknownOutcome):
        list(apply(wanted, setup_account.execute))
    done = dict(apply(wanted, setup_account.execute))
    assert done["ca-central-1: its vpc"] is True
    assert done["ca-central-1: the security group spotd"] is False
    assert len(Region("ca-central-1").vpcs("public")) == 1


def test_a_look_that_fails_makes_nothing(rented: Rented) -> None:
    """Otherwise a throttled account would get a second network."""
    wanted, setup_account = steps(facts(rented, "eu-west-3")), account()
    rented.aws.ec2.faults.arm(Fault("http_500", ("DescribeVpcs",)))
    with pytest.raises(UnknownOutcome):
        list(apply(wanted, setup_account.execute))
    assert "CreateVpc" not in changes(rented)


def test_what_is_only_looked_up_has_to_be_there(rented: Rented) -> None:
    wanted = steps(facts(rented, "eu-west-1"))
    with pytest.raises(MissingError, match="the account is not there"):
        list(apply(wanted, lambda call: None))


def test_names_are_filled_in() -> None:
    assert substitute({"a": ["x-$VPC_1", 7, True]}, {"VPC_1": "v"}) == {"a": ["x-v", 7, True]}
    with pytest.raises(KeyError):
        substitute("$NOBODY", {})


@pytest.mark.parametrize("network", NETWORKS)
def test_every_call_is_one_that_aws_takes(rented: Rented, network: str) -> None:
    """By the SDK's own models: names, shapes and required parameters."""
    for step in steps(facts(rented, "eu-west-1", network, "q")):
        for call in filter(None, (step.look, step.make)):
            known = client(call.service, "eu-west-1").meta
            name = known.method_to_api_mapping[call.operation]
            shape = known.service_model.operation_model(name).input_shape
            report = ParamValidator().validate(dict(call.parameters), shape)
            assert not report.has_errors(), report.generate_report()


class CommandLine:
    """`aws` for a script: a program that hands its arguments to this process, where the SDK's
    client of the stand-in does what the AWS command line would (which takes seconds to start)."""

    def __init__(self, folder: Path) -> None:
        self._server = HTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        program = folder / "aws"
        program.write_text(
            "#!/usr/bin/env bash\n"
            "answer=$(printf '%s\\0' \"$@\" | curl -s -w '\\n%{http_code}' --data-binary @- "
            f"http://127.0.0.1:{self._server.server_port})\n"
            "if [ \"${answer##*$'\\n'}\" = 200 ]; then printf '%s' \"${answer%$'\\n'*}\"\n"
            "else printf '%s\\n' \"${answer%$'\\n'*}\" >&2; exit 254; fi\n"
        )
        program.chmod(0o755)
        self.environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}

    def run(self, text: str) -> subprocess.CompletedProcess[str]:
        line = ["bash", "-c", text]
        return subprocess.run(
            line, env=self.environ, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, words: Sequence[str]) -> str:
        """Execute `aws SERVICE OPERATION --region R --output json --query Q --cli-input-json J`."""
        service, operation = words[:2]
        options = dict(zip(words[2::2], words[3::2], strict=True))
        assert set(options) <= {"--region", "--output", "--query", "--cli-input-json"}
        sdk_client = client(service, options["--region"])
        parameters = json.loads(options.get("--cli-input-json", "{}"))
        result = getattr(sdk_client, operation.replace("-", "_"))(**parameters)
        return json.dumps(select_jmespath(options.get("--query", "@"), result), default=str)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                message = self.rfile.read(int(self.headers["Content-Length"])).decode()
                try:
                    status, text = 200, answer(message.split("\0")[:-1])
                except Exception as error:  # noqa: BLE001 - whatever it is, the command failed
                    status, text = 400, str(error)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Log nothing."""

        return Handler


@pytest.fixture
def command_line(rented: Rented, tmp_path: Path) -> Iterator[CommandLine]:
    made = CommandLine(tmp_path)
    yield made
    made.close()


def test_the_script_is_one_for_bash(rented: Rented) -> None:
    for network in NETWORKS:
        text = script(steps(facts(rented, "eu-west-1", network, "q")))
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize(("network", "region"), [("public", "sa-east-1"), ("jump", "us-east-2")])
def test_the_script_does_what_applying_does(
    rented: Rented, command_line: CommandLine, network: str, region: str
) -> None:
    wanted = steps(facts(rented, region, network, f"spotd-{network}"))
    done = command_line.run(script(wanted))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"made: {region}: its vpc" in done.stdout
    assert f"made: the subnet of {region}a" in done.stdout
    assert find_missing_steps(wanted, account().execute) == []
    rented.forget()
    again = command_line.run(script(wanted))
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert changes(rented) == []


def test_the_script_ends_where_aws_fails(rented: Rented, command_line: CommandLine) -> None:
    wanted = steps(facts(rented, "ap-southeast-2"))
    rented.aws.ec2.faults.arm(Fault("unauthorized", ("DescribeVpcs",)))
    done = command_line.run(script(wanted))
    assert done.returncode != 0
    assert "UnauthorizedOperation" in done.stderr
    assert "CreateVpc" not in changes(rented)


TERRAFORM = Path(__file__).with_name("golden") / "terraform.tf"
PLUGINS = os.environ.get("SPOTD_TERRAFORM_PLUGINS", "")


def test_the_terraform_is_as_it_was_validated() -> None:
    policy = PolicyFacts(
        "0123456789ab", ("us-east-1", "eu-north-1"), "s3://ours/spotd", "s3://runs/team"
    )
    text = terraform(SetupFacts(policy, BOX, "jump", "spotd-warnings"))
    if os.environ.get("SPOTD_WRITE_GOLDEN"):
        TERRAFORM.write_text(text)
    assert text == TERRAFORM.read_text()


class Terraform:
    """Terraform in a folder, with access only to the stand-in."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self._folder = folder
        (folder / "rc").write_text("")
        own = {"TF_CLI_CONFIG_FILE": str(folder / "rc"), "CHECKPOINT_DISABLE": "1"}
        self._environ = {**os.environ, **own, "AWS_PROFILE": PROFILE, "AWS_ENDPOINT_URL": endpoint}

    def run(self, *words: str) -> None:
        """Fails with its output."""
        done = subprocess.run(
            ["terraform", *words],
            cwd=self._folder,
            env=self._environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(
    not (PLUGINS and shutil.which("terraform")),
    reason="needs terraform, and SPOTD_TERRAFORM_PLUGINS: a mirror with AWS's provider",
)
@pytest.mark.parametrize(
    ("network", "region"),
    [("public", "us-west-1"), ("private", "eu-west-2"), ("jump", "ap-northeast-1")],
)
def test_terraform_makes_what_applying_makes(
    rented: Rented, tmp_path: Path, network: str, region: str
) -> None:
    wanted = facts(rented, region, network, "q" if network == "private" else "")
    (tmp_path / "main.tf").write_text(terraform(wanted))
    run = Terraform(tmp_path, rented.aws.endpoint).run
    run("init", "-input=false", f"-plugin-dir={PLUGINS}")
    run("validate")
    run("apply", "-input=false", "-auto-approve")
    assert find_missing_steps(steps(wanted), account().execute) == []
    run("plan", "-input=false", "-detailed-exitcode")  # which is 2 where there is more to do
