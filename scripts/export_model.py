"""Export a saved model for other runtimes: CTranslate2 or ONNX, with tokenizer and generation settings beside it.

python scripts/export_model.py --source runs/en-de --output runs/en-de-ct2 --to ctranslate2 --quantization int8
python scripts/export_model.py --source runs/en-de --output runs/en-de-onnx --to onnx
"""

from dataclasses import dataclass, field
from pathlib import Path

from transformers import AutoConfig, AutoTokenizer, HfArgumentParser, PreTrainedModel

import vanilla_transformer
from text_io import new_folder


QUANTIZATIONS = ("int8", "int16", "float16", "bfloat16", "float32")


@dataclass
class ExportArguments:
    source: str = field(metadata={"help": "The model: a folder, or a name on the Hub."})
    output: str = field(metadata={"help": "New folder for the exported model."})
    to: str = field(default="ctranslate2", metadata={"help": "Format.", "choices": ["ctranslate2", "onnx"]})
    quantization: str | None = field(
        default=None, metadata={"help": "Type of the stored weights, of CTranslate2.", "choices": list(QUANTIZATIONS)}
    )

    def __post_init__(self):
        if self.to == "onnx" and self.quantization is not None:
            raise ValueError(f"--quantization {self.quantization} is for CTranslate2: leave it out for ONNX.")
        if Path(self.output).exists():
            raise ValueError(f"{self.output} exists: choose a new folder.")


def load_model(name: str) -> PreTrainedModel:
    """A model of this project under its own head, in evaluation mode.

    Raises:
        ValueError: it is not a model of this project.
    """
    architecture = (AutoConfig.from_pretrained(name).architectures or ["none"])[0]
    if architecture not in vanilla_transformer.__all__:
        raise ValueError(f"{name} holds a model of class {architecture}; only this project's can be exported.")
    if architecture in ("VanillaTransformerModel", "VanillaTransformerDecoderModel"):
        raise ValueError(f"{name} holds a {architecture}, which has no output layer: export one that generates text.")
    return getattr(vanilla_transformer, architecture).from_pretrained(name).float().eval()


def main(arguments: list[str] | None = None) -> None:
    (args,) = HfArgumentParser(ExportArguments).parse_args_into_dataclasses(arguments)
    model, tokenizer = load_model(args.source), AutoTokenizer.from_pretrained(args.source)
    with new_folder(args.output) as part:
        if args.to == "ctranslate2":
            from ctranslate2_export import export_ctranslate2  # each runtime is needed for its own format only

            export_ctranslate2(model, tokenizer, part, args.quantization)
            if not model.can_generate():
                print("CTranslate2's encoder gives the last hidden states; a head on top of them is not exported.")
        else:
            from onnx_export import export_onnx

            export_onnx(model, part)
        tokenizer.save_pretrained(part)
        if model.can_generate():
            model.generation_config.save_pretrained(part)
    print(f"{args.output}: {', '.join(sorted(path.name for path in Path(args.output).iterdir()))}")


if __name__ == "__main__":
    main()
