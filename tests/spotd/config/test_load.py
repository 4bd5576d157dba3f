"""The configuration: what it says, what it must not say, and how that is told."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from providers.stores import credential_provider, open_store
from spotd.alert_sinks.slack import SlackSink
from spotd.base import log
from spotd.base.errors import ExitCode
from spotd.config.config import Config, ConfigError
from spotd.config.load import load_config
from spotd.config.provider_registry import KINDS, CredentialIssuers
from spotd.domain.events import Severity
from spotd.domain.market import Timing
from spotd.domain.queue import Limits
from spotd.money.approval import Approval
from spotd.money.budget import Budget
from spotd.planner.core.credential_lease import StoreAccess
from spotd.planner.core.shard_stores import StorePlace
from spotd.spec.checkpoint_every import CheckpointEvery

EXAMPLE = Path(__file__).parents[3] / "examples" / "config.toml"
LOCAL = """
[providers.here]
kind = "local"
url = "http://127.0.0.1:8700"
personality = "aws"
"""
AWS = """
[providers.aws]
kind = "aws"
regions = ["us-east-1"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def load(file: Path, text: str, environ: Mapping[str, str] | None = None) -> Config:
    file.write_text(text)
    return load_config(file, environ or {"STATE_DIRECTORY": str(file.parent / "state")})


def refused(file: Path, text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(file, text, environ)
    assert caught.value.exit_code is ExitCode.USAGE
    return [str(problem) for problem in caught.value.problems]


def test_the_smallest_file_has_working_defaults(file: Path) -> None:
    config = load(file, LOCAL, {"STATE_DIRECTORY": "/var/lib/spotd", "RUNTIME_DIRECTORY": "/run/s"})
    assert config.state_dir == Path("/var/lib/spotd")
    assert config.socket == Path("/run/s/spotd.sock")
    assert config.database_url == "sqlite:////var/lib/spotd/spotd.db"
    assert config.deployment_store == "file:///var/lib/spotd/store"
    assert config.checkpoint_defaults.store == "file:///var/lib/spotd/checkpoints"
    assert config.file.limits.to_model() == Limits()
    assert config.timing == Timing()
    assert config.timing.unattended_s == 24 * 3600
    assert config.known.clouds == ("aws", "here")
    assert config.known.routes == ()


def test_without_systemd_everything_is_in_folders_of_the_user(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))
    config = load(file, LOCAL, {"XDG_RUNTIME_DIR": "/run/user/7"})
    assert config.state_dir == tmp_path / "own" / "spotd"
    assert config.socket == Path("/run/user/7/spotd/spotd.sock")
    assert load(file, LOCAL, {"X": ""}).socket == tmp_path / "own" / "spotd" / "spotd.sock"


def test_everything_that_can_be_said_is_understood(file: Path) -> None:
    secret = file.with_name("hook")
    secret.write_text("https://hooks.slack.com/services/T/B/C\n")
    config = load(
        file,
        f"""
        state_dir = "{file.parent}"
        socket = "{file.parent}/s.sock"
        database.url = "postgresql+psycopg://spotd@db/spotd"
        deployment.store = "s3://bucket/deployment/"
        checkpoint = {{store = "s3://bucket/checkpoints", every = "2m", keep = 5}}
        limits = {{max_nodes = 4, max_usd_per_hour = 12.5}}
        log = {{level = "debug", format = "json"}}
        placement = {{on_demand_within_s = 300}}
        timing = {{survey_every_s = 2, suspect_after_s = 3, lost_after_s = 30, drain_margin_s = 4}}
        {AWS}
        [alerts.routes.ops]
        kind = "slack"
        url_file = "{secret}"
        min_severity = "warning"
        """,
    )
    assert config.database_url.startswith("postgresql")
    assert config.deployment_store == "s3://bucket/deployment"
    defaults = config.checkpoint_defaults
    assert (defaults.store, defaults.every_s, defaults.keep) == ("s3://bucket/checkpoints", 120, 5)
    assert defaults.every == CheckpointEvery(seconds=120.0)
    assert config.store_places == {}
    assert config.file.limits.to_model() == Limits(4, 12_500_000)
    assert (config.timing.suspect_after_s, config.timing.drain_margin_s) == (3, 4)
    assert config.file.timing.survey_every_s == 2
    assert config.timing.granted_s == 300
    assert config.alert_sinks()["ops"] == SlackSink(
        "https://hooks.slack.com/services/T/B/C", Severity.WARNING
    )
    assert config.file.alerts.routes["ops"].min_severity is Severity.WARNING
    assert "services/T" not in repr(config)


def test_a_deployment_s_id_is_one_that_a_database_can_have(file: Path) -> None:
    assert load(file, LOCAL).file.deployment.id is None
    given = load(file, LOCAL + '[deployment]\nid = "5f1c09a2b7de"\n')
    assert given.file.deployment.id == "5f1c09a2b7de"
    [problem] = refused(file, LOCAL + '[deployment]\nid = "Mine"\n')
    assert "deployment.id" in problem


def test_the_checked_in_example_loads() -> None:
    config = load_config(EXAMPLE, {})
    assert config.known.clouds == ("aws", "gcp")
    assert config.known.routes == ("default",)
    assert config.file.limits.to_model() == Limits(8, 40_000_000)


def test_the_example_s_comments_show_the_defaults(tmp_path: Path) -> None:
    environ = {"STATE_DIRECTORY": "/var/lib/spotd", "RUNTIME_DIRECTORY": "/run/spotd"}
    text = EXAMPLE.read_text()
    said, count = re.subn(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE)
    assert count > 15
    default, told = load(tmp_path / "a", text, environ), load(tmp_path / "b", said, environ)
    assert facts(told) == facts(default)


def test_projects(file: Path) -> None:
    text = (
        LOCAL
        + """
[projects.llm]
max_nodes = 4

[projects.vision]

[policies]
approved_projects = ["lab"]
unapproved_projects = "refuse"
dry_run = false
"""
    )
    config = load(file, text)
    assert config.limits.projects == {"llm": 4}
    assert config.approval == Approval("refuse", frozenset({"llm", "vision", "lab"}))
    assert not config.dry_run
    assert load(file, LOCAL).dry_run
    assert load(file, LOCAL).approval == Approval("warn", frozenset())
    assert "projects.llm.max_nodes" in str(refused(file, text.replace("= 4", "= 0")))
    said = str(refused(file, text.replace('"refuse"', '"stop"')))
    assert "policies.unapproved_projects" in said


def test_budgets(file: Path) -> None:
    text = (
        LOCAL
        + """
[alerts.routes.finance]
kind = "log"
[budgets.lab]
usd_per_month = 10000
routes = {100 = "finance"}
[budgets.ada]
usd_per_month = 1.5
user = "ada"
project = "llm"
"""
    )
    assert load(file, text).budgets == [
        Budget("lab", 10_000_000_000, routes={100: "finance"}),
        Budget("ada", 1_500_000, "ada", "llm"),
    ]
    said = refused(file, text.replace('100 = "finance"', '80 = "nobody"'))
    assert "budgets.lab.routes.80: there is no route 'nobody'" in str(said)
    assert "budgets.lab.routes" in str(refused(file, text.replace("100 =", "90 =")))


def facts(config: Config) -> tuple[object, ...]:
    file = config.file
    places = (config.state_dir, config.socket, config.database_url, config.deployment_store)
    return *places, config.checkpoint_defaults, file.alerts, config.timing, file.log


def test_a_folder_here_is_no_default_for_a_cloud_that_cannot_reach_it(file: Path) -> None:
    limits = "[limits]\nmax_nodes = 2\nmax_usd_per_hour = 1\n"
    assert load(file, LOCAL + AWS + limits).checkpoint_defaults.store == ""


def test_the_environment_wins_over_the_file(file: Path) -> None:
    config = load(
        file,
        LOCAL + "[limits]\nmax_nodes = 2\n",
        {
            "SPOTD__LIMITS__MAX_NODES": "9",
            "SPOTD__LIMITS__MAX_USD_PER_HOUR": "1.5",
            "SPOTD__PROVIDERS__HERE__PERSONALITY": "gcp",
            "SPOTD__PROVIDERS__NEXT": (
                '{"kind": "local", "url": "http://127.0.0.1:1", "personality": "azure"}'
            ),
            "SPOTD__LOG__LEVEL": "error",
            "SPOTD__STATE_DIR": "/var/elsewhere",
            "SPOTD_HOME": "/not/ours",
        },
    )
    assert config.file.limits.to_model() == Limits(9, 1_500_000)
    assert config.known.clouds == ("azure", "gcp", "here", "next")
    assert config.file.log.level == "error"
    assert config.state_dir == Path("/var/elsewhere")


def test_a_wrong_value_from_the_environment_names_its_variable(file: Path) -> None:
    problems = refused(
        file, LOCAL, {"SPOTD__LIMITS__MAX_NODES": "many", "SPOTD__LIMIT__MAX_NODES": "3"}
    )
    assert problems == [
        "SPOTD__LIMIT__MAX_NODES: no such section (fix: did you mean 'limits'?)",
        "limits.max_nodes (SPOTD__LIMITS__MAX_NODES): must be a whole number, not 'many'",
    ]


def test_a_section_from_the_environment_that_is_no_json_is_refused(file: Path) -> None:
    [problem] = refused(file, LOCAL, {"SPOTD__LIMITS": "max_nodes=3"})
    assert "must be JSON" in problem


def test_every_problem_is_told_at_once_with_its_key_and_a_fix(file: Path) -> None:
    problems = refused(
        file,
        """
        [limits]
        max_node = 3
        [providers.aws]
        kind = "gcp"
        regions = []
        [providers.far]
        kind = "local"
        url = "http://10.0.0.1:80"
        personality = "aws"
        [providers.x]
        kind = "loca"
        [checkpoint]
        store = "bucket"
        keep = 0
        [timing]
        lost_after_s = -1
        [log]
        level = "loud"
        [checkpont]
        """,
    )
    assert sorted(problems) == sorted(
        [
            "limits.max_node: unknown key (fix: did you mean 'max_nodes'?)",
            (
                "limits.max_nodes: is missing, and aws can spend money "
                "(fix: set it under [limits], for example max_nodes = 8)"
            ),
            (
                "limits.max_usd_per_hour: is missing, and aws can spend money "
                "(fix: set it under [limits], for example max_usd_per_hour = 40.0)"
            ),
            "providers.aws.project: is missing (fix: add it)",
            "providers.aws.regions: must not be empty",
            (
                "providers.far.url: 10.0.0.1 is not this machine "
                "(fix: a local cloud is at http://127.0.0.1:PORT)"
            ),
            f"providers.x.kind: 'loca' is not possible (fix: use {', '.join(map(repr, KINDS))})",
            (
                "checkpoint.store: 'bucket' is not a store "
                "(fix: write file:///folder, or s3://, gs:// or az://bucket)"
            ),
            "checkpoint.keep: must be greater than or equal to 1",
            "timing.lost_after_s: must be greater than 0",
            "log.level: 'loud' is not possible (fix: use 'debug', 'info', 'warning' or 'error')",
            "checkpont: unknown key (fix: did you mean 'checkpoint'?)",
        ]
    )


@pytest.mark.parametrize("given", ["", "max_nodes = 3", "max_usd_per_hour = 3"])
def test_no_cloud_that_costs_money_starts_without_both_limits(file: Path, given: str) -> None:
    for provider in (
        AWS,
        '[providers.g]\nkind = "gcp"\nproject = "p"\nregions = ["r"]\n',
        (
            '[providers.z]\nkind = "azure"\nsubscription_id = "s"\nresource_group = "g"\n'
            'regions = ["r"]\n'
        ),
    ):
        problems = refused(file, f"{provider}{LOCAL}[limits]\n{given}\n")
        missing = {"max_nodes", "max_usd_per_hour"} - {given.split(" ", maxsplit=1)[0]}
        assert {problem.split(":")[0] for problem in problems} == {
            f"limits.{name}" for name in missing
        }
        load(file, f"{provider}{LOCAL}[limits]\nmax_nodes = 3\nmax_usd_per_hour = 3\n")


@pytest.mark.parametrize("value", ["true", "0", "-1", '"lots"', "inf", "nan"])
def test_a_limit_that_limits_nothing_is_refused(file: Path, value: str) -> None:
    text = f"{AWS}[limits]\nmax_nodes = {value}\nmax_usd_per_hour = {value}\n"
    problems = refused(file, text)
    assert {problem.split(":")[0] for problem in problems} >= {
        "limits.max_nodes",
        "limits.max_usd_per_hour",
    }


@pytest.mark.parametrize("value", ["true", "0", "-1", '"a day"', "inf", "nan", "721", "[1]"])
def test_a_time_without_a_daemon_that_is_none_is_refused(file: Path, value: str) -> None:
    [problem] = refused(file, f"{LOCAL}[limits]\nunattended_h = {value}\n")
    assert problem.startswith("limits.unattended_h: ")


def test_a_time_without_a_daemon_outlasts_an_outage_where_it_costs_money(file: Path) -> None:
    short = "[limits]\nmax_nodes = 3\nmax_usd_per_hour = 3\nunattended_h = 0.5\n"
    [problem] = refused(file, AWS + short)
    assert problem.startswith("limits.unattended_h: is too short: an outage")
    assert "write 1 or more" in problem
    assert load(file, LOCAL + short).timing.unattended_s == 1800


@pytest.mark.parametrize(
    "url", ["http://8.8.8.8:80", "http://cloud.example", "https://127.0.0.1:1", "127.0.0.1:1", ""]
)
def test_a_local_cloud_that_is_not_on_this_machine_is_refused(file: Path, url: str) -> None:
    [problem] = refused(file, LOCAL.replace("http://127.0.0.1:8700", url))
    assert problem.startswith("providers.here.url: ")


GCP = """\
[providers.gcp]
kind = "gcp"
project = "p"
regions = ["us-central1"]
[limits]
max_nodes = 3
max_usd_per_hour = 3
"""


@pytest.mark.parametrize("name", ["compute_endpoint", "billing_endpoint"])
@pytest.mark.parametrize(
    ("value", "good"),
    [
        ("https://compute-ours.p.googleapis.com", True),
        ("http://127.0.0.1:5570", True),
        ("http://compute.example", False),
        ("http://127.0.0.1:5570/compute", False),
        ("compute.example", False),
        ("https://", False),
    ],
)
def test_credentials_are_sent_to_no_address_in_the_clear(
    file: Path, name: str, value: str, good: bool
) -> None:
    text = GCP.replace("[limits]", f'{name} = "{value}"\n[limits]')
    if good:
        assert getattr(load(file, text).file.providers["gcp"], name) == value
    else:
        [problem] = refused(file, text)
        assert problem.startswith(f"providers.gcp.{name}: ")


def test_an_image_of_google_cloud_is_a_link_without_its_host(file: Path) -> None:
    for image in ("ami-1", "https://www.googleapis.com/compute/v1/projects/p/global/images/i"):
        [problem] = refused(file, GCP.replace("[limits]", f'image = "{image}"\n[limits]'))
        assert problem.startswith("providers.gcp.image: ")
    load(file, GCP.replace("[limits]", 'image = "projects/p/global/images/family/f"\n[limits]'))


def test_one_account_under_two_names_is_refused(file: Path) -> None:
    [problem] = refused(file, LOCAL + LOCAL.replace("here", "there"))
    assert problem.startswith("providers.there: is the same account as providers.here")


def test_names_that_would_mislead_are_refused(file: Path) -> None:
    [problem] = refused(file, LOCAL.replace("here", "gcp"))
    assert problem.startswith("providers.gcp: is the name of another cloud, and this one is aws")
    [problem] = refused(file, LOCAL.replace("here", "Here"))
    assert problem.startswith("providers.Here: is not a valid name")


def test_a_file_without_a_provider_shows_one(file: Path) -> None:
    [problem] = refused(file, "[limits]\nmax_nodes = 3\n")
    assert problem.startswith("providers: no provider is configured")
    assert "[providers.here]" in problem


def test_a_secret_in_the_file_is_refused_and_not_repeated(file: Path) -> None:
    route = '[alerts.routes.ops]\nkind = "slack"\n'
    [problem] = refused(file, f'{LOCAL}{route}url = "https://hooks.slack.com/services/SECRET"\n')
    assert problem == (
        "alerts.routes.ops.url: a secret must not be in the file "
        "(fix: use url_file or url_env or url_credential)"
    )
    store = '[stores.main]\nurl = "s3://b"\noptions = {secret_access_key = "SECRET"}\n'
    [problem] = refused(file, LOCAL + store)
    assert problem.startswith("stores.main.options: secret_access_key must not be in the file")
    assert "SECRET" not in problem


def test_a_slack_address_comes_from_a_file_a_variable_or_a_credential(file: Path) -> None:
    url = "https://hooks.slack.com/services/T/B/C"
    file.with_name("hook").write_text(url + "\n")
    environ = {"HOOK": url, "CREDENTIALS_DIRECTORY": str(file.parent)}
    for reference in (
        f'url_file = "{file.parent}/hook"',
        'url_env = "HOOK"',
        'url_credential = "hook"',
    ):
        text = f'{LOCAL}[alerts.routes.ops]\nkind = "slack"\n{reference}\n'
        assert load(file, text, environ).alert_sinks()["ops"] == SlackSink(url)


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("", "has no address"),
        ('url_file = "/does/not/exist"', "cannot read /does/not/exist: No such file"),
        ('url_env = "NOT_SET"', "the variable NOT_SET is not set"),
        ('url_credential = "hook"', "no credential 'hook' without systemd"),
        ('url_env = "HTTP"', "is not an https address"),
        ('url_env = "ELSEWHERE"', "is not an https address"),
        ('url_env = "A"\nurl_file = "/b"', "both given"),
    ],
)
def test_a_slack_address_that_leads_nowhere_is_found_at_the_start(
    file: Path, reference: str, complaint: str
) -> None:
    environ = {
        "HTTP": "http://hooks.slack.com/services/T/B/SECRET",
        "ELSEWHERE": "https://hooks.slack.com.evil.example/services/T/B/SECRET",
    }
    text = f'{LOCAL}[alerts.routes.ops]\nkind = "slack"\n{reference}\n'
    [problem] = refused(file, text, environ)
    assert problem.startswith("alerts.routes.ops: ")
    assert complaint in problem
    assert "SECRET" not in problem
    assert "(fix: " in problem


