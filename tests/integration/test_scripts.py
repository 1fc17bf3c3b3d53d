"""The scripts, run: what dgx-spark-submit passes on and what it adds, and how scripts end when something is missing.

Spark is a small shell script that prints what it was given; Java and Python are too where their absence or age is the point.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).parents[2]
SUBMIT = ROOT / "scripts" / "dgx-spark-submit"
SETUP = ROOT / "scripts" / "setup"

ECHO = """#!/usr/bin/python3 -S
import json, os, sys
print(json.dumps({"arguments": sys.argv[1:], "environment": dict(os.environ)}))
"""

JAVA = """#!/bin/sh
echo "    java.specification.version = {version}" >&2
echo "    java.home = {home}" >&2
"""

TOOLS = [
    "bash",
    "env",
    "dirname",
    "sed",
    "grep",
    "head",
    "cat",
    "id",
    "sort",
    "xargs",
    "echo",
    "sha256sum",
    "flock",
    "rm",
]


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare_path(tmp_path) -> Path:
    """A directory for PATH with the shell's usual commands, and neither Python nor Java."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for tool in TOOLS:
        (directory / tool).symlink_to(shutil.which(tool))
    return directory


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A checkout of its own with a stand-in for .venv, so that the real one is neither needed nor touched."""
    root = tmp_path / "check out"
    shutil.copytree(ROOT / "scripts", root / "scripts")
    shutil.copytree(ROOT / "conf", root / "conf")
    shutil.copy(ROOT / "pyproject.toml", root)
    executable(root / ".venv" / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (root / "job.py").write_text("")
    return root


def spark_in(directory: Path, version: str = "4.2.0") -> Path:
    executable(directory / "bin" / "spark-submit", ECHO)
    (directory / "jars").mkdir()
    (directory / "jars" / f"spark-core_2.13-{version}.jar").write_text("")
    return directory


def java_in(directory: Path, version: str = "17") -> Path:
    executable(directory / "bin" / "java", JAVA.format(version=version, home=directory))
    return directory


def run(*command: object, env: dict[str, str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    words = [str(part) for part in command]
    return subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


class Submitted:
    """What spark-submit was called with."""

    def __init__(self, output: str) -> None:
        told = json.loads(output)
        self.arguments: list[str] = told["arguments"]
        self.environment: dict[str, str] = told["environment"]

    def confs(self) -> dict[str, str]:
        """The values of --conf; as with spark-submit, the last of a name counts."""
        pairs = zip(self.arguments, self.arguments[1:], strict=False)
        return dict(value.split("=", 1) for option, value in pairs if option == "--conf")

    def option(self, name: str) -> list[str]:
        return [value for option, value in zip(self.arguments, self.arguments[1:], strict=False) if option == name]


@pytest.fixture
def environment(tmp_path, bare_path) -> dict[str, str]:
    return {
        "PATH": str(bare_path),
        "SPARK_HOME": str(spark_in(tmp_path / "spark")),
        "JAVA_HOME": str(java_in(tmp_path / "java")),
    }


def submit(checkout: Path, environment: dict[str, str], *arguments: str, cwd: Path | None = None) -> Submitted:
    done = run(checkout / "scripts" / "dgx-spark-submit", *arguments, env=environment, cwd=cwd or checkout)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return Submitted(done.stdout)


def refusal(checkout: Path, environment: dict[str, str], *arguments: str) -> str:
    done = run(checkout / "scripts" / "dgx-spark-submit", *arguments, env=environment, cwd=checkout)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


# every script


SCRIPTS = [path for path in sorted((ROOT / "scripts").iterdir()) if path.is_file()] + [ROOT / ".ci" / "run"]
BASH = [path for path in SCRIPTS if path.suffix == ".sh" or b"bash" in path.read_bytes().split(b"\n", 1)[0]]


@pytest.mark.parametrize("script", BASH, ids=lambda path: path.name)
def test_bash_reads_it(script):
    done = run("bash", "-n", script, env=dict(os.environ))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", [path for path in SCRIPTS if not path.suffix], ids=lambda path: path.name)
def test_it_can_be_run(script):
    assert os.access(script, os.X_OK)


# dgx-spark-submit: what is added


def test_a_bare_submit_gets_the_projects_settings(checkout, environment, tmp_path):
    told = submit(checkout, environment, str(checkout / "job.py"), "a", "b c", cwd=tmp_path)
    assert told.arguments[-3:] == [str(checkout / "job.py"), "a", "b c"]
    assert told.option("--master") == ["local[3]"]
    assert told.confs()["spark.speculation"] == "false"
    assert told.environment["HERMES_FILE"] == str(checkout / "conf" / "hermes.yaml")
    assert told.environment["PYSPARK_PYTHON"] == str(checkout / ".venv" / "bin" / "python")
    assert told.environment["PYSPARK_DRIVER_PYTHON"] == told.environment["PYSPARK_PYTHON"]
    assert told.environment["JAVA_HOME"] == environment["JAVA_HOME"]
    assert f"file:{checkout}/conf/log4j2.properties" in told.environment["SPARK_SUBMIT_OPTS"]


def test_every_line_of_the_defaults_is_passed(checkout, environment):
    lines = (checkout / "conf" / "spark-defaults.conf").read_text().splitlines()
    expected = dict(line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#"))
    assert len(expected) > 10
    assert submit(checkout, environment, "job.py").confs() == expected


def test_what_the_user_says_comes_later_and_so_counts(checkout, environment):
    told = submit(checkout, environment, "--conf", "spark.ui.enabled=false", "--conf", "spark.hermes.hosts=2", "job.py")
    assert told.confs()["spark.ui.enabled"] == "false"
    assert told.confs()["spark.hermes.hosts"] == "2"


def test_a_properties_file_takes_the_place_of_the_defaults(checkout, environment, tmp_path):
    mine = tmp_path / "mine.conf"
    mine.write_text("spark.ui.enabled false\n")
    told = submit(checkout, environment, "--properties-file", str(mine), "job.py")
    assert told.confs() == {}
    assert told.option("--properties-file") == [str(mine)]
    assert told.option("--master") == ["local[3]"]


def test_what_is_set_already_stays(checkout, environment):
    own = {
        "HERMES_FILE": "/etc/hermes.yaml",
        "PYSPARK_PYTHON": "/opt/python",
        "SPARK_SUBMIT_OPTS": "-Dlog4j2.configurationFile=file:/etc/log4j2.properties",
    }
    told = submit(checkout, environment | own, "job.py")
    assert {name: told.environment[name] for name in own} == own
    assert told.environment["PYSPARK_DRIVER_PYTHON"] == "/opt/python"


def test_other_java_options_are_kept(checkout, environment):
    told = submit(checkout, environment | {"SPARK_SUBMIT_OPTS": "-Xmx1g"}, "job.py")
    assert told.environment["SPARK_SUBMIT_OPTS"].split()[-1] == "-Xmx1g"


@pytest.mark.parametrize("version", ["3.5.9", "4.0.1"])
def test_before_spark_4_1_the_checkpoint_class_has_its_old_name(checkout, environment, tmp_path, version):
    environment["SPARK_HOME"] = str(spark_in(tmp_path / "old", version))
    told = submit(checkout, environment, "job.py").confs()["spark.sql.streaming.checkpointFileManagerClass"]
    assert told == "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"


# dgx-spark-submit: the master


@pytest.mark.parametrize(
    "arguments",
    [
        ["--master", "yarn"],
        ["--master=yarn"],
        ["--conf", "spark.master=yarn"],
        ["--conf=spark.master=yarn"],
        ["-c", "spark.master=yarn"],
        ["--remote", "sc://localhost"],
        ["--name", "x", "-v", "--master", "yarn"],
    ],
)
def test_a_master_that_is_given_is_the_only_one(checkout, environment, arguments):
    told = submit(checkout, environment, "--supervise", *arguments, "--installed", "job.py")
    assert "local[3]" not in told.arguments
    assert told.arguments[-len(arguments) - 1 :] == [*arguments, "job.py"]
    assert told.confs()["spark.executorEnv.PYTHONPATH"] == str(checkout / "src")


def test_the_jobs_own_arguments_are_not_sparks(checkout, environment):
    mine = ["--master", "yarn", "--properties-file", "y", "--supervise", "--archives", "z"]
    told = submit(checkout, environment, "--name", "x", "job.py", *mine)
    assert told.option("--master") == ["local[3]", "yarn"]
    assert told.confs()["spark.speculation"] == "false"
    assert told.arguments[-len(mine) - 1 :] == ["job.py", *mine]


def test_a_master_in_a_file_or_the_environment_is_kept(checkout, environment, tmp_path):
    mine = tmp_path / "mine.conf"
    mine.write_text("spark.master  yarn\n")
    mine_told = submit(checkout, environment, "--installed", "--properties-file", str(mine), "job.py")
    assert mine_told.option("--master") == []
    assert submit(checkout, environment | {"MASTER": "yarn"}, "--installed", "job.py").option("--master") == []
    platform = Path(environment["SPARK_HOME"]) / "conf" / "spark-defaults.conf"
    platform.parent.mkdir()
    platform.write_text("spark.master=yarn\n")
    assert submit(checkout, environment, "--installed", "job.py").option("--master") == []


# dgx-spark-submit: what executors elsewhere need


def dry_run(checkout: Path, environment: dict[str, str], *arguments: str) -> Submitted:
    """What it would run, read as a shell would."""
    done = run(checkout / "scripts" / "dgx-spark-submit", "--dry-run", *arguments, env=environment, cwd=checkout)
    assert (done.returncode, done.stderr) == (0, "")
    words = shlex.split(done.stdout.replace("\\\n", " "))
    command = next(number for number, word in enumerate(words) if word.endswith("/bin/spark-submit"))
    told = dict(word.split("=", 1) for word in words[:command])
    return Submitted(json.dumps({"arguments": words[command + 1 :], "environment": told}))


def shipped(told: Submitted) -> list[str]:
    """The archives' names in the executors' directory."""
    (value,) = told.option("--archives")
    return [each.rpartition("#")[2] for each in value.split(",")]


@pytest.mark.parametrize("master", ["spark://a:7077", "yarn", "k8s://https://a:6443"])
def test_a_cluster_gets_the_project_and_an_interpreter(checkout, environment, master):
    told = dry_run(checkout, environment, "--master", master, "job.py")
    assert shipped(told) == ["hermes", "environment"]
    confs = told.confs()
    assert confs["spark.pyspark.python"] == told.environment["PYSPARK_PYTHON"] == "./environment/bin/python"
    assert confs["spark.pyspark.driver.python"] == str(checkout / ".venv" / "bin" / "python")
    assert confs["spark.executorEnv.PYTHONPATH"] == "./hermes/src:./environment/packages"
    assert told.arguments[-3:] == ["--master", master, "job.py"]


@pytest.mark.parametrize("master", ["local[3]", "local", "local-cluster[2,4,700]"])
def test_nothing_is_shipped_within_one_machine(checkout, environment, master):
    told = dry_run(checkout, environment, "--master", master, "job.py")
    assert told.option("--archives") == []
    path = told.confs().get("spark.executorEnv.PYTHONPATH")
    assert path == (str(checkout / "src") if "cluster" in master else None)


def test_archives_of_the_users_own_go_along(checkout, environment):
    for mine in (["--archives", "a.zip#a"], ["--conf", "spark.archives=a.zip#a"], ["--archives=a.zip#a"]):
        told = dry_run(checkout, environment, "--master", "yarn", *mine, "job.py")
        assert shipped(told) == ["a", "hermes", "environment"]
    assert shipped(dry_run(checkout, environment, "--archives", "a.zip#a", "job.py")) == ["a"]


def test_an_interpreter_that_is_named_is_not_shipped(checkout, environment):
    for named in ({"PYSPARK_PYTHON": "/opt/python"}, {}):
        mine = [] if named else ["--conf", "spark.pyspark.python=/opt/python"]
        told = dry_run(checkout, environment | named, "--master", "yarn", *mine, "job.py")
        assert shipped(told) == ["hermes"]
        assert told.confs().get("spark.pyspark.python", "/opt/python") == "/opt/python"
        assert told.confs()["spark.executorEnv.PYTHONPATH"] == "./hermes/src"


@pytest.mark.parametrize(
    ("master", "prefix"), [("yarn", "spark.yarn.appMasterEnv"), ("k8s://a", "spark.kubernetes.driverEnv")]
)
@pytest.mark.parametrize("mode", [["--deploy-mode", "cluster"], ["--conf", "spark.submit.deployMode=cluster"]])
def test_a_driver_in_the_cluster_finds_all_of_it_there(checkout, environment, master, prefix, mode):
    told = dry_run(checkout, environment, "--master", master, *mode, "job.py")
    confs = told.confs()
    assert "PYSPARK_DRIVER_PYTHON" not in told.environment
    assert "spark.pyspark.driver.python" not in confs
    assert confs[f"{prefix}.PYSPARK_PYTHON"] == "./environment/bin/python"
    assert confs[f"{prefix}.PYTHONPATH"] == "./hermes/src:./environment/packages"
    assert confs[f"{prefix}.HERMES_FILE"] == "./hermes/conf/hermes.yaml"


def test_a_driver_in_a_standalone_cluster_is_refused(checkout, environment):
    told = refusal(
        checkout, environment, "--dry-run", "--master", "spark://a:7077", "--deploy-mode", "cluster", "job.py"
    )
    assert "Spark runs Python drivers in YARN and Kubernetes only" in told


def test_what_is_shipped_runs_without_anything_of_this_machine(tmp_path):
    """The interpreter's own directory is the only place that it may look for modules in."""
    made = [
        run(sys.executable, ROOT / "scripts" / "pack.py", what, env=dict(os.environ))
        for what in ("environment", "project")
    ]
    assert [done.returncode for done in made] == [0, 0], made
    for done, name in zip(made, ("environment", "hermes"), strict=True):
        shutil.unpack_archive(done.stdout.strip(), tmp_path / name, filter="tar")
    program = (
        "import sys, hermes_spark.host.host, hermes_spark.llm.triton, hermes_spark.state.rocksdb, uvloop, grpc; "
        "from hermes_spark.settings import ModelSettings; from hermes_spark.app.host import tokenizer_of; "
        "tokenizer_of(ModelSettings()); print(sys.prefix)"
    )
    spark = Path(pyspark.__file__).parent / "python"
    path = ["./hermes/src", "./environment/packages", *(str(each) for each in (spark / "lib").glob("*.zip"))]
    done = run(
        "./environment/bin/python", "-c", program, env={"PYTHONPATH": ":".join(path), "PATH": "/usr/bin:/bin"}, cwd=tmp_path
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "environment")


