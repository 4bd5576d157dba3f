"""Test spotd's own keys in job files, and the errors for wrong ones."""

from pathlib import Path

import pytest

from spotd.base.errors import ExitCode
from spotd.domain.health import HealthSpec
from spotd.domain.job import CheckpointSpec
from spotd.domain.phase import keeps
from spotd.spec import (
    CheckpointDefaults,
    KnownNames,
    ParsedJobFile,
    SpecError,
    load,
    split_documents,
)
from spotd.spec.sources import CheckpointOrigin
from spotd.wire import Bucket, MountMode

NOW_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000
NINES = "9" * 400
DEFAULTS = CheckpointDefaults(store="file:///checkpoints", every_s=120.0, keep=4)
EXAMPLES = Path(__file__).parents[3] / "examples"


def read(text: str, **changes: object) -> ParsedJobFile:
    arguments = {"now_us": NOW_US, "defaults": DEFAULTS, "fallback_name": "job"} | changes
    return load(text, **arguments)  # type: ignore[arg-type]


def refused(text: str, **changes: object) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read(text, **changes)
    assert caught.value.exit_code is ExitCode.USAGE
    return [str(problem) for problem in caught.value.problems]


def test_a_command_alone_is_a_job() -> None:
    parsed = read("run: python train.py")
    spec = parsed.spec
    assert (spec.name, spec.resources.num_nodes, spec.resources.candidates) == ("job", 1, 1)
    assert spec.checkpoint == CheckpointSpec("file:///checkpoints", "none", 0, 120.0, 4)
    assert spec.monitoring.alerts == ("default",)
    assert spec.restarts.max_restarts_on_errors == 3
    assert len(spec.resources.alternatives) == 1
    assert parsed.workdir is None
    assert parsed.warnings == ("resources is missing: the cheapest machine of any kind is used",)


def test_a_folder_of_checkpoints_may_be_kept() -> None:
    block = "spotd: {checkpoint: {mode: directory, path: out, keep_every: 100}}"
    spec = read(f"name: any\nrun: python train.py\n{block}\n").spec
    assert (spec.checkpoint.engine, spec.checkpoint.directory) == ("none", "out")
    assert keeps(spec.checkpoint)
    assert spec.checkpoint.keep_every_steps == 100
    (text,) = refused(f"run: x\nname: any\nnum_nodes: 2\n{block}")
    assert "spotd.checkpoint.mode: works on one machine only" in text


def test_a_bucket_may_be_mounted_as_skypilot_says_it() -> None:
    cached = "{source: gs://b/x/, mode: mount_cached, config: {mount_cached: {%s}}}"
    sized = cached % "vfs_cache_max_size: 50GB, transfers: 4"
    parsed = read(f"name: any\nrun: x\nfile_mounts: {{/d: {{source: s3://b}}, /e: {sized}}}")
    assert parsed.spec.files.buckets == (
        Bucket("/d", "s3://b", mode=MountMode.MOUNT),
        Bucket("/e", "gs://b/x", mode=MountMode.MOUNT_CACHED, cache_bytes=50 * 10**9),
    )
    (warning,) = [text for text in parsed.warnings if "transfers" in text]
    assert "rclone's own default is used" in warning


def test_a_mount_may_be_a_data_set_that_is_declared() -> None:
    text = "name: any\nrun: x\nfile_mounts: {/d/: dataset://corpus/}"
    known = KnownNames(datasets=("corpus", "web"))
    assert read(text, known=known).spec.files.buckets == (Bucket("/d", "dataset://corpus"),)
    assert read(text).spec.files.buckets == (Bucket("/d", "dataset://corpus"),), "nobody knows"
    [problem] = refused(text, known=KnownNames(datasets=("web",)))
    assert "there is no data set 'corpus'" in problem
    assert "name one of [datasets]: web" in problem
    [mounted] = read(
        text.replace("dataset://corpus/", "{source: dataset://corpus}")
    ).spec.files.buckets
    assert mounted == Bucket("/d", "dataset://corpus", mode=MountMode.MOUNT)


