"""A checkpoint that vLLM loads in the built-in engine's place, in an environment that has it."""

from __future__ import annotations

from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from raybias.config.data import Ability
from raybias.config.provider import Engine
from raybias.errors import ConfigError
from raybias.registry import provider

if TYPE_CHECKING:
    from raybias.config.provider import Answers
    from raybias.engine.context import ModelContext


@provider
class VLLM(Engine):
    """A checkpoint that vLLM loads in the built-in engine's place."""

    api: Literal["vllm"] = "vllm"
    """Names the engine."""
    memory_share: float = Field(0.9, gt=0, lt=1)
    """Share of a GPU's memory that it takes, for weights, keys and values; what stands beside it,
    such as a judge, has the rest."""

    never_change_answers: ClassVar[frozenset[str]] = frozenset(("memory_share",))

    @property
    def abilities(self) -> frozenset[Ability]:
        """What methods can ask of it: all but the weights themselves."""
        return frozenset(("chat", "text", "first_tokens", "likelihoods"))

    @property
    def gpu_share(self) -> float:
        """The share of a GPU's memory that it takes, as it is told."""
        return self.memory_share

    def as_installed(self) -> Self:
        """Return the backbone with the installed vLLM's version.

        Raises
        ------
        ConfigError: it is not installed, or in another version.
        """
        found = version(self._distribution())
        if self.version not in ("", found):
            raise ConfigError(
                f"names vLLM {self.version}, and {found} is installed on this machine",
                where=self.name,
                cure=f"`pip install vllm=={self.version}`, or name {found} and give another --out",
            )
        return self.model_copy(update={"version": found})

    def check_device(self, gpus: int) -> None:
        """Refuse CPUs where the installed vLLM was built for GPUs, and the reverse.

        Raises
        ------
        ConfigError: it does not run on these devices.
        """
        name = self._distribution()
        for_cpus = "cpu" in name or version(name).endswith("+cpu")
        if for_cpus == (gpus == 0):
            return
        has, wants, cure = (
            ("CPUs", "GPUs", "install vllm itself, or set resources.gpus_per_worker: 0")
            if for_cpus
            else ("GPUs", "CPUs", "give it nodes with GPUs, or leave out `api: vllm`")
        )
        raise ConfigError(
            f"the installed {name} runs on {has}, and the plan has it on {wants}",
            where=self.name,
            cure=cure,
        )

    def answers(self, context: ModelContext) -> Answers:
        """Load the checkpoint, once for all that ask.

        Raises
        ------
        ConfigError: vLLM is not installed here as it was where the study began.
        ModelError: it cannot load the checkpoint.
        """
        from raybias.engine.vllm_answers import VLLMAnswers, load

        self.as_installed()
        return VLLMAnswers(context.spec, context.kept(load))

    def _distribution(self) -> str:
        """Return the name under which vLLM is installed; there is one for each kind of device."""
        if find_spec("vllm") is None:
            raise ConfigError(
                "vLLM, which is to read it, is not installed on this machine",
                where=self.name,
                cure="`pip install 'raybias[vllm]'` in an environment of its own, on every machine,"
                " or leave out `api: vllm`",
            )
        return packages_distributions()["vllm"][0]
