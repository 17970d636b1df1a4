"""Open saved models in the browser.

vanilla-transformer demo
vanilla-transformer demo --model runs/quickstart-en-es
"""

from vanilla_transformer.app.app import main


__all__ = ["main"]
