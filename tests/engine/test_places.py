"""Where the host store's bytes lie: memory that is given back, files that are checked."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from kvalet.core.plan import HostId, Tier
from kvalet.engine.host.folder import OwnFolder
from kvalet.engine.host.memory import Memory, view
from kvalet.engine.host.places import MAX_SLAB_PAGES, HostPlaces, PageFiles, Slabs
from kvalet.errors import EngineError
from tests.engine.contract import hosts

ROOT = bytes(32)
PAGE_BYTES = 1 << 20
SLAB_PAGES = 4  # of that size
SLAB_BYTES = SLAB_PAGES * PAGE_BYTES


@cache
def page(value: int) -> Memory:
    """A page full of it."""
    memory = Memory(PAGE_BYTES)
    view(memory.address, PAGE_BYTES)[:] = bytes([value]) * PAGE_BYTES
    return memory


@pytest.fixture
def places(tmp_path: Path) -> Iterator[HostPlaces]:
    made = HostPlaces(PAGE_BYTES, PageFiles(OwnFolder(tmp_path), ROOT, PAGE_BYTES))
    yield made
    made.close()


def content(places: HostPlaces, host: HostId) -> set[int]:
    return set(view(places.read(host), PAGE_BYTES))


def resident_slabs() -> int:
    """Memory of this process, in whole slabs."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / SLAB_BYTES)


@pytest.mark.parametrize("tier", Tier)
def test_places_hold_what_was_written_last(places: HostPlaces, tier: Tier) -> None:
    near, far, other = hosts([0, 10**6, 5], tier)
    for value, host in ((1, near), (2, far), (3, near)):
        places.write(host, page(value).address)
    assert (content(places, near), content(places, far)) == ({3}, {2})
    places.forget([near, other])
    with pytest.raises(EngineError):
        places.read(near)
    assert content(places, far) == {2}


def test_both_tiers_have_a_place_of_a_number(places: HostPlaces) -> None:
    ram, disk = HostId(3, Tier.RAM), HostId(3, Tier.DISK)
    places.write(ram, page(1).address)
    places.write(disk, page(2).address)
    places.forget([ram])
    assert content(places, disk) == {2}


@pytest.mark.parametrize(
    ("page_bytes", "expected"),
    [(4096, MAX_SLAB_PAGES), (1 << 18, 16), (737_280, 5), (1 << 20, 4), (3 << 20, 1), (1 << 30, 1)],
)
def test_large_pages_share_no_large_slab(page_bytes: int, expected: int) -> None:
    assert Slabs(page_bytes).slab_pages == expected


ASKS_LINUX = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="asks Linux for its memory"
)


@ASKS_LINUX
def test_memory_of_empty_slabs_goes_back_to_the_system(places: HostPlaces) -> None:
    source, before = page(7).address, resident_slabs()
    every = hosts(range(10 * SLAB_PAGES))
    for host in every:
        places.write(host, source)
    assert resident_slabs() - before == 10
    places.forget(every[1::SLAB_PAGES])
    assert resident_slabs() - before == 10, "none is empty"
    places.forget(every[2 * SLAB_PAGES :])
    assert resident_slabs() - before == 2, "6 pages, a quarter more and a slab are two and a half"
    places.forget(every)
    assert resident_slabs() - before == 0


@ASKS_LINUX
def test_what_is_held_stays_close_to_what_is_used(places: HostPlaces) -> None:
    """A quarter more and a slab."""
    source, before = page(7).address, resident_slabs()
    every = hosts(range(40 * SLAB_PAGES))
    for host in every:
        places.write(host, source)
    places.forget(every[16 * SLAB_PAGES :])
    assert resident_slabs() - before == 16 + 4 + 1


def test_no_memory_fails_the_copy_and_nothing_else() -> None:
    with (
        closing(HostPlaces(1 << 50, None)) as places,
        pytest.raises(EngineError, match="no memory"),
    ):
        places.write(HostId(0), page(7).address)


