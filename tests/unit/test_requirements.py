"""Which packages a file asks for, on whatever node."""

from pathlib import Path

import pytest

from hadar_cli.errors import InputError
from hadar_cli.project.requirements import Requirements, read_requirements


def write(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        (folder / f"{name}.txt").write_text(content)
    return folder / "main.txt"


def test_files_that_include_others_become_one_list(tmp_path):
    main = write(
        tmp_path,
        main="# ours\n-r more.txt\nnumpy>=1  # fast\n--constraint=pins.txt\nrich \\\n  <99\n",
        more="einops\n--index-url https://example.org/simple\n",
        pins="numpy<3\n",
    )
    wanted = ("einops", "--index-url https://example.org/simple", "numpy>=1", "rich   <99")
    found = read_requirements(main)
    assert [" ".join(line.split()) for line in found.wanted] == [
        " ".join(w.split()) for w in wanted
    ]
    assert found.constraints == ("numpy<3",)


def test_a_pyproject_gives_its_dependencies(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text('[project]\nname = "x"\ndependencies = ["einops", "rich<99"]\n')
    assert read_requirements(path) == Requirements(("einops", "rich<99"))


@pytest.mark.parametrize(
    "line", ["-e .", "./here", "/abs/pkg", "x @ file:///here", "--hash=sha256:0"]
)
def test_what_means_something_here_only_is_refused_with_its_line(tmp_path, line):
    with pytest.raises(InputError, match="nodes cannot follow") as caught:
        read_requirements(write(tmp_path, main=f"numpy\n{line}\n"))
    assert (caught.value.line, caught.value.file) == (2, str(tmp_path / "main.txt"))


@pytest.mark.parametrize("content", ["", "# nothing\n", "-r main.txt\n", "-r nowhere.txt\n"])
def test_a_file_that_asks_for_nothing_or_for_itself_is_refused(tmp_path, content):
    with pytest.raises(InputError):
        read_requirements(write(tmp_path, main=content))


@pytest.mark.parametrize("content", ["not toml", "[project]\nname = 'x'\n", "project = 3\n"])
def test_a_pyproject_without_dependencies_is_refused(tmp_path, content):
    (tmp_path / "pyproject.toml").write_text(content)
    with pytest.raises(InputError):
        read_requirements(tmp_path / "pyproject.toml")
