"""The model: a two-method protocol (`client`), the wire formats (`chat_format`), Triton (`triton`), SQL (`udf`)."""