def test_a_mount_may_come_from_a_bucket() -> None:
    parsed = read(
        "envs: {D: data}\nfile_mounts: {/d/: s3://b/$D/, rel: {source: gs://b, mode: COPY}}\nrun: x"
    )
    assert parsed.spec.files.buckets == (Bucket("/d", "s3://b/data"), Bucket("rel", "gs://b"))
    assert parsed.mounts == ()
    (text,) = refused("name: any\nrun: x\nfile_mounts: {/d: s3://b/x, /d/: s3://b/y}")
    assert "is the target of another mount" in text


def test_caches_are_folders_and_one_alone_needs_no_list() -> None:
    spec = read("name: any\nrun: x\nspotd: {cache: ~/.cache/pip/}\n").spec
    assert (spec.files.caches, spec.files.cache_bytes) == (("~/.cache/pip",), 50_000_000_000)
    block = "spotd: {cache: {paths: [a, /b], size: 2GB}}"
    spec = read(f"name: any\nrun: x\n{block}\n").spec
    assert (spec.files.caches, spec.files.cache_bytes) == (("a", "/b"), 2_000_000_000)
    (text,) = refused(f"run: x\nname: any\nresources: {{image_id: 'docker:x'}}\n{block}")
    assert "spotd.cache.paths[1]: '/b' is in the container" in text


@pytest.mark.parametrize(
    ("written", "outputs"),
    [
        ("", None),
        ("outputs: []", ()),
        ("outputs: results/", ("results/",)),
        (
            "outputs: [a, 'b/**/*.bin', /data/x, ~/y, ., a]",
            ("a", "b/**/*.bin", "/data/x", "~/y", "."),
        ),
    ],
)
def test_outputs_are_patterns(written: str, outputs: tuple[str, ...] | None) -> None:
    assert read(f"name: any\nrun: x\nspotd: {{{written}}}\n").spec.files.outputs == outputs


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("../x", "is not a path on the machine"),
        ("s3://bucket/x", "is not a path on the machine"),
        ("/", "is not a path on the machine"),
        ("a**b", "has ** beside other letters"),
        ("~other/x", "belongs to another user"),
    ],
)
def test_outputs_that_are_none(pattern: str, problem: str) -> None:
    (text,) = refused(f"name: any\nrun: x\nspotd: {{outputs: [ok, '{pattern}']}}")
    assert f"spotd.outputs[1]: {pattern!r} {problem}" in text


def test_outputs_of_a_container_are_below_its_workdir() -> None:
    text = "name: any\nrun: x\nresources: {image_id: 'docker:x'}\nspotd: {outputs: [%s]}"
    assert read(text % "results").spec.files.outputs == ("results",)
    (problem,) = refused(text % "/data/out")
    assert "spotd.outputs[0]: '/data/out' is in the container" in problem


def test_a_job_may_begin_with_a_path_or_a_job() -> None:
    block = "name: any\nrun: x\nspotd: {checkpoint: {engine: spotd, from: %s}}\n"
    assert read(block % "./x/y").origin == CheckpointOrigin(Path("x/y"))
    assert read(block % "gpt@best").origin == CheckpointOrigin(job="gpt", which="best")
    assert read("name: any\nrun: x\n").origin is None