# dgx-spark-submit: where Spark is


def test_without_spark_home_the_pyspark_of_venv_is_used(checkout, environment):
    without(checkout, "dgx-spark-submit", "/opt/nvidia/dgx-spark\n")
    del environment["SPARK_HOME"]
    mine = spark_in(checkout / ".venv" / "lib" / "python3.11" / "site-packages" / "pyspark")
    assert submit(checkout, environment, "job.py").environment["SPARK_HOME"] == str(mine)


def test_spark_that_is_missing_is_named(checkout, environment, tmp_path):
    environment["SPARK_HOME"] = str(tmp_path / "nowhere")
    assert "nowhere, which has no bin/spark-submit" in refusal(checkout, environment, "job.py")
    without(checkout, "dgx-spark-submit", "/opt/nvidia/dgx-spark\n")
    del environment["SPARK_HOME"]
    assert "no Spark was found" in refusal(checkout, environment, "job.py")


# dgx-spark-submit: what is refused


def test_a_job_that_is_missing_is_named(checkout, environment):
    assert "no job file is given" in refusal(checkout, environment)
    assert "no job file is given" in refusal(checkout, environment, "--name", "x", "--conf", "spark.a=b")
    assert "the job file nowhere.py does not exist" in refusal(checkout, environment, "nowhere.py")


