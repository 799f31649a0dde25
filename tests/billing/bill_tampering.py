"""Ways to change an invoice, or the record that it is checked by, each with the fault that it must be named as.

Whoever changes an invoice here makes all that follows from the change right: costs, amounts, keys and sums.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import shutil
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from billed_months import KEY, Lease, Signer
from forebay.service.record import BEGINNING, Record

Document = dict[str, Any]
USER = "ada"
"""Whose invoice lines and record are changed."""


def text_of(amount: Fraction, decimals: int) -> str:
    last = round(amount * 10**decimals)
    whole, rest = divmod(abs(last), 10**decimals)
    return f"{'-' if last < 0 else ''}{whole}.{rest:0{decimals}d}"


def mend_line(line: Document) -> None:
    """Makes cost, amount, key and label those of what the line says that it is of."""
    usage = line["usage"]
    rate = usage["price_nano_per_hour"] + usage["surcharge_nano_per_hour"]
    exact = Fraction(usage["duration_ns"] * rate, 3600 * 10**18)
    line["cost_exact"], line["amount"], line["amount_minor"] = text_of(exact, 18), text_of(exact, 2), round(exact * 100)
    of = (usage["user"], usage["flavor"], "USD", usage["price_version"], usage["surcharge_nano_per_hour"], False, usage["late"])
    line["key"] = hashlib.sha256("\n".join(map(str, of)).encode()).hexdigest()[:16]
    line["label"] = f"{usage['flavor']} for {usage['user']}" + (" (late)" if usage["late"] else "")


def place(line: Document) -> tuple[Any, ...]:
    usage = line["usage"]
    if usage is None:
        return (1,)
    return 0, usage["user"], usage["flavor"], usage["price_version"], usage["surcharge_nano_per_hour"], usage["late"]


def mend(document: Document, ordered: bool = True) -> Document:
    """Makes lines, tax and sums right."""
    usage = [line for line in document["lines"] if line["usage"] is not None]
    (tax,) = [line for line in document["lines"] if line["kind"] == "tax"]
    for line in usage:
        mend_line(line)
    if ordered:
        usage.sort(key=place)
    net = sum(line["amount_minor"] for line in usage)
    due = Fraction(net * document["profile"]["tax_bps"], 10**6)
    tax["cost_exact"], tax["amount"], tax["amount_minor"] = text_of(due, 18), text_of(due, 2), round(due * 100)
    document["lines"] = [*usage, tax]
    total = net + tax["amount_minor"]
    document["net"], document["tax"] = text_of(Fraction(net, 100), 2), tax["amount"]
    document["total"], document["total_minor"] = text_of(Fraction(total, 100), 2), total
    return document


def own(document: Document, chance: random.Random) -> Document:
    """A line of the user's that has some time and costs something."""
    usages = [line for line in document["lines"] if line["usage"] is not None and line["usage"]["user"] == USER]
    found: Document = chance.choice([line for line in usages if line["usage"]["duration_ns"] and line["usage"]["flavor"] != "free"])
    return found


def dropped_line(document: Document, chance: random.Random) -> str:
    document["lines"].remove(own(document, chance))
    mend(document)
    return "no_line"


def added_line(document: Document, chance: random.Random) -> str:
    line = copy.deepcopy(own(document, chance))
    line["usage"] |= {"flavor": "mega", "duration_ns": chance.randrange(1, 10**13)}
    document["lines"].append(line)
    mend(document)
    return "no_receipts"


def added_line_of_another_version(document: Document, chance: random.Random) -> str:
    line = copy.deepcopy(own(document, chance))
    line["usage"] |= {"price_version": 9, "duration_ns": chance.randrange(1, 10**13)}
    document["lines"].append(line)
    mend(document)
    return "price"


def repeated_line(document: Document, chance: random.Random) -> str:
    document["lines"].append(copy.deepcopy(own(document, chance)))
    mend(document)
    return "repeated_line"


def lengthened(document: Document, chance: random.Random) -> str:
    own(document, chance)["usage"]["duration_ns"] += chance.choice([1, chance.randrange(1, 10**6), chance.randrange(1, 10**14)])
    mend(document)
    return "time"


def shortened(document: Document, chance: random.Random) -> str:
    usage = own(document, chance)["usage"]
    usage["duration_ns"] -= chance.randrange(1, usage["duration_ns"] + 1)
    mend(document)
    return "time"


def moved_time(document: Document, chance: random.Random) -> str:
    """From one line to another: the sum is the same."""
    usages = [line["usage"] for line in document["lines"] if line["usage"] is not None and line["usage"]["user"] == USER]
    one, other = chance.sample([usage for usage in usages if usage["duration_ns"]], 2)
    moved = chance.randrange(1, one["duration_ns"] + 1)
    one["duration_ns"] -= moved
    other["duration_ns"] += moved
    mend(document)
    return "time"


