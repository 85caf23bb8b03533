//! The names: every series that the agent exports stands here, and nowhere else.

use metrics::Unit;

/// How a series behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations by size.
    Histogram,
}

/// Every series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the help text of each is its documentation")]
pub enum Name {
    BuildInfo,
    Up,
    EngineTier,
    EngineGeneration,
    EngineInFlight,
    EngineDeviceBytes,
    EngineResidualBytes,
    EngineHostBytes,
    EngineRestarts,
    CanaryMismatches,
    Operations,
    Incidents,
    GatewayHeld,
    GatewayHold,
    GatewayInFlight,
    GatewayRefusals,
    Switching,
    TenantSwitching,
    Handoff,
    HandoffOverhead,
    HandoffPhase,
    DeviceUsedBytes,
    DeviceTotalBytes,
    DeviceReadingAge,
    SamplesMissed,
    JournalCommit,
    JournalDroppedSamples,
    JournalFailing,
    JournalLostEvents,
}

impl Name {
    /// Every name.
    pub const ALL: [Name; 29] = [
        Name::BuildInfo,
        Name::Up,
        Name::EngineTier,
        Name::EngineGeneration,
        Name::EngineInFlight,
        Name::EngineDeviceBytes,
        Name::EngineResidualBytes,
        Name::EngineHostBytes,
        Name::EngineRestarts,
        Name::CanaryMismatches,
        Name::Operations,
        Name::Incidents,
        Name::GatewayHeld,
        Name::GatewayHold,
        Name::GatewayInFlight,
        Name::GatewayRefusals,
        Name::Switching,
        Name::TenantSwitching,
        Name::Handoff,
        Name::HandoffOverhead,
        Name::HandoffPhase,
        Name::DeviceUsedBytes,
        Name::DeviceTotalBytes,
        Name::DeviceReadingAge,
        Name::SamplesMissed,
        Name::JournalCommit,
        Name::JournalDroppedSamples,
        Name::JournalFailing,
        Name::JournalLostEvents,
    ];

