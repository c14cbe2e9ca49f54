//! What can go wrong around a companion. Whatever it is: nothing is acknowledged that was not answered, and what was
//! answered is acknowledged in the end without anybody's help.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::api::DynamicObject;
use pausegen::protocol::keys::{self, Evidence};
use pausegen::sandbox::Sandbox;
use pausegen::sandbox::product::{CompanionOptions, Product, ProductOptions, Served, USER};
use serde_json::Value;

use super::line::Line;
use super::proxy::{self, Faults};
use super::sea::{RULES, Sea, acknowledgement, annotation, condition, define};
use crate::support::{self, eventually};

/// How long a Fleet has to stand still until nobody is thought to write it any more.
const STILL: Duration = Duration::from_secs(5);

#[tokio::test]
async fn whatever_happens_to_a_companion_it_acknowledges_nothing_false() {
    let sandbox = support::private_plain().await;
    let client = sandbox.client().await.unwrap();
    define(&client, "Fleet").await;
    define(&client, "Ship").await;
    let options = ProductOptions {
        rules: Some(RULES.to_owned()),
        split: true,
        companion: false,
        ..ProductOptions::default()
    };
    let product = Product::start(&sandbox, options).await.unwrap();
    let stage = Stage {
        sea: Sea::new(&client).await,
        product,
        sandbox,
    };
    Box::pin(stage.two_at_once()).await;
    Box::pin(stage.stopped_before_the_echo()).await;
    Box::pin(stage.stopped_before_the_condition()).await;
    Box::pin(stage.stopped_through_a_restart_of_the_api_server()).await;
    Box::pin(stage.faults_on_the_way()).await;
    Box::pin(stage.lost_connections()).await;
}

struct Stage {
    sea: Sea,
    product: Product,
    sandbox: Sandbox,
}