@pytest.mark.parametrize("job", ["s3a://bucket/job.py", "local:///opt/job.py"])
def test_a_job_elsewhere_is_sparks_to_find(checkout, environment, job):
    assert submit(checkout, environment, job).arguments[-1] == job


@pytest.mark.parametrize("question", [["--version"], ["--help"], ["--kill", "driver-1"], ["--status", "driver-1"]])
def test_questions_need_no_job(checkout, environment, question):
    assert submit(checkout, environment, *question).arguments == question


def test_a_python_that_is_missing_is_named(checkout, environment):
    shutil.rmtree(checkout / ".venv")
    assert "no Python for the job: set PYSPARK_PYTHON, or run" in refusal(checkout, environment, "job.py")


# Java


NO_JAVA = "no Java 17 or newer was found"


def without(checkout: Path, script: str, path: str) -> None:
    """Makes a script of the copy look nowhere where it would look at `path`."""
    file = checkout / "scripts" / script
    text = file.read_text()
    assert path in text
    file.write_text(text.replace(path, "/nowhere" + path[len(path.rstrip()) :]))


def test_java_that_is_missing_is_named(checkout, environment, tmp_path):
    without(checkout, "environment.sh", "/usr/lib/jvm")
    environment["JAVA_HOME"] = str(java_in(tmp_path / "java8", "1.8"))
    assert NO_JAVA in refusal(checkout, environment, "job.py")


