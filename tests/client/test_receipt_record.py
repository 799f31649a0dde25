"""The record of receipts that a client keeps: whose it is, how it is chained, and what becomes of it where it cannot be written."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from billed_months import NOVEMBER, Lease, Signer
from forebay.service import record as record_module
from forebay.service.receipts import Records
from forebay.service.record import BEGINNING
from forebay.toolkit.invoices.evidence import Evidence
from forebay_wire.message_parts import RECEIPTS_HEADER, Receipts, SignedReceipt

URL = "http://pool.example/services/pool/"


def receipts(*leases: Lease, signer: Signer | None = None) -> Receipts:
    signer = signer or Signer()
    return Receipts(key=signer.key, receipts=tuple(one for lease in leases for one in signer.lease(lease)))


def lease(number: int = 1, user: str = "ada", session: str = "s") -> Lease:
    return Lease(user, session, number, "small", NOVEMBER.start_ns + number * 10**12, 10**11)


def silent(text: str) -> None:
    raise AssertionError(text)


def test_each_line_has_the_hash_of_the_line_before_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    records = Records(tmp_path / "receipts")
    for number in (1, 2):
        records.keep(URL, receipts(lease(number)), silent)
    (record,) = records.all()
    previous = BEGINNING
    lines = list(record.lines())
    for line in lines:
        assert line.parts is not None and line.parts[0] == previous
        previous = hashlib.sha256(line.raw).hexdigest()
    assert [json.loads(line.parts[2])["kind"] for line in lines if line.parts] == ["opened", "closed"] * 2
    assert {path.stat().st_mode & 0o077 for path in (record.folder, *record.folder.iterdir())} == {0}
    assert Evidence(record).findings == []


def test_the_chain_goes_on_in_the_next_months_file_and_a_clock_that_is_set_back_adds_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class At(record_module.datetime):
        month = 11

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls(2026, cls.month, 5, tzinfo=tz)

    monkeypatch.setattr(record_module, "datetime", At)
    records = Records(tmp_path)
    for number, At.month in ((1, 11), (2, 12), (3, 11)):
        records.keep(URL, receipts(lease(number)), silent)
    (record,) = records.all()
    assert sorted(path.name for path in record.folder.glob("*.txt")) == ["2026-11.txt", "2026-12.txt"]
    evidence = Evidence(record)
    assert (evidence.findings, sorted(one.number for one in evidence.closed.values())) == ([], [1, 2, 3])
    (record.folder / "2026-11.txt").unlink()
    assert {one.fault for one in Evidence(record).findings} == {"chain", "missing"}


ADDS = """
import sys
from pathlib import Path
from forebay.service.receipts import Records
from forebay_wire.message_parts import Receipts

records = Records(Path(sys.argv[1]))
for line in sys.stdin:
    records.keep("http://pool/", Receipts.model_validate_json(line), print)
"""


def test_processes_that_add_at_a_time_make_one_chain(tmp_path: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", ADDS, str(tmp_path)], stdin=subprocess.PIPE, text=True) for _ in range(3)]
    for number in range(1, 26):
        for session, process in zip("abc", processes, strict=True):
            assert process.stdin is not None
            process.stdin.write(receipts(lease(number, session=session)).encode() + "\n")
    for process in processes:
        process.communicate(timeout=60)
    (record,) = Records(tmp_path).all()
    evidence = Evidence(record)
    assert (evidence.findings, evidence.lines, len(evidence.closed)) == ([], 150, 75)


def test_a_line_that_was_cut_short_is_named_and_what_comes_after_it_stands_on_its_own(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.keep(URL, receipts(lease(1)), silent)
    (record,) = records.all()
    (path,) = record.folder.glob("*.txt")
    path.write_bytes(path.read_bytes()[:-40])
    records.keep(URL, receipts(lease(2)), silent)
    evidence = Evidence(record)
    assert [one.fault for one in evidence.findings] == ["signature", "open"]
    assert evidence.findings[0].place.endswith(", line 2") and evidence.lines == 4


def test_users_and_pools_have_records_of_their_own_whatever_they_are_called(tmp_path: Path) -> None:
    records = Records(tmp_path / "receipts")
    for user in ("ada", "..", "a/b", "ada@example.org"):
        records.keep(URL, receipts(lease(user=user)), silent)
    told: list[str] = []
    records.keep(URL, receipts(lease(), signer=Signer(bytes(32))), told.append)
    assert len(records.all()) == 5 and not set(tmp_path.iterdir()) - {tmp_path / "receipts"}
    assert told == [f"the pool at {URL} signs receipts with another key than it did first; ask its operator why"]
    assert {Evidence(record).user for record in records.all()} == {"ada", "..", "a/b", "ada@example.org"}


def test_off_keeps_nothing_and_asks_for_nothing(tmp_path: Path) -> None:
    off = Records.configured({"FOREBAY_RECEIPTS": "off", "XDG_STATE_HOME": str(tmp_path)})
    off.keep(URL, receipts(lease()), silent)
    assert (off.headers, off.all(), list(tmp_path.iterdir())) == ({}, [], [])
    named = Records.configured({"FOREBAY_RECEIPTS": str(tmp_path / "mine")})
    assert (named.headers, named.root) == ({RECEIPTS_HEADER: "1"}, tmp_path / "mine")
    assert Records.configured({"XDG_STATE_HOME": str(tmp_path)}).root == tmp_path / "forebay" / "receipts"


def test_a_folder_that_cannot_be_written_and_receipts_that_cannot_be_read_are_told_once_and_stop_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    told: list[str] = []
    broken = Records(file)
    for _ in range(2):
        broken.keep(URL, receipts(lease()), told.append)
    garbled = Receipts(key=Signer().key, receipts=(SignedReceipt(text="{", signature="0" * 128),))
    Records(tmp_path / "other").keep(URL, garbled, told.append)
    assert told[0] == f"receipts cannot be kept in {file} (Not a directory): set FOREBAY_RECEIPTS to another folder, or to `off`"
    assert len(told) == 2 and told[1].startswith(f"the pool at {URL} sent receipts that cannot be read (")
    assert not os.path.isdir(file)
