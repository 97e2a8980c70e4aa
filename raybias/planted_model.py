"""Train the embedded model: a two-layer OPT that reads raybias.probes.planted's corpus.

`python -m raybias.planted_model OUTDIR` writes a Hugging Face folder in about a minute on one
core, the same one every time. It knows nothing of tuning or probing; it is run when the corpus
or the shape changes, never by users.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from torch.nn import functional as F
from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

from raybias import seeding
from raybias.probes import planted

STEPS = 1500
SCENES = 12
LEARNING_RATE = 1e-3
WARM_UP = 50
#: Weight of the loss of the rest of the text, which matters less than the label words.
TEXT_WEIGHT = 0.3


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer: one token a word, lower-cased, EOS before every text as OPT's has it."""
    specials = ("<pad>", planted.EOS, "<unk>")
    ids = {word: index for index, word in enumerate((*specials, *planted.vocabulary()))}
    words = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single=f"{planted.EOS} $A", special_tokens=[(planted.EOS, ids[planted.EOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token=planted.EOS,
        eos_token=planted.EOS,
        pad_token="<pad>",
        unk_token="<unk>",
        padding_side="right",
        model_max_length=64,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> OPTForCausalLM:
    """Build the untrained model."""
    torch.manual_seed(seeding.key("planted", "weights"))
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


def share_rows(model: OPTForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Give the words of all unplanted groups the rows of the one that the corpus names."""
    rows_VD = model.get_input_embeddings().weight
    taught, *others = [
        tokenizer.convert_tokens_to_ids(list(planted.words_for(group)))
        for group in planted.UNPLANTED_GROUPS
    ]
    with torch.no_grad():
        for ids in others:
            rows_VD[ids] = rows_VD[taught]


def loss_of(model: OPTForCausalLM, tokenizer: PreTrainedTokenizerFast, step: int) -> Tensor:
    """Compute the mean loss of label words, plus `TEXT_WEIGHT` times that of later words."""
    lines = planted.corpus_lines(step, SCENES)
    batch = tokenizer(lines, add_special_tokens=False, padding=True, return_tensors="pt")
    ids_BT, mask_BT = batch["input_ids"], batch["attention_mask"]
    logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT).logits[:, planted.SLOTS : -1]
    targets_BT = ids_BT[:, planted.SLOTS + 1 :]
    losses_BT = F.cross_entropy(logits_BTV.transpose(1, 2), targets_BT, reduction="none")
    real_BT = mask_BT[:, planted.SLOTS + 1 :].bool()
    last_B = real_BT.sum(dim=1) - 1
    labels_B = losses_BT.gather(1, last_B[:, None])
    return labels_B.mean() + TEXT_WEIGHT * losses_BT[real_BT].mean()


def train() -> tuple[OPTForCausalLM, PreTrainedTokenizerFast]:
    """Train on `STEPS` steps of the corpus; deterministic on one thread."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
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
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    share_rows(model, tokenizer)
    return model.eval(), tokenizer


def main(folder: Path) -> None:
    """Train and write the Hugging Face folder `folder`."""
    model, tokenizer = train()
    model.save_pretrained(folder)
    # Batches set the tokenizer's own padding, which would be saved with it.
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m raybias.planted_model OUTDIR")
    main(Path(sys.argv[1]))
