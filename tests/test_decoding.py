"""Trained translators decode as in section 6.1 of the paper, even when loaded without this package."""

from collections.abc import Callable
from math import log
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import GenerationConfig, MarianConfig, MarianMTModel, PreTrainedTokenizerFast

from family import decoder_only, encoder_decoder
from fresh_process import run_fresh
from saved_models import save_repeating, with_tokenizer
from small_data import train_and_validate_on, write_json_lines
from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli import train
from vanilla_transformer.data.tokenizer import KINDS, TEMPLATES, train_tokenizer
from vanilla_transformer.decoding import continue_text, paper_decoding, set_paper_decoding, token_text


OPTIONS = [
    "--encoder_layers", "1", "--decoder_layers", "1", "--d_model", "32", "--d_ff", "64", "--num_heads", "2",
    "--vocab_size", "300", "--tokens_per_batch", "300", "--disable_tqdm", "true", "--use_cpu", "true",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Train a translator for four steps. There are few held-out rows, because training also scores them."""
    folder = tmp_path_factory.mktemp("trained")
    rows = [{"source": f"{i} miles", "target": f"{i} millas"} for i in range(2)]
    files = train_and_validate_on(write_json_lines(folder / "rows.jsonl", rows))
    run = ["--output_dir", str(folder / "run"), "--max_steps", "4", "--save_steps", "2"]
    train.main(["translation", *OPTIONS, *files, *run])
    return folder / "run"


# Uses the code in the model folder, not the installed package. Prints three scored hypotheses for each source.
SEARCH = """
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
folder, options = arguments
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True).eval()
batch = tokenizer(["1 miles", "0 miles or so"], padding=True, return_tensors="pt")
options |= {"output_scores": True, "return_dict_in_generate": True}
output = model.generate(**batch, max_length=30, num_return_sequences=3, **options)
print(json.dumps([batch["input_ids"].tolist(), output.sequences.tolist(), output.sequences_scores.tolist()]))
"""


@pytest.mark.parametrize(("options", "alpha"), [({}, 0.6), ({"length_penalty": 1.5, "num_beams": 3}, 1.5)])
def test_a_saved_translator_scores_hypotheses_by_the_papers_formula(options, alpha, trained, tmp_path):
    """The formula is log P / ((5 + n) / 6)^alpha, not the log P / n^alpha of transformers."""
    sources, sequences, scores = run_fresh(SEARCH, tmp_path, str(trained), options)
    model = VanillaTransformerForConditionalGeneration.from_pretrained(trained).eval()
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    lengths = set()
    sources = [source for source in sources for _ in range(3)]
    for source, sequence, score in zip(sources, sequences, scores, strict=True):
        length = sequence.index(end, 1) if end in sequence[1:] else len(sequence) - 1
        ids, target = torch.tensor([source]), torch.tensor([sequence[1 : length + 1]])
        read = torch.tensor([sequence[:length]])
        with torch.inference_mode():
            logits = model(ids, attention_mask=(ids != pad).long(), decoder_input_ids=read).logits
        log_probability = logits.log_softmax(-1).gather(-1, target[..., None]).sum().item()
        assert score == pytest.approx(log_probability / ((5 + length) / 6) ** alpha, rel=1e-4)
        lengths.add(length)
    assert max(lengths) > 1  # for a single token, both formulas give the same score


# Calls a pipeline with only a folder and an input, as in the model card
TRANSLATE = """
from transformers import pipeline
folder, text = arguments
translator = pipeline("translation", model=folder, trust_remote_code=True, device="cpu")
of_the_library = translator(text, gnmt_length_penalty=False)
print(json.dumps([records[0]["translation_text"] for records in (translator(text), of_the_library)]))
"""


def test_a_pipeline_ranks_hypotheses_by_the_papers_formula(tmp_path):
    """At each step, the model either repeats a word (probability 0.84) or ends (0.16)."""
    folder, word = save_repeating(tmp_path / "model", p_end=0.16)

    def best(penalty: Callable[[int], float]) -> str:
        return word * (max(range(1, 50), key=lambda n: ((n - 1) * log(0.84) + log(0.16)) / penalty(n)) - 1)

    paper, library = best(lambda n: ((5 + n) / 6) ** 0.6), best(lambda n: n**0.6)
    assert (len(paper), len(library)) == (len(word), 13 * len(word))
    found = run_fresh(TRANSLATE, tmp_path, folder, "one two three", HF_HUB_OFFLINE="1")
    assert found == [paper, library]


def test_a_saved_translator_contains_the_decoding_options(trained):
    for folder in (trained, trained / "checkpoint-4"):
        saved = GenerationConfig.from_pretrained(folder)
        assert {name: getattr(saved, name) for name in paper_decoding()} == paper_decoding(4, 0.6)


def test_fine_tuning_a_greedy_translator_saves_no_beam_search_options(trained, tmp_path):
    rows = trained.parent / "rows.jsonl"
    run = ["--train_file", str(rows), "--output_dir", str(tmp_path / "run"), "--max_steps", "2", "--save_steps", "1"]
    given = ["--model_name_or_path", str(trained), "--num_beams", "1", "--average_checkpoints", "1"]
    train.main(
        ["translation", *run, *given, "--disable_tqdm", "true", "--use_cpu", "true", "--tokens_per_batch", "300"]
    )
    saved = GenerationConfig.from_pretrained(tmp_path / "run")
    assert (saved.num_beams, saved.early_stopping, saved.length_penalty) == (1, False, 1.0)
    assert (tmp_path / "run/checkpoint-1/model.safetensors").is_file()


def test_a_model_that_would_ignore_the_length_penalty_is_rejected():
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 9, "pad_token_id": 0}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    with pytest.raises(ValueError, match="MarianMTModel does not know how to generate with: gnmt_length_penalty"):
        set_paper_decoding(MarianMTModel(MarianConfig(**sizes, **heads)))
    set_paper_decoding(encoder_decoder())


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"word"}))
@pytest.mark.parametrize("template", TEMPLATES)
def test_token_texts_concatenate_to_the_input_with_its_leading_space(template, kind):
    tokenizer = train_tokenizer(["Two  men, Ġ and ▁two"] * 3, template=template, kind=kind, vocab_size=600)
    for text in ("Two men", "  Two  men", "and, Ġ ▁"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        begun = " " if template == "seq2seq" and kind != "character" else ""
        assert "".join(token_text(tokenizer, i) for i in ids) == begun + text


def test_the_text_of_sentencepiece_tokens_keeps_the_leading_space():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"▁a": 0, "b": 1}, [])))
    tokenizer.backend_tokenizer.decoder = decoders.Metaspace()
    assert tokenizer.decode([0]) == "a"
    assert [token_text(tokenizer, i) for i in (0, 1)] == [" a", "b"]


@pytest.mark.parametrize("special", [None, "eos_token", "unk_token"])
def test_a_batch_of_prompts_works_without_a_padding_token(special):
    """GPT and GPT-2 have no padding token."""
    model, trained = with_tokenizer(decoder_only, "causal", eos_token_id=None)
    model.generation_config.pad_token_id = None
    names = {} if special is None else {special: trained.eos_token}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained.backend_tokenizer, **names)
    prompts, options = ["one", "two one three one three", ""], {"do_sample": False, "max_new_tokens": 5}
    alone = [continue_text([prompt], model, tokenizer, **options)[0] for prompt in prompts]
    assert all(text.startswith(prompt) and text != prompt for text, prompt in zip(alone, prompts, strict=True))
    assert continue_text(prompts, model, tokenizer, **options) == alone
    several = continue_text(prompts, model, tokenizer, **options, num_beams=2, num_return_sequences=2)
    assert [text.startswith(prompts[i // 2]) for i, text in enumerate(several)] == [True] * 6
    assert tokenizer.pad_token is None


def test_continuations_stop_at_the_last_position_and_full_prompts_are_rejected():
    sizes = {"position_embedding": "learned", "max_position_embeddings": 12}
    model, tokenizer = with_tokenizer(decoder_only, "causal", eos_token_id=None, **sizes)
    texts = continue_text(["one", "one two"], model, tokenizer, do_sample=False, max_new_tokens=100)
    assert all(text.startswith("one") and text not in ("one", "one two") for text in texts)
    with pytest.raises(ValueError, match=r"The prompt 'one two one .* tokens, and the model 12 positions"):
        continue_text(["one", "one two " * 9], model, tokenizer, max_new_tokens=100)
    with pytest.raises(ValueError, match=r"max_new_tokens.* must be greater than 0, but is -5"):
        continue_text(["one"], model, tokenizer, max_new_tokens=-5)
