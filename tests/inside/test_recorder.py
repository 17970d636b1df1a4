"""Check that the recorder returns the modules' actual results and does not change the model."""

import ast
import inspect
import re
from collections import defaultdict
from pathlib import Path
from threading import Thread

import pytest
import torch
from torch.nn import functional as F
from transformers import BertConfig, BertModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from family import decoder_only, encoder_decoder, encoder_only, right_padded, tokens
from vanilla_transformer import VanillaTransformerEncoderModel
from vanilla_transformer.inside.recorder import find_stacks, record


SELF_ATTENTION = [
    "queries", "keys", "values", "scores", "scaled scores", "mask", "masked scores", "weights", "heads",
    "concatenation", "output projection", "residual", "layer norm",
]  # fmt: skip
EMBEDDING = ["tokens", "embeddings", "positions", "embedding + position"]
FEED_FORWARD = ["hidden", "activation", "feed-forward output", "residual", "layer norm"]
OUTPUT = ["layer output", "stack output", "logits"]


def inputs_of(model) -> dict[str, torch.Tensor]:
    ids, mask = right_padded([5, 3])
    extra = {"decoder_input_ids": tokens(2, 4)} if model.config.is_encoder_decoder else {}
    return {"input_ids": ids, "attention_mask": mask, **extra}


def by_part(steps) -> dict[tuple[str, str], torch.Tensor]:
    found = {(step.part, step.name): step.tensor for step in steps}
    assert len(found) == len(steps), "a part has a name twice"
    return found