def test_the_spotd_block_says_everything_else() -> None:
    spec = read(
        """
name: all
resources: {accelerators: "H100:8", max_hourly_cost: 31.25, disk_size: 1TB, cpus: 16+, memory: 4x}
run: python train.py
spotd:
  checkpoint:
    {store: "s3://bucket/ck/", engine: spotd, every_steps: 50, every: 1m30s, keep: 9,
     keep_every: 700}
  budget: {max_cost_usd: 12.345678}
  deadline: 36h
  max_duration: 2d
  max_restarts_on_errors: 0
  recover_on_exit_codes: 137
  keep_on_failure: 30m
  candidates: 2
  stop_grace: 45s
  boot_timeout: 10m
  setup_timeout: 20m
  peer_timeout: 40m
  progress_every: 500ms
  health: {ratio: 0.5, checks: 3, every: 1m}
  alerts: [ops, default, ops]
"""
    ).spec
    assert spec.checkpoint == CheckpointSpec(
        "s3://bucket/ck", "spotd", 50, 90.0, 9, keep_every_steps=700
    )
    assert spec.limits.max_cost_microusd == 12_345_678
    assert spec.limits.max_hourly_microusd == 31_250_000
    assert spec.resources.disk_gib == 1024
    assert (spec.resources.alternatives[0].cpus, spec.resources.alternatives[0].memory_gib) == (
        16.0,
        64.0,
    )
    assert spec.limits.deadline_us == NOW_US + 36 * HOUR_US
    assert spec.limits.max_duration_s == 172_800
    assert spec.restarts.max_restarts_on_errors == 0
    assert spec.restarts.recover_on_exit_codes == (137,)
    assert (spec.restarts.keep_on_failure_s, spec.timeouts.stop_grace_s) == (1800, 45)
    assert (
        spec.timeouts.boot_timeout_s,
        spec.timeouts.setup_timeout_s,
        spec.timeouts.peer_timeout_s,
    ) == (600, 1200, 2400)
    assert (spec.monitoring.progress_every_s, spec.resources.candidates) == (0.5, 2)
    assert spec.monitoring.health == HealthSpec(0.5, 3, 60.0)
    assert spec.monitoring.alerts == ("ops", "default")


@pytest.mark.parametrize(
    ("block", "expected_s"),
    [
        ("checkpoint: {engine: spotd}", 300.0),
        ("checkpoint: {engine: none}", 30.0),
        ("checkpoint: {engine: spotd}, stop_grace: 0", 0.0),
    ],
)
def test_a_stop_of_our_engine_has_time_for_a_large_save(block: str, expected_s: float) -> None:
    assert read(f"run: x\nspotd: {{{block}}}").spec.timeouts.stop_grace_s == expected_s


def test_the_spotd_block_wins_over_job_recovery() -> None:
    text = (
        "resources: {job_recovery: {max_restarts_on_errors: 7, recover_on_exit_codes: 3}}\nrun: x\n"
    )
    assert read(text).spec.restarts.max_restarts_on_errors == 7
    assert read(text).spec.restarts.recover_on_exit_codes == (3,)
    spec = read(text + "spotd: {max_restarts_on_errors: 0, recover_on_exit_codes: []}").spec
    assert (spec.restarts.max_restarts_on_errors, spec.restarts.recover_on_exit_codes) == (0, ())