def test_plain_http_is_for_a_named_host_on_this_machine_alone(file: Path) -> None:
    text = (
        f'{LOCAL}[alerts.routes.ops]\nkind = "slack"\nurl_env = "HOOK"\n'
        'allow_hosts = ["127.0.0.1:9", "slack.example"]\n'
    )
    assert load(file, text, {"HOOK": "http://127.0.0.1:9/x"}).alert_sinks()["ops"]
    assert load(file, text, {"HOOK": "https://slack.example/x"}).alert_sinks()["ops"]
    refused(file, text, {"HOOK": "http://127.0.0.1:10/x"})
    refused(file, text, {"HOOK": "http://slack.example/x"})


def test_a_secret_that_vanishes_later_is_an_error_then(file: Path) -> None:
    hook = file.with_name("hook")
    hook.write_text("https://hooks.slack.com/services/T/B/C")
    config = load(file, f'{LOCAL}[alerts.routes.ops]\nkind = "slack"\nurl_file = "{hook}"\n')
    hook.unlink()
    with pytest.raises(ConfigError, match=r"alerts\.routes\.ops: cannot read"):
        config.alert_sinks()["ops"]


def test_a_store_gets_the_options_of_the_closest_entry(file: Path) -> None:
    config = load(
        file,
        LOCAL
        + """
        [stores.all]
        url = "s3://bucket"
        options = {region = "eu-west-1", allow_http = true, secret_access_key_env = "KEY"}
        [stores.one]
        url = "s3://bucket/deep/"
        options = {region = "us-east-1"}
        """,
        {"KEY": "s3cr3t-canary"},
    )
    far = {"region": "eu-west-1", "allow_http": "true", "secret_access_key": "s3cr3t-canary"}
    assert config.store_options("s3://bucket") == far
    assert config.store_options("s3://bucket/deeper") == far
    assert config.store_options("s3://bucket/deep/er") == {"region": "us-east-1"}
    assert config.store_options("s3://bucket-2/x") == {}
    assert config.store_options("file:///x") == {}
    assert log.redactor.clean("key s3cr3t-canary") == "key [hidden]"


