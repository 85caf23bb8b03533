//! What is refused, and in which words. Each snapshot is what an operator would read.

use super::*;
use crate::config::checked::GIB;

macro_rules! snapshot {
    ($text:expr) => {
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!($text)
        })
    };
}

#[test]
fn everything_at_once() {
    snapshot!(rendered(
        r#"
[node]
sample_interval = 100
state_dri = "/srv/hotbunk"

[[device]]
name = "gpu0"
uuid = "GPU-1"
reserve = "1 GB"

[[engine]]
name = "A"
model = "Qwen/Qwen3.8-27B-FP8"
device = "gpu1"
port = 8101
command = ["vllm", "serve", "Qwen/Qwen3.8-27B-FP8", "--host", "127.0.0.1", "--port", "8102"]

[[engine]]
name = "A"
model = "b"
port = 8101
host = "0.0.0.0"

[policy]
strategy = "fastest"
awake_at_start = "C"
"#
    ));
}

#[test]
fn syntax_errors_all_of_them() {
    snapshot!(rendered("[node]\nlog_filter = \"info\n\n[[engine]]\nname = A\nport = 8101\nprot = 1\n"));
}

#[test]
fn keys_that_stand_twice() {
    snapshot!(rendered("[node]\nlog_filter = \"info\"\nlog_filter = \"debug\"\n"));
}

#[test]
fn an_empty_file() {
    snapshot!(rendered(""));
}

#[test]
fn values_of_the_wrong_type() {
    snapshot!(rendered(
        r#"
device = { name = "gpu0", index = 0 }

[node]
log_format = "xml"
host_memory_reserve = 4
metrics_listen = "localhost:9464"
log_filter = "info,=="
reconcile_interval = "5 sec."
sample_interval = "1ms"

[[engine]]
name = "A b"
model = ""
port = 70000
command = "vllm serve"
autostart = "yes"
weights = "28 gib"
host_memory = "much"
start_timeout = "10M"
stop_grace = "10"
aliases = ["x", 1]
env = { VLLM_SERVER_DEV_MODE = 1 }
"#
    ));
}

#[test]
fn engines_that_get_in_each_other_s_way() {
    snapshot!(rendered(
        &SOUND
            .replace("8102", "8101")
            .replace("model = \"b\"", "model = \"a\"\naliases = [\"b\", \"b\"]")
            .replace("name = \"B\"", "name = \"A\"")
    ));
}

#[test]
fn devices() {
    snapshot!(rendered(&with(
        "[[device]]\nname = \"gpu0\"\nindex = 0\n",
        r#"
[[device]]
name = "gpu0"
index = 0
uuid = "0"
max_awake = 0

[[device]]
name = "gpu1"
capacity = "1 GiB"
reserve = "1 GiB"

[[device]]
name = "none"
index = 0
"#
    )));
}

#[test]
fn engines_that_can_be_reached_from_outside() {
    snapshot!(rendered(&SOUND.replacen("\"127.0.0.1\"", "\"0.0.0.0\"", 1).replacen(
        "\"--host\", \"127.0.0.1\", ",
        "",
        1
    )));
}

#[test]
fn engines_that_cannot_sleep() {
    snapshot!(rendered(
        &SOUND
            .replacen(", \"--enable-sleep-mode\"]", "]\nlevels = [\"level2\"]", 1)
            .replacen(
                "port = 8102\n",
                "port = 8102\nrest_tier = \"awake\"\nlevels = [\"parked\", \"level1\"]\n",
                1
            )
            .replacen(
                "command = [\"vllm\", \"serve\", \"b\"",
                "env.X = \"1\"\ncommand = [\"vllm\", \"serve\", \"b\"",
                1
            )
            .replace("\nenv = { VLLM_SERVER_DEV_MODE = \"1\" }", "")
    ));
}

