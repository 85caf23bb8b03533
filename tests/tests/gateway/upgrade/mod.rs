//! The gateway while agents come and go: nobody is refused a connection, nobody is cut off who can be answered, and
//! nobody waits for what does not come.
//!
//! | file | what |
//! |---|---|
//! | `through` | clients that never stop, through agents that are restarted and killed |
//! | `leaving` | what an agent that goes does with those who wait, who run, and who take too long |
//! | `successor` | an agent that starts the next one, and passes on what runs |
//! | `kept` | connections that the service manager keeps while there is no agent |
//! | `given` | sockets that are handed over: used, held against the configuration, kept from engines |

mod given;
mod kept;
mod leaving;
mod successor;
mod through;
