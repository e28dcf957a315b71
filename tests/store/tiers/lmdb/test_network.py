"""Where LMDB's locks do not work."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.tiers.lmdb.file import network_filesystem


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
