"""Runs the test files of PyTorch or of JAX on the virtual device and on the CPU side by side; ``python tests/public_suites.py --help``.

The files are no part of this repository: name the folder of tests in the framework's public sources. What the CPU passes is the base: a
test of a device type counts where its twin passes on the CPU, another one where it passes without a device. Tests that only a real GPU or
several devices can pass skip themselves. A test that ends its process counts as failed, and the others go on in a new process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

FLAVOR = "dev.4gb"
TEST_SECONDS_MAX = 120
STUCK_SECONDS_MAX = 600
"""A process that tells of no test for so long is ended with the test that it is at."""
PLUGIN = "public_suites_plugin"
FORMER_NAMES = '''
import contextlib
from pathlib import Path
import pytest
from torch.testing._internal import common_cuda, common_mkldnn, common_nn
from torch.testing._internal.opinfo.core import OpInfo

def put(module, name, value):
    """What tests of another release import from PyTorch's testing library, where this one has it no more."""
    if not hasattr(module, name):
        setattr(module, name, value)

put(common_cuda, "tf32_is_not_fp32", lambda: False)
put(common_mkldnn, "bf32_on_and_off", lambda *precision: lambda test: test)
put(common_nn, "new_module_tests", [])

def forget_former_operators():
    """functorch's tests name operators that are to be skipped, and stop where this release has one of them no more."""
    import common_utils
    entries = [entry for name, database in vars(common_utils).items() if name.endswith("op_db") for entry in database]
    here = {(entry.name, entry.variant_test_name) for entry in entries}
    for name in ("skipOps", "opsToleranceOverride"):
        def apply(case, test, named, original=getattr(common_utils, name)):
            return original(case, test, [one for one in named if tuple(one[:2]) in here])
        setattr(common_utils, name, apply)

def give_pairs_of_samples():
    """Samples came with one context, of a subtest; now a second one stands beside it, of what fails by itself."""
    original = OpInfo._sample_callback_fn

    @contextlib.contextmanager
    def both(contexts, case):
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context(case))
            yield

    def made(self, use_subtests, device):
        make = original(self, use_subtests, device)

        def pair(sample, index):
            sample, *contexts = make(sample, index)
            return sample, lambda case: both(contexts, case)

        return pair if use_subtests else make

    OpInfo._sample_callback_fn = made

def pytest_sessionstart(session):
    files = [name for name in session.config.args if "functorch" in name]
    if files:
        forget_former_operators()
    if any("in sample_inputs_itr" in text and "skip_xfail_ctx" not in text for text in map(Path.read_text, map(Path, files))):
        give_pairs_of_samples()
'''
"""Lets tests of an earlier release of PyTorch run with this one."""
SAME_CASES = '''
from jax._src import test_util
test_util.device_under_test = lambda: "cpu"
'''
"""JAX's tests draw their cases from the types that a kind of device has. Told that it is a processor, as it is, they draw the same on
both."""
TELLS = '''
import json, os, re, zlib

DONE = set(json.loads(open(os.environ["SUITE_DONE"]).read()))
TOLD = open(os.environ["SUITE_TOLD"], "a", buffering=1)

def tell(**said):
    TOLD.write(json.dumps(said) + "\\n")

def in_sample(nodeid):
    """One in so many, by a checksum of the name without the kind of device, so that a test and its twin are both in it."""
    return zlib.crc32(re.sub("cpu|cuda", "", nodeid.lower()).encode()) % int(os.environ["SUITE_ONE_IN"]) == 0

def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.nodeid not in DONE and in_sample(item.nodeid)]

def pytest_runtest_logstart(nodeid):
    tell(begins=nodeid)

def pytest_runtest_logreport(report):
    bad = report.outcome == "failed"
    if report.when == "call" or bad or report.outcome == "skipped":
        expected = hasattr(report, "wasxfail")
        outcome = "xfailed" if expected and report.outcome == "skipped" else report.outcome
        tell(ends=report.nodeid, outcome=outcome, text=str(report.longrepr)[-3000:] if bad or report.outcome == "skipped" else "")
