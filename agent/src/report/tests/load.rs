//! The load stages and measuring windows of a synthetic run.

use super::journal::{Journal, MS, wall};
use crate::journal::record::{CycleStep, Outcome, Record};
use hotbunk_core::time::Moment;

impl Journal {
    /// A load stage: requests of 128 tokens one after the other; `broken` of them end early.
    pub(super) fn load(&mut self, name: &str, stage: &str, concurrency: u32, token: u64, broken: u32) {
        let step = CycleStep::Load {
            engine: name.to_owned(),
            stage: stage.to_owned(),
            concurrency,
            rounds: 2,
            requests: 8,
            output_tokens: 128,
        };
        let index = self.next_step;
        let at = format!("models.{name}.performance.{stage}-{concurrency}");
        self.step(step, |j| {
            for round in 0..2 {
                let began = Moment(j.now);
                for request in 0..8 {
                    let broken = round == 1 && request < broken;
                    let sent = j.now;
                    let ttft = (90 + u64::from(request) + u64::from(round)) * MS;
                    j.advance(ttft + 127 * token);
                    if !broken {
                        j.choose(&format!("{at}.ttft_s"), ttft);
                        j.choose(&format!("{at}.tpot_s"), token);
                    }
                    j.record(Record::LoadRequest {
                        index,
                        round,
                        ok: !broken,
                        error: broken.then(|| "cut".to_owned()),
                        began: Moment(sent),
                        first_token: Some(Moment(sent + ttft)),
                        ended: Moment(j.now),
                        output_tokens: (!broken).then_some(128),
                        prompt_tokens: (!broken).then_some(26),
                    });
                }
                let ended = Moment(j.now);
                j.choose(&format!("{at}.elapsed"), ended.0 - began.0);
                j.record(Record::LoadRound { index, round, began, ended });
            }
            Outcome::Ok
        });
    }

    /// What `body` does is a stage; its window is widened by 2 s.
    pub(super) fn window(&mut self, name: &str, body: impl FnOnce(&mut Journal)) {
        let start = wall(self.now) - 2.0;
        body(self);
        let end = wall(self.now) + 2.0;
        self.record(Record::Window { name: name.to_owned(), start, end });
    }
}