    /// The name as Prometheus sees it.
    pub fn as_str(self) -> &'static str {
        match self {
            Name::BuildInfo => "hotbunk_build_info",
            Name::Up => "hotbunk_up",
            Name::EngineTier => "hotbunk_engine_tier",
            Name::EngineGeneration => "hotbunk_engine_generation",
            Name::EngineInFlight => "hotbunk_engine_in_flight",
            Name::EngineDeviceBytes => "hotbunk_engine_device_bytes",
            Name::EngineResidualBytes => "hotbunk_engine_residual_bytes",
            Name::EngineHostBytes => "hotbunk_engine_host_bytes",
            Name::EngineRestarts => "hotbunk_engine_restarts_total",
            Name::CanaryMismatches => "hotbunk_canary_mismatches_total",
            Name::Operations => "hotbunk_operations_total",
            Name::Incidents => "hotbunk_incidents_total",
            Name::GatewayHeld => "hotbunk_gateway_held",
            Name::GatewayHold => "hotbunk_gateway_hold_seconds",
            Name::GatewayInFlight => "hotbunk_gateway_in_flight",
            Name::GatewayRefusals => "hotbunk_gateway_refusals_total",
            Name::Switching => "hotbunk_device_switching_seconds_total",
            Name::TenantSwitching => "hotbunk_tenant_switch_seconds_total",
            Name::Handoff => "hotbunk_handoff_seconds",
            Name::HandoffOverhead => "hotbunk_handoff_overhead_seconds",
            Name::HandoffPhase => "hotbunk_handoff_phase_seconds",
            Name::DeviceUsedBytes => "hotbunk_device_used_bytes",
            Name::DeviceTotalBytes => "hotbunk_device_total_bytes",
            Name::DeviceReadingAge => "hotbunk_device_reading_age_seconds",
            Name::SamplesMissed => "hotbunk_samples_missed_total",
            Name::JournalCommit => "hotbunk_journal_commit_seconds",
            Name::JournalDroppedSamples => "hotbunk_journal_dropped_samples_total",
            Name::JournalFailing => "hotbunk_journal_failing",
            Name::JournalLostEvents => "hotbunk_journal_lost_events_total",
        }
    }

    /// How it behaves.
    pub fn kind(self) -> Kind {
        match self {
            Name::EngineRestarts
            | Name::CanaryMismatches
            | Name::Operations
            | Name::Incidents
            | Name::GatewayRefusals
            | Name::Switching
            | Name::TenantSwitching
            | Name::SamplesMissed
            | Name::JournalDroppedSamples
            | Name::JournalLostEvents => Kind::Counter,
            Name::Handoff
            | Name::HandoffOverhead
            | Name::HandoffPhase
            | Name::GatewayHold
            | Name::JournalCommit => Kind::Histogram,
            Name::BuildInfo
            | Name::Up
            | Name::EngineTier
            | Name::EngineGeneration
            | Name::EngineInFlight
            | Name::EngineDeviceBytes
            | Name::EngineResidualBytes
            | Name::EngineHostBytes
            | Name::GatewayHeld
            | Name::GatewayInFlight
            | Name::DeviceUsedBytes
            | Name::DeviceTotalBytes
            | Name::DeviceReadingAge
            | Name::JournalFailing => Kind::Gauge,
        }
    }

    /// Whether it counts fractions. The exporter's counters are whole numbers, so such a one is kept as a gauge and
    /// rendered as what it is.
    pub(super) fn is_fractional(self) -> bool {
        self.kind() == Kind::Counter && self.unit() == Unit::Seconds
    }

    /// What its values count.
    pub fn unit(self) -> Unit {
        match self {
            Name::EngineDeviceBytes
            | Name::EngineResidualBytes
            | Name::EngineHostBytes
            | Name::DeviceUsedBytes
            | Name::DeviceTotalBytes => Unit::Bytes,
            Name::Handoff
            | Name::HandoffOverhead
            | Name::HandoffPhase
            | Name::GatewayHold
            | Name::Switching
            | Name::TenantSwitching
            | Name::DeviceReadingAge
            | Name::JournalCommit => Unit::Seconds,
            Name::BuildInfo
            | Name::Up
            | Name::EngineTier
            | Name::EngineGeneration
            | Name::EngineInFlight
            | Name::EngineRestarts
            | Name::CanaryMismatches
            | Name::Operations
            | Name::Incidents
            | Name::GatewayHeld
            | Name::GatewayInFlight
            | Name::GatewayRefusals
            | Name::SamplesMissed
            | Name::JournalDroppedSamples
            | Name::JournalFailing
            | Name::JournalLostEvents => Unit::Count,
        }
    }

    /// What it means, for people.
    pub fn help(self) -> &'static str {
        match self {
            Name::BuildInfo => "The agent's version; always 1.",
            Name::Up => {
                "Whether the engine's process is there and was found ready, in whatever tier: 1 or 0."
            }
            Name::EngineTier => {
                "1 for the tier that the engine was last verified in, 0 for the others; all 0 while it is adrift."
            }
            Name::EngineGeneration => "Counts the engine's starts and wakes.",
            Name::EngineInFlight => "Requests running or waiting in the engine; absent while unknown.",
            Name::EngineDeviceBytes => {
                "Device memory of the engine in a tier, as last measured in that tier; absent while unknown. Not to be \
                 summed over tiers."
            }
            Name::EngineResidualBytes => {
                "Device memory that the engine kept when it was last asleep at level 1 or 2; absent while unknown."
            }
            Name::EngineHostBytes => {
                "Resident host memory of the engine's process tree; absent while unknown."
            }
            Name::EngineRestarts => {
                "Processes started for the engine since the agent began, but for the first."
            }
            Name::CanaryMismatches => "Wakes after which the engine's tokens were not the recorded ones.",
            Name::Operations => "Operations that ended, by kind and outcome: ok, failed or cancelled.",
            Name::Incidents => {
                "What happened without being asked for, by code; no engine where none is concerned."
            }
            Name::GatewayHeld => "Requests that wait in the gateway for the engine.",
            Name::GatewayHold => {
                "How long requests waited in the gateway that were let in after all; those that need not wait are not \
                 counted."
            }
            Name::GatewayInFlight => "Requests that the gateway has on the engine, frozen ones included.",
            Name::GatewayRefusals => "Requests that the gateway refused, by the answer's code.",
            Name::Switching => {
                "Time that switches took on the device, waiting for running requests left out; its rate is the share of \
                 time lost to switching."
            }
            Name::TenantSwitching => {
                "Time of the switches that a tenant's requests caused, waiting for running requests left out."
            }
            Name::Handoff => {
                "From the acceptance of a handoff or activation to the incoming engine's first token, drain left out."
            }
            Name::HandoffOverhead => {
                "The part of a handoff in which neither engine worked for it, by the engines' own clock: the agent's."
            }
            Name::HandoffPhase => "Duration of one phase of a handoff or activation, drain included.",
            Name::DeviceUsedBytes => "Memory used on the device by everybody; absent while unknown.",
            Name::DeviceTotalBytes => "Memory of the device.",
            Name::DeviceReadingAge => "Time since the device's memory was last read.",
            Name::SamplesMissed => "Samples for which the device's memory could not be read.",
            Name::JournalCommit => "Time for which an event waited to be durable.",
            Name::JournalFailing => "1 while the journal cannot be written: events are only logged.",
            Name::JournalLostEvents => {
                "Events that are in the log alone, because the journal could not be written."
            }
            Name::JournalDroppedSamples => {
                "Samples that were not written: the journal was behind, or failed."
            }
        }
    }
}
