"""From the section `kafka` of the settings to what the two kinds of clients want to hear."""

from __future__ import annotations

import pytest

from hermes_spark.errors import SettingsError
from hermes_spark.kafka.connection import client_config, spark_options
from hermes_spark.settings import KafkaSettings

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nBBBB\n-----END PRIVATE KEY-----\n"
LOGIN = {"KAFKA_USERNAME": "kim", "KAFKA_PASSWORD": 'se"cr\\et'}


@pytest.fixture
def files(tmp_path):
    for name, text in (("ca.pem", CERTIFICATE), ("own.pem", CERTIFICATE), ("own.key", KEY)):
        (tmp_path / name).write_text(text)
    return tmp_path


def encrypted(files, **fields) -> KafkaSettings:
    given = {"ca_file": str(files / "ca.pem"), "certificate_file": str(files / "own.pem")}
    given |= {"key_file": str(files / "own.key"), "security_protocol": "SASL_SSL", **fields}
    return KafkaSettings(bootstrap_servers="b:9093", **given)


def test_plain_needs_nothing_but_the_address():
    settings = KafkaSettings(bootstrap_servers="a:1,b:2")
    assert client_config(settings, {}) == {"bootstrap.servers": "a:1,b:2", "security.protocol": "PLAINTEXT"}
    assert spark_options(settings, {}) == {
        "kafka.bootstrap.servers": "a:1,b:2",
        "kafka.security.protocol": "PLAINTEXT",
    }


def test_both_kinds_of_clients_get_files_and_login(files):
    assert client_config(encrypted(files), LOGIN) == {
        "bootstrap.servers": "b:9093",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(files / "ca.pem"),
        "ssl.certificate.location": str(files / "own.pem"),
        "ssl.key.location": str(files / "own.key"),
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "kim",
        "sasl.password": 'se"cr\\et',
    }
    options = spark_options(encrypted(files, sasl_mechanism="PLAIN"), LOGIN)
    assert options == {
        "kafka.bootstrap.servers": "b:9093",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(files / "ca.pem"),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": CERTIFICATE,
        "kafka.ssl.keystore.key": KEY,
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="kim" password="se\\"cr\\\\et";',
    }


def test_files_and_login_of_another_protocol_are_not_asked_for():
    settings = KafkaSettings(bootstrap_servers="b:1", ca_file="/nowhere", certificate_file="/nowhere")
    assert set(client_config(settings, {})) == {"bootstrap.servers", "security.protocol"}


@pytest.mark.parametrize(
    ("fields", "environment", "said"),
    [
        ({"ca_file": "/nowhere/ca.pem"}, LOGIN, "kafka.ca_file /nowhere/ca.pem cannot be read"),
        ({"key_file": ""}, LOGIN, "without kafka.key_file"),
        ({}, {"KAFKA_USERNAME": "kim"}, "variable KAFKA_PASSWORD is not set; kafka.password_variable"),
        ({"username_variable": "WHO"}, LOGIN, "variable WHO is not set; kafka.username_variable"),
    ],
)
def test_what_is_missing_is_named(files, fields, environment, said):
    for made in (client_config, spark_options):
        with pytest.raises(SettingsError, match=said) as caught:
            made(encrypted(files, **fields), environment)
        assert "cr\\et" not in str(caught.value)


def test_a_key_in_another_form_is_refused_with_the_way_to_convert_it(files):
    (files / "own.key").write_text("-----BEGIN RSA PRIVATE KEY-----\nsecret\n")
    for made in (client_config, spark_options):
        with pytest.raises(SettingsError, match="openssl pkcs8 -topk8") as caught:
            made(encrypted(files), LOGIN)
        assert "secret" not in str(caught.value)
