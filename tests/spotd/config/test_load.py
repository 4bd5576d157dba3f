"""The configuration: what it says, what it must not say, and how that is told."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from spotd import log
from spotd.config import Config, ConfigError, load_config
from spotd.errors import ExitCode
from spotd.model import Limits, Severity, Timing

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
    assert config.file.limits.to_model() == Limits(4, 12_500_000)
    assert (config.timing.suspect_after_s, config.timing.drain_margin_s) == (3, 4)
    assert config.file.timing.survey_every_s == 2
    assert config.route_url("ops") == "https://hooks.slack.com/services/T/B/C"
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
            "providers.x.kind: 'loca' is not possible (fix: use 'local', 'aws', 'gcp', 'azure')",
            (
                "checkpoint.store: 'bucket' is no store "
                "(fix: write file:///folder or s3://bucket/prefix)"
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
    assert problem.startswith("limits.unattended_h: is less than an outage")
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
    assert problem.startswith("providers.gcp: is the name of another cloud than aws")
    [problem] = refused(file, LOCAL.replace("here", "Here"))
    assert problem.startswith("providers.Here: is no possible name")


def test_a_file_without_a_provider_shows_one(file: Path) -> None:
    [problem] = refused(file, "[limits]\nmax_nodes = 3\n")
    assert problem.startswith("providers: no provider is configured")
    assert "[providers.here]" in problem


def test_a_secret_in_the_file_is_refused_and_not_repeated(file: Path) -> None:
    route = '[alerts.routes.ops]\nkind = "slack"\n'
    [problem] = refused(file, f'{LOCAL}{route}url = "https://hooks.slack.com/services/SECRET"\n')
    assert problem == (
        "alerts.routes.ops.url: a secret must not stand in the file "
        "(fix: use url_file or url_env or url_credential)"
    )
    store = '[stores.main]\nurl = "s3://b"\noptions = {secret_access_key = "SECRET"}\n'
    [problem] = refused(file, LOCAL + store)
    assert problem.startswith("stores.main.options: secret_access_key must not stand in the file")
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
        assert load(file, text, environ).route_url("ops") == url


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("", "has no address"),
        ('url_file = "/does/not/exist"', "cannot read /does/not/exist: No such file"),
        ('url_env = "NOT_SET"', "the variable NOT_SET is not set"),
        ('url_credential = "hook"', "no credential 'hook' without systemd"),
        ('url_env = "HTTP"', "no https address"),
        ('url_env = "ELSEWHERE"', "no https address"),
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
    assert load(file, text, {"HOOK": "http://127.0.0.1:9/x"}).route_url("ops")
    assert load(file, text, {"HOOK": "https://slack.example/x"}).route_url("ops")
    refused(file, text, {"HOOK": "http://127.0.0.1:10/x"})
    refused(file, text, {"HOOK": "http://slack.example/x"})


def test_a_secret_that_vanishes_later_is_an_error_then(file: Path) -> None:
    hook = file.with_name("hook")
    hook.write_text("https://hooks.slack.com/services/T/B/C")
    config = load(file, f'{LOCAL}[alerts.routes.ops]\nkind = "slack"\nurl_file = "{hook}"\n')
    hook.unlink()
    with pytest.raises(ConfigError, match=r"alerts\.routes\.ops: cannot read"):
        config.route_url("ops")


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


def test_no_configuration_anywhere_shows_a_minimal_one_that_works(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.setattr("spotd.paths.SYSTEM_CONFIG", tmp_path / "etc.toml")
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
        ('state_dir = "~nobody-of-that-name/x"', "nobody has that home folder"),
        ('socket = "~nobody-of-that-name/x"', "nobody has that home folder"),
        ("[timing]\nkeep_history_days = inf", "keep_history_days"),
        ('[limits]\nmax_usd_per_hour = "1e999999"', "limits.max_usd_per_hour"),
    ],
)
def test_what_nobody_writes_is_refused_as_well(file: Path, text: str, told: str) -> None:
    environ = {"HOME": str(file.parent)}
    assert any(told in problem for problem in refused(file, f"{text}\n{LOCAL}", environ))
