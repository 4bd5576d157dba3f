"""The files of Lightning's ModelCheckpoint as a part of the job's checkpoints.

They are on the disk of a machine that goes away, and the callback's own state names them: the best
ones, and the last. Needs torch and lightning, Python >= 3.10.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

# What the callback leaves out of its own state.
_ATTRIBUTES = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")
_PATHS = ("best_model_path", "kth_best_model_path", "last_model_path")


def collect_files(trainer: Any, *, ended: bool) -> dict[str, Any]:
    """Return the files of all callbacks, and what these leave out of their state.

    Before the training has `ended`, the files are left out of a callback that writes one at each
    end of an epoch and keeps no other, as Lightning's default does: it writes the next one before
    anybody needs it.
    """
    found = {}
    for callback in local_callbacks(trainer):
        folder = Path(callback.dirpath)
        names = () if _keeps_newest(callback, trainer) and not ended else _names(callback)
        paths = {name: folder / name for name in names}
        found[callback.state_key] = {
            "attributes": {name: getattr(callback, name) for name in _attributes(callback)},
            "links": {
                name: str(path.readlink()) for name, path in paths.items() if path.is_symlink()
            },
            "files": {name: _bytes_of(path) for name, path in paths.items() if _is_file(path)},
        }
    return found


def restore_files(
    trainer: Any, saved: Mapping[str, Any], states: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write the files again, and set the callbacks' `states` to where they are on this machine.

    Lightning restores the states afterwards.
    """
    for callback in local_callbacks(trainer):
        if callback.state_key not in saved:
            continue
        state: Any = states[callback.state_key]
        kept = saved[callback.state_key]
        before, folder = str(state["dirpath"]), Path(callback.dirpath)
        for name in _PATHS:
            state[name] = _moved(state[name], before, folder)
        models = state["best_k_models"]
        state["best_k_models"] = {_moved(path, before, folder): models[path] for path in models}
        state["dirpath"] = callback.dirpath
        for name, value in kept["attributes"].items():
            is_path = name == "_last_checkpoint_saved"
            setattr(callback, name, _moved(value, before, folder) if is_path else value)
        if trainer.is_global_zero:
            _write(folder, kept["files"], kept["links"])


def local_callbacks(trainer: Any) -> list[Any]:
    """Return the ModelCheckpoints that write to a disk, and not to a bucket."""
    return [
        one
        for one in trainer.checkpoint_callbacks
        if isinstance(one, ModelCheckpoint) and "://" not in str(one.dirpath or "")
    ]


def _keeps_newest(callback: Any, trainer: Any) -> bool:
    return (
        callback.monitor is None
        and callback.save_top_k == 1
        and not callback.save_last
        and callback.every_n_epochs == 1
        and callback._should_save_on_train_epoch_end(trainer)  # noqa: SLF001
    )


def _attributes(callback: Any) -> Iterator[str]:
    return (name for name in _ATTRIBUTES if hasattr(callback, name))  # older versions lack some


def _names(callback: Any) -> Iterable[str]:
    """Return the names, in its folder, of the files that the callback knows."""
    paths = [*(getattr(callback, name) for name in _PATHS), *callback.best_k_models]
    folder = os.path.abspath(callback.dirpath)  # noqa: PTH100 - links are not followed
    inside = (os.path.relpath(path, folder) for path in paths if path)
    return dict.fromkeys(name for name in inside if not name.startswith(os.pardir))


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size > 0


def _bytes_of(path: Path) -> Tensor:
    """Return a file's content, which is read when it is copied."""
    return torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)


def _moved(path: str, before: str, folder: Path) -> str:
    """Return the path of a file of the folder `before` in its new folder."""
    if not path or Path(before) not in Path(path).parents:
        return path
    return str(folder / Path(path).relative_to(before))


def _write(folder: Path, files: Mapping[str, Tensor], links: Mapping[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        content.numpy().tofile(part)
        part.replace(path)
    for name, target in links.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)
