"""Where LMDB's locks do not work."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.residency.eviction import never_held
from store.tiers.lmdb.file import discard, network_filesystem
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import record_of
from tests.store.tiers.lmdb.files import MIB, NOW


@pytest.mark.parametrize(
    ("where", "kind"), [("share", "nfs4"), ("share/with blank", "fuse.sshfs"), ("local", None)]
)
def test_e20_a_network_file_system_is_told(tmp_path: Path, where: str, kind: str | None) -> None:
    escaped = str(tmp_path / "share/with blank").replace(" ", "\\040")
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path}/share nfs4 rw 0 0\nhost:/y {escaped} fuse.sshfs rw 0 0\n"
    )
    assert network_filesystem(tmp_path / where / "store", mounts) == kind
    assert network_filesystem(tmp_path, tmp_path / "nowhere") is None


def test_the_nearest_mount_counts_wherever_it_is_listed_and_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "share" / "disk").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "share")
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/sdb {tmp_path}/share/disk ext4 rw 0 0\nserver:/x {tmp_path}/share nfs4 rw 0 0\n/dev/sda / ext4 rw 0 0\n"
    )
    assert network_filesystem(tmp_path / "share" / "disk" / "store", mounts) is None
    assert network_filesystem(tmp_path / "link" / "store", mounts) == "nfs4"


def test_a_link_is_put_aside_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    discard(link)
    assert not link.is_symlink() and (tmp_path / "elsewhere" / "kept").exists()


def test_mounts_are_read_whatever_they_are_called(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_bytes(
        b"/dev/sdb /media/\xff\xfe vfat rw 0 0\nserver:/x " + bytes(tmp_path) + b" nfs4 rw 0 0\n"
    )
    assert network_filesystem(tmp_path / "store", mounts) == "nfs4"


def test_e20_a_store_on_a_network_file_system_works_and_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.tiers.lmdb.opener.network_filesystem", lambda _: "nfs4")
    tier = LmdbTier(path, MIB)
    tier.put(record_of(1), NOW, never_held)
    assert tier.problems() == ("store lies on a network file system (nfs4), which LMDB cannot use safely",)
    tier.close()