def repriced(document: Document, chance: random.Random) -> str:
    own(document, chance)["usage"]["price_nano_per_hour"] += chance.choice([1, -1, chance.randrange(1, 10**9)])
    mend(document)
    return "price"


def repriced_surcharge(document: Document, chance: random.Random) -> str:
    own(document, chance)["usage"]["surcharge_nano_per_hour"] += chance.choice([1, chance.randrange(2, 10**6)]) + 10**4
    mend(document)
    return "price"


def renumbered_version(document: Document, chance: random.Random) -> str:
    own(document, chance)["usage"]["price_version"] += 7
    mend(document)
    return "price"


def reordered(document: Document, chance: random.Random) -> str:
    lines = document["lines"]
    one, other = chance.sample(range(len(lines) - 1), 2)
    lines[one], lines[other] = lines[other], lines[one]
    return "order"


def counted_otherwise(document: Document, chance: random.Random) -> str:
    own(document, chance)["usage"]["leases"] += chance.choice([2, 3, 100])
    return "leases"


def shifted_window(document: Document, chance: random.Random) -> str:
    line = own(document, chance)
    line[chance.choice(["started_at_ns", "ended_at_ns"])] += chance.choice([-1, 1, 10**9])
    return "window"


def another_cost(document: Document, chance: random.Random) -> str:
    line = own(document, chance)
    line["cost_exact"] = text_of(Fraction(line["cost_exact"]) + Fraction(chance.choice([1, -1, 10**9]), 10**18), 18)
    return "cost"


def another_amount(document: Document, chance: random.Random) -> str:
    line = own(document, chance)
    line["amount_minor"] += chance.choice([1, -1])
    line["amount"] = text_of(Fraction(line["amount_minor"], 100), 2)
    return "rounding"


def another_total(document: Document, chance: random.Random) -> str:
    name = chance.choice(["net", "tax", "total", "credit"])
    document[name] = text_of(Fraction(document[name]) + Fraction(chance.choice([1, -1]), 100), 2)
    return "total"


def another_total_in_coins(document: Document, chance: random.Random) -> str:
    document["total_minor"] += chance.choice([1, -1])
    return "total"


def another_tax(document: Document, chance: random.Random) -> str:
    (tax,) = [line for line in document["lines"] if line["kind"] == "tax"]
    exact = Fraction(tax["cost_exact"]) + chance.randrange(1, 100)
    tax["cost_exact"], tax["amount"], tax["amount_minor"] = text_of(exact, 18), text_of(exact, 2), round(exact * 100)
    return "tax"


def another_key(document: Document, chance: random.Random) -> str:
    own(document, chance)["key"] = f"{chance.getrandbits(64):016x}"
    return "key"


def another_label(document: Document, chance: random.Random) -> str:
    own(document, chance)["label"] += "!"
    return "label"


def given_to_another_user(document: Document, chance: random.Random) -> str:
    own(document, chance)["usage"]["user"] = "zoe"
    mend(document)
    return "no_line"


def called_late(document: Document, chance: random.Random) -> str:
    own(document, chance)["usage"]["late"] = True
    mend(document)
    return "late"


OF_INVOICES: tuple[Callable[[Document, random.Random], str], ...] = (
    dropped_line, added_line, added_line_of_another_version, repeated_line, lengthened, shortened, moved_time, repriced,
    repriced_surcharge, renumbered_version, reordered, counted_otherwise, shifted_window, another_cost, another_amount, another_total,
    another_total_in_coins, another_tax, another_key, another_label, given_to_another_user, called_late,
)  # fmt: skip


class TamperedRecord:
    """A copy of a record whose lines are changed and written again, with or without a chain that is right."""

    def __init__(self, record: Record, folder: Path, chance: random.Random) -> None:
        shutil.copytree(record.folder, folder)
        self.record, self.chance = Record(folder), chance
        self.lines = [line.raw.decode().split(" ", 2) for line in self.record.lines()]

    def index(self, kind: str, before_last: bool = False) -> int:
        """Of some line with a receipt of this kind."""
        found = [number for number, (_, _, text) in enumerate(self.lines) if f'"kind":"{kind}"' in text]
        return self.chance.choice(found[:-1] if before_last else found)

    def write(self, chained: bool) -> None:
        previous, text = BEGINNING, b""
        for line in self.lines:
            raw = " ".join([previous if chained else line[0], *line[1:]]).encode()
            previous, text = hashlib.sha256(raw).hexdigest(), text + raw + b"\n"
        paths = sorted(self.record.folder.glob("*.txt"))
        paths[0].write_bytes(text)
        for path in paths[1:]:
            path.unlink()


