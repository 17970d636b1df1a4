"""A datastore of training examples contributes to each prediction, both in the Python API and in the commands."""

from pathlib import Path

import pytest
import torch
from transformers import DataCollatorForSeq2Seq

from saved_models import with_tokenizer, write
from small_data import SMALL, write_json_lines
from vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.cli.datastore import main as datastore_command
from vanilla_transformer.cli.evaluate import main as evaluate_command
from vanilla_transformer.cli.train import main as train
from vanilla_transformer.cli.translate import main as translate_command
from vanilla_transformer.datastore import build_datastore, load_datastore, use_datastore
from vanilla_transformer.decoding import translate


PAIRS = {
    "one red house": "una casa roja",
    "two red houses": "dos casas rojas",
    "the house is red": "la casa es roja",
    "one": "uno",
    "i see two houses": "veo dos casas",
}
ROWS = [{"source": source, "target": target} for source, target in PAIRS.items()]


@pytest.fixture
def untrained():
    """Return a translator with random weights, its tokenizer, and a batch with all pairs."""
    model, tokenizer = with_tokenizer(texts=[*PAIRS, *PAIRS.values()] * 3)
    rows = [tokenizer(text, text_target=target) for text, target in PAIRS.items()]
    return model.eval(), tokenizer, DataCollatorForSeq2Seq(tokenizer, model=model)([dict(row) for row in rows])


def predicted(model, batch) -> torch.Tensor:
    """Return the log-probabilities of the next token at each position (batch, length, vocab)."""
    with torch.no_grad():
        return model(**{name: value for name, value in batch.items() if name != "labels"}).logits.log_softmax(-1)


def test_mixed_probabilities_match_the_paper(untrained):
    """Compare with equations 1 and 2 of Khandelwal et al. (2021), using cosine similarity instead of distance."""
    model, _, batch = untrained
    settings = {"neighbours": 5, "share": 0.3, "temperature": 0.4}
    store = build_datastore(model, [batch], **settings)
    with torch.no_grad():
        states = model.model(**{name: value for name, value in batch.items() if name != "labels"}).last_hidden_state
    places = [(int(row), int(column)) for row, column in (batch["labels"] >= 0).nonzero()]
    kept = [(states[place].double(), int(batch["labels"][place])) for place in places]
    alone = predicted(model, batch)
    with use_datastore(model, store):
        mixed = predicted(model, batch)
    for place in places:
        state = states[place].double()
        cosines = [(float(state @ key / state.norm() / key.norm()), token) for key, token in kept]
        near = sorted(cosines, reverse=True)[:5]
        votes = torch.tensor([cosine / 0.4 for cosine, _ in near]).softmax(0)
        expected = 0.7 * alone[place].exp()
        for vote, (_, token) in zip(votes, near, strict=True):
            expected[token] += 0.3 * vote
        torch.testing.assert_close(mixed[place].exp(), expected, atol=5e-3, rtol=0)  # keys are quantised to 8 bits
    torch.testing.assert_close(predicted(model, batch), alone)  # leaving the context disables the datastore


def test_an_untrained_model_translates_the_pairs_in_its_datastore(untrained):
    model, tokenizer, batch = untrained
    assert translate([*PAIRS], model, tokenizer, num_beams=1) != [*PAIRS.values()]
    with use_datastore(model, build_datastore(model, [batch], share=1.0)):
        assert translate([*PAIRS], model, tokenizer, num_beams=1) == [*PAIRS.values()]
        assert translate([*PAIRS], model, tokenizer, num_beams=3) == [*PAIRS.values()]


def test_training_ignores_the_datastore(untrained):
    model, _, batch = untrained
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        losses.append(model.train()(**batch).loss.item())
        if len(losses) == 1:
            use_datastore(model, build_datastore(model, [batch]))
    assert losses[0] == losses[1]


def test_a_datastore_is_saved_and_loaded_separately_from_the_model(untrained, tmp_path):
    model, tokenizer, batch = untrained
    folder = write(tmp_path / "model", model, tokenizer)
    build_datastore(model, [batch], neighbours=7, share=0.5, temperature=0.1).save(folder)
    build_datastore(model, [batch], neighbours=3, share=0.8, temperature=0.2).save(folder)  # replaces the first one
    again = VanillaTransformerForConditionalGeneration.from_pretrained(folder).eval()
    store = load_datastore(folder)
    assert (store.neighbours, store.share, store.temperature) == (3, 0.8, 0.2)
    torch.testing.assert_close(predicted(again, batch), predicted(model, batch))
    with (
        use_datastore(model, store),
        use_datastore(again, build_datastore(again, [batch], neighbours=3, share=0.8, temperature=0.2)),
    ):
        torch.testing.assert_close(predicted(again, batch), predicted(model, batch))


