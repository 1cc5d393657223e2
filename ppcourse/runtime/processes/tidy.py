"""Imported by the server alone: it ends with the notebook's process, whatever ends that, and removes its socket."""

import atexit
import os
import shutil


def end() -> None:
    """Registered before all that the server imports, so that everything else has been seen to by now."""
    shutil.rmtree(os.environ["PPCOURSE_SERVER_FOLDER"], ignore_errors=True)
    os._exit(0)  # to take torch apart, module by module, would keep it for seconds on a busy machine


atexit.register(end)
