"""Settings: read once, and a mistake stops the start with its name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic import ValidationError

from service.settings import Settings, SettingsError, load_settings

Load = Callable[[dict[str, str]], Settings]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """`load_settings` in an environment of these variables."""

    def loaded(variables: dict[str, str]) -> Settings:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            return load_settings()

    return loaded


def refusal(load: Load, variables: dict[str, str]) -> str:
    with pytest.raises(SettingsError) as caught:
        load(variables)
    return str(caught.value)


def test_defaults_need_no_environment(load: Load) -> None:
    settings = load({"PATH": "/bin", "HOME": "/root"})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.api_keys) == ("127.0.0.1", 8000, ())


def test_values_have_units_lists_and_types(load: Load) -> None:
    settings = load(
        {
            "CONDUIT_PORT": "9000",
            "CONDUIT_MEMORY_BYTES": "512MiB",
            "CONDUIT_DISK_BYTES": "1000",
            "CONDUIT_API_KEYS": "alice:sk-alice-1, bob:sk:with:colons",
            "CONDUIT_ALLOWED_PRIVATE_HOSTS": "localhost:8080,files.internal",
            "CONDUIT_IMAGE_FORMATS": "png,tiff",
            "CONDUIT_DEMO": "true",
            "CONDUIT_REFRESH_RATIO": "0.2",
            "CONDUIT_DEVICE": "cuda:1",
            "CONDUIT_POLICY_OPTIONS": '{"preset": "paper", "image_weight": 0.5}',
        }
    )
    assert (settings.port, settings.memory_bytes, settings.disk_bytes) == (9000, 512 * 2**20, 1000)
    assert [(key.tenant, key.secret.get_secret_value()) for key in settings.api_keys] == [
        ("alice", "sk-alice-1"),
        ("bob", "sk:with:colons"),
    ]
    assert settings.allowed_private_hosts == ("localhost:8080", "files.internal")
    assert (settings.image_formats, settings.demo, settings.refresh_ratio) == (("png", "tiff"), True, 0.2)
    assert settings.policy_options == {"preset": "paper", "image_weight": 0.5}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CONDUIT_PROT", "8000"),
        ("CONDUIT_PORT", "many"),
        ("CONDUIT_PORT", "70000"),
        ("CONDUIT_MEMORY_BYTES", "lots"),
        ("CONDUIT_REFRESH_RATIO", "1.5"),
        ("CONDUIT_REFRESH_RATIO", "nan"),
        ("CONDUIT_MAX_IMAGES", "0"),
        ("CONDUIT_REQUEST_TIMEOUT", "inf"),
        ("CONDUIT_REQUEST_TIMEOUT", "nan"),
        ("CONDUIT_THREADS", "100000"),
        ("CONDUIT_IMAGE_FORMATS", "png,psd"),
        ("CONDUIT_DEVICE", "gpu"),
        ("CONDUIT_POLICY_OPTIONS", "preset=paper"),
        ("CONDUIT_POLICY_OPTIONS", "[1]"),
        ("CONDUIT_API_KEYS", "nokey"),
        ("CONDUIT_API_KEYS", "a b:12345678"),
        ("CONDUIT_API_KEYS", "alice:short"),
        ("CONDUIT_API_KEYS", "alice:7seven7"),
        ("CONDUIT_API_KEYS", " , "),
        ("CONDUIT_API_KEYS", "alice:sk-alice-1,alice:sk-alice-2"),
        ("CONDUIT_API_KEYS", "alice:sk-alice-1,bob:sk-alice-1"),
        ("CONDUIT_ADMIN_KEY", "short"),
        ("CONDUIT_ADMIN_KEY", "         "),
        ("CONDUIT_ALLOWED_HOSTS", ","),
        ("CONDUIT_ALLOWED_PRIVATE_HOSTS", "*.internal"),
        ("CONDUIT_OTLP_ENDPOINT", "collector:4318"),
        ("CONDUIT_HOST", " "),
        ("CONDUIT_MODEL", " "),
        ("CONDUIT_DEMO", "perhaps"),
    ],
)
def test_f10_mistakes_stop_the_start_by_name(load: Load, name: str, value: str) -> None:
    assert refusal(load, {name: value}).startswith(f"{name}: ")


def test_every_mistake_is_named_at_once(load: Load) -> None:
    said = refusal(load, {"CONDUIT_PORT": "x", "CONDUIT_PROT": "1"})
    assert "CONDUIT_PORT: " in said and "CONDUIT_PROT: there is no such setting" in said


def test_the_operators_key_is_no_callers_key(load: Load) -> None:
    keys = {"CONDUIT_API_KEYS": "alice:8-eight8", "CONDUIT_ADMIN_KEY": "8-eight8"}
    assert refusal(load, keys).startswith("CONDUIT_API_KEYS: all keys must differ")


@pytest.mark.parametrize("name", ["conduit_prot", "Conduit_Prot"])
def test_names_are_read_in_any_case(load: Load, name: str) -> None:
    assert load({"conduit_port": "9000"}).port == 9000
    assert "CONDUIT_PROT: there is no such setting" in refusal(load, {name: "1"})


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_u1_an_empty_variable_is_one_that_is_not_set(load: Load, name: str) -> None:
    assert load({f"CONDUIT_{name.upper()}": ""}) == Settings()


def test_u1_names_that_clients_read_do_not_stop_the_service(load: Load) -> None:
    names = ("CONDUIT_URL", "CONDUIT_API_KEY")
    assert load(dict.fromkeys(names, "http://127.0.0.1:8000")) == Settings()


@pytest.mark.parametrize(
    "url", ["127.0.0.1:6379", "valkey:6379", "http://h/0", "redis://h:abc/0", "redis://h/x"]
)
def test_f1_a_redis_url_that_cannot_work_is_refused_at_start(load: Load, url: str) -> None:
    """Which ones those are: tests/store/tiers/redis/test_url.py."""
    assert refusal(load, {"CONDUIT_REDIS_URL": url}).startswith("CONDUIT_REDIS_URL: ")


@pytest.mark.parametrize(
    "url", ["redis://valkey", "rediss://user:p%40ss@cache:6380/1", "unix:///run/valkey.sock"]
)
def test_f1_a_redis_url_that_can_work_is_taken(load: Load, url: str) -> None:
    taken = load({"CONDUIT_REDIS_URL": url}).redis_url
    assert taken is not None and taken.get_secret_value() == url


def test_f1_a_cluster_has_one_database(load: Load) -> None:
    cluster = {"CONDUIT_REDIS_CLUSTER": "true"}
    assert load({**cluster, "CONDUIT_REDIS_URL": "redis://h:7000"}).redis_cluster
    assert refusal(load, {**cluster, "CONDUIT_REDIS_URL": "redis://h:7000/1"}).startswith(
        "CONDUIT_REDIS_URL: "
    )


@pytest.mark.parametrize(
    "value",
    [
        "http://files.internal",
        "files.internal/",
        "files.internal:",
        "files.internal:0",
        "h:70000",
        "a b",
        "[::1]",
    ],
)
def test_a_host_that_could_never_match_is_refused(load: Load, value: str) -> None:
    for name in ("CONDUIT_ALLOWED_HOSTS", "CONDUIT_ALLOWED_PRIVATE_HOSTS"):
        assert refusal(load, {name: f"good.example,{value}"}).startswith(f"{name}: ")


def test_hosts_that_can_match_are_taken(load: Load) -> None:
    hosts = ("files.internal", "files.internal:8080", "127.0.0.1:8000", "::1", "[::1]:8000", "*.cdn.example")
    assert load({"CONDUIT_ALLOWED_HOSTS": ",".join(hosts)}).allowed_hosts == hosts
    assert load({"CONDUIT_ALLOWED_PRIVATE_HOSTS": ",".join(hosts[:-1])}).allowed_private_hosts == hosts[:-1]


def test_keys_are_in_no_message_and_no_repr(load: Load) -> None:
    for value in ("alice:hunter22x,alice:hunter22y", "alice:hunter22x,bob:hunter22x", "hunter22:"):
        assert "hunter22" not in refusal(load, {"CONDUIT_API_KEYS": value})
    for url in ("redis://:hunter22@h/x", "hunter22@h", "redis://:hunter22@h/0?db=hunter22"):
        assert "hunter22" not in refusal(load, {"CONDUIT_REDIS_URL": url})
    keys = {"CONDUIT_API_KEYS": "alice:hunter22x", "CONDUIT_ADMIN_KEY": "hunter22admin"}
    settings = load({**keys, "CONDUIT_REDIS_URL": "redis://:hunter22@h/0"})
    assert "hunter22" not in repr(settings) and "hunter22" not in str(settings)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings().port = 1