def test_missing_damaged_or_mismatched_datastores_are_rejected(untrained, tmp_path):
    model, tokenizer, batch = untrained
    folder = Path(write(tmp_path / "model", model, tokenizer))
    with pytest.raises(FileNotFoundError, match="has no datastore: build it with `vanilla-transformer datastore"):
        load_datastore(folder)
    build_datastore(model, [batch]).save(folder)
    handle = use_datastore(model, load_datastore(folder))
    with pytest.raises(ValueError, match="already uses a datastore"):
        use_datastore(model, load_datastore(folder))
    handle.remove()
    with torch.no_grad():
        model.model.encoder.layers[0].feed_forward.fc1.weight[0, 0] += 1
    with pytest.raises(ValueError, match="The datastore was built with other weights"):
        use_datastore(model, load_datastore(folder))
    index = folder / "datastore" / "index.faiss"
    index.write_bytes(index.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is damaged"):
        load_datastore(folder)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"neighbours": 0}, "neighbours=0"), ({"share": 1.5}, "share=1.5"), ({"temperature": 0}, "temperature=0")],
)
def test_datastore_settings_out_of_range_are_rejected(settings, said, untrained):
    model, _, batch = untrained
    with pytest.raises(ValueError, match=said):
        build_datastore(model, [batch], **settings)


def test_a_datastore_without_targets_is_rejected(untrained):
    with pytest.raises(ValueError, match="There is nothing to build a datastore of"):
        build_datastore(untrained[0], [])


def test_every_command_uses_the_datastore_of_a_trained_model(tmp_path):
    """After one step with a tiny learning rate, only the datastore can provide correct translations."""
    file = write_json_lines(tmp_path / "pairs.jsonl", ROWS)
    data = ["--train_file", file, "--test_file", file, "--validation_fraction", "0"]
    folder = str(tmp_path / "run")
    options = [
        *data,
        *SMALL,
        "--max_steps",
        "1",
        "--learning_rate",
        "1e-9",
        "--average_checkpoints",
        "1",
        "--output_dir",
        folder,
    ]
    alone = train(["translation", *options])["test"]
    datastore_command(["--model", folder, "--train_file", file])
    scores = evaluate_command(["--model", folder, "--test_file", file, "--datastore", "true"])["test"]
    assert alone["chrf"] < scores["chrf"]
    assert evaluate_command(["--model", folder, "--test_file", file])["test"] == pytest.approx(alone)
    written = tmp_path / "out.txt"
    translate_command(["--model", folder, "--output", str(written), "--datastore", "true", *PAIRS])
    right = [text == target for text, target in zip(written.read_text().splitlines(), PAIRS.values(), strict=True)]
    assert sum(right) / len(right) * 100 == scores["exact_match"]


def test_the_datastore_command_adds_a_datastore_to_a_saved_model(untrained, tmp_path):
    """With its datastore, the untrained model translates all pairs exactly."""
    model, tokenizer, _ = untrained
    folder = write(tmp_path / "model", model, tokenizer)
    rows = [{"en": source, "es": target} for source, target in PAIRS.items()]
    file = write_json_lines(tmp_path / "pairs.jsonl", rows)
    data = ["--train_file", file, "--columns", "source=en", "target=es"]
    datastore_command(["--model", folder, *data, "--share", "1", "--neighbours", "8"])
    written = tmp_path / "out.txt"
    translate_command([*PAIRS, "--model", folder, "--datastore", "--output", str(written)])
    assert written.read_text().splitlines() == [*PAIRS.values()]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "user/name", "--share", "2"], "share=2.0 must be from 0"),
        (["--model", "user/name", "--neighbours", "0"], "neighbours=0 must be at least 1"),
        (["--model", "nowhere"], "nowhere"),
    ],
)
def test_the_datastore_command_reports_errors_before_it_starts(options, said):
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        datastore_command([*options, "--train_file", "pairs.jsonl"])


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--streaming", "true", "--train_file"], "a stream may have no end"), (["--test_file"], "There are no pairs")],
)
def test_the_datastore_command_rejects_streams_and_data_without_pairs(options, said, untrained, tmp_path):
    folder = write(tmp_path / "model", untrained[0], untrained[1])
    file = write_json_lines(tmp_path / "pairs.jsonl", ROWS)
    with pytest.raises(ValueError, match=said):
        datastore_command(["--model", folder, *options, file])


def test_ctranslate2_rejects_a_datastore():
    with pytest.raises(ValueError, match="--datastore is for PyTorch: leave out --engine ctranslate2"):
        translate_command(["a text", "--datastore", "--engine", "ctranslate2"])
