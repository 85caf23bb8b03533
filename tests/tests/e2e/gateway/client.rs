//! OpenAI's own Python client, which many programs are built on.

use super::{eager, pair};
use std::process::{Command, Stdio};

/// An interpreter that has the package: the one that `HOTBUNK_OPENAI_PYTHON` names, else `python3`.
fn python() -> Option<String> {
    let named = std::env::var("HOTBUNK_OPENAI_PYTHON").ok();
    named.into_iter().chain(["python3".to_owned()]).find(|python| {
        let tried = Command::new(python)
            .args(["-c", "import openai"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        tried.is_ok_and(|status| status.success())
    })
}

const SCRIPT: &str = r#"
import sys, openai
base, a, b = sys.argv[1:4]
client = openai.OpenAI(base_url=base, api_key="any", max_retries=0, timeout=60)

assert {m.id for m in client.models.list()} == {a, b}
assert client.models.retrieve(b).id == b

def text(model, stream):
    answer = client.completions.create(model=model, prompt="x", max_tokens=9, temperature=0, stream=stream)
    if not stream:
        assert answer.usage.completion_tokens > 0
        return answer.choices[0].text
    return "".join(chunk.choices[0].text for chunk in answer)

def chat(model, stream):
    messages = [{"role": "user", "content": "ahoy"}]
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=9, temperature=0, stream=stream)
    if not stream:
        return answer.choices[0].message.content
    return "".join(chunk.choices[0].delta.content or "" for chunk in answer)

# Every second request causes a switch; streamed or not, the words are the same.
for ask in (text, chat):
    of_a, of_b = ask(a, False), ask(b, True)
    assert of_a and of_b and of_a != of_b, (of_a, of_b)
    assert ask(a, True) == of_a and ask(b, False) == of_b

try:
    text("nothing", False)
    raise SystemExit("an unknown model was served")
except openai.NotFoundError as error:
    assert a in error.message and b in error.message, error.message
    assert error.code == "model_not_found" and error.param == "model", error.body
try:
    client.completions.create(model=a, prompt="x", max_tokens=-1)
    raise SystemExit("a bad request was served")
except openai.BadRequestError:
    pass
try:
    client.completions.create(model=a, prompt="x", extra_headers={"x-no-switch": "1"})
except openai.ConflictError as error:
    assert error.code == "would_switch", error.body
print("fine")
"#;

/// A stream that is ended from outside is an exception, not a short answer.
const ABORTED: &str = r#"
import sys, openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="any", max_retries=0, timeout=60)
stream = client.completions.create(model=sys.argv[2], prompt="x", max_tokens=3900, temperature=0, stream=True, extra_body={"ignore_eos": True})
try:
    for n, chunk in enumerate(stream):
        if n == 5:
            print("begun", flush=True)
    raise SystemExit("it ended as if nothing had happened")
except openai.APIError as error:
    assert "make room" in error.message, error.message
print("fine")
"#;

#[tokio::test]
#[expect(clippy::print_stderr, reason = "a test that did not run says so")]
async fn openais_python_client_works() {
    let Some(python) = python() else {
        eprintln!(
            "not run: no Python with the package `openai` (pip install openai, or name one in HOTBUNK_OPENAI_PYTHON)"
        );
        return;
    };
    let (node, agent) = pair(eager).await;
    let base = format!("http://127.0.0.1:{}/v1", node.gateway_port());
    let run = |script: &str, args: &[&str]| {
        let mut command = tokio::process::Command::new(&python);
        command.args(["-c", script, &base]).args(args).stdin(Stdio::null()).kill_on_drop(true);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let models = [node.engine("A").model(), node.engine("B").model()];
    let output = run(SCRIPT, &models).wait_with_output().await.unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "fine\n", "{err}");

    agent.done(hotbunk_tests::Switch::to("A")).await;
    let mut child = run(ABORTED, &models[..1]);
    let mut lines = tokio::io::BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    tokio::io::AsyncBufReadExt::read_line(&mut lines, &mut said).await.unwrap();
    let abort = hotbunk_tests::Switch::to("B").drain(hotbunk_api::words::Drain::Abort);
    agent.done(abort).await;
    tokio::io::AsyncReadExt::read_to_string(&mut lines, &mut said).await.unwrap();
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(said, "begun\nfine\n", "{}", String::from_utf8_lossy(&output.stderr));
    agent.stop().await;
}
