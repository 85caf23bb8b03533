//! Sampling the engines' trees once a second, on a thread of its own.

use super::Error;
use super::memory::HostMemory;
use super::tree::rss;
use crate::clock;
use crate::journal::record::HostSample;
use hotbunk_core::time::Moment;
use std::collections::HashMap;
use std::sync::{Arc, mpsc as blocking};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};

/// Rows for missed samples are written for no longer than this many periods: a suspended machine is no measurement.
const MISSED_AT_MOST: u32 = 60;

/// Shortest period.
const SHORTEST: Duration = Duration::from_millis(1);

/// The host bytes of one engine's tree at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostReading {
    /// When it was read.
    pub at: Moment,
    /// Σ RSS in bytes; `None` where no process of the tree could be read.
    pub rss: Option<u64>,
    /// How many processes the tree had.
    pub processes: usize,
}

#[derive(Debug)]
enum Command {
    SampleNow(oneshot::Sender<()>),
    Subscribe(mpsc::Sender<Vec<HostSample>>),
    Pace(Duration),
}

/// Access to the samples. Cheap to clone; sampling ends with the last clone.
#[derive(Debug, Clone)]
pub struct HostSampler {
    commands: blocking::Sender<Command>,
    trees: watch::Receiver<Arc<HashMap<String, HostReading>>>,
    memory: watch::Receiver<Option<HostMemory>>,
}

impl HostSampler {
    /// Starts sampling every `period`. `trees` gives the process ids of each engine that has processes; it is called
    /// on the sampling thread before each sample and may read `/proc`.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn spawn(
        trees: impl FnMut() -> HashMap<String, Vec<u32>> + Send + 'static,
        period: Duration,
    ) -> Result<Self, Error> {
        let (commands, queue) = blocking::channel();
        let (publish_trees, tree_readings) = watch::channel(Arc::default());
        let (publish_memory, memory) = watch::channel(None);
        let thread = Thread {
            trees,
            period: period.max(SHORTEST),
            publish_trees,
            publish_memory,
            subscribers: Vec::new(),
        };
        std::thread::Builder::new()
            .name("host-sampler".into())
            .spawn(move || thread.run(&queue))
            .map_err(Error::Thread)?;
        Ok(HostSampler { commands, trees: tree_readings, memory })
    }

    /// The newest sample of an engine; `None` where it had no process.
    pub fn latest(&self, engine: &str) -> Option<HostReading> {
        self.trees.borrow().get(engine).copied()
    }

    /// Follows the newest samples of all engines.
    pub fn readings(&self) -> watch::Receiver<Arc<HashMap<String, HostReading>>> {
        self.trees.clone()
    }

    /// The machine's memory at the newest sample; `None` before the first or where it cannot be read.
    pub fn memory(&self) -> Option<HostMemory> {
        self.memory.borrow().clone()
    }

    /// Samples at once, and returns when that was done.
    pub async fn sample_now(&self) {
        let (done, finished) = oneshot::channel();
        if self.commands.send(Command::SampleNow(done)).is_ok() {
            // An error means that the thread has ended.
            let _ = finished.await;
        }
    }

    /// Samples at another rate from now on.
    pub fn pace(&self, period: Duration) {
        // Where the thread has ended, there are no samples.
        let _ = self.commands.send(Command::Pace(period));
    }

    /// The samples' rows for the journal, a batch a sample; `rss: None` is a missed one. A subscriber that lets more
    /// than `capacity` batches pile up loses the newest, which is logged.
    pub fn subscribe(&self, capacity: usize) -> mpsc::Receiver<Vec<HostSample>> {
        let (rows, queue) = mpsc::channel(capacity.max(1));
        // Where the thread has ended, the queue ends at once.
        let _ = self.commands.send(Command::Subscribe(rows));
        queue
    }
}

struct Thread<F> {
    trees: F,
    period: Duration,
    publish_trees: watch::Sender<Arc<HashMap<String, HostReading>>>,
    publish_memory: watch::Sender<Option<HostMemory>>,
    subscribers: Vec<mpsc::Sender<Vec<HostSample>>>,
}

