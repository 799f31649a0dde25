"""Where images of sessions are, and what is removed there."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from forebay_pool.hosts.image_folders import ImageFolders, is_own
from forebay_pool.model.policies import Policy
from forebay_pool.model.types import Flavor
from forebay_pool.store.flavors import seeds
from forebay_service.errors import SettingsError


def test_the_images_of_each_session_are_where_the_policy_says(tmp_path: Path) -> None:
    folders = ImageFolders({"process": tmp_path / "memory", "disk": tmp_path / "disk"}, "sqlite:///a")
    assert Path(folders.of(b"1", "process") or "").parent == tmp_path / "memory"
    assert Path(folders.of(b"1", "disk") or "").parent == tmp_path / "disk"
    assert folders.of(b"1", "none") is None and folders.of(b"1", "node") is None
    assert folders.of(b"1", "process") != folders.of(b"2", "process")


def test_a_session_with_devices_on_several_hosts_has_images_only_where_all_see_them(tmp_path: Path) -> None:
    folders = ImageFolders({"process": tmp_path / "memory", "node": tmp_path / "shared"}, "sqlite:///a")
    assert folders.of(b"1", "process", hosts=2) is None
    assert Path(folders.of(b"1", "node", hosts=2) or "").parent == tmp_path / "shared"


def test_a_flavor_says_where_images_of_its_sessions_are_or_the_pool_does() -> None:
    policy = Policy(images="disk")
    assert policy.images_of(Flavor("dev.1gb", 2**30, ()).images) == "disk"
    assert policy.images_of(Flavor("dev.1gb", 2**30, (), images="none").images) == "none"


def test_flavors_of_a_file_say_where_images_are_and_a_word_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "flavors.toml"
    text = '[[flavors]]\nname = "dev.1gb"\nmemory = "1 GiB"\nequivalents = [{ model = "cpu-dev" }]\nimages = "WORD"\n'
    file.write_text(text.replace("WORD", "disk"))
    assert [flavor.images for flavor in seeds(file)] == ["disk"]
    file.write_text(text.replace("WORD", "memory"))
    with pytest.raises(SettingsError, match=r"flavors\.0\.images: Input should be 'none', 'process', 'node' or 'disk'$"):
        seeds(file)


def test_a_policy_without_a_folder_is_refused_in_one_sentence(pool: Any, tmp_path: Path) -> None:
    body = {"memory_bytes": 2**30, "equivalents": [{"model": "cpu-dev"}]}

    async def scenario() -> None:
        async with pool(image_dirs={"disk": tmp_path / "images"}) as running:
            refused = await running.call("PUT", "api/flavors/new", "operator", body=body | {"images": "node"})
            assert refused.code == 400 and b"The pool has no folder for images 'node'" in refused.body, refused.body
            kept = await running.call("PUT", "api/flavors/new", "operator", body=body | {"images": "disk"})
            row = json.loads(kept.body)
            assert (row["images"], row["images_kept"]) == ("disk", "disk")
            assert running.service.store.flavors()["new"].images == "disk"
            other = json.loads((await running.call("PUT", "api/flavors/other", "operator", body=body)).body)
            assert (other["images"], other["images_kept"]) == (None, "process")

    asyncio.run(scenario())
    file = tmp_path / "flavors.toml"
    file.write_text('[[flavors]]\nname = "dev.1gb"\nmemory = "1 GiB"\nequivalents = [{ model = "cpu-dev" }]\nimages = "node"\n')

    async def start() -> None:
        async with pool(image_dirs={}, flavors_file=file):
            raise AssertionError("it started")

    with pytest.raises(SettingsError, match=r"^flavor dev\.1gb has images = 'node', and image_dirs names no folder for that$"):
        asyncio.run(start())


def test_a_pool_removes_what_it_left_and_nothing_of_another_pool(tmp_path: Path) -> None:
    ours, theirs = (ImageFolders({"process": tmp_path}, database) for database in ("sqlite:///a", "sqlite:///b"))
    kept, gone, other = ours.of(b"1", "process"), ours.of(b"2", "process"), theirs.of(b"2", "process")
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
