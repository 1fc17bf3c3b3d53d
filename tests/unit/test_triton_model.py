"""What a Triton status, a set of tensors and a model's metadata mean to us."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from hermes_spark.errors import ModelBusy, ModelContractError, ModelError, ModelTimeout, ModelUnavailable
from hermes_spark.llm import triton
from hermes_spark.llm.triton_contract import (
    INPUTS,
    OUTPUTS,
    Tensor,
    broken_promises,
    prompt_inputs,
    read_outputs,
    sampling_inputs,
)
from hermes_spark.messages import Usage
from hermes_spark.settings import ModelSettings


class StubTokenizer:
    end_id = 9


def outputs(**changes):
    tensors = {
        "output_ids": np.array([[[5, 6, 7, 0]]], np.int32),
        "sequence_length": np.array([[3]], np.int32),
        "finish_reason": np.array([[b"stop"]], np.object_),
        "num_input_tokens": np.array([[11]], np.int32),
        "num_output_tokens": np.array([[3]], np.int32),
    }
    return {**tensors, **changes}


def test_every_grpc_status_has_a_meaning():
    # Fails when the library gains a status that nobody has mapped.
    assert {str(code) for code in grpc.StatusCode} - {"StatusCode.OK"} == set(triton.ERRORS) - {None}


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_status_becomes_one_of_our_errors(code):
    model = triton.TritonModel(ModelSettings(url="10.0.0.1:8001"), StubTokenizer())
    with (
        pytest.raises(ModelError, match=r"qwen35b_a3b at 10\.0\.0\.1:8001 failed .*first line\)") as caught,
        model._translated(),
    ):
        raise InferenceServerException("first line\nwords of a customer", status=str(code))
    assert type(caught.value) is triton.ERRORS[str(code)]
    assert "customer" not in str(caught.value)


def test_an_error_of_the_client_itself_is_a_contract_error():
    model = triton.TritonModel(ModelSettings(), StubTokenizer())
    with pytest.raises(ModelContractError), model._translated():
        raise InferenceServerException("got unexpected numpy array shape")


def test_every_meaning_says_what_to_do():
    assert set(triton._REMEDIES) == set(triton.ERRORS.values()) == set(ModelError.__subclasses__())
    assert set(triton.ERRORS.values()) == {ModelBusy, ModelUnavailable, ModelTimeout, ModelContractError}


def test_a_reply_is_cut_to_its_length():
    generation = read_outputs(outputs().get)
    assert generation.ids.tolist() == [5, 6, 7]
    assert generation.finish_reason == "stop"
    assert generation.usage == Usage(11, 3)


def test_the_first_beam_is_taken_and_an_empty_reply_is_a_reply():
    two = outputs(output_ids=np.array([[[1, 2], [3, 4]]], np.int32), sequence_length=np.array([[1, 2]], np.int32))
    assert read_outputs(two.get).ids.tolist() == [1]
    none = outputs(output_ids=np.zeros((1, 1, 0), np.int32), sequence_length=np.array([[0]], np.int32))
    assert read_outputs(none.get).ids.tolist() == []


def test_text_may_come_as_fixed_width_bytes():
    assert read_outputs(outputs(finish_reason=np.array([[b"length"]])).get).finish_reason == "length"


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_missing_output_is_named(name):
    with pytest.raises(ModelContractError, match=f"lacks the output {name}"):
        read_outputs(outputs(**{name: None}).get)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_wrong_type_is_named(name):
    with pytest.raises(ModelContractError, match=f"answered {name} as float32"):
        read_outputs(outputs(**{name: np.zeros((1, 1), np.float32)}).get)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("output_ids", np.zeros((1, 4), np.int32)),
        ("output_ids", np.zeros((2, 1, 4), np.int32)),
        ("output_ids", np.zeros((1, 0, 4), np.int32)),
        ("output_ids", np.zeros((1, 1, 2), np.int32)),
        ("sequence_length", np.zeros((1, 0), np.int32)),
        ("sequence_length", np.array([[-1]], np.int32)),
        ("sequence_length", np.array([[5]], np.int32)),
        ("sequence_length", np.array([3], np.int32)),
        ("finish_reason", np.array([[b"stop", b"stop"]], np.object_)),
        ("finish_reason", np.zeros((1, 0), np.object_)),
        ("finish_reason", np.array([[b"end\xff"]], np.object_)),
        ("num_input_tokens", np.zeros((0, 1), np.int32)),
        ("num_output_tokens", np.zeros((1, 2), np.int32)),
    ],
)
def test_an_ill_shaped_output_is_a_contract_error(name, value):
    with pytest.raises(ModelContractError, match=name):
        read_outputs(outputs(**{name: value}).get)


def test_inputs_have_the_contracts_types_and_shapes():
    tensors = {
        **sampling_inputs(ModelSettings(seed=2**63), 9),
        **prompt_inputs(np.array([1, 2, 3], np.int32), 64),
    }
    assert set(tensors) == set(INPUTS)
    for tensor in triton._as_infer_inputs(tensors):
        promised = INPUTS[tensor.name()]
        assert (tensor.datatype(), len(tensor.shape())) == promised
        assert tensor.shape()[0] == 1
    assert tensors["input_ids"].tolist() == [[1, 2, 3]]
    assert tensors["input_lengths"].tolist() == [[3]]
    assert tensors["request_output_len"].tolist() == [[64]]
    assert tensors["end_id"].tolist() == [[9]]
    assert tensors["seed"].tolist() == [[2**63]]


def test_seed_zero_sends_none():
    assert "seed" not in sampling_inputs(ModelSettings(seed=0), 9)


def test_a_model_that_keeps_the_contract_and_offers_more_is_accepted():
    more = {"stop_words": Tensor("BYTES", 2)}
    assert broken_promises({**INPUTS, **more}, {**OUTPUTS, **more}, seed=7) == []


def test_broken_promises_are_told_one_by_one():
    inputs = {name: tensor for name, tensor in INPUTS.items() if name not in ("top_k", "seed")}
    listed = broken_promises(inputs, {**OUTPUTS, "output_ids": Tensor("INT64", 2)}, seed=0)
    assert listed == [
        "input top_k is missing (INT32, 2 dimensions with the batch's)",
        "output output_ids is INT64 with 2 dimensions instead of INT32 with 3, the batch's included",
    ]
    assert any("input seed is missing" in clause for clause in broken_promises(inputs, OUTPUTS, seed=7))
