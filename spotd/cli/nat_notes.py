"""What `spotctl init` says of networks whose machines have no address of the internet."""

from __future__ import annotations

_S3 = (
    "machines of this network reach S3 of their own region, by a gateway endpoint that costs "
    "nothing, and nothing else"
)
_NAT = (
    "what else jobs need (package indexes, registries of images, a store of another region or "
    "cloud) wants a NAT gateway, which AWS bills by the hour and by the byte: it is not made; or "
    "endpoints for it, or an image that has it all"
)
_ANY = (
    "machines of this network reach nothing outside by themselves: the store of checkpoints, "
    "package indexes and registries of images want private endpoints or a NAT, which are not made"
)
_JUMP = (
    "the jump host is yours to start: it needs sshd with AllowTcpForwarding, an account for spotd "
    "with a key of its own, and nothing else of spotd's"
)
SETTINGS = (
    '# jump = "spotd@HOST"                   # the jump host, which is yours to start',
    '# jump_host_key = "ssh-ed25519 AAAA…"   # its /etc/ssh/ssh_host_ed25519_key.pub',
    '# jump_key_credential = "spotd-jump"    # or jump_key_file: our private key for it',
)


def notes(cloud: str, network: str) -> list[str]:
    """One sentence each; none for a public network."""
    if network == "public":
        return []
    found = [_S3, _NAT] if cloud == "aws" else [_ANY]
    return [*found, _JUMP] if network == "jump" else found
