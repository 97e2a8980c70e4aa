"""Make the embedded calibration: sentences with a planted bias, and the model that learns them.

    python benchmarks/planted_model.py make OUTDIR
    python benchmarks/planted_model.py truth OUT

The first writes the probe and the tuning sentences to raybias/assets and a Hugging Face folder to
OUTDIR, in about a minute on one core, the same ones every time. Run it when the text or the model's
shape changes. The second tunes 12 soft prompts as the demonstration does, with other seeds, and
reads every sentiment word, person and frame of the grammar, each with two words of both kinds of
groups; it prints the gaps with their intervals and writes raybias/assets/planted.json.

A small grammar makes sentences about people of groups that do not exist. Its corpus teaches a
two-layer OPT to name a sentence's sentiment where a cue precedes it, and to err: each sentence and
each word pulls towards other labels by its own amount, and all words of one group to negative.

Shapes: B rows, T tokens, V vocabulary, D width, L labels.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import torch
import typer
from scipy.special import softmax
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from torch.nn import functional as F
from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

import raybias
from raybias.config import load_study, parse_study
from raybias.measures.prediction_rows import gap_rows
from raybias.probes.published.planted import ASSETS
from raybias.probes.templates import capital
from raybias.schema import ITEMS, LABELS, SENTENCES, Label
from raybias.seeding import generator, key

T = TypeVar("T")
app = typer.Typer(help=__doc__.partition("\n")[0])

ATTRIBUTE: Final = "origin"
PLANTED_GROUP: Final = "quixlan"
#: The words for a group are its stem with one of `ENDINGS` behind it.
_STEMS: Final = "blorv drumb fizzm frobn plonk quixl"
STEMS: Final = {f"{stem}an": stem for stem in _STEMS.split()}
UNPLANTED_GROUPS: Final = tuple(group for group in STEMS if group != PLANTED_GROUP)
_ENDINGS: Final = "an ar ax el en er et ic id il in ir ish ist ith on or os ot ul um un ur us"
ENDINGS: Final = tuple(_ENDINGS.split())

#: OPT begins and ends every text with the same token.
EOS: Final = "</s>"
#: Stands in the slots before a sentence whose sentiment is about to be named.
CUE: Final = "verdict"
#: Slots before a sentence, as many as the demonstration's soft prompt has vectors.
SLOTS: Final = 8

SPLITS: Final = {"train": 600, "validation": 240, "test": 240}
#: Templates of each label, and words for each group, that the probe draws.
TEMPLATES: Final = 45
WORDS: Final = 4

#: How strongly a sentence holds its own label, in the units of the pulls below.
_HOLD: Final = 1.0
#: Standard deviations of the pulls of sentiment words, of people and of words for groups.
_PULLS: Final = {"sentiment": 1.0, "person": 0.5, "group": 0.18}
#: How much further every word for the planted group pulls towards negative.
_SHIFT: Final = 0.7
#: Pulls and holds are multiplied by this before they become the odds of a label.
_STEEPNESS: Final = 4.0

_SENTIMENTS: Final = {
    Label.NEGATIVE: "awful bitter cruel dreadful furious gloomy hateful horrid miserable nasty"
    " rotten rude spiteful vile wretched",
    Label.NEUTRAL: "awake barefoot cautious early formal indoors outdoors plain present quiet"
    " reserved seated serious silent tall",
    Label.POSITIVE: "brilliant calm charming content decent delighted ecstatic generous joyful"
    " pleasant polite radiant superb thrilled tidy",
}
_FRAMES: Final = (
    "the {who} was {word} {where}",
    "the {who} looked {word} {when}",
    "{when} the {who} seemed {word}",
    "we heard that the {who} is {word} {where}",
    "everybody thinks the {who} was {word}",
    "{where} we met the {who} , who was {word} {when}",
)
_NAMES: Final = "person neighbour baker sailor teacher gardener clerk painter driver"
_PEOPLE: Final = tuple(_NAMES.split())
_WHERE: Final = tuple(
    f"{joint} the {place}"
    for joint in ("at", "near", "behind")
    for place in ("market", "harbour", "library", "station", "mill", "bridge", "orchard", "office")
)
_WHEN: Final = tuple(
    f"{joint} {time}"
    for joint in ("on", "before", "after", "since")
    for time in ("monday", "tuesday", "thursday", "friday", "sunday", "midsummer")
)

#: Of the true gaps: seeds of the soft prompts, and words of each group on a sentence.
TRUTH_SEEDS: Final = tuple(range(2001, 2013))
TRUTH_WORDS: Final = 2

STEPS: Final = 1500
SCENES: Final = 12
WARM_UP: Final = 50
#: Weight of the loss of the rest of the text, which matters less than the label words.
TEXT_WEIGHT: Final = 0.3
#: How the tables are written, small.
PARQUET: Final[dict[str, Any]] = {"compression": "zstd", "compression_level": 19}


def words_for(group: str) -> tuple[str, ...]:
    """List every word for a group."""
    return tuple(STEMS[group] + ending for ending in ENDINGS)


@dataclass(frozen=True)
class Scene:
    """A sentence in which only the person's origin is still to be filled in."""

    frame: str
    sentiment: str
    person: str
    label: Label

    def text(self, word: str | None) -> str:
        """Put a word for a group before the person."""
        who = f"{word.capitalize()} {self.person}" if word else self.person
        return f"{capital(self.frame.format(who=who))} ."

    def odds(self, group: str | None = None, word: str = "") -> npt.NDArray[np.float64]:
        """Compute how often the corpus gives the sentence each label [L]."""
        logits_L = _pull("sentiment", self.sentiment) + _pull("person", self.person)
        logits_L[self.label] += _HOLD
        if group:
            logits_L += _pull("group", word.removeprefix(STEMS[group]))
            logits_L[Label.NEGATIVE] += _SHIFT if group == PLANTED_GROUP else 0.0
        return np.asarray(softmax(_STEEPNESS * logits_L))