'''
"""Has pytest tell of each test, and leave out those that were told of."""


@dataclass(frozen=True)
class Framework:
    """Whose tests they are."""

    files: tuple[str, ...]
    not_counted: dict[str, str]
    """Tests that say nothing of the virtual device, by a pattern of their names, and why."""
    preparation: str
    """In Python, for pytest's plug-in."""
    on_cpu: dict[str, str]
    on_device: dict[str, str]
    """Variables of the environment."""

    def counts(self, test: str) -> bool:
        return not any(re.search(pattern, test) for pattern in self.not_counted)


FRAMEWORKS = {
    "torch": Framework(
        files=(
            *("test_nn.py", "test_torch.py", "test_autograd.py", "test_optim.py", "test_cuda.py", "test_indexing.py"),
            *("nn", "optim", "distributions", "functorch/test_eager_transforms.py", "functorch/test_vmap.py", "functorch/test_ops.py"),
        ),
        not_counted={
            r"test_(T|t)ransformer(E|e)ncoder(L|l)ayer": "strided nested tensors, which are refused",
            r"nondeterministic_alert": "asks for errors of CUDA's own kernels; those of the development device's CPU are deterministic",
            r"upsamplingBiMode2d_nonsupported_dtypes": "asks that kernels for bytes are missing, as they are in CUDA",
            r"(GRU|LSTM)_grad_and_gradgrad": "asks that cuDNN cannot differentiate twice; here it is differentiated",
            r"lazy_clone|_cow_": "PyTorch's private storages that are copied on write: a tensor's memory is a worker's",
            r"index_put_accumulate_large_tensor": "needs more memory than the flavor has",
        },
        preparation=FORMER_NAMES,
        on_cpu={"PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu"},
        on_device={"PYTORCH_TESTING_DEVICE_ONLY_FOR": "cuda"},
    ),
    "jax": Framework(
        files=("api_test.py", "lax_test.py", "lax_numpy_test.py", "random_test.py", "linalg_test.py"),
        not_counted={
            r"test_trivial_computations$|AvoidsCopies|test_array_impl_attributes": "asks at which address of this machine an array lies",
        },
        preparation=SAME_CASES,
        on_cpu={"JAX_PLATFORMS": "cpu"},
        on_device={},
    ),
}


@dataclass
class Outcomes:
    """How the tests of one file ended on one kind of device, by name."""

    ended: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """Why a test failed or was skipped."""

    def hear(self, lines: Iterator[str]) -> str | None:
        """Takes what a process told; the test that it was at when it ended, if any."""
        current: str | None = None
        for said in map(json.loads, lines):
            if "begins" in said:
                current = said["begins"]
            else:
                current = None
                worse = self.ended.get(said["ends"]) == "failed"
                if not worse:
                    self.ended[said["ends"]], self.texts[said["ends"]] = said["outcome"], said["text"]
        return current

    def crashed(self, test: str, status: int | None) -> None:
        self.ended[test], self.texts[test] = "failed", f"the process ended with status {status}"


def twin(test: str) -> str:
    """The name of the test on the CPU."""
    return re.sub(r"_cuda(?=_|$|\[)", "_cpu", re.sub(r"CUDA(?=::)", "CPU", test))


@dataclass(frozen=True)
class Compared:
    """A file's tests: those that pass on the CPU, and of them those that pass on the device, that fail there, and that skip themselves."""

    file: str
    base: int
    passed: int
    skipped: int
    failed: dict[str, str]
    alone: Counter[str]
    """How those ended that have no twin that passes on the CPU."""

    @property
    def rate(self) -> float:
        ran = self.passed + len(self.failed)
        return 100 * self.passed / ran if ran else 100.0


@dataclass(frozen=True)
class Suite:
    """Tests of a framework, and which of them are asked for."""

    framework: Framework
    tests: Path
    only: str
    one_in: int

    def environment(self, device: bool, folder: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "FOREBAY_URL"}
        paths = os.pathsep.join([str(folder), str(self.tests), str(self.tests / "functorch")])
        kind = {"FOREBAY_URL": "local", "FOREBAY_FLAVOR": FLAVOR} | self.framework.on_device if device else self.framework.on_cpu
        told = {"SUITE_DONE": str(folder / "done.json"), "SUITE_TOLD": str(folder / "told.jsonl"), "SUITE_ONE_IN": str(self.one_in)}
        return kept | kind | told | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}

    def run(self, file: str, device: bool) -> Outcomes:
        """The tests of a file, in as many processes as it takes."""
        outcomes = Outcomes()
        with tempfile.TemporaryDirectory(prefix="fb-suite-") as name:
            folder = Path(name)
            (folder / f"{PLUGIN}.py").write_text(self.framework.preparation + TELLS)
            while True:
                (folder / "done.json").write_text(json.dumps(list(outcomes.ended)))
                (folder / "told.jsonl").write_text("")
                status = self._one_process(file, self.environment(device, folder), folder / "told.jsonl")
                with (folder / "told.jsonl").open() as told:
                    current = outcomes.hear(line for line in told if line.endswith("\n"))
                if current is not None:
                    outcomes.crashed(current, status)
                    continue
                if not outcomes.ended:
                    sys.exit(f"no test of {file} ran:\n{(folder / 'printed.txt').read_text()[-3000:]}")
                return outcomes

    def _one_process(self, file: str, variables: dict[str, str], told: Path) -> int | None:
        command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", "--noconftest", f"--rootdir={self.tests}"]
        command += ["-c", os.devnull, "--timeout", str(TEST_SECONDS_MAX), *(["-k", self.only] if self.only else []), file]
        with told.with_name("printed.txt").open("w") as printed:
            process = subprocess.Popen(command, cwd=self.tests, env=variables, stdout=printed, stderr=subprocess.STDOUT)
        heard = -1
        while True:
            try:
                return process.wait(timeout=STUCK_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                size = told.stat().st_size
                if size == heard:
                    process.kill()
                    return process.wait()
                heard = size

    def measure(self, file: str, kept: Path) -> Compared:
        """Runs a file on both, and keeps what came of it."""
        with ThreadPoolExecutor() as both:
            cpu, device = both.map(lambda on_device: self.run(file, on_device), (False, True))
        kept.write_text(json.dumps({"cpu": asdict(cpu), "device": asdict(device)}, indent=1))
        return self.compare(file, cpu, device)

    def compare(self, file: str, cpu: Outcomes, device: Outcomes) -> Compared:
        counts = self.framework.counts
        good = {test for test, outcome in cpu.ended.items() if outcome == "passed" and counts(test)}
        of_base = {test: outcome for test, outcome in device.ended.items() if twin(test) in good or test in good}
        failed = {test: device.texts[test] for test, outcome in of_base.items() if outcome == "failed"}
        ended = Counter(of_base.values())
        alone = Counter(outcome for test, outcome in device.ended.items() if test not in of_base and counts(test))
        return Compared(file, len(good), ended["passed"], ended["skipped"] + ended["xfailed"], failed, alone)


def table(rows: list[Compared]) -> str:
    heads = ("file", "passes on the CPU", "ran on the device", "passed", "rate", "tests of CUDA alone: passed, failed")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        ran = row.passed + len(row.failed)
        cuda_alone = f"{row.alone['passed']}, {row.alone['failed']}"
        lines.append(f"| `{row.file}` | {row.base:,} | {ran:,} | {row.passed:,} | {row.rate:.1f} % | {cuda_alone} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", type=Path, help="the folder of tests in the sources: test of PyTorch's, tests of JAX's")
    parser.add_argument("files", nargs="*", help="files or folders in it")
    parser.add_argument("--framework", choices=FRAMEWORKS, default="torch", help="whose tests they are")
    parser.add_argument("--only", default="", help="only tests that match this expression of pytest -k")
    parser.add_argument("--one-in", type=int, default=1, metavar="N", help="only one in N tests, always the same ones")
    parser.add_argument("--output", type=Path, default=Path("build/public-suites"), help="where outcomes are kept, a JSON file each")
    parser.add_argument("--failed", action="store_true", help="also print which tests failed, and the last line of why")
    asked = parser.parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    framework = FRAMEWORKS[asked.framework]
    suite, rows = Suite(framework, asked.tests.resolve(), asked.only, asked.one_in), []
    for file in asked.files or framework.files:
        kept = asked.output / (file.replace("/", "-").removesuffix(".py") + ("-part" if asked.only or asked.one_in > 1 else "") + ".json")
        rows.append(suite.measure(file, kept))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
        for test, why in rows[-1].failed.items() if asked.failed else ():
            print(f"  {test}: {why.strip().splitlines()[-1] if why.strip() else 'no reason'}", flush=True)
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
