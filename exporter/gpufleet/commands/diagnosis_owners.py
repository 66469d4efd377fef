"""The doctor's look at who could say who holds the GPUs, and at what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.commands.diagnosis import Check, Status
from gpufleet.commands.owning import KUBELET_SOCKET, SLURM_DIRECTORY

if TYPE_CHECKING:
    from gpufleet.settings import Settings

Step = tuple[str, Callable[[], Check]]


def owner_steps(settings: Settings, kubelet: Path = KUBELET_SOCKET, slurm: Path = SLURM_DIRECTORY) -> Iterator[Step]:
    """(subject, check) for each source of owners that is configured or found, and for the files."""
    socket = settings.podresources_socket
    found = socket is not None or kubelet.parent.is_dir()
    directories = [("slurm", settings.slurm_dir or (slurm if slurm.is_dir() else None))]
    directories += [("slurm dcgm", settings.slurm_dcgm_dir), ("slurm jobstats", settings.slurm_jobstats_dir)]
    named = [(subject, directory) for subject, directory in directories if directory is not None]
    if found:
        yield "kubelet", partial(pod_resources, socket or kubelet)
    for subject, directory in named:
        yield subject, partial(job_files, directory)
    if not found and not named:
        yield "owners", lambda: nobody(processes=settings.owners_processes)
    if settings.owners_config_file is not None:
        yield "owners configuration", partial(owners_file, settings.owners_config_file)
    if settings.prices_file is not None:
        yield "price book", partial(price_book, settings.prices_file)
    else:
        yield "price book", no_prices


def pod_resources(socket: Path) -> Check:
    """Whether the kubelet says which container has which device."""
    from gpufleet.sources.podresources.client import PodResources, PodResourcesError

    try:
        containers = PodResources(socket, timeout=3.0).list()
    except PodResourcesError as error:
        return Check(
            "kubelet",
            Status.MISSING,
            str(error),
            "mount the directory of the socket (not the socket: the kubelet replaces it) and run as root, or leave "
            "--podresources.socket out",
        )
    pods = {(each.namespace, each.pod) for each in containers}
    return Check("kubelet", Status.OK, f"it lists {len(pods)} pod{'' if len(pods) == 1 else 's'} with devices")


def job_files(directory: Path) -> Check:
    """Whether a directory of job files can be read."""
    try:
        count = sum(1 for _ in directory.iterdir())
    except OSError as error:
        return Check(
            "slurm",
            Status.MISSING,
            f"{directory}: {error.strerror}",
            "create it where the prolog writes (deploy/slurm), let this user read it, or leave the flag out",
        )
    return Check("slurm", Status.OK, f"{directory} has {count} file{'' if count == 1 else 's'}")


def nobody(*, processes: bool) -> Check:
    """Nobody hands GPUs out here."""
    rest = "holders are those who have processes on GPUs" if processes else "no holder is shown"
    return Check("owners", Status.NOTE, f"neither a kubelet nor files of Slurm are here: {rest}")


def owners_file(file: Path) -> Check:
    """Whether the owners' configuration is accepted."""
    from gpufleet.owners.config import OwnersConfigError, read_owners_config

    try:
        config = read_owners_config(file)
    except OwnersConfigError as error:
        return Check("owners configuration", Status.MISSING, str(error), "correct it there")
    presets, labels = len(config.before) + len(config.after), len(config.labels)
    said = f"{presets} preset{'' if presets == 1 else 's'}, {labels} label{'' if labels == 1 else 's'}"
    return Check("owners configuration", Status.OK, said)


def price_book(file: Path) -> Check:
    """Whether the price book is accepted."""
    from gpufleet.cost.prices import PriceBook, PriceBookError

    try:
        book = PriceBook.load(file)
    except PriceBookError as error:
        return Check("price book", Status.MISSING, str(error), "correct it there; gpufleet prices check tries it")
    if book.warnings:
        return Check("price book", Status.NOTE, "; ".join(book.warnings))
    return Check("price book", Status.OK, f"{len(book.rules)} rule{'' if len(book.rules) == 1 else 's'}")


def no_prices() -> Check:
    """GPU time is metered without money."""
    return Check("price book", Status.NOTE, "none is given (--prices.file): GPU time is metered, cost is not")
