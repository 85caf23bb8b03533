//! Sockets that are handed over.

use hotbunk_tests::{Handed, Node, Setup, until};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use tokio::task::spawn_blocking;

/// Starts an agent that must refuse; what it says.
async fn refused(node: &Node, handed: Handed) -> String {
    let mut child = handed.spawn(node);
    let status = spawn_blocking(move || child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(7), "as for a file with errors: systemd does not try again");
    assert!(!node.dir().join("state").exists(), "nothing was touched");
    std::fs::read_to_string(node.dir().join("agent.log")).unwrap()
}

fn listener(port: u16) -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap()
}

#[tokio::test]
async fn what_does_not_agree_with_the_configuration_is_refused_before_anything_is_touched() {
    let node = || Setup::pair().build();
    let n = node();
    let said = refused(&n, Handed::nothing().and("gatway", listener(0))).await;
    assert!(said.contains("a socket of the name \"gatway\" was handed over"), "{said}");
    assert!(said.contains("FileDescriptorName=") && said.contains("nothing was started"), "{said}");

    let n = node();
    let elsewhere = listener(0);
    let handed = elsewhere.local_addr().unwrap();
    let said = refused(&n, Handed::nothing().and("gateway", elsewhere)).await;
    let both = format!("listens on {handed}, and `listen` of [gateway] says 127.0.0.1:{}", n.gateway_port());
    assert!(said.contains(&both), "{said}");

    let n = node();
    let said = refused(&n, Handed::nothing().and("metrics", listener(0))).await;
    assert!(said.contains("`metrics_listen` of [node] says"), "{said}");

    let n = node();
    let elsewhere = UnixListener::bind(n.dir().join("elsewhere.sock")).unwrap();
    let said = refused(&n, Handed::nothing().and("control", elsewhere)).await;
    assert!(said.contains("elsewhere.sock, and `runtime_dir` of [node] says"), "{said}");

    let n = node();
    let said = refused(&n, Handed::nothing().and("control", listener(0))).await;
    assert!(said.contains("the socket control that was handed over is no unix socket"), "{said}");

    let n = node();
    let door = listener(n.gateway_port());
    let connection = TcpStream::connect(door.local_addr().unwrap()).unwrap();
    let said = refused(&n, Handed::nothing().and("gateway", connection)).await;
    assert!(said.contains("does not listen"), "{said}");

    let n = Setup::pair().gateway_line("listen = \"none\"").build();
    let said = refused(&n, Handed::nothing().and("gateway", listener(0))).await;
    assert!(said.contains("`listen` of [gateway] is \"none\""), "{said}");
}

#[tokio::test]
async fn engines_and_shims_have_neither_the_sockets_nor_the_variables() {
    let node = Setup::pair().build();
    let handed = Handed::of(&node);
    let agent = handed.start(&node).await;
    agent.until_up().await;
    node.model("A").serves().await;
    assert!(node.metrics().await.contains("hotbunk_"));
    let inodes: Vec<String> = handed.inodes().iter().map(|inode| format!("socket:[{inode}]")).collect();
    let open = |pid: u32| -> Vec<String> {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        entries.filter_map(|e| std::fs::read_link(e.path()).ok()?.to_str().map(str::to_owned)).collect()
    };
    assert!(inodes.iter().all(|inode| open(agent.pid()).contains(inode)), "the agent has all of them");
    let others: Vec<_> = node.living().into_iter().filter(|p| p.pid != agent.pid()).collect();
    assert!(others.iter().any(|p| p.command.contains(" shim ")) && others.len() >= 4, "{others:?}");
    for process in others {
        let kept = open(process.pid);
        assert!(!inodes.iter().any(|inode| kept.contains(inode)), "{process:?} has {kept:?}");
        let environment = std::fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&environment).contains("LISTEN_"), "{process:?}");
    }
    agent.stop().await;
    assert!(node.socket().exists(), "the control socket is not the agent's to remove");
    let again = handed.start(&node).await;
    again.until_up().await;
    again.stop().await;
}

#[tokio::test]
async fn systemds_own_tool_hands_over_what_the_agent_understands() {
    let tool = Command::new("systemd-socket-activate").arg("--version").stdout(Stdio::null()).status();
    if !tool.is_ok_and(|status| status.success()) {
        crate::draw::say("SKIPPED: systemd-socket-activate is not installed");
        return;
    }
    let node = Setup::pair().build();
    let log = std::fs::File::create(node.dir().join("agent.log")).unwrap();
    let child = Command::new("systemd-socket-activate")
        .args(["--listen", &format!("127.0.0.1:{}", node.gateway_port()), "--fdname=gateway"])
        .arg(hotbunk_tests::agent_binary())
        .args(["run", "--config"])
        .arg(node.config())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    // It starts the agent with the first connection, in its own place.
    let address = (Ipv4Addr::LOCALHOST, node.gateway_port());
    until("systemd's tool to listen", async || TcpStream::connect(address).is_ok()).await;
    let agent = hotbunk_tests::Agent::up(child, node.clone()).await;
    agent.until_up().await;
    node.model("A").serves().await;
    agent.stop().await;
}
