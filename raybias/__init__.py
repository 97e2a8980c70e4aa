"""raybias: social bias of language models, measured at the scale of a Ray cluster.

The names below are the public interface; everything else may change. Importing the
package loads neither torch nor Ray.
"""

from raybias.api import gaps, load_study, plan, probe_items, run, write_report

__all__ = ["gaps", "load_study", "plan", "probe_items", "run", "write_report"]