def test_an_old_java_home_gives_way_to_a_newer_java_on_the_path(checkout, environment, tmp_path, bare_path):
    newer = java_in(tmp_path / "java21", "21")
    (bare_path / "java").symlink_to(newer / "bin" / "java")
    for version in ("1.8", "11"):
        environment["JAVA_HOME"] = str(java_in(tmp_path / f"java{version}", version))
        assert submit(checkout, environment, "job.py").environment["JAVA_HOME"] == str(newer)


def test_a_java_on_the_path_that_does_not_run_is_passed_over(checkout, environment, bare_path):
    executable(bare_path / "java", "#!/bin/sh\nexit 127\n")
    home = environment["JAVA_HOME"]
    assert submit(checkout, environment, "job.py").environment["JAVA_HOME"] == home


# setup


def as_nobody(bare_path: Path) -> None:
    """Makes `id -u` say that this is not root, so that nothing is installed on the machine."""
    (bare_path / "id").unlink()
    executable(bare_path / "id", "#!/bin/sh\necho 1000\n")


def python_in(path: Path, version: tuple[int, int]) -> None:
    """An interpreter that answers setup's questions as a Python of this version without the venv module would."""
    executable(
        path,
        f"""#!/bin/sh
case "$2" in
    *ensurepip*) exit 1 ;;
    *-venv*) echo python{version[0]}.{version[1]}-venv ;;
    *) echo {version[0]}.{version[1]}.0; test {version[1]} -ge 10 -a {version[1]} -le 12 ;;
esac
""",
    )


