"""Every setting of the pool."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from forebay_service.errors import SettingsError
from forebay_service.peers.tls import is_open
from forebay_service.settings import LogLevel, ServiceSettings, check_driver
from forebay_wire.messages import ProcessBounds
from forebay_wire.remote.places import place
from forebay_wire.texts import Name
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from forebay_pool.model.elastic import NodeGroup
from forebay_pool.model.jobs import FileLimits, JobLimits
from forebay_pool.model.limits import Limits
from forebay_pool.model.policies import GangSpread, ImagePolicy, Preference
from forebay_pool.model.types import Device, Kind

NODE_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"
RAY_ADDRESS_PATTERN = r"^(auto|[^/\s]+:[0-9]{1,5})$"
"""No word with which Ray would start a cluster of its own, and write a token for it into the home folder."""
UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
WORKER_ENVIRONMENT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "FOREBAY_COMPILE",
    "FOREBAY_COMPILE_AFTER",
    "FOREBAY_WORKER_COLLECTIVES",
    "FOREBAY_WORKER_COLLECTIVES_BYTES",
    "NCCL_SOCKET_IFNAME",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "ROCM_PATH",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "SSL_CERT_FILE",
)


def parse_bytes(value: object) -> object:
    """``4 GiB``, ``65520 MiB``, ``64 GB`` or a plain number, as bytes. Raises ValueError."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]*)\s*", value)
    if found is None or found[2].upper() not in UNITS:
        raise ValueError(f"{value!r} is no size; write for example 4 GiB")
    return int(found[1]) * UNITS[found[2].upper()]


Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0, lt=2**63)]
AnyBytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0, lt=2**63)]
NAME = "[a-z_][a-z0-9_-]{0,31}|[1-9][0-9]{0,9}-[1-9][0-9]{0,9}|@devices"
Identifier = Annotated[int, Field(gt=0, lt=2**32 - 1)] | Annotated[str, Field(pattern=f"^({NAME})$")]
"""A number, or the name of an account that has it, where the worker runs, as its uid and its gid; else see ``forebay_service.account``."""
Seconds = Annotated[float, Field(gt=0, le=86_400)]
NODES_MAX = 10_000
Bound = Annotated[int, Field(ge=1, le=10_000_000)]
Place = Annotated[str, AfterValidator(place)]
PLACES_MAX = 64


