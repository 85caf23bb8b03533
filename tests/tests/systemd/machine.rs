//! A machine that boots systemd, in namespaces.

use hotbunk_tests::{Done, PATIENCE, until};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

/// What has to be found in `$PATH`.
const PROGRAMS: [&str; 7] =
    ["unshare", "nsenter", "setpriv", "systemctl", "systemd-run", "systemd-sysusers", "journalctl"];

/// A booted machine. Dropped, nothing of it is left.
#[derive(Debug)]
pub(crate) struct Machine {
    keeper: Child,
    /// Closed, it is the end of the machine.
    words: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
    console: File,
    /// Its keeper removes it, whatever becomes of the test.
    _disk: TempDir,
    init: u32,
}

impl Machine {
    /// Boots it. From here on the calling thread is in its network.
    pub(crate) async fn boot() -> Machine {
        static BORN: AtomicU32 = AtomicU32::new(0);
        let cgroups = cgroup2();
        assert_possible(cgroups.as_deref());
        let born = BORN.fetch_add(1, Ordering::Relaxed);
        let group = cgroups.unwrap_or_default().join(format!("hotbunk-tests-{}-{born}", std::process::id()));
        let disk = tempfile::Builder::new().prefix("hb-machine").tempdir().expect("a directory");
        let console = tempfile::tempfile().expect("a file");
        let mut keeper = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "--", "sh"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/systemd/boot.sh"))
            .arg("keep")
            .args([disk.path(), &group])
            .args([sources(), programs()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(console.try_clone().expect("a descriptor"))
            // What interrupts the test at a terminal must not interrupt the cleaning up.
            .process_group(0)
            .spawn()
            .expect("unshare can be run");
        let words = keeper.stdin.take();
        let said = BufReader::new(keeper.stdout.take().expect("its output"));
        let mut machine = Machine { keeper, words, said, console, _disk: disk, init: 0 };
        machine.start().await;
        machine
    }

    /// Power fails, and comes back.
    pub(crate) async fn cut_and_boot(&mut self) {
        self.start().await;
    }

    /// Waits until it has gone down by itself, and starts it again.
    pub(crate) async fn boot_again(&mut self) {
        let proc = PathBuf::from(format!("/proc/{}", self.init));
        until("the machine to go down", async || !proc.exists()).await;
        self.start().await;
    }

    async fn start(&mut self) {
        let words = self.words.as_mut().expect("it is kept");
        words.write_all(b"boot\n").expect("its keeper reads");
        let mut line = String::new();
        drop(self.said.read_line(&mut line));
        let pid = line.trim().strip_prefix("pid ").and_then(|pid| pid.parse().ok());
        self.init = pid.unwrap_or_else(|| panic!("the machine cannot be started: {}", self.console()));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = self.run("systemctl is-system-running --wait", "").await;
            if matches!(state.stdout.trim(), "running" | "degraded") {
                break;
            }
            let up = Instant::now() < deadline && Path::new("/proc").join(self.init.to_string()).exists();
            assert!(up, "systemd does not come up: {state:?}\n{}", self.console());
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let net = File::open(format!("/proc/{}/ns/net", self.init)).expect("its network");
        move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network)).expect("its network");
    }

    /// What it said while it had no log yet.
    fn console(&self) -> String {
        let mut text = vec![0; 1 << 16];
        let read = self.console.read_at(&mut text, 0).unwrap_or_default();
        String::from_utf8_lossy(&text[..read]).into_owned()
    }

    /// Runs a script there as root, in the folder of the sources.
    pub(crate) async fn run(&self, script: &str, input: &str) -> Done {
        let mut child = tokio::process::Command::new("nsenter")
            .args(["--target", &self.init.to_string(), "--all", "--", "/bin/sh", "-ec"])
            .arg(format!("cd '{}' 2>/dev/null || cd /; {script}", sources().display()))
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/root")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("nsenter can be run");
        let mut stdin = child.stdin.take().expect("its input");
        // One that reads nothing has closed it.
        drop(stdin.write_all(input.as_bytes()).await);
        drop(stdin);
        let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
        let output = output.unwrap_or_else(|_| panic!("does not end: {script}")).expect("its output");
        Done {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The same of one that succeeds: what it wrote, without the last line's end.
    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> impl Future<Output = String> {
        let place = std::panic::Location::caller();
        async move {
            let done = self.run(script, "").await;
            assert_eq!(done.code, Some(0), "{place}: {script}\n{}{}", done.stdout, done.stderr);
            done.stdout.trim_end().to_owned()
        }
    }

    /// Writes a file there.
    pub(crate) async fn write(&self, path: &str, text: &str) {
        let done = self.run(&format!("cat >'{path}'"), text).await;
        assert_eq!(done.code, Some(0), "{path}: {}", done.stderr);
    }

    /// A path there, as it is seen from here.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.init))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let script = "journalctl --no-pager -o short-precise -n 200 -u 'hotbunk*' -u init.scope";
            let target = self.init.to_string();
            let shown = Command::new("nsenter")
                .args(["--target", &target, "--all", "--", "sh", "-c", script])
                .output();
            let shown = shown.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            let mut err = std::io::stderr().lock();
            drop(writeln!(err, "{}\n{}", self.console(), shown.unwrap_or_default()));
        }
        drop(self.words.take());
        // It ends once everything is gone.
        drop(self.said.read_to_string(&mut String::new()));
        drop(self.keeper.wait());
    }
}

/// The folder of the sources.
pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// The folder of the programs under test.
pub(crate) fn programs() -> PathBuf {
    hotbunk_tests::agent_binary().parent().expect("a folder").to_owned()
}

fn cgroup2() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut at = fields.filter(|fields| fields.get(2) == Some(&"cgroup2"));
    at.next().and_then(|fields| fields.get(1).map(PathBuf::from))
}

/// Fails, with everything that is missing.
fn assert_possible(cgroups: Option<&Path>) {
    let mut missing = Vec::new();
    if !rustix::process::geteuid().is_root() {
        missing.push("root: it makes namespaces and mounts in them".to_owned());
    }
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !filesystems.lines().any(|line| line.ends_with("\toverlay")) {
        missing.push("overlayfs (/proc/filesystems; `modprobe overlay`)".to_owned());
    }
    match cgroups {
        None => missing.push("a mounted cgroup 2 hierarchy (/proc/mounts)".to_owned()),
        Some(at) if rustix::fs::access(at, rustix::fs::Access::WRITE_OK).is_err() => {
            missing.push(format!("a cgroup 2 hierarchy that can be written: {} cannot", at.display()));
        }
        Some(_) => {}
    }
    if !["/usr/lib/systemd/systemd", "/lib/systemd/systemd"].iter().any(|path| Path::new(path).exists()) {
        missing.push("systemd itself (/usr/lib/systemd/systemd)".to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&str| std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
    missing
        .extend(PROGRAMS.iter().filter(|name| !is_there(name)).map(|name| format!("the program `{name}`")));
    assert!(missing.is_empty(), "systemd cannot be booted here; missing:\n- {}", missing.join("\n- "));
}
