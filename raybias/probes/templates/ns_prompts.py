"""Register NS-Prompts."""

from raybias.probes.templates.race_templates import RaceTemplates

RaceTemplates("ns_prompts", "NS-Prompts.csv").register(
    about="NS-Prompts, neutral sentences about occupations (NAACL 2022; Kohankhaki2024)"
)