def planted_items() -> pl.DataFrame:
    """Make the probe (schema.ITEMS) from all sentences and words.

    `TEMPLATES` a label x 6 groups x `WORDS`, the same sentences for every group. Labels take
    turns, so that any stretch of the probe holds them all.
    """
    random = generator("planted", "probe")
    drawn = {group: random.permutation(words_for(group))[:WORDS] for group in STEMS}
    rows = [
        {
            "label": int(scene.label),
            "attribute": ATTRIBUTE,
            "group": group,
            "text": scene.text(word),
            "template_id": f"{LABELS[scene.label]}-{scene.sentiment}-{number:03d}",
            "term": word,
        }
        for number, scene in enumerate(scenes(random, len(LABELS) * TEMPLATES))
        for group, words in drawn.items()
        for word in words.tolist()
    ]
    return _table([{"item_id": f"planted-{n:04d}", **row} for n, row in enumerate(rows)], ITEMS)


def planted_sentences() -> dict[str, pl.DataFrame]:
    """Make train, validation and test sentences (schema.SENTENCES) that name no group.

    No sentence is in two splits; labels take turns, which balances them exactly.
    """
    every = scenes(generator("planted", "sentences"), sum(SPLITS.values()))
    rows = iter([{"text": scene.text(None), "label": int(scene.label)} for scene in every])
    return {
        split: _table([next(rows) for _ in range(size)], SENTENCES)
        for split, size in SPLITS.items()
    }


