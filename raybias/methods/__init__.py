"""How labels or scores are got from a backbone: one file a method.

A method's file holds its options and all that follows from them: its checks, runs, memory, cost,
and its trainer or predictor. No other room asks which method it holds. To add one, see
docs/extending.md.
"""

from raybias.methods.chain_of_thought import ChainOfThought
from raybias.methods.continuation import Continuation
from raybias.methods.coreference import Coreference
from raybias.methods.few_shot import FewShot
from raybias.methods.finetuned import Finetuned
from raybias.methods.fitting import fit_methods
from raybias.methods.full import Full
from raybias.methods.ia3 import Ia3
from raybias.methods.likelihood import DecisionLikelihood, OptionLikelihood, TripleLikelihood
from raybias.methods.lora import Lora
from raybias.methods.option_answer import OptionAnswer
from raybias.methods.pair_score import PairScore
from raybias.methods.prompted import Prompted, prompted_methods
from raybias.methods.sentence_likelihood import SentenceLikelihood
from raybias.methods.soft_prompt import SoftPrompt
from raybias.methods.tuned import EarlyStop, Tuned, tuned_methods
from raybias.methods.zero_shot import ZeroShot

__all__ = [
    "ChainOfThought",
    "Continuation",
    "Coreference",
    "DecisionLikelihood",
    "EarlyStop",
    "FewShot",
    "Finetuned",
    "Full",
    "Ia3",
    "Lora",
    "OptionAnswer",
    "OptionLikelihood",
    "PairScore",
    "Prompted",
    "SentenceLikelihood",
    "SoftPrompt",
    "TripleLikelihood",
    "Tuned",
    "ZeroShot",
    "fit_methods",
    "prompted_methods",
    "tuned_methods",
]
