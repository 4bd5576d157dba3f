"""The inside of an Azure machine: its metadata services with the data of the Resource Manager
request, and the boot of its image.

cloud-init uses Azure's own data source, by the tag of the chassis. The custom data comes in
ovf-env.xml, as on Azure; the account's name and key are in the instance document; and the machine
reports ready to the fabric, without which no create succeeds. Differences from a real machine:

* ovf-env.xml is in the data source's seed folder, not on a DVD;
* the DHCP client is a program that returns the only lease; as address of the fabric (168.63.129.16
  on Azure) it names the metadata service, which answers both;
* firmware and network card are described in files, because /sys is not the machine's own.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from html import escape
from ipaddress import IPv4Interface
from typing import Any

from providers.local.azure_documents import AzureDocuments
from providers.local.documents import MachineFacts, MetadataReply, MetadataRequest, json_reply
from providers.local.link import ControlLink

SEED = "/var/lib/cloud/seed/azure/ovf-env.xml"
CHASSIS = "7783-7084-3265-9085-8269-3286-77"  # of every machine of Azure
CONFIG = """\
datasource_list: [Azure]
users: [default]
"""
# Of system_info: what an image has ready for the account, whatever its name will be.
DEFAULT_USER = {"lock_passwd": True, "shell": "/bin/bash", "sudo": ["ALL=(ALL) NOPASSWD:ALL"]}
_OVF = """\
<?xml version="1.0" encoding="utf-8"?>
<ns0:Environment xmlns:ns0="http://schemas.dmtf.org/ovf/environment/1"
 xmlns:ns1="http://schemas.microsoft.com/windowsazure">
 <ns1:ProvisioningSection>
  <ns1:Version>1.0</ns1:Version>
  <ns1:LinuxProvisioningConfigurationSet>
   <ns1:ConfigurationSetType>LinuxProvisioningConfiguration</ns1:ConfigurationSetType>
   <ns1:HostName>{name}</ns1:HostName>
   <ns1:UserName>{user}</ns1:UserName>
   <ns1:DisableSshPasswordAuthentication>true</ns1:DisableSshPasswordAuthentication>
   <ns1:CustomData>{custom}</ns1:CustomData>
  </ns1:LinuxProvisioningConfigurationSet>
 </ns1:ProvisioningSection>
 <ns1:PlatformSettingsSection>
  <ns1:Version>1.0</ns1:Version>
  <ns1:PlatformSettings>
   <ns1:ProvisionGuestAgent>true</ns1:ProvisionGuestAgent>
  </ns1:PlatformSettings>
 </ns1:PlatformSettingsSection>
</ns0:Environment>
"""
_GOAL = """\
<?xml version="1.0" encoding="utf-8"?>
<GoalState>
 <Incarnation>1</Incarnation>
 <Container>
  <ContainerId>{ident}</ContainerId>
  <RoleInstanceList><RoleInstance><InstanceId>{name}</InstanceId></RoleInstance></RoleInstanceList>
 </Container>
</GoalState>
"""
# The card loses the address that it was born with, as one has none before DHCP; cloud-init uses the
# lease until the end of its first stage. The daemon of the client is what it kills.
_DHCLIENT = """\
ip addr flush dev eth0
cat > /run/dhclient.lease <<END
lease {{
  interface "eth0";
  fixed-address {host};
  option subnet-mask {mask};
  option routers {gateway};
  option unknown-245 a9:fe:a9:fe;
}}
END
setsid sh -c 'echo $$ > /run/dhclient.pid; exec sleep 60' >/dev/null 2>&1 </dev/null &
"""
_BOOT = """\
cloud-init init --local
ip addr replace {host}/{prefix} dev eth0
ip link set eth0 up
ip route replace default via {gateway}
cloud-init init"""


def boot(ground: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Run the stages until accounts and keys exist, and bring up the network in between."""
    return _BOOT.format(host=config["host"], prefix=ground["prefix"], gateway=ground["gateway"])


