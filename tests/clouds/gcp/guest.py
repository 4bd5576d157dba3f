"""A machine of Compute Engine from the inside: its metadata server with what the API got, and how
its image comes up.

cloud-init finds Google's own data source: by the firmware's name of the machine, and then by
metadata.google.internal, from where it has name, zone and user data, and where it publishes the
host keys that it makes. What differs from a real image:

* the address is there from the start, so that the stage that first gets one by DHCP is left out;
* accounts of `ssh-keys` are made by our first process, where Google's guest agent makes them;
* only Ed25519 host keys are made, and by cloud-init: the guest agent, which makes all anew, would
  publish the same kinds of them in the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.local.documents import MachineFacts, MetadataReply, MetadataRequest
from providers.local.gcp_documents import Attributes, GcpDocuments, Tree
from providers.local.link import ControlLink

NAME = "metadata.google.internal"
_GUEST = "/computeMetadata/v1/instance/guest-attributes/"
PRODUCT = "/sys/class/dmi/id/product_name"
BOOT = "cloud-init init"
CONFIG = "datasource_list: [GCE]\nusers: []\n"


def files(_ground: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """What the platform shows of itself: path -> (text, mode)."""
    hosts = f"127.0.0.1 localhost\n{config['host']} {config['facts']['name']}\n"
    return {
        PRODUCT: ("Google Compute Engine\n", 0o444),
        "/etc/hosts": (f"{hosts}169.254.169.254 {NAME}\n", 0o644),
    }


class Documents(GcpDocuments):
    """`config` is what a machine was started with."""

    def __init__(self, config: Mapping[str, Any], control: ControlLink) -> None:
        super().__init__(MachineFacts.from_data(config["facts"]))
        keys = "\n".join(f"{user}:{key}" for user, key in config["accounts"].items())
        given = {"user-data": config["user_data"], "ssh-keys": keys, **config["attributes"]}
        self._attributes = {key: value for key, value in given.items() if value}
        self._name = config["facts"]["name"]
        self._zone = config["facts"]["zone"]
        self._control = control

    def respond(self, ask: MetadataRequest) -> MetadataReply:
        """Guest attributes are written here; all else is read."""
        if ask.method != "PUT" or not ask.path.startswith(_GUEST):
            return super().respond(ask)
        allowed = self._attributes.get("enable-guest-attributes", "").upper() == "TRUE"
        if ask.headers.get("metadata-flavor") != "Google" or not allowed:
            return MetadataReply(
                403, b"Guest attributes are not enabled.", "text/html; charset=UTF-8"
            )
        namespace, _, key = ask.path.removeprefix(_GUEST).partition("/")
        value = ask.body.decode()
        self._control.tell("guest_attribute", namespace=namespace, key=key, value=value)
        return MetadataReply(200)

    def _values(self) -> Tree:
        values = super()._values()
        instance, project = values["instance"], values["project"]
        assert isinstance(instance, dict)
        assert isinstance(project, dict)
        instance["hostname"] = f"{self._name}.{self._zone}.c.local.internal"
        instance["attributes"] = Attributes(self._attributes)
        project["attributes"] = Attributes()
        return values
