//! What the simulation does without anybody having seen it on a real vLLM.

/// Simulated behaviour that rests on the source, on a fake driver or on somebody's report alone; one line each, with
/// the contract's section and mark.
pub const UNVERIFIED: &[&str] = &[
    "Up to 0.16 a request that reaches a sleeping engine kills the engine core (fact 4 [src][iss])",
    "From 0.17 to 0.23 any wake un-pauses the scheduler, and the next step on unmapped KV kills it (fact 5 [src][iss])",
    "Up to 0.27 waking mapped pages again answers 500 and leaks their memory (fact 6 [sim])",
    "Up to 0.27 a second sleep of the worker fails on unmapped pages (3.4 [sim])",
    "From 0.17 to 0.24 a sleep that aborts or freezes running requests kills the engine core (1.2 [src], #45520 [iss])",
    "Up to 0.26 waking kv_cache first after level 2 kills the engine core (1.3 [iss])",
    "Up to 0.15 reload_weights of quantised weights answers 500 (1.3 [iss])",
    "From 0.28 a failed wake goes on where it stopped (3.4 [sim])",
    "After the memory assertion the next request kills the engine core (3.4: control flow [run], GPU not)",
    "The repair collective_rpc wake_up restores the worker after the assertion (3.4 [sim])",
    "An out-of-memory half way through a wake leaves the pages mapped so far (3.4 [run][sim])",
    "/release_kv_cache_memory frees exactly the KV cache's bytes (1.1 [src]; the call itself [run])",
    "/sleep from parked or after a partial wake really sleeps from 0.31 (1.2 [src]; on CPU [run])",
    "A level-2 wake without reload yields other tokens and status 200 (1.3 [iss])",
    "Up to 0.9.2 a prefix-cache hit after a wake yields other tokens (1.2 [src][iss])",
    "With more than one worker every collective call after a failure answers 500 (fact 8 [iss]; real ones may read \
     stale replies instead)",
    "Start-up's assertion on neighbours and its wrong KV size (3.5 [src][iss])",
    "reload_weights into unmapped weights kills the engine core (1.3 [src])",
    "The order weights, then KV cache, in which memory comes and goes (3.1 [src])",
    "0.12 to 0.16: /pause holds new requests in the API server (1.2 [src])",
    "Up to 0.31 the body of a 500 is plain text (no mark: only 0.32's body was seen)",
    "The times of unmapping, mapping and copying apart (profile: estimated; only their sums are measured)",
    "The first answer after a wake is 6 times slower where nothing was served before the first sleep (no line of the contract)",
];
