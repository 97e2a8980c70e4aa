"""Register Regard."""

from raybias.formats.openings import regard_opening
from raybias.probes.templates.race_templates import RaceTemplates

RaceTemplates("regard", "Regard.csv", family=regard_opening).register(
    about="Regard sentences about a person (Sheng et al. 2019; Kohankhaki2024)"
)
