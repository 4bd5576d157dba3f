"""Test that unmodified SkyPilot training tasks load."""

from pathlib import Path

import pytest

from providers.base import CapacityType, OfferRequest
from spotd.spec import CheckpointDefaults, KnownNames, ParsedJobFile, SpecError, load

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
DEFAULTS = CheckpointDefaults(store="file:///checkpoints")


def read(text: str, base_dir: Path | None = None, **env: str) -> ParsedJobFile:
    return load(text, now_us=0, env=env, defaults=DEFAULTS, base_dir=base_dir, fallback_name="task")


def test_one_machine_with_a_code_folder(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    parsed = read(
        """
name: resnet
workdir: ./code
resources:
  cloud: aws
  instance_type: p3.2xlarge
  use_spot: true
setup: |
  pip install -r requirements.txt
run: |
  python main.py --epochs 10
""",
        tmp_path,
    )
    assert parsed.warnings == ()
    assert parsed.workdir == tmp_path / "code"
    spec = parsed.spec
    assert spec.name == "resnet"
    assert spec.resources.alternatives == (
        OfferRequest(instance_type="p3.2xlarge", cloud="aws", capacity_types=(SPOT,)),
    )
    assert spec.program.setup == "pip install -r requirements.txt\n"
    assert spec.program.run == "python main.py --epochs 10\n"
    assert spec.checkpoint.store == "file:///checkpoints"
    assert spec.checkpoint.engine == "none"


def test_two_nodes_under_torchrun_with_recovery_and_secrets() -> None:
    parsed = load(
        """
resources:
  accelerators: A100-80GB:8
  disk_size: 1000
  use_spot: true
  job_recovery:
    strategy: EAGER_NEXT_REGION
    max_restarts_on_errors: 3
    recover_on_exit_codes: [29, 137]
num_nodes: 2
envs:
  MODEL_SIZE: 13
  WANDB_PROJECT: ddp
secrets:
  HF_TOKEN: null
run: |
  MASTER=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun --nnodes $SKYPILOT_NUM_NODES --node_rank $SKYPILOT_NODE_RANK \\
    --nproc_per_node $SKYPILOT_NUM_GPUS_PER_NODE --master_addr $MASTER train.py --size ${MODEL_SIZE}
""",
        now_us=0,
        secrets={"HF_TOKEN": "hf_value"},
        defaults=DEFAULTS,
        fallback_name="my_task.v1",
    )
    spec = parsed.spec
    assert spec.name == "my-task-v1"
    assert spec.resources.num_nodes == 2
    assert spec.resources.disk_gib == 1000
    assert spec.restarts.max_restarts_on_errors == 3
    assert spec.restarts.recover_on_exit_codes == (29, 137)
    assert spec.program.envs == {"MODEL_SIZE": "13", "WANDB_PROJECT": "ddp"}
    assert spec.program.secrets == ("HF_TOKEN",)
    assert parsed.secrets == {"HF_TOKEN": "hf_value"}
    assert "--size ${MODEL_SIZE}" in spec.program.run  # for the shell on the node to fill in
    assert parsed.warnings == (
        (
            "line 7: resources.job_recovery.strategy is a SkyPilot key that spotd does not "
            "support; it is ignored (spotd places by price and past refusals)"
        ),
    )


def test_any_of_inherits_what_stands_above_it() -> None:
    spec = read(
        """
resources:
  accelerators: H100:8
  memory: 32+
  any_of:
    - infra: aws/us-east-1
    - infra: gcp
      use_spot: false
    - cloud: azure
      region: eastus
      accelerators: {A100: 8}
run: python train.py
"""
    ).spec
    shared = {"memory_gib": 32.0, "accelerator_count": 8}
    assert not spec.resources.ordered
    assert spec.resources.alternatives == (
        OfferRequest(accelerator="H100", cloud="aws", region="us-east-1", **shared),
        OfferRequest(accelerator="H100", cloud="gcp", capacity_types=(ON_DEMAND,), **shared),
        OfferRequest(accelerator="A100", cloud="azure", region="eastus", **shared),
    )
    assert spec.resources.alternatives[0].capacity_types == (SPOT, ON_DEMAND)


def test_ordered_resources_and_ordered_accelerators() -> None:
    spec = read(
        """
resources:
  ordered:
    - infra: gcp/us-central1/us-central1-a
      accelerators: L4
    - infra: "*/us-east-1"
      accelerators: T4:2
run: python train.py
"""
    ).spec
    assert spec.resources.ordered
    assert [
        (alternative.cloud, alternative.region, alternative.zone)
        for alternative in spec.resources.alternatives
    ] == [
        ("gcp", "us-central1", "us-central1-a"),
        ("", "us-east-1", ""),
    ]
    assert [
        (alternative.accelerator, alternative.accelerator_count)
        for alternative in spec.resources.alternatives
    ] == [
        ("L4", 1),
        ("T4", 2),
    ]
    listed = read("resources: {accelerators: ['A100:8', 'h100:4']}\nrun: x").spec
    assert listed.resources.ordered
    assert [alternative.accelerator for alternative in listed.resources.alternatives] == [
        "A100",
        "H100",
    ]


def test_a_set_of_accelerators_is_any_of_them() -> None:
    spec = read("resources:\n  accelerators: {A100:8, V100:4, L4: 1, T4}\nrun: x").spec
    assert not spec.resources.ordered
    assert [
        (alternative.accelerator, alternative.accelerator_count)
        for alternative in spec.resources.alternatives
    ] == [
        ("A100", 8),
        ("V100", 4),
        ("L4", 1),
        ("T4", 1),
    ]


def test_file_mounts_with_variables_and_a_copied_local_source(tmp_path: Path) -> None:
    for name in ("llama-8b", "data", "conf.json"):
        (tmp_path / name).mkdir()
    parsed = read(
        """
envs:
  SIZE: 7b
  DATA: data
workdir: ${HERE}
file_mounts:
  /model/llama-${SIZE}: ./llama-$SIZE
  ~/data/:
    source: ./${DATA}
    mode: COPY
  conf/conf.json: conf.json
run: ls /model/llama-${SIZE}
""",
        tmp_path,
        HERE=str(tmp_path),
        SIZE="8b",
    )
    assert parsed.workdir == tmp_path
    assert parsed.mounts == (
        (tmp_path / "llama-8b", "/model/llama-8b"),
        (tmp_path / "data", "~/data"),
        (tmp_path / "conf.json", "conf/conf.json"),
    )
    assert parsed.spec.program.run == "ls /model/llama-${SIZE}"
    assert parsed.spec.files.packages == ()


def test_a_home_folder_is_where_the_user_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "project").mkdir()
    assert read("workdir: ~/project\nrun: x", Path("/")).workdir == tmp_path / "project"
    with pytest.raises(SpecError, match="no such user's home folder"):
        read("workdir: ~nobody-of-this-name/x\nrun: x", tmp_path)


