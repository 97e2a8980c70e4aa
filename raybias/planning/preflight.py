"""Refuse before any work: models, label words, targets and lengths that cannot do.

Tokenizers and configurations are read, no weights.
"""

from __future__ import annotations

from importlib.util import find_spec

from raybias.config import Study
from raybias.errors import ConfigError
from raybias.methods.base import methods_of
from raybias.planning.plan import Plan
from raybias.planning.prepared import Items, PreparedStudy
from raybias.stats import check_metrics, check_reference_groups


def check_inputs(prepared: PreparedStudy) -> None:
    """Refuse what no run of the study could work with.

    Raises
    ------
    ModelError: a model or tokenizer that a method cannot use, label words that share a token,
        LoRA targets that match nothing, or texts longer than the context.
    DataError: a training set without the splits that a method needs, or too few shots.
    ConfigError: label words that an answer cannot be read by, a metric that is not registered,
        or reference groups that a probe does not have.
    """
    study, data = prepared.study, prepared.data
    check_metrics(study.statistics.metrics)
    check_references(study, data.items)
    for backbone in study.backbones:
        for method in methods_of(study, backbone):
            method.check(prepared.inputs(method, backbone))


def check_libraries(planned: Plan) -> None:
    """Refuse a plan that needs a package which is not installed, or not for its devices.

    Raises
    ------
    ConfigError: a backbone is to be sharded, and there is no DeepSpeed; or to be read by an engine
        on devices that the installed one was not built for.
    """
    backbones = {each.name: each for each in planned.decided.backbones}
    for stage in planned.scoring:
        backbones[stage.backbone].check_device(stage.gpus)
    sharded = [each.backbone for each in (*planned.tuning, *planned.scoring) if each.sharded]
    if sharded and find_spec("deepspeed") is None:
        raise ConfigError(
            f"{sharded[0]} is shared among workers with ZeRO-3, which needs deepspeed",
            cure="`pip install 'raybias[zero]'` on every node, or choose `resources.shard: never`",
        )


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


def check_rewritten(prepared: PreparedStudy, items: Items) -> None:
    """Refuse rewritten pairs that are too long for a backbone that scores them.

    Parameters
    ----------
    items: per probe, with the rewritten ones in place.

    Raises
    ------
    ModelError: counts them and names the longest.
    """
    for backbone in prepared.study.backbones:
        for method in methods_of(prepared.study, backbone):
            if method.reads == "pairs":
                method.check(prepared.inputs(method, backbone, items))
