"""`raybias probes`, `data` and `annotate`: probes, public data sets, and people's labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
import typer
from tabulate import tabulate

from raybias.api import labels as people
from raybias.api import studies
from raybias.cli.options import Output, apart, command, parted
from raybias.config import Backbone, PairProbe, Probe, StyleOptions
from raybias.errors import ConfigError, DataError
from raybias.probes import declared_labels, pair_items, probe_items
from raybias.probes import sources as catalogue
from raybias.probes.design import check_probe
from raybias.probes.own import commented_card, held_labels
from raybias.probes.registries import pair_probes, probes, question_probes
from raybias.probes.styles.written import export_annotation, import_annotation
from raybias.schema import ITEMS, LABELS, PAIRS
from raybias.storage import Store, split_uri
from raybias.study_record import is_study
from raybias.table_files import output_suffix, write_frame

Name = Annotated[str, typer.Argument(help="A probe of `raybias probes list`, or your file.")]
Data = Annotated[str | None, typer.Option(help="Folder with the published files, or your file.")]
Attribute = Annotated[
    list[str] | None,
    typer.Option(help="Only this protected attribute, or type of pairs; may be repeated."),
]

Styled = Annotated[
    list[str] | None,
    typer.Option(
        help="File with the formal and informal pairs: pair_id, style, sent_more, sent_less;"
        " may be repeated."
    ),
]
Evidential = Annotated[
    Literal["Apparently", "Evidently"], typer.Option(help="The word of the style evidential.")
]
Question = Annotated[
    Literal["first", "second", "seeded"],
    typer.Option(help="The opening of question_answer: the same for all, or drawn per pair."),
]
Seed = Annotated[int, typer.Option(help="Seed of random draws.")]


@command()
def list_probes() -> Output:
    """List the probes with their attributes and data, then those in pairs, then questions."""
    text: list[str] = []
    rows: list[dict[str, Any]] = []
    for what, kinds, sources in (
        ("what", "attributes", probes),
        ("pairs", "types", pair_probes),
        ("questions", "", question_probes),
    ):
        listed = [
            {
                "name": name,
                what: each.about,
                **({kinds: ", ".join(each.kinds) or "as in the data"} if kinds else {}),
                "data": each.data,
            }
            for name, each in sources.items()
        ]
        text.append(tabulate(listed, headers="keys"))
        rows += listed
    return Output(apart(text), rows)


@command()
def new(
    kind: Annotated[str, typer.Argument(help="label, pair, triple, options or decision.")],
    *,
    out: Annotated[
        str | None, typer.Option(help="File or URI of the card; printed by default.")
    ] = None,
) -> Output:
    """Write a commented card for a probe of your own.

    A card says which columns of your file are what, what is measured, and who is harmed how.
    """
    text = commented_card(kind)
    if out is None:
        return Output([text.rstrip()], [{"card": text}])
    store, name = split_uri(out)
    if store.exists(name):
        raise ConfigError("is there already", where=out, cure="give another --out")
    store.write_text(name, text)
    said = f"written to {out}; fill it in, then `raybias probes check {out}`"
    return Output([said], [{"file": out}])


@command()
def check(
    card: Annotated[
        str,
        typer.Argument(
            metavar="CARD",
            help="The card of a probe, or its table: a .csv, .tsv, .jsonl or .parquet file, or a"
            " folder of datasets.save_to_disk.",
        ),
    ],
) -> Output:
    """Say what the design of a probe of your own can and cannot show, before anything runs.

    A table without a card is of the kind that its columns tell.
    """
    design = check_probe(card)
    return Output([design], design.parts)


@command()
def write(
    name: Name,
    *,
    out: Annotated[str, typer.Option(help="File or URI ending in .parquet or .csv.")],
    data: Data = None,
    attribute: Attribute = None,
    unmarked: Annotated[bool, typer.Option("--unmarked")] = False,
    style: list[str] | None = None,
    styled: Styled = None,
    evidential: Evidential = "Apparently",
    question: Question = "first",
    seed: Seed = 0,
) -> Output:
    """Write a probe's items: item_id, label, attribute, group, text, template_id, term, family.

    Labels are 0 negative, 1 neutral, 2 positive; of a probe with other labels they are numbers from
    0, whose labels are listed. Rows keep their published order. A probe in pairs has columns of its
    own, and may be written in several styles. In CSV, text that a spreadsheet would take for a
    formula has an apostrophe before it, which is taken away again where raybias reads the file.

    Parameters
    ----------
    unmarked: also each template without its group term, and with a neutral word.
    style: of a probe in pairs: a style, original by default; may be repeated.
    """
    output_suffix(out)
    in_pairs = name in pair_probes
    notes: list[str] = []
    if unmarked if in_pairs else style or styled:
        other = "unmarked forms" if in_pairs else "styles"
        raise ConfigError(f"probe {name} has no {other}", cure="see `raybias probes list`")
    if in_pairs:
        pairs = {"source": name, "data": data, "kinds": attribute or None}
        options = StyleOptions(evidential=evidential, question=question)
        items = pair_items(
            PairProbe.model_validate(pairs), style or ["original"], files=styled or (),
            options=options, seed=seed,
        )  # fmt: skip
        schema, by = pair_probes[name].schema, ["style", pair_probes[name].kind]
        headers = ["style", "type", "rows"]
    else:
        probe = chosen_probe(name, data, attribute, unmarked=unmarked)
        items, notes = _items_with_labels(probe)
        schema, by, headers = ITEMS, ["attribute"], ["attribute", "items"]
    write_frame(items, out, schema)
    counts = items.group_by(by, maintain_order=True).len()
    total = ("all", *[""] * (len(by) - 1), len(items))
    text = tabulate([*counts.rows(), total], headers=headers)
    return Output([text, *notes, f"written to {out}"], counts)


def _items_with_labels(probe: Probe) -> tuple[pl.DataFrame, list[str]]:
    """Read a probe's items; list its labels in a line if they are not those of sentiment."""
    labels = declared_labels(probe) or LABELS
    if probe.source == "file" and probe.data is not None:
        labels = held_labels(probe.data)
    items = probe_items(probe, labels=labels)
    if labels == LABELS:
        return items, []
    named = [f"{number} {label}" for number, label in enumerate(labels)]
    return items, [f"labels are {', '.join(named)}"]


