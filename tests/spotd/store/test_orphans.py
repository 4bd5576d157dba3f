"""Machines that no node wants: who asked for them, and what a person said."""

from __future__ import annotations

from dataclasses import replace

from spotd.domain.node import EffectKind
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.store.interface import Store
from spotd.store.orphans import NodeRowTimes
from tests.spotd.store.build import NOW, instance, move, node, placed, said, view

NODE = "j1-g1-0"
LIVES = NodeRowTimes(0, 0)


def test_who_asked_for_a_machine(store: Store) -> None:
    """By token or by id, whatever became of the node since; another cloud's ids say nothing."""
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    mine = instance(node(store))
    renamed = replace(mine, token="")
    twin = replace(mine, instance_id="i-2")
    stranger = replace(mine, instance_id="i-9", token="t-unknown")
    nameless = replace(mine, instance_id="i-8", token="")
    everybody = [mine, twin, stranger, nameless]
    assert store.orphans.known("aws", everybody) == {"i-1": LIVES, "i-2": LIVES}
    assert store.orphans.known("aws", [renamed]) == {"i-1": LIVES}
    assert store.orphans.known("gcp", everybody) == {}
    assert store.orphans.known("aws", []) == {}
    move(store, NODE, NodeState.TERMINATING)
    store.nodes.record_acknowledged(NODE, EffectKind.TERMINATE, NOW + 20 * S)
    store.instances.record_listing("aws", [], NOW + 30 * S, NOW + 30 * S)
    move(store, NODE, NodeState.GONE)
    past = NodeRowTimes(NOW + 30 * S, NOW + 20 * S)
    assert store.orphans.known("aws", everybody) == {"i-1": past, "i-2": past}


def test_an_id_of_ours_with_another_token_is_not_ours(store: Store) -> None:
    """Whatever our row says of that id, it is not about that machine."""
    placed(store)
    store.nodes.record_launched(NODE, "i-1", NOW)
    other = replace(instance(node(store)), token="t-other")
    assert store.orphans.known("aws", [other]) == {}


def test_a_renewal_is_kept_and_an_older_one_changes_nothing(store: Store) -> None:
    placed(store)
    notes = view(store).job.wakeup.notes
    store.nodes.record_renewed(NODE, NOW + 2 * S)
    store.nodes.record_renewed(NODE, NOW + S)
    store.nodes.record_renewed("nobody", NOW)
    assert node(store).lease.renewed_until_us == NOW + 2 * S
    assert view(store).job.wakeup.notes == notes, "no reason to decide anything"


def test_what_a_machine_was_lent_is_kept_and_what_ends_earlier_changes_nothing(
    store: Store,
) -> None:
    placed(store)
    notes = view(store).job.wakeup.notes
    store.nodes.record_credential_lease(NODE, NOW + 1, NOW + 9 * S)
    store.nodes.record_credential_lease(NODE, NOW + 2, NOW + 8 * S)
    store.nodes.record_credential_lease("nobody", NOW, NOW + S)
    assert (node(store).lease.lent_at_us, node(store).lease.lent_until_us) == (NOW + 1, NOW + 9 * S)
    store.nodes.record_credential_lease(NODE, NOW + 3, NOW + 10 * S)
    assert (node(store).lease.lent_at_us, node(store).lease.lent_until_us) == (
        NOW + 3,
        NOW + 10 * S,
    )
    assert view(store).job.wakeup.notes == notes, "no reason to decide anything"


def test_what_became_of_the_disks_is_kept(store: Store) -> None:
    placed(store)
    done = {"what": ["workdir", "packages"], "how": "removed", "left_mounts": ["/b"], "failed": 1}
    store.journal.record([said(("exited", {"code": 0}), ("wiped", done), heard_at_us=NOW + S)])
    now = node(store)
    assert (now.storage.wiped_at_us, now.storage.wiped_text) == (
        NOW + S,
        "workdir, packages removed, 2 left",
    )
    assert now.training.exit_code == 0


def test_orphans_are_released_by_the_latest_word(store: Store) -> None:
    assert store.orphans.released_us("aws") == 0
    store.orphans.release("aws", NOW)
    store.orphans.release("aws", NOW - S)
    assert store.orphans.released_us("aws") == NOW
    assert store.orphans.released_us("gcp") == 0
