"""What is refused before any work: models, label words, targets and lengths that cannot do.

Tokenizers and configurations are read, no weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import polars as pl

from raybias.config import (
    ChainOfThought,
    FewShot,
    Finetuned,
    Method,
    PairMethod,
    PairScore,
    Prompted,
    SoftPrompt,
    Study,
    TrainingSet,
    Tuned,
)
from raybias.errors import DataError, ModelError
from raybias.probes import prompts
from raybias.probes.coreference import coreference_prompts
from raybias.runtime.plan import read_by
from raybias.runtime.train import prompt_length, read_texts
from raybias.stats import check_reference_groups

if TYPE_CHECKING:
    from raybias.config import Backbone
    from raybias.engine.backbone import TextEncoder

Items = dict[str, pl.DataFrame]
Sentences = dict[str, dict[str, pl.DataFrame]]


def check_inputs(study: Study, items: Items, sentences: Sentences) -> None:
    """Refuse what no run of the study could work with.

    Parameters
    ----------
    items: per probe; sentences: per training set, its splits.

    Raises
    ------
    ModelError: a model or tokenizer that a method cannot use, label words that share a token,
        LoRA targets that match nothing, or texts longer than the context.
    DataError: a training set without the splits that a method needs, or too few shots.
    ConfigError: label words that an answer cannot be read by, or reference groups that a probe
        does not have.
    """
    from raybias.engine.backbone import load_tokenizer

    check_references(study, items)
    for method in study.methods:
        for training in study.training:
            _check_training(method, training, sentences[training.name])
        if isinstance(method, Prompted):
            prompts.check_answer_words(study.verbalizer.words())
    for backbone in study.backbones:
        encoder = load_tokenizer(backbone)
        for method in study.methods_of(backbone):
            read = {name: items[name] for name in read_by(study, method)}
            if isinstance(method, PairMethod):
                _check_pairs(backbone, encoder, method, read)
                continue
            _check_model(backbone, encoder, method, study.verbalizer.words())
            if isinstance(method, Tuned):
                _check_lengths(encoder, method, read, sentences)
            else:
                _check_prompts(encoder, method, study, read, sentences)


def check_references(study: Study, items: Items) -> None:
    """Refuse reference groups that a probe's items do not have.

    Parameters
    ----------
    items: per probe, with the study's limit applied.

    Raises
    ------
    ConfigError: names the probe and what is wrong.
    """
    for probe in study.probes:
        check_reference_groups(
            items[probe.name],
            probe.reference_groups,
            where=f"probe {probe.name}, reference_groups",
        )


def check_rewritten(study: Study, items: Items) -> None:
    """Refuse rewritten pairs that are too long for a backbone that scores them.

    Raises
    ------
    ModelError: counts them and names the longest.
    """
    from raybias.engine.backbone import load_tokenizer

    for backbone in study.backbones:
        for method in study.methods_of(backbone):
            if isinstance(method, PairScore):
                read = {name: items[name] for name in read_by(study, method)}
                _check_pairs(backbone, load_tokenizer(backbone), method, read)


def shots_of(
    method: Tuned | Prompted, training: TrainingSet | None, sentences: Sentences, seed: int
) -> list[tuple[str, int]]:
    """The demonstrations of one run, none for a method without any.

    Raises
    ------
    DataError: the training set has too few of a label.
    """
    if not isinstance(method, FewShot) or training is None:
        return []
    return prompts.draw_shots(
        sentences[training.name]["train"],
        seed=seed,
        shots_per_label=method.shots_per_label,
        order=method.shot_order or "shuffled",
        where=f"training set {training.name}",
    )


def trainings_of(method: Tuned | Prompted, study: Study) -> tuple[TrainingSet | None, ...]:
    """The training sets that a method is run with; none, once, where it uses none."""
    return study.training if isinstance(method, Tuned | FewShot) else (None,)


def _check_training(method: Method, training: TrainingSet, splits: dict[str, pl.DataFrame]) -> None:
    where = f"training set {training.name}"
    if isinstance(method, Tuned) and "validation" not in splits:
        raise DataError(
            f"has no validation split, which {method.name} stops and selects by",
            where=where,
            cure="give a folder of train and validation files",
        )
    if isinstance(method, Tuned) and method.select == "test" and "test" not in splits:
        raise DataError(
            f"has no test split, by which {method.name} selects its runs",
            where=where,
            cure="set the method's select to validation",
        )
    if isinstance(method, FewShot):
        shots_of(method, training, {training.name: splits}, method.seeds[0])


def _check_model(
    backbone: Backbone, encoder: TextEncoder, method: Method, words: Sequence[str]
) -> None:
    from raybias.engine.backbone import empty_model, is_encoder
    from raybias.engine.classifier import check_classifier
    from raybias.engine.lora import check_targets
    from raybias.engine.sampling import Sampling
    from raybias.engine.verbalizer import verbalizer_ids

    if isinstance(method, Finetuned):
        check_classifier(backbone, method, words)
        check_targets(backbone, method)
        return
    if is_encoder(backbone):
        raise _needs_causal(backbone, method)
    if isinstance(method, Prompted):
        words = prompts.answer_words(method, words)
        Sampling.of(empty_model(backbone), temperature=method.temperature)
    else:
        _ = encoder.prompt_token_id  # raises where there is none
    verbalizer_ids(encoder.tokenizer, words)


def _check_pairs(
    backbone: Backbone, encoder: TextEncoder, method: PairMethod, items: Items
) -> None:
    """Refuse an encoder that is asked questions, and sentences or prompts that are too long."""
    from raybias.engine.backbone import check_lengths, is_encoder

    if isinstance(method, PairScore):
        taken, by = 1, "token that begins them"
    else:
        if is_encoder(backbone):
            raise _needs_causal(backbone, method)
        taken, by = getattr(method, "answer_tokens", 0), "tokens of an answer"
    for frame in items.values():
        if isinstance(method, PairScore):
            texts = [*frame["sent_more"], *frame["sent_less"]]
            names = [*frame["pair_id"]] * 2
        else:
            asked = frame.select("item_id", "text", "pronoun").rows()
            texts = [p for _, *said in asked for p in coreference_prompts(*said).values()]
            names = [item_id for item_id, *said in asked for _ in coreference_prompts(*said)]
        rows = encoder.encode(texts)
        check_lengths(rows, context=encoder.context, taken=taken, by=by, names=names)


def _needs_causal(backbone: Backbone, method: Method | PairMethod) -> ModelError:
    return ModelError(
        f"is an encoder, and method {method.name} needs a causal language model",
        where=backbone.id,
        cure="use full or lora on it, or another backbone",
    )


def _named_texts(items: Items, sentences: Sentences) -> Iterator[tuple[list[str], list[str]]]:
    """All texts of a study by source, each with a name for messages."""
    for frame in items.values():
        yield frame["item_id"].to_list(), frame["text"].to_list()
    for name, splits in sentences.items():
        for split, frame in splits.items():
            rows = [f"{name} {split} row {row}" for row in range(1, len(frame) + 1)]
            yield rows, frame["text"].to_list()


def _check_lengths(encoder: TextEncoder, method: Tuned, items: Items, sentences: Sentences) -> None:
    from raybias.engine.backbone import check_lengths

    taken = prompt_length(method)
    for names, texts in _named_texts(items, sentences):
        check_lengths(
            read_texts(encoder, texts, method),
            context=encoder.context,
            taken=taken,
            by="prompt vectors" if isinstance(method, SoftPrompt) else "",
            names=names,
        )


def _check_prompts(
    encoder: TextEncoder, method: Prompted, study: Study, items: Items, sentences: Sentences
) -> None:
    """Count the prompts that leave no room for an answer; demonstrations are counted once."""
    from raybias.engine.backbone import check_lengths

    words = study.verbalizer.words()
    room = method.answer_tokens
    if isinstance(method, ChainOfThought):
        room += method.reasoning_tokens
    asked = {
        name: encoder.encode([prompts.answered_prompt(method, t, words) for t in frame["text"]])
        for name, frame in items.items()
    }
    for training in trainings_of(method, study):
        for seed in method.seeds:
            shots = shots_of(method, training, sentences, seed)
            shown = prompts.first_prompt(method, "", words, shots)
            bare = prompts.first_prompt(method, "", words)
            opening = len(encoder.encode([shown])[0]) - len(encoder.encode([bare])[0])
            for name, rows in asked.items():
                check_lengths(
                    rows,
                    context=encoder.context,
                    taken=room + opening,
                    by=f"tokens of answers and demonstrations (seed {seed})",
                    names=items[name]["item_id"].to_list(),
                )