SHARDS = """
        [stores.east]
        url = "s3://east"
        shards = true
        options = {region = "us-east-1"}
        [stores.central]
        url = "gs://central/runs"
        shards = true
        region = "us-central1"
        [stores.minio]
        url = "s3://minio"
        shards = true
        cloud = "aws"
        region = "r1"
        options = {endpoint = "https://minio.example", region = "us-east-1"}
        [stores.runs]
        url = "s3://runs"
"""


def test_stores_take_shards_where_they_are(file: Path) -> None:
    config = load(file, LOCAL + SHARDS)
    assert config.shard_stores == ("s3://east", "gs://central/runs", "s3://minio")
    assert config.store_places == {
        "s3://east": StorePlace("aws", "us-east-1"),
        "gs://central/runs": StorePlace("gcp", "us-central1"),
        "s3://minio": StorePlace("aws", "r1"),
        "s3://runs": StorePlace("aws", ""),
    }


def test_a_store_takes_no_shards_where_nobody_knows(file: Path) -> None:
    store = '[stores.main]\nurl = "gs://b"\nshards = true\n'
    [problem] = refused(file, LOCAL + store)
    assert problem.startswith("stores.main.shards: ")
    assert 'add region = "..."' in problem


def test_a_folder_may_say_where_it_is_mounted(file: Path) -> None:
    nfs = '[stores.nfs]\nurl = "file:///mnt/runs"\nshared = true\ncloud = "aws"\nregion = "r"\n'
    assert load(file, LOCAL + nfs).store_places == {"file:///mnt/runs": ("aws", "r", "")}
    zone = nfs + 'zone = "ra"\n'
    assert load(file, LOCAL + zone).store_places == {"file:///mnt/runs": ("aws", "r", "ra")}
    for without in ('region = "r"\n', 'cloud = "aws"\n', "shared = true\n"):
        [problem] = refused(file, LOCAL + zone.replace(without, ""))
        assert problem.startswith(
            "stores.nfs.zone: applies only to a shared folder with cloud and region"
        )