def test_all_problems_are_reported_with_line_key_and_fix() -> None:
    problems = refused(
        """\
name: a b
num_nodes: 0
resource: {}
max_cost_usd: 3
resources:
  acelerators: H100:8
  cpus: -3
  infra: azrue/x
  any_of:
    - region: 3
    - use_spot: "yes"
envs: {A: 1, B: , SPOTD_X: q, 1A: x}
secrets: {TOK: , A: "hunter2secret"}
spotd:
  every_steps: 3
  deadline: 3
  checkpoint: {every: 5, engine: spot, store: foo}
  helth: {}
  candidates: 99
  alerts: [opps]
""",
        known=KnownNames(clouds=("aws", "azure"), routes=("ops",), secrets=("KEPT",)),
    )
    assert problems == [
        "run: is missing (fix: write the command that trains)",
        (
            "line 1: name: is not a valid name, not 'a b' (fix: use up to 63 letters, digits, "
            "'.', '_' and '-', a letter or digit at both ends)"
        ),
        "line 2: num_nodes: must be greater than or equal to 1",
        "line 3: resource: unknown key (fix: did you mean 'resources'?)",
        "line 4: max_cost_usd: unknown key (fix: it belongs at spotd.budget.max_cost_usd)",
        "line 6: resources.acelerators: unknown key (fix: did you mean 'accelerators'?)",
        "line 7: resources.cpus: -3 is not an amount (fix: write a number, like 8 or 8+)",
        "line 8: resources.infra: no provider 'azrue' is configured (fix: did you mean 'azure'?)",
        "line 10: resources.any_of[0].region: must be text, not 3 (fix: put quotes around it)",
        "line 11: resources.any_of[1].use_spot: must be true or false, not 'yes'",
        'line 12: envs.B: has no value (fix: pass -e B=VALUE, or write B: "")',
        "line 12: envs.SPOTD_X: is set by spotd itself (fix: choose another name)",
        "line 12: envs.1A: is not a name of a variable (fix: use letters, digits and _)",
        (
            "line 13: secrets.TOK: the secret has no value "
            "(fix: pass --secret TOK (its value comes from your environment), "
            "or store it for all jobs: spotctl secret set TOK)"
        ),
        "line 13: secrets.A: is also in envs (fix: keep one of the two)",
        "line 15: spotd.every_steps: unknown key (fix: it belongs at spotd.checkpoint.every_steps)",
        "line 16: spotd.deadline: must be text, not 3 (fix: put quotes around it)",
        (
            "line 17: spotd.checkpoint.store: 'foo' is not a store "
            "(fix: write file:///folder, or s3://, gs:// or az://bucket)"
        ),
        "line 17: spotd.checkpoint.engine: 'spot' is not possible (fix: use 'spotd' or 'none')",
        (
            "line 17: spotd.checkpoint.every: 5 is not a checkpoint interval "
            "(fix: write auto, a time like 5m, or 500 steps)"
        ),
        "line 18: spotd.helth: unknown key (fix: did you mean 'health'?)",
        "line 19: spotd.candidates: must be less than or equal to 8",
        "line 20: spotd.alerts[0]: no route 'opps' is configured (fix: did you mean 'ops'?)",
    ]


@pytest.mark.parametrize(
    ("text", "fast"),
    [
        ("run: x\nnum_nodes: 2", True),
        ("run: x\nnum_nodes: 2\nspotd: {slow_network: true}", False),
        ("run: x", False),
    ],
)
def test_a_gang_needs_an_interconnect_unless_it_says_otherwise(text: str, fast: bool) -> None:
    assert read(text).spec.resources.fast_network is fast


def test_slow_network_of_one_machine_warns() -> None:
    [warning] = [w for w in read("run: x\nspotd: {slow_network: true}").warnings if "slow" in w]
    assert "num_nodes is 1" in warning


@pytest.mark.parametrize(
    ("capacity", "kinds", "ordered"),
    [
        ("block", ("block",), False),
        ("[block, spot, on_demand]", ("block", "spot", "on_demand"), True),
        ("[reserved]", ("reserved",), False),
        ("[spot, spot]", ("spot",), False),
    ],
)
def test_capacity_types_are_of_every_machine(
    capacity: str, kinds: tuple[str, ...], ordered: bool
) -> None:
    text = f"resources: {{accelerators: [H100:8, A100:8]}}\nrun: x\nspotd: {{capacity: {capacity}}}"
    spec = read(text).spec
    assert {
        tuple(t.value for t in alternative.capacity_types)
        for alternative in spec.resources.alternatives
    } == {kinds}
    assert [alternative.accelerator for alternative in spec.resources.alternatives] == [
        "H100",
        "A100",
    ]
    assert (spec.resources.capacity_ordered, spec.resources.ordered) == (ordered, True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "resources: {use_spot: true}\nrun: x\nspotd: {capacity: block}",
            (
                "line 3: spotd.capacity: conflicts with use_spot, which sets the same "
                "(fix: keep one)"
            ),
        ),
        (
            "resources:\n  any_of: [{use_spot: false}]\nrun: x\nspotd: {capacity: block}",
            (
                "line 4: spotd.capacity: conflicts with use_spot, which sets the same "
                "(fix: keep one)"
            ),
        ),
        (
            "run: x\nspotd: {capacity: []}",
            "line 2: spotd.capacity: the list is empty (fix: name one, or leave it out)",
        ),
        (
            "run: x\nspotd: {capacity: blok}",
            (
                "line 2: spotd.capacity[0]: 'blok' is not possible (fix: use 'spot', 'on_demand', "
                "'reserved' or 'block')"
            ),
        ),
    ],
)
def test_invalid_capacity_types_are_refused(text: str, problem: str) -> None:
    assert refused(text) == [problem]