def test_keys_without_use_here_are_named_in_warnings_and_nothing_else() -> None:
    parsed = read(
        """
name: many-keys
resources:
  accelerators: V100
  ports: [8080]
  labels: {team: ml}
  disk_tier: best
  network_tier: best
  autostop: 10
  priority_class: gold
  accelerator_args: {runtime_version: tpu-vm-base}
inputs: {s3://x: 10}
outputs: {s3://y: 10}
event_callback: echo hi
config:
  kubernetes: {provision_timeout: 3}
run: python train.py
"""
    )
    named = [warning.split(" is a SkyPilot key")[0] for warning in parsed.warnings]
    assert named == [
        "line 5: resources.ports",
        "line 6: resources.labels",
        "line 7: resources.disk_tier",
        "line 8: resources.network_tier",
        "line 9: resources.autostop",
        "line 10: resources.priority_class",
        "line 11: resources.accelerator_args",
        "line 12: inputs",
        "line 13: outputs",
        "line 14: event_callback",
        "line 15: config",
    ]
    assert parsed.spec.resources.alternatives[0].accelerator == "V100"


def test_the_first_document_of_a_file_may_hold_just_the_name() -> None:
    assert read("name: pipeline\n---\nrun: python train.py\n").spec.name == "pipeline"
    assert read("name: pipeline\n---\nname: own\nrun: x\n").spec.name == "own"
    with pytest.raises(SpecError, match="3 documents, but one job is expected"):
        read("name: p\n---\nrun: a\n---\nrun: b\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("file_mounts: {/d: {source: gs://b/x, mode: NFS}}", "write COPY, MOUNT or MOUNT_CACHED"),
        (
            "file_mounts: {/d: {source: s3://b, config: {mount_cached: {transfers: 4}}}}",
            "config needs mode: MOUNT_CACHED",
        ),
        ("file_mounts: {/d: https://x/y}", "is not a store"),
        ("file_mounts: {/d: file:///x}", "file:// is not a bucket"),
        (
            "file_mounts: {/d: {name: bucket, mode: MOUNT}}",
            "has no source, and spotd creates no bucket",
        ),
        ("file_mounts: {/d: {name: bucket, source: ~/x}}", "a local source is copied"),
        ("file_mounts: {/d: {source: [a, b], mode: COPY}}", "several sources in one mount"),
        ("volumes: {/d: vol}", "volumes: is a SkyPilot key that spotd does not support"),
        ("resources: {volumes: [{path: /d}]}", "resources.volumes: is a SkyPilot key"),
        ("workdir: {url: https://x/y.git, ref: main}", "a git workdir is not supported"),
        ("service: {readiness_probe: /}", "spotd trains; it does not serve"),
        ("managed_secrets: [HF_TOKEN]", "spotctl secret set NAME"),
        ("resources: {image_id: 'docker:nvcr.io/Upper/x'}", "is not a name of an image"),
        ("resources: {infra: k8s/my/context}", "it does not run on k8s"),
    ],
)
def test_unsupported_keys_that_change_the_job_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(f"{text}\nrun: x\n")
    [problem] = caught.value.problems
    assert complaint in str(problem)
    assert problem.fix
    assert problem.line == 1


def test_a_container_may_be_named_in_place_of_a_machines_image() -> None:
    spec = read("resources: {image_id: 'docker:nvcr.io/nvidia/pytorch:25.01-py3'}\nrun: x").spec
    assert spec.resources.image_id == "docker:nvcr.io/nvidia/pytorch:25.01-py3"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("envs: {SKYPILOT_DOCKER_PASSWORD: x, SKYPILOT_DOCKER_USERNAME: u}", "visible in the job"),
        ("envs: {SKYPILOT_DOCKER_USERNAME: u}", "SKYPILOT_DOCKER_PASSWORD: is missing from the"),
        ("secrets: {SKYPILOT_DOCKER_PASSWORD: x}", "SKYPILOT_DOCKER_USERNAME: is missing from the"),
    ],
)
def test_a_registry_login_is_complete_and_its_password_secret(text: str, complaint: str) -> None:
    image = "resources: {image_id: 'docker:nvcr.io/x:1'}"
    with pytest.raises(SpecError, match=complaint) as caught:
        read(f"{image}\n{text}\nrun: x\n")
    assert [bool(problem.fix) for problem in caught.value.problems] == [True]
    whole = "envs: {SKYPILOT_DOCKER_USERNAME: u}\nsecrets: {SKYPILOT_DOCKER_PASSWORD: x}"
    assert read(f"{image}\n{whole}\nrun: x\n").spec.program.secrets == ("SKYPILOT_DOCKER_PASSWORD",)