def test_data_sets_are_declared_with_a_cap_and_copies_somewhere(file: Path) -> None:
    data = """
        [datasets.corpus]
        url = "s3://runs/corpus"
        copies = ["gs://central/runs/corpus"]
        max_usd = 25
        usd_per_gb = 0.02
        size = "3TB"
    """
    config = load(file, LOCAL + SHARDS + data)
    corpus = config.datasets["corpus"]
    assert (corpus.url, corpus.copies) == ("s3://runs/corpus", ["gs://central/runs/corpus"])
    assert (corpus.max_microusd, corpus.microusd_per_gb) == (25_000_000, 20_000)
    assert corpus.size_bytes == 3_000_000_000_000
    assert config.known.datasets == ("corpus",)
    [problem] = refused(file, LOCAL + SHARDS + data.replace("3TB", "much"))
    assert problem.startswith("datasets.corpus.size")
    [problem] = refused(file, LOCAL + data)
    assert problem.startswith(
        "datasets.corpus.copies[0]: the region of gs://central/runs/corpus is unknown"
    )
    [problem] = refused(file, LOCAL + SHARDS + data.replace("max_usd = 25", ""))
    assert problem.startswith("datasets.corpus.max_usd")


WITH_ROLE = """
    [limits]
    max_nodes = 2
    max_usd_per_hour = 9
    [providers.aws]
    kind = "aws"
    regions = ["us-east-1"]
    node_role = "spotd-node"
"""