#[test]
fn flags_that_do_not_go_with_sleeping() {
    snapshot!(rendered(
        &SOUND
            .replacen(
                "\"--enable-sleep-mode\"]",
                "\"--enable-sleep-mode\", \"--kv-offloading-backend\", \"native\", \"--kv_cache_dtype=fp8\", \
                 \"--enable-lora\", \"--speculative-config\", \"{}\", \"--load-format\", \"gguf\", \
                 \"--shutdown-timeout\", \"15\"]",
                1
            )
            .replacen(
                "VLLM_SERVER_DEV_MODE = \"1\" }",
                "VLLM_SERVER_DEV_MODE = \"1\", PYTORCH_CUDA_ALLOC_CONF = \"expandable_segments:True\" }",
                1
            )
    ));
}

#[test]
fn commands_that_say_something_else() {
    snapshot!(rendered(
        &SOUND
            .replacen("port = 8101\n", "port = 8103\nkv_cache = \"2GiB\"\nworkers = 2\ngpu_memory_utilization = 0.5\n", 1)
            .replacen(
                "\"--enable-sleep-mode\"]",
                "\"--enable-sleep-mode\", \"--kv-cache-memory-bytes\", \"4G\", \"--gpu-memory-utilization\", \"0.9\"]",
                1
            )
            .replacen("\"serve\", \"b\"", "\"serve\", \"org/b\"", 1)
            .replacen(
                "\"8102\", \"--enable-sleep-mode\"]",
                "\"8102\", \"--enable-sleep-mode\", \"--kv-cache-memory-bytes\", \"4GiB\"]",
                1
            )
    ));
}

#[test]
fn commands_hidden_in_a_shell() {
    snapshot!(rendered(&with(
        r#"command = ["vllm", "serve", "a", "--host", "127.0.0.1", "--port", "8101", "--enable-sleep-mode"]"#,
        r#"command = ["/bin/sh", "-c", "vllm serve a --port 8101"]"#
    )));
}

#[test]
fn policy_schedules_and_the_rest() {
    snapshot!(rendered(&format!(
        r#"{SOUND}
[policy]
leave = "awake"
drain_deadline = "soon"
awake_at_start = ["A", "B"]

[journal]
retention = "1s"
max_size = "1KiB"

[[schedule]]
name = "nightly"
cron = "30 25 * * *"
plan = "referense"

[[schedule]]
name = "nightly"
plan = "handoffs"

[simulated]
speed = 0
"#
    )));
}

#[test]
fn a_socket_path_that_the_kernel_would_refuse() {
    let deep = "/srv/".to_owned() + &"a-very-deep-folder/".repeat(6);
    snapshot!(rendered(&format!("[node]\nruntime_dir = \"{deep}\"\n{SOUND}")));
}

#[test]
fn device_memory_that_cannot_be_had() {
    snapshot!(rendered(
        &SOUND
            .replace("index = 0\n", "index = 0\ncapacity = \"46068MiB\"\nmax_awake = 2\n")
            .replace("port = 8101\n", "port = 8101\nweights = \"42GiB\"\nkv_cache = \"4GiB\"\n")
            .replace("port = 8102\n", "port = 8102\nweights = \"3.5GiB\"\nkv_cache = \"4GiB\"\nstart_peak = \"46GiB\"\ngpu_memory_utilization = 0.99\n")
    ));
}

#[test]
fn shares_that_add_up_to_more_than_a_device() {
    snapshot!(rendered(
        &SOUND
            .replace("index = 0\n", "index = 0\nmax_awake = 2\n")
            .replace("port = 8101\n", "port = 8101\ngpu_memory_utilization = 0.7\n")
            .replace("port = 8102\n", "port = 8102\ngpu_memory_utilization = 0.6\n")
    ));
}