def files(ground: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Return the files by which the platform identifies itself: path -> (text, mode)."""
    host = config["host"]
    name = config["attributes"].get("host_name") or config["facts"]["name"]
    user = next(iter(config["accounts"]), "azureuser")
    custom = base64.b64encode(config["user_data"].encode()).decode()
    mask = IPv4Interface(f"{host}/{ground['prefix']}").netmask
    lease = _DHCLIENT.format(host=host, mask=mask, gateway=ground["gateway"])
    card = {"address": _mac(host), "carrier": "1", "operstate": "up", "name_assign_type": "4"}
    return {
        SEED: (_OVF.format(name=escape(name), user=escape(user), custom=custom), 0o600),
        "/sys/class/dmi/id/chassis_asset_tag": (f"{CHASSIS}\n", 0o444),
        "/sys/class/dmi/id/product_uuid": (f"{_ident(config)}\n", 0o400),
        "/usr/local/sbin/dhclient": (f"#!/bin/sh\n{lease}", 0o755),
        **{f"/sys/class/net/eth0/{key}": (f"{value}\n", 0o444) for key, value in card.items()},
    }


def _mac(host: str) -> str:
    return "00:0d:3a:" + ":".join(f"{int(part):02x}" for part in host.split(".")[1:])


def _ident(config: Mapping[str, Any]) -> str:
    """Return the vmId: the machine's number in the firmware."""
    return str(config["attributes"].get("vm_id") or uuid.uuid5(uuid.NAMESPACE_DNS, config["id"]))


class Documents(AzureDocuments):
    """`config` is the configuration that the machine was started with."""

    def __init__(self, config: Mapping[str, Any], control: ControlLink) -> None:
        acknowledged = lambda name: control.report("acknowledged", notice_id=name)  # noqa: E731
        super().__init__(MachineFacts.from_data(config["facts"]), acknowledged)
        self._config = config
        self._control = control

    def respond(self, request: MetadataRequest) -> MetadataReply:
        """The fabric's requests come without the header, and are not counted."""
        if request.path.rstrip("/") != "/machine":
            return super().respond(request)
        if request.query.get("comp") == "goalstate":
            name = escape(self._config["facts"]["name"])
            goal = _GOAL.format(ident=_ident(self._config), name=name)
            return MetadataReply(200, goal.encode(), "text/xml; charset=utf-8")
        if b"<State>Ready</State>" in request.body:
            self._control.report("ready")
        return MetadataReply(200)

    def _route(self, request: MetadataRequest) -> MetadataReply:
        if request.method == "GET" and request.path.rstrip("/") == "/metadata/instance":
            return json_reply(self._instance())
        return super()._route(request)

    def _instance(self) -> dict[str, object]:
        config = self._config
        host, name = config["host"], config["facts"]["name"]
        user = next(iter(config["accounts"]), "azureuser")
        keys = [
            {"path": f"/home/{user}/.ssh/authorized_keys", "keyData": key}
            for key in config["accounts"].values()
        ]
        profile = {
            "adminUsername": user,
            "computerName": config["attributes"].get("host_name") or name,
            "disablePasswordAuthentication": "true",
        }
        compute = {
            **self._compute(),
            "vmId": _ident(config),
            "osProfile": profile,
            "publicKeys": keys,
            "customData": "",  # never: it is in ovf-env.xml alone
            "userData": "",
        }
        address = {"privateIpAddress": host, "publicIpAddress": ""}
        card = {"ipv4": {"ipAddress": [address], "subnet": []}, "ipv6": {"ipAddress": []}}
        mac = _mac(host).replace(":", "").upper()
        return {"compute": compute, "network": {"interface": [{**card, "macAddress": mac}]}}


def system_info() -> str:
    """For cloud.cfg, whose YAML may be JSON."""
    return json.dumps({"distro": "debian", "default_user": DEFAULT_USER})
