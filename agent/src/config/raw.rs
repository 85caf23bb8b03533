//! The configuration file as it is written: every key with its place, nothing filled in, nothing resolved.
//!
//! The documentation of each key here is also its description in the JSON schema.

use std::collections::BTreeMap;

use hotbunk_core::tier::Tier;

use super::checked::{Drain, LogFormat, OnFailure, OnStop, Strategy};
use super::reader::{Located, OneOrMany, Size, Span, section, words};

words!(Tier, [
    "awake" => Tier::Awake,
    "parked" => Tier::Parked,
    "level1" => Tier::Level1,
    "level2" => Tier::Level2,
    "stopped" => Tier::Stopped,
]);
words!(Strategy, [
    "auto" => Strategy::Auto,
    "sleep-first" => Strategy::SleepFirst,
    "wake-first" => Strategy::WakeFirst,
    "park" => Strategy::Park,
]);
words!(Drain, ["wait" => Drain::Wait, "freeze" => Drain::Freeze, "abort" => Drain::Abort]);
words!(OnFailure, ["go_on" => OnFailure::GoOn, "refuse_switching" => OnFailure::RefuseSwitching]);
words!(OnStop, ["stop" => OnStop::Stop, "leave" => OnStop::Leave]);
words!(LogFormat, ["text" => LogFormat::Text, "json" => LogFormat::Json]);

section! {
    /// Configuration of hotbunk-agent.
    struct RawConfig {
        /// What concerns the node as a whole.
        node: RawNode,
        /// A GPU, or what stands for one. Without any, NVML's device 0 is used.
        device: Vec<Located<RawDevice>>,
        /// A supervised vLLM server.
        engine (required): Vec<Located<RawEngine>>,
        /// How handoffs are made where the caller names nothing.
        policy: RawPolicy,
        /// The endpoint for clients.
        gateway: RawGateway,
        /// Somebody who sends requests. One of the name "default" is whoever is not known.
        tenant: Vec<Located<RawTenant>>,
        /// How much the journal keeps.
        journal: RawJournal,
        /// A cycle that runs by itself.
        schedule: Vec<Located<RawSchedule>>,
        /// Says that the engines are simulated.
        simulated: RawSimulated,
    }
}

section! {
    /// What concerns the node as a whole.
    struct RawNode {
        /// Journal, reports and logs. Default: $STATE_DIRECTORY, for root /var/lib/hotbunk, else ~/.local/state/hotbunk.
        state_dir: String,
        /// Sockets. Default: $RUNTIME_DIRECTORY, for root /run/hotbunk, else $XDG_RUNTIME_DIR/hotbunk.
        runtime_dir: String,
        /// Address of the Prometheus endpoint, or "none". Default 127.0.0.1:9464.
        metrics_listen: String,
        /// Log filter, as in "info,hotbunk_agent=debug". Default "info".
        log_filter: String,
        /// How log lines look. Default text.
        log_format: LogFormat,
        /// Path of libnvidia-ml.so where it is not found by its usual name.
        nvml_library: String,
        /// How often device memory is read at rest. Default 100ms.
        sample_interval: Span,
        /// How often device memory is read during a handoff. Default 10ms.
        handoff_sample_interval: Span,
        /// How often resident host memory is read. Default 1s.
        host_sample_interval: Span,
        /// How often the world is compared with what is believed of it. Default 5s.
        reconcile_interval: Span,
        /// How long requests may run without a single token before the engine counts as stalled. Default 60s.
        stall_after: Span,
        /// Host memory that pinned weights must leave free. Default 4GiB.
        host_memory_reserve: Size,
        /// How long an orderly shutdown may take before what is left is killed. Default 60s.
        shutdown_grace: Span,
        /// What SIGTERM does with the engines: "stop" them, or "leave" them to the next agent. Default stop.
        on_stop: OnStop,
    }
}

section! {
    /// A GPU, or what stands for one: one of `uuid`, `index` and `ledger`, or the name "none".
    struct RawDevice {
        /// Its name. "none" is the device without memory readings.
        name (required): String,
        /// NVML's UUID, as `nvidia-smi -L` prints it.
        uuid: String,
        /// NVML's index.
        index: u32,
        /// Ledger file that simulated engines share.
        ledger: String,
        /// Its memory, to check the plan before the device is read.
        capacity: Size,
        /// Memory that no engine may hold. Default 1GiB.
        reserve: Size,
        /// Engines left awake once a handoff has ended. Default 1.
        max_awake: u16,
        /// By how much used memory may exceed what is accounted for. Default 256MiB.
        slack: Size,
    }
}