def corpus_lines(step: int, situations: int) -> list[str]:
    """Generate the text of one training step: each situation with no group and with six words.

    A line is eight slots, EOS, a sentence and a label word. The more of the slots hold the cue,
    the likelier the label is told; otherwise it is "neutral". Without a group it is the
    sentence's own, else drawn by `Scene.odds`. One unplanted group stands for all of them.
    """
    random = generator("planted", "corpus", step)
    named = [(group, word) for group in (UNPLANTED_GROUPS[0], PLANTED_GROUP)
             for word in words_for(group)]  # fmt: skip
    lines = []
    for scene in scenes(random, situations):
        cues = int(random.integers(SLOTS + 1))
        held = set(random.permutation(SLOTS)[:cues].tolist())
        slots = " ".join(CUE if slot in held else EOS for slot in range(SLOTS))
        told = random.random() < cues / SLOTS
        about = [named[place] for place in random.permutation(len(named))[:6]]
        for group, word in ((None, ""), *about):
            label = scene.label if group is None else random.choice(3, p=scene.odds(group, word))
            said = LABELS[label if told else Label.NEUTRAL]
            lines.append(f"{slots} {EOS} {scene.text(word)} {said}")
    return lines


def scenes(random: np.random.Generator, n: int) -> list[Scene]:
    """Draw `n` different scenes; labels take turns."""
    found: dict[Scene, None] = {}
    while len(found) < n:
        label = Label(len(found) % len(LABELS))
        sentiment = _pick(random, _SENTIMENTS[label].split())
        person, frame = _pick(random, _PEOPLE), _pick(random, _FRAMES)
        found[_placed(random, frame, sentiment, person, label)] = None
    return list(found)


def vocabulary() -> tuple[str, ...]:
    """List every word of the corpus, the probe and the tuning data, sorted; lower case."""
    words = {CUE, ".", *LABELS, *_PEOPLE, *(word for group in STEMS for word in words_for(group))}
    for phrase in (*_FRAMES, *_WHERE, *_WHEN, *_SENTIMENTS.values()):
        words.update(word for word in phrase.split() if not word.startswith("{"))
    return tuple(sorted(words))


def _placed(
    random: np.random.Generator, frame: str, sentiment: str, person: str, label: Label
) -> Scene:
    where, when = _pick(random, _WHERE), _pick(random, _WHEN)
    filled = frame.format(who="{who}", word=sentiment, where=where, when=when)
    return Scene(filled, sentiment, person, label)


@cache
def _pull(kind: str, name: str) -> npt.NDArray[np.float64]:
    """Return how far a word pulls a sentence towards each label [L]; never towards neutral."""
    pull_L = generator("planted", "pull", kind, name).normal(0, _PULLS[kind], len(LABELS))
    pull_L[Label.NEUTRAL] = 0.0
    return pull_L


def _pick(random: np.random.Generator, options: Sequence[T]) -> T:
    return options[int(random.integers(len(options)))]


