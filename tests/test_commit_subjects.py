"""The check of commits' subjects in ``.ci/run``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[1] / ".ci" / "commit_subjects.py"
AT = "2026-11-28T12:00:00+00:00"
BEFORE = "2026-11-01T12:00:00+00:00"


class History:
    """A repository of its own, with a few empty commits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "--quiet")
        self.commit("Begin", BEFORE)

    def git(self, *arguments: str, at: str = AT) -> None:
        names = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
        environment = {**os.environ, **names, "GIT_AUTHOR_DATE": at, "GIT_COMMITTER_DATE": at, "GIT_CONFIG_GLOBAL": os.devnull}
        subprocess.run(["git", "-C", self.folder, *arguments], check=True, capture_output=True, env=environment)

    def commit(self, subject: str, at: str = AT) -> None:
        self.git("commit", "--quiet", "--allow-empty", "--message", subject, at=at)


def checked(folder: Path) -> tuple[int, str]:
    done = subprocess.run([sys.executable, CHECK, folder], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


def test_a_subject_of_72_characters_passes_and_one_more_is_refused(history: History) -> None:
    history.commit("x" * 72)
    assert checked(history.folder)[0] == 0
    history.commit("y" * 73)
    status, said = checked(history.folder)
    assert status == 1 and "73 characters" in said and "y" * 73 in said and "x" * 72 not in said


def test_characters_are_counted_and_not_bytes(history: History) -> None:
    history.commit("가" * 72)
    assert checked(history.folder)[0] == 0


def test_a_subject_that_names_several_changes_is_refused(history: History) -> None:
    history.commit("Add a; remove b")
    assert checked(history.folder)[0] == 1


def test_commits_from_before_the_rule_and_merges_pass(history: History) -> None:
    history.commit("z" * 200, BEFORE)
    history.git("checkout", "--quiet", "-b", "side", "HEAD~1")
    history.commit("Side")
    history.git("merge", "--no-ff", "--quiet", "--message", "m" * 100, "-")
    assert checked(history.folder)[0] == 0


def test_a_shallow_clone_is_checked_and_a_folder_without_history_is_not(history: History, tmp_path: Path) -> None:
    history.commit("w" * 100)
    shallow, bare = tmp_path / "shallow", tmp_path / "bare"
    history.git("clone", "--quiet", "--depth", "1", f"file://{history.folder}", str(shallow))
    assert checked(shallow)[0] == 1
    bare.mkdir()
    status, said = checked(bare)
    assert status == 0 and "not checked" in said