section! {
    /// A supervised vLLM server.
    struct RawEngine {
        /// Short name: 1 to 32 letters, digits, `_` and `-`.
        name (required): String,
        /// Id that clients put in a request's `model`.
        model (required): String,
        /// Other ids of the same model.
        aliases: Vec<Located<String>>,
        /// The device it runs on, by name; "none" for one without memory readings. Default: the only device.
        device: String,
        /// The devices it spans, by name (tensor parallel).
        devices: Vec<Located<String>>,
        /// Program and arguments.
        command (required): Vec<Located<String>>,
        /// Environment variables, over the agent's own.
        env: BTreeMap<String, Located<String>>,
        /// Environment variables that it does not inherit.
        unset_env: Vec<Located<String>>,
        /// Working directory.
        cwd: String,
        /// Loopback address that it listens on. Default 127.0.0.1.
        host: String,
        /// Port that it listens on. Default: the command's --port.
        port: u16,
        /// Key that it demands under /v1. Default: the command's --api-key.
        api_key: String,
        /// Start it with the agent. Default true.
        autostart: bool,
        /// Starts are serialised, lowest first. Default 0.
        start_order: i32,
        /// Tier that it is left in after its start. Default level1.
        rest_tier: Tier,
        /// Sleep levels that it may be put to: level1, level2. Default both; empty means stop and restart only.
        levels: Vec<Located<Tier>>,
        /// Whether its KV cache may be released alone (vLLM 0.31 and later). Default true.
        park: bool,
        /// One verified sleep and wake after its start. Default true.
        rehearse: bool,
        /// From spawn to ready. Default 10m.
        start_timeout: Span,
        /// From SIGTERM to SIGKILL. Default 10s.
        stop_grace: Span,
        /// How often a starting engine is asked whether it is ready. Default 250ms.
        ready_interval: Span,
        /// vLLM's --gpu-memory-utilization. Default: the command's.
        gpu_memory_utilization: f64,
        /// Memory of its KV cache on each of its devices. Default: the command's --kv-cache-memory-bytes.
        kv_cache: Size,
        /// Device memory of its weights, over all its devices, until they are measured.
        weights: Size,
        /// Most device memory while it starts, until that is measured.
        start_peak: Size,
        /// Pinned host memory of a level-1 sleep, until it is measured.
        host_memory: Size,
        /// Device memory that stays while it sleeps, until it is measured. Default 1GiB.
        residual: Size,
        /// Worker processes: tensor × pipeline parallel. Default: what the command says, else 1.
        workers: u16,
        /// Longest that its requests should wait for their turn while another engine is busy. Default 60s.
        max_wait: Span,
        /// Once awake, other engines' requests do not put it to sleep before this has passed. Default 2s.
        min_residency: Span,
        /// Its share of the device while several engines have requests, against the others'. Default 1.
        weight: u32,
        /// Other engines' requests never put it to sleep. Default false.
        pinned: bool,
        /// Where it is put while nobody uses it, as in [{ after = "30s", tier = "parked" }]. Default: it stays awake.
        idle: Vec<Located<RawRung>>,
        /// Most requests that the gateway has on it at once; the others wait. Default: no limit.
        max_in_flight: u32,
        /// When it is started again after a crash.
        restart: RawRestart,
        /// When it is started anew, at an idle moment, for device memory that it loses.
        recycle: RawRecycle,
        /// How much of its output is kept.
        log: RawLog,
        /// Where a simulated engine writes its operation log.
        op_log: String,
        /// Where the command starts a container.
        container: RawContainer,
        /// Deadlines that replace the computed ones.
        timeouts: RawTimeouts,
    }
}

section! {
    /// An engine in a container, which is no descendant of the command that starts it. `{name}` is the engine's name.
    struct RawContainer {
        /// Program and arguments that end the container in order.
        stop (required): Vec<Located<String>>,
        /// Program and arguments that end it at once. Default: `stop` again.
        kill: Vec<Located<String>>,
        /// File that the runtime writes the container's id to (--cidfile). Default: it is found by its port.
        id_file: String,
    }
}

section! {
    /// One rung of an idle ladder.
    struct RawRung {
        /// Since its last request has been answered.
        after (required): Span,
        /// parked, level1, level2 or stopped.
        tier (required): Tier,
    }
}

section! {
    /// When an engine is started again after a crash.
    struct RawRestart {
        /// Restarts within the window before it is failed. Default 5.
        budget: u32,
        /// Default 10m.
        window: Span,
        /// First delay. Default 1s.
        initial: Span,
        /// Longest delay. Default 60s.
        max: Span,
    }
}

section! {
    /// When an engine is started anew, at an idle moment, for device memory that it loses.
    struct RawRecycle {
        /// Device memory more than when its process first slept, by its own processes' bytes. "0B": never. Default: half the device's slack.
        creep: Size,
        /// Sleeps of one process, at least 2. Default: any number.
        sleeps: u32,
    }
}

section! {
    /// How much of an engine's output is kept.
    struct RawLog {
        /// Size of one file. Default 16MiB.
        max_size: Size,
        /// How many files. Default 5.
        keep: u32,
    }
}

