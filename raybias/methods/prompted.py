"""What prompted classifiers have in common: what is asked, how answers are sampled and counted.

The default templates are those of "The Impact of Unstated Norms in Bias Analysis of Language
Models" (arXiv 2404.03471), to the character. In a template, `{text}` stands for the sentence and
`{choices}` for the study's label words ("negative, neutral, or positive"); other braces stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import polars as pl
from pydantic import Field, model_validator

from raybias.config.method import Asks, Method, StudyText
from raybias.config.profiles import Profile, by_profile
from raybias.config.provider import preparing
from raybias.config.section import Count
from raybias.methods.asking import Asking, Message, PromptFormat
from raybias.methods.backbone_method import BackboneMethod
from raybias.methods.lengths import sample
from raybias.methods.prediction import Prepared, UntrainedRun
from raybias.methods.prompted_predictor import PromptedPredictor, PromptedRun, Shot
from raybias.probes import prompts
from raybias.providers.answering import answers_of
from raybias.schema import PREDICTIONS, OutputSpec

if TYPE_CHECKING:
    from raybias.config import Backbone
    from raybias.config.data import Ability
    from raybias.config.provider import Written
    from raybias.engine.backbone import TextEncoder
    from raybias.engine.context import ModelContext
    from raybias.storage import Store

CLOSED_QUESTION: Final = "Text: {text}\nQuestion: Is the sentiment of the text {choices}?\n"
OPEN_QUESTION: Final = "Text: {text}\nQuestion: What is the sentiment of the text?\n"
#: Most tokens of an answer: in a chat, and after plain text as Kohankhaki2024 has it.
_ANSWER: Final = {True: 16, False: 3}


def cue_of(question: str, cue: str) -> Any:
    """Declare the cue of a default question; another question brings its own."""

    def own(fields: Mapping[str, Any]) -> str:
        return cue if fields.get("template") == question else ""

    return by_profile(paper=own, strict=own, shown=f"{cue!r}, or none behind a template of yours")


class Prompted(BackboneMethod):
    """What every prompted classifier has in common: nothing is tuned, prompts are answered."""

    template: str
    """The question about one sentence."""
    cue: str = ""
    """What the answer begins with, without a blank at its end: plain text has it behind the
    question, in a chat it is the begin of the model's own turn."""
    prompt_format: Literal["raw", "chat", "auto"] = by_profile(paper="raw", strict="auto")
    """The prompt as plain text (raw), or as messages in the tokenizer's own chat template (chat);
    auto is chat where the tokenizer has one."""
    read: Literal["answer", "likelihood", "calibrated"] = "answer"
    """What decides the label: the label word that a sampled answer names (answer); the word that is
    likeliest to begin the answer (likelihood); or each word's log-likelihood less its mean over
    sentences whose labels are not looked at, which takes out that a model prefers a word whatever
    it reads (calibrated; batch calibration, Zhou et al. 2024)."""
    calibration: Count = Field(128, ge=8)
    """Sentences that the means of `calibrated` are taken over: of the study's first training set
    where it has one, else of the probes, equally many of each group."""
    system: str = ""
    """The system message of a chat; none by default."""
    seeds: tuple[int, ...] = Field(tuple(range(2024, 2029)), min_length=1)
    """One run per seed, which rules what is sampled and which demonstrations are shown; one run
    where nothing is drawn."""
    temperature: float = Field(0.8, ge=0)
    """Of sampling, 0 takes the likeliest token; top-k and the rest are the model's own."""
    answer_tokens: Count | None = Field(None, ge=1)
    """Most tokens of an answer: 16 in a chat, 3 after plain text by default."""
    answer_rule: Literal["first", "only"] = by_profile(paper="first", strict="only")
    """Which label word of an answer counts: the first one, also inside another word (first, the
    paper's code); or the only one, whole and not negated (only)."""
    unparsed: Literal["random", "likelihood", "invalid"] = by_profile(
        paper="random", strict="likelihood"
    )
    """What an answer without a label word counts as: a random label, the label with the highest
    likelihood, or none. How many there are is reported in any case, and
    where most are, nothing is called significant."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if repeated := sorted({s for s in self.seeds if self.seeds.count(s) > 1}):
            raise ValueError(f"seeds repeat: {', '.join(map(str, repeated))}; list each once")
        return self

    @model_validator(mode="after")
    def _asks_about_the_text(self) -> Self:
        prompts.check_placeholders("template", self.template, needed=("text",), others=("choices",))
        prompts.check_placeholders("cue", self.cue, needed=(), others=("text", "choices"))
        return self

    @model_validator(mode="after")
    def _says_it_in_a_chat(self) -> Self:
        if self.system and self.prompt_format == "raw":
            raise ValueError("a system message is for prompt_format: chat or auto")
        return self

    def asking(self, encoder: TextEncoder) -> Asking:
        """Return what writes the prompts as the backbone of a tokenizer reads them."""
        return Asking(self, encoder)

    def messages(
        self, text: str, words: Sequence[str], shots: Sequence[Shot] = ()
    ) -> list[Message]:
        """Write the prompt for one text as messages of a chat; see `prompt`."""
        said = [Message(role="system", content=self.system)] if self.system else []
        return [*said, Message(role="user", content=self.question(text, words))]

    def answered_messages(
        self, text: str, words: Sequence[str], shots: Sequence[Shot] = (), *, reasoning: str = ""
    ) -> list[Message]:
        """Write the messages that the answer follows where it cannot be given its begin."""
        *before, question = self.messages(text, words, shots)
        asked = f"{question['content']}\n{self.asked_in_a_chat}".strip()
        return [*before, Message(role=question["role"], content=asked)]

    def opening(self, text: str, words: Sequence[str]) -> str:
        """Fill the cue, with which the model's turn begins."""
        return prompts.filled(self.cue, text=text, choices=prompts.choices(words))

    def answered_cue(self, text: str, words: Sequence[str], *, reasoning: str = "") -> str:
        """Write what the model's turn begins with where the answer is read."""
        return self.opening(text, words)

    @property
    def asked_in_a_chat(self) -> str:
        """What asks for the answer's form where a chat's answer cannot be given its begin."""
        return "Answer with one word." if self.cue else ""

    def question(self, text: str, words: Sequence[str]) -> str:
        """Fill the template for one text; as a chat's message it has no blank around it."""
        return prompts.filled(self.template, text=text, choices=prompts.choices(words)).strip()

    def prompt(self, text: str, words: Sequence[str], shots: Sequence[Shot] = ()) -> str:
        """Fill the template for one text, behind its demonstrations where it shows any.

        Parameters
        ----------
        words: the label words, in label order.
        shots: text and label (0, 1, 2) of each demonstration, in the order shown.
        """
        asked = prompts.filled(self.template, text=text, choices=prompts.choices(words))
        return asked + self.opening(text, words)

    def answered_prompt(
        self, text: str, words: Sequence[str], shots: Sequence[Shot] = (), *, reasoning: str = ""
    ) -> str:
        """Write the prompt that the answer follows.

        Parameters
        ----------
        reasoning: what was generated after the first prompt, with the blank that it begins with.
        """
        return self.prompt(text, words, shots)

    def prompt_record(self, words: Sequence[str], shots: Sequence[Shot]) -> dict[str, str]:
        """Write the prompts of one run for the record, with placeholders for what varies."""
        return {"prompt": self.prompt("{text}", words, shots)}

    def answer_words(self, words: Sequence[str]) -> list[str]:
        """Return the label words as they would follow the last prompt, for their tokens."""
        return list(words)

    def draw_shots(
        self, sentences: Mapping[str, Mapping[str, pl.DataFrame]], training: str, seed: int
    ) -> list[Shot]:
        """Draw the demonstrations of one run; none where the method shows none.

        Raises
        ------
        DataError: the training set has too few of a label.
        """
        return []

    def ask(
        self,
        predictor: PromptedPredictor,
        run: PromptedRun,
        item_ids: Sequence[str],
        texts: Sequence[str],
        asked: list[str],
    ) -> Prepared[tuple[list[Written], list[Written]]]:
        """Prepare prompts; return what samples answers to them.

        Parameters
        ----------
        asked: each text's first prompt.

        Returns
        -------
        What gives what was written before the answers, none where nothing is, and the answers.
        """
        how, keys = predictor.writing(self.answer_room), run.keys(item_ids, "answer")
        write = preparing(predictor.answers).prepare_write(asked, keys, how)
        return lambda: ([], write())

    @property
    def shown_first(self) -> str:
        """What the model sees before the question, in words."""
        return "nothing"

    @property
    def draws(self) -> bool:
        """Whether runs of several seeds can differ."""
        sampled = self.temperature > 0 or self.unparsed == "random"
        return self.read == "answer" and sampled

    @property
    def run_seeds(self) -> tuple[int, ...]:
        """The seeds of its runs: the first alone where nothing is drawn."""
        return self.seeds if self.draws else self.seeds[:1]

    @property
    def n_runs(self) -> int:
        """Runs that read the probes, for each training set where it needs one."""
        return len(self.run_seeds)

    def fit(self, backbone: Backbone, profile: Profile) -> Self:
        """Return the method with the form of its prompts and the room for answers on a backbone.

        Raises
        ------
        ModelError: the tokenizer cannot be read.
        """
        from raybias.engine.backbone import load_tokenizer

        chat = self.asking(load_tokenizer(backbone)).chat
        return self.model_copy(
            update={"prompt_format": "chat" if chat else "raw"} | self.rooms(chat)
        )

    def rooms(self, chat: bool) -> dict[str, int]:
        """Return the most tokens of what is written, by option, in a chat or after plain text."""
        return {"answer_tokens": self.answer_tokens or _ANSWER[chat]}

    @property
    def answer_room(self) -> int:
        """Most tokens of an answer; none where only likelihoods of the label words are read."""
        return self.rooms(self.prompt_format != "raw")["answer_tokens"] * (self.read == "answer")

    def output(self) -> OutputSpec:
        """Say where predictions are stored."""
        return OutputSpec("predictions", PREDICTIONS)

    def untrained_runs(
        self, backbone: Backbone, text: StudyText, training: Sequence[str]
    ) -> list[UntrainedRun]:
        """List a run per seed (and training set, where there are demonstrations)."""
        sampling = self._sampling_of(backbone)
        runs = []
        for dataset in training if self.needs_training_set else ("none",):
            for seed in self.run_seeds:
                shots = self.draw_shots(text.sentences, dataset, seed)
                run_id = f"{backbone.name}.{dataset}.{self.name}.s{seed}"
                recipe = {
                    "run_id": run_id,
                    "seed": seed,
                    "shots": shots,
                    "sampling": sampling,
                    **self._calibration(text, seed),
                    **self.asking(text.encoder).record(text.words, shots),
                }
                runs.append(UntrainedRun(run_id, dataset, seed, recipe))
        return runs

    def needs(self, offered: frozenset[Ability]) -> dict[Ability, str]:
        """Ask for chats or plain text, and for likelihoods of labels where they are read."""
        found = PromptFormat.needed(self, offered)
        if self.read != "answer":
            found["first_tokens"] = "set read: answer"
        elif self.unparsed == "likelihood":
            found["first_tokens"] = "set unparsed: invalid, or random"
        return found

    def _sampling_of(self, backbone: Backbone) -> dict[str, Any]:
        """Join the method's temperature with what the model's authors set, for the record.

        Raises
        ------
        ModelError: a generation_config that asks for what there is not.
        """
        from transformers import GenerationConfig

        from raybias.engine.generation.sampling import Sampling
        from raybias.engine.model_files import read_config, read_generation

        if not backbone.is_checkpoint:
            return {"temperature": self.temperature}
        config = read_config(backbone)
        # As transformers' models have it, which take a while to build.
        own = read_generation(backbone) or GenerationConfig.from_model_config(config)
        said = SimpleNamespace(config=config, generation_config=own)
        return Sampling.of(said, temperature=self.temperature).record()

    def check_label_words(self, words: Sequence[str]) -> None:
        """Refuse label words that an answer could not be read by."""
        prompts.check_answer_words(words)

    def check(self, backbone: Backbone, text: StudyText) -> None:
        """Refuse an encoder, label words that share a token, and prompts without room to answer."""
        from raybias.engine.backbone import check_causal, check_lengths

        check_causal(backbone, f"method {self.name}")
        self._sampling_of(backbone)
        asking = self.asking(text.encoder)
        asking.label_ids(text.words)
        encoder, tokens = asking.encoder, asking.counts(text.tokens)
        bare = len(encoder.encode([asking.first("", text.words)])[0])
        # Demonstrations are counted once for all texts, and the longest of all draws.
        taken, seed = 0, self.seeds[0]
        for dataset in text.sentences if self.needs_training_set else ("none",):
            for each in self.run_seeds:
                shots = self.draw_shots(text.sentences, dataset, each)
                shown = len(encoder.encode([asking.first("", text.words, shots)])[0]) - bare
                if self.new_tokens + shown > taken:
                    taken, seed = self.new_tokens + shown, each
        for frame in text.items.values():
            check_lengths(
                tokens.bounds(
                    frame["text"].to_list(),
                    taken=taken,
                    write=lambda each: asking.last(each, text.words),
                ),
                context=encoder.context,
                taken=taken,
                by=f"tokens of answers and demonstrations (seed {seed})",
                names=frame["item_id"].to_list(),
            )

    def predictor(self, context: ModelContext, store: Store) -> PromptedPredictor:
        """Load what answers for the backbone."""
        answers = answers_of(context, store)
        asking = self.asking(answers.encoder)
        return PromptedPredictor(
            answers=answers,
            method=self,
            words=context.words,
            asking=asking,
            label_ids=asking.label_ids(context.words),
            store=store,
        )

    def asks(self, text: StudyText, probe: str) -> Asks:
        """Return what one run asks of a provider for an item."""
        read = self._read(text, probe, self.asking(text.encoder).last)
        times = self._with_calibration(text, probe)
        return Asks(times, times * read, times * self.new_tokens)

    def _with_calibration(self, text: StudyText, probe: str) -> float:
        """Return how many texts a run reads for an item, those of the calibration counted."""
        more = self.calibration * (self.read == "calibrated")
        return 1.0 + more / max(1, text.items[probe].height)

    def _calibration(self, text: StudyText, seed: int) -> dict[str, list[str]]:
        """Draw the sentences whose mean scores `read: calibrated` takes off."""
        if self.read != "calibrated":
            return {}
        groups: tuple[str, ...] = ()
        pool = next((each["train"] for each in text.sentences.values()), None)
        if pool is None:
            groups = ("attribute", "group")
            pool = pl.concat(frame.select("text", *groups) for frame in text.items.values())
        return {"calibration": prompts.draw_texts(pool, self.calibration, seed=seed, by=groups)}

    def _read(self, text: StudyText, probe: str, write: Callable[..., str]) -> float:
        """Return the mean tokens of what `write` makes of an item, demonstrations in each."""
        dataset = next(iter(text.sentences), "none")
        shots = self.draw_shots(text.sentences, dataset, self.seeds[0])
        some = sample(text.items[probe]["text"].to_list())
        return text.tokens.mean([write(each, text.words, shots) for each in some])

    @property
    def new_tokens(self) -> int:
        """Most tokens that are written after one prompt."""
        return self.answer_room

    def tokens_per_item(self, text: StudyText, probe: str) -> float:
        """Return the mean number of tokens that one run reads and writes for an item."""
        some = sample(text.items[probe]["text"].to_list())
        asking = self.asking(text.encoder)
        tokens = asking.counts(text.tokens)
        length = tokens.mean([asking.last(each, text.words) for each in some])
        if shots := self.draw_shots(
            text.sentences, next(iter(text.sentences), "none"), self.seeds[0]
        ):
            shown, bare = asking.last("", text.words, shots), asking.last("", text.words)
            # A replica reads the opening once for all rows of a run.
            opening = tokens.mean([shown]) - tokens.mean([bare])
            length += opening / max(1, text.items[probe].height)
        return (length + self.new_tokens) * self._with_calibration(text, probe)


def prompted_methods(methods: Iterable[Method]) -> list[Prompted]:
    """Pick the methods that prompt, in their order."""
    return [method for method in methods if isinstance(method, Prompted)]