def with_random_biases(model):
    """Randomise biases and norms, so that a test fails if the recorder ignores them."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=0.5)
    return model


@pytest.mark.parametrize(
    ("make", "stack", "parts"),
    [
        (encoder_only, "encoder", [*EMBEDDING, *SELF_ATTENTION, *FEED_FORWARD, *OUTPUT]),
        (decoder_only, "decoder", [*EMBEDDING, *SELF_ATTENTION, *FEED_FORWARD, *OUTPUT]),
        (encoder_decoder, "encoder", [*EMBEDDING, *SELF_ATTENTION, *FEED_FORWARD, *OUTPUT[:2]]),
        (
            encoder_decoder,
            "decoder",
            [*EMBEDDING, *SELF_ATTENTION, "encoder output", *SELF_ATTENTION, *FEED_FORWARD, *OUTPUT],
        ),
    ],
)
def test_the_steps_come_in_the_order_of_figure_1(make, stack, parts):
    model = make()
    assert [step.name for step in record(model, inputs_of(model), stack=stack)] == parts
    with_layer_input = record(model, inputs_of(model), layer=1, stack=stack)
    assert [step.name for step in with_layer_input] == [*EMBEDDING, "layer input", *parts[len(EMBEDDING) :]]


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize(("make", "stack"), [(encoder_only, "encoder"), (encoder_decoder, "decoder")])
def test_each_step_equals_its_equation(make, stack, norm_position):
    """Compute the expected values from the weights by the paper's formulas."""
    model = with_random_biases(make(norm_position=norm_position, dropout=0.0))
    inputs = inputs_of(model)
    found = by_part(record(model, inputs, stack=stack))
    stack_module = find_stacks(model)[stack]
    layer = stack_module.layers[0]
    post = norm_position == "post"
    close = torch.testing.assert_close

    ids = inputs["decoder_input_ids" if stack == "decoder" else "input_ids"]
    assert torch.equal(found["embedding", "tokens"], ids)
    embedded, positions = found["embedding", "embeddings"], found["embedding", "positions"]
    close(embedded, stack_module.embed_tokens.weight[ids])
    x = found["embedding", "embedding + position"]
    close(x, embedded * 32**0.5 + positions)

    def add_and_norm(part: str, norm: torch.nn.LayerNorm, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        close(found[part, "residual"], x + y)
        if not post:
            return x + y
        close(found[part, "layer norm"], F.layer_norm(x + y, (32,), norm.weight, norm.bias, 1e-6))
        return found[part, "layer norm"]

    def entering(part: str, norm: torch.nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
        if post:
            return x
        close(found[part, "layer norm"], F.layer_norm(x, (32,), norm.weight, norm.bias, 1e-6))
        return found[part, "layer norm"]

    visible = {
        "self-attention": torch.ones(4, 4).tril() if stack == "decoder" else inputs["attention_mask"][:, None, None],
        "cross-attention": inputs["attention_mask"][:, None, None],
    }
    for part, name in (("self-attention", "self_attn"), ("cross-attention", "cross_attn")):
        if not hasattr(layer, name):
            continue
        attention, add_norm = getattr(layer, name), getattr(layer, f"{name}_add_norm")
        entered = entering(part, add_norm.norm, x)
        source = found[part, "encoder output"] if part == "cross-attention" else entered
        q, k, v = (found[part, n] for n in ("queries", "keys", "values"))
        for projected, states, weight in ((q, entered, "q_proj"), (k, source, "k_proj"), (v, source, "v_proj")):
            for head in range(4):
                matrix = getattr(attention, weight).weight[8 * head : 8 * head + 8].T
                close(projected[:, head], states @ matrix, atol=1e-4, rtol=1e-4)
        close(found[part, "scores"], torch.einsum("bhqd,bhkd->bhqk", q, k), atol=1e-4, rtol=1e-4)
        close(found[part, "scaled scores"], found[part, "scores"] / 8**0.5)
        allowed = visible[part].bool().expand_as(found[part, "mask"])
        assert torch.equal(found[part, "mask"] == 0, allowed) and (found[part, "mask"][~allowed] < -1e30).all()
        close(found[part, "masked scores"], found[part, "scaled scores"] + found[part, "mask"])
        exponentials = found[part, "scaled scores"].exp() * allowed
        close(found[part, "weights"], exponentials / exponentials.sum(-1, keepdim=True), atol=1e-5, rtol=1e-4)
        close(found[part, "heads"], torch.einsum("bhqk,bhkd->bhqd", found[part, "weights"], v), atol=1e-5, rtol=1e-4)
        assert torch.equal(found[part, "concatenation"], torch.cat(found[part, "heads"].unbind(1), dim=-1))
        projected = found[part, "output projection"]
        close(projected, found[part, "concatenation"] @ attention.o_proj.weight.T, atol=1e-5, rtol=1e-4)
        x = add_and_norm(part, add_norm.norm, x, projected)

    entered = entering("feed-forward", layer.feed_forward_add_norm.norm, x)
    fc1, fc2 = layer.feed_forward.fc1, layer.feed_forward.fc2
    hidden, active = found["feed-forward", "hidden"], found["feed-forward", "activation"]
    close(hidden, entered @ fc1.weight.T + fc1.bias, atol=1e-4, rtol=1e-4)
    assert torch.equal(active, hidden.clamp(min=0)) and (hidden < 0).any()
    close(found["feed-forward", "feed-forward output"], active @ fc2.weight.T + fc2.bias, atol=1e-4, rtol=1e-4)
    x = add_and_norm("feed-forward", layer.feed_forward_add_norm.norm, x, found["feed-forward", "feed-forward output"])
    assert torch.equal(found["output", "layer output"], x)


@pytest.mark.parametrize("make", [encoder_only, decoder_only, encoder_decoder])
@pytest.mark.parametrize("window", [None, 3])
def test_recording_changes_neither_the_outputs_nor_the_model(make, window):
    model = make(sliding_window=window)
    inputs = inputs_of(model)
    before = model(**inputs).logits
    implementation = model.config._attn_implementation
    stack = "encoder" if make is encoder_only else "decoder"
    steps = record(model, inputs, layer=1, stack=stack)
    real = torch.ones_like(before[..., 0]) if make is encoder_decoder else inputs["attention_mask"]
    recorded = by_part(steps)["output", "logits"]
    torch.testing.assert_close(recorded[real.bool()], before[real.bool()], atol=1e-5, rtol=1e-5)
    assert model.config._attn_implementation == implementation
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(model(**inputs).logits, before)


def test_recording_with_a_cache_equals_recording_without_it():
    model = decoder_only()
    ids = tokens(2, 6)
    cache = model(ids[:, :-1], use_cache=True)[1]
    whole, last = (
        by_part(record(model, inputs, layer=1))
        for inputs in ({"input_ids": ids}, {"input_ids": ids[:, -1:], "past_key_values": cache})
    )
    assert whole.keys() == last.keys()
    weights = last["self-attention", "weights"]
    torch.testing.assert_close(weights, whole["self-attention", "weights"][:, :, -1:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(last["output", "logits"], whole["output", "logits"][:, -1:], atol=1e-4, rtol=1e-5)


def test_model_is_unchanged_after_a_failed_forward_pass():
    model = encoder_only()
    with pytest.raises(ValueError, match="input_ids holds 50"):
        record(model, {"input_ids": torch.tensor([[50]])})
    assert model.config._attn_implementation == "sdpa"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_recording_of_one_head_is_a_slice_of_all_heads():
    model = decoder_only()
    inputs = inputs_of(model)
    for all_heads, one_head in zip(record(model, inputs), record(model, inputs, head=2), strict=True):
        tensor = all_heads.tensor
        if "heads" in all_heads.axes:
            tensor = tensor[:, 2]
        assert torch.equal(one_head.tensor, tensor)
        assert len(one_head.axes) == tensor.dim() and "heads" not in one_head.axes


def test_output_of_the_last_layer_is_the_output_of_the_stack():
    model = encoder_decoder()
    inputs = inputs_of(model)
    expected = model(**inputs, output_hidden_states=True)
    found = by_part(record(model, inputs, layer=1, stack="decoder"))
    torch.testing.assert_close(found["embedding", "layer input"], expected.decoder_hidden_states[1])
    torch.testing.assert_close(found["output", "layer output"], expected.decoder_hidden_states[2])
    torch.testing.assert_close(found["cross-attention", "encoder output"], expected.encoder_last_hidden_state)


def test_shared_module_is_recorded_only_in_the_requested_stack():
    model = encoder_decoder()
    model.set_input_embeddings(model.get_input_embeddings())
    assert model.model.encoder.embed_tokens is model.model.decoder.embed_tokens
    inputs = inputs_of(model)
    steps = record(model, inputs, stack="decoder")
    assert torch.equal(steps[0].tensor, inputs["decoder_input_ids"]) and steps[4].part == "self-attention"


def test_a_model_with_remote_code_cites_the_code_in_its_folder(tmp_path):
    model = encoder_only(VanillaTransformerEncoderModel)
    model.save_pretrained(tmp_path)
    name = "modeling_vanilla_transformer.VanillaTransformerEncoderModel"
    remote = get_class_from_dynamic_module(name, str(tmp_path)).from_pretrained(tmp_path).eval()
    assert type(remote) is not type(model)
    inputs = inputs_of(model)
    for ours, theirs in zip(record(model, inputs), record(remote, inputs), strict=True):
        assert ours.source == theirs.source and torch.equal(ours.tensor, theirs.tensor)


# Step -> operation in its line of code: a binary operator, or the name of a called attribute
LOOP = "layers"  # the body of `for layer in self.layers`
COMPUTED_BY = {
    "tokens": "embed_tokens", "embeddings": "embed_tokens", "positions": "sin", "embedding + position": ast.Add,
    "layer input": LOOP, "encoder output": "k_proj", "queries": "q_proj", "keys": "k_proj", "values": "v_proj",
    "scores": ast.MatMult, "scaled scores": ast.Mult, "mask": ast.Add, "masked scores": ast.Add,
    "weights": "softmax", "heads": ast.MatMult, "concatenation": "reshape", "output projection": "o_proj",
    "residual": ast.Add, "layer norm": "norm", "hidden": "fc1", "activation": "activation",
    "feed-forward output": "fc2", "layer output": LOOP, "stack output": "norm", "logits": "lm_head",
}  # fmt: skip


def operations_by_line(code: str) -> dict[int, set]:
    """Return the binary operators and called attributes on each line of `code`."""
    found: dict[int, set] = defaultdict(set)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.BinOp):
            found[node.lineno].add(type(node.op))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found[node.lineno].add(node.func.attr)
        elif isinstance(node, ast.For) and isinstance(node.iter, ast.Attribute):
            for statement in node.body:
                found[statement.lineno].add(node.iter.attr)
    return found


def assert_lines(steps, code: str) -> None:
    """Assert that each step cites a line of `code`, the model file's source, that computes it."""
    operations = operations_by_line(code)
    for step in steps:
        file, line = step.source.split(":")
        assert file == "modeling_vanilla_transformer.py"
        assert COMPUTED_BY[step.name] in operations[int(line)], f"{step.part}, {step.name}: {step.source}"


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("make", [encoder_only, decoder_only, encoder_decoder])
def test_each_step_cites_the_line_of_code_that_computes_it(make, norm_position):
    model = make(norm_position=norm_position)
    stack = "encoder" if make is encoder_only else "decoder"
    code = Path(inspect.getfile(type(find_stacks(model)[stack]))).read_text(encoding="utf-8")
    assert_lines(record(model, inputs_of(model), layer=1, stack=stack), code)


def test_learned_positions_cite_the_line_that_looks_them_up():
    model = decoder_only(position_embedding="learned")
    (positions,) = (step for step in record(model, inputs_of(model)) if step.name == "positions")
    code = Path(inspect.getfile(type(model.base_model))).read_text(encoding="utf-8")
    assert "embed_positions" in operations_by_line(code)[int(positions.source.split(":")[1])]


class RenamedVariables(ast.NodeTransformer):
    """Rename all local variables, and parameters that are only passed by position."""

    def __init__(self, module: ast.Module):
        self.keywords = {node.arg for node in ast.walk(module) if isinstance(node, ast.keyword)} | {"self"}
        self.renamed: set[str] = set()

    def visit_FunctionDef(self, function: ast.FunctionDef) -> ast.FunctionDef:
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        parameters = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
        others = {node.id for node in names if isinstance(node.ctx, ast.Store)} - parameters
        # functions called only within this file
        if function.name.endswith("forward") and not function.decorator_list:
            others |= parameters - self.keywords - {"kwargs"}
        self.renamed |= others
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in others:
                node.id += "_renamed"
            elif isinstance(node, ast.arg) and node.arg in others:
                node.arg += "_renamed"
        return function


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_cited_lines_are_correct_if_variables_are_renamed(tmp_path, norm_position):
    model = encoder_decoder(norm_position=norm_position)
    model.save_pretrained(tmp_path)
    file = tmp_path / "modeling_vanilla_transformer.py"
    original = file.read_text(encoding="utf-8")
    module = ast.parse(original)
    renaming = RenamedVariables(module)
    code = ast.unparse(renaming.visit(module))
    file.write_text(code, encoding="utf-8")
    assert {"query", "key", "value", "scores", "weights", "output", "x", "layer", "angles"} <= renaming.renamed

    name = "modeling_vanilla_transformer.VanillaTransformerForConditionalGeneration"
    remote = get_class_from_dynamic_module(name, str(tmp_path)).from_pretrained(tmp_path).eval()
    assert "scores_renamed" in inspect.getsource(inspect.getmodule(type(remote)))
    inputs = inputs_of(model)
    for stack in ("encoder", "decoder"):
        ours, theirs = record(model, inputs, layer=1, stack=stack), record(remote, inputs, layer=1, stack=stack)
        assert_lines(theirs, code)
        assert [step.source for step in ours] != [step.source for step in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one.name == other.name and torch.equal(one.tensor, other.tensor)


def test_equations_name_other_activations_and_learned_positions():
    model = encoder_only(activation_function="gelu", position_embedding="learned", scale_embedding=False)
    equations = {(step.part, step.name): step.equation for step in record(model, inputs_of(model))}
    assert equations["feed-forward", "activation"] == "gelu(H)"
    assert equations["embedding", "positions"] == "PE = W_P[pos]"
    assert equations["embedding", "embedding + position"] == "X = E + PE"


def test_the_input_of_the_first_layer_equals_its_equation():
    """The cases: BERT's token types, BART's norm and offset, Marian's layout, and M2M100's frequencies."""
    fields = {"type_vocab_size": 2, "normalize_embedding": True, "scale_embedding": False}
    model = encoder_only(position_embedding="learned", position_offset=2, **fields)
    steps = {step.name: step for step in record(model, inputs_of(model))}
    assert steps["positions"].equation == "PE = W_P[pos + 2]"
    assert steps["embedding + position"].equation == "X = LayerNorm(E + W_T[kind] + PE)"
    scaled = {step.name: step for step in record(encoder_only(type_vocab_size=2), inputs_of(model))}
    assert scaled["embedding + position"].equation == "X = √d_model · (E + W_T[kind]) + PE"

    model = encoder_only(sinusoid_layout="half_split", sinusoid_frequencies="tensor2tensor", position_offset=2)
    steps = {step.name: step for step in record(model, inputs_of(model))}
    angle = "(pos + 2) / 10000^(i / (d_model/2 - 1))"
    assert steps["positions"].equation == f"PE(pos, i) = sin({angle}), PE(pos, i + d_model/2) = cos({angle})"
    pos, i, d_model = 3, 5, 32
    found = steps["positions"].tensor[0, pos, [i, i + d_model // 2]]
    expected = (pos + 2) / torch.tensor(10000.0) ** (i / (d_model / 2 - 1))
    torch.testing.assert_close(found, torch.stack([expected.sin(), expected.cos()]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 2}, "layer=2 does not exist: the model has layers 0 to 1"),
        ({"layer": -1}, "layer=-1"),
        ({"head": 4}, "head=4 does not exist: the model has heads 0 to 3"),
        ({"stack": "decoder"}, "stack='decoder' does not exist: VanillaTransformerForMaskedLM has encoder"),
    ],
)
def test_error_for_a_missing_layer_head_or_stack_lists_the_existing_ones(options, message):
    model = encoder_only()
    with pytest.raises(ValueError, match=re.escape(message)):
        record(model, inputs_of(model), **options)


def test_model_of_another_architecture_is_rejected():
    bert = BertModel(BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=1))
    with pytest.raises(ValueError, match="BertModel is not one of this project's models: `vanilla-transformer"):
        record(bert, {"input_ids": tokens()})


# --- Common mistakes in tutorials on these equations (listed in docs/lessons)


def test_masked_keys_get_weight_0_without_nan_in_half_precision():
    """A mask value of -1e9 would overflow float16, and -inf would give NaN in rows without visible keys."""
    model = decoder_only(dropout=0.0).half()
    ids = tokens(1, 4)
    padded_left = torch.tensor([[0, 0, 1, 1]])
    found = by_part(record(model, {"input_ids": ids, "attention_mask": padded_left}))
    weights = found["self-attention", "weights"]
    assert found["self-attention", "mask"].dtype == torch.float16
    assert weights.isfinite().all() and found["output", "logits"].isfinite().all()
    assert torch.equal(weights[0, 0, 2:] > 0, torch.tensor([[False, False, True, False], [False, False, True, True]]))


def test_self_attention_is_not_linear_in_its_input():
    """The output is linear in the values, but the weights depend on the input, too."""
    attention = encoder_only(VanillaTransformerEncoderModel).layers[0].self_attn
    states = torch.randn(1, 5, 32)
    with torch.no_grad():
        once, twice = (attention(x, x, None)[0] for x in (states, 2 * states))
    assert (twice - 2 * once).abs().max() > 0.1


def test_forward_passes_of_other_threads_are_not_recorded():
    model = encoder_decoder()
    inputs, others = inputs_of(model), {"input_ids": tokens(1, 7), "decoder_input_ids": tokens(1, 6)}
    expected = record(model, inputs, 1, stack="decoder")
    began = []

    def interrupt(*_):
        if not began:
            began.append(Thread(target=model, kwargs=others))
            began[0].start()
            began[0].join()

    model.base_model.decoder.layers[1].feed_forward.register_forward_hook(interrupt)
    found = record(model, inputs, 1, stack="decoder")
    assert began and [step.name for step in found] == [step.name for step in expected]
    for step, before in zip(found, expected, strict=True):
        torch.testing.assert_close(step.tensor, before.tensor, rtol=0, atol=0)
