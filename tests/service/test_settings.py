"""Settings: read once, and a mistake stops the start with its name."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from service.settings import Settings, SettingsError, load_settings


def test_defaults_need_no_environment() -> None:
    settings = load_settings({"PATH": "/bin", "HOME": "/root"})
    assert settings == Settings()
    assert (settings.host, settings.port, settings.api_keys) == ("127.0.0.1", 8000, ())


def test_values_have_units_lists_and_types() -> None:
    settings = load_settings(
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
        ("CONDUIT_IMAGE_FORMATS", "png,psd"),
        ("CONDUIT_DEVICE", "gpu"),
        ("CONDUIT_POLICY_OPTIONS", "preset=paper"),
        ("CONDUIT_POLICY_OPTIONS", "[1]"),
        ("CONDUIT_API_KEYS", "nokey"),
        ("CONDUIT_API_KEYS", "a b:12345678"),
        ("CONDUIT_API_KEYS", "alice:short"),
        ("CONDUIT_ADMIN_KEY", "short"),
    ],
)
def test_f10_mistakes_stop_the_start_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({name: value})
    assert name in str(caught.value)


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"CONDUIT_PORT": "x", "CONDUIT_PROT": "1"})
    assert "CONDUIT_PORT" in str(caught.value) and "CONDUIT_PROT: there is no such setting" in str(
        caught.value
    )


def test_keys_are_in_no_message_and_no_repr() -> None:
    for value in ("alice:hunter22x,alice:hunter22y", "alice:hunter22x,bob:hunter22x", "hunter22:"):
        with pytest.raises(SettingsError) as caught:
            load_settings({"CONDUIT_API_KEYS": value})
        assert "hunter22" not in str(caught.value)
    settings = load_settings({"CONDUIT_API_KEYS": "alice:hunter22x", "CONDUIT_ADMIN_KEY": "hunter22admin"})
    assert "hunter22" not in repr(settings)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings().port = 1
