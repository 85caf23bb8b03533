//! What `doctor` says of a running node.

use hotbunk_api::doctor::{DoctorCheck, DoctorVerdict};
use hotbunk_api::words::Tier;
use hotbunk_tests::{Agent, Setup, Switch};

async fn checks(agent: &Agent) -> Vec<DoctorCheck> {
    agent.api.doctor().await.unwrap().checks
}

fn named<'c>(checks: &'c [DoctorCheck], name: &str) -> &'c DoctorCheck {
    checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no {name} in {checks:#?}"))
}

/// What was detected, what follows from it, which options are known bad with this release, and what the pair would do,
/// there and back. The same options are none of another release's business.
#[tokio::test]
async fn it_says_what_was_detected_and_what_the_pair_would_do() {
    let env =
        "env = { VLLM_SERVER_DEV_MODE = \"1\", PYTORCH_CUDA_ALLOC_CONF = \"expandable_segments:True\" }";
    for (version, repair, has_row) in [
        ("0.20", "woken behind its engine: POST /collective_rpc {\"method\":\"wake_up\"}", true),
        ("0.31", "the same call once more", false),
    ] {
        let node = Setup::pair().each(|e| e.version(version)).engine("A", |e| e.line(env)).build();
        let agent = node.start().await;
        agent.until_up().await;
        // Until a leg has been done its time is worked out from bytes: a first level-1 sleep pins memory and is no measure
        // of the next, while parking has been rehearsed.
        let before = checks(&agent).await;
        let first = &named(&before, "switch to B").found;
        assert_eq!(first.contains("(estimated)"), first.contains("at level1"), "{before:#?}");
        assert!(first.contains("at level1") || !has_row, "{before:#?}");
        for to in ["B", "A"] {
            agent.done(Switch::to(to).leave(Tier::Level1)).await;
        }
        let checks = checks(&agent).await;
        let vllm = named(&checks, "engine A: vLLM");
        assert!(vllm.found.starts_with(version), "{vllm:?}");
        assert!(vllm.found.contains("1 workers (configured); routes from /openapi.json"), "{vllm:?}");
        let level1 = named(&checks, "engine A: level1");
        assert_eq!(level1.found, "in: POST /sleep?level=1&mode=wait; out: POST /wake_up");
        let level2 = named(&checks, "engine A: level2");
        assert!(level2.found.contains("POST /wake_up?tags=weights, then POST /collective_rpc"), "{level2:?}");
        let parked = named(&checks, "engine A: parked");
        match has_row {
            true => assert!(
                parked.verdict == DoctorVerdict::Skipped && parked.found.contains("release_kv_cache"),
                "{parked:?}"
            ),
            false => assert!(parked.found.contains("POST /release_kv_cache_memory"), "{parked:?}"),
        }
        assert!(named(&checks, "engine A: after a failed sleep").found.contains(repair), "{checks:#?}");
        let options = named(&checks, "engine A: options");
        assert_eq!(options.verdict == DoctorVerdict::Warning, has_row, "{options:?}");
        if has_row {
            assert!(options.found.contains("below 0.24") && options.found.contains("[contract 4 row 31]"));
            assert!(options.help.is_some());
        }
        assert_eq!(named(&checks, "engine B: options").verdict, DoctorVerdict::Ok);

        let there = named(&checks, "switch to B");
        assert!(
            there.found.contains("first token in about") && there.found.contains("(measured)"),
            "{there:?}"
        );
        let back = named(&checks, "and back from B to A");
        assert!(back.found.contains("wake A from"), "{back:?}");
        // Whose memory is whose, by the device's own list.
        let listed = named(&checks, "device gpu0: processes");
        let a = node.core("A").pid;
        assert!(listed.found.contains(&format!("{a} (A) ")), "{listed:?}");
        agent.stop().await;
    }
}
