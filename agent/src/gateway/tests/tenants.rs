//! Who asks, and what they may do.

use super::*;
use sha2::{Digest, Sha256};

fn digest(key: &str) -> String {
    Sha256::digest(key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

fn two_tenants(more: &str) -> String {
    format!(
        r#"
        [gateway]
        tenant_header = "X-Team"
        {more}
        [[tenant]]
        name = "red"
        key_sha256 = ["{}", "{}"]
        [[tenant]]
        name = "blue"
        header = "blue team"
        max_in_flight = 2
        max_queued = 1
        model = [{{ name = "org/B", requests_per_second = 1.0, burst = 2, tokens_per_minute = 100 }}]
        "#,
        digest("sk-red"),
        digest("sk-red-2")
    )
}

#[test]
fn a_tenant_is_known_by_its_key_or_by_the_trusted_header() {
    let desk = Desk::new(&two_tenants(""), "");
    let of = |pairs: &[(&'static str, &str)]| {
        desk.hub.authenticate(&headers(pairs)).map(|tenant| tenant.name().to_owned())
    };
    assert_eq!(of(&[("authorization", "Bearer sk-red")]).unwrap(), "red");
    assert_eq!(of(&[("authorization", "bearer  sk-red-2 ")]).unwrap(), "red");
    assert_eq!(of(&[("x-api-key", "sk-red")]).unwrap(), "red");
    assert_eq!(of(&[("x-team", "blue team"), ("authorization", "Bearer sk-red")]).unwrap(), "blue");
    assert_eq!(of(&[("x-team", "nobody"), ("authorization", "Bearer sk-red")]).unwrap(), "red");
    // There are keys, so one is required.
    let missing = of(&[]).unwrap_err();
    assert_eq!((missing.status().as_u16(), missing.code()), (401, "invalid_api_key"));
    assert_eq!(missing, Refusal::UnknownKey { missing: true });
    assert_eq!(of(&[("authorization", "Bearer sk-r")]).unwrap_err(), Refusal::UnknownKey { missing: false });
    assert!(of(&[("authorization", "Basic sk-red")]).is_err());
}

#[test]
fn anybody_may_ask_where_no_key_is_required() {
    let desk = Desk::new(&two_tenants("require_key = false"), "");
    assert_eq!(desk.anybody().name(), "default");
    let unknown = desk.hub.authenticate(&headers(&[("authorization", "Bearer EMPTY")])).unwrap();
    assert_eq!(unknown.name(), "default");
}

#[tokio::test]
async fn limits_hold_for_each_model_by_itself() {
    let mut desk = Desk::new(&two_tenants(""), "");
    desk.serve(A);
    let blue = desk.hub.authenticate(&headers(&[("x-team", "blue team")])).unwrap();
    let (one, _two) = (go(desk.hub.admit(&blue, ask(A))), go(desk.hub.admit(&blue, ask(A))));
    let refusal = refused(desk.hub.admit(&blue, ask(A)));
    assert_eq!((refusal.status().as_u16(), refusal.code()), (429, "too_many_in_flight"));
    assert!(refusal.retry_after().is_some());
    drop(one);
    let _three = go(desk.hub.admit(&blue, ask(A)));
    // The other model has seats of its own, and one place to wait.
    let _held = hold(desk.hub.admit(&blue, ask(B)));
    let refusal = refused(desk.hub.admit(&blue, ask(B)));
    assert_eq!((refusal.status().as_u16(), refusal.code()), (429, "too_many_queued"));
}

#[tokio::test]
async fn a_rate_refuses_until_it_is_told_and_tokens_are_settled() {
    let mut desk = Desk::new(&two_tenants(""), "");
    desk.serve(B);
    let blue = desk.hub.authenticate(&headers(&[("x-team", "blue team")])).unwrap();
    let cheap = Ask { tokens_estimate: 1, ..ask(B) };
    drop((go(desk.hub.admit(&blue, cheap)), go(desk.hub.admit(&blue, cheap))));
    let refusal = refused(desk.hub.admit(&blue, cheap));
    assert_eq!(
        (refusal.status().as_u16(), refusal.code(), refusal.kind()),
        (429, "rate_limit_exceeded", "requests")
    );
    assert!(refusal.retry_after_seconds() == Some(1));
    // On the other model nothing is limited.
    desk.serve(A);
    for _ in 0..20 {
        drop(go(desk.hub.admit(&blue, ask(A))));
    }
}

#[tokio::test]
async fn tokens_are_debited_by_estimate_and_put_right_by_usage() {
    let tenant = r#"
        [[tenant]]
        name = "blue"
        header = "blue"
        tokens_per_minute = 100
        [gateway]
        tenant_header = "x-team"
    "#;
    let mut desk = Desk::new(tenant, "");
    desk.serve(A);
    let blue = desk.hub.authenticate(&headers(&[("x-team", "blue")])).unwrap();
    let dear = Ask { tokens_estimate: 90, ..ask(A) };
    let lease = go(desk.hub.admit(&blue, dear));
    let refusal = refused(desk.hub.admit(&blue, dear));
    assert_eq!((refusal.code(), refusal.kind()), ("rate_limit_exceeded", "tokens"));
    // It cost much less than it might have.
    lease.settle(10);
    lease.settle(1_000);
    drop(lease);
    let lease = go(desk.hub.admit(&blue, dear));
    // And this one much more: a debt.
    lease.settle(290);
    drop(lease);
    let refusal = refused(desk.hub.admit(&blue, Ask { tokens_estimate: 1, ..ask(A) }));
    assert!(refusal.retry_after().is_some_and(|wait| wait.as_secs() > 100), "{refusal:?}");
}

#[tokio::test]
async fn a_flood_delays_nobody_but_itself() {
    let mut desk = Desk::new(&two_tenants(""), "max_in_flight = 1");
    desk.serve(A);
    let red = desk.hub.authenticate(&headers(&[("authorization", "Bearer sk-red")])).unwrap();
    let blue = desk.hub.authenticate(&headers(&[("x-team", "blue team")])).unwrap();
    let first = go(desk.hub.admit(&red, ask(A)));
    let flood: Vec<_> = (0..200).map(|_| hold(desk.hub.admit(&red, ask(A)))).collect();
    let mine = hold(desk.hub.admit(&blue, ask(A)));
    assert!(mine.position().is_some_and(|place| place <= 2), "{:?}", mine.position());
    drop(first);
    let mut flood = flood.into_iter();
    drop(flood.next().map(|next| async { next.await.unwrap() }).unwrap().await);
    drop(mine.await.unwrap());
    drop(flood);
    assert_eq!((desk.hub.in_flight(A), desk.hub.held(A)), (0, 0));
}
