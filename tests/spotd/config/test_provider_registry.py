"""Which kinds of provider there are."""

from __future__ import annotations

import pytest

from providers.local.cloud import LocalCloud
from spotd.base.errors import ExitCode, UserError
from spotd.config.provider_registry import KINDS, build_provider


def test_a_provider_is_made_by_its_kind() -> None:
    settings = {"url": "http://127.0.0.1:8700", "personality": "gcp"}
    made = build_provider("local", "here", "d0", settings)
    assert isinstance(made, LocalCloud)
    assert (made.name, made.watcher, made.local) == ("here", "gcp", True)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_leads_somewhere(kind: str) -> None:
    with pytest.raises(TypeError):  # settings are missing, the factory is not
        build_provider(kind, "x", "d0", {})


def test_an_unknown_kind_names_the_section_and_what_there_is() -> None:
    with pytest.raises(UserError) as caught:
        build_provider("moon", "far", "d0", {})
    assert "providers.far" in caught.value.text
    assert '"moon"' in caught.value.text
    assert '"local"' in caught.value.try_
    assert caught.value.exit_code is ExitCode.USAGE