def test_a_missing_store_names_both_settings() -> None:
    [problem] = refused("run: x", defaults=CheckpointDefaults())
    assert problem == (
        "spotd.checkpoint.store: the job has no store for checkpoints, neither here nor in the "
        "configuration (fix: set spotd.checkpoint.store here, or [checkpoint] store "
        "in config.toml for all jobs)"
    )
    own = read("run: x\nspotd: {checkpoint: {store: file:///a}}", defaults=CheckpointDefaults())
    assert own.spec.checkpoint.store == "file:///a"
    # On the user's machine the configuration is not at hand, and the daemon has the last word.
    assert read("run: x", defaults=None).spec.checkpoint.store == ""


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("num_nodes: 1.5", "num_nodes"),
        ("num_nodes: true", "num_nodes"),
        ("num_nodes: '2'", "num_nodes"),
        ("run: [a]", "run"),
        ("run: '  '", "run"),
        ("workdir: 3", "workdir"),
        ("resources: [a]", "resources"),
        ("resources: {accelerators: 'H100:0'}", "resources.accelerators"),
        ("resources: {accelerators: 'H100:2000'}", "resources.accelerators"),
        ("resources: {accelerators: 'H100:0.5'}", "resources.accelerators"),
        ("resources: {accelerators: []}", "resources.accelerators"),
        ("resources: {accelerators: 8}", "resources.accelerators"),
        ("resources: {accelerators: {H100: -8}}", "resources.accelerators"),
        ("resources: {cpus: 4x}", "resources.cpus"),
        ("resources: {memory: 4x}", "resources.memory"),
        ("resources: {memory: 0}", "resources.memory"),
        ("resources: {disk_size: 0}", "resources.disk_size"),
        ("resources: {disk_size: true}", "resources.disk_size"),
        ("resources: {max_hourly_cost: 0}", "resources.max_hourly_cost"),
        ("resources: {max_hourly_cost: .inf}", "resources.max_hourly_cost"),
        ("resources: {infra: aws/us-east-1, region: x}", "resources.infra"),
        ("resources: {infra: aws//x}", "resources.infra"),
        ("resources: {infra: a/b/c/d}", "resources.infra"),
        ("resources: {any_of: []}", "resources.any_of"),
        ("resources: {any_of: [{cpus: 1}], ordered: [{cpus: 2}]}", "resources.ordered"),
        (
            "resources: {any_of: [{disk_size: 1}, {disk_size: 2}]}",
            "resources.any_of[1].disk_size",
        ),
        ("resources: {job_recovery: {max_restarts_on_errors: -1}}", "resources.job_recovery"),
        ("spotd: {budget: {max_cost_usd: 0}}", "spotd.budget.max_cost_usd"),
        ("spotd: {budget: {max_cost_usd: -5}}", "spotd.budget.max_cost_usd"),
        ("spotd: {budget: {max_cost_usd: .nan}}", "spotd.budget.max_cost_usd"),
        ("spotd: {budget: {max_cost_usd: ten}}", "spotd.budget.max_cost_usd"),
        ("spotd: {deadline: yesterday}", "spotd.deadline"),
        ("spotd: {deadline: 2001-01-01T00:00:00Z}", "spotd.deadline"),
        ("spotd: {deadline: 2051-01-01T00:00:00}", "spotd.deadline"),
        ("spotd: {deadline: 0s}", "spotd.deadline"),
        ("spotd: {checkpoint: {every: 0}}", "spotd.checkpoint.every"),
        ("spotd: {checkpoint: {keep: 0}}", "spotd.checkpoint.keep"),
        ("spotd: {checkpoint: {keep_every: 100}}", "spotd.checkpoint.keep_every"),
        ("spotd: {checkpoint: {path: out}}", "spotd.checkpoint.path"),
        ("spotd: {checkpoint: {mode: directory}}", "spotd.checkpoint.mode"),
        ("spotd: {checkpoint: {from: ./x}}", "spotd.checkpoint.from"),
        ("spotd: {checkpoint: {engine: spotd, from: gs://b/x}}", "spotd.checkpoint.from"),
        ("spotd: {checkpoint: {engine: spotd, from: a b}}", "spotd.checkpoint.from"),
        ("spotd: {cache: ../x}", "spotd.cache.paths[0]"),
        ("spotd: {cache: [a, /]}", "spotd.cache.paths[1]"),
        ("spotd: {cache: '~'}", "spotd.cache.paths[0]"),
        ("spotd: {cache: '~ada/x'}", "spotd.cache.paths[0]"),
        ("spotd: {cache: [a/b, a]}", "spotd.cache.paths[1]"),
        ("spotd: {cache: out/c, checkpoint: {mode: directory, path: out}}", "spotd.cache.paths"),
        ("spotd: {checkpoint: {mode: directory, path: ../out}}", "spotd.checkpoint.path"),
        ("spotd: {checkpoint: {mode: directory, path: .}}", "spotd.checkpoint.path"),
        (
            "spotd: {checkpoint: {mode: directory, path: out, engine: spotd}}",
            "spotd.checkpoint.mode",
        ),
        ("spotd: {checkpoint: {store: file://relative}}", "spotd.checkpoint.store"),
        ("spotd: {checkpoint: {store: s3://}}", "spotd.checkpoint.store"),
        ("spotd: {checkpoint: {store: s3://key:secret@bucket}}", "spotd.checkpoint.store"),
        ("spotd: {boot_timeout: 0}", "spotd.boot_timeout"),
        ("spotd: {health: {ratio: 1.5}}", "spotd.health.ratio"),
        ("spotd: {health: {every: 10ms}}", "spotd.health.every"),
        ("spotd: {recover_on_exit_codes: [0]}", "spotd.recover_on_exit_codes"),
        ("spotd: {recover_on_exit_codes: [256]}", "spotd.recover_on_exit_codes"),
        ("envs: {A: [1]}", "envs.A"),
        ("envs: [A]", "envs"),
        ("envs: {SKYPILOT_NODE_RANK: '1'}", "envs.SKYPILOT_NODE_RANK"),
        ('envs: {A: "a\\0b"}', "envs.A"),
        ("file_mounts: {/: a}", "file_mounts./"),
        ("file_mounts: {/a/../b: a}", "file_mounts./a/../b"),
        ("file_mounts: {/a: x, /a/: y}", "file_mounts./a/"),
        ("123: x", "123"),
        (f"spotd: {{boot_timeout: {NINES}d}}", "spotd.boot_timeout"),
        (f"spotd: {{deadline: {NINES}d}}", "spotd.deadline"),
        (f"spotd: {{budget: {{max_cost_usd: {NINES}}}}}", "spotd.budget.max_cost_usd"),
        ('spotd: {budget: {max_cost_usd: "1e999999"}}', "spotd.budget.max_cost_usd"),
        ('spotd: {checkpoint: {store: "file:///\\0"}}', "spotd.checkpoint.store"),
        (f"resources: {{disk_size: {NINES}}}", "resources.disk_size"),
        (f"resources: {{accelerators: 'H100:{NINES}'}}", "resources.accelerators"),
        ("resources: {accelerators: {H100: [1]}}", "resources.accelerators"),
        ("resources: {accelerators: {H100: .inf}}", "resources.accelerators"),
        ("resources: {accelerators: {H100: .nan}}", "resources.accelerators"),
    ],
)
def test_invalid_values_are_refused_at_their_key(text: str, where: str) -> None:
    problems = refused(text if text.startswith("run") else f"{text}\nrun: x\n")
    assert len(problems) == 1
    prefix, _, rest = problems[0].partition(": ")
    assert prefix == "line 1"
    assert rest.startswith(where)


