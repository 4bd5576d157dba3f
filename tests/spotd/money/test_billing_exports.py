"""The billing exports of three clouds, in the forms that they come in."""

from __future__ import annotations

import csv

import pytest

from providers.cloud_facts import load
from providers.clouds import CLOUDS
from spotd.money.billing_exports import Bill, BillingError, Entry, bill, key_of

DAY = 1_793_491_200_000_000  # 2026-11-01
HOUR = 3_600_000_000

AWS = """\
identity/LineItemId,lineItem/UsageStartDate,lineItem/UsageEndDate,lineItem/ResourceId,\
lineItem/UsageType,lineItem/UnblendedCost,lineItem/CurrencyCode,product/instanceType
1,2026-11-01T00:00:00Z,2026-11-01T01:00:00Z,i-0abc,USE1-SpotUsage:p5.48xlarge,19.93,USD,p5.48xlarge
2,2026-11-01T01:00:00Z,2026-11-01T02:00:00Z,i-0abc,USE1-SpotUsage:p5.48xlarge,9.965,USD,p5.48xlarge
3,2026-11-01T00:00:00Z,2026-11-01T01:00:00Z,i-0web,USE1-BoxUsage:m7i.large,0.1008,USD,m7i.large
4,2026-11-01T00:00:00Z,2026-11-01T01:00:00Z,vol-1,USE1-EBS:VolumeUsage.gp3,1.5,USD,
5,2026-11-01T00:00:00Z,2026-11-01T01:00:00Z,,USE1-DataTransfer-Out-Bytes,3,USD,
"""
AWS_2 = """\
line_item_usage_start_date,line_item_usage_end_date,line_item_resource_id,line_item_usage_type,\
line_item_unblended_cost,line_item_currency_code
2026-11-01 00:00:00.000,2026-11-01 01:00:00.000,i-0abc,USE1-SpotUsage:g6.12xlarge,1.25,USD
"""
GCP = """\
service.description,sku.description,usage_start_time,usage_end_time,resource.name,cost,currency,\
credits.amount
Compute Engine,Spot Preemptible A3 Instance Core running in Americas,2026-11-01 00:00:00 UTC,\
2026-11-01 01:00:00 UTC,projects/lab/instances/spotd-gpt-1,4,USD,-1
Compute Engine,Nvidia H100 80GB GPU attached to Spot VMs,2026-11-01 00:00:00 UTC,\
2026-11-01 01:00:00 UTC,projects/lab/instances/spotd-gpt-1,16.5,USD,
Compute Engine,Storage PD Capacity,2026-11-01 00:00:00 UTC,2026-11-01 01:00:00 UTC,disk-1,7,USD,
"""
AZURE = """\
date,resourceId,meterCategory,costInBillingCurrency,billingCurrency,additionalInfo
11/01/2026,/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/Spotd-GPT-1,\
Virtual Machines,29.5,USD,"{""ServiceType"":""Standard_ND96isr_H100_v5""}"
11/01/2026,/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/web,\
Virtual Machines,0.5,USD,"{""ServiceType"":""Standard_D4s_v5""}"
11/01/2026,/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d,Storage,9,USD,
"""


def whole(cloud: str, text: str) -> Bill:
    facts = CLOUDS[cloud].bill
    assert facts is not None
    return bill(load(facts.export), csv.DictReader(text.splitlines()))


def read(cloud: str, text: str) -> list[Entry]:
    return whole(cloud, text).machines


def test_aws() -> None:
    assert read("aws", AWS) == [
        Entry("i-0abc", "p5.48xlarge", True, 29_895_000, DAY, DAY + 2 * HOUR),
        Entry("i-0web", "m7i.large", False, 100_800, DAY, DAY + HOUR),
    ]
    assert read("aws", AWS_2) == [
        Entry("i-0abc", "USE1-SpotUsage:g6.12xlarge", True, 1_250_000, DAY, DAY + HOUR)
    ]


def test_gcp_adds_up_the_parts_of_a_machine() -> None:
    (entry,) = read("gcp", GCP)
    assert (entry.key, entry.gpu, entry.cost_microusd) == ("spotd-gpt-1", True, 20_500_000)
    assert entry.credit_microusd == -1_000_000, "nobody says that it is a discount"


@pytest.mark.parametrize(
    ("kind", "cost", "credit"),
    [
        ("PROMOTION", 20.5, -1.0),
        ("FREE_TRIAL", 20.5, -1.0),
        ("COMMITTED_USAGE_DISCOUNT", 19.5, 0.0),
        ("SUSTAINED_USAGE_DISCOUNT", 19.5, 0.0),
    ],
)
def test_gcp_promotions_are_no_price_and_discounts_are(
    kind: str, cost: float, credit: float
) -> None:
    text = GCP.replace("credits.amount", "credits.amount,credits.type")
    (entry,) = read("gcp", text.replace("4,USD,-1", f"4,USD,-1,{kind}"))
    assert (entry.cost_microusd, entry.credit_microusd) == (cost * 1e6, credit * 1e6)