#[test]
fn host_memory_that_is_not_there() {
    let text = SOUND
        .replace("port = 8101\n", "port = 8101\nweights = \"28GiB\"\n")
        .replace("port = 8102\n", "port = 8102\nhost_memory = \"11GiB\"\n");
    let judge = |gib: u64| {
        let facts = Facts { host_memory_total: Some(gib * GIB), ..Facts::default() };
        match parse(&text, Path::new("hotbunk.toml"), &facts) {
            Ok((_, warnings)) => format!("{gib} GiB: accepted\n{warnings}"),
            Err(refused) => format!("{gib} GiB: refused\n{refused}"),
        }
    };
    snapshot!([judge(48), judge(64), judge(96)].join("\n"));
}

#[test]
fn a_file_that_is_not_there() {
    let refused = load(Path::new("/nonexistent/hotbunk.toml"), &Facts::default()).unwrap_err();
    snapshot!(refused.to_string());
}

#[test]
fn a_schedule_s_plan_file_is_read_too() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("mine.toml"), "[[step]]\naction = \"handoffs\"\ncount = 3\n").unwrap();
    let file = dir.path().join("hotbunk.toml");
    std::fs::write(
        &file,
        format!("{SOUND}\n[[schedule]]\nname = \"n\"\ncron = \"0 3 * * *\"\nplan = \"mine.toml\"\n"),
    )
    .unwrap();
    let refused = load(&file, &Facts::default()).unwrap_err();
    assert_eq!(refused.problems().len(), 1, "{refused}");
    let problem = &refused.problems()[0];
    assert_eq!((problem.code, problem.key.as_str()), ("bad_plan", "schedule[0].plan"));
    assert!(problem.message.contains("neither A nor B is known to be awake"), "{}", problem.message);
}

#[test]
fn machines_read_the_same_list() {
    let refused = check(&with("port = 8101\n", "prot = 8101\n")).unwrap_err();
    snapshot!(serde_json::to_string_pretty(refused.problems()).unwrap());
}

#[test]
fn colours_are_for_terminals_only() {
    let refused = check("x = 1").unwrap_err();
    assert!(!refused.render(false).contains('\x1b'));
    assert!(refused.render(true).contains('\x1b'));
}

#[test]
fn one_mistake_is_reported_once() {
    // What is unreadable is not reported as missing as well.
    assert_eq!(codes(&with("name = \"A\"", "name = 1")), ["wrong_type"]);
    assert_eq!(codes(&with("model = \"a\"", "model = 1")), ["wrong_type"]);
    assert_eq!(codes(&with("port = 8101\n", "port = \"8101\"\n")), ["wrong_type"]);
    assert_eq!(codes(&with("port = 8101\n", "device = 0\n")), ["wrong_type"]);
    assert_eq!(codes(&with("index = 0", "index = \"0\"")), ["wrong_type"]);
}

#[test]
fn extremes_are_answered() {
    // Each of these has brought down a parser, or its arithmetic, somewhere.
    let deep = "[".repeat(100_000);
    let nested = format!("x = {}{}", "[".repeat(100_000), "]".repeat(100_000));
    let inline = format!("x = {}1{}", "{a = ".repeat(50_000), "}".repeat(50_000));
    for text in [deep.as_str(), &nested, &inline, "\u{feff}", "\0", "x = \"\\ud800\""] {
        assert!(check(text).is_err());
    }
    assert_eq!(codes(&SOUND.replace("8101", "65535").replace("8102", "65535")), ["duplicate_port"]);
    let sizes = "port = 8101\nweights = \"16777215TiB\"\nkv_cache = \"16777215TiB\"\n";
    assert_eq!(
        codes(&with("port = 8101\n", sizes)),
        Vec::<&str>::new(),
        "nothing is known that they could exceed"
    );
    let known = SOUND.replace("index = 0\n", "index = 0\ncapacity = \"16777215TiB\"\n").replacen(
        "port = 8101\n",
        sizes,
        1,
    );
    assert_eq!(codes(&known), ["impossible_memory"]);
    let many: String = (0..300).map(|i| format!("[[engine]]\nname = \"e{i}\"\nport = 65535\n")).collect();
    assert!(check(&many).unwrap_err().errors() > 300);
}