def test_an_unknown_accelerator_is_passed_on_with_a_hint() -> None:
    parsed = read("resources: {accelerators: 'H1000:8'}\nrun: x")
    assert parsed.spec.resources.alternatives[0].accelerator == "H1000"
    assert parsed.warnings == (
        (
            "line 1: resources.accelerators 'H1000' is not an accelerator that spotd knows; it is "
            "requested as written (did you mean 'H100'?)"
        ),
    )
    assert read("resources: {accelerators: tpu-v5e-8}\nrun: x").warnings == ()


def test_variables_are_text_as_python_prints_what_yaml_read_and_a_change_is_told() -> None:
    parsed = read(
        'envs: {A: 1, B: true, C: 3.10, D: "3.10", E: 2026-11-21, F: 1e-4, G: ""}\nrun: x'
    )
    assert parsed.spec.program.envs == {
        "A": "1",
        "B": "True",
        "C": "3.1",
        "D": "3.10",
        "E": "2026-11-21",
        "F": "1e-4",
        "G": "",
    }
    assert [warning for warning in parsed.warnings if "envs" in warning] == [
        "line 1: envs.B true is read as 'True' (quote it to keep it)",
        "line 1: envs.C 3.10 is read as '3.1' (quote it to keep it)",
    ]


def test_a_variable_may_have_a_name_that_yaml_takes_for_a_value() -> None:
    parsed = read("envs: {NO: no, ON: 'on', Y: 1.10}\nrun: x")
    assert parsed.spec.program.envs == {"NO": "False", "ON": "on", "Y": "1.1"}
    assert [warning for warning in parsed.warnings if "envs" in warning] == [
        "line 1: envs.NO no is read as 'False' (quote it to keep it)",
        "line 1: envs.Y 1.10 is read as '1.1' (quote it to keep it)",
    ]


