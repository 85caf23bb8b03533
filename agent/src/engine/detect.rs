//! What an engine can do: its release from `/version`, its routes from `/openapi.json`, its workers from whoever tells.
//!
//! Routes are looked up, not guessed from the release: development mode may be off, a front end may lack one. Where the
//! document is switched off (`--disable-fastapi-docs`) each route is asked for with `GET`, which changes nothing: they
//! all want `POST`, so 405 means that the route is there and 404 that it is not (seen on 0.32).

use super::http::{Budget, Reply};
use super::{Client, Error};
use hotbunk_core::capability::{Capabilities, Routes, Version};
use hotbunk_measure::error::shorten;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use std::time::Duration;

/// Where the routes were learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutesFrom {
    /// `/openapi.json`.
    OpenApi,
    /// One harmless `GET` for each.
    Probing,
}

/// Where the number of workers was learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkersFrom {
    /// The caller knew it.
    Configured,
    /// `/get_world_size` (a development route of recent releases).
    WorldSize,
    /// `/server_info`. Its first answer takes seconds: vLLM collects the machine's facts for it.
    ServerInfo,
    /// Nobody told. Two are assumed: taking several workers for one would allow repairs that corrupt the engine
    /// (CONTRACT fact 8), taking one for several only costs a restart.
    Assumed,
}

/// What was found, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Detected {
    /// What may be asked of the engine.
    pub capabilities: Capabilities,
    /// Where the routes come from.
    pub routes_from: RoutesFrom,
    /// Where the number of workers comes from.
    pub workers_from: WorkersFrom,
}

#[derive(Deserialize)]
struct VersionBody {
    version: String,
}

#[derive(Deserialize)]
struct OpenApi {
    paths: BTreeMap<String, BTreeMap<String, IgnoredAny>>,
}

#[derive(Deserialize)]
struct WorldSize {
    world_size: u16,
}

#[derive(Deserialize)]
struct ServerInfo {
    vllm_config: String,
}

impl OpenApi {
    fn posts(&self, path: &str) -> bool {
        self.paths.get(path).is_some_and(|methods| methods.contains_key("post"))
    }

    fn routes(&self) -> Routes {
        routes(|path| self.posts(path))
    }
}

/// The routes that a supervisor uses, all of them `POST`.
const CONTROL: [&str; 8] = [
    "/sleep",
    "/wake_up",
    "/collective_rpc",
    "/release_kv_cache_memory",
    "/reset_prefix_cache",
    "/pause",
    "/resume",
    "/abort_requests",
];

fn routes(has: impl Fn(&str) -> bool) -> Routes {
    Routes {
        sleep: has("/sleep") && has("/wake_up"),
        collective_rpc: has("/collective_rpc"),
        release_kv_cache: has("/release_kv_cache_memory"),
        reset_prefix_cache: has("/reset_prefix_cache"),
        pause: has("/pause") && has("/resume"),
        abort_requests: has("/abort_requests"),
    }
}

/// Tensor × pipeline parallel size out of the configuration as it is printed (`tensor_parallel_size=2, …` by vLLM,
/// `"tensor_parallel_size":2` where somebody prints it as JSON).
fn workers_in(config: &str) -> Option<u16> {
    let size = |name: &str| {
        let (_, after) = config.split_once(name)?;
        let digits = after.trim_start_matches(['"', ':', '=', ' ']);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse::<u16>().ok()
    };
    size("tensor_parallel_size")?.checked_mul(size("pipeline_parallel_size").unwrap_or(1))
}

