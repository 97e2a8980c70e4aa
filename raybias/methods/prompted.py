"""Define prompted classifiers: their prompts, sampling and work.

The default templates are to the character those of "Template-Based Probes Are Imperfect Lenses for
Counterfactual Bias Evaluation in LLMs" (arXiv 2404.03471). In them `{text}` is the sentence and
`{choices}` the study's label words ("negative, neutral, or positive").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

import polars as pl
from pydantic import Field, model_validator

from raybias.config import Backbone, MethodFields
from raybias.config.parts import Ability, Way
from raybias.config.section import Count, Profile, Seed, by_profile
from raybias.engine.checkpoint import read_config, read_generation
from raybias.engine.encoder import TextEncoder, distinct, first_ids
from raybias.errors import ConfigError
from raybias.methods.asking import AskingMethod, Message, PromptFormat, about, check_placeholders
from raybias.methods.base import Inputs, Reader, Run
from raybias.methods.work import Asks, Work, sample
from raybias.providers.base import answers_of
from raybias.schema import LABELS
from raybias.seeding import generator
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext

#: Questions about labels that are not those of sentiment.
CLOSED_LABELS: Final = "Text: {text}\nQuestion: Which label fits the text, {choices}?\n"
OPEN_LABELS: Final = "Text: {text}\nQuestion: Which label fits the text?\n"
CLOSED_QUESTION: Final = "Text: {text}\nQuestion: Is the sentiment of the text {choices}?\n"
OPEN_QUESTION: Final = "Text: {text}\nQuestion: What is the sentiment of the text?\n"
#: A demonstration: its text and label.
Shot = tuple[str, int]


def cue_of(question: str, cue: str) -> Any:
    """Declare the cue of a default question; another question brings its own."""

    def own(fields: Mapping[str, Any]) -> str:
        return cue if fields.get("template") == question else ""

    return by_profile(paper=own, strict=own, shown=f"{cue!r}, or none behind a template of yours")


class Prompted(AskingMethod):
    """A prompted classifier: nothing is tuned, prompts are answered."""

    template: str
    """The question about one sentence."""
    cue: str = ""
    """What the answer begins with, without a blank at its end: plain text has it behind the
    question, in a chat it is the begin of the model's own turn."""
    read: Literal["answer", "likelihood", "calibrated"] = "answer"
    """What decides the label: the label word that a sampled answer names (answer); the word that is
    likeliest to begin the answer (likelihood); or each word's log-likelihood less its mean over
    other sentences, which takes out that a model prefers a word whatever it reads (calibrated;
    batch calibration, Zhou et al. 2024). The mean takes the mix of these sentences' labels with it:
    of two groups .3 logits apart, it leaves a gap of 6 points where labels are equally many, and
    of 2 points where nine in ten are negative."""
    calibration: Count = Field(128, ge=8)
    """Sentences that the means of `calibrated` are taken over: of the study's first training set
    where it has one, equally many of each label; else of the probes, equally many of each group,
    with the mix of labels that these have."""
    system: str = ""
    """The system message of a chat; none by default."""
    seeds: tuple[Seed, ...] = Field(tuple(range(2024, 2029)), min_length=1)
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

    way: ClassVar[Way] = "prompted"
    asked_of_labels: ClassVar[Mapping[str, str]] = {}
    """Defaults of prompts for labels that are not those of sentiment."""
    most_tokens: ClassVar[Mapping[str, tuple[int, int]]] = {"answer_tokens": (3, 16)}
    """Of options that are not set: after plain text as Kohankhaki2024 has it, and in a chat."""

    @model_validator(mode="after")
    def _asks_about_the_text(self) -> Self:
        check_placeholders("template", self.template, needed=("text",), others=("choices",))
        check_placeholders("cue", self.cue, needed=(), others=("text", "choices"))
        if repeated := sorted({s for s in self.seeds if self.seeds.count(s) > 1}):
            raise ValueError(f"seeds repeat: {', '.join(map(str, repeated))}; list each once")
        return self

    def form(self, encoder: TextEncoder) -> Asking:
        return Asking(self, encoder)

    @property
    def asked_in_a_chat(self) -> str:
        """The request for the answer's form where a chat's answer cannot be given its begin."""
        return "Answer with one word." if self.cue else ""

    def shown(self, words: Sequence[str], shots: Sequence[Shot]) -> tuple[str, list[Message]]:
        """Write demonstrations as plain text, and as messages of a chat; none by default."""
        return "", []

    def concluded(self, text: str, words: Sequence[str], reasoning: str) -> str:
        """Write what asks for the label, after the cue and the `reasoning`; none by default."""
        return ""

    def answer_words(self, words: Sequence[str]) -> list[str]:
        """Return the label words as they would follow the last prompt, for their tokens."""
        return list(words)

    @property
    def system_message(self) -> str:
        return self.system

    def draw_shots(
        self,
        sentences: Mapping[str, Mapping[str, pl.DataFrame]],
        training: str,
        seed: int,
        labels: Sequence[str],
    ) -> list[Shot]:
        """Draw the demonstrations of one run, none by default; DataError for too few of a label."""
        return []

    @property
    def shown_first(self) -> str:
        """The part of a prompt before the question, in words."""
        return "nothing"

    @property
    def draws(self) -> bool:
        """Whether runs of several seeds can differ."""
        sampled = self.temperature > 0 or self.unparsed == "random"
        return self.read == "answer" and sampled

    @property
    def run_seeds(self) -> tuple[int, ...]:
        """The seeds of its runs: the first alone where answers are deterministic."""
        return self.seeds if self.draws else self.seeds[:1]

    @property
    def n_runs(self) -> int:
        return len(self.run_seeds)

    def fit(self, backbone: Backbone, profile: Profile, labels: Sequence[str]) -> Self:
        """Return the method with its prompts' form, and its questions if labels are not sentiment.

        Raises ConfigError: chats without a template.
        """
        fitted = super().fit(backbone, profile, labels)
        update: dict[str, Any] = {name: fitted.room(name) for name in self.most_tokens}
        # A question of the user's own stays, with the cue that belongs to it.
        if tuple(labels) != LABELS and "template" not in self.model_fields_set:
            asked = self.asked_of_labels.items()
            update |= {name: text for name, text in asked if name not in self.model_fields_set}
        return fitted.model_copy(update=update)

    def room(self, option: str) -> int:
        """Return the most tokens that an option allows."""
        return int(getattr(self, option) or self.most_tokens[option][self.prompt_format != "raw"])

    @property
    def answer_room(self) -> int:
        """Most tokens of an answer; 0 where only likelihoods of the label words count."""
        return self.room("answer_tokens") * (self.read == "answer")

    @property
    def reasoning_room(self) -> int:
        """Most tokens before the question for the answer."""
        return 0

    def runs(self, inputs: Inputs) -> list[Run]:
        sampling, form = self._sampling_of(inputs.backbone), self.form(inputs.encoder)
        runs = []
        for dataset, seed, shots in self._drawn(inputs):
            run_id = f"{inputs.backbone.name}.{dataset}.{self.name}.s{seed}"
            recipe = {
                "run_id": run_id,
                "seed": seed,
                "shots": shots,
                "sampling": sampling,
                **self._calibration(inputs, seed),
                **form.record(inputs.words, shots),
            }
            runs.append(Run(run_id, dataset, seed, recipe))
        return runs

    def _drawn(self, inputs: Inputs) -> list[tuple[str, int, list[Shot]]]:
        return [
            (dataset, seed, self.draw_shots(inputs.sentences, dataset, seed, inputs.labels))
            for dataset in (inputs.sentences if self.needs_training_set else ("none",))
            for seed in self.run_seeds
        ]

    @property
    def uses_training_set(self) -> bool:
        """Whether it takes demonstrations or sentences for its calibration from one."""
        return self.needs_training_set or self.read == "calibrated"

    def needs(self, offered: frozenset[Ability]) -> dict[Ability, str]:
        found = super().needs(offered)
        if self.read != "answer":
            found["first_tokens"] = "set read: answer"
        elif self.unparsed == "likelihood":
            found["first_tokens"] = "set unparsed: invalid, or random"
        return found

    def _sampling_of(self, backbone: Backbone) -> dict[str, Any]:
        """Join the method's temperature and the model's settings (ModelError if unsupported)."""
        from transformers import GenerationConfig

        from raybias.engine.keyed_draws import Sampling

        if not backbone.is_checkpoint:
            return {"temperature": self.temperature}
        config = read_config(backbone)
        # As transformers would derive it, without building the model.
        own = read_generation(backbone) or GenerationConfig.from_model_config(config)
        said = SimpleNamespace(config=config, generation_config=own)
        return asdict(Sampling.of(said, temperature=self.temperature))

    def check(self, inputs: Inputs) -> None:
        inputs.refuse_encoder(self.name)
        self._sampling_of(inputs.backbone)
        drawn = self._drawn(inputs)
        form, words = self.form(inputs.encoder), inputs.words
        if self.answer_words(words):
            check_answer_words(inputs.labels, words)
            form.label_ids(words)
        # Demonstrations are counted once for all texts, and the longest of all draws.
        counts = [
            (form.encoder.count_tokens(form.first("", words, shots)), -place, seed)
            for place, (_, seed, shots) in enumerate(drawn)
        ]
        longest, _, seed = max(counts)
        bare = form.encoder.count_tokens(form.first("", words))
        taken = self.answer_room + self.reasoning_room + longest - bare
        for frame in inputs.items.values():
            form.counts(inputs.tokens).check(
                frame["text"].to_list(),
                frame["item_id"].to_list(),
                taken=taken,
                by=f"tokens of answers and demonstrations (seed {seed})",
                write=lambda each: form.last(each, words),
            )

    def work(self, inputs: Inputs) -> Work:
        form, words = self.form(inputs.encoder), inputs.words
        counts, new = form.counts(inputs.tokens), self.answer_room + self.reasoning_room
        dataset = next(iter(inputs.sentences), "none")
        opening, held, shots = 0.0, 1.0, list[Shot]()
        if self.needs_training_set and inputs.sentences:
            shots = self.draw_shots(inputs.sentences, dataset, self.seeds[0], inputs.labels)
            # A replica reads it once for all rows of a run, and copies it to each.
            shown, bare = (counts.mean([form.last("", words, each)]) for each in (shots, ()))
            opening = shown - bare

        def read(texts: Sequence[str], shots: Sequence[Shot] = ()) -> float:
            last = counts.mean([form.last(each, words, shots) for each in texts])
            if not self.reasoning_room:
                return last
            # The generated text is read again, after the first prompt.
            first = counts.mean([form.first(each, words, shots) for each in texts])
            return last + (first + self.reasoning_room)

        tokens, asks = {}, {}
        for name, frame in inputs.items.items():
            some, rows = sample(frame["text"].to_list()), max(1, frame.height)
            shortest = min(counts.lengths([form.first(each, words) for each in some]), default=1)
            written = self.reasoning_room or max(1, self.answer_room)
            held = max(held, 1 + (opening + written) / shortest)
            # Texts that a run reads for an item, those of the calibration counted.
            times = 1.0 + self.calibration * (self.read == "calibrated") / rows
            tokens[name] = (read(some) + opening / rows + new) * times
            if not inputs.encoder.knows_tokens:
                requests = 2.0 if self.reasoning_room else 1.0
                asks[name] = Asks(requests * times, read(some, shots) * times, new * times)
        return Work(
            runs=self.n_runs * (len(inputs.sentences) if self.needs_training_set else 1),
            items=inputs.counted(),
            tokens=tokens,
            asks=asks,
            new_tokens=new,
            held_tokens=held,
        )

    def reader(self, context: ModelContext, store: Store) -> Reader:
        from raybias.methods.label_prompts import PromptedReader

        return PromptedReader(self, answers_of(context, store), context.words, store)

    def _calibration(self, inputs: Inputs, seed: int) -> dict[str, list[str]]:
        """Draw the sentences whose mean scores `read: calibrated` subtracts."""
        if self.read != "calibrated":
            return {}
        by: tuple[str, ...] = ("label",)
        pool = next((each["train"] for each in inputs.sentences.values()), None)
        if pool is None:
            by = ("attribute", "group")
            pool = pl.concat(frame.select("text", *by) for frame in inputs.items.values())
        return {"calibration": draw_texts(pool, self.calibration, seed=seed, by=by)}