def set_up(checkout: Path, environment: dict[str, str]) -> str:
    done = run(checkout / "scripts" / "setup", env=environment, cwd=checkout)
    assert done.returncode == 1
    assert done.stdout == ""
    return done.stderr


def test_setup_names_the_version_of_a_python_that_does_not_fit(checkout, environment, bare_path):
    as_nobody(bare_path)
    for name in ("python3.12", "python3.11", "python3.10"):
        executable(bare_path / name, "#!/bin/sh\necho no such version >&2; exit 127\n")
    python_in(bare_path / "python3", (3, 13))
    without(checkout, "setup", "/usr/bin/python3")
    told = set_up(checkout, environment)
    assert "no Python 3.10 to 3.12 was found (only 3.13.0)" in told
    assert "HERMES_PYTHON=" in told


def test_setup_names_the_package_of_a_venv_module_that_is_missing(checkout, environment, bare_path):
    as_nobody(bare_path)
    python_in(bare_path / "python3.11", (3, 11))
    python_in(bare_path / "python3.12", (3, 12))
    without(checkout, "setup", "/usr/bin/python3")
    told = set_up(checkout, environment)
    assert "cannot make virtual environments; run: sudo apt-get install python3.12-venv" in told


def test_setup_refuses_a_hermes_python_that_does_not_fit(checkout, environment, bare_path):
    as_nobody(bare_path)
    python_in(bare_path / "mine", (3, 9))
    told = set_up(checkout, environment | {"HERMES_PYTHON": str(bare_path / "mine")})
    assert f"HERMES_PYTHON is {bare_path / 'mine'}, which runs no Python 3.10 to 3.12" in told


def test_setup_names_the_package_of_a_java_that_is_missing(checkout, environment, bare_path):
    as_nobody(bare_path)
    without(checkout, "environment.sh", "/usr/lib/jvm")
    environment["JAVA_HOME"] = ""
    assert "sudo apt-get install openjdk-17-jre-headless" in set_up(checkout, environment)


def test_setup_with_nothing_to_do_says_so_and_changes_nothing(checkout, environment, bare_path):
    """The stamp of a finished environment is honoured, also by a second run at the same time."""
    executable(bare_path / "python3.11", '#!/bin/sh\n[ "$1" = -VV ] && echo Python 3.11.0\nexit 0\n')
    stamp_of = 'source "$0" >/dev/null 2>&1; PYTHON=python3.11; wanted_stamp'
    script = checkout / "scripts" / "setup"
    library = checkout / "scripts" / "library"
    library.write_text(script.read_text().rpartition("\nmain\n")[0])
    stamp = run("bash", "-c", stamp_of, library, env=environment)
    (checkout / ".venv" / ".hermes-setup").write_text(stamp.stdout)
    runs = [
        subprocess.Popen([str(script)], env=environment, stderr=subprocess.PIPE, text=True, cwd=checkout)
        for _ in range(2)
    ]
    for process in runs:
        _, told = process.communicate(timeout=60)
        assert (process.returncode, "is up to date" in told) == (0, True), told


# ci


def test_ci_runs_the_test_script_and_nothing_else(tmp_path):
    for name in ("scripts", ".ci"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    executable(tmp_path / "scripts" / "test", "#!/bin/sh\necho tested\nexit 3\n")
    done = run(tmp_path / ".ci" / "run", env=dict(os.environ), cwd=Path("/"))
    assert (done.returncode, done.stdout, done.stderr) == (3, "tested\n", "")