def test_without_a_folder_there_is_no_disk_tier() -> None:
    disk = HostId(0, Tier.DISK)
    with closing(HostPlaces(PAGE_BYTES, None)) as places:
        with pytest.raises(EngineError, match="no folder"):
            places.write(disk, page(1).address)
        with pytest.raises(EngineError, match="no folder"):
            places.read(disk)
        places.forget([disk])


def test_a_damaged_file_is_found_when_it_is_read(places: HostPlaces, tmp_path: Path) -> None:
    for host in hosts([1, 2], Tier.DISK):
        places.write(host, page(5).address)
    (path,) = tmp_path.glob("kvalet-*/page-1.kv")
    with path.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"\6")
    with pytest.raises(EngineError, match="page 0 is damaged"):
        places.read(HostId(1, Tier.DISK))
    os.truncate(path, 99)
    with pytest.raises(EngineError, match="cut short"):
        places.read(HostId(1, Tier.DISK))
    assert content(places, HostId(2, Tier.DISK)) == {5}


def test_files_that_were_exchanged_are_found(places: HostPlaces, tmp_path: Path) -> None:
    """Each is in order, but not where it was written, or not what was written there last."""
    one, two, three = hosts([1, 2, 3], Tier.DISK)
    for value, host in ((1, one), (2, two), (3, three)):
        places.write(host, page(value).address)
    (folder,) = tmp_path.glob("kvalet-*")
    (folder / "page-1.kv").rename(folder / "spare")
    (folder / "page-2.kv").rename(folder / "page-1.kv")
    (folder / "spare").rename(folder / "page-2.kv")
    older = (folder / "page-3.kv").read_bytes()
    places.write(three, page(4).address)
    (folder / "page-3.kv").write_bytes(older)
    for host in (one, two, three):
        with pytest.raises(EngineError, match=f"disk page {host.place} was replaced"):
            places.read(host)
    places.write(one, page(1).address)
    assert content(places, one) == {1}
    (folder / "page-2.kv").unlink()
    (folder / "page-1.kv").rename(folder / "page-2.kv")
    places.forget([two])
    places.write(two, page(2).address)
    assert content(places, two) == {2}


def test_files_go_with_their_places_and_the_folder_with_the_process(tmp_path: Path) -> None:
    places = HostPlaces(PAGE_BYTES, PageFiles(OwnFolder(tmp_path), ROOT, PAGE_BYTES))
    for host in hosts([1, 2], Tier.DISK):
        places.write(host, page(5).address)
    places.forget(hosts([1, 3], Tier.DISK))
    assert [path.name for path in tmp_path.glob("*/*.kv")] == ["page-2.kv"]
    places.close()
    places.close()
    assert not list(tmp_path.iterdir())


FULL_DISK = """
import resource, sys
from pathlib import Path
from kvalet.core.plan import HostId, Tier
from kvalet.errors import EngineError
from tests.engine.test_places import *

folder = Path(sys.argv[1])
places = HostPlaces(PAGE_BYTES, PageFiles(OwnFolder(folder), ROOT, PAGE_BYTES))
disk = HostId(1, Tier.DISK)
places.write(disk, page(1).address)
resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE_BYTES // 2, resource.RLIM_INFINITY))
for host in (disk, HostId(2, Tier.DISK)):
    try:
        places.write(host, page(2).address)
    except EngineError as error:
        print(error)
print(content(places, disk), sorted(path.name for path in folder.glob("*/*")))
places.write(HostId(1), page(1).address)
places.forget([disk])
places.close()
print(list(folder.iterdir()))
"""


def test_a_full_disk_fails_the_copy_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the end of the disk: writing stops midway in a
    page."""
    run = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == [
        "cannot write page-1.kv: File too large",
        "cannot write page-2.kv: File too large",
        "{1} ['lock', 'page-1.kv']",
        "[]",
    ], done.stderr
