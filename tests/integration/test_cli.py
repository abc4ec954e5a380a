"""venus-sandbox as a person or a script uses it, against a real daemon."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandboxd.client import Daemon, Lease, Sandbox
from tests.support.cli import Cli
from tests.support.daemon import DaemonProcess


@pytest.fixture(scope="module")
def cli(daemon: DaemonProcess) -> Cli:
    return Cli(daemon.socket)


@pytest.fixture
def box(cli: Cli, daemon: DaemonProcess) -> Iterator[str]:
    sandbox_id = cli.text("create")
    yield sandbox_id
    sandbox = Sandbox.connect(sandbox_id, socket=daemon.socket)
    with sandbox:
        pass


def test_create_shows_in_ls_and_rm_removes_it(cli: Cli) -> None:
    sandbox_id = cli.text(
        "create", "--memory", "300M", "--cpus", "0.5", "--pids", "40", "--ttl", "10m",
        "-e", "A=b c", "-w", "/usr", "-u", "daemon", "-l", "run=cli",
    )  # fmt: skip
    [info] = json.loads(cli.text("ls", "--json", "-l", "run=cli"))
    assert info["id"] == sandbox_id
    assert info["limits"]["memory_bytes"] == 300 << 20
    assert (info["limits"]["pids"], info["limits"]["cpu_cores"]) == (40, 0.5)
    assert info["expires_at"] - info["created_at"] == pytest.approx(600, abs=5)
    assert cli.text("exec", sandbox_id, "sh", "-c", "echo $A; pwd; id -un") == "b c\n/usr\ndaemon"
    table = cli.text("ls")
    assert sandbox_id in table
    assert "300M" in table
    assert cli.text("rm", sandbox_id) == sandbox_id
    assert sandbox_id not in cli.text("ls", "-q")


def test_exec_passes_both_streams_and_the_exit_code(cli: Cli, box: str) -> None:
    done = cli("exec", box, "sh", "-c", "echo out; echo err >&2; exit 9", code=9)
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")
    cli("exec", box, "sh", "-c", "kill -KILL $$", code=137)


def test_exec_passes_options_of_the_command_on(cli: Cli, box: str) -> None:
    assert cli.text("exec", box, "ls", "-d", "--color=never", "/usr") == "/usr"
    assert cli.text("exec", box, "--", "echo", "-e", "--json") == "--json"
    assert cli.text("exec", "--", box, "echo", "-i") == "-i"
    assert cli.text("run", "--rm", "echo", "-i") == "-i"
    cli("exec", box, "--", code=2)


def test_exec_with_input_is_binary_exact(cli: Cli, box: str) -> None:
    data = os.urandom(3_000_000)
    assert cli("exec", "-i", box, "cat", stdin=data).stdout == data
    assert cli("exec", box, "cat", stdin=data).stdout == b""


def test_exec_that_cannot_start(cli: Cli, box: str) -> None:
    assert b"ENOENT" in cli("exec", box, "/no/such", code=127).stderr
    assert b"EACCES" in cli("exec", box, "/etc/passwd", code=126).stderr
    assert b"no-such-sandbox" in cli("exec", "no-such-sandbox", "true", code=125).stderr


def test_exec_timeout(cli: Cli, box: str) -> None:
    done = cli("exec", "--timeout", "0.3s", box, "sh", "-c", "echo x; sleep 300", code=124)
    assert done.stdout == b"x\n"
    assert b"timeout" in done.stderr
    assert cli("exec", box, "pgrep", "sleep", code=1).stdout == b""


def test_exec_json(cli: Cli, box: str) -> None:
    result = json.loads(cli("exec", "--json", box, "sh", "-c", "echo o; exit 2", code=2).stdout)
    assert (result["stdout"], result["exit_code"], result["reason"]) == ("o\n", 2, "exited")


def test_commands_in_the_background(cli: Cli, box: str) -> None:
    script = "echo up; read x; echo got $x; exit 6"
    command = cli.text("exec", "-d", "-i", box, "sh", "-c", script)
    assert int(command) > 0
    assert f"sh -c '{script}'" in cli.text("ps", box)
    cli("wait", "--timeout", "0.1s", box, command, code=124)
    assert cli("attach", "-i", box, command, stdin=b"word\n", code=6).stdout == b"up\ngot word\n"
    cli("wait", box, command, code=6)
    [found] = json.loads(cli.text("ps", "--json", box))
    assert (found["exec_id"], found["running"], found["exit_code"]) == (int(command), False, 6)
    assert "exit 6" in cli.text("ps", box)
    for arguments in (("attach", box, "999"), ("wait", box, "999")):
        assert b"no such command" in cli(*arguments, code=125).stderr
    cli("exec", "-d", "--keep", box, "true", code=2)


def test_kill_ends_or_signals_a_command(cli: Cli, box: str) -> None:
    script = "trap 'exit 5' USR1; echo up; while :; do sleep 0.01; done"
    command = cli.text("exec", "-d", box, "sh", "-c", script)
    attached = subprocess.Popen([*cli.argv, "attach", box, command], stdout=subprocess.PIPE)
    assert attached.stdout is not None
    assert attached.stdout.readline() == b"up\n"
    cli("kill", "-s", "USR1", box, command)
    assert attached.wait(30) == 5
    attached.stdout.close()
    assert b"no such command" in cli("kill", box, command, code=1).stderr
    command = cli.text("exec", "-d", box, "sleep", "300")
    cli("kill", box, command)
    assert b"killed on request" in cli("wait", box, command, code=137).stderr
    assert b"no signal" in cli("kill", "-s", "NONSENSE", box, command, code=2).stderr


def test_exec_keep_outlives_its_interruption(cli: Cli, box: str) -> None:
    process = subprocess.Popen(
        [*cli.argv, "exec", "--keep", box, "sh", "-c", "echo up; until [ -e /tmp/go ]; do :; done"],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGINT)
    process.stdout.close()
    assert process.wait(30) == 130
    [found] = json.loads(cli.text("ps", "--json", box))
    assert found["running"]
    cli("exec", box, "touch", "/tmp/go")
    assert cli("attach", box, str(found["exec_id"])).stdout == b"up\n"


def test_run_is_create_and_exec_in_one(cli: Cli) -> None:
    before = cli.text("ls", "-q")
    script = "read x; echo $x $A; echo err >&2; exit 9"
    options = ["--rm", "-i", "-e", "A=b", "--pids", "40"]
    done = cli("run", *options, "sh", "-c", script, stdin=b"in\n", code=9)
    assert (done.stdout, done.stderr) == (b"in b\n", b"err\n")
    assert cli("run", "--rm", "wc", "-c", stdin=b"not passed on").stdout.strip() == b"0"
    timed = cli("run", "--rm", "--timeout", "0.3s", "sleep", "300", code=124)
    assert b"timeout" in timed.stderr
    cli("run", "/no/such", code=127)
    cli("run", "--image", "nope", "true", code=125)
    cli("run", "--image", "base", "--template", "tp-0000000000000000", "true", code=2)
    assert cli.text("ls", "-q") == before


def test_run_without_rm_says_what_stays(cli: Cli) -> None:
    done = cli("run", "sh", "-c", "echo kept > /root/f; exit 3", code=3)
    prefix, sandbox_id, stays = done.stderr.decode().split()
    assert (prefix, stays) == ("venus-sandbox:", "stays")
    assert cli.text("exec", sandbox_id, "cat", "/root/f") == "kept"
    assert cli.text("rm", sandbox_id) == sandbox_id


def test_interrupting_exec_kills_the_command(cli: Cli, box: str) -> None:
    process = subprocess.Popen(
        [*cli.argv, "exec", box, "sh", "-c", "echo up; sleep 300"],
        stdout=subprocess.PIPE,
        # A shell starts background jobs with SIGINT ignored, and so perhaps these tests.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGINT)
    process.stdout.close()
    assert process.wait(30) == 130
    # The daemon sees the closed connection as soon as it looks; the FIFO waits for that.
    wait = "while pgrep sleep >/dev/null; do :; done; echo gone"
    assert cli.text("exec", "--timeout", "20s", box, "sh", "-c", wait) == "gone"


def test_a_closed_pipe_is_no_traceback(cli: Cli, box: str) -> None:
    line = f"{' '.join(cli.argv)} exec {box} sh -c 'yes | head -c 10000000' | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"y\n"
    assert done.stderr == b""


def test_cp_files_both_ways(cli: Cli, box: str, tmp_path: Path) -> None:
    data = os.urandom(2_000_000)
    source = tmp_path / "data:with colon"
    source.write_bytes(data)
    source.chmod(0o750)
    cli("cp", str(source), f"{box}:/root/copy")
    cli("cp", f"{box}:/root/copy", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data
    assert (tmp_path / "back").stat().st_mode & 0o777 == 0o750
    cli("cp", str(source), f"{box}:/root")
    assert cli("cp", f"{box}:/root/data:with colon", "-").stdout == data
    cli("cp", "-", f"{box}:/root/piped", stdin=b"piped")
    assert cli("cp", f"{box}:/root/piped", "-").stdout == b"piped"
    assert not list(tmp_path.glob(".*.part"))


def test_cp_directories(cli: Cli, box: str, tmp_path: Path) -> None:
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/a").write_text("a")
    (tmp_path / "tree/sub/b").write_text("b")
    (tmp_path / "tree/link").symlink_to("a")
    assert b"-r" in cli("cp", str(tmp_path / "tree"), f"{box}:/root/tree", code=2).stderr
    done = cli("cp", "-r", str(tmp_path / "tree"), f"{box}:/root/tree")
    assert b"skipped" in done.stderr
    cli("exec", box, "ln", "-s", "/etc/passwd", "/root/tree/evil")
    done = cli("cp", "-r", f"{box}:/root/tree", str(tmp_path / "back"))
    assert b"skipped /root/tree/evil" in done.stderr
    found = {str(path.relative_to(tmp_path / "back")) for path in (tmp_path / "back").rglob("*")}
    assert found == {"a", "sub", "sub/b"}


def test_cp_directories_keeps_what_they_are(cli: Cli, box: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "empty").mkdir(parents=True)
    (tree / "closed").mkdir(mode=0o711)
    (tree / "run").write_bytes(b"#!")
    (tree / "run").chmod(0o4750)
    cli("cp", "-r", str(tree), f"{box}:/root/kept")
    cli("cp", "-r", str(tree), f"{box}:/root/kept")  # into it, under its name
    shown = cli.text("exec", box, "sh", "-c", "cd /root/kept/tree && stat -c '%a %U %n' *")
    assert shown.splitlines() == ["711 root closed", "755 root empty", "750 root run"]
    cli("exec", box, "sh", "-c", "cd /root/kept && chmod 6755 run && truncate -s 1T holes")
    done = cli("cp", "-r", f"{box}:/root/kept", str(tmp_path / "back"))
    assert done.stderr == b""
    back = tmp_path / "back"
    modes = {path.name: path.stat().st_mode & 0o7777 for path in back.iterdir()}
    expected = {"closed": 0o711, "empty": 0o755, "run": 0o755, "holes": 0o644, "tree": 0o755}
    assert modes == expected
    assert (back / "holes").stat().st_size == 1 << 40
    assert (back / "holes").stat().st_blocks == 0


def test_cp_of_a_directory_says_where_it_failed(cli: Cli, box: str, tmp_path: Path) -> None:
    (tmp_path / "tree/a").mkdir(parents=True)
    cli("exec", box, "sh", "-c", "mkdir -p /root/taken/tree; touch /root/taken/tree/a")
    done = cli("cp", "-r", str(tmp_path / "tree"), f"{box}:/root/taken", code=1)
    assert b"/root/taken/tree" in done.stderr
    cli("exec", box, "sh", "-c", "mkdir -m 700 /shut; touch /shut/f; chmod 755 /root")
    done = cli("cp", "-r", "-u", "1000", f"{box}:/shut", str(tmp_path / "none"), code=1)
    assert b"/shut" in done.stderr
    assert not (tmp_path / "none").exists()


def test_cp_says_what_is_wrong(cli: Cli, box: str, tmp_path: Path) -> None:
    assert b"exactly one" in cli("cp", "/a", "/b", code=2).stderr
    assert b"/root/absent" in cli("cp", f"{box}:/root/absent", str(tmp_path / "x"), code=1).stderr
    assert b"No such file" in cli("cp", str(tmp_path / "absent"), f"{box}:/x", code=1).stderr
    assert not (tmp_path / "x").exists()


def test_the_file_tree(cli: Cli, box: str) -> None:
    cli("files", "mkdir", f"{box}:/root/a/b", "--mode", "700")
    cli("cp", "-", f"{box}:/root/a/f", stdin=b"12345")
    cli("files", "chmod", "640", f"{box}:/root/a/f")
    cli("files", "chown", "nobody", f"{box}:/root/a/f")
    shown = cli.text("files", "stat", f"{box}:/root/a/f").splitlines()[1].split()
    assert shown[:4] == ["-rw-r-----", "65534", "65534", "5"]
    cli("files", "mv", f"{box}:/root/a/f", "/root/a/g")
    cli("exec", box, "ln", "-s", "g", "/root/a/l")
    paths = [
        line.split(maxsplit=5)[5] for line in cli.text("files", "ls", f"{box}:/root/a").splitlines()
    ]
    assert paths == ["PATH", "/root/a/b", "/root/a/g", "/root/a/l -> g"]
    entries = json.loads(cli.text("files", "ls", "--depth", "2", "--json", f"{box}:/root"))
    assert {"/root/a", "/root/a/b"} <= {each["path"] for each in entries}
    followed = json.loads(cli.text("files", "stat", "-L", "--json", f"{box}:/root/a/l"))
    assert followed["type"] == "file"
    content = cli("files", "tar", f"{box}:/root/a").stdout
    cli("files", "untar", f"{box}:/root/c", stdin=content)
    assert cli.text("exec", box, "readlink", "/root/c/l") == "g"
    assert b"ENOTEMPTY" in cli("files", "rm", f"{box}:/root/a", code=1).stderr
    cli("files", "rm", "-r", f"{box}:/root/a")
    assert b"SANDBOX:PATH" in cli("files", "ls", "/root", code=2).stderr
    assert b"octal" in cli("files", "chmod", "u+x", f"{box}:/root", code=2).stderr


def test_watching_a_directory(cli: Cli, box: str, daemon: DaemonProcess) -> None:
    sandbox = Sandbox.connect(box, socket=daemon.socket)
    sandbox.files.make_dir("/root/w")
    watching = subprocess.Popen(
        [*cli.argv, "files", "watch", "-r", f"{box}:/root/w"], stdout=subprocess.PIPE, text=True
    )
    with watching, contextlib.closing(sandbox):
        assert watching.stdout is not None
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(watching.stdout.readline)
            while not first.done():
                sandbox.commands.run("touch w/first")
        sandbox.commands.run("touch w/a; mv w/a w/b; rm -r w")
        lines = watching.stdout.read().splitlines()
        assert "rename /root/w/a -> /root/w/b" in lines
        assert lines[-1] == "remove /root/w"
        assert watching.wait() == 0


def test_pause_resume_and_ttl(cli: Cli, box: str) -> None:
    cli("pause", box)
    [info] = [each for each in json.loads(cli.text("ls", "--json")) if each["id"] == box]
    assert info["state"] == "paused"
    assert b"paused" in cli("exec", box, "true", code=125).stderr
    cli("resume", box)
    assert b"not paused" in cli("resume", box, code=1).stderr
    cli("exec", box, "true")
    cli("ttl", box, "1h")
    [info] = [each for each in json.loads(cli.text("ls", "--json")) if each["id"] == box]
    assert info["expires_at"] is not None
    cli("ttl", box, "--none")
    cli("ttl", box, code=2)


def test_events(cli: Cli, box: str) -> None:
    lines = cli.text("events", "--no-wait", "--sandbox", box).splitlines()
    assert [line.split()[3] for line in lines if " missed" not in line] == ["created", "started"]
    number = lines[-1].split()[0]
    cli("exec", box, "true")
    more = cli.text("events", "--after", number, "--sandbox", box, "--no-wait", "--json")
    assert [json.loads(line)["type"] for line in more.splitlines()] == ["exec", "exited"]
    assert cli.text("events", "--no-wait", "--after", number, "-l", "no=label") == ""


def test_leases(cli: Cli, daemon: DaemonProcess) -> None:
    with Lease.create(socket=daemon.socket) as lease:
        sandbox_id = cli.text("create", "--lease", lease.lease_id)
        [row] = [each for each in cli.text("lease", "ls").splitlines() if lease.lease_id in each]
        assert row.split()[3:5] == ["1", "0"]
        [info] = json.loads(cli.text("lease", "ls", "--json"))
        assert info["sandboxes"] == 1
        assert cli.text("lease", "rm", lease.lease_id) == lease.lease_id
        assert sandbox_id not in cli.text("ls", "-q")


def test_top_prints_one_table_where_there_is_no_terminal(cli: Cli, box: str) -> None:
    summary, _, header, *lines = cli.text("top", "--interval", "0.05").splitlines()
    assert "1 running" in summary and header.split()[:3] == ["ID", "STATE", "CPU%"]
    [line] = [each.split() for each in lines if box in each]
    assert line[1] == "running" and float(line[2]) >= 0


def test_top_as_json_has_those_that_are_asked_for(
    cli: Cli, box: str, daemon: DaemonProcess
) -> None:
    with Sandbox.create(socket=daemon.socket, metadata={"run": "top"}) as sandbox:
        with sandbox.commands.run("while :; do :; done", True):
            told = cli.text("top", "--once", "--json", "-i", "0.1", "-l", "run=top", "-s", "memory")
    [found] = json.loads(told)["sandboxes"]
    assert found["id"] == sandbox.sandbox_id
    assert found["cpu_percent"] > 0 and found["pids"] >= 1
    assert 0 < found["private_bytes"] < found["memory_limit_bytes"]
    assert b"--sort" in cli("top", "--sort", "colour", code=2).stderr


def test_stats(cli: Cli, box: str) -> None:
    assert box in cli.text("stats")
    value = json.loads(cli.text("stats", "--json", box))
    assert value["sandboxes"][box]["memory_bytes"] > 0
    assert value["daemon"]["counters"]["sandboxes_created"] >= 1
    assert b"no such sandbox: nope" in cli("stats", "nope", code=1).stderr


def test_rm_needs_names_and_reports_unknown_ones(cli: Cli, box: str) -> None:
    cli("rm", code=2)
    cli("rm", "--all", box, code=2)
    done = cli("rm", "nope", code=1)
    assert b"nope" in done.stderr
    assert box in cli.text("ls", "-q")


def test_images(cli: Cli, daemon: DaemonProcess, tmp_path: Path) -> None:
    (tmp_path / "rootfs/etc").mkdir(parents=True)
    (tmp_path / "rootfs/etc/marker").write_text("here")
    tar = subprocess.run(
        ["tar", "-C", str(tmp_path / "rootfs"), "-c", "."], stdout=subprocess.PIPE, check=True
    ).stdout
    (tmp_path / "x.tar").write_bytes(tar)
    assert cli("image", "import", "cli-stdin", "-", stdin=tar).stdout == b"cli-stdin\n"
    cli("image", "import", "cli-tar", str(tmp_path / "x.tar"))
    cli("image", "import", "cli-dir", str(tmp_path / "rootfs"))
    names = {image["name"] for image in json.loads(cli.text("image", "ls", "--json"))}
    assert {"base", "cli-stdin", "cli-tar", "cli-dir"} <= names
    assert "cli-tar" in cli.text("image", "ls")
    for name in ("cli-stdin", "cli-tar", "cli-dir"):
        assert cli.text("image", "rm", name) == name
    assert b"cli-tar" in cli("image", "rm", "cli-tar", code=1).stderr
    with Daemon(daemon.socket) as client:
        assert not any(each.name.startswith("cli-") for each in client.list_images())


def test_doctor(cli: Cli, daemon: DaemonProcess) -> None:
    assert daemon.socket in cli.text("doctor")
    report = json.loads(cli.text("doctor", "--json"))
    assert all(finding["verdict"] != "missing" for finding in report["findings"])


def test_an_unreachable_daemon_is_one_line_that_names_the_socket(tmp_path: Path) -> None:
    nowhere = Cli(str(tmp_path / "nowhere.sock"))
    for arguments, code in ((("ls",), 1), (("create",), 1), (("exec", "x", "true"), 125)):
        error = nowhere(*arguments, code=code).stderr.decode()
        assert "nowhere.sock" in error
        assert error.count("\n") == 1
    assert "MISSING" in nowhere("doctor", code=1).stdout.decode()


@pytest.mark.parametrize("option", [("--memory", "12Q"), ("--ttl", "soon"), ("-e", "novalue")])
def test_wrong_usage_is_explained(cli: Cli, option: tuple[str, str]) -> None:
    assert option[1].encode() in cli("create", *option, code=2).stderr


LISTENER = """
import socket
server = socket.create_server(('127.0.0.1', 0))
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b'inside ' + connection.recv(100))
    connection.close()
