"""What a bucket costs beside what lies in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from providers.catalogs.egress import egress_prices
from providers.catalogs.storage import storage_price_of
from providers.dollars import format_usd
from providers.stores.settings import BucketSettings
from spotd.api.views.bucket_costs import SavePattern, check_bucket, egress_warnings
from spotd.domain.job import CheckpointSpec
from tests.spotd.api.rig import OFFERS, SPOT, Rig

WEEK = BucketSettings("us-central1", soft_delete_s=7 * 86_400.0)
SAVING = SavePattern("gpt", 10**9, 300.0, 3)


def test_soft_delete_is_told_with_its_dollars() -> None:
    found = check_bucket("gs://b/runs", WEEK, [SAVING])
    assert (found.ok, found.doubtful) == (True, True)
    price = storage_price_of("gs://b")
    assert price is not None
    usd = price.microusd_per_month(2016 * 10**9) / 1e6
    assert "retains deleted objects for 7 days: 2.02e+03 GB of job gpt" in found.text
    assert f"about {format_usd(usd)} a month" in found.text
    assert "turn off soft delete and versioning" in found.try_
    many = check_bucket("gs://b/runs", WEEK, [SAVING, replace(SAVING, job="bert")])
    assert "4.03e+03 GB of 2 jobs" in many.text
    assert "each checkpoint that retention deletes" in check_bucket("gs://b", WEEK, []).text


def test_versions_are_told_and_a_bucket_without_either_says_what_it_costs() -> None:
    found = check_bucket("s3://b", BucketSettings("eu-west-1", versioned=True), [])
    assert found.doubtful
    assert "retains every overwritten or deleted version" in found.text
    plain = check_bucket("s3://b", BucketSettings("eu-west-1"), [SAVING])
    assert (plain.ok, plain.doubtful) == (True, False)
    price = storage_price_of("s3://b")
    assert price is not None
    usd = price.microusd_per_month(3 * 10**9) / 1e6
    assert "in eu-west-1 retains no deleted objects; what its jobs keep is 3 GB" in plain.text
    assert f"about {format_usd(usd)} a month" in plain.text


def test_parts_that_a_killed_machine_leaves_are_told_with_the_rule_that_ends_them() -> None:
    found = check_bucket("s3://b", BucketSettings("eu-west-1", aborts_uploads=False), [])
    assert (found.ok, found.doubtful) == (True, True)
    assert "keeps, and charges for, parts of large objects that a killed machine" in found.text
    assert found.try_ == "give it a lifecycle rule AbortIncompleteMultipartUpload, of 7 days"
    both = check_bucket("gs://b", replace(WEEK, aborts_uploads=False), [])
    assert "turn off soft delete and versioning there" in both.try_
    assert both.try_.endswith("of 7 days")
    for ends in (True, None):
        assert not check_bucket("s3://b", BucketSettings(aborts_uploads=ends), []).doubtful


def test_what_cannot_be_seen_is_doubtful_and_no_failure() -> None:
    found = check_bucket("s3://b", "AccessDenied", [])
    assert (found.ok, found.doubtful) == (True, True)
    assert "are retained: AccessDenied" in found.text


def test_saving_into_another_cloud_is_told_by_the_month() -> None:
    kept = CheckpointSpec("gs://b/runs", "spotd", every_s=300.0)
    rented = [replace(offer, cloud="aws", local=False) for offer in OFFERS[:2]]
    [line] = egress_warnings(kept, rented, "gcp")
    usd = egress_prices()["aws"].microusd(8640) / 1e6
    assert f"with every 5 min, about {format_usd(usd)} a month for each GB" in line
    assert "name a store of aws, or resources.cloud" in line
    assert egress_warnings(kept, rented, "aws") == []
    assert egress_warnings(kept, rented, "") == [], "whose server it is nobody knows"
    assert egress_warnings(kept, [replace(offer, local=True) for offer in rented], "gcp") == []


def test_machines_beside_a_store_for_shards_are_not_warned_of(rig: Rig) -> None:
    """What they save leaves nothing."""
    from spotd.api.request.request import ApiRequest
    from spotd.api.routes.jobs import _warnings

    rig.places = {"s3://east": ("aws", SPOT.region), "gs://b": ("gcp", "us-central1")}
    context = rig.context()
    storage = replace(context.storage, store_cloud=lambda _url: "gcp")
    call = ApiRequest(replace(context, storage=storage))
    job = rig.store.jobs.find(rig.submit())
    assert job is not None
    kept = replace(job.spec.checkpoint, store="gs://b/runs", engine="spotd")
    spec = replace(job.spec, checkpoint=kept)
    assert "machines of aws would save into gs://b/runs" in " ".join(_warnings(call, spec))
    rig.shards = ("s3://east",)
    assert "would save" not in " ".join(_warnings(call, spec))


@pytest.mark.parametrize("seen", [WEEK, "AccessDenied"])
def test_the_doctor_has_a_line_for_each_bucket(seen: BucketSettings | str) -> None:
    rig = Rig()
    context = rig.context()
    storage = replace(context.storage, bucket_settings=lambda: {"gs://b/runs": seen})
    context = replace(context, storage=storage)
    from spotd.api.doctor.health import doctor
    from spotd.api.request.request import ApiRequest

    checks = [
        check
        for check in doctor(ApiRequest(context))["checks"]
        if check["name"] == "bucket settings"
    ]
    assert [(check["ok"], check["doubtful"]) for check in checks] == [(True, True)]
    rig.close()
