"""The pool over Mooncake Store: what one node computed another reads, and nothing of the store is believed unread."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

from genrec.errors import InputError
from genrec.nodes.mooncake import Mooncake

# Its listeners bind every address, so it runs only where there is no other network.
ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"')


def why_not() -> str:
    """Why it cannot run here, or nothing."""
    if find_spec("mooncake") is None:
        return "mooncake-transfer-engine-non-cuda is not installed"
    if shutil.which("mooncake_master") is None:
        return "mooncake_master is not on the path"
    if shutil.which("unshare") is None or subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        return "no network of its own may be made here"
    tried = subprocess.run([sys.executable, "-c", "import mooncake.store"], capture_output=True, text=True)
    return tried.stderr.strip().rpartition("\n")[2]


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_two_nodes(tmp_path):
    """Items and users travel; torn and foreign objects are refused; without the master everything goes on."""
    command = [*ALONE, sys.executable, "-m", "tests.nodes.mooncake_nodes", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ)
    assert ended.stdout.endswith("as it should be\n"), ended.stdout + ended.stderr


@pytest.mark.skipif(find_spec("mooncake") is not None, reason="mooncake is installed")
def test_without_the_package_it_is_said_what_to_install():
    with pytest.raises(InputError, match="pip install mooncake-transfer-engine-non-cuda"):
        Mooncake("127.0.0.1:1", "127.0.0.1:2", 1 << 20)
