"""Hold the engine to plain transformers and PEFT on one architecture of the zoo."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import peft
import torch
import transformers

from benchmarks import labelling
from raybias.config import Backbone
from raybias.engine.adapters.packed_layers import LoraTrainer
from raybias.engine.adapters.prefix import PrefixTrainer, check_prefixes
from raybias.engine.answering import EngineAnswers
from raybias.engine.backbone import check_causal, load_backbone
from raybias.engine.classifier import check_classifier, load_classifier
from raybias.engine.encoder import load_tokenizer
from raybias.engine.keyed_draws import Sampling
from raybias.engine.masked_scores import MaskedScorer, load_masked
from raybias.engine.model_shape import check_soft_prompts, model_shape
from raybias.engine.self_check import measure_rounding
from raybias.engine.token_scores import TokenScorer
from raybias.errors import ModelError, RaybiasError
from raybias.methods import Lora, Prefix
from raybias.storage import Store
from support import zoo

#: Accepted root-mean-square difference of a row's log-probabilities or logits, in nats. Under an
#: adapter we and PEFT round different sums, of values several times as large.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
ADAPTER_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.3}
#: Differences that are rounding, in units of what a change of the embeddings by one unit in the
#: last place makes. A few models (HRM, MobileBERT) amplify it beyond the tolerances above.
ROUNDINGS = 12
#: Labels, as ids of the zoo's vocabulary.
LABEL_IDS = tuple(zoo.VOCABULARY.index(label) for label in zoo.LABELS)
MASK, PAD, END = (zoo.VOCABULARY.index(token) for token in ("<mask>", "<pad>", "</s>"))
NEW_TOKENS = 6
VECTORS = 3


def make_rows() -> list[list[int]]:
    """Rows short and long, two that begin alike, some across the zoo's attention window."""
    random = np.random.default_rng(0)
    lengths = (4, 9, 9, zoo.WINDOW - 1, zoo.WINDOW + 1, 40, 60)
    first = zoo.VOCABULARY.index("w0")
    rows = [[2, *random.integers(first, len(zoo.VOCABULARY), n).tolist()] for n in lengths]
    rows[2][:6] = rows[1][:6]
    return rows


ROWS = make_rows()


@dataclass(frozen=True)
class Outcome:
    """What one way of using a model gave: a difference in nats, or the line that refuses it."""

    verdict: Literal["right", "wrong", "refused", "crash"]
    detail: str

    @property
    def is_sound(self) -> bool:
        """Whether it is right, or refused with a cure."""
        return self.verdict in ("right", "refused")


def difference(values: Any, expected: Any) -> float:
    """Root-mean-square difference."""
    gap = torch.as_tensor(values).double() - torch.as_tensor(expected).double()
    return float(gap.square().mean().sqrt())


def check_architecture(kind: str, folder: Path, *, masked: bool, dtype: str) -> dict[str, Outcome]:
    """Try all ways of using a saved random checkpoint; the outcome of each by its name."""
    spec = Backbone(id=str(folder), dtype=dtype)
    checks: dict[str, Callable[[], float]] = {}
    if masked:
        checks["masked scores"] = lambda: compare_masked_scores(spec)
    else:
        checks["likelihoods"] = lambda: compare_likelihoods(spec)
        checks["prompted"] = lambda: compare_written_text(spec)
        checks["soft prompt"] = lambda: compare_soft_prompt(spec)
        checks["prefix"] = lambda: compare_prefix(spec)
        checks["LoRA, label words"] = lambda: compare_lora(spec, "label_tokens")
    checks["LoRA, classifier"] = lambda: compare_lora(spec, "classification")
    rounding = measured_rounding(spec, masked=masked)
    return {
        name: outcome_of(
            check,
            max((ADAPTER_TOLERANCE if "LoRA" in name else TOLERANCE)[dtype], ROUNDINGS * rounding),
        )
        for name, check in checks.items()
    }


