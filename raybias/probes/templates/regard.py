"""Register Regard."""

from raybias.probes.templates.race_templates import RaceTemplates

RaceTemplates("regard", "Regard.csv").register(
    about="Regard sentences about a person (Sheng et al. 2019; Kohankhaki2024)"
)