def test_who_lends_what_of_which_store(file: Path) -> None:
    role = "arn:aws:iam::123456789012:role/spotd-node-d0"
    config = load(
        file,
        WITH_ROLE
        + f"""
        [stores.runs]
        url = "s3://bucket/runs"
        options = {{region = "eu-west-1", access_key_id_env = "KEY"}}
        [stores.runs.lend]
        kind = "aws"
        role = "{role}"
        lifetime = "6h"
        [stores.all]
        url = "s3://all"
        lend = {{kind = "aws", to = "all", profile = "box"}}
        [stores.minio]
        url = "s3://m"
        options = {{endpoint = "https://minio.example"}}
        [stores.vpc]
        url = "s3://v"
        options = {{endpoint = "https://bucket.vpce-1.s3.us-east-1.vpce.amazonaws.com"}}
        """,
        {"KEY": "AKIA0815"},
    )
    aws = frozenset({"aws"})
    access, lender = config.store_access, config.lender
    assert access("s3://bucket/runs") == StoreAccess(
        "s3://bucket/runs", "aws", keys=True, lends="others", roles=aws
    )
    settings = {"role": role, "profile": "", "lifetime_s": 21_600.0, "region": "eu-west-1"}
    assert lender("s3://bucket/runs/x") == ("aws", settings)
    assert access("s3://all").lends == "all"
    settings = {"role": "", "profile": "box", "lifetime_s": 0.0, "region": "us-east-1"}
    assert lender("s3://all") == ("aws", settings)
    assert access("s3://m") == StoreAccess("s3://m", "", roles=aws)
    assert access("s3://v") == StoreAccess("s3://v", "aws", roles=aws)
    assert access("s3://other") == StoreAccess("s3://other", "aws", roles=aws)
    assert access("file:///x") == StoreAccess("file:///x", "", roles=aws)
    assert lender("s3://m") is lender("s3://other") is lender("file:///x") is None


