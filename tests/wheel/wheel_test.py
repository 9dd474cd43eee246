"""The wheel installs into an empty environment beside TensorFlow, imports and trains, with nothing from the machine that built it.

`make test` builds the wheel first; alone, run `make wheel` before.
"""

import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Shared libraries that every Linux of the C++ runtime's generation has.
BASE_SET = re.compile(r"^(ld-linux.*|lib(c|m|dl|pthread|rt|gcc_s|stdc\+\+))\.so")
PACKAGES = ("mxrec/", "npu_bridge/", "npu_device/", "hccl/", "rec_sdk_common/")
# Loaded by `import tensorflow`, which the package does first.
FROM_TENSORFLOW = re.compile(r"^libtensorflow_(framework|cc)\.so")

TRAIN = """
import mxrec
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
table = mxrec.get_embedding_table("item", 8, 1000)
rows = mxrec.embedding_lookup(table, tf.constant([3, -1, 2**62, 3], tf.int64))
loss = tf.reduce_mean(tf.square(rows - 1.0))
train = mxrec.minimize(loss, tf.train.GradientDescentOptimizer(1.0))
with tf.Session() as session:
    session.run(mxrec.get_init_hashtable_op())
    losses = [session.run([loss, train])[0] for _ in range(3)]
    assert losses[0] > losses[1] > losses[2], losses
    assert table.size(session) == 3, table.size(session)
    mxrec.EmbeddingTableSaver([table]).save(session, "saved", 7)
print("FROM", mxrec.__file__)
print("MAPPED", *sorted({line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}))
print("TRAINED")
"""


@pytest.fixture(scope="session")
def wheel():
  found = sorted((ROOT / "dist").glob("mxrec-*.whl"))
  if not found:
    pytest.skip("dist/ holds no wheel: run `make wheel` first")
  assert len(found) == 1, found
  return found[0]


@pytest.fixture(scope="session")
def environment(wheel, tmp_path_factory):
  """A new virtual environment that holds the wheel and nothing else; the path of its Python."""
  folder = tmp_path_factory.mktemp("environment")
  subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
  python = folder / "bin/python"
  subprocess.run(
    [sys.executable, "-m", "pip", "-q", "--python", python, "install", "--no-index", "--disable-pip-version-check", wheel],
    check=True,
  )
  return python


def add_to_path(python, folder):
  """Makes the packages of `folder` visible in an environment, as if they were installed there; returns an undo function."""
  (site,) = python.parent.parent.glob("lib/python3.*/site-packages")
  link = site / "added.pth"
  link.write_text(f"{folder}\n", encoding="utf-8")
  return link.unlink


