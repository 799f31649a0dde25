"""Where images of sessions are, and what is removed there."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forebay_pool.hosts.image_folders import ImageFolders, is_own
from forebay_pool.model.policies import ImagePolicies


def session(flavor: str, secret: bytes = b"secret") -> Any:
    return SimpleNamespace(flavor=flavor, secret=secret)


def test_each_flavor_has_its_images_where_its_policy_says(tmp_path: Path) -> None:
    policies = ImagePolicies("process", {"large": "disk", "small": "none", "shared": "node"})
    folders = ImageFolders({"process": tmp_path / "memory", "disk": tmp_path / "disk"}, policies, "sqlite:///a")
    assert Path(folders.of(session("dev")) or "").parent == tmp_path / "memory"
    assert Path(folders.of(session("large")) or "").parent == tmp_path / "disk"
    assert folders.of(session("small")) is None and folders.of(session("shared")) is None
    assert folders.of(session("dev")) != folders.of(session("dev", b"another"))


def test_a_pool_removes_what_it_left_and_nothing_of_another_pool(tmp_path: Path) -> None:
    ours, theirs = (ImageFolders({"process": tmp_path}, ImagePolicies(), database) for database in ("sqlite:///a", "sqlite:///b"))
    kept, gone, other = ours.of(session("dev", b"1")), ours.of(session("dev", b"2")), theirs.of(session("dev", b"2"))
    for folder in (kept, gone, other):
        Path(folder or "").mkdir()
        (Path(folder or "") / "1").write_bytes(b"image")
    ours.remove_others([b"1"])
    assert sorted(map(str, tmp_path.iterdir())) == sorted([str(kept), str(other)])


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: Any) -> None:
    assert is_own(tmp_path / "new") and (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "new")
    assert not is_own(tmp_path / "link")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert not is_own(tmp_path / "new")
