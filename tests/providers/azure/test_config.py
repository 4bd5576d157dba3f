"""What Azure's tables of the configuration say of the account and of the store."""

from __future__ import annotations

from providers.azure.config import AzureFederate, AzureLend, AzureProvider

UUID = "00000000-0000-0000-0000-000000000000"


def test_the_account_is_the_subscription_and_the_group() -> None:
    provider = AzureProvider(
        kind="azure", subscription_id="s", resource_group="g", regions=["eastus"]
    )
    account = {"subscription_id": "s", "resource_group": "g"}
    assert provider.policy_account([], []) == account
    assert provider.identity() == {"kind": "azure", **account}


def test_its_issuer_makes_folders_at_the_accounts_other_endpoint() -> None:
    lend = AzureLend(kind="azure")
    options = {"account": "ours", "endpoint": "https://ours.blob.core.windows.net"}
    assert lend.issuer_settings(options) == {
        "account": "ours",
        "endpoint": "https://ours.dfs.core.windows.net",
    }
    assert lend.issuer_settings({"account": "ours"}) == {"account": "ours", "endpoint": ""}


def test_machines_of_the_clouds_that_it_trusts_need_a_token() -> None:
    made = AzureFederate(kind="azure", clouds=["aws"], tenant=UUID, application=UUID)
    assert made.token_audience("aws") == "api://AzureADTokenExchange"
    assert made.token_audience("gcp") == ""
    assert list(made.find_problems()) == []
