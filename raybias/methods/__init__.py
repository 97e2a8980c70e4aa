"""Have a backbone label or score items: one class per method, with its options, checks and reader.

To add one, see docs/extending.md.
"""

from raybias.engine.adapters.options import EarlyStop
from raybias.methods.base import Inputs, Method, method, methods, methods_of
from raybias.methods.classify import Classify
from raybias.methods.continuation import Continuation
from raybias.methods.finetuned import Finetuned, Full, LayerAdapter, Lora, SoftPrompt
from raybias.methods.label_prompts import ChainOfThought, FewShot, ZeroShot
from raybias.methods.options import Coreference, DecisionLikelihood, OptionAnswer, OptionLikelihood
from raybias.methods.prefix import Prefix
from raybias.methods.prompted import Prompted, prompted_methods
from raybias.methods.sentence_scores import PairScore, SentenceLikelihood, TripleLikelihood
from raybias.methods.tuned import Tuned, tuned_methods
from raybias.methods.work import Work

__all__ = [
    "ChainOfThought",
    "Classify",
    "Continuation",
    "Coreference",
    "DecisionLikelihood",
    "EarlyStop",
    "FewShot",
    "Finetuned",
    "Full",
    "Inputs",
    "LayerAdapter",
    "Lora",
    "Method",
    "OptionAnswer",
    "OptionLikelihood",
    "PairScore",
    "Prefix",
    "Prompted",
    "SentenceLikelihood",
    "SoftPrompt",
    "TripleLikelihood",
    "Tuned",
    "Work",
    "ZeroShot",
    "method",
    "methods",
    "methods_of",
    "prompted_methods",
    "tuned_methods",
]
