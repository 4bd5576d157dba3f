"""Secrets by reference: a key K is given as `K_file`, `K_env` or `K_credential`, never as K."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spotd.base.log import redactor

FORMS = ("file", "env", "credential")


def read_secret(key: str, refs: Mapping[str, object], environ: Mapping[str, str]) -> str:
    """The secret `key` that `refs` points at; "" when it has no reference.

    From here on the log hides it. A credential is a file in systemd's $CREDENTIALS_DIRECTORY.
    Raises ValueError ("what; fix") for two references, or one that leads nowhere.
    """
    given = {form: str(refs[f"{key}_{form}"]) for form in FORMS if refs.get(f"{key}_{form}")}
    if len(given) > 1:
        names = " and ".join(f"{key}_{form}" for form in given)
        raise ValueError(f"{names} are both given; keep one")
    for form, target in given.items():
        if form == "env":
            value = environ.get(target, "")
            if not value:
                raise ValueError(f"the variable {target} is not set; set it where spotd starts")
        else:
            value = _read_file(target if form == "file" else _credential(target, environ))
        redactor.register(value.strip())
        return value.strip()
    return ""


def _credential(name: str, environ: Mapping[str, str]) -> str:
    folder = environ.get("CREDENTIALS_DIRECTORY", "")
    if not folder:
        raise ValueError(
            f"there is no credential {name!r} without systemd; "
            f"add LoadCredential={name}:/path to the unit, or use the form with _file"
        )
    if "/" in name:
        raise ValueError(f"{name!r} is not a name of a credential; leave out the folder")
    return f"{folder}/{name}"


def _read_file(path: str) -> str:
    try:
        value = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(
            f"cannot read {path}: {error.strerror}; create it, readable only by spotd"
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text; it must contain only the secret") from None
    except ValueError:  # no name of a file holds NUL
        raise ValueError(f"{path!r} is not a path; write the path of a file") from None
    if not value:
        raise ValueError(f"{path} is empty; put the secret into it")
    return value