impl Stage {
    async fn companion(&self, name: &str, env: &[(&'static str, &str)]) -> Served {
        let options = CompanionOptions {
            name: name.to_owned(),
            env: env.iter().map(|(key, value)| (*key, (*value).to_owned())).collect(),
            lease: Some(name.to_owned()),
            ..CompanionOptions::default()
        };
        self.product.another_companion(options).await.unwrap()
    }

    /// The kubeconfig of the companion's own way to the API server.
    fn direct(&self) -> PathBuf {
        let groups = ["system:serviceaccounts", "system:serviceaccounts:pausegen-system"];
        self.sandbox.kubeconfig_for(USER, &groups).unwrap()
    }

    /// Flips, and waits until the condition names the Ship that has not answered; meanwhile nothing is acknowledged.
    async fn flip_without_pinta(&self, paused: bool) -> u64 {
        let flipped = self.sea.pause(paused).await;
        let generation = number(&flipped, "generation");
        super::sea::says(&self.sea.fleets, "armada", paused).await;
        super::sea::says(&self.sea.ships, "nina", paused).await;
        self.waits_for_pinta(generation).await;
        generation
    }

    async fn waits_for_pinta(&self, generation: u64) {
        let begins = format!("pause generation {generation} ");
        let named = eventually("a condition that names the Ship which has not answered", async || {
            let fleet = self.sea.fleet().await;
            let condition = condition(&fleet)?;
            let message = condition["message"].as_str()?;
            let is_so = condition["status"] == "Unknown" && message.starts_with(&begins) && message.contains("pinta");
            is_so.then_some(fleet)
        })
        .await;
        assert_eq!(annotation(&named, "acknowledged"), keys::PENDING);
    }

    async fn echoed(&self, generation: u64, paused: bool) -> Evidence {
        let fleet = self.sea.acknowledged(if paused { "paused" } else { "running" }).await;
        let echo = acknowledgement(&fleet);
        assert_eq!((echo.generation, echo.objects), (generation, 3), "{echo:?}");
        assert_eq!(number(&fleet, "observed-generation"), generation);
        let word = if paused { "True" } else { "False" };
        eventually("the condition of that", async || {
            let fleet = self.sea.fleet().await;
            let condition = condition(&fleet)?;
            let message = condition["message"].as_str()?;
            let begins = format!("pause generation {generation} ");
            (condition["status"] == word && message.starts_with(&begins)).then_some(())
        })
        .await;
        echo.evidence
    }

    /// Everybody runs, and it is acknowledged.
    async fn calm(&self) {
        let fleet = self.sea.fleet().await;
        if fleet.data["spec"]["paused"] == Value::Bool(true) {
            let flipped = self.sea.pause(false).await;
            self.sea.answer("armada", "nina", "pinta", false).await;
            self.echoed(number(&flipped, "generation"), false).await;
        }
    }

    /// Both act, with clocks that are days apart.
    async fn two_at_once(&self) {
        let _ahead = self.companion("ahead", &[("PAUSEGEN_TEST_CLOCK_OFFSET", "26h")]).await;
        let _behind = self
            .companion("behind", &[("PAUSEGEN_TEST_CLOCK_OFFSET", "-26h")])
            .await;
        let before = writes(&self.sandbox);
        let flips = [true, false, true, false];
        for paused in flips {
            let generation = self.flip_without_pinta(paused).await;
            super::sea::says(&self.sea.ships, "pinta", paused).await;
            self.echoed(generation, paused).await;
        }
        // A flip in a hurry: the bound counts on a clock that nobody moves.
        self.sea.pause(true).await;
        let flipped = self.sea.pause(false).await;
        assert_eq!(
            self.echoed(number(&flipped, "generation"), false).await,
            Evidence::Settled
        );
        let version = self.sea.fleet().await.metadata.resource_version;
        tokio::time::sleep(STILL).await;
        assert_eq!(
            self.sea.fleet().await.metadata.resource_version,
            version,
            "they write on and on"
        );
        let written = writes(&self.sandbox) - before;
        let most = 2 * 3 * (flips.len() + 2);
        assert!(
            written <= most,
            "{written} writes of two companions, {most} would be much"
        );
    }

    /// It has decided, and stands still until another flip has come: its echo must not be stored.
    async fn stopped_before_the_echo(&self) {
        let companion = self
            .companion("before-echo", &[("PAUSEGEN_FAILPOINT", "stop:companion.before-echo")])
            .await;
        let first = number(&self.sea.pause(true).await, "generation");
        self.sea.answer("armada", "nina", "pinta", true).await;
        stands(&companion).await;
        let second = number(&self.sea.pause(false).await, "generation");
        companion.process().thaw().unwrap();
        self.waits_for_pinta(second).await;
        let observed = number(&self.sea.fleet().await, "observed-generation");
        assert!(
            observed < first,
            "{first} was acknowledged after {second} had come: {observed}"
        );
        self.sea.answer("armada", "nina", "pinta", false).await;
        assert_eq!(
            self.echoed(second, false).await,
            Evidence::Settled,
            "the flip was hasty"
        );
    }

    /// The same between the two writes of an echo.
    async fn stopped_before_the_condition(&self) {
        let companion = self
            .companion(
                "before-condition",
                &[("PAUSEGEN_FAILPOINT", "stop:companion.before-condition")],
            )
            .await;
        self.sea.pause(true).await;
        self.sea.answer("armada", "nina", "pinta", true).await;
        stands(&companion).await;
        assert_eq!(annotation(&self.sea.fleet().await, "acknowledged"), "paused");
        let second = number(&self.sea.pause(false).await, "generation");
        companion.process().thaw().unwrap();
        let waits = self.waits_for_pinta(second);
        let met = async {
            loop {
                let fleet = self.sea.fleet().await;
                let condition = condition(&fleet);
                let is_met = condition.is_some_and(|condition| {
                    condition["status"] == "True"
                        && condition["observedGeneration"].as_i64() >= fleet.metadata.generation
                });
                assert!(!is_met, "a wait for the pause is met after the resume: {condition:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = waits => {}
            () = met => {}
        }
        self.sea.answer("armada", "nina", "pinta", false).await;
        self.echoed(second, false).await;
    }

    /// It stands still while flips come and go and the API server forgets what it has watched: what it saw before is
    /// worth nothing.
    async fn stopped_through_a_restart_of_the_api_server(&self) {
        let companion = self.companion("through-restart", &[]).await;
        // It knows everybody well: its next flip needs no time.
        let known = self.flip_without_pinta(true).await;
        super::sea::says(&self.sea.ships, "pinta", true).await;
        self.echoed(known, true).await;
        companion.process().freeze().unwrap();
        self.sea.pause(false).await;
        self.sea.answer("armada", "nina", "pinta", false).await;
        let last = number(&self.sea.pause(true).await, "generation");
        self.sandbox.restart_api_server().await.unwrap();
        super::sea::says(&self.sea.fleets, "armada", true).await;
        super::sea::says(&self.sea.ships, "nina", true).await;
        companion.process().thaw().unwrap();
        self.waits_for_pinta(last).await;
        super::sea::says(&self.sea.ships, "pinta", true).await;
        assert_eq!(self.echoed(last, true).await, Evidence::Settled, "two flips went by");
        self.calm().await;
    }

    /// Refused, broken and cut lists, and watches that end.
    async fn faults_on_the_way(&self) {
        let faults = Arc::new(Faults::default());
        faults.set(2);
        let through = proxy::start(&self.direct(), self.sandbox.folder(), "/ships", Arc::clone(&faults)).await;
        let options = CompanionOptions {
            name: "through-proxy".to_owned(),
            kubeconfig: Some(through),
            ..CompanionOptions::default()
        };
        let _companion = self.product.another_companion(options).await.unwrap();
        for paused in [true, false] {
            let generation = self.flip_without_pinta(paused).await;
            faults.set(2);
            super::sea::says(&self.sea.ships, "pinta", paused).await;
            self.echoed(generation, paused).await;
        }
        eventually("every fault has happened", async || {
            // Another look at the lists.
            let flipped = self.sea.pause(true).await;
            self.sea.answer("armada", "nina", "pinta", true).await;
            self.echoed(number(&flipped, "generation"), true).await;
            self.calm().await;
            faults.are_over().then_some(())
        })
        .await;
    }

    /// A connection that was lost and that nobody has closed: nothing comes any more, and nothing says so.
    async fn lost_connections(&self) {
        self.calm().await;
        let line = Line::through(&self.direct(), self.sandbox.folder()).await;
        let options = CompanionOptions {
            name: "on-a-bad-line".to_owned(),
            kubeconfig: Some(line.kubeconfig.clone()),
            env: vec![("PAUSEGEN_API_SERVER_TIMEOUT", "3s".to_owned())],
            lease: Some("on-a-bad-line".to_owned()),
        };
        let _companion = self.product.another_companion(options).await.unwrap();
        for paused in [true, false] {
            let generation = self.flip_without_pinta(paused).await;
            assert!(line.lose() > 0, "nothing was connected");
            super::sea::says(&self.sea.ships, "pinta", paused).await;
            self.echoed(generation, paused).await;
        }
    }
}

/// Waits until a process has stopped itself.
async fn stands(companion: &Served) {
    eventually("the companion stands still", async || {
        companion.process().stands().then_some(())
    })
    .await;
}

fn number(object: &DynamicObject, key: &str) -> u64 {
    annotation(object, key).parse().unwrap_or_default()
}

/// How many writes of the companions to objects were stored so far.
fn writes(sandbox: &Sandbox) -> usize {
    let log = std::fs::read_to_string(sandbox.audit_log().unwrap()).unwrap();
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events
        .filter(|event| {
            event["user"]["username"] == USER
                && event["verb"] == "patch"
                && event["objectRef"]["resource"] == "fleets"
                && event["responseStatus"]["code"] == 200
        })
        .count()
}
