"""The command `mxrec`: run, launch, options, doctor. `mxrec COMMAND --help` has examples."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mxrec._version import __version__

_RUN_EXAMPLES = """\
examples:
  mxrec run train.py --batch 256             train.py gets --batch 256
  mxrec run --tf-version 1.12.0 train.py     tf.__version__ is "1.12.0"
  mxrec run -m package.train --steps 100     as python -m
  mxrec run --horovod train.py               `import horovod.tensorflow` is mxrec.horovod.tensorflow
  mxrec run --own ../common train.py         code in ../common belongs to the program too

Options of mxrec come before the script, everything after it is the script's. `import tensorflow` gives the names of
TensorFlow 1 in the script, in modules of its folder and below, in folders that it adds to sys.path itself, and in those
of --own. Libraries keep the true TensorFlow.
"""
_OPTIONS_EXAMPLES = """\
examples:
  mxrec options                      every key of the parameter_map of NpuOptimizer, and what it does here
  mxrec options precision            keys whose name or meaning contains "precision"
  mxrec options --json > keys.json   for programs
"""
_DOCTOR_EXAMPLES = """\
examples:
  mxrec doctor                          what is installed, what is missing, and the pip line for it
  mxrec doctor script-config train.py   where train.py sets session options otherwise than the guide asks

exit code: 0 all well, 1 something to be mended, 2 wrong arguments
"""


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="mxrec",
    description="Sparse embedding tables and TensorFlow 1 scripts on ordinary machines.",
    epilog="Every command explains itself: mxrec run --help",
  )
  parser.add_argument("--version", action="version", version=f"mxrec {__version__}")
  commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

  def command(name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    return commands.add_parser(
      name,
      help=summary,
      description=f"{summary[0].upper()}{summary[1:]}.",
      epilog=examples,
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )

  run = command("run", "run a TensorFlow 1 script, migrated or not, as python would", _RUN_EXAMPLES)
  run.add_argument("--tf-version", metavar="VERSION", help='what tf.__version__ says (default "1.15.0")')
  run.add_argument("--own", metavar="FOLDER", action="append", default=[], help="a further folder of own code, put on sys.path")
  run.add_argument("--horovod", action="store_true", help="`import horovod` in the script is mxrec.horovod")
  run.add_argument("--plain", action="store_true", help="TensorFlow as it is: for scripts of TensorFlow 2 and of compat.v1")
  run.add_argument("--chdir", action="store_true", help="work in the script's folder")
  run.add_argument("--show-deprecations", action="store_true", help="print TensorFlow's notices of old names")
  run.add_argument("--quiet", action="store_true", help="no line of mxrec at the end")
  run.add_argument("-m", dest="module", metavar="MODULE", help="run a module instead of a script")
  run.add_argument("script", nargs="?", help="the script")
  run.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")

  command("launch", "start a script several times, as the ranks of one training", "mxrec launch --help has its options.")

  options = command("options", "list the keys of NpuOptimizer's parameter_map with their meaning here", _OPTIONS_EXAMPLES)
  options.add_argument("word", nargs="?", default="", help="show only keys that have to do with this word")
  options.add_argument("--json", action="store_true", help="as JSON")

  doctor = command("doctor", "say what is installed and missing, or look at a script's session options", _DOCTOR_EXAMPLES)
  doctor.add_argument("subject", nargs="?", choices=["script-config"], help="what to look at (default: the installation)")
  doctor.add_argument("scripts", nargs="*", metavar="script.py", help="for script-config: the scripts")
  doctor.add_argument("--json", action="store_true", help="as JSON")
  return parser


_RUN_VALUES = ("--tf-version", "--own")


def _split_run(argv: Sequence[str]) -> tuple[list[str], list[str]]:
  """The arguments of `mxrec run` itself (script or -m module included), and those of the program."""
  index = 0
  while index < len(argv):
    word = argv[index]
    if word in _RUN_VALUES:
      index += 2
    elif word == "-m":
      return list(argv[: index + 2]), list(argv[index + 2 :])
    elif word == "--":
      return [*argv[:index], *argv[index + 1 : index + 2]], list(argv[index + 2 :])
    elif word.startswith("-m") and not word.startswith("--"):
      return [*argv[:index], "-m", word[2:]], list(argv[index + 1 :])
    elif word.startswith("-"):
      index += 1
    else:
      return list(argv[: index + 1]), list(argv[index + 1 :])
  return list(argv), []


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line and returns the exit code; SystemExit for wrong arguments and from the program of `run`."""
  argv = list(sys.argv[1:] if argv is None else argv)
  parser = _parser()
  program: list[str] = []
  if argv[:1] == ["launch"]:
    from mxrec import _launch

    return _launch.main(argv[1:])
  if argv[:1] == ["run"]:
    mine, program = _split_run(argv[1:])
    argv = ["run", *mine]
  args = parser.parse_args(argv)
  if args.command == "run":
    return _run(parser, args, program)
  if args.command == "options":
    from mxrec import _option_table

    return _option_table.show(args.word, args.json)
  from mxrec import _doctor

  if args.subject == "script-config":
    if not args.scripts:
      parser.error("doctor script-config needs a script: mxrec doctor script-config train.py")
    return _doctor.script_config(args.scripts, args.json)
  return _doctor.installation(args.json)


def _run(parser: argparse.ArgumentParser, args: argparse.Namespace, program: list[str]) -> int:
  from mxrec import tf1

  target = args.module or args.script
  if target is None:
    parser.error("run needs a script or -m module: mxrec run script.py")
  options = tf1.Options(
    tf_version=args.tf_version or tf1.DEFAULT_VERSION,
    own=tuple(args.own),
    chdir=args.chdir,
    show_deprecations=args.show_deprecations,
    quiet=args.quiet,
    plain=args.plain,
    horovod=args.horovod,
  )
  try:
    tf1.run(target, program, is_module=args.module is not None, options=options)
  except tf1.CannotRun as error:
    print(f"mxrec run: {error}", file=sys.stderr)
    return 1 if args.module is not None else 2
  return 0