def test_images_may_be_bound_to_a_region() -> None:
    spec = read("resources: {infra: aws, image_id: {us-east-1: ami-0123}}\nrun: x").spec
    assert spec.resources.image_id == "ami-0123"
    assert spec.resources.alternatives[0].region == "us-east-1"
    with pytest.raises(SpecError, match="one image is needed"):
        read("resources: {image_id: {us-east-1: a, eu-west-1: b}}\nrun: x")


def test_secrets_by_reference_are_names_that_must_be_given() -> None:
    text = "secrets: ['secrets:global.HF_TOKEN', 'secrets:WANDB']\nrun: x"
    parsed = load(
        text,
        now_us=0,
        secrets={"HF_TOKEN": "a", "WANDB": "b"},
        defaults=DEFAULTS,
        fallback_name="x",
    )
    assert parsed.spec.program.secrets == ("HF_TOKEN", "WANDB")
    with pytest.raises(SpecError, match="pass --secret WANDB"):
        load(text, now_us=0, defaults=DEFAULTS, fallback_name="x", known=KnownNames(secrets=()))


@pytest.mark.parametrize(
    ("block", "priority"),
    [
        ("", 500),
        ("spotd: {priority: low}", 250),
        ("spotd: {priority: high}", 750),
        ("spotd: {priority: 0}", 0),
        ("spotd: {priority: 1000}", 1000),
        ("resources: {priority: 0}", 500),
        ("resources: {priority: -1000}", 0),
        ("resources: {priority: 1000}", 1000),
        ("resources: {any_of: [{cloud: aws}, {cloud: gcp, priority: 500}]}", 750),
        ("resources: {priority: 1000}\nspotd: {priority: 7}", 7),
    ],
)
def test_priority_is_our_own_or_skypilots(block: str, priority: int) -> None:
    parsed = read(f"name: one\nrun: x\n{block}\n")
    assert parsed.spec.queue.priority == priority
    assert not [warning for warning in parsed.warnings if "priority" in warning]


@pytest.mark.parametrize(
    "value", ["urgent", "-1", "1001", "true", "1.5"], ids=["name", "low", "high", "flag", "part"]
)
def test_an_invalid_priority_is_refused_with_a_fix(value: str) -> None:
    with pytest.raises(SpecError, match=r"write low, normal, high, critical, or a number from 0"):
        read(f"name: one\nrun: x\nspotd: {{priority: {value}}}\n")
