//! What operators do while all runs: another configuration file, a server of theirs on an engine's port.

use crate::planted;
use crate::system::gateway::Gateway;
use crate::system::revised::{Edit, Revisions};
use crate::system::{Config, UNIT};
use crate::{everything, finds, holds, killed, size, switch, two};
use hotbunk_core::event::Request;
use hotbunk_core::ids::EngineId;
use hotbunk_core::spec::DrainPolicy;
use hotbunk_core::tier::Tier;

/// The pair under a file that changes: what each engine is started with (another KV cache, so other bytes), where it
/// rests, whether it is there, how many may be awake.
fn revised(capacity: u64, menu: &[Edit], edits: u8) -> Config {
    let mut config = two(31, capacity, Tier::Level1);
    config.engines[0].other_kv = 2 * UNIT;
    config.engines[1].other_kv = 3 * UNIT;
    config.revisions = Revisions { menu: menu.to_vec(), edits, later: 0 };
    Config { commands: 1, faults: 0, deaths: false, ..config }
}

const PROCESS: [Edit; 2] = [Edit::Process(0), Edit::Process(1)];

#[test]
fn a_changed_engine_is_restarted_at_its_idle_moment_and_one_taken_back_is_not() {
    holds("file, processes", revised(45, &PROCESS, 2));
    let mut config = revised(45, &[Edit::Process(0), Edit::Own(0), Edit::Own(1)], 3);
    config.menu = vec![switch(1, None)];
    holds("file, processes and the agent's own", config);
    // At once, by an operator.
    let mut config = revised(40, &PROCESS, 2);
    config.menu = vec![everything(0).swap_remove(5), everything(1).swap_remove(5)];
    holds("file, restarted now", config);
}

#[test]
fn a_changed_file_and_everything_that_goes_wrong() {
    let config = revised(45, &[Edit::Process(0), Edit::Process(1), Edit::Listed(1)], 1);
    holds("file, a fault", Config { faults: 1, deaths: true, ..config.clone() });
    holds("file, killed", killed(Config { commands: 1, ..config.clone() }));
    holds("file, killed and a fault", killed(Config { faults: 1, commands: 0, ..config }));
    let config = revised(40, &[Edit::Process(0), Edit::Listed(0)], 2);
    holds("file, killed, 40", killed(Config { commands: 1, ..config }));
}

#[test]
fn engines_come_and_go() {
    let menu = [Edit::Listed(0), Edit::Listed(1)];
    holds("file, removed and added", revised(45, &menu, 3));
    let config = revised(40, &[Edit::Process(0), Edit::Listed(0), Edit::Listed(1)], 2);
    holds(
        "file, removed while it is started, moved or frozen",
        Config { drain: DrainPolicy::Freeze, ..config },
    );
    let mut config = revised(45, &[Edit::Listed(1), Edit::Listed(2)], 2);
    config.engines.push(crate::engine(size(4, 2, 1), 31, Tier::Stopped));
    config.revisions.later = 1;
    holds("file, a new one", config.clone());
    holds("file, a new one, killed", killed(Config { commands: 0, ..config }));
}

#[test]
fn more_or_fewer_may_be_awake() {
    let mut config = revised(45, &[Edit::Awake(0), Edit::Process(1)], 3);
    config.menu = vec![switch(1, None), Request::Wake(EngineId(1))];
    holds("file, max_awake", config);
}

#[test]
fn a_changed_file_puts_nobody_out() {
    let mut config = revised(45, &[Edit::Process(0), Edit::Listed(0), Edit::Process(1)], 2);
    config.gateway = Gateway { asks: 2, ..Gateway::default() };
    holds("file, requests", Config { commands: 0, ..config.clone() });
    holds(
        "file, requests, killed",
        killed(Config { commands: 0, gateway: Gateway { asks: 1, ..Gateway::default() }, ..config }),
    );
}

/// B's port is held by a server that somebody else has started, of the settings that are configured or of others.
fn stranger(capacity: u64, other: bool) -> Config {
    let mut config = two(31, capacity, Tier::Stopped);
    config.engines[1].stranger = Some(other);
    config.engines[1].other_kv = 3 * UNIT;
    config.menu = vec![Request::Adopt(EngineId(1))];
    Config { commands: 1, faults: 1, places_are_taken: true, ..config }
}

#[test]
fn a_server_of_somebody_else_is_taken_over_or_left_alone() {
    for (capacity, other) in [(45, false), (45, true), (43, false)] {
        let name = format!("stranger, {capacity}{}", if other { ", other settings" } else { "" });
        let config = stranger(capacity, other);
        holds(&name, Config { faults: 2, ..config.clone() });
        holds(&format!("{name}, killed"), killed(config.clone()));
        let mut config = Config { commands: 2, ..config };
        config.menu.push(switch(1, None));
        config.menu.extend(everything(1));
        holds(&format!("{name}, every command"), config);
    }
}

#[test]
fn a_server_of_somebody_else_may_come_at_any_time() {
    let mut config = stranger(45, false);
    config.engines[1].stranger = None;
    config.menu.extend([everything(1).swap_remove(3), everything(1).swap_remove(4), switch(1, None)]);
    let config = Config { arrivals: true, deaths: false, ..config };
    holds("stranger comes", Config { commands: 2, faults: 2, ..config.clone() });
    holds("stranger comes, killed", killed(Config { commands: 2, ..config }));
}

#[test]
fn finds_what_a_changed_file_must_not_do() {
    let config = revised(45, &PROCESS, 2);
    finds("file not heard", planted::deaf_to_the_file(), config.clone(), "older settings");
    finds(
        "judged by what was configured last",
        planted::judged_by_the_last_file(),
        config.clone(),
        "for nothing",
    );
    let mut config = revised(45, &[Edit::Process(0)], 1);
    config.gateway = Gateway { asks: 1, ..Gateway::default() };
    finds("nobody seems to be served", planted::blind_to_use(), config, "put out");
    let config = revised(45, &[Edit::Listed(1)], 1);
    finds("a removal not heard", planted::deaf_to_removals(), config, "still there");
}

#[test]
fn finds_hands_on_somebody_elses_server() {
    let config = stranger(45, false);
    finds("held is believed to be ours", planted::ours_at_once(), config.clone(), "is not");
    let mut again = Config { commands: 2, faults: 1, arrivals: true, deaths: false, ..config.clone() };
    again.menu.push(everything(1).swap_remove(4));
    finds("who comes again is a leftover", planted::deaf_to_strangers(), again, "is taken for ours");
    let config = killed(Config { faults: 0, ..config });
    finds("found is believed to be ours", planted::ours_when_found(), config, "");
}