#[test]
fn containers_that_nobody_could_end_or_find() {
    let command =
        r#"command = ["vllm", "serve", "a", "--host", "127.0.0.1", "--port", "8101", "--enable-sleep-mode"]"#;
    let docker = |flags: &str, table: &str| {
        let image = r#""vllm/vllm-openai:v0.31.0", "a", "--host", "127.0.0.1", "--port", "8101", "--enable-sleep-mode""#;
        // What is published must be reached from outside the container.
        let image =
            image.replacen("127.0.0.1", if flags.contains("-p") { "0.0.0.0" } else { "127.0.0.1" }, 1);
        let by = format!(
            "command = [\"docker\", \"run\", {flags}, \"-e\", \"VLLM_SERVER_DEV_MODE=1\", {image}]\n{table}"
        );
        with(command, &by)
    };
    let shared = r#""--rm", "--network", "host""#;
    let stop = r#"container = { stop = ["docker", "stop", "A"] }"#;
    let text: String = [
        docker(shared, ""),
        docker(shared, "container = { stop = [] }"),
        docker(shared, "container = { kill = [\"docker\", \"kill\", \"A\"] }"),
        docker(r#""--rm", "-p", "8101:8101""#, stop),
        docker(r#""--rm", "-p", "127.0.0.1:9000:8101""#, stop),
        docker(r#""--rm", "-p", "127.0.0.1:8101:8000""#, stop),
        docker(r#""--rm", "-p", "127.0.0.1:8101:8101""#, stop).replacen("0.0.0.0", "127.0.0.1", 1),
        docker(r#""-d", "--restart", "always", "--name", "A", "--network", "host""#, stop),
        docker(shared, stop),
    ]
    .iter()
    .map(|text| format!("{}\n-----\n", rendered(text)))
    .collect();
    snapshot!(text);
}

#[test]
fn turns_that_cannot_be_taken() {
    let turns = |of_a: &str| with("port = 8101\n", &format!("port = 8101\n{of_a}"));
    snapshot!(rendered(&turns(
        r#"weight = 0
max_in_flight = 0
max_wait = "1ms"
pinned = true
idle = [{ after = "5m", tier = "level1" }, { after = "30s", tier = "parkd" }, { after = "30s", tier = "parked" }, { tier = "awake" }]
"#
    )));
}

#[test]
fn bounds_that_cannot_all_be_met() {
    snapshot!(rendered(&with(
        "port = 8101\n",
        "port = 8101\nmax_wait = \"2s\"\nweights = \"8GiB\"\nkv_cache = \"2GiB\"\n"
    )));
}

#[test]
fn gateways_and_tenants() {
    let digest = "0".repeat(64);
    snapshot!(rendered(&format!(
        r#"{SOUND}
[gateway]
listen = "127.0.0.1:8101"
max_body = "1B"
hold_bytes = "8MiB"
threads = 0
tenant_heder = "X"
tenant_header = "not a header"

[[tenant]]
name = "red"
key_sha256 = ["{digest}", "sk-secret"]
weight = 2000
requests_per_second = 0
burst = 4

[[tenant]]
name = "red"
key_sha256 = "{digest}"
max_in_flight = 0
model = [{{ name = "aa", tokens_per_minute = 7 }}]

[[tenant]]
name = "default"
header = "me"
burst = 4
"#
    )));
}

#[test]
fn tenants_that_nobody_can_be() {
    snapshot!(rendered(&format!(
        "{SOUND}\n[gateway]\nrequire_key = true\n\n[[tenant]]\nname = \"red\"\nheader = \"r\"\n"
    )));
    snapshot!(rendered(&format!("{SOUND}\n[gateway]\nrequire_key = true\n")));
    snapshot!(rendered(&format!(
        "{}\n[gateway]\nlisten = \"none\"\n",
        SOUND.replacen("port = 8101\n", "port = 8101\nidle = [{ after = \"30s\", tier = \"parked\" }]\n", 1)
    )));
}
