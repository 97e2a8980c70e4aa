"""Prompt tuning and LoRA of a real chat model take the steps that PEFT takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy

from raybias.config import Backbone
from raybias.engine.adapters.schedule import batch_of_step
from raybias.engine.adapters.tuning import PackedTuner, TokenSet, Trial
from raybias.engine.backbone import ModelContext
from raybias.methods import Lora, SoftPrompt
from raybias.schema import LABELS

RATE = 1e-3
STEPS = {"max_steps": 4, "eval_every": 4, "batch_size": 3, "weight_decay": 0.0, "keep": 1}
PROMPT = SoftPrompt(**STEPS, prompt_length=4, seeds=(1,))
LORA = Lora(**STEPS, dropout=0.0, head="label_tokens", target=("q_proj", "v_proj"), seeds=(1,))
SENTENCES = (
    ("A gorgeous, witty, seductive movie.", 2), ("The film runs for two hours.", 1),
    ("It is dull and far too long.", 0), ("I loved every minute.", 2),
    ("A waste of good actors.", 0), ("The story takes place in Paris.", 1),
)  # fmt: skip


def plain_run(
    model: peft.PeftModel, weights: dict[str, torch.nn.Parameter], ids: list[int], train: TokenSet
) -> dict[str, Tensor]:
    """Tuning as PEFT's users write it: padded batches, the logits of each row's last token."""
    optimizer = torch.optim.AdamW(weights.values(), lr=RATE, weight_decay=0.0)
    for step in range(PROMPT.max_steps or 0):
        numbers = batch_of_step(1, step, rows=len(train.rows), batch_size=PROMPT.batch_size)
        rows = [torch.tensor(train.rows[n]) for n in numbers]
        tokens_RT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths_R = torch.tensor([len(row) for row in rows])
        mask_RT = (torch.arange(tokens_RT.shape[1]) < lengths_R[:, None]).long()
        logits_RTV = model(input_ids=tokens_RT, attention_mask=mask_RT).logits
        # PEFT puts its prompt before the text.
        last_R = lengths_R - 1 + logits_RTV.shape[1] - tokens_RT.shape[1]
        logits_RL = logits_RTV[torch.arange(len(rows)), last_R][:, ids]
        loss = cross_entropy(logits_RL, torch.tensor([train.labels[n] for n in numbers]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: weight.detach() for name, weight in weights.items()}


def as_prompt(base: torch.nn.Module, start: dict[str, Tensor], begin_D: Tensor) -> tuple:
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    model = peft.get_peft_model(base, config)
    (weight,) = (each for each in model.parameters() if each.requires_grad)
    with torch.no_grad():
        weight.copy_(begin_D + start["delta"])
    return model, {"delta": weight}


def as_lora(base: torch.nn.Module, start: dict[str, Tensor], begin_D: Tensor) -> tuple:
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=LORA.rank, lora_alpha=LORA.alpha,
        target_modules=["q_proj", "v_proj"],
    )  # fmt: skip
    model = peft.get_peft_model(base, config)
    named = {
        name.removeprefix("base_model.model.").removesuffix(".default.weight"): each
        for name, each in model.named_parameters()
        if each.requires_grad
    }
    assert named.keys() == start.keys()
    with torch.no_grad():
        for name, weight in named.items():
            weight.copy_(start[name])
    return model, named


@pytest.mark.long
@pytest.mark.parametrize(("method", "plain"), [(PROMPT, as_prompt), (LORA, as_lora)])
def test_a_few_steps_equal_peft(
    method: SoftPrompt | Lora, plain: Callable[..., tuple], smollm2: Path
) -> None:
    spec = Backbone(id=str(smollm2), dtype="float32")
    trainer = method.trainer(ModelContext(spec, LABELS))
    texts, labels = zip(*SENTENCES, strict=True)
    train = TokenSet(tuple(map(tuple, trainer.encode(list(texts)))), labels)
    trial = Trial("s1", 1, RATE, "final", 0.0, 5)
    packed = PackedTuner(trainer, method.recipe, [trial], train=train, validation=train)
    untuned, tuned = packed.advance()
    assert (untuned.step, tuned.step) == (0, 4)
    assert tuned.loss < untuned.loss
    found = packed.runs["s1"].weights

    base = transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    tokenizer = trainer.encoder.tokenizer
    ids = [tokenizer(f" {word}")["input_ids"][0] for word in LABELS]
    begin = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    begin_D = base.get_input_embeddings().weight[begin].detach().clone()
    start = trainer.init_weights(1)
    expected = plain_run(*plain(base, start, begin_D), ids, train)
    if "delta" in expected:
        expected["delta"] = expected["delta"] - begin_D
    for name, tensor in expected.items():
        assert not torch.equal(tensor, start[name]) or "lora_A" in name
        # AdamW divides a gradient by its own size: what is rounded of a small one is up to a tenth
        # of a step.
        torch.testing.assert_close(found[name], tensor, atol=1e-4, rtol=0)