def test_overrides_replace_and_add_variables_and_secrets() -> None:
    parsed = read(
        "envs: {A: old, B: }\nsecrets: {S: in-the-file, T: }\nrun: x",
        env={"A": "new", "B": "b", "C": "c"},
        secrets={"T": "t-value", "U": "u-value"},
    )
    assert parsed.spec.program.envs == {"A": "new", "B": "b", "C": "c"}
    assert parsed.spec.program.secrets == ("S", "T", "U")
    assert parsed.secrets == {"S": "in-the-file", "T": "t-value", "U": "u-value"}


def test_variables_are_filled_into_paths_and_nowhere_else() -> None:
    parsed = read(
        "envs: {A: x}\nsecrets: {S: hidden-value}\nname: job\n"
        'workdir: $A/${A}$B\nfile_mounts: {/m/$A: "${S}/$A"}\nrun: echo $A ${S}\nsetup: echo $A'
    )
    assert parsed.workdir == Path("x/x$B")
    assert parsed.mounts == ((Path("${S}/x"), "/m/x"),)
    assert (parsed.spec.program.run, parsed.spec.program.setup) == ("echo $A ${S}", "echo $A")


def test_secret_values_stay_out_of_spec_text_repr_and_errors() -> None:
    text = (
        "# my job\nsecrets:\n  A: value-aaa  # why\n  B: |\n    value-bbb\n    value-ccc\n"
        "  C: 'value-ddd'\n  D: >-\n    value-eee\n\n  E: null\nenvs: {X: keep}\nrun: x\n"
    )
    parsed = read(text, secrets={"E": "value-fff"})
    assert parsed.secrets["B"] == "value-bbb\nvalue-ccc\n"
    assert len(parsed.secrets) == 5
    assert "value-" not in repr(parsed)
    assert "value-" not in parsed.text
    assert "# my job" in parsed.text
    assert "X: keep" in parsed.text
    again = read(parsed.text, secrets=parsed.secrets)
    assert again.spec == parsed.spec
    for wrong in (
        "secrets: value-aaa",
        "secrets: {A: [value-aaa]}",
        "secrets: {A: {B: value-aaa}}",
    ):
        assert "value-" not in "".join(refused(f"{wrong}\nrun: x"))
    assert "value-" not in "".join(refused(text + "rum: 1"))