AWS_CREDITS = """\
lineItem/LineItemType,lineItem/UsageStartDate,lineItem/UsageEndDate,lineItem/ResourceId,\
lineItem/UsageType,lineItem/UnblendedCost
Usage,2026-11-01T00:00:00Z,2026-11-01T01:00:00Z,i-0abc,USE1-SpotUsage:p5.48xlarge,19.93
Credit,2026-11-01T00:00:00Z,2026-12-01T00:00:00Z,i-0abc,USE1-SpotUsage:p5.48xlarge,-19.93
EdpDiscount,2026-11-01T00:00:00Z,2026-11-01T01:00:00Z,i-0abc,USE1-SpotUsage:p5.48xlarge,-0.93
Refund,2026-11-01T00:00:00Z,2026-12-01T00:00:00Z,i-0gone,USE1-SpotUsage:p5.48xlarge,-2
Credit,2026-11-01T00:00:00Z,2026-12-01T00:00:00Z,,,-100
Usage,2026-11-01T00:00:00Z,2026-11-01T01:00:00Z,,USE1-DataTransfer-Out-Bytes,3
"""


def test_aws_credits_take_nothing_off_what_a_machine_cost() -> None:
    """Nor make the time of the bill longer: credits are of whole months. A discount is a price."""
    result = whole("aws", AWS_CREDITS)
    assert result.machines == [
        Entry(
            key="i-0abc",
            what="USE1-SpotUsage:p5.48xlarge",
            gpu=True,
            cost_microusd=19_000_000,
            start_us=DAY,
            end_us=DAY + HOUR,
            credit_microusd=-19_930_000,
        )
    ]
    assert result.credits_microusd == -102_000_000, "of i-0gone, and of no machine"


def test_a_line_below_zero_that_nobody_gives_a_name_is_a_credit() -> None:
    line = "2026-11-01 00:00:00.000,2026-12-01 00:00:00.000,i-0abc,Credit,-1.25,USD\n"
    (entry,) = read("aws", AWS_2 + line)
    assert (entry.cost_microusd, entry.credit_microusd) == (1_250_000, -1_250_000)
    assert entry.end_us == DAY + HOUR


FOCUS = """\
ChargeCategory,ChargePeriodStart,ChargePeriodEnd,ResourceId,SkuId,BilledCost,BillingCurrency
Usage,2026-11-01T00:00:00Z,2026-11-01T01:00:00Z,/x/virtualMachines/gpt,Standard_ND96isr_H100_v5,29.5,USD
Credit,2026-11-01T00:00:00Z,2026-12-01T00:00:00Z,/x/virtualMachines/gpt,,-29.5,USD
"""


def test_credits_of_a_bill_in_focus() -> None:
    (entry,) = read("azure", FOCUS)
    assert (entry.cost_microusd, entry.credit_microusd) == (29_500_000, -29_500_000)


def test_azure_bills_days() -> None:
    gpt, web = read("azure", AZURE)
    assert (gpt.key, gpt.gpu, gpt.cost_microusd) == ("spotd-gpt-1", True, 29_500_000)
    assert (gpt.start_us, gpt.end_us) == (DAY, DAY + 24 * HOUR)
    assert (web.key, web.gpu) == ("web", False)


@pytest.mark.parametrize(
    ("what", "gpu"),
    [
        ("p4d.24xlarge", True),
        ("g5.xlarge", True),
        ("BoxUsage:gr6.4xlarge", True),
        ("c7g.xlarge", False),
        ("m7gd.large", False),
        ("t4g.small", False),
    ],
)
def test_which_of_aws_have_gpus(what: str, gpu: bool) -> None:
    text = AWS.replace("p5.48xlarge\n", f"{what}\n")
    assert read("aws", text)[0].gpu is gpu


def test_ids_of_the_ledger_and_of_bills_meet() -> None:
    assert key_of("us-east-1/i-0abc") == key_of("i-0ABC") == "i-0abc"
    assert key_of("us-central1-a/spotd-1") == key_of("projects/lab/instances/spotd-1/")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lineItem/UnblendedCost", "cost", "no column like lineitemunblendedcost"),
        ("9.965", "nine", "row 3: 'nine' is not an amount"),
        ("9.965", "1e99", "row 3: '1e99' is not an amount"),
        ("9.965,USD", "9.965,EUR", "row 3: currency 'EUR'"),
        ("2026-11-01T01:00:00Z,i-0abc", "soon,i-0abc", "row 2: 'soon' is not a time"),
        ("2026-11-01T01:00:00Z,i-0abc", "9026-11-01,i-0abc", "row 2: '9026-11-01' is not a time"),
        ("2026-11-01T01:00:00Z,i-0abc", "2026-10-01,i-0abc", "row 2: it ends before it begins"),
    ],
)
def test_a_file_that_is_not_understood(old: str, new: str, message: str) -> None:
    with pytest.raises(BillingError, match=message):
        read("aws", AWS.replace(old, new, 1))


def test_an_empty_file() -> None:
    assert read("aws", "") == []
