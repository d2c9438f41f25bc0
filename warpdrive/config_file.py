"""Config files: YAML in, with the line of every key; YAML out.

Reads less than YAML allows: what could run code or grow without end is refused, and so is what one
YAML reads so and another otherwise.
"""

from __future__ import annotations

import math
import os
import re
import stat
from pathlib import Path
from typing import Any

import yaml

from warpdrive.config import Problems, Section, WrongValue, did_you_mean, join_path, shown, to_plain
from warpdrive.errors import ConfigError, printable

MAX_FILE_BYTES = 1 << 20
MAX_NESTING = 32
MAX_VALUES = 10_000
TOO_DEEP = f"nested more than {MAX_NESTING} deep, which no config needs."


def load_yaml(path: str | Path) -> Section:
    """Reads a YAML file of keys and values.

    Tags, aliases, files over 1 MiB, nesting over 32 and more than 10,000 values are refused; numbers are read as people
    mean them.

    Raises:
        ConfigError: one line per mistake, `FILE:LINE: key.path: what is wrong`.
    """
    name, path = printable(str(path)), Path(path)
    try:
        content = read_regular(path, MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        beside = [file.name for file in path.parent.glob("*.y*ml") if file.name != path.name]
        raise ConfigError(f"{name}: no such file.{did_you_mean(path.name, beside)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{name}: is a folder. Name the YAML file in it.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if len(content) > MAX_FILE_BYTES:
        size = max(len(content), path.stat().st_size)
        raise ConfigError(f"{name}: has {size / 2**20:.1f} MiB; a config has at most 1 MiB. Is it the right file?")
    return parse_yaml(content, str(path))


def read_regular(path: Path, max_bytes: int = -1) -> bytes:
    """The first `max_bytes` of a regular file, all of it if -1.

    A FIFO would be waited for, and a device read, for ever: both are refused, also behind a symbolic link.

    Raises:
        OSError: it is missing, no regular file, or cannot be read.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            kind = "a FIFO" if stat.S_ISFIFO(mode) else "a device" if not stat.S_ISSOCK(mode) else "a socket"
            raise OSError(None, f"it is {kind}, not a regular file")
        return file.read(max_bytes)


def parse_yaml(content: bytes | str, file: str) -> Section:
    """What `load_yaml` does with a file's content; `file` is its name in messages."""
    file = printable(file)
    if isinstance(content, bytes):
        try:
            content = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content[: error.start].count(b"\n") + 1
            byte = content[error.start]
            encoding = " UTF-16, " if content[:2] in (b"\xff\xfe", b"\xfe\xff") else " "
            raise ConfigError(f"{file}:{line}:{encoding}not UTF-8 (byte {byte:#04x}). Save it as UTF-8.") from None
    problems = Problems()
    value = _load(content, file, problems)
    problems.raise_if_any()
    if value is None:
        raise ConfigError(f"{file}: is empty. A config has at least `name: <env>`.")
    if not isinstance(value, Section):
        raise ConfigError(f"{file}:1: expected `key: value` lines at the top, got {shown(value)}")
    return value


def override(config: Section, path: str, text: str, mark: str) -> None:
    """Sets the value at a dotted path of a config to `text`, read as YAML; `mark` says where it was given.

    Raises:
        ConfigError: `text` is no YAML value, or the path leads through a value that is no section.
    """
    *parents, key = path.split(".")
    if not all((*parents, key)):
        raise ConfigError(f"{mark}: '{printable(path)}': expected words with a dot between them, as trainer.num_envs.")
    section = config
    for parent in parents:
        found = section.get(parent)
        if found is not None and not isinstance(found, Section):
            raise ConfigError(f"{mark}: {printable(path)}: '{parent}' is {shown(found)}, which holds no keys.")
        section = section.section(parent, mark)
    problems = Problems()
    value = _load(text, mark, problems, path, show_line=False)
    problems.raise_if_any()
    section.put(key, value, mark)


def _load(text: str, file: str, problems: Problems, path: str = "", show_line: bool = True) -> Any:
    try:
        loader = _Loader(text, file, problems, show_line)
        try:
            node = loader.get_single_node()
            return None if node is None else loader.value(node, path)
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        mark = f"{file}:{line}" if show_line else file
        problems.add(mark, path, f"holds the character U+{ord(text[error.position]):04X}, which YAML does not allow")
    except yaml.MarkedYAMLError as error:
        place, message = _explain(error)
        mark = f"{file}:{place.line + 1}" if show_line and place else file
        problems.add(mark, path, message)
    return None


def _explain(error: yaml.MarkedYAMLError) -> tuple[yaml.Mark | None, str]:
    """Where and what, in a newcomer's words."""
    problem, place = error.problem or str(error), error.problem_mark or error.context_mark
    context = error.context or ""
    if r"'\t'" in problem:
        return place, "a tab. YAML is indented by spaces."
    if "expected ',' or" in problem and error.context_mark:
        bracket = "[" if "sequence" in context else "{"
        return error.context_mark, f"the bracket '{bracket}' is not closed."
    if "<document start>" in problem or "single document" in context:
        return place, "a second document starts here; a config is one document."
    if "quoted scalar" in context and "end of stream" in problem:
        return error.context_mark, "the quote is not closed."
    if "mapping values are not allowed" in problem:
        return place, "a ':' where no key can be. Is this line, or the one above, indented wrongly or without its ':'?"
    if "expected <block end>" in problem:
        return place, "does not fit the lines above it. Is it indented as they are?"
    if "could not find expected ':'" in problem:
        return error.context_mark or place, "a line without ':'. Write `key: value`."
    if "cannot start any token" in problem:
        return place, f"a value cannot start with {problem.split()[2]}. Quote it."
    if "node content" in problem and problem[-2:-1] in ("]", "}", ","):
        return place, f"a '{problem[-2]}' too many, or out of place."
    if "unknown escape character" in problem:
        return place, f"'\\{problem.split()[-1][1:-1]}' is no escape in double quotes. Use single quotes, or '\\\\'."
    if "sequence entries are not allowed" in problem:
        return place, "a list's '-' must be on a line of its own; or write the list in brackets, [1, 2]."
    return place, " ".join(part for part in (context, problem) if part)


_NULL = ("", "~", "null", "Null", "NULL")
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INFINITE = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
_WHOLE = r"(0|[1-9][0-9]*(_[0-9]+)*)"
_INT = re.compile(rf"[-+]?{_WHOLE}")
_FLOAT = re.compile(rf"[-+]?(\.[0-9]+|{_WHOLE}(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_OCTAL = re.compile(r"[-+]?0[0-9_]+")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?")


def _read_plain(text: str) -> Any:
    """What unquoted `text` means. Raises WrongValue where one YAML reads it so and another otherwise."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if text.lower() in _INFINITE:
        return _INFINITE[text.lower()]
    if _INT.fullmatch(text) and len(text) < 1000:
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if math.isinf(number):
            raise WrongValue(f"{shown(text)} is too large for a number.")
        return number
    if _OCTAL.fullmatch(text):
        plain = text.lstrip("+-0_") or "0"
        raise WrongValue(f"{shown(text)} is 8-based in one YAML and 10-based in another. Write {plain}, or quote it.")
    if _SEXAGESIMAL.fullmatch(text):
        raise WrongValue(
            f"{shown(text)} is a number to the base 60 in one YAML and text in another. Quote it, or write the number "
            "out."
        )
    return text


class _Loader(yaml.SafeLoader):
    """A SafeLoader that composes nodes as ever and then reads them by our own rules.

    Only `value` makes Python objects, and it knows text, numbers, true, false, nothing, lists and
    sections: there is no tag, hence no constructor, that could do anything else.
    """

    def __init__(self, text: str, file: str, problems: Problems, show_line: bool) -> None:
        super().__init__(text)
        self.file = file
        self.problems = problems
        self.show_line = show_line
        self.depth = 0
        self.num_values = 0

    def mark(self, node: yaml.Node | yaml.Event) -> str:
        return f"{self.file}:{node.start_mark.line + 1}" if self.show_line else self.file

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            problem = f"'{sign}{event.anchor}' is not allowed: a short file of aliases can grow without end."
            raise yaml.MarkedYAMLError(problem=f"{problem} Write the value out.", problem_mark=event.start_mark)
        if getattr(event, "tag", None) is not None:
            problem = f"the tag {shown(event.tag)} is not allowed: a tag can run code. Write a plain value."
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        self.depth += 1
        self.num_values += 1
        if self.depth > MAX_NESTING:
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=event.start_mark)
        if self.num_values > MAX_VALUES:
            problem = f"holds more than {MAX_VALUES:,} keys and values, which no config needs. Is it the right file?"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def fetch_flow_collection_start(self, kind: type[yaml.Token]) -> None:
        if self.flow_level >= MAX_NESTING:  # before the scanner looks for the end of 2,000 brackets
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=self.get_mark())
        super().fetch_flow_collection_start(kind)

    def fetch_directive(self) -> None:
        problem = "a line that begins with '%' is a directive, which no config needs."
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark())

    def value(self, node: yaml.Node, path: str) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self.section(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, f"{path}[{i}]") for i, item in enumerate(node.value)]
        return self.scalar(node, path)

    def section(self, node: yaml.MappingNode, path: str) -> Section:
        section = Section(path, self.mark(node))
        for key_node, value_node in node.value:
            mark = self.mark(key_node)
            if not isinstance(key_node, yaml.ScalarNode) or not key_node.value:
                self.problems.add(mark, path, "a key is one word.")
                continue
            key = key_node.value
            value = self.value(value_node, join_path(path, key))
            if key in section:
                first = section.marks[key].rpartition(":")[2]
                self.problems.add(mark, join_path(path, key), f"given twice (first on line {first}).")
            else:
                section.put(key, value, mark)
        return section

    def scalar(self, node: yaml.ScalarNode, path: str) -> Any:
        if node.style is not None:  # quoted, or a block of text
            return node.value
        try:
            return _read_plain(node.value)
        except WrongValue as wrong:
            self.problems.add(self.mark(node), path, str(wrong))
            return node.value


def dump_yaml(value: Any) -> str:
    """`value` as YAML that `load_yaml` reads back as it was."""
    return yaml.dump(to_plain(value), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes no aliases, which `load_yaml` refuses, and quotes text that it would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        try:
            style = None if _read_plain(data) == data else "'"
        except WrongValue:
            style = "'"
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)