def chosen_probe(
    name: str, data: str | None, attributes: list[str] | None, *, unmarked: bool = False
) -> Probe:
    """Build the probe that a command names; `DataError` where there is no such probe."""
    source = name
    if name.endswith((".csv", ".tsv", ".jsonl", ".parquet")) and data is None:
        source, data = "file", name
    if source not in probes:
        raise DataError(
            f"no probe {name!r}", cure=f"choose from {', '.join(probes)}, or give your own file"
        )
    chosen = tuple(attributes) if attributes else None
    return Probe.model_validate(
        {"source": source, "data": data, "attributes": chosen, "unmarked": unmarked}
    )


@command()
def export(
    what: Annotated[
        str,
        typer.Argument(
            help="crows_pairs, or pairs for your own; or the OUT of a study whose texts a judge"
            " labelled."
        ),
    ],
    *,
    out: Annotated[str, typer.Option()],
    style: list[str] | None = None,
    data: Data = None,
    attribute: Attribute = None,
    styled: Styled = None,
    evidential: Evidential = "Apparently",
    question: Question = "first",
    of_group: int = 50,
    seed: Seed = 0,
) -> Output:
    """Write a sheet for people to label, and guidelines of pairs.

    Of pairs, originals and styled pairs stand side by side, and every annotator fills in the column
    `label` of a copy that bears the annotator's name. Of a study, texts of each group are drawn at
    random, without the judge's verdicts; a person fills in `label`: negative, neutral or positive.

    Parameters
    ----------
    out: folder or URI of the sheet of pairs; or the CSV of a study's texts.
    style: a style to be judged; may be repeated.
    of_group: texts of each group of each model, drawn at random; at least 20.
    """
    if is_study(what):
        rows = people.judge_sheet(what, out, of_group=of_group, seed=seed)
        return Output([f"{rows.height} texts to label are in {Store(out).uri}"], rows)
    if not style:
        raise typer.BadParameter("no style is given", param_hint="--style")
    pair_probes.check(what)
    if pair_probes[what].schema != PAIRS:
        raise ConfigError(f"probe {what} has no pairs to judge", cure="give crows_pairs or pairs")
    if "original" in style:
        raise ConfigError(
            "--style original is no style to judge", cure="originals stand beside every style"
        )
    chosen = {"source": what, "data": data, "kinds": attribute or None}
    options = StyleOptions(evidential=evidential, question=question)
    pairs = pair_items(
        PairProbe.model_validate(chosen), ["original", *style], files=styled or (),
        options=options, seed=seed,
    )  # fmt: skip
    sheet = export_annotation(pairs, out)
    said = f"{len(sheet)} rows in {Store(out).uri_of('sheet.csv')}, with guidelines.md"
    return Output([said], sheet)