def test_google_and_azure_lend_of_their_own_stores(file: Path) -> None:
    account = "spotd-node@lab.iam.gserviceaccount.com"
    blob = "https://runs.blob.core.windows.net"
    (file.parent / "key.json").write_text("{}")
    config = load(
        file,
        f"""{LOCAL}
        [stores.gs]
        url = "gs://bucket/runs"
        options = {{service_account_key_file = "{file.parent}/key.json"}}
        lend = {{kind = "gcp", service_account = "{account}", lifetime = "1h"}}
        [stores.az]
        url = "az://runs"
        options = {{account = "runs", endpoint = "{blob}", account_key_env = "KEY"}}
        lend = {{kind = "azure", to = "all"}}
        """,
        {"KEY": "s3cret"},
    )
    gs, az = config.store_access("gs://bucket/runs"), config.store_access("az://runs/x")
    assert gs == StoreAccess("gs://bucket/runs", "gcp", keys=True, lends="others")
    assert az == StoreAccess("az://runs/x", "azure", keys=True, lends="all")
    settings = {"service_account": account, "lifetime_s": 3600.0}
    assert config.lender("gs://bucket/runs") == ("gcp", settings)
    settings = {"account": "runs", "endpoint": blob.replace("blob", "dfs"), "lifetime_s": 0.0}
    assert config.lender("az://runs") == ("azure", settings)
    assert config.store_options("az://runs") == {
        "account": "runs",
        "endpoint": blob,
        "account_key": "s3cret",
    }
    for url in ("gs://bucket/runs", "az://runs"):
        assert CredentialIssuers().of(config.lender(url)) is not None, "and such a one can be made"
    assert config.store_access("gs://other").cloud == "gcp"


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ('url = "az://b"', r"stores\.x\.options.*lack the storage account"),
        ('url = "s3://b"\nshared = true', r"stores\.x\.shared.*applies only to folders"),
        ('url = "gs://b"\noptions = {service_account_key = "X"}', "must not be in the file"),
        ('url = "az://b"\noptions = {account = "a", sas_token = "X"}', "must not be in the fi"),
        ('url = "gs://b"\nlend = {kind = "gcp", service_account = "x"}', r"lend\.service_account"),
        (
            'url = "s3://b"\nlend = {kind = "azure"}',
            r"lend\.kind.*cannot issue credentials for s3://b",
        ),
    ],
)
def test_a_store_that_cannot_be_is_told_by_its_field(file: Path, section: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(file, f"{LOCAL}[stores.x]\n{section}\n")


def test_a_folder_may_be_shared_by_rented_machines(file: Path) -> None:
    config = load(file, f'{LOCAL}[stores.x]\nurl = "file:///mnt/runs"\nshared = true\n')
    assert config.store_access("file:///mnt/runs/a").shared
    assert not config.store_access("file:///mnt/other").shared


@pytest.mark.parametrize(
    ("lend", "said"),
    [
        ('{kind = "oracle"}', r"stores\.x\.lend\.kind"),
        ('{kind = "aws", role = "spotd-node"}', r"stores\.x\.lend\.role"),
        ('{kind = "aws", to = "some"}', r"stores\.x\.lend\.to"),
        ('{kind = "aws", lifetime = "never"}', r"stores\.x\.lend\.lifetime"),
    ],
)
def test_a_loan_that_cannot_be_is_told_by_its_field(file: Path, lend: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(file, f'{LOCAL}[stores.x]\nurl = "s3://b"\nlend = {lend}\n')


def test_machines_of_other_clouds_are_given_a_role(file: Path) -> None:
    role = "arn:aws:iam::123456789012:role/spotd-node-web"
    config = load(
        file,
        f"""{LOCAL}
        [stores.runs]
        url = "s3://runs"
        [stores.runs.federate]
        clouds = ["gcp", "azure"]
        role = "{role}"
        audience = "spotd"
        """,
    )
    access = config.store_access("s3://runs/x")
    assert access.proves == {"gcp", "azure"}
    assert access.proof == {"role": role, "audience": "spotd"}
    assert config.store_access("s3://other").proves == frozenset()


POOL = "projects/1234/locations/global/workloadIdentityPools/spotd-d0"
ACCOUNT = "spotd-node@lab.iam.gserviceaccount.com"
TENANT, APPLICATION = "00000000-0000-0000-0000-00000000000b", "00000000-0000-0000-0000-00000000000c"


AWS_FEDERATE = '{clouds = ["gcp"], role = "arn:aws:iam::123456789012:role/x", audience = "x"}'
GCP_FEDERATE = f'{{kind = "gcp", clouds = ["aws"], service_account = "{ACCOUNT}", pool = "{POOL}"}}'
AZURE_FEDERATE = (
    f'{{kind = "azure", clouds = ["gcp"], tenant = "{TENANT}", application = "{APPLICATION}"}}'
)


def test_google_s_and_azure_s_stores_believe_machines_of_the_others(file: Path) -> None:
    config = load(
        file,
        f"""{LOCAL}
        [stores.gs]
        url = "gs://runs"
        federate = {GCP_FEDERATE}
        [stores.az]
        url = "az://runs"
        options = {{account = "runs"}}
        [stores.az.federate]
        kind = "azure"
        clouds = ["aws", "gcp"]
        tenant = "{TENANT}"
        application = "{APPLICATION}"
        """,
    )
    gs, az = config.store_access("gs://runs"), config.store_access("az://runs")
    assert (gs.proves, az.proves) == ({"aws"}, {"aws", "gcp"})
    assert gs.proof == {"service_account": ACCOUNT, "pool": POOL, "audience": ""}
    audience = {"audience": "api://AzureADTokenExchange"}
    assert az.proof == {"tenant": TENANT, "application": APPLICATION, **audience}
    for access, url in ((gs, "gs://runs"), (az, "az://runs")):
        plain = {"identity": "aws", "session": "spotd-j1", **config.store_options(url)}
        open_store(url, {**plain, **access.proof})
        assert credential_provider(url, {**plain, **access.proof}), "so it is mounted"


@pytest.mark.parametrize(
    ("federate", "change", "said"),
    [
        (AWS_FEDERATE, ('"gcp"', '"aws"'), r"federate\.clouds"),
        (AWS_FEDERATE, ('"gcp"', ""), r"federate\.clouds"),
        (AWS_FEDERATE, ('audience = "x"', 'audience = ""'), r"federate\.audience"),
        (AWS_FEDERATE, ("arn:aws:iam::123456789012:role/", ""), r"federate\.role"),
        (AWS_FEDERATE, ("{", '{kind = "oracle", '), r"federate\.kind"),
        (GCP_FEDERATE, ('["aws"]', '["gcp"]'), r"federate\.clouds"),
        (GCP_FEDERATE, ('["aws"]', '["azure"]'), r"federate\.audience.*is missing.*ID URI"),
        (GCP_FEDERATE, ("projects/1234/", ""), r"federate\.pool"),
        (GCP_FEDERATE, (ACCOUNT, "x"), r"federate\.service_account"),
        (AZURE_FEDERATE, ('"gcp"', '"azure"'), r"federate\.clouds"),
        (AZURE_FEDERATE, (TENANT, "ours"), r"federate\.tenant"),
        (AZURE_FEDERATE, (f', application = "{APPLICATION}"', ""), r"federate\.application"),
        (AZURE_FEDERATE, ("}", ', audience = "a b"}'), r"federate\.audience"),
        (AZURE_FEDERATE, ("}", ', role = "x"}'), r"federate\.role.*unknown key"),
    ],
)
def test_a_federation_that_cannot_be_is_told_by_its_field(
    file: Path, federate: str, change: tuple[str, str], said: str
) -> None:
    url = {AWS_FEDERATE: "s3://b", GCP_FEDERATE: "gs://b", AZURE_FEDERATE: "az://b"}[federate]
    more = 'options = {account = "runs"}\n' if url == "az://b" else ""
    section = f'{LOCAL}[stores.x]\nurl = "{url}"\n{more}federate = '
    load(file, f"{section}{federate}\n")
    assert change[0] in federate
    with pytest.raises(ConfigError, match=rf"stores\.x\.{said}"):
        load(file, f"{section}{federate.replace(*change)}\n")


@pytest.mark.parametrize(
    ("url", "federate"),
    [("file:///x", AWS_FEDERATE), ("gs://b", AWS_FEDERATE), ("s3://b", GCP_FEDERATE)],
)
def test_a_federation_is_of_the_store_s_own_cloud(file: Path, url: str, federate: str) -> None:
    with pytest.raises(ConfigError, match=rf"stores\.x\.federate\.kind.*grant access to {url}"):
        load(file, f'{LOCAL}[stores.x]\nurl = "{url}"\nfederate = {federate}\n')


def test_machines_that_are_nobody_cannot_show_who_they_are(file: Path) -> None:
    section = f'[stores.x]\nurl = "gs://b"\nfederate = {GCP_FEDERATE}\n'
    load(file, WITH_ROLE + section)
    without = WITH_ROLE.replace('node_role = "spotd-node"', "")
    with pytest.raises(ConfigError, match=r"federate\.clouds.*providers\.aws.*set node_role in"):
        load(file, without + section)


def test_credentials_of_a_cloud_are_lent_for_stores_of_that_cloud(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"stores\.x\.lend\.kind.*file:///x"):
        load(file, f'{LOCAL}[stores.x]\nurl = "file:///x"\nlend = {{kind = "aws"}}\n')


def test_no_configuration_anywhere_shows_a_minimal_one_that_works(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.setattr("spotd.base.paths.SYSTEM_CONFIG", tmp_path / "etc.toml")
    with pytest.raises(ConfigError, match="there is no configuration") as caught:
        load_config(None, {})
    assert str(tmp_path / "etc.toml") in caught.value.text
    here = tmp_path / "none" / "spotd"
    assert f"mkdir -p {here} && spotctl cloud up > {here}/config.toml" in caught.value.try_
    assert "spotd check" in caught.value.try_
    assert "doctor" not in caught.value.try_, "it asks a daemon"
    assert "--config" in caught.value.try_
    shown = caught.value.try_.partition("\n")[2]
    assert load(file, shown).known.clouds == ("aws", "here")


def test_a_named_file_that_is_not_there_is_not_replaced_by_another(
    file: Path, tmp_path: Path
) -> None:
    file.write_text(LOCAL)
    missing = tmp_path / "missing.toml"
    for attempt in (
        lambda: load_config(missing, {"SPOTD_CONFIG": str(file)}),
        lambda: load_config(None, {"SPOTD_CONFIG": str(missing)}),
    ):
        with pytest.raises(ConfigError, match=r"missing\.toml: No such file"):
            attempt()
    assert load_config(None, {"SPOTD_CONFIG": str(file)}).path == file


def test_what_is_no_toml_is_refused_with_its_place(file: Path) -> None:
    [problem] = refused(file, "[limits]\nmax_nodes = \n")
    assert problem.startswith("not TOML: ")
    assert "line 2" in problem
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not TOML"):
        load_config(file, {})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = " + "[" * 3000, "too deep"),
        ("[limits]\nmax_nodes = " + "9" * 5000, "not TOML"),
        ('state_dir = "~nobody-of-that-name/x"', "there is no such home folder"),
        ('socket = "~nobody-of-that-name/x"', "there is no such home folder"),
        ("[timing]\nkeep_history_days = inf", "keep_history_days"),
        ('[limits]\nmax_usd_per_hour = "1e999999"', "limits.max_usd_per_hour"),
    ],
)
def test_what_nobody_writes_is_refused_as_well(file: Path, text: str, told: str) -> None:
    environ = {"HOME": str(file.parent)}
    assert any(told in problem for problem in refused(file, f"{text}\n{LOCAL}", environ))


LIMITED = "[limits]\nmax_nodes = 1\nmax_usd_per_hour = 1\n"


HELD = "/subscriptions/s/resourceGroups/o/providers/Microsoft.Compute/capacityReservationGroups/g"


def test_a_group_of_reservations_has_azures_own_name(file: Path) -> None:
    """In whatever letters Azure writes it."""
    text = '[providers.x]\nkind = "azure"\nregions = ["a"]\nsubscription_id = "s"\n'
    text += 'resource_group = "g"\n[providers.x.reservations]\n'
    for ident in (HELD, HELD.replace("resourceGroups", "resourcegroups")):
        config = load(file, LIMITED + text + f'"{ident}" = 0')
        assert config.file.providers["x"].model_dump()["reservations"] == {ident: 0}


def test_reservations_are_named_with_what_they_cost_on_top(file: Path) -> None:
    config = load(
        file,
        LIMITED
        + """
        [providers.aws]
        kind = "aws"
        regions = ["us-east-1"]
        [providers.aws.reservations]
        cr-0123456789abcdef0 = 0
        cr-0a = 2.5
        [providers.gcp]
        kind = "gcp"
        project = "lab"
        regions = ["us-central1"]
        flex_start = true
        [providers.gcp.reservations]
        "us-central1-a/may" = 0
        """,
    )
    aws, gcp = config.file.providers["aws"], config.file.providers["gcp"]
    assert aws.model_dump()["reservations"] == {"cr-0123456789abcdef0": 0, "cr-0a": 2_500_000}
    assert gcp.model_dump(include={"reservations", "flex_start"}) == {
        "reservations": {"us-central1-a/may": 0},
        "flex_start": True,
    }


@pytest.mark.parametrize(
    ("kind", "line", "told"),
    [
        ("aws", "cr-0a = -1", "USD per hour, or 0 if it is already paid"),
        ("aws", "cr-0a = true", "USD per hour, or 0 if it is already paid"),
        ("aws", "r-0a = 0", "r-0a"),
        ("gcp", '"may" = 0', "may"),
        ("azure", '"/subscriptions/s/x/capacityReservationGroups/g" = 0', "resourceGroups"),
        ("azure", f'"{HELD}/capacityReservations/one" = 0', "resourceGroups"),
    ],
)
def test_a_reservation_that_is_none_is_refused(file: Path, kind: str, line: str, told: str) -> None:
    more = {
        "gcp": 'project = "lab"\n',
        "azure": 'subscription_id = "s"\nresource_group = "g"\n',
    }.get(kind, "")
    text = f'[providers.x]\nkind = "{kind}"\nregions = ["a"]\n{more}[providers.x.reservations]\n'
    [problem] = refused(file, LIMITED + text + line)
    assert "providers.x.reservations" in problem
    assert told in problem


@pytest.mark.parametrize(
    ("kind", "line", "like"),
    [
        ("aws", 'image = "ubuntu"', "ami-0123456789abcdef0"),
        ("gcp", 'image = "ubuntu"', "projects/PROJECT/global/images/NAME"),
        ("gcp", 'fabric = "A"', "gpudirect"),
        ("azure", 'image = "ubuntu"', "microsoft-dsvm:ubuntu-hpc:2204:latest"),
    ],
)
def test_what_has_another_form_is_shown_the_right_one(
    file: Path, kind: str, line: str, like: str
) -> None:
    more = {"gcp": 'project = "lab"\n', "azure": 'subscription_id = "s"\nresource_group = "g"\n'}
    text = f'[providers.x]\nkind = "{kind}"\nregions = ["a"]\n{more.get(kind, "")}'
    [problem] = refused(file, LIMITED + text + line)
    assert f"providers.x.{line.partition(' ')[0]}: " in problem
    assert f"write it like {like}" in problem


@pytest.mark.parametrize(
    ("said", "every"),
    [
        ("", CheckpointEvery(auto=True)),
        ('every = "auto"', CheckpointEvery(auto=True)),
        ('every = "500 steps"', CheckpointEvery(steps=500)),
        ('every = "hourly"', CheckpointEvery(seconds=3600.0, preset="hourly")),
    ],
)
def test_how_often_jobs_save_that_do_not_say(file: Path, said: str, every: CheckpointEvery) -> None:
    defaults = load(file, f"{LOCAL}\n[checkpoint]\n{said}\n").checkpoint_defaults
    assert defaults.every == every
    assert defaults.every_s == (every.seconds or 300.0)


def test_where_the_configured_stores_are(file: Path) -> None:
    text = """
    stores.near = {url = "s3://near", options = {region = "us-east-2"}}
    stores.own = {url = "s3://own/x", options = {endpoint = "https://minio.example"}}
    """
    places = load(file, f"{text}\n{LOCAL}").store_places
    assert places == {"s3://near": StorePlace("aws", "us-east-2"), "s3://own/x": StorePlace("", "")}
