"""Test the example in the docs that combines all techniques for faster training."""

import json

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from fresh_process import ROOT, run_python


NUMBERS = ["eins", "zwei", "drei", "vier", "f\u00fcnf"]
PAIRS = {f"{a + 1} {b + 1}": f"{NUMBERS[a]} {NUMBERS[b]}" for a in range(5) for b in range(5)}


def test_the_example_learns_to_translate_numbers_in_100_steps(tmp_path):
    rows = [json.dumps({"source": source, "target": target}) + "\n" for source, target in PAIRS.items()]
    (tmp_path / "pairs.jsonl").write_text("".join(rows * 4), encoding="utf-8")
    done = run_python([ROOT / "docs/examples/sooner.py", "pairs.jsonl", "sooner"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "sooner").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "sooner")
    ids = model.generate(**tokenizer(list(PAIRS), return_tensors="pt", padding=True), max_new_tokens=9)
    found = [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
    assert sum(text == target for text, target in zip(found, PAIRS.values(), strict=True)) > 20
