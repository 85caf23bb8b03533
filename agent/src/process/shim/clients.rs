//! The shim's socket: any number of agents, one after the other or at once.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Duration, timeout};

use crate::process::protocol::{Answer, Event, FromShim, Request, line};

/// A question and where its answer goes.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: Request,
    client: mpsc::UnboundedSender<String>,
}

impl Asked {
    /// Answers; a client that has gone is none.
    pub(super) fn answer(&self, answer: Answer) {
        let _ = self.client.send(line(&FromShim::Answer { id: self.request.id, answer }));
    }
}

/// All connections, and every event so far for those to come.
#[derive(Debug)]
pub(super) struct Clients {
    history: Vec<String>,
    clients: Vec<mpsc::UnboundedSender<String>>,
    tasks: JoinSet<()>,
    asked: mpsc::UnboundedSender<Asked>,
}

impl Clients {
    /// No connection yet; questions will come out of the receiver.
    pub(super) fn new() -> (Clients, mpsc::UnboundedReceiver<Asked>) {
        let (asked, questions) = mpsc::unbounded_channel();
        (Clients { history: Vec::new(), clients: Vec::new(), tasks: JoinSet::new(), asked }, questions)
    }

    /// Tells everyone, now and later.
    pub(super) fn tell(&mut self, event: Event) {
        let text = line(&FromShim::Event { seq: self.history.len() as u64, event });
        self.clients.retain(|client| client.send(text.clone()).is_ok());
        self.history.push(text);
    }

    /// Takes a new connection, if it comes from this user or from root: the private directory already says so.
    pub(super) fn add(&mut self, stream: UnixStream) {
        while self.tasks.try_join_next().is_some() {}
        let me = rustix::process::geteuid().as_raw();
        if !stream.peer_cred().is_ok_and(|peer| peer.uid() == me || peer.uid() == 0) {
            return;
        }
        let (client, lines) = mpsc::unbounded_channel();
        for text in &self.history {
            let _ = client.send(text.clone());
        }
        self.clients.push(client.clone());
        self.tasks.spawn(converse(stream, client, lines, self.asked.clone()));
    }

    /// Lets answers under way arrive, for a moment.
    pub(super) async fn finish(mut self) {
        self.clients.clear();
        drop(self.asked);
        // Readers end with their clients; the writers' last line is what matters.
        let _ =
            timeout(Duration::from_secs(1), async { while self.tasks.join_next().await.is_some() {} }).await;
    }
}

/// One connection, until the client hangs up or does not speak the protocol.
async fn converse(
    stream: UnixStream,
    client: mpsc::UnboundedSender<String>,
    mut lines: mpsc::UnboundedReceiver<String>,
    asked: mpsc::UnboundedSender<Asked>,
) {
    let (reader, mut writer) = stream.into_split();
    let read = async move {
        let mut questions = BufReader::new(reader).lines();
        while let Some(text) = questions.next_line().await? {
            let request: Request = serde_json::from_str(&text)?;
            let question = Asked { request, client: client.clone() };
            if asked.send(question).is_err() {
                break;
            }
        }
        io::Result::Ok(())
    };
    let write = async {
        while let Some(text) = lines.recv().await {
            writer.write_all(text.as_bytes()).await?;
        }
        io::Result::Ok(())
    };
    // A client that hung up ends the conversation, or a shim that has dropped its sender. (The reader holds a sender of
    // its own, so the writer outlives the shim's only while the client stays.) A client that does not listen any more may
    // still have said something: its last question is read to the end.
    tokio::pin!(read);
    tokio::select! {
        _ = &mut read => {}
        written = write => if written.is_err() {
            let _ = read.await;
        }
    }
}
