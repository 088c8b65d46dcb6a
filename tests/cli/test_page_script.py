"""The page's script in Chromium, with answers that come when the test says: what is late, or of an input method.

About 2 s. Chromium comes from the system (`apt-get install chromium`): without it this is skipped.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from cli.web.app import STATIC
from tests.web import Quiet, answering

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCRIPT = '<script type="module" src="/page.js"></script>'
# `late` are answers that wait. Of users there are 1 and 2, and one title is found.
ASKED = """<script>
const late = [], facts = { name: "x", items: 1, users: 2, titles: true, groups: [], metrics: false };
window.fetch = (path) => {
  const user = path.slice(-1), about = path.startsWith("/api/about");
  const body = about ? facts
    : path.startsWith("/api/user") ? { user, history: [{ id: user, title: "" }] } : [{ id: "1", title: "Cup" }];
  const answer = { ok: true, json: () => Promise.resolve(body) };
  return about ? Promise.resolve(answer) : new Promise((resolve) => late.push(() => resolve(answer)));
};
</script><script type="module">
import "/page.js";
const at = (id) => document.getElementById(id), rest = () => new Promise((resolve) => setTimeout(resolve, 20));
const type = (text) => {
  at("title").focus();
  at("title").value = text;
  at("title").dispatchEvent(new Event("input"));
};
const press = (key, more) => at("title").dispatchEvent(new KeyboardEvent("keydown", { key, ...more }));
const answers = async () => { for (const each of late.splice(0)) { each(); await rest(); } };
await rest();
const said = {};
STEPS
document.title = JSON.stringify(said);
</script>"""


class _Page(Quiet, SimpleHTTPRequestHandler):
    def __init__(self, *given: Any, steps: str) -> None:
        self.steps = steps
        super().__init__(*given, directory=str(STATIC))

    def do_GET(self) -> None:
        if self.path != "/":
            super().do_GET()
            return
        page = (STATIC / "page.html").read_text().replace(SCRIPT, ASKED.replace("STEPS", self.steps))
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(page.encode())


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH: apt-get install chromium")
@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        (
            'type("cup"); at("top_k").focus(); await answers(); said.hidden = at("found").hidden',
            {"hidden": True},
        ),
        ('type("cup"); press("Escape"); await answers(); said.hidden = at("found").hidden', {"hidden": True}),
        ('type("cup"); await answers(); said.found = at("status").textContent', {"found": "1 title found"}),
        (
            'type("cup"); await answers(); press("Enter", { isComposing: true }); said.found = at("found").hidden;'
            'press("Enter"); said.items = at("count").textContent',
            {"found": False, "items": "(1)"},
        ),
        (
            'for (const user of "12") { at("user").value = user; at("load").click(); }'
            'late.reverse(); await answers(); said.user = at("user").value',
            {"user": "2"},
        ),
    ],
    ids=["left", "escaped", "one", "composed", "users"],
)
def test_what_comes_late_is_not_shown(steps: str, wanted: dict[str, object], tmp_path: Path) -> None:
    with answering(partial(_Page, steps=steps)) as server:
        url = f"http://127.0.0.1:{server.server_port}/"
        # As root, in a container, Chromium's sandbox cannot start; the page is ours. Its time is not the clock's.
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--dump-dom"]
        done = subprocess.run([str(CHROMIUM), *options, f"--user-data-dir={tmp_path}", url], capture_output=True,
                              text=True, timeout=120, check=True)  # fmt: skip
    found = re.search("<title>(.*)</title>", done.stdout)
    assert found and json.loads(found[1]) == wanted