class DeviceGroup(BaseModel):
    """Equal devices of one node."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["cpu", "cuda", "hip", "null"] = Field(description="What executes: cpu (development), cuda, hip, or null (nothing).")
    model: Name = Field(description="The make, as the flavors' equivalents name it, for example MI250.")
    memory: Bytes = Field(description="Memory of each device, for example 4 GiB.")
    count: Annotated[int, Field(ge=1, le=1024)] = Field(1, description="How many; they are numbered on from the last group of this kind.")
    node: Annotated[str | None, Field(pattern=NODE_PATTERN, description="Where they stand; none: the setting node.")] = None
    vendor: Annotated[str, Field(max_length=64, description="Who made them, for people to read.")] = ""
    speed: Annotated[int, Field(ge=1, le=1_000_000, description="Relative speed class; 100 is the reference.")] = 100
    switch: Annotated[str, Field(max_length=64, description="The switch that their node hangs on; gangs stay under one if they can.")] = ""
    spot: Annotated[bool, Field(description="Whether their provider may take nodes back at short notice; for people to read.")] = False
    nodes_min: Annotated[
        int, Field(ge=0, le=NODES_MAX, description="Nodes of this group that stay, needed or not; nodes_max says whether any come and go.")
    ] = 0
    nodes_max: Annotated[
        int, Field(ge=0, le=NODES_MAX, description="Most nodes of it that Ray's autoscaler is asked for; 0: it is asked for none.")
    ] = 0
    start_seconds: Annotated[
        float, Field(gt=0, le=86_400, description="From the demand until such a node lends its devices, for estimates.")
    ] = 90.0

    @model_validator(mode="after")
    def _floor_is_no_higher(self) -> Self:
        if self.nodes_min > self.nodes_max:
            raise ValueError(f"nodes_min is {self.nodes_min}, and nodes_max {self.nodes_max}")
        return self

    @property
    def elastic(self) -> NodeGroup | None:
        """What may be asked for; None where its nodes are as many as they are."""
        if not self.nodes_max:
            return None
        return NodeGroup(self.model, self.kind, self.memory, self.count, self.nodes_min, self.nodes_max, self.start_seconds)


class ImageSettings(ServiceSettings):
    """Where images of sessions are kept, from which they go on if their workers die."""

    images: ImagePolicy = Field(
        "process",
        description="Where images of sessions are kept, so that a session goes on at another worker if its own dies: process (the memory"
        " of the worker's host), node (a folder that all hosts see), disk (a disk of that host), none (nowhere)."
        " A flavor may say otherwise.",
    )
    image_dirs: dict[Literal["process", "node", "disk"], Path] = Field(
        {"process": Path("/dev/shm/forebay")},  # noqa: S108 - a folder of the pool's own, made with mode 0700
        description="The folder of images for each of these; without one there are no images.",
    )
    images_fill_max: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="The part of that folder's file system that may be in use; an image that would go beyond is not kept."
    )

    def keeps_images(self, policy: ImagePolicy | None) -> bool:
        """Whether there is a folder for what a flavor says of its images."""
        return policy in (None, "none") or policy in self.image_dirs


class LinkSettings(ServiceSettings):
    """For how long who lost a connection is waited for."""

    resume_seconds: float = Field(
        60.0, ge=0, le=86_400, description="How long a worker or client without its link is waited for, over a restart too; 0: not at all."
    )
    outside_resume_seconds: float = Field(
        43_200.0,
        ge=0,
        le=86_400,
        description="How long a client outside is waited for whose link fell silent, as of a laptop that sleeps, if that is longer.",
    )
    reconnect_seconds: float = Field(
        120.0,
        ge=0,
        le=86_400,
        description="How long a worker on another host waits for a client whose connection broke; 0: the session ends with the connection.",
    )
    outage_seconds: Seconds = Field(
        600.0, description="How long workers and clients look for a pool that does not answer, where resume_seconds is not 0."
    )


class ProcessSettings(ServiceSettings):
    """What people's own processes beside devices may take."""

    processes: bool = Field(
        True, description="Whether `forebay exec` runs people's processes beside devices, on hosts that can confine them."
    )
    process_memory: Bytes = Field(8 * 2**30, description="Memory of the host that such a process, with all that it starts, may take.")
    process_count: Bound = Field(512, description="Processes and threads that it may have at a time.")
    process_files: Bytes = Field(16 * 2**30, description="Bytes on the host's disk that its files may take.")
    process_egress: tuple[Place, ...] = Field(
        (), max_length=PLACES_MAX, description="Places that it may reach by HTTPS, as host:port; none: it has no network."
    )
    process_retry_seconds: Seconds = Field(600.0, description="A host that could not confine a process is tried again after so long.")

    @property
    def process(self) -> ProcessBounds:
        """What a process beside a device may take of its host."""
        return ProcessBounds(
            memory_bytes=self.process_memory, processes=self.process_count, files_bytes=self.process_files, egress=self.process_egress
        )


class ProgramSettings(ServiceSettings):
    """What workers do for programs of JAX and TensorFlow."""

    warm_programs: bool = Field(
        True,
        description="Whether workers that are started ahead of need load what programs of JAX and TensorFlow need, where a flavor of their"
        " device offers `xla`.",
    )


class JobFileSettings(ServiceSettings):
    """What becomes of files that go along with jobs, and of those that jobs leave."""

    job_files_dir: Path | None = Field(
        None,
        description="Where files are that people send along with jobs, and those that such jobs leave; all pools of one database share it."
        " None: job-files in state_dir.",
    )
    job_files_user_bytes_max: Bytes = Field(8 * 2**30, description="Bytes that the files of a member's jobs may take.")
    job_files_keep_seconds: Annotated[float, Field(ge=3_600, le=31_622_400)] = Field(
        604_800.0, description="For how long files stay that a job left, and those that were sent and that no job needs."
    )
    job_files_free_bytes_min: AnyBytes = Field(
        4 * 2**30, description="No files of jobs are taken that would leave less than this free on their disk."
    )

    @property
    def file_limits(self) -> FileLimits:
        return FileLimits(self.job_files_user_bytes_max, self.job_files_keep_seconds, self.job_files_free_bytes_min)


