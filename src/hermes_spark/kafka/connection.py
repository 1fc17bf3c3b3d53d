"""How to reach Kafka (section `kafka` of the settings), as librdkafka and as Spark's connector want to hear it.

What these functions return holds secrets: it is handed to a client, and never logged or put into an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hermes_spark.errors import SettingsError
from hermes_spark.settings import KafkaSettings

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
_KEY = "-----BEGIN PRIVATE KEY-----"
"""PKCS#8 without encryption, the one form that Java's clients take."""


def client_config(settings: KafkaSettings, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The properties of a `confluent_kafka` client.

    Raises `SettingsError` when a file or variable that the settings name is missing or holds something else.
    """
    config = {"bootstrap.servers": settings.bootstrap_servers, "security.protocol": settings.security_protocol}
    if _is_encrypted(settings):
        if settings.ca_file:
            _pem("ca_file", settings.ca_file, _CERTIFICATE)
            config["ssl.ca.location"] = settings.ca_file
        if settings.certificate_file:
            _identity(settings)
            config["ssl.certificate.location"] = settings.certificate_file
            config["ssl.key.location"] = settings.key_file
    if _has_login(settings):
        username, password = _login(settings, environment)
        config |= {"sasl.mechanisms": settings.sasl_mechanism, "sasl.username": username, "sasl.password": password}
    return config


def spark_options(settings: KafkaSettings, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The same as options of Spark's Kafka source, whose clients are Java's. Raises `SettingsError` as `client_config`.

    The authorities' file is read where the clients are, so every executor needs it under the same path.
    """
    config = {"bootstrap.servers": settings.bootstrap_servers, "security.protocol": settings.security_protocol}
    if _is_encrypted(settings):
        if settings.ca_file:
            _pem("ca_file", settings.ca_file, _CERTIFICATE)
            config |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": settings.ca_file}
        if settings.certificate_file:
            certificate, key = _identity(settings)
            config |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": certificate,
                "ssl.keystore.key": key,
            }
    if _has_login(settings):
        config |= {"sasl.mechanism": settings.sasl_mechanism, "sasl.jaas.config": jaas_config(settings, environment)}
    return {f"kafka.{name}": value for name, value in config.items()}


def jaas_config(settings: KafkaSettings, environment: Mapping[str, str] = os.environ) -> str:
    """The login of Java's clients, from the variables that the settings name. Raises `SettingsError` if one is missing."""
    username, password = _login(settings, environment)
    module = _LOGIN_MODULES[settings.sasl_mechanism]
    return f"{module} required username={_quoted(username)} password={_quoted(password)};"


def _is_encrypted(settings: KafkaSettings) -> bool:
    return settings.security_protocol in ("SSL", "SASL_SSL")


def _has_login(settings: KafkaSettings) -> bool:
    return settings.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")


def _identity(settings: KafkaSettings) -> tuple[str, str]:
    """The texts of our own certificate and its key."""
    if not settings.key_file:
        raise SettingsError(
            "kafka.certificate_file is given without kafka.key_file; expected the PEM file of the certificate's key"
        )
    certificate = _pem("certificate_file", settings.certificate_file, _CERTIFICATE)
    return certificate, _pem("key_file", settings.key_file, _KEY)


def _pem(setting: str, name: str, begins: str) -> str:
    try:
        text = Path(name).read_text(encoding="ascii")
    except OSError as exc:
        raise SettingsError(f"kafka.{setting} {name} cannot be read ({exc.strerror}); expected a PEM file") from None
    except UnicodeDecodeError:
        raise SettingsError(f"kafka.{setting} {name} is no text; expected a PEM file (openssl converts it)") from None
    if begins not in text:
        convert = "; openssl pkcs8 -topk8 -nocrypt converts other keys" if begins == _KEY else ""
        raise SettingsError(f"kafka.{setting} {name} has no line {begins}{convert}")
    return text


def _login(settings: KafkaSettings, environment: Mapping[str, str]) -> tuple[str, str]:
    return (
        _variable("username_variable", settings.username_variable, environment),
        _variable("password_variable", settings.password_variable, environment),
    )


def _variable(setting: str, name: str, environment: Mapping[str, str]) -> str:
    value = environment.get(name, "")
    if not value:
        raise SettingsError(
            f"the environment variable {name} is not set; kafka.{setting} names it, and SASL needs what it holds"
        )
    return value


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
