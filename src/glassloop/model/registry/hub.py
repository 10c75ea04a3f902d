"""Pulls a repository from Hugging Face through `huggingface_hub`.

`hub_files.py` decides from the names of the files which ones are wanted. `huggingface_hub` downloads them
into a staging folder: it takes from its own cache what another program has downloaded, and skips what an
interrupted pull has completed. Each file is then checked against the hash that the hub states for it, and the
folder moves into our cache as a whole.
"""

from __future__ import annotations

import errno
import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.errors import RegistryError
from glassloop.model.registry.catalog import HubFile
from glassloop.model.registry.disk import (
    check_space,
    delete_tree,
    models_folder,
    size_text,
    staging_folder,
    storage_errors,
    sync,
)
from glassloop.model.registry.hub_files import choose
from glassloop.model.registry.manifest import FileFacts, Manifest
from glassloop.model.registry.names import HubName, slug
from glassloop.model.registry.pull_progress import PullProgress
from glassloop.util.files import sha256_of

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

_SECONDS_TO_ANSWER = 20
_SECONDS_TO_BE_THERE = 5  # where there is another source
_DISK_ERRORS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
}


def pull_hub(name: HubName, show: PullProgress) -> Path:
    """Downloads, checks and stores the files that `choose` picks. The caller holds the lock of the name."""
    show.phase("asking Hugging Face")
    with storage_errors(f"pull {str(name)!r}"), _hub_errors(name), _quiet_client():
        from huggingface_hub import HfApi, hf_hub_download

        info = HfApi().model_info(
            name.repo_id, revision=name.revision, files_metadata=True, timeout=_SECONDS_TO_ANSWER
        )
        siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
        choice = choose(name, list(siblings))
        sizes = {file: siblings[file].size or 0 for file in choice.files}
        total = sum(sizes.values())
        commit = info.sha or name.revision or "main"
        licence = str(getattr(info.card_data, "license", None) or "not stated")
        show.say(f"pulling {name} ({size_text(total)} from Hugging Face, licence: {licence})")

        staging = staging_folder(slug(name))
        staging.mkdir(parents=True, exist_ok=True)
        check_space(str(name), sum(size for file, size in sizes.items() if not (staging / file).is_file()))
        show.phase("downloading", total)
        facts = []
        with show.watching(staging, 0, total):
            # One after the other: `snapshot_download` uses threads, which Ctrl-C cannot interrupt.
            for file in choice.files:
                path = Path(hf_hub_download(name.repo_id, file, revision=commit, local_dir=staging))
                facts.append(_verified(name, path, siblings[file]))
        manifest = Manifest(str(name), choice.kind, commit, licence, choice.main, tuple(facts))
        final = _move_into_place(staging, models_folder(slug(name)), manifest)
    show.say(f"pulled {name} in {show.seconds:.1f} s ({size_text(total)}, {len(facts)} files verified)")
    return manifest.path(final)


def download_copy(copy: HubFile, size: int, folder: Path, show: PullProgress) -> Path:
    """Downloads one file of a repository below a folder and returns its path; the caller verifies it. Raises
    RegistryError if the hub does not answer within seconds."""
    show.phase("asking Hugging Face")
    owner, repo = copy.repo_id.split("/")
    name = HubName(owner, repo, file=copy.path)
    with _hub_errors(name), _quiet_client():
        from huggingface_hub import HfApi, hf_hub_download

        # The client asks six times, over 23 s, before it gives up a download; a request for the listing fails
        # at once where there is no network.
        HfApi().model_info(name.repo_id, timeout=_SECONDS_TO_BE_THERE)
        check_space(str(name), size)
        show.phase("downloading", size)
        folder.mkdir(parents=True, exist_ok=True)
        with show.watching(folder, 0, size):
            return Path(hf_hub_download(name.repo_id, copy.path, local_dir=folder))


def _verified(name: HubName, path: Path, sibling: RepoSibling) -> FileFacts:
    """Returns the facts of a file that has the hash that the hub states for it; removes any other file."""
    size, sha256 = path.stat().st_size, sha256_of(path)
    if sibling.lfs is not None:
        same = sha256 == sibling.lfs.sha256
    elif sibling.blob_id is not None and len(sibling.blob_id) == 40:
        content = path.read_bytes()  # small: git stores it itself
        same = hashlib.sha1(b"blob %d\0" % size + content).hexdigest() == sibling.blob_id
    else:
        same = sibling.size in (None, size)
    if not same:
        path.unlink()
        raise RegistryError(
            f"cannot pull {str(name)!r}: {sibling.rfilename} does not have the checksum that Hugging Face "
            "lists; nothing was stored"
        )
    sync(path)
    return FileFacts(sibling.rfilename, size, sha256)


def _move_into_place(staging: Path, final: Path, manifest: Manifest) -> Path:
    """Renames the staging folder to its place in the cache, with the files of the manifest alone in it."""
    delete_tree(staging / ".cache")  # the client's notes
    wanted = {staging / file.name for file in manifest.files}
    for path in list(staging.rglob("*")):
        if path.is_file() and path not in wanted:  # left by an interrupted pull of another commit
            path.unlink()
    manifest.write(staging)
    sync(staging)
    final.parent.mkdir(parents=True, exist_ok=True)
    replaced = staging.with_name(f"{staging.name}.replaced")
    delete_tree(replaced)
    if final.exists() or final.is_symlink():
        final.rename(replaced)
    staging.rename(final)
    sync(final.parent)
    delete_tree(replaced)
    return final


@contextmanager
def _quiet_client() -> Iterator[None]:
    """Turns the client's own progress bars and warnings off for a while."""
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
    """Turns the client's errors into a RegistryError of one line."""
    from huggingface_hub import errors

    try:
        yield
    except RegistryError:
        raise
    except errors.GatedRepoError as error:
        raise RegistryError(
            f"{name.repo_id} on Hugging Face is gated: accept its terms at "
            f"https://huggingface.co/{name.repo_id} and set HF_TOKEN"
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
    except Exception as error:  # each HTTP library has errors of its own
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise  # for storage_errors
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RegistryError(
            f"cannot pull {str(name)!r}: Hugging Face does not answer as it should ({first[:200]}); "
            "check the network"
        ) from error