class Settings(ImageSettings, LinkSettings, ProcessSettings, ProgramSettings, JobFileSettings):
    """The pool's settings. ``docs/reference/pool.md`` lists them."""

    package: ClassVar[str] = "forebay_pool"
    peers: ClassVar[tuple[str, ...]] = ("hub_api_url", "billing_url", "advertise_url", "replicas")

    port: int = Field(8091, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    state_dir: Path = Field(Path("var/pool"), description="Where the database is, and the workers' sockets unless socket_dir is set.")
    socket_dir: Path | None = Field(
        None, description="Where the workers' sockets are; clients must be able to pass it. None: in state_dir."
    )
    database_url: str | None = Field(None, repr=False, description="SQLAlchemy URL; none: SQLite in state_dir. PostgreSQL: postgresql+psycopg://…")
    replicas: tuple[str, ...] = Field(
        (), description="Addresses of all pools on this database, as http://host:port/path/; one leads, the others wait. None: this one."
    )
    source: Name = Field("pool", max_length=64, description="Names this pool in usage records; never change it.")
    node: str = Field("main", pattern=NODE_PATTERN, description="Name of this host in device ids.")
    devices: tuple[DeviceGroup, ...] = Field((), description="The devices to lend, as [[devices]] tables; on Ray, of each node that fits.")
    placement_preference: Preference = Field("cheapest", description="Among equal places: cheapest, fastest, or packed (fullest node).")
    gang_spread: GangSpread = Field("any", description="How far apart devices that are leased together may be: node, switch, or any.")
    launcher: Literal["local", "ray"] = Field("local", description="Who starts workers: local (child processes), or ray (a Ray cluster).")
    ray_address: str = Field(
        "auto", pattern=RAY_ADDRESS_PATTERN, description="The Ray cluster, as host:port; auto finds one on this host."
    )
    advertise_url: str | None = Field(
        None, pattern="^https?://", description="Address of this pool, prefix included, as workers on other nodes reach it; none: its own."
    )
    default_flavor: str = Field("dev.1gb", description="Flavor of a session whose user never chose one.")
    flavors_file: Path | None = Field(None, description="TOML file of flavors to seed; none: the packaged ones.")
    hub_token: str | None = Field(None, repr=False, description="The pool's own JupyterHub token; JupyterHub itself sets it.")
    billing_url: str | None = Field(None, description="Address of the billing service, with its prefix; none: nobody bills.")
    worker_python: Path = Field(Path(sys.executable), description="Interpreter that runs the workers: the one with the devices' PyTorch.")
    worker_pythons: dict[Literal["cpu", "cuda", "hip", "null"], Path] = Field(
        {}, description="Interpreters of single kinds of device, as {hip = \"/opt/rocm/bin/python\"}; of the others: worker_python."
    )
    worker_account: Annotated[tuple[Identifier, ...], Field(min_length=2)] | None = Field(
        None,
        description="The uid, and gid, that workers run under, or `FIRST-LAST`, of which each gets one of its own; and their other gids."
        " Names do too, and `@devices` for the groups that open accelerators. None: the pool's own.",
    )
    worker_environment: tuple[str, ...] = Field(WORKER_ENVIRONMENT, description="Environment variables that workers inherit; no other.")
    user_kernels: bool = Field(
        False, description="Whether programs may launch kernels of their own (Triton) on a GPU that is theirs alone."
    )
    warm_workers: int = Field(1, ge=0, le=64, description="Workers kept started ahead of need, per kind of device with a free one.")
    workers_max: Bound = Field(64, description="Most worker processes at a time; then sessions wait for one to end.")
    worker_attempts_max: Bound = Field(3, description="Workers tried for a request before it is refused.")
    worker_start_seconds: Seconds = Field(60.0, description="A worker that takes longer to start, or to take its session, is killed.")
    park_seconds: Seconds = Field(300.0, description="A worker that has not parked its session after so long is killed.")
    spill_dir: Path | None = Field(None, description="Where parked tensors go that host memory has no place for; none: nowhere.")
    libraries_dir: Path | None = Field(
        None,
        description="Where workers keep libraries of compiled segments, each tenant's in a folder of its own;"
        " none: they go with the worker.",
    )
    spill_bytes_max: AnyBytes = Field(0, description="Most bytes of parked tensors on the disk of each host.")
    parked_host_bytes_max: AnyBytes = Field(
        2**62,
        description="Bytes of parked tensors in the memory of each host; beyond, they are spilled, as far as the disk takes them.",
    )
    close_seconds: Seconds = Field(
        30.0, description="A worker that has not stopped computing so long after a lease was taken back is killed."
    )
    call_seconds_max: Seconds = Field(
        600.0, description="A worker in which one call of an operator has run for so long is ended, since nothing else interrupts it."
    )
    crashes_max: Bound = Field(
        3, description="A user of whose programs calls ended so many workers within an hour waits before the next worker."
    )
    crash_wait_seconds: Annotated[float, Field(ge=0, le=86_400)] = Field(
        60.0, description="How long that wait is; each further such call within the hour doubles it. 0: nobody waits."
    )
    crash_wait_seconds_max: Seconds = Field(600.0, description="How long that wait is at most.")
    end_grace_seconds: Seconds = Field(5.0, description="A worker told to exit is killed after so long.")
    replay_seconds_max: float = Field(
        60.0,
        ge=0,
        le=86_400,
        description="A session whose worker dies goes on at another one, which does its work since the last image again, free, "
        "if that took no longer than so many seconds; 0: it is lost.",
    )
    heartbeat_seconds: Seconds = Field(
        5.0, description="Period of workers' heartbeats; one that missed three gets no lease before it is heard again."
    )
    session_heartbeat_seconds: Seconds = Field(
        20.0, description="Period of pings to clients; three unanswered mean that it is gone. Long, as user code may block Python."
    )
    wheels_url: str | None = Field(
        None, description="Index page of the wheels that `forebay update` brings people's environments to; none: they name one."
    )
    cell_lines: bool = Field(
        True, description="Whether usage tells the first line of a cell's source; false: the pool keeps it nowhere."
    )
    idle_release_seconds: Seconds = Field(2.0, description="A lease without device work for so long is closed; this time is not billed.")
    held_server_seconds: Annotated[float, Field(ge=0, le=31_622_400)] = Field(
        43_200.0,
        description="A notebook server whose session only holds tensors counts as in use for so long after it last computed.",
    )
    sessions_max: Bound = Field(10_000, description="Most sessions at a time; the last quarter is for users who have fewer than 16.")
    queue_max: Bound = Field(
        10_000, description="Most requests waiting for a device; the last quarter is for users of whom fewer than 16 wait."
    )
    fair_share_half_life_seconds: Annotated[float, Field(gt=0, le=31_622_400)] = Field(
        14_400.0, description="Device time used so long ago counts half in the fair share."
    )
    wait_seconds_max: Annotated[float, Field(gt=0, le=31_622_400)] = Field(
        3_600.0, description="Who has waited so long goes before all others, whatever their priority and share; quotas still hold."
    )
    backfill_seconds_max: Seconds = Field(60.0, description="Later requests may pass one that waits for several devices for so long.")
    revoke_grace_seconds: Seconds = Field(10.0, description="A lease that is revoked may go on for so long, to end by itself.")
    preempt_priority_gap: int = Field(
        0, ge=0, le=198, description="A request revokes a lease whose priority is lower by so much; 0: never."
    )
    move_bytes_per_second: Bytes = Field(
        10**9, description="How fast parked tensors leave a host that is drained, one session at a time, for example 500 MB."
    )
    elastic_wait_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05, description="Elastic nodes are asked for so that at most this share of the requests waits for a device."
    )
    elastic_release_seconds: Seconds = Field(600.0, description="An elastic node that has not been needed for so long is given back.")
    unwritten_records_max: Bound = Field(10_000, description="Usage records the database has not taken; beyond, no lease is opened.")
    price_poll_seconds: Seconds = Field(2.0, description="How often billing is asked for prices.")
    billing_heartbeat_seconds: Annotated[float, Field(gt=0, le=3_600)] = Field(
        5.0, description="How often billing is told which leases are open, and asked what budgets do."
    )
    segment_seconds: Annotated[float, Field(ge=0.1, le=3_600)] = Field(
        3_600.0, description="Open leases are metered every so often, counted from full hours in UTC on, and at full hours."
    )
    jobs_running_max: Bound = Field(20, description="Most jobs that run at a time; the others wait.")
    jobs_running_per_user_max: Bound = Field(4, description="Most jobs of a user that run at a time.")
    jobs_waiting_per_user_max: Bound = Field(100, description="Most jobs of a user that are not over; beyond, no more are taken.")
    schedules_per_user_max: Bound = Field(50, description="Most schedules of a user.")
    jobs_kept_per_user_max: Bound = Field(500, description="Jobs of a user that are kept, with their output, once they are over.")
    job_output_run_bytes_max: Bytes = Field(
        4 * 2**20, description="Bytes that are kept of the output of each run, 64 for each piece included; the beginning is dropped first."
    )
    job_output_job_bytes_max: Bytes = Field(16 * 2**20, description="The same of all runs of a job; the earlier runs are dropped first.")
    job_output_user_bytes_max: Bytes = Field(256 * 2**20, description="The same of all jobs of a user; the oldest are dropped first.")
    job_output_bytes_max: Bytes = Field(
        16 * 2**30, description="The same of the installation; the oldest output of those who have most is dropped first."
    )
    shared_notebooks_per_user_max: Bound = Field(20, description="Most notebooks that a user shares at a time, of 8 MiB at most each.")
    embedded_idle_exit_seconds: Seconds = Field(600.0, description="An embedded pool without sessions exits after so long.")
    worker_log_level: LogLevel = Field("warning", description="The same for workers, whose log goes into the pool's.")

    def inherited(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What workers inherit of the pool's environment; those on this host trust whom the pool trusts."""
        found = {name: environ[name] for name in self.worker_environment if name in environ}
        if self.tls_authority is not None and self.launcher == "local":
            found["SSL_CERT_FILE"] = str(self.tls_authority.absolute())
        return found

    @property
    def database(self) -> str:
        """Raises SettingsError, where its driver is missing."""
        return check_driver(self.database_url or f"sqlite:///{self.state_dir.absolute() / 'pool.sqlite'}", "forebay-pool")

    def check_plaintext(self) -> None:
        """Raises SettingsError, also where Ray starts workers on other hosts: what they are started with is in clear, and so is what
        process groups and devices of several hosts send each other."""
        super().check_plaintext()
        if not self.plaintext and self.launcher == "ray" and self.ray_address != "auto" and is_open(f"http://{self.ray_address}"):
            raise SettingsError(
                f"ray_address is {self.ray_address}, a cluster beyond this host, and Ray, process groups and devices of several hosts speak"
                " without TLS: set plaintext = true where the network is closed to others."
            )

    @property
    def job_limits(self) -> JobLimits:
        return JobLimits(
            self.jobs_running_max,
            self.jobs_running_per_user_max,
            self.jobs_waiting_per_user_max,
            self.schedules_per_user_max,
            self.jobs_kept_per_user_max,
            self.job_output_run_bytes_max,
            self.job_output_job_bytes_max,
            self.job_output_user_bytes_max,
            self.job_output_bytes_max,
        )

    @property
    def own_url(self) -> str:
        """Where this pool serves; with port 0 it is known only once it does."""
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """Where this pool serves, with the port that it has."""
        return f"{'http' if self.tls_certificate is None else 'https'}://{self.host}:{port}{self.prefix}"

    @field_validator("devices")
    @classmethod
    def _elastic_models_are_of_one_group(cls, groups: tuple[DeviceGroup, ...]) -> tuple[DeviceGroup, ...]:
        models = [group.model for group in groups]
        for group in groups:
            if group.elastic is not None and models.count(group.model) > 1:
                raise ValueError(f"{group.model} has nodes_max, so no other group may be of that model")
        return groups

    @field_validator("launcher")
    @classmethod
    def _elastic_is_of_ray(cls, launcher: str, others: ValidationInfo) -> str:
        if launcher != "ray" and any(group.elastic is not None for group in others.data.get("devices", ())):
            raise ValueError("devices with nodes_max are for ray, whose autoscaler starts and ends nodes")
        return launcher

    @property
    def node_groups(self) -> tuple[NodeGroup, ...]:
        """The groups of which nodes come and go."""
        return tuple(group.elastic for group in self.devices if group.elastic is not None)

    @property
    def limits(self) -> Limits:
        return Limits(**{name: getattr(self, name) for name in Limits.__dataclass_fields__})

    def python_of(self, kind: Kind) -> Path:
        """The interpreter that runs workers on devices of this kind."""
        return self.worker_pythons.get(kind, self.worker_python)

    def all_devices(self) -> Iterator[Device]:
        """Each configured device; indices count per node and kind."""
        indices: dict[tuple[str, str], int] = {}
        for group in self.devices:
            for _ in range(group.count):
                node = group.node or self.node
                index = indices.get((node, group.kind), 0)
                indices[node, group.kind] = index + 1
                name = f"{node}/{group.kind}:{index}"
                yield Device(name, node, group.kind, index, group.model, group.memory, group.vendor, group.speed, group.switch, group.spot)
