"""The documentation is true: its code runs, its links lead somewhere, the texts it quotes exist.

The code blocks of a guide page run in order, in one namespace, in a fresh process and an empty folder. On a page about commands, a
block that begins with `# name.py` is that file, and the lines of sh blocks are run.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
COMMAND_PAGES = [ROOT / "docs" / "guide" / "running_tf1_scripts.md"]
PAGES = sorted(
  page
  for folder in (ROOT, *(ROOT / name for name in ("docs", "examples", "mxrec", "tf", "tools", "bench", "fuzz", "tests", "python")))
  for page in (folder.glob("*.md") if folder == ROOT else folder.rglob("*.md"))
)
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def python_blocks(page: pathlib.Path) -> list[tuple[int, str]]:
  """(line of its first code line, code) of each Python block."""
  text = page.read_text(encoding="utf-8")
  return [(text.count("\n", 0, match.start(1)) + 1, match.group(1)) for match in _BLOCK.finditer(text)]


def as_script(page: pathlib.Path) -> str:
  """All Python blocks of a page, each on the line that it has in the page, so that a traceback names that line."""
  lines: list[str] = []
  for line, code in python_blocks(page):
    lines.extend([""] * (line - 1 - len(lines)))
    lines.extend(code.splitlines())
  return "\n".join(lines) + "\n"


def run_script(script: pathlib.Path, folder: pathlib.Path) -> subprocess.CompletedProcess:
  return subprocess.run([sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("page", [page for page in GUIDE if page not in COMMAND_PAGES], ids=lambda page: page.name)
def test_the_code_blocks_of_a_guide_page_run_in_order(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
  assert python_blocks(page), f"{page.name} has no Python block"
  script = tmp_path / f"{page.name}.py"
  script.write_text(as_script(page), encoding="utf-8")
  done = run_script(script, tmp_path)
  assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.thorough
@pytest.mark.parametrize("page", COMMAND_PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_guide_page_print_what_it_says(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
  for _, code in python_blocks(page):
    name = re.match(r"# (\w+\.py)\n", code)
    assert name, code
    (tmp_path / name[1]).write_text(code, encoding="utf-8")
  text = page.read_text(encoding="utf-8")
  commands = re.findall(r"^```sh\n(.*?)^```$(?:\s*^```text\n(.*?)^```$)?", text, re.DOTALL | re.MULTILINE)
  assert commands
  for lines, expected in commands:
    printed = ""
    for line in lines.splitlines():
      words = line.split()
      assert words[0] == "mxrec", line
      command = [sys.executable, "-m", *words]
      done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
      assert done.returncode == 0, done.stderr[-4000:]
      printed += done.stdout
    missing = [line for line in expected.splitlines() if line not in printed]
    assert not missing, printed


def test_the_example_in_the_readme_is_minimal_py() -> None:
  blocks = python_blocks(ROOT / "README.md")
  assert len(blocks) == 1
  assert blocks[0][1] == (ROOT / "examples" / "minimal.py").read_text(encoding="utf-8")


def test_minimal_py_trains_and_saves(tmp_path: pathlib.Path) -> None:
  done = run_script(ROOT / "examples" / "minimal.py", tmp_path)
  assert done.returncode == 0, done.stderr[-4000:]
  found = re.search(r"loss ([0-9.]+), (\d+) rows", done.stdout)
  assert found, done.stdout
  assert float(found.group(1)) < 0.5  # ln 2 = 0.693 at the start
  assert int(found.group(2)) == 500  # every id that was trained, none else
  assert (tmp_path / "minimal_checkpoint" / "mxrec-200" / "MANIFEST.json").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: pathlib.Path) -> None:
  links = [link for link in _LINK.findall(page.read_text(encoding="utf-8")) if not link.startswith(("http:", "https:"))]
  missing = [link for link in links if not (page.parent / link).exists()]
  assert not missing, f"{page.relative_to(ROOT)} links to {missing}"


def test_all_documentation_is_looked_at() -> None:
  names = {str(page.relative_to(ROOT)) for page in PAGES}
  assert names >= {
    "README.md",
    "HACKING.md",
    "CHANGELOG.md",
    "docs/architecture.md",
    "docs/numerics.md",
    "docs/formats/checkpoint.md",
  }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_are_run_somewhere(page: pathlib.Path) -> None:
  """Guide pages run as they are, the README's block is an example file; other pages hold no Python that nothing runs."""
  assert page in GUIDE or page == ROOT / "README.md" or not python_blocks(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page: pathlib.Path) -> None:
  """Paths in backquotes that begin with a folder of the tree."""
  named = re.findall(
    r"`((?:docs|mxrec|tf|python|scripts|tests|bench|cmake|examples|requirements)/[\w./-]+\.\w+)`", page.read_text(encoding="utf-8")
  )
  built = ("bench/out/", "examples/out/")
  missing = [name for name in named if not (ROOT / name).exists() and not name.startswith(built)]
  assert not missing, f"{page.relative_to(ROOT)} names {missing}"


def test_the_cpp_example_stays_short() -> None:
  assert len((ROOT / "examples" / "cpp" / "train.cc").read_text(encoding="utf-8").splitlines()) <= 30


def quoted_texts() -> list[str]:
  """First cells of the tables in docs/errors.md: message texts, with … for the parts that vary."""
  rows = re.findall(r"^\| `(.+?)` \|", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"), re.MULTILINE)
  return [row for row in rows if not row.startswith("!")]


def source_text() -> str:
  """Our sources with adjacent string literals joined, so that a message which is broken over lines can be found."""
  places = (("python/mxrec", "*.py"), ("mxrec", "*.cc"), ("mxrec", "*.h"), ("tf", "*.cc"), ("tf", "*.h"))
  files = [path for folder, pattern in places for path in sorted((ROOT / folder).rglob(pattern))]
  text = "\n".join(path.read_text(encoding="utf-8") for path in files).replace('\\"', '"')
  return re.sub(r'"\s*(?:\+|<<)?\s*\n\s*(?:\+|<<)?\s*f?"', "", text)


def test_every_message_that_the_page_of_errors_quotes_is_in_the_sources() -> None:
  sources = source_text()
  texts = quoted_texts()
  assert len(texts) > 30
  missing = [(text, piece) for text in texts for piece in text.split("…") if piece.strip() not in sources]
  assert not missing