impl<F: FnMut() -> HashMap<String, Vec<u32>>> Thread<F> {
    fn run(mut self, commands: &blocking::Receiver<Command>) {
        let mut next = Instant::now();
        loop {
            match commands.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Command::Subscribe(rows)) => self.subscribers.push(rows),
                Ok(Command::Pace(period)) => {
                    self.period = period.max(SHORTEST);
                    next = next.min(Instant::now() + self.period);
                }
                Ok(Command::SampleNow(done)) => {
                    self.sample();
                    // Whoever asked may be gone.
                    let _ = done.send(());
                }
                Err(blocking::RecvTimeoutError::Disconnected) => return,
                Err(blocking::RecvTimeoutError::Timeout) => {
                    self.sample();
                    next += self.period;
                    next = self.skip_missed(next);
                }
            }
        }
    }

    /// Writes rows without bytes for the samples whose time has passed, and returns when the next one is due.
    fn skip_missed(&self, due: Instant) -> Instant {
        let late = Instant::now().saturating_duration_since(due);
        let missed = u32::try_from(late.as_nanos() / self.period.as_nanos()).unwrap_or(u32::MAX);
        let now = clock::now();
        for past in (0..missed.min(MISSED_AT_MOST)).rev() {
            let at = now - self.period * past;
            let engines = self.publish_trees.borrow().keys().cloned().collect::<Vec<_>>();
            self.send(engines.into_iter().map(|engine| row(engine, at, None)).collect());
        }
        due + self.period.saturating_mul(missed)
    }

    fn sample(&mut self) {
        let mut readings = HashMap::new();
        for (engine, pids) in (self.trees)() {
            if !pids.is_empty() {
                let at = clock::now();
                readings.insert(engine, HostReading { at, rss: rss(&pids), processes: pids.len() });
            }
        }
        self.send(readings.iter().map(|(engine, r)| row(engine.clone(), r.at, r.rss)).collect());
        self.publish_trees.send_replace(Arc::new(readings));
        let memory = HostMemory::read().inspect_err(|error| tracing::warn!(%error, "host memory is unknown"));
        self.publish_memory.send_replace(memory.ok());
    }

    fn send(&self, rows: Vec<HostSample>) {
        if rows.is_empty() {
            return;
        }
        for subscriber in &self.subscribers {
            if let Err(mpsc::error::TrySendError::Full(rows)) = subscriber.try_send(rows.clone()) {
                tracing::warn!(rows = rows.len(), "host samples are lost: their reader does not keep up");
            }
        }
    }
}

fn row(engine: String, at: Moment, rss: Option<u64>) -> HostSample {
    let age = clock::now().since(at).as_secs_f64();
    let wall = clock::wall().as_nanosecond() as f64 / 1e9 - age;
    HostSample { at, wall, engine, rss, pss: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn trees_are_followed_as_they_change_and_a_dead_tree_is_a_missed_sample() {
        let trees = Arc::new(Mutex::new(HashMap::from([("A".to_owned(), vec![std::process::id()])])));
        let source = Arc::clone(&trees);
        let sampler = HostSampler::spawn(move || source.lock().unwrap().clone(), LONG).unwrap();
        let mut rows = sampler.subscribe(16);
        sampler.sample_now().await;
        let reading = sampler.latest("A").unwrap();
        assert!(reading.rss.unwrap() > 1 << 20);
        assert_eq!(reading.processes, 1);
        assert_eq!(sampler.latest("B"), None);
        assert!(sampler.memory().unwrap().total > 1 << 20);

        // A process id that nobody has: the tree is there, its bytes are not known.
        *trees.lock().unwrap() =
            HashMap::from([("A".to_owned(), vec![]), ("B".to_owned(), vec![u32::MAX >> 1])]);
        sampler.sample_now().await;
        assert_eq!(sampler.latest("A"), None);
        assert_eq!(sampler.latest("B").unwrap().rss, None);
        let mut last = Vec::new();
        while let Ok(batch) = rows.try_recv() {
            assert!(batch.iter().all(|row| row.rss != Some(0) && row.pss.is_none()));
            last = batch;
        }
        assert_eq!(last.len(), 1);
        assert_eq!((last[0].engine.as_str(), last[0].rss), ("B", None));
    }

    #[tokio::test]
    async fn it_samples_by_itself_and_ends_with_its_last_handle() {
        let trees = || HashMap::from([("A".to_owned(), vec![std::process::id()])]);
        let sampler = HostSampler::spawn(trees, Duration::from_millis(5)).unwrap();
        let mut rows = sampler.subscribe(1024);
        for _ in 0..3 {
            tokio::time::timeout(LONG, rows.recv()).await.unwrap().unwrap();
        }
        drop(sampler);
        let ended = async { while rows.recv().await.is_some() {} };
        tokio::time::timeout(LONG, ended).await.unwrap();
    }

    #[tokio::test]
    async fn another_pace_counts_at_once() {
        let trees = || HashMap::from([("A".to_owned(), vec![std::process::id()])]);
        let sampler = HostSampler::spawn(trees, Duration::from_secs(3600)).unwrap();
        let mut rows = sampler.subscribe(1024);
        sampler.pace(Duration::from_millis(5));
        for _ in 0..3 {
            tokio::time::timeout(LONG, rows.recv()).await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_sample_that_came_too_late_leaves_rows_without_bytes() {
        let mut first = true;
        let trees = move || {
            // The second listing takes several periods.
            if !std::mem::take(&mut first) {
                std::thread::sleep(Duration::from_millis(60));
            }
            HashMap::from([("A".to_owned(), vec![std::process::id()])])
        };
        let sampler = HostSampler::spawn(trees, Duration::from_millis(10)).unwrap();
        let mut rows = sampler.subscribe(1024);
        let missed = async {
            loop {
                if rows.recv().await.unwrap().iter().any(|row| row.rss.is_none()) {
                    break;
                }
            }
        };
        tokio::time::timeout(LONG, missed).await.unwrap();
    }
}