impl Client {
    /// Finds out what the engine can do. `workers` is the tensor × pipeline parallel size where the caller knows it.
    /// The deadline is for all questions together.
    ///
    /// # Errors
    /// Where `/version` or the routes cannot be had; the engine is then as good as not ready.
    pub async fn detect(&self, workers: Option<u16>, deadline: Duration) -> Result<Detected, Error> {
        let budget = Budget::new(deadline);
        let version = self.version(budget.left()).await?;
        let (routes, routes_from, tells_world_size) = match self.openapi(budget).await? {
            Some(api) => (api.routes(), RoutesFrom::OpenApi, api.paths.contains_key("/get_world_size")),
            None => (self.probe_routes(budget).await?, RoutesFrom::Probing, true),
        };
        let (workers, workers_from) = match workers {
            Some(n) => (n, WorkersFrom::Configured),
            None => self.workers(tells_world_size, budget).await,
        };
        Ok(Detected { capabilities: Capabilities { version, routes, workers }, routes_from, workers_from })
    }

    /// Asks `/version`.
    ///
    /// # Errors
    /// As every question; [`Error::Foreign`] where the body names no version.
    pub async fn version(&self, deadline: Duration) -> Result<Version, Error> {
        let route = "GET /version";
        let body = self.get("/version", deadline).await.ok(route)?;
        let text = serde_json::from_slice::<VersionBody>(&body).map(|v| v.version).ok();
        text.as_deref().and_then(Version::parse).ok_or_else(|| Error::Foreign {
            route: route.into(),
            message: format!("no version in {}", shorten(&String::from_utf8_lossy(&body))),
        })
    }

    /// `None` where the server has no such document.
    async fn openapi(&self, budget: Budget) -> Result<Option<OpenApi>, Error> {
        let route = "GET /openapi.json";
        match self.get("/openapi.json", budget.left()).await.ok(route) {
            Ok(body) => Ok(serde_json::from_slice::<OpenApi>(&body).ok()),
            Err(Error::Refused { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) async fn probe_routes(&self, budget: Budget) -> Result<Routes, Error> {
        let mut there = Vec::new();
        for path in CONTROL {
            match self.get(path, budget.left()).await {
                Reply::Answer { status: 405, .. } => there.push(path),
                Reply::Answer { .. } => {}
                other => {
                    other.ok(&format!("GET {path}"))?;
                }
            }
        }
        Ok(routes(|path| there.contains(&path)))
    }

    async fn workers(&self, tells_world_size: bool, budget: Budget) -> (u16, WorkersFrom) {
        if tells_world_size
            && let Ok(body) = self.get("/get_world_size", budget.left()).await.ok("")
            && let Ok(WorldSize { world_size: n @ 1.. }) = serde_json::from_slice(&body)
        {
            return (n, WorkersFrom::WorldSize);
        }
        if let Ok(body) = self.get("/server_info", budget.left()).await.ok("")
            && let Ok(info) = serde_json::from_slice::<ServerInfo>(&body)
            && let Some(n @ 1..) = workers_in(&info.vllm_config)
        {
            return (n, WorkersFrom::ServerInfo);
        }
        (2, WorkersFrom::Assumed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_as_0_32_prints_it() {
        let text = "model='/m', load_format=auto, tensor_parallel_size=2, pipeline_parallel_size=3, data_parallel_size=1";
        assert_eq!(workers_in(text), Some(6));
        assert_eq!(workers_in("tensor_parallel_size=4"), Some(4));
        assert_eq!(workers_in(r#"{"tensor_parallel_size":3,"x":1}"#), Some(3));
        assert_eq!(workers_in("model='/m'"), None);
        assert_eq!(workers_in("tensor_parallel_size=None"), None);
        assert_eq!(workers_in("tensor_parallel_size=65535, pipeline_parallel_size=9"), None);
    }

    #[test]
    fn the_document_of_real_0_32_has_every_route() {
        let api: OpenApi = serde_json::from_str(include_str!("fixtures/openapi-0.32.0.json")).unwrap();
        let all = Routes {
            sleep: true,
            collective_rpc: true,
            release_kv_cache: true,
            reset_prefix_cache: true,
            pause: true,
            abort_requests: true,
        };
        assert_eq!(api.routes(), all);
        assert!(!api.posts("/is_sleeping"), "a GET route is no POST route");
    }
}
