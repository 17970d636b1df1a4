"""Save a tiny model of every class and its outputs. Later versions must load the models and reproduce the outputs.

python tests/save_version.py            # create tests/saved_by/VERSION, once per release
"""

import json
from pathlib import Path

import torch

import vanilla_transformer
from vanilla_transformer.configuration_vanilla_transformer import __version__
from vanilla_transformer.files import new_folder


FOLDER = Path(__file__).parent / "saved_by"
SIZES = {"vocab_size": 24, "d_model": 8, "num_heads": 2, "d_ff": 12, "max_position_embeddings": 16}
TWO_STACKS, ONE_STACK = {"encoder_layers": 1, "decoder_layers": 2}, {"num_layers": 2}
# Options beyond the paper that change which weights exist or how they are used.
OTHER = {
    "norm_position": "pre", "position_embedding": "learned", "position_offset": 1, "normalize_embedding": True,
    "activation_function": "gelu", "attention_bias": True, "output_bias": True, "scale_embedding": False,
    "tie_word_embeddings": False, "d_k": 3, "d_v": 5,
}  # fmt: skip
OTHER_SINES = {"sinusoid_layout": "half_split", "sinusoid_frequencies": "tensor2tensor", "sliding_window": 2}

# name -> (suffix of the class name, config fields)
MODELS = {
    "translator": ("ForConditionalGeneration", TWO_STACKS),
    "translator-other": (
        "ForConditionalGeneration",
        {
            **TWO_STACKS,
            **OTHER,
            "share_encoder_decoder_embeddings": False,
            "target_vocab_size": 22,
            "decoder_d_ff": 10,
        },
    ),
    "language-model": ("ForCausalLM", ONE_STACK),
    "language-model-other": ("ForCausalLM", {**ONE_STACK, **OTHER_SINES}),
    "masked-lm": ("ForMaskedLM", ONE_STACK),
    "masked-lm-other": ("ForMaskedLM", {**ONE_STACK, **OTHER, "type_vocab_size": 2, "mlm_head_transform": True}),
    "classifier": ("ForSequenceClassification", {**ONE_STACK, "num_labels": 3}),
    "classifier-other": ("ForSequenceClassification", {**ONE_STACK, **OTHER, "num_labels": 1, "pooling": "max"}),
    "tagger": ("ForTokenClassification", {**ONE_STACK, "num_labels": 3}),
    "reader": ("ForQuestionAnswering", ONE_STACK),
    "encoder-decoder": ("Model", TWO_STACKS),
    "encoder": ("EncoderModel", ONE_STACK),
    "decoder": ("DecoderModel", ONE_STACK),
}
INPUT_IDS = [[1, 5, 9, 13, 17, 21, 2], [1, 4, 3, 2, 0, 0, 0]]


def outputs(model) -> dict[str, list]:
    """Return the output tensors for `INPUT_IDS` as lists, by name. The attention mask hides padding."""
    ids = torch.tensor(INPUT_IDS)
    decoder = {"decoder_input_ids": ids.flip(0)} if model.config.is_encoder_decoder else {}
    with torch.inference_mode():
        output = model(ids, attention_mask=(ids != 0).long(), **decoder)
    return {name: value.tolist() for name, value in output.items() if isinstance(value, torch.Tensor)}


def main() -> None:
    with new_folder(FOLDER / __version__) as folder:
        for number, (name, (end, fields)) in enumerate(MODELS.items()):
            torch.manual_seed(number)
            model_class = getattr(vanilla_transformer, f"VanillaTransformer{end}")
            model = model_class(model_class.config_class(**SIZES, **fields)).eval()
            for parameter in model.parameters():  # including weights that are initialised to 0 or 1
                torch.nn.init.normal_(parameter, std=0.3)
            model.save_pretrained(folder / name)
            for code in (folder / name).glob("*.py"):
                code.unlink()
            (folder / name / "outputs.json").write_text(json.dumps(outputs(model)) + "\n")


if __name__ == "__main__":
    main()
