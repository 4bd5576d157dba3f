"""Training states of many kinds come through an interruption: `tests/trainer/hook/kinds.py`.

All kinds are in one program, so that three machines serve for all: one that nothing happens to, one
whose program is interrupted and resumed, and one where it is resumed without what the kind is
about. A kind shows something only if that ends elsewhere.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from spotd.wire import EXIT_FINISHED, EXIT_RELEASED
from tests.trainer.hook.rig import Program

KINDS = "tests/trainer/hook/kinds.py"
LEAVE_AT = 6

# What each kind is about, for docs/resume.md.
HOLDS = {
    "adamw": "moments and step counts of AdamW, with amsgrad",
    "adamw_foreach": "state of a foreach optimizer",
    "adamw_fused": "state of a fused optimizer",
    "sgd_momentum": "momentum of SGD",
    "optimizer_adafactor": "state of Adafactor",
    "optimizer_adagrad": "sums of Adagrad",
    "optimizer_asgd": "averages and rates of ASGD",
    "optimizer_nadam": "momentum products of NAdam",
    "optimizer_radam": "state of RAdam",
    "optimizer_rmsprop": "square averages of RMSprop, centered and with momentum",
    "optimizer_rprop": "step sizes of Rprop",
    "lbfgs": "history of directions of LBFGS",
    "param_groups": "parameter groups with rates of their own, which the loop changes",
    "state_by_and_by": "optimizer state that comes into being only after the resume",
    "rate_is_a_tensor": "a learning rate that is a tensor",
    "several_optimizers": "several models and optimizers in one loop",
    "state_of_another_type": "float32 and int8 optimizer state of bfloat16 weights",
    "scheduler_lambda": "LambdaLR",
    "scheduler_warm_restarts": "cosine schedule with warm restarts",
    "scheduler_one_cycle": "OneCycleLR, its momentum included",
    "scheduler_cyclic": "CyclicLR",
    "scheduler_plateau": "ReduceLROnPlateau: its best value and its patience",
    "scheduler_multi_step": "MultiStepLR, with a milestone that counts twice",
    "scheduler_polynomial": "PolynomialLR",
    "scheduler_swa": "SWALR",
    "scheduler_sequential": "SequentialLR, on its second schedule after the resume",
    "scheduler_chained": "ChainedScheduler",
    "scaler": "scale and growth of a GradScaler, across a step that overflows",
    "moving_average": "moving average of the weights (EMA)",
    "stochastic_average": "stochastic average of the weights (SWA)",
    "object_of_its_own": "objects of the program: numbers, lists, arrays, dictionaries in order",
    "loader_with_a_state": "order of data within and across epochs, partial batches (`data=`)",
    "random_torch": "random numbers of torch",
    "random_python": "random numbers of Python",
    "random_numpy": "random numbers of NumPy",
    "dropout": "dropout",
    "batch_norm": "running statistics of BatchNorm",
    "spectral_norm": "power iteration of spectral_norm",
    "weight_norm": "weights under a parametrization (weight_norm)",
    "frozen": "frozen weights, which the program draws anew at each start",
    "tied": "tied weights, which stay one tensor",
    "extra_state": "a module's extra state (get_extra_state)",
    "state_dict_of_its_own": "a model that renames its state (state_dict of its own)",
    "buffer": "buffers that training changes",
    "gradients_within_a_step": "gradients accumulated and clipped within a step",
    "weights_bfloat16": "bfloat16 weights",
    "weights_float16": "float16 weights",
    "weights_float64": "float64 weights",
    "weights_complex": "complex weights",
    "weights_int8": "int8 weights with their scale",
    "weights_float8": "float8 weights with their scale",
    "sparse_embedding": "an embedding with sparse gradients, and SparseAdam",
    "compiled": "a model wrapped by torch.compile",
    "lazy_layers": "layers that get their shape from the first batch",
    "channels_last": "memory format of weights and optimizer state (channels_last)",
}
DIFFERS = {
    "buffer_that_is_not_persistent": (
        "buffers registered with persistent=False",
        "PyTorch leaves them out of `state_dict()`; register them as persistent",
    ),
    "gradients_over_several_steps": (
        "gradients accumulated over several steps of `run.steps`",
        "gradients are no state. Let one step of `run.steps` be one step of the optimizer",
    ),
}
# One worker plays the three machines for all.
pytestmark = pytest.mark.xdist_group("kinds")


class Results(NamedTuple):
    whole: dict[str, Any]
    resumed: dict[str, Any]
    forgot: dict[str, Any]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    def interrupted(name: str, *more: str) -> dict[str, Any]:
        program = Program(tmp_path_factory.mktemp(name), KINDS, ("--leave-at", str(LEAVE_AT)))
        assert program.run(1) == EXIT_RELEASED, program.output()
        program.arguments = more
        assert program.run(2) == EXIT_FINISHED, program.output()
        return read(program)

    whole = Program(tmp_path_factory.mktemp("whole"), KINDS)
    assert whole.run(1) == EXIT_FINISHED, whole.output()
    return Results(read(whole), interrupted("resumed"), interrupted("forgot", "--forget"))


def read(program: Program) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((program.folder / "kinds.json").read_text())
    return found


def row(kind: str, behaviour: str, **more: Any) -> Any:
    mark = pytest.mark.behaviour(behaviour, way="Run", **more)
    return pytest.param(kind, id=kind, marks=mark)


@pytest.mark.parametrize("kind", [row(kind, behaviour) for kind, behaviour in HOLDS.items()])
def test_it_ends_where_an_undisturbed_run_ends(kind: str, results: Results) -> None:
    assert results.resumed[kind] == results.whole[kind]
    assert results.forgot[kind] != results.whole[kind], "it would show nothing"


@pytest.mark.parametrize(
    "kind",
    [row(kind, text, holds=False, because=because) for kind, (text, because) in DIFFERS.items()],
)
def test_it_ends_elsewhere(kind: str, results: Results) -> None:
    """Held as strictly: a kind that begins to hold belongs into the other table."""
    assert results.resumed[kind] != results.whole[kind]


def test_each_kind_is_in_one_of_the_tables(results: Results) -> None:
    assert sorted(results.whole) == sorted({**HOLDS, **DIFFERS})
    assert not HOLDS.keys() & DIFFERS.keys()