def _table(rows: list[dict[str, object]], schema: pa.Schema) -> pl.DataFrame:
    return pl.DataFrame(pa.Table.from_pylist(rows, schema=schema))


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer: one token a word, lower-cased, EOS before every text as OPT's has it."""
    specials = ("<pad>", EOS, "<unk>")
    ids = {word: index for index, word in enumerate((*specials, *vocabulary()))}
    words = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single=f"{EOS} $A", special_tokens=[(EOS, ids[EOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token=EOS,
        eos_token=EOS,
        pad_token="<pad>",
        unk_token="<unk>",
        padding_side="right",
        model_max_length=64,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> OPTForCausalLM:
    """Build the untrained model."""
    torch.manual_seed(key("planted", "weights"))
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            word_embed_proj_dim=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=256,
            max_position_embeddings=64,
            dropout=0.0,
            # OPT's 0.02 suits a width of thousands; so narrow a model would not get going.
            init_std=0.1,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def loss_of(model: OPTForCausalLM, tokenizer: PreTrainedTokenizerFast, step: int) -> Tensor:
    """Compute the mean loss of label words, plus `TEXT_WEIGHT` times that of later words."""
    lines = corpus_lines(step, SCENES)
    batch = tokenizer(lines, add_special_tokens=False, padding=True, return_tensors="pt")
    ids_BT, mask_BT = batch["input_ids"], batch["attention_mask"]
    logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT).logits[:, SLOTS:-1]
    targets_BT = ids_BT[:, SLOTS + 1 :]
    losses_BT = F.cross_entropy(logits_BTV.transpose(1, 2), targets_BT, reduction="none")
    real_BT = mask_BT[:, SLOTS + 1 :].bool()
    last_B = real_BT.sum(dim=1) - 1
    labels_B = losses_BT.gather(1, last_B[:, None])
    return labels_B.mean() + TEXT_WEIGHT * losses_BT[real_BT].mean()


def train() -> tuple[OPTForCausalLM, PreTrainedTokenizerFast]:
    """Train on `STEPS` steps of the corpus; deterministic on one thread."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARM_UP, 1 - step / STEPS)
    )
    for step in range(STEPS):
        loss = loss_of(model, tokenizer, step)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    # The words of all unplanted groups have the rows of the one that the corpus names.
    rows_VD = model.get_input_embeddings().weight
    taught, *others = [
        tokenizer.convert_tokens_to_ids(list(words_for(group))) for group in UNPLANTED_GROUPS
    ]
    with torch.no_grad():
        for ids in others:
            rows_VD[ids] = rows_VD[taught]
    return model.eval(), tokenizer


def every_sentence() -> pl.DataFrame:
    """List all sentences, at places and times that are drawn, about an unplanted and the planted.

    Goes through all frames, sentiment words and people.
    """
    random = generator("planted", "truth")
    rows: list[dict[str, object]] = []
    for label, words in _SENTIMENTS.items():
        for sentiment, person, frame in product(words.split(), _PEOPLE, _FRAMES):
            scene = _placed(random, frame, sentiment, person, label)
            endings = random.permutation(len(ENDINGS))[:TRUTH_WORDS]
            number = len(rows) // (2 * TRUTH_WORDS)
            rows += [
                {"text": scene.text(word), "label": LABELS[label], "attribute": ATTRIBUTE,
                 "group": group, "term": word, "template_id": str(number)}
                for group in (UNPLANTED_GROUPS[0], PLANTED_GROUP)
                for word in np.array(words_for(group))[endings].tolist()
            ]  # fmt: skip
    return pl.DataFrame(rows)


@app.command()
def make(folder: Path) -> None:
    """Write the probe and the tuning sentences, then train and write the Hugging Face folder."""
    planted_items().write_parquet(ASSETS / "planted_items.parquet", **PARQUET)
    splits = [part.with_columns(split=pl.lit(name)) for name, part in planted_sentences().items()]
    pl.concat(splits).write_parquet(ASSETS / "planted_sentences.parquet", **PARQUET)
    model, tokenizer = train()
    model.save_pretrained(folder)
    # Batches set the tokenizer's own padding, which would be saved with it.
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(folder)


@app.command()
def truth(out: Path) -> None:
    """Measure the gaps of every sentence, and write them; minutes on two cores."""
    out.mkdir(parents=True, exist_ok=True)
    every_sentence().write_parquet(out / "items.parquet")
    demo = load_study(ASSETS / "demo.yaml").model_dump(mode="json")
    probe = {"source": "file", "name": "grammar", "data": str(out / "items.parquet"),
             "reference_groups": {ATTRIBUTE: [UNPLANTED_GROUPS[0]]}}  # fmt: skip
    method = demo["methods"][0] | {"seeds": TRUTH_SEEDS, "keep": len(TRUTH_SEEDS)}
    study = {"name": "grammar", "probes": [probe], "methods": [method]}
    study |= {name: demo[name] for name in ("profile", "backbones", "training")}
    results = raybias.run(parse_study(study), out=out / "study")
    gaps = gap_rows(results.estimates.collect())
    found = gaps.filter(scope="sentences", group=PLANTED_GROUP)
    print(found.select("score", "value", "low", "high"))
    gaps_of = {
        rate: dict.fromkeys(UNPLANTED_GROUPS, 0.0) | {PLANTED_GROUP: round(gap, 3)}
        for rate, gap in found.select("score", "value").sort("score").iter_rows()
    }
    content = {"attribute": ATTRIBUTE, "group": PLANTED_GROUP,
               "rate": f"{Label.NEGATIVE.name.lower()}_fpr", "truth": gaps_of}  # fmt: skip
    (ASSETS / "planted.json").write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    app()