@dataclass(frozen=True)
class Asking(PromptFormat):
    """The prompts of a method for texts, on one backbone."""

    method: Prompted

    def first(
        self, text: str, words: Sequence[str], shots: Sequence[Shot] = (), end: str = ""
    ) -> str:
        """Write a text's prompt and its `end`; `words` in label order, `shots` as shown."""
        cue = about(self.method.cue, text, words) + end
        if self.chat:
            messages = self._messages(text, words, shots)
            return self.begun(messages, cue, instead=self.method.asked_in_a_chat)
        shown, _ = self.method.shown(words, shots)
        return shown + about(self.method.template, text, words) + cue

    def last(
        self, text: str, words: Sequence[str], shots: Sequence[Shot] = (), *, reasoning: str = ""
    ) -> str:
        """Write the prompt before the answer; `reasoning` was generated after the first prompt."""
        end = self.method.concluded(text, words, reasoning)
        if not (end and self.chat) or self.own.knows_tokens:
            return self.first(text, words, shots, end)
        *before, question = self._messages(text, words, shots)
        asked = f"{question['content']}\n{self.method.asked_in_a_chat}"
        return self.own.chat(
            [
                *before,
                Message(role=question["role"], content=asked.strip()),
                Message(role="assistant", content=reasoning.strip()),
                Message(role="user", content=self.method.concluded(text, words, "").strip()),
            ]
        )

    def _messages(self, text: str, words: Sequence[str], shots: Sequence[Shot]) -> list[Message]:
        system = self.method.system
        said = [Message(role="system", content=system)] if system else []
        _, shown = self.method.shown(words, shots)
        if not self.own.knows_tokens:
            # No cue begins an endpoint's answer, so none begins the answers that are shown.
            cue = about(self.method.cue, text, words)
            shown = [Message(role=each["role"], content=each["content"].removeprefix(cue).strip())
                     for each in shown]  # fmt: skip
        question = about(self.method.template, text, words).strip()
        return [*said, *shown, Message(role="user", content=question)]

    def record(self, words: Sequence[str], shots: Sequence[Shot]) -> dict[str, str]:
        """Write the prompts of one run for the record, with placeholders for what varies."""
        record = {"prompt": self.first("{text}", words, shots)}
        if self.chat:
            record["prompt_format"] = "chat"
        if self.method.reasoning_room:
            record["second_prompt"] = self.last("{text}", words, shots, reasoning="{reasoning}")
        return record

    def label_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...] | tuple[str, ...]:
        """Return by label the tokens that may begin its word, in either case; words if unknown."""
        shown = self.method.answer_words(words)
        if not self.own.knows_tokens:
            return tuple(shown)

        def ids(variants: Sequence[str]) -> list[int | None]:
            if not self.chat:
                return first_ids(self.own.tokenizer, variants)
            asked = self.last("", words)
            glue = " " if self.method.cue else ""
            opening, *rows = self.encoder.encode([asked, *(asked + glue + x for x in variants)])
            if any(row[: len(opening)] != opening or len(row) == len(opening) for row in rows):
                # Where an answer would change how what precedes it is cut, it stands for itself.
                opening, rows = [], self.encoder.encode(variants)
            unknown = self.own.tokenizer.unk_token_id
            return [None if (x := row[len(opening)]) == unknown else x for row in rows]

        own = distinct(ids(shown), shown, tokenizer=self.own.tokenizer.name_or_path)
        other = ids([word[:1].swapcase() + word[1:] for word in shown])
        groups = tuple(
            (one,) if two in (None, one) else (one, two)
            for one, two in zip(own, other, strict=True)
        )
        tokens = [token for group in groups for token in group]
        # The other case is left out where it would give two labels one token.
        return groups if len({*tokens}) == len(tokens) else tuple((one,) for one in own)


