"""Where the settings of every service come from, what is refused, and what is never shown."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from forebay_billing.settings import Settings as BillingSettings
from forebay_dashboards.settings import Settings as DashboardsSettings
from forebay_pool.settings import Settings as PoolSettings
from forebay_service.errors import SettingsError
from forebay_service.settings import ServiceSettings

LOCAL = Path(__file__).resolve().parents[2] / "deploy" / "local"
SECRET = "of-whom-nobody-may-hear"
SOURCES = ("command line", "environment", "hub", "file", "default")


@dataclass(frozen=True)
class Case:
    """A service, what it cannot start without, its settings that are secret as TOML values, and one more secret that cannot be."""

    settings: type[ServiceSettings]
    needs: dict[str, str]
    secrets: dict[str, str]
    unfit: str

    @property
    def name(self) -> str:
        return self.settings.package.removeprefix("forebay_")

    @property
    def prefix(self) -> str:
        return f"{self.settings.package.upper()}_"


DATABASE = f'"postgresql+psycopg://forebay:{SECRET}@host/name"'
CASES = (
    Case(PoolSettings, {}, {"hub_token": f'"{SECRET}"', "database_url": DATABASE}, "hub_token"),
    Case(
        BillingSettings,
        {},
        {
            "database_url": DATABASE,
            "stripe_key": f'"{SECRET}"',
            "stripe_webhook_secrets": f'["{SECRET}"]',
            "smtp_password": f'"{SECRET}"',
            "tokens": f'[{{token = "{SECRET}", name = "pool", kind = "service"}}]',
        },
        "stripe_key",
    ),
    Case(
        DashboardsSettings,
        {
            "FOREBAY_DASHBOARDS_POOL_URL": "http://127.0.0.1:1/services/pool/",
            "FOREBAY_DASHBOARDS_BILLING_URL": "http://127.0.0.1:2/services/billing/",
            "JUPYTERHUB_API_TOKEN": "token-of-the-pages",
        },
        {"hub_token": f'"{SECRET}"'},
        "hub_token",
    ),
)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param  # type: ignore[no-any-return]


def refusal(case: Case, path: Path | None = None, variables: dict[str, str] | None = None, options: dict[str, str] | None = None) -> str:
    """The sentence, which is one."""
    with pytest.raises(SettingsError) as caught:
        case.settings.load(path, case.needs | (variables or {}), options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def written(folder: Path, text: str) -> Path:
    path = folder / "service.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("first", range(len(SOURCES)), ids=SOURCES)
def test_the_first_source_that_gives_a_setting_wins(case: Case, tmp_path: Path, first: int) -> None:
    given = SOURCES[first:]
    path = written(tmp_path, "port = 1004\n") if "file" in given else None
    variables = dict(case.needs)
    variables |= {"JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:1003"} if "hub" in given else {}
    variables |= {f"{case.prefix}PORT": "1002"} if "environment" in given else {}
    loaded = case.settings.load(path, variables, {"port": "1001"} if "command line" in given else {})
    assert loaded.port == [1001, 1002, 1003, 1004, case.settings.model_fields["port"].default][first]


def test_each_setting_has_its_own_source(case: Case, tmp_path: Path) -> None:
    path = written(tmp_path, 'port = 1\nprefix = "/file/"\nlog_level = "error"\nhost = "localhost"\n')
    variables = {
        f"{case.prefix}LOG_LEVEL": "warning",
        "JUPYTERHUB_API_URL": "http://127.0.0.1:8081/hub/api",
        "JUPYTERHUB_SERVICE_PREFIX": "/services/hub/",
        "JUPYTERHUB_SERVICE_URL": "",
    }
    loaded = case.settings.load(path, case.needs | variables, {"port": "7"})
    found = (loaded.port, loaded.log_level, loaded.prefix, loaded.hub_api_url, loaded.host)
    assert found == (7, "warning", "/services/hub/", "http://127.0.0.1:8081/hub/api", "localhost")


def test_a_service_that_no_hub_manages_does_not_hear_of_one(tmp_path: Path) -> None:
    told = {"JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:1003", "JUPYTERHUB_API_TOKEN": SECRET, "JUPYTERHUB_SERVICE_PREFIX": "/hub/"}
    alone = PoolSettings.load(None, told, managed=False)
    assert (alone.port, alone.prefix, alone.hub_token) == (8091, "/", None)
    assert PoolSettings.load(None, told).hub_token == SECRET


def test_settings_that_are_made_directly_read_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_POOL_PORT", "1002")
    monkeypatch.setenv("PORT", "1003")
    assert PoolSettings().port == 8091


def test_tables_are_taken_key_by_key_and_lists_whole(tmp_path: Path) -> None:
    path = written(tmp_path, 'stripe_webhook_secrets = ["a", "b"]\n[tenant_currencies]\nacme = "USD"\nglobex = "KRW"\n')
    variables = {"FOREBAY_BILLING_TENANT_CURRENCIES": '{acme = "EUR"}', "FOREBAY_BILLING_STRIPE_WEBHOOK_SECRETS": "c"}
    loaded = BillingSettings.load(path, variables)
    assert isinstance(loaded, BillingSettings)
    assert loaded.tenant_currencies == {"acme": "EUR", "globex": "KRW"}
    assert loaded.stripe_webhook_secret_texts() == ("c",)


def test_texts_in_the_environment_stand_as_they_are() -> None:
    given = {"SMTP_PASSWORD": '["]', "ISSUER_NAME": "[2024]", "STRIPE_AUTO_ADVANCE": "false"}
    loaded = BillingSettings.load(None, {f"FOREBAY_BILLING_{name}": value for name, value in given.items()})
    assert (loaded.smtp_password_text(), loaded.issuer_name, loaded.stripe_auto_advance) == ('["]', "[2024]", False)


@pytest.mark.parametrize("level", ["debug", "DEBUG", "Debug"])
def test_levels_of_the_log_are_taken_in_capitals_and_without(case: Case, level: str) -> None:
    assert case.settings.load(None, case.needs | {f"{case.prefix}LOG_LEVEL": level}).log_level == "debug"


def test_an_unknown_variable_of_the_service_is_refused(case: Case) -> None:
    said = refusal(case, variables={f"{case.prefix}PROT": "1"})
    assert said == f"{case.prefix}PROT names no setting; python -m {case.settings.package} --help lists all settings."
    assert case.settings.load(None, case.needs | {"FOREBAY_OTHER_PROT": "1"}).port


@pytest.mark.parametrize("key", ["base_path", "model_config", "settings_customise_sources", "_case_sensitive", "self", "package"])
def test_an_unknown_key_of_the_file_is_refused(case: Case, tmp_path: Path, key: str) -> None:
    path = written(tmp_path, f'{key} = "/"\n')
    assert refusal(case, path).startswith(f"{key} in {path} names no setting; python -m {case.settings.package} --help")


def test_an_unknown_key_of_a_table_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, '[[devices]]\nkind = "cpu"\nmodel = "x"\nmemory = "1 GiB"\ncolour = "red"\n')
    assert refusal(CASES[0], path).startswith(f"devices in {path} (devices.0.colour) names no setting; ")


@pytest.mark.parametrize(
    ("options", "variables", "text", "name"),
    [
        ({"port": "far"}, {}, "port = 1", "--port"),
        ({}, {"PORT": "far"}, "port = 1", "PORT"),
        ({}, {}, 'port = "far"', "port in "),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_with_the_name_that_its_source_has_for_it(
    case: Case, tmp_path: Path, options: dict[str, str], variables: dict[str, str], text: str, name: str
) -> None:
    said = refusal(case, written(tmp_path, text), {case.prefix + variable: value for variable, value in variables.items()}, options)
    source = {"PORT": f"{case.prefix}PORT", "port in ": f"port in {tmp_path / 'service.toml'}"}.get(name, name)
    assert said.startswith(f"{source} cannot be used: Input should be a valid integer")


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("JUPYTERHUB_SERVICE_PREFIX", "services", "String should match pattern"),
        ("JUPYTERHUB_SERVICE_URL", "http://127.0.0.1:port", "no http address"),
        ("JUPYTERHUB_SERVICE_URL", "ftp://127.0.0.1", "no http address"),
        ("JUPYTERHUB_API_URL", "hub", "String should match pattern"),
    ],
)
def test_what_the_hub_tells_is_refused_by_the_name_of_its_variable(case: Case, variable: str, value: str, says: str) -> None:
    said = refusal(case, variables={variable: value})
    assert said.startswith(f"{variable} cannot be used: ") and says in said


def test_a_setting_that_is_missing_is_named_with_the_ways_to_give_it() -> None:
    with pytest.raises(SettingsError, match=r"^The setting hub_token is missing: .* FOREBAY_DASHBOARDS_HUB_TOKEN; "):
        DashboardsSettings.load(None, {name: value for name, value in CASES[2].needs.items() if name != "JUPYTERHUB_API_TOKEN"})


def test_a_file_that_cannot_be_read_is_refused(case: Case, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    written(tmp_path, "port = = 3").with_name("bytes.toml").write_bytes(b'host = "\xff"')
    for name, says in (
        ("none.toml", "cannot be read: No such file or directory."),
        ("", "cannot be read: it is no regular file."),
        ("service.toml", "is not TOML: "),
        ("bytes.toml", "is not TOML: "),
        ("fifo", "cannot be read: it is no regular file."),
    ):
        assert f"The settings file {tmp_path / name} {says}" in refusal(case, tmp_path / name)


def test_secrets_are_in_no_repr(case: Case, tmp_path: Path) -> None:
    path = written(tmp_path, "\n".join(f"{name} = {value}" for name, value in case.secrets.items()))
    loaded = case.settings.load(path, {name: value for name, value in case.needs.items() if not name.startswith("JUPYTERHUB")})
    assert all(getattr(loaded, name) for name in case.secrets)
    assert SECRET not in f"{loaded!r} {loaded}"


def test_secrets_are_in_no_refusal(case: Case, tmp_path: Path) -> None:
    without = Case(case.settings, {name: value for name, value in case.needs.items() if "TOKEN" not in name}, {}, case.unfit)
    said = refusal(without, written(tmp_path, f'{case.unfit} = ["{SECRET}"]'))
    assert said.startswith(f"{case.unfit} in ") and SECRET not in said
    assert SECRET not in refusal(case, written(tmp_path, f'{case.unfit} = "{SECRET}"\nport = "x"'))
    assert SECRET not in refusal(case, variables={f"{case.prefix}{case.unfit.upper()}X": SECRET})


def test_a_secret_that_is_too_short_is_not_shown() -> None:
    said = refusal(CASES[1], variables={"FOREBAY_BILLING_TOKENS": '[{token = "abcxyz", name = "pool", kind = "service"}]'})
    assert said.startswith("FOREBAY_BILLING_TOKENS (tokens.0.token) cannot be used: String should have at least 16")
    assert "abcxyz" not in said


def test_the_files_of_a_local_installation_are_accepted(case: Case) -> None:
    assert case.settings.load(LOCAL / f"{case.name}.toml", case.needs).log_level == "info"


def run(case: Case, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTERHUB_"))}
    command = [sys.executable, "-m", case.settings.package, *arguments]
    return subprocess.run(command, env=clean | case.needs | variables, capture_output=True, text=True, timeout=120)


def test_the_command_lists_every_setting_and_ends_with_one_sentence_where_one_is_unknown(case: Case) -> None:
    shown = run(case, "--help")
    assert shown.returncode == 0
    assert not [name for name in case.settings.model_fields if f"  {name} (" not in shown.stdout]
    refused = run(case, "--log-level", "warning", **{f"{case.prefix}PROT": "1"})
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"forebay-{case.name}: {case.prefix}PROT names no setting; python -m {case.settings.package} --help lists all settings.\n"
    )