def test_a_secret_without_a_value_is_one_that_the_deployment_keeps() -> None:
    text = "secrets: {KEPT: , MINE: mine-value, GIVEN: }\nrun: x\nname: j"
    for known in (None, KnownNames(secrets=("KEPT", "MINE"))):
        parsed = read(text, secrets={"GIVEN": "given-value"}, known=known)
        assert parsed.spec.program.secrets == ("GIVEN", "KEPT", "MINE")
        assert parsed.secrets == {"MINE": "mine-value", "GIVEN": "given-value"}
        again = read(parsed.text, secrets=parsed.secrets, known=known)
        assert (again.spec, again.secrets) == (parsed.spec, parsed.secrets)


def test_secrets_merged_from_an_anchor_are_hidden_too() -> None:
    parsed = read("secrets: {<<: {A: value-aaa}, B: &b value-bbb, C: *b}\nrun: x")
    assert parsed.secrets == {"A": "value-aaa", "B": "value-bbb", "C": "value-bbb"}
    assert "value-" not in parsed.text


def test_local_paths_must_exist_where_the_command_is_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    problems = refused(
        "workdir: file\nfile_mounts:\n  /a: missing\n  /b: $UNSET/x\nrun: x", base_dir=tmp_path
    )
    assert problems == [
        f"line 1: workdir: {tmp_path}/file is not a folder (fix: name its parent folder)",
        (
            f"line 3: file_mounts./a: {tmp_path}/missing does not exist "
            "(fix: correct the path, or create it)"
        ),
        "line 4: file_mounts./b: $UNSET has no value (fix: set UNSET in envs)",
    ]


def test_a_deadline_may_be_a_time_with_its_zone() -> None:
    utc = read("run: x\nspotd: {deadline: 2027-01-01T12:00:00Z}").spec.limits.deadline_us
    east = read("run: x\nspotd: {deadline: '2027-01-01 14:00:00+02:00'}").spec.limits.deadline_us
    assert utc == east == 1_798_804_800_000_000


def test_alerts_default_to_the_route_of_that_name_if_there_is_one() -> None:
    assert read("run: x", known=KnownNames(routes=("default", "ops"))).spec.monitoring.alerts == (
        "default",
    )
    assert read("run: x", known=KnownNames(routes=("ops",))).spec.monitoring.alerts == ()
    assert read("run: x\nspotd: {alerts: []}").spec.monitoring.alerts == ()


def test_a_job_needs_a_name_from_somewhere() -> None:
    assert refused("run: x", fallback_name="") == ["name: is missing (fix: name the job)"]
    assert read("run: x", fallback_name="./My train_job.yaml").spec.name == "My-train-job-yaml"
    assert read("run: x\nname: " + "a" * 63).spec.name == "a" * 63
    refused("run: x\nname: " + "a" * 64)
    refused('run: x\nname: "a\\nb"')


@pytest.mark.parametrize("example", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: path.name)
def test_the_checked_in_examples_are_good_job_files(example: Path) -> None:
    for text in split_documents(example.read_text()):
        parsed = read(text, fallback_name=example.stem, secrets={"HF_TOKEN": "t"})
        assert parsed.spec.program.run
        assert [text for text in parsed.warnings if "resources is missing" not in text] == []
