"""Export a saved model for CTranslate2 or ONNX, together with its tokenizer and generation settings.

python scripts/export_model.py --source runs/en-de --output runs/en-de-ct2 --to ctranslate2 --quantization int8
python scripts/export_model.py --source runs/en-de --output runs/en-de-onnx --to onnx
"""

from vanilla_transformer.cli.export import main
from vanilla_transformer.cli.parser import run_command


if __name__ == "__main__":
    run_command(main)