def prompted_methods(methods: Iterable[MethodFields]) -> list[Prompted]:
    """Pick the methods that prompt, in their order."""
    return [method for method in methods if isinstance(method, Prompted)]


def draw_texts(pool: pl.DataFrame, count: int, *, seed: int, by: tuple[str, ...]) -> list[str]:
    """Draw texts without replacement, as many of each group of `by`; all where there are fewer."""
    groups = pool.partition_by(by, maintain_order=True)
    each = min(-(-count // len(groups)), *map(len, groups))
    texts = [
        group["text"][int(row)]
        for n, group in enumerate(groups)
        for row in generator(seed, "calibration", n).choice(len(group), each, replace=False)
    ]
    return [str(text) for text in texts]


def check_answer_words(labels: Sequence[str], words: Sequence[str]) -> None:
    """Refuse words of labels that are empty, equal, or part of another one, by a ConfigError."""
    plain = [word.strip().lower() for word in words]
    for label, word in zip(labels, plain, strict=True):
        whole = next((other for other in plain if word != other and word in other), "")
        if not word:
            problem, cure = f"the word for {label} is empty", "give a word"
        elif plain.count(word) > 1:
            problem, cure = f"{word!r} stands for two labels", "give each its own"
        elif whole:
            problem = f"{word!r} is part of {whole!r}, so an answer with it could mean either"
            cure = "choose words of which none holds another"
        else:
            continue
        raise ConfigError(problem, where="verbalizer", cure=cure)
