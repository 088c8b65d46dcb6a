"""OpenVINO without its model converter, which nothing here needs: `from genrec.engine.quiet_openvino import ov`.

`import openvino` imports the converter if it can. That takes a third of the import's time, in every process that
serves, writes to the home folder and tells Google Analytics of the import, unless the user has opted out.
"""

from __future__ import annotations

import sys

__all__ = ["ov"]
CONVERTER = "openvino.tools.ovc"

if "openvino" in sys.modules:
    import openvino as ov
else:
    sys.modules[CONVERTER] = None  # type: ignore[assignment]  # Python's word for a module that cannot be imported
    import openvino as ov

    del sys.modules[CONVERTER]
