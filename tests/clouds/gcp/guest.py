"""The inside of a Compute Engine machine: its metadata server with the data of the API request, and
the boot of its image.

cloud-init uses Google's own data source: it recognises the firmware's name of the machine, reads
name, zone and user data from metadata.google.internal, and publishes the host keys there.
Differences from a real image:

* the address is there from the start, so the DHCP stage is left out;
* accounts of `ssh-keys` are created by our first process, not by Google's guest agent;
* only Ed25519 host keys are generated, and by cloud-init: the guest agent, which regenerates all,
  would publish the same kinds in the same place.
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
    """Return the files by which the platform identifies itself: path -> (text, mode)."""
    hosts = f"127.0.0.1 localhost\n{config['host']} {config['facts']['name']}\n"
    return {
        PRODUCT: ("Google Compute Engine\n", 0o444),
        "/etc/hosts": (f"{hosts}169.254.169.254 {NAME}\n", 0o644),
    }


class Documents(GcpDocuments):
    """`config` is the configuration that the machine was started with."""

    def __init__(self, config: Mapping[str, Any], control: ControlLink) -> None:
        super().__init__(MachineFacts.from_data(config["facts"]))
        keys = "\n".join(f"{user}:{key}" for user, key in config["accounts"].items())
        passed = {"user-data": config["user_data"], "ssh-keys": keys, **config["attributes"]}
        self._attributes = {key: value for key, value in passed.items() if value}
        self._name = config["facts"]["name"]
        self._zone = config["facts"]["zone"]
        self._control = control

    def respond(self, request: MetadataRequest) -> MetadataReply:
        """Guest attributes are written here; everything else is read."""
        if request.method != "PUT" or not request.path.startswith(_GUEST):
            return super().respond(request)
        allowed = self._attributes.get("enable-guest-attributes", "").upper() == "TRUE"
        if request.headers.get("metadata-flavor") != "Google" or not allowed:
            return MetadataReply(
                403, b"Guest attributes are not enabled.", "text/html; charset=UTF-8"
            )
        namespace, _, key = request.path.removeprefix(_GUEST).partition("/")
        value = request.body.decode()
        self._control.report("guest_attribute", namespace=namespace, key=key, value=value)
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