section! {
    /// Deadlines that replace the computed ones.
    struct RawTimeouts {
        /// /sleep.
        sleep: Span,
        /// /wake_up.
        wake: Span,
        /// reload_weights.
        reload: Span,
        /// The probe's first token.
        probe: Span,
        /// /is_sleeping, which blocks as long as a copy runs.
        is_sleeping: Span,
        /// Every other control call.
        control: Span,
        /// Until device memory is gone, or there.
        memory: Span,
    }
}

section! {
    /// How handoffs are made where the caller names nothing.
    struct RawPolicy {
        /// Default auto.
        strategy: Strategy,
        /// Tier that the outgoing engine is left in. Default: the strategy's.
        leave: Tier,
        /// What happens to running requests. Default wait.
        drain: Drain,
        /// How long they are waited for before the handoff is given up. Default 30s.
        drain_deadline: Span,
        /// Engine, or list of engines, awake once all have started. Default none.
        awake_at_start: OneOrMany<String>,
    }
}

section! {
    /// The endpoint for clients.
    struct RawGateway {
        /// Its address, or "none". Default 127.0.0.1:8000. Port 0 takes a free one.
        listen: String,
        /// Largest body of a request. Default 128MiB.
        max_body: Size,
        /// Largest head of a request. Default 64KiB.
        max_header: Size,
        /// How long a client may take to send the head of a request. Default 10s.
        header_timeout: Span,
        /// Most requests that may wait for one engine. Default 1024.
        hold_requests: u32,
        /// Most memory for the bodies of those that wait. Default 1GiB.
        hold_bytes: Size,
        /// How long a plain request may wait before it is answered 503. Default 60s.
        hold_deadline: Span,
        /// How long a streamed request may wait. Default 10m.
        hold_stream_deadline: Span,
        /// How long a stream may be silent before the client is sent an SSE comment. Default 5s.
        keep_alive: Span,
        /// How long answers may still take when the agent goes and leaves the engines to the next one: an upgrade, or
        /// `on_stop = "leave"`. What takes longer is ended with an error. Default 30s.
        upgrade_drain: Span,
        /// Threads that serve requests. Default: as many as cores, 4 at the most.
        threads: u16,
        /// Header by which a trusted proxy in front says whose a request is.
        tenant_header: String,
        /// Whether a request of nobody that is known is refused. Default: whether any tenant has a key.
        require_key: bool,
    }
}

section! {
    /// Somebody who sends requests. One of the name "default" is whoever is not known.
    struct RawTenant {
        /// Its name.
        name (required): String,
        /// SHA-256 of its API key, 64 hexadecimal digits, or a list of several.
        key_sha256: OneOrMany<String>,
        /// Value of the gateway's `tenant_header` that means it. Default: its name.
        header: String,
        /// Its share of a busy model, against the others'. Default 1.
        weight: u32,
        /// Most requests at once, on each model.
        max_in_flight: u32,
        /// Most requests that may wait, for each model.
        max_queued: u32,
        /// Requests per second, on each model.
        requests_per_second: f64,
        /// Requests at once after a rest. Default: those of one second.
        burst: u32,
        /// Tokens per minute, on each model, of prompt and answer together.
        tokens_per_minute: u32,
        /// Other limits on one model.
        model: Vec<Located<RawTenantModel>>,
    }
}

section! {
    /// Limits of a tenant on one model. What is not said is as it is for the tenant's other models.
    struct RawTenantModel {
        /// The model, or an alias.
        name (required): String,
        /// Most requests at once.
        max_in_flight: u32,
        /// Most requests that may wait.
        max_queued: u32,
        /// Requests per second.
        requests_per_second: f64,
        /// Requests at once after a rest. Default: those of one second.
        burst: u32,
        /// Tokens per minute, of prompt and answer together.
        tokens_per_minute: u32,
    }
}

section! {
    /// How much the journal keeps, and what happens without it.
    struct RawJournal {
        /// Age of records. Default 30d.
        retention: Span,
        /// Age of samples. Default 7d.
        sample_retention: Span,
        /// Size of the file. Default 1GiB.
        max_size: Size,
        /// What happens while it cannot be written: go_on (events are only logged) or refuse_switching. Default go_on.
        on_failure: OnFailure,
    }
}

section! {
    /// A cycle that runs by itself.
    struct RawSchedule {
        /// Its name.
        name (required): String,
        /// Cron expression of five fields, local time.
        cron (required): String,
        /// reference, handoffs, quick, or the path of a plan file.
        plan (required): String,
        /// Leave it out while requests are served. Default true.
        unless_serving: bool,
    }
}

section! {
    /// Says that the engines are simulated.
    struct RawSimulated {
        /// Profile's name.
        profile (required): String,
        /// Engine times are divided by this. Default 1.
        speed: f64,
        /// By how much less host memory the simulated engines really take. Default 1.
        host_scale: f64,
    }
}