@command()
def import_(
    what: Annotated[str, typer.Argument()],
    files: Annotated[list[str], typer.Argument()],
    *,
    label: Annotated[list[str] | None, typer.Option(metavar="VALUE=LABEL")] = None,
    out: str | None = None,
) -> Output:
    """Read people's labels: agreement on pairs, or gaps corrected for a judge's errors.

    Of pairs, writes shares.csv, agreement.csv (how many all call alike, and Fleiss' kappa with its
    95% interval over pairs), and two files of styled pairs: kept.csv, which all call the same, and
    rewrite.csv, whose sentences are to be mended before both are given as --styled. Of a study,
    OUT/tables/judged.csv and the page are written again.

    Parameters
    ----------
    what: the sheet.csv that the annotators were given; or the OUT of a study.
    files: a file of labels per annotator: pair_id, style, label; or the study's sheet, with every
        label filled in.
    label: the label that a value stands for, such as 0=same; may be repeated. Of pairs labels are
        same, different and not_sure, of a study its own; other values are refused.
    out: of pairs: folder or URI that the files are written to.
    """
    from raybias.report.judged import Judged
    from raybias.report.judges import judged_text
    from raybias.stats.redrawn import have_seeds

    meant = parted("--label", label or (), "VALUE=LABEL", "such as 0=same")
    if is_study(what):
        if len(files) != 1:
            raise typer.BadParameter("a study has one sheet", param_hint="FILES")
        results = people.judge_labels(what, files[0], labels=meant)
        judged = results.table("judged").collect()
        seeds = have_seeds(results.runs.collect())
        redrawn = Judged.of(results.estimates.collect(), has_seeds=seeds).redrawn
        return Output(apart([judged_text(judged, redrawn)], f"report: {results.report}"), judged)
    if out is None:
        raise typer.BadParameter("no folder is given", param_hint="--out")
    tables = import_annotation(what, files, out, labels=meant)
    shares, agreed = tables["shares"], tables["agreement"]
    shown = [(*row[:-1], f"{row[-1]:.1%}") for row in shares.rows()]
    parts = (
        tabulate(shown, headers=shares.columns),
        tabulate([*map(_agreement, agreed.iter_rows(named=True))], headers="keys"),
    )
    kept, rest = len(tables["kept"]), len(tables["rewrite"])
    said = f"{kept} kept, {rest} to rewrite; files are in {Store(out).uri}"
    return Output(apart(parts, "[low, high]: 95% intervals as if pairs were redrawn", said), agreed)


def _agreement(row: Mapping[str, Any]) -> dict[str, object]:
    """Lay out how far annotators agree on a style."""
    kappa, low, high = (row[name] for name in ("kappa", "kappa_low", "kappa_high"))
    interval = "" if low is None else f" [{low:.3f}, {high:.3f}]"
    return {
        "style": row["style"], "pairs": row["pairs"], "annotators": row["annotators"],
        "all alike": f"{row['unanimous']} ({row['unanimous_share']:.1%})",
        "all same": row["unanimous_same"],
        "kappa": "-" if kappa is None else f"{kappa:.3f}{interval}",
    }  # fmt: skip


@command()
def list_sets() -> Output:
    """List the data sets that raybias reads, with licence, pinned revision and source."""
    sets = catalogue.data_sets().with_columns(
        pl.col("part") + pl.when("optional").then(pl.lit(" (optional)")).otherwise(pl.lit(""))
    )
    sets = sets.drop("optional")
    headers = ("name", "part", "files", "rows", "revision", "licence", "source")
    return Output([tabulate(sets.rows(), headers=headers, disable_numparse=True)], sets)


@command()
def check_folder(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder or URI of one data set.")],
    name: Annotated[
        str | None, typer.Option(help="Which data set it is; recognised by its files by default.")
    ] = None,
) -> Output:
    """Compare a folder with the published files: sha256 and row counts.

    Exits with 2 if anything differs.
    """
    found = catalogue.check_data(folder, name)
    headers = (f"{found['name'][0]} file", "rows", "finding")
    rows = found.select("file", "rows", "finding").rows()
    text = tabulate(rows, headers=headers, disable_numparse=True)
    wrong = found.filter(~found["ok"])["file"].to_list()

    def checked(first: Iterable[Any]) -> Iterator[Any]:
        yield from first
        if wrong:
            raise DataError(
                f"{len(wrong)} of {len(found)} files are not as published ({wrong[0]} first)",
                where=folder,
                cure="see `raybias data list` for their source",
            )

    return Output(checked([text]), checked(found.iter_rows(named=True)))


@command()
def download(
    name: Annotated[str, typer.Argument(help="A data set of `raybias data list`.")],
    out: Annotated[Path, typer.Option(help="Local folder; give it as --data or `data` later.")],
    mirror: Annotated[
        str | None, typer.Option(help="Address that holds the files, instead of the published one.")
    ] = None,
) -> Output:
    """Fetch a data set from its published source at the pinned revision.

    Files that are already there and right are not fetched again; a file whose
    sha256 is not the published one is refused.
    """
    from raybias.runtime.progress import Reporter

    count = int(catalogue.data_sets().filter(name=name)["files"].sum())
    with Reporter().stage(f"fetching {name}", count) as advance:
        catalogue.download_data(name, out, mirror=mirror, on_file=lambda path: advance(note=path))
    return Output([f"{name}: {count} files in {out}"], [{"folder": str(out), "files": count}])


@command(studies.convert)
def convert(
    model: Annotated[str, typer.Argument()], *, out: str, revision: str | None = None
) -> Output:
    """Convert a GGUF file or pickled weights into a folder with safetensors, for studies to name.

    A study reads safetensors only. transformers reads a GGUF file (extra `gguf`); its weights
    become float32, and the name of the backbone says its quantisation. torch's unpickler of
    weights alone reads a pickle; a file that holds anything else is refused.
    """
    done = studies.convert(model, out, revision=revision)
    said = [f"{done.folder}: {done.tensors} tensors as safetensors; give it as the backbone's id"]
    if done.quantisation:
        said.append(f"from GGUF {done.quantisation}: its name is {Backbone(id=done.folder).name}")
    return Output(said, [asdict(done)])
