//! The agent ends, and another one takes over: whoever served serves on, what was under way is finished or rolled back.

mod adopting;
mod enumerate;
mod everywhere;
mod simple;
