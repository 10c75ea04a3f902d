"""Pulling a repository from Hugging Face through `huggingface_hub`.

`hub_files.py` decides from the names of the files what is wanted. Each file is checked against what the hub
says of it (SHA-256, or git's own hash) before it counts, and the folder appears in the cache once whole.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from glassloop.errors import RegistryError
from glassloop.model.registry.hub_files import choose
from glassloop.model.registry.manifest import MANIFEST, FileFacts, Manifest
from glassloop.model.registry.names import HubName, slug
from glassloop.model.registry.progress import PullProgress
from glassloop.model.registry.store import (
    check_space,
    delete_tree,
    models_folder,
    sha256_of,
    size_text,
    staging_folder,
    storage_errors,
    sync,
)

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

_SECONDS_TO_ANSWER = 20


def pull_hub(name: HubName, show: PullProgress) -> Path:
    """Downloads, checks and stores what `choose` takes. The caller holds the lock of the name."""
    staging = staging_folder(slug(name))
    show.phase("asking Hugging Face")
    with _hub_errors(name), _quiet_client():
        from huggingface_hub import HfApi

        info = HfApi().model_info(
            name.repo_id, revision=name.revision, files_metadata=True, timeout=_SECONDS_TO_ANSWER
        )
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    choice = choose(name, list(siblings))
    wanted = [siblings[file] for file in choice.files]
    total = sum(sibling.size or 0 for sibling in wanted)
    commit = info.sha or name.revision or "main"
    licence = str(getattr(info.card_data, "license", None) or "not stated")
    show.say(f"pulling {name} ({size_text(total)} from Hugging Face, licence: {licence})")
    try:
        with storage_errors(f"pull {str(name)!r}"):
            ready = staging / "ready"
            facts = _download(name, commit, wanted, ready, show)
            main = PurePosixPath(choice.main).name
            manifest = Manifest(str(name), choice.kind, commit, licence, main, facts)
            manifest.write(ready)
            final = _move_into_place(ready, models_folder(slug(name)))
    except BaseException:
        _discard(staging)
        raise
    show.say(f"pulled {name} in {show.seconds:.1f} s ({size_text(total)}, {len(facts)} files verified)")
    return manifest.path(final)


def _download(
    name: HubName, commit: str, wanted: Sequence[RepoSibling], ready: Path, show: PullProgress
) -> tuple[FileFacts, ...]:
    """Every wanted file in `ready`, verified; what an interrupted pull left there is not asked for again."""
    from huggingface_hub import hf_hub_download

    _discard(ready.parent)
    ready.mkdir(parents=True, exist_ok=True)
    # Files are stored side by side, also one that was picked from a subfolder of the repository.
    target = {sibling.rfilename: ready / PurePosixPath(sibling.rfilename).name for sibling in wanted}
    for stray in set(ready.iterdir()) - set(target.values()):
        delete_tree(stray)
    digest = {sibling.rfilename: _digest(target[sibling.rfilename], sibling) for sibling in wanted}
    check_space(str(name), sum(sibling.size or 0 for sibling in wanted if not digest[sibling.rfilename]))
    show.phase("downloading", sum(sibling.size or 0 for sibling in wanted))
    done = 0
    for sibling in wanted:
        file, size = sibling.rfilename, sibling.size or 0
        if not digest[file]:
            incoming = Path(tempfile.mkdtemp(prefix="incoming-", dir=ready.parent))
            with _hub_errors(name), _quiet_client(), show.watching(incoming, done, size):
                got = Path(hf_hub_download(name.repo_id, file, revision=commit, local_dir=incoming))
            digest[file] = _digest(got, sibling)
            if not digest[file]:
                raise RegistryError(
                    f"cannot pull {str(name)!r}: {file} is not what Hugging Face says it is; "
                    "nothing was stored"
                )
            sync(got)
            got.replace(target[file])
            delete_tree(incoming)
        done += size
    return tuple(FileFacts(path.name, path.stat().st_size, digest[file]) for file, path in target.items())


def _move_into_place(ready: Path, final: Path) -> Path:
    sync(ready)
    final.parent.mkdir(parents=True, exist_ok=True)
    if final.exists() or final.is_symlink():
        final.rename(ready.parent / "replaced")
    ready.rename(final)
    sync(final.parent)
    delete_tree(ready.parent)
    return final


def _discard(staging: Path) -> None:
    """Removes all but the verified files of an interrupted pull."""
    ready = staging / "ready"
    (ready / MANIFEST).unlink(missing_ok=True)
    try:
        children = list(staging.iterdir())
    except OSError:
        return
    for child in children:
        if child != ready:
            delete_tree(child)
    if not ready.is_dir() or not any(ready.iterdir()):
        delete_tree(staging)


def _digest(path: Path, sibling: RepoSibling) -> str:
    """The SHA-256 of a file that is what the hub says of it; "" for one that is not, or is not there."""
    if not path.is_file() or (sibling.size is not None and path.stat().st_size != sibling.size):
        return ""
    sha256 = sha256_of(path)
    if sibling.lfs is not None:
        return sha256 if sha256 == sibling.lfs.sha256 else ""
    if sibling.blob_id is not None and len(sibling.blob_id) == 40:
        content = path.read_bytes()  # small: what is large is in LFS
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return sha256 if blob == sibling.blob_id else ""
    return sha256


@contextmanager
def _quiet_client() -> Iterator[None]:
    """The bar is ours, and so are the errors."""
    from huggingface_hub.utils.logging import get_verbosity, set_verbosity
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    verbosity, bars_were_off = get_verbosity(), are_progress_bars_disabled()
    set_verbosity(logging.ERROR)
    if not bars_were_off:
        disable_progress_bars()
    try:
        yield
    finally:
        set_verbosity(verbosity)
        if not bars_were_off:
            enable_progress_bars()


@contextmanager
def _hub_errors(name: HubName) -> Iterator[None]:
    from huggingface_hub import errors

    page = f"https://huggingface.co/{name.repo_id}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise RegistryError(
            f"{name.repo_id} on Hugging Face is gated: accept its terms at {page} and set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise RegistryError(
            f"{name.repo_id!r} is neither a path here nor a repository on Hugging Face that may be read "
            "(for a private one, set HF_TOKEN)"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise RegistryError(f"{name.repo_id} on Hugging Face has no revision {name.revision!r}") from error
    except errors.OfflineModeIsEnabled as error:
        raise RegistryError(f"cannot pull {str(name)!r}: HF_HUB_OFFLINE forbids the network") from error
    except Exception as error:
        # Whichever HTTP library the client uses has errors of its own; a full disk is for storage_errors.
        if isinstance(error, OSError) and error.errno in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EACCES,
            errno.EROFS,
        ):
            raise
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RegistryError(
            f"cannot pull {str(name)!r}: Hugging Face does not answer as it should ({first[:200]}); "
            "check the network"
        ) from error