def drop(record: TamperedRecord) -> str:
    del record.lines[record.chance.randrange(len(record.lines) - 1)]
    record.write(chained=False)
    return "chain"


def drop_with_chain(record: TamperedRecord) -> str:
    del record.lines[record.index("closed")]
    record.write(chained=True)
    return "open"


def drop_lease_with_chain(record: TamperedRecord) -> str:
    """One that is not the last of its session, whole."""
    closed = [json.loads(line[2]) for line in record.lines if '"kind":"closed"' in line[2]]
    followed = [one["lease"] for one, other in pairwise(closed) if one["session"] == other["session"]]
    name = record.chance.choice(followed)
    record.lines = [line for line in record.lines if f'"lease":"{name}"' not in line[2]]
    record.write(chained=True)
    return "missing"


def drop_price_with_chain(record: TamperedRecord) -> str:
    record.lines = [line for line in record.lines if not ('"kind":"price"' in line[2] and '"flavor":"large"' in line[2])]
    record.write(chained=True)
    return "price"


def swap(record: TamperedRecord) -> str:
    one, other = record.chance.sample(range(len(record.lines)), 2)
    record.lines[one], record.lines[other] = record.lines[other], record.lines[one]
    record.write(chained=False)
    return "chain"


def repeat(record: TamperedRecord) -> str:
    line = record.lines[record.chance.randrange(len(record.lines))]
    record.lines.insert(record.chance.randrange(len(record.lines)), line)
    record.write(chained=False)
    return "chain"


def repeat_with_chain(record: TamperedRecord) -> str:
    record.lines.append(record.lines[record.index(record.chance.choice(["opened", "closed"]))])
    record.write(chained=True)
    return "repeated"


def lengthen(record: TamperedRecord) -> str:
    line = record.lines[record.index("closed")]
    receipt = json.loads(line[2])
    line[2] = line[2].replace(f'"duration_ns":{receipt["duration_ns"]}', f'"duration_ns":{receipt["duration_ns"] + 1}')
    record.write(chained=record.chance.random() < 0.5)
    return "signature"


def reprice(record: TamperedRecord) -> str:
    line = record.lines[record.index("price")]
    receipt = json.loads(line[2])
    line[2] = line[2].replace(f'"nano_per_hour":{receipt["nano_per_hour"]}', f'"nano_per_hour":{receipt["nano_per_hour"] + 1}')
    record.write(chained=True)
    return "signature"


def sign_by_another_key(record: TamperedRecord) -> str:
    signed = Signer(KEY[::-1]).lease(Lease(USER, "forged", 1, "small", 1_790_000_000 * 10**9, 0))[1]
    record.lines.append(["", signed.signature, signed.text])
    record.write(chained=True)
    return "signature"


def another_users_receipt(record: TamperedRecord) -> str:
    signed = Signer().lease(Lease("ben", "ben-1", 1, "small", 1_790_000_000 * 10**9, 10**9))[record.chance.randrange(2)]
    record.lines.append(["", signed.signature, signed.text])
    record.write(chained=True)
    return "another_user"


def sign_twice(record: TamperedRecord) -> str:
    """The pool itself signs another end of a lease."""
    receipt = json.loads(record.lines[record.index("closed")][2])
    lease = Lease(USER, receipt["session"], receipt["number"], receipt["flavor"], receipt["started_at_ns"], receipt["duration_ns"] + 1)
    signed = Signer().lease(lease)[1]
    record.lines.append(["", signed.signature, signed.text])
    record.write(chained=True)
    return "contradiction"


def swap_signatures(record: TamperedRecord) -> str:
    one, other = record.index("opened"), record.index("closed")
    record.lines[one][1], record.lines[other][1] = record.lines[other][1], record.lines[one][1]
    record.write(chained=True)
    return "signature"


def scribble(record: TamperedRecord) -> str:
    record.lines.insert(record.chance.randrange(len(record.lines)), ["", "no", ""])
    record.write(chained=True)
    path = sorted(record.record.folder.glob("*.txt"))[0]
    lines = path.read_bytes().splitlines()
    lines[record.chance.randrange(len(lines))] = b"\xff\xfe nothing"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return "unreadable"


OF_RECORDS: tuple[Callable[[TamperedRecord], str], ...] = (
    drop, drop_with_chain, drop_lease_with_chain, drop_price_with_chain, swap, repeat, repeat_with_chain, lengthen, reprice,
    sign_by_another_key, another_users_receipt, sign_twice, swap_signatures, scribble,
)  # fmt: skip