def run(python, code, folder):
  """Runs code without any environment variable of this process, away from the tree."""
  return subprocess.run([python, "-c", code], env={}, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def test_the_wheel_needs_no_python_abi_and_declares_no_dependency(wheel):
  assert re.fullmatch(r"mxrec-[0-9.]+-py3-none-linux_\w+\.whl", wheel.name), wheel.name
  with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()
    metadata = archive.read(next(n for n in names if n.endswith(".dist-info/METADATA"))).decode()
  assert "Requires-Dist" not in metadata
  assert re.search(r"^License-Expression: Apache-2\.0$", metadata, re.M), metadata
  version = re.search(r"project\(mxrec VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
  assert f"\nVersion: {version}\n" in metadata


def test_the_command_is_installed_and_says_what_is_missing(environment, tmp_path):
  command = environment.parent / "mxrec"
  version = subprocess.run([command, "--version"], env={}, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
  assert re.fullmatch(r"mxrec [0-9.]+\n", version)
  done = subprocess.run([command, "doctor"], env={}, cwd=tmp_path, capture_output=True, text=True, check=False)
  assert done.returncode == 1 and "pip install tensorflow-cpu==" in done.stdout, done.stderr


def test_the_wheel_holds_the_package_and_nothing_of_the_tree_beside_it(wheel):
  with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()
  outside = {n for n in names if ".dist-info" not in n and not n.startswith(PACKAGES)}
  assert {re.sub(r"^mxrec-[0-9.]+\.data/", "", n) for n in outside} == {"scripts/mxrec-ckpt"}, outside
  assert "mxrec/__init__.py" in names
  assert "mxrec/py.typed" in names and "mxrec/__init__.pyi" in names
  assert {"mxrec/_lib/libmxrec_tf.so", "mxrec/_lib/libmxrec_gloo.so", "mxrec/_lib/libmxrec_mpi.so"} <= set(names)
  strays = [n for n in names if re.search(r"__pycache__|_test\.|/test_|CMakeLists|/include/|\.a$", n)]
  assert strays == []


def test_every_needed_library_is_in_the_wheel_or_in_every_linux(wheel, tmp_path):
  with zipfile.ZipFile(wheel) as archive:
    archive.extractall(tmp_path)
  libraries = [*sorted((tmp_path / "mxrec/_lib").glob("*.so*")), tmp_path / "mxrec/_lib/mxrec-ckpt"]
  bundled = {library.name for library in libraries}
  for library in libraries:
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    missing = [n for n in needed if n not in bundled and not BASE_SET.match(n) and not FROM_TENSORFLOW.match(n)]
    if library.name == "libmxrec_mpi.so":  # MPI is the user's: the one that starts the ranks
      missing = [n for n in missing if not n.startswith("libmpi.so")]
    assert missing == [], f"{library.name} needs {missing}, which the wheel does not carry"
    search = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic)
    assert search in ([], ["$ORIGIN"]), f"{library.name} searches {search}"
    if any(n in bundled for n in needed):
      assert search == ["$ORIGIN"], f"{library.name} needs a bundled library but does not search beside itself"


def test_bundled_libraries_come_with_their_licences(wheel):
  with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()
  bundled = [n for n in names if re.fullmatch(r"mxrec/_lib/[^/]+\.so[.\d]*", n) and "libmxrec_" not in n]
  assert bundled, names
  for name in bundled:
    assert f"mxrec/_lib/licenses/{pathlib.PurePosixPath(name).name}.txt" in names


def test_without_tensorflow_the_import_says_what_to_install(environment, tmp_path):
  done = run(environment, "import mxrec", tmp_path)
  last = done.stderr.strip().splitlines()[-1]
  assert done.returncode == 1
  assert last.startswith("ImportError: mxrec needs TensorFlow"), done.stderr
  assert "pip install tensorflow" in last


def test_a_wrong_tensorflow_is_named_with_its_version(environment, tmp_path):
  (tmp_path / "tensorflow").mkdir()
  (tmp_path / "tensorflow/__init__.py").write_text('__version__ = "1.15.0"\n', encoding="utf-8")
  undo = add_to_path(environment, tmp_path)
  try:
    done = run(environment, "import mxrec", tmp_path.parent)
  finally:
    undo()
  last = done.stderr.strip().splitlines()[-1]
  assert done.returncode == 1
  assert last.startswith("ImportError: ") and "1.15.0" in last, done.stderr


def test_the_installed_wheel_trains_with_an_empty_environment_and_uses_its_own_libraries(environment, tmp_path):
  tensorflow_site = pathlib.Path(next(p for p in sys.path if os.path.isdir(os.path.join(p, "tensorflow", "python"))))
  undo = add_to_path(environment, tensorflow_site)
  try:
    done = run(environment, TRAIN, tmp_path)
  finally:
    undo()
  assert done.returncode == 0, done.stderr
  assert "TRAINED" in done.stdout
  root = str(environment.parent.parent)
  assert re.search(rf"^FROM {re.escape(root)}/", done.stdout, re.M), done.stdout
  mapped = re.search(r"^MAPPED (.*)$", done.stdout, re.M)[1].split()
  lib = environment.parent.parent / "lib"
  bundled = {p.name for p in lib.glob("python3.*/site-packages/mxrec/_lib/*.so*")}
  foreign = [m for m in mapped if pathlib.PurePath(m).name in bundled and not m.startswith(root)]
  assert foreign == [], "libraries of the system were used instead of the bundled ones"

  # The installed command looks into what was saved, with an empty environment and no TensorFlow in it.
  command = [environment.parent / "mxrec-ckpt"]
  for arguments, expected in ((["list", "saved"], "7"), (["show", "saved"], "item"), (["verify", "saved"], "")):
    done = subprocess.run(command + arguments, env={}, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
  (file,) = (tmp_path / "saved/mxrec-7").glob("*.mxt")
  file.write_bytes(file.read_bytes()[:-1])
  done = subprocess.run(
    [*command, "verify", "saved"], env={}, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
  )
  assert done.returncode != 0 and file.name in done.stdout + done.stderr
