"""Chromium, playwright and axe. The marks BROWSER skip a test if one of them is not installed.

pytestmark = BROWSER
"""

import os
import shutil

import pytest

try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import expect, sync_playwright
except ImportError as error:
    Axe = expect = sync_playwright = None
    missing = f"{error.name} is not installed (pip install -e '.[browser]')"
else:
    expect.set_options(timeout=60_000)
    missing = ""
    if shutil.which("chromium") is None:
        missing = "there is no chromium (apt-get install chromium)"
if missing and os.environ.get("CI") == "true":
    raise RuntimeError(f"with CI=true the browser tests must run, but {missing}")

__all__ = ["BROWSER", "Axe", "expect", "sync_playwright"]
BROWSER = [pytest.mark.slow, pytest.mark.skipif(bool(missing), reason=missing)]
