//! Connections that outlive the agents that serve them: the service manager keeps them while there is none.

use hotbunk_tests::{Handed, Setup, until};
use rustix::process::Signal;
use std::net::Ipv4Addr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const MODELS: &str = "GET /v1/models HTTP/1.1\r\nhost: x\r\n";

/// Reads one answer with a document.
async fn answer(socket: &mut TcpStream) -> String {
    let mut text = Vec::new();
    until("an answer", async || {
        assert_ne!(socket.read_buf(&mut text).await.unwrap(), 0, "it closed after {text:?}");
        text.windows(4).any(|bytes| bytes == b"\r\n\r\n") && text.ends_with(b"}")
    })
    .await;
    String::from_utf8(text).unwrap()
}

async fn is_served(socket: &mut TcpStream) {
    let text = answer(socket).await;
    assert!(text.starts_with("HTTP/1.1 200") && !text.contains("connection: close"), "{text}");
}

#[tokio::test]
async fn a_kept_connection_outlives_its_agents() {
    let node = Setup::pair().each(|e| e.speed(20.0)).build();
    let handed = Handed::of(&node).storing(&node);
    let mut agent = handed.start(&node).await;
    agent.until_up().await;
    let address = (Ipv4Addr::LOCALHOST, node.gateway_port());
    let (mut used, mut new) =
        (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
    used.write_all(format!("{MODELS}\r\n").as_bytes()).await.unwrap();
    is_served(&mut used).await;
    for _ in 0..2 {
        agent.signal(Signal::USR1);
        assert!(agent.ended().await.success());
        assert_eq!(handed.stored(), 2, "{}", agent.log());
        // What is sent while there is no agent waits for the next one.
        for socket in [&mut used, &mut new] {
            socket.write_all(format!("{MODELS}\r\n").as_bytes()).await.unwrap();
        }
        agent = handed.start(&node).await;
        assert_eq!(handed.stored(), 0, "what the agent closes would stay open");
        for socket in [&mut used, &mut new] {
            is_served(socket).await;
        }
    }
    used.write_all(format!("{MODELS}connection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut rest = Vec::new();
    used.read_to_end(&mut rest).await.unwrap();
    assert!(rest.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&rest));
    agent.stop().await;
}

#[tokio::test]
async fn what_no_store_has_room_for_is_closed() {
    let node = Setup::pair().each(|e| e.speed(20.0)).build();
    let handed = Handed::of(&node).storing(&node);
    let mut agent = handed.start(&node).await;
    agent.until_up().await;
    let mut all = Vec::new();
    for _ in 0..70 {
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, node.gateway_port())).await.unwrap();
        all.push(socket);
    }
    for socket in &mut all {
        socket.write_all(format!("{MODELS}\r\n").as_bytes()).await.unwrap();
        is_served(socket).await;
    }
    agent.signal(Signal::USR1);
    assert!(agent.ended().await.success());
    assert_eq!(handed.stored(), 64);
    assert!(agent.log().contains("kept=64 closed=6"), "{}", agent.log());
    let agent = handed.start(&node).await;
    let mut kept = 0;
    for socket in &mut all {
        // On one that has closed nothing can be sent, or nothing comes.
        if socket.write_all(format!("{MODELS}\r\n").as_bytes()).await.is_ok() {
            let mut first = [0; 12];
            if socket.read_exact(&mut first).await.is_ok() {
                assert_eq!(&first, b"HTTP/1.1 200");
                kept += 1;
            }
        }
    }
    assert_eq!(kept, 64);
    agent.stop().await;
}
