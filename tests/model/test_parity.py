"""With copied weights, the models give the same outputs and gradients as `torch.nn.Transformer`."""

import pytest
import torch
from torch import nn

from family import encoder_decoder, encoder_only, right_padded
from vanilla_transformer import VanillaTransformerEncoderModel
from vanilla_transformer.modeling_vanilla_transformer import sinusoids


def copy_attention(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.data = torch.cat([p.weight.data for p in (ours.q_proj, ours.k_proj, ours.v_proj)])
    theirs.in_proj_bias.data = torch.cat([p.bias.data for p in (ours.q_proj, ours.k_proj, ours.v_proj)])
    theirs.out_proj.load_state_dict(ours.o_proj.state_dict())


def copy_layer(ours: nn.Module, theirs: nn.Module) -> None:
    copy_attention(ours.self_attn, theirs.self_attn)
    norms = [ours.self_attn_add_norm, ours.feed_forward_add_norm]
    if hasattr(ours, "cross_attn"):
        copy_attention(ours.cross_attn, theirs.multihead_attn)
        norms.insert(1, ours.cross_attn_add_norm)
    for number, norm in enumerate(norms, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.fc1.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.fc2.state_dict())


def perturb(model: nn.Module) -> None:
    """Randomise every parameter, so that missing ones change the outputs, and convert the model to double precision.

    In double precision, rounding errors from another order of operations are negligible.
    """
    for parameter in model.double().parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)


def torch_options(config, norm_first: bool) -> dict:
    return {
        "d_model": config.d_model, "nhead": config.num_heads, "dim_feedforward": config.d_ff, "dropout": 0.0,
        "batch_first": True, "norm_first": norm_first, "layer_norm_eps": config.layer_norm_eps,
    }  # fmt: skip


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_encoder_equals_torch_transformer_encoder(norm_position, implementation):
    torch.manual_seed(0)
    ours = encoder_only(VanillaTransformerEncoderModel, norm_position=norm_position, attention_bias=True)
    ours.set_attn_implementation(implementation)
    perturb(ours)
    options = torch_options(ours.config, norm_position == "pre")
    norm = ours.norm if norm_position == "pre" else None
    theirs = nn.TransformerEncoder(nn.TransformerEncoderLayer(**options), 2, norm, enable_nested_tensor=False).double()
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        copy_layer(mine, other)

    _, mask = right_padded([9, 5])
    embeddings = torch.randn(2, 9, 32, dtype=torch.double, requires_grad=True)
    given = ours(inputs_embeds=embeddings, attention_mask=mask).last_hidden_state
    positions = sinusoids(torch.arange(9)[None], 32)
    expected = theirs(embeddings * 32**0.5 + positions, src_key_padding_mask=mask == 0)
    real = mask.bool()
    torch.testing.assert_close(given[real], expected[real], atol=1e-5, rtol=1e-5)

    weights = torch.randn_like(given[real])
    ours_grad = torch.autograd.grad((given[real] * weights).sum(), embeddings, retain_graph=True)[0]
    theirs_grad = torch.autograd.grad((expected[real] * weights).sum(), embeddings)[0]
    torch.testing.assert_close(ours_grad, theirs_grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_encoder_decoder_equals_torch_transformer(norm_position):
    torch.manual_seed(1)
    ours = encoder_decoder(norm_position=norm_position, attention_bias=True).model
    perturb(ours)
    options = torch_options(ours.config, norm_position == "pre")
    theirs = nn.Transformer(**options, num_encoder_layers=2, num_decoder_layers=2).double()
    for stack in ("encoder", "decoder"):
        mine, other = getattr(ours, stack), getattr(theirs, stack)
        other.norm = mine.norm if norm_position == "pre" else None  # the paper has no norm after the stacks
        for layer, other_layer in zip(mine.layers, other.layers, strict=True):
            copy_layer(layer, other_layer)

    source, mask = right_padded([8, 4])
    target, _ = right_padded([6, 6])

    def embed(stack: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return stack.embed_tokens(ids) * 32**0.5 + sinusoids(torch.arange(ids.shape[1])[None], 32)

    given = ours(input_ids=source, attention_mask=mask, decoder_input_ids=target).last_hidden_state
    expected = theirs(
        embed(ours.encoder, source),
        embed(ours.decoder, target),
        src_key_padding_mask=mask == 0,
        memory_key_padding_mask=mask == 0,
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.double),
        tgt_is_causal=True,
    )
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-5)

    embedding = ours.encoder.embed_tokens.weight
    ours_grad = torch.autograd.grad(given.pow(2).sum(), embedding, retain_graph=True)[0]
    theirs_grad = torch.autograd.grad(expected.pow(2).sum(), embedding)[0]
    torch.testing.assert_close(ours_grad, theirs_grad, atol=1e-4, rtol=1e-4)
