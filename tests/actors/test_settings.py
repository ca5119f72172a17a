"""The environment is read once; what cannot be right is refused with the variable's name and what it should be."""

from collections.abc import Mapping

import pytest

from actors.settings import Settings, SettingsError, load


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One without any variable of ours."""
    import os

    for name in list(os.environ):
        if name.startswith(("CALLKEEPER_", "DATABASE_URL", "REPLICATE_", "ANTHROPIC_", "OPENROUTER_", "HEYGEN_")):
            monkeypatch.delenv(name)
    return monkeypatch


def read(environment: pytest.MonkeyPatch, **variables: str) -> Settings:
    for name, value in variables.items():
        environment.setenv(name, value)
    return load()


def test_nothing_set_is_a_good_start(environment: pytest.MonkeyPatch) -> None:
    settings = read(environment)
    assert (settings.lease, settings.beat) == (30, 10)
    with pytest.raises(SettingsError, match=r"DATABASE_URL is not set.*postgresql://"):
        settings.require_database_url()


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"CALLKEEPER_LEASE": "soon"}, ["CALLKEEPER_LEASE"]),
        ({"CALLKEEPER_LEASE": "0"}, ["CALLKEEPER_LEASE"]),
        ({"CALLKEEPER_THREADS": "1000"}, ["CALLKEEPER_THREADS", "256"]),
        ({"CALLKEEPER_BEAT": "20"}, ["CALLKEEPER_LEASE", "CALLKEEPER_BEAT", "CALLKEEPER_LEASE_MARGIN"]),
        ({"CALLKEEPER_NOTICE_URL": "https://app.example/ended"}, ["CALLKEEPER_NOTICE_SECRET"]),
        ({"CALLKEEPER_NOTICE_URL": "nowhere", "CALLKEEPER_NOTICE_SECRET": "x"}, ["CALLKEEPER_NOTICE_URL"]),
        ({"CALLKEEPER_ALERT_URL": "chat"}, ["CALLKEEPER_ALERT_URL"]),
        ({"CALLKEEPER_ALERT_SECRET": "x"}, ["CALLKEEPER_ALERT_SECRET", "CALLKEEPER_ALERT_URL"]),
        ({"CALLKEEPER_ALERT_EMAIL": "ops@example.com"}, ["CALLKEEPER_ALERT_EMAIL", "CALLKEEPER_SMTP_URL"]),
        (
            {"CALLKEEPER_ALERT_EMAIL": "ops", "CALLKEEPER_SMTP_URL": "smtp://mail.example"},
            ["CALLKEEPER_ALERT_EMAIL", "ops@example.com"],
        ),
        *(
            ({"CALLKEEPER_SMTP_URL": url}, ["CALLKEEPER_SMTP_URL", "smtp://user:password@mail.example.com:587"])
            for url in ("mail.example", "smtp://", "smtp://me:p/ss@mail.example", "smtp://mail.example?tls=allways")
        ),
        ({"CALLKEEPER_KINDS": '{"replicate-prediction": {"pol_every": 1}}'}, ["CALLKEEPER_KINDS", "pol_every"]),
        ({"CALLKEEPER_KINDS": '{"replicate-prediction": {"poll_every": -1}}'}, ["CALLKEEPER_KINDS", "poll_every"]),
        ({"CALLKEEPER_KINDS": "{"}, ["kinds"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_a_wrong_value_is_refused_by_name(
    environment: pytest.MonkeyPatch, variables: Mapping[str, str], named: list[str]
) -> None:
    with pytest.raises(SettingsError) as refused:
        read(environment, **variables)
    for word in named:
        assert word in str(refused.value)


def test_all_that_is_wrong_is_told_at_once(environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"CALLKEEPER_GRACE.*CALLKEEPER_THREADS"):
        read(environment, CALLKEEPER_GRACE="x", CALLKEEPER_THREADS="y")


def test_a_refusal_never_shows_the_value(environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError) as refused:
        read(environment, CALLKEEPER_KINDS='{"replicate-prediction": {"api_key": {"r8_secretsecretsecretsecret": 1}}}')
    assert "r8_secret" not in str(refused.value)
    environment.delenv("CALLKEEPER_KINDS")
    with pytest.raises(SettingsError) as refused:
        read(environment, CALLKEEPER_ALERT_URL="ftp://chat.example/hooks/secret-path")
    assert "secret-path" not in str(refused.value)


def test_an_empty_variable_counts_as_unset(environment: pytest.MonkeyPatch) -> None:
    """Compose files pass on what is not there as an empty text; that is no key, and no number either."""
    settings = read(environment, REPLICATE_API_TOKEN="", DATABASE_URL="", CALLKEEPER_LEASE="", CALLKEEPER_KINDS="")
    assert settings.replicate_api_token is None
    assert settings.database_url is None
    assert settings.lease == 30


def test_secrets_come_by_name_and_are_not_shown(environment: pytest.MonkeyPatch) -> None:
    settings = read(environment, CALLKEEPER_SECRET_MAIL_KEY="hush", REPLICATE_API_TOKEN="hush too")
    assert settings.secrets["mail_key"].get_secret_value() == "hush"
    assert "hush" not in repr(settings)
    assert "hush" not in settings.model_dump_json()


def test_lists_are_written_with_commas(environment: pytest.MonkeyPatch) -> None:
    settings = read(
        environment, CALLKEEPER_MODULES="app.jobs, app.more ,", CALLKEEPER_INSECURE_MEDIA_HOSTS="127.0.0.1:1"
    )
    assert settings.modules == ["app.jobs", "app.more"]
    assert settings.insecure_media_hosts == ["127.0.0.1:1"]


def test_all_that_is_confidential_is_known(environment: pytest.MonkeyPatch) -> None:
    found = read(
        environment,
        REPLICATE_API_TOKEN="r8",
        CALLKEEPER_SECRET_VENDOR="vendors",
        CALLKEEPER_NOTICE_SECRET="notices",
        CALLKEEPER_KINDS='{"kie-veo": {"api_key": "veos", "callback_secrets": ["first", "second"]}}',
    )
    assert sorted(found.confidential) == ["first", "notices", "r8", "second", "vendors", "veos"]
