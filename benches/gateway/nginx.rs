//! nginx as reverse proxy, as one would set it up before an engine: connections kept on both sides, no access log,
//! buffering as by default.

use anyhow::{Context, bail};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Places where Debian puts it: `/usr/sbin` need not be on a user's path.
const PROGRAMS: [&str; 2] = ["nginx", "/usr/sbin/nginx"];
const START: Duration = Duration::from_secs(10);

/// A running nginx; ended when it is dropped.
pub(crate) struct Nginx {
    child: Child,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// What it says it is.
    pub(crate) version: String,
}

impl Nginx {
    /// Runs it in front of a back end, with so many workers; `None` where it is not installed.
    ///
    /// # Errors
    /// It is installed and does not start.
    pub(crate) fn start(dir: &Path, upstream: SocketAddr, workers: usize) -> anyhow::Result<Option<Nginx>> {
        let version = |program: &&str| Command::new(*program).arg("-v").output().ok();
        let Some((program, said)) = PROGRAMS.iter().find_map(|p| version(p).map(|said| (*p, said))) else {
            return Ok(None);
        };
        let version = String::from_utf8_lossy(&said.stderr).replace("nginx version: ", "").trim().to_owned();
        let address = hotbunk_benches::daemon::free_address()?;
        let config = dir.join("nginx.conf");
        std::fs::write(&config, configuration(dir, address, upstream, workers)?)?;
        let mut child = Command::new(program)
            .arg("-p")
            .arg(dir)
            .arg("-c")
            .arg(&config)
            .args(["-e", "error.log"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("nginx cannot be run")?;
        let end = Instant::now() + START;
        while std::net::TcpStream::connect(address).is_err() {
            let ended = child.try_wait()?;
            if ended.is_some() || Instant::now() > end {
                drop(child.kill());
                bail!("nginx does not start; see {}", dir.join("error.log").display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Some(Nginx { child, address, version }))
    }

    /// Its processes: master and workers.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let master = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children"));
        let children = children.unwrap_or_default();
        std::iter::once(master)
            .chain(children.split_whitespace().filter_map(|pid| pid.parse().ok()))
            .collect()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        // It may have ended by itself.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        drop(self.child.wait());
    }
}

fn configuration(
    dir: &Path,
    address: SocketAddr,
    upstream: SocketAddr,
    workers: usize,
) -> anyhow::Result<String> {
    let mut temporary = String::new();
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        writeln!(temporary, "  {kind}_temp_path {};", dir.join(kind).display())?;
    }
    Ok(format!(
        "daemon off;\npid {pid};\nerror_log {log};\nworker_processes {workers};\nworker_rlimit_nofile 20000;\n\
         events {{ worker_connections 8192; }}\n\
         http {{\n{temporary}  access_log off;\n  keepalive_requests 100000000;\n\
         \x20 upstream engine {{ server {upstream}; keepalive 128; keepalive_requests 100000000; }}\n\
         \x20 server {{\n    listen {address} backlog=4096 reuseport;\n    client_max_body_size 0;\n\
         \x20   location / {{\n      proxy_pass http://engine;\n      proxy_http_version 1.1;\n\
         \x20     proxy_set_header Connection \"\";\n      proxy_read_timeout 600s;\n    }}\n  }}\n}}\n",
        pid = dir.join("nginx.pid").display(),
        log = dir.join("error.log").display(),
    ))
}
