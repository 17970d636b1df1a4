"""Export a saved model for CTranslate2 or ONNX, together with its tokenizer and generation settings.

vanilla-transformer export --source runs/en-de --output runs/en-de-ct2 --to ctranslate2 --quantization int8
vanilla-transformer export --source runs/en-de --output runs/en-de-onnx --to onnx
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from transformers import PreTrainedConfig
from transformers.utils import CONFIG_NAME

from vanilla_transformer.cli.parser import TRUST_REMOTE_CODE, CommandParser
from vanilla_transformer.files import check_new, new_folder
from vanilla_transformer.loading import MODELS, load_model, load_tokenizer


# exclude the bare decoder: other runtimes need the output layer
EXPORTED = tuple(name for name in MODELS if name not in ("VanillaTransformerModel", "VanillaTransformerDecoderModel"))
QUANTIZATIONS = ("int8", "int16", "float16", "bfloat16", "float32")


@dataclass
class ExportArguments:
    """Options of `export`.

    Raises:
        ValueError: a quantization is given for ONNX, or the output folder exists.
    """

    source: str = field(metadata={"help": "Model folder, or name on the Hub."})
    output: str = field(metadata={"help": "Folder to create for the exported model."})
    to: str = field(
        default="ctranslate2", metadata={"help": "Format to export to.", "choices": ["ctranslate2", "onnx"]}
    )
    quantization: str | None = field(
        default=None,
        metadata={"help": "Type of the stored weights (CTranslate2 only).", "choices": list(QUANTIZATIONS)},
    )
    trust_remote_code: bool = field(default=False, metadata=TRUST_REMOTE_CODE)

    def __post_init__(self):
        if self.to == "onnx" and self.quantization is not None:
            raise ValueError(f"--quantization {self.quantization} is for CTranslate2: leave it out for ONNX.")
        check_new(self.output)


def write_facts(config: PreTrainedConfig, file: Path) -> None:
    """Write the config with its class names, but without references to the model's code."""
    facts = config.to_dict()
    for name in ("auto_map", "custom_pipelines"):
        facts.pop(name, None)
    file.write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Run the command.

    Raises:
        ValueError: the export format does not support the model.
    """
    (args,) = CommandParser(ExportArguments, __doc__).parse_args_into_dataclasses(arguments)
    # imported here, because each format needs a different extra
    if args.to == "ctranslate2":
        from vanilla_transformer.conversion.to_ctranslate2 import export_ctranslate2
    else:
        from vanilla_transformer.conversion.to_onnx import export_onnx
    model = load_model(args.source, EXPORTED, args.trust_remote_code).float()
    tokenizer = load_tokenizer(args.source, args.trust_remote_code)
    with new_folder(args.output) as part:
        if args.to == "ctranslate2":
            export_ctranslate2(model, tokenizer, part, args.quantization)
            if not model.can_generate():
                print("CTranslate2's encoder gives the last hidden states; a head on top of them is not exported.")
        else:
            export_onnx(model, part)
            write_facts(model.config, part / CONFIG_NAME)
        tokenizer.save_pretrained(part)
        if model.can_generate():
            model.generation_config.save_pretrained(part)
    print(f"{args.output}: {', '.join(sorted(path.name for path in Path(args.output).iterdir()))}")