"""


def test_port_forward(cli: Cli, daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as sandbox:
        server = sandbox.commands.run(["python3", "-c", LISTENER], background=True)
        port = int(next(iter(server)).data)
        for ports in (f":{port}", f"0:{port}"):
            forward = subprocess.Popen(
                [*cli.argv, "port-forward", sandbox.sandbox_id, ports, ":9"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            local = local_port(forward, port)
            with socket.create_connection(("127.0.0.1", local)) as connection:
                connection.sendall(b"x")
                assert connection.makefile("rb").read() == b"inside x"
            with socket.create_connection(("127.0.0.1", local_port(forward, 9))) as connection:
                assert connection.makefile("rb").read() == b""
            forward.send_signal(signal.SIGINT)
            _, said = forward.communicate(timeout=60)
            assert (forward.returncode, b"nothing listens there" in said) == (0, True)


def test_port_forward_ends_when_it_finds_the_sandbox_gone(cli: Cli, daemon: DaemonProcess) -> None:
    with Sandbox.create(socket=daemon.socket) as sandbox:
        forward = subprocess.Popen(
            [*cli.argv, "port-forward", sandbox.sandbox_id, ":9"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        local = local_port(forward, 9)
    with socket.create_connection(("127.0.0.1", local)) as connection:
        assert connection.makefile("rb").read() == b""
    _, said = forward.communicate(timeout=60)
    assert (forward.returncode, b"the sandbox is gone" in said) == (1, True)


def test_port_forward_of_what_is_no_port(cli: Cli, box: str) -> None:
    for wrong in ("x", "1:2:3", "70000", "80:0", "-1:80"):
        assert b"is not of the form" in cli("port-forward", box, "--", wrong, code=2).stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = f"{taken.getsockname()[1]}:80"
        assert b"in use" in cli("port-forward", box, ports, code=1).stderr


def local_port(forward: subprocess.Popen[bytes], port: int) -> int:
    """As the program says it."""
    assert forward.stdout is not None
    line = forward.stdout.readline().decode()
    found = re.fullmatch(rf"Forwarding from 127\.0\.0\.1:(\d+) -> {port}\n", line)
    assert found, line
    return int(found[1])