def measured_rounding(spec: Backbone, *, masked: bool) -> float:
    """How far plain transformers' own log-probabilities move by rounding; 0 if it has none."""
    auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    plain = plain_model(spec, auto)

    def log_probs() -> torch.Tensor:
        with torch.no_grad():
            return plain(input_ids=torch.tensor([ROWS[-1]])).logits[0].float().log_softmax(-1)

    # Some architectures have no kernels for a dtype.
    with suppress(ModelError):
        return measure_rounding(plain, log_probs)[1]
    return 0.0


def outcome_of(check: Callable[[], float], tolerance: float) -> Outcome:
    """What a check gives: its difference beside the tolerance, or how it ended."""
    try:
        gap = check()
    except RaybiasError as error:
        return Outcome("refused", " ".join(str(error).split()))
    except Exception as error:
        return Outcome("crash", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    return Outcome("right" if gap <= tolerance else "wrong", f"{gap:.2g}")


def plain_model(spec: Backbone, auto: Any, **options: Any) -> Any:
    """Transformers' own load of a checkpoint."""
    dtype = getattr(torch, spec.dtype)
    return auto.from_pretrained(spec.id, dtype=dtype, **options).eval()


def compare_likelihoods(spec: Backbone) -> float:
    """Log-probabilities of all tokens of rows, and the largest difference of a row."""
    model_shape(spec)
    scored = TokenScorer(load_backbone(spec)).prepare([(row, 1) for row in ROWS])()
    plain = plain_model(spec, transformers.AutoModelForCausalLM)
    gaps = []
    for row, values in zip(ROWS, scored, strict=True):
        with torch.no_grad():
            log_probs = plain(input_ids=torch.tensor([row])).logits[0].float().log_softmax(-1)
        expected = [float(log_probs[n, row[n + 1]]) for n in range(len(row) - 1)]
        gaps.append(difference(values, expected))
    return max(gaps)


def compare_soft_prompt(spec: Backbone) -> float:
    """Label logits of rows after a random soft prompt."""
    check_soft_prompts(spec)
    backbone = load_backbone(spec)
    prompt_PD = torch.randn(VECTORS, backbone.width, generator=torch.Generator().manual_seed(1))
    logits_NL = labelling.label_logits(labelling.labeller(backbone, LABEL_IDS), ROWS, prompt_PD)
    plain = plain_model(spec, transformers.AutoModelForCausalLM)
    gaps = []
    for row, logits_L in zip(ROWS, logits_NL, strict=True):
        embedded = plain.get_input_embeddings()(torch.tensor([row]))
        inputs = torch.cat([prompt_PD[None].to(embedded.dtype), embedded], dim=1)
        with torch.no_grad():
            expected_L = plain(inputs_embeds=inputs).logits[0, -1, list(LABEL_IDS)].float()
        gaps.append(difference(logits_L, expected_L))
    return max(gaps)


def compare_prefix(spec: Backbone) -> float:
    """Label logits of rows after a random prefix, which PEFT opens as it was saved."""
    check_causal(spec)
    check_prefixes(spec)
    trainer = PrefixTrainer(load_backbone(spec), LABEL_IDS, Prefix(prompt_length=VECTORS))
    generator = torch.Generator().manual_seed(1)
    weights = {"prefix": 0.5 * torch.randn(VECTORS, trainer.vector_width, generator=generator)}
    (logits_NL,) = trainer.logits([weights], [trainer.prepare(ROWS)])
    with tempfile.TemporaryDirectory() as out:
        trainer.save(Store(out), "adapter", weights, {})
        base = plain_model(spec, transformers.AutoModelForCausalLM)
        plain = peft.PeftModel.from_pretrained(base, f"{out}/adapter").eval()
    gaps = []
    for row, logits_L in zip(ROWS, logits_NL, strict=True):
        with torch.no_grad():
            expected_L = plain(input_ids=torch.tensor([row])).logits[0, -1, list(LABEL_IDS)]
        gaps.append(difference(logits_L, expected_L.float()))
    return max(gaps)


def compare_written_text(spec: Backbone) -> float:
    """Label log-probabilities after prompts; infinite if a greedy text differs in float32."""
    backbone = load_backbone(spec)
    written = EngineAnswers(backbone).generate(
        ROWS,
        [(n,) for n in range(len(ROWS))],
        sampling=Sampling.of(backbone.model, temperature=0.0),
        max_new_tokens=NEW_TOKENS,
        label_ids=LABEL_IDS,
    )
    plain = plain_model(spec, transformers.AutoModelForCausalLM)
    gaps = []
    for row, answer in zip(ROWS, written, strict=True):
        with torch.no_grad():
            logits_V = plain(input_ids=torch.tensor([row])).logits[0, -1].float()
        expected_L = logits_V.log_softmax(-1)[list(LABEL_IDS)]
        gaps.append(difference(answer.label_log_probs, expected_L))
        # In half precision rounding decides ties.
        if spec.dtype == "float32" and list(answer.tokens) != greedy_tokens(plain, row):
            gaps.append(float("inf"))
    return max(gaps)


def greedy_tokens(plain: Any, row: Sequence[int]) -> list[int]:
    """Tokens that transformers' `generate` writes after one row, up to the end token."""
    input_ids = torch.tensor([list(row)])
    made = plain.generate(
        input_ids=input_ids,
        attention_mask=torch.ones_like(input_ids),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=PAD,
    )
    tokens: list[int] = made[0, len(row) :].tolist()
    return tokens[: tokens.index(END)] if END in tokens else tokens


def compare_masked_scores(spec: Backbone) -> float:
    """Log-probabilities of every token of rows, masked one at a time."""
    model_shape(spec)
    rows = [[*row, END] for row in ROWS]
    requests = [[(row, n) for n in range(1, len(row) - 1)] for row in rows]
    scored = MaskedScorer(load_masked(spec)).prepare(requests)()
    plain = plain_model(spec, transformers.AutoModelForMaskedLM)
    gaps = []
    for row, values in zip(rows, scored, strict=True):
        expected = []
        for n in range(1, len(row) - 1):
            masked = [*row[:n], MASK, *row[n + 1 :]]
            with torch.no_grad():
                logits_V = plain(input_ids=torch.tensor([masked])).logits[0, n].float()
            expected.append(float(logits_V.log_softmax(-1)[row[n]]))
        gaps.append(difference(values, expected))
    return max(gaps)


def compare_lora(spec: Backbone, head: str) -> float:
    """Label logits under a random adapter, which PEFT opens as it was saved."""
    method = Lora(kind="lora", head=head)
    check_classifier(load_tokenizer(spec), method, zoo.LABELS)
    trainer = LoraTrainer(load_classifier(spec, method, zoo.LABELS), method)
    weights = trainer.init_weights(3)
    generator = torch.Generator().manual_seed(2)
    for name in (name for name in weights if name.endswith("lora_B")):
        weights[name] = 0.03 * torch.randn(weights[name].shape, generator=generator)
    (logits_NL,) = trainer.logits([weights], [trainer.prepare(ROWS)])

    with tempfile.TemporaryDirectory() as out:
        trainer.save(Store(out), "adapter", weights, {})
        classifies = head == "classification"
        auto = (
            transformers.AutoModelForSequenceClassification
            if classifies
            else transformers.AutoModelForCausalLM
        )
        base = plain_model(spec, auto, **({"num_labels": len(zoo.LABELS)} if classifies else {}))
        base.config.pad_token_id = PAD
        plain = peft.PeftModel.from_pretrained(base, f"{out}/adapter").eval()
    gaps = []
    for row, logits_L in zip(ROWS, logits_NL, strict=True):
        with torch.no_grad():
            logits = plain(input_ids=torch.tensor([row])).logits[0]
        expected_L = logits if classifies else logits[-1, list(LABEL_IDS)]
        gaps.append(difference(logits_L, expected_L.float()))
    return max(gaps)
