//! The scenes, in their order.

use std::time::{Duration, Instant};

use super::narration::Narration;
use super::stage::{
    CLUSTER, Met, NAME, NAMESPACE, Stage, acknowledgement, annotation, condition, generation, names, ours, stamp, table,
};
use crate::protocol::condition::{AWAITING_CONTROLLERS, TYPE};
use crate::protocol::keys::{ACKNOWLEDGED, Evidence, PENDING};
use crate::sandbox::answers::{self, Answers};
use crate::sandbox::product::{Product, ProductOptions, short_rules};
use crate::sandbox::{ClusterShape, Error, ManagerKind, Options, Sandbox, progress};

/// How long an acknowledgement may take: MachineHealthCheck answers within 15 s, and the computer may be busy.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long something is waited for that must not come.
const IMPATIENCE: Duration = Duration::from_secs(6);
/// Why the demo pauses.
const REASON: &str = "CHG-1234: move the racks";

const PAUSED: &str = r"jsonpath={.metadata.annotations.pausegen\.io/acknowledged}=paused";
const RUNNING: &str = r"jsonpath={.metadata.annotations.pausegen\.io/acknowledged}=running";
const PAUSED_SELF: &str = r"jsonpath={.metadata.annotations.pausegen\.io/acknowledged}=paused-self";

/// The control plane, the managers, pausegen and the Cluster.
pub(super) async fn set_up(narration: &mut Narration, machines: u32, bound: Duration) -> Result<Stage, Error> {
    narration.heading("A control plane of its own");
    narration.say(
        "etcd, kube-apiserver and the four managers of Cluster API run as processes of this computer, on free ports, in \
         a folder that goes when the demo ends. Where their programs are not there yet they are built once: that takes \
         minutes.",
    );
    let exe = std::env::current_exe().map_err(|source| Error::Spawn {
        name: "pausegen".to_owned(),
        source,
    })?;
    let sandbox = Box::pin(Sandbox::start(Options::new(exe).with_capi())).await?;
    let client = sandbox.client().await?;
    let version = client
        .apiserver_version()
        .await
        .map_err(Error::api("read the version"))?;
    narration.claim(
        true,
        &format!(
            "kube-apiserver {} answers, and the four managers hold their Leases",
            version.git_version
        ),
    );

    narration.pause();
    narration.say(&format!(
        "pausegen is installed as in production: its webhook configurations, its own identity with the rights that \
         `pausegen manifests` renders, and `pausegen serve` as a process. One thing is not as in production: the \
         staleness bound is {} s instead of a minute, so that nobody has to wait.",
        bound.as_secs()
    ));
    let options = ProductOptions {
        rules: Some(short_rules(bound, bound)),
        ..ProductOptions::default()
    };
    let product = Box::pin(Product::start(&sandbox, options)).await?;
    narration.claim(true, "pausegen says that it is ready");

    narration.pause();
    narration.say(&format!(
        "A Cluster from Cluster API's own in-memory ClusterClass, one control plane machine and {} workers. (The class \
         lets a machine take ten seconds to start; here it takes one.)",
        machines.saturating_sub(1)
    ));
    let shape = ClusterShape {
        control_planes: 1,
        workers: machines.saturating_sub(1),
    };
    let capi = sandbox.capi().ok_or(Error::NoCapi)?;
    capi.create_cluster(NAMESPACE, NAME, shape).await?;
    let done = capi.wait_running(NAMESPACE, NAME, Duration::from_secs(300));
    progress::during(&format!("the Cluster and its {machines} machines"), done).await?;
    let stage = Stage {
        product,
        client,
        sandbox,
        bound,
    };
    let answers = Answers::now(&stage.client, NAMESPACE).await?;
    narration.show(&count(&answers));
    narration.claim(
        answers.0.iter().filter(|answer| answer.kind == "Machine").count() == machines as usize,
        &format!("the Cluster is Provisioned, and all {machines} machines are Running"),
    );
    Ok(stage)
}

/// How to play with what is left running.
pub(super) fn leave_running(narration: &Narration, stage: &Stage) {
    narration.heading("Yours to play with, until Ctrl-C");
    narration.show(&format!("export KUBECONFIG={}", stage.sandbox.kubeconfig().display()));
    narration.show(&format!("alias kubectl={}", stage.sandbox.binaries().kubectl.display()));
    narration.show("kubectl patch cluster demo --type=merge -p '{\"spec\":{\"paused\":true}}'");
    narration
        .show(r"kubectl wait cluster/demo --for=jsonpath='{.metadata.annotations.pausegen\.io/acknowledged}'=paused");
    narration.say("");
    narration.show(&format!(
        "pausegen's log: {}",
        stage.product.admission().log().display()
    ));
    narration.say(&format!(
        "The staleness bound is {} s here, shorter than a manager's Lease (15 s), for the demo alone: in production it \
         is longer than that. A manager that was frozen past its Lease may have lost it, and exits when it is thawed; here \
         nobody starts it again but the next demo.",
        stage.bound.as_secs()
    ));
    narration.show("Freeze a manager with kill -STOP, let it go on with kill -CONT:");
    for kind in ManagerKind::ALL {
        if let Ok(manager) = stage.capi().map(|capi| capi.manager(kind)) {
            narration.show(&format!("{:>8}  {}", manager.id(), kind.name()));
        }
    }
}

/// A pause through `spec.paused`: its stamp, who has seen it and who not yet, its echo.
pub(super) async fn pause(narration: &mut Narration, stage: &Stage) -> Result<(), Error> {
    narration.heading("Pause the Cluster");
    narration.say(
        "The answer to the very write that pauses already carries the stamp: a number for this pause, who, why, and \
         the word `pending`.",
    );
    let patch =
        format!(r#"{{"metadata":{{"annotations":{{"pausegen.io/reason":"{REASON}"}}}},"spec":{{"paused":true}}}}"#);
    let written = stage
        .write(
            narration,
            &["patch", CLUSTER, "-n", NAMESPACE, "--type=merge", "-p", &patch],
        )
        .await?;
    narration.show(&ours(&written));
    let number = generation(&written);
    let stamped = stamp(&written);
    narration.claim(
        number.is_some() && stamped.as_ref().map(|stamp| stamp.generation) == number,
        &format!(
            "pause generation {} is in the answer to the write",
            number.unwrap_or_default()
        ),
    );
    narration.claim(
        annotation(&written, ACKNOWLEDGED) == Some(PENDING),
        "and `pending`: no wait that begins now can be satisfied by an older acknowledgement",
    );
    narration.claim(
        stamped.is_some_and(|stamp| stamp.by == "admin" && stamp.reason == REASON),
        "and who did it, and the reason that came with it",
    );

    narration.pause();
    narration.say("Now everybody waits: with Cluster API's own condition, and in the two ways that pausegen offers.");
    for condition in ["condition=Paused", PAUSED, "condition=PauseAcknowledged"] {
        narration.command(&["wait", CLUSTER, &format!("--for={condition}")]);
    }
    let waits = async {
        tokio::try_join!(
            stage.wait("condition=Paused", PATIENCE),
            stage.wait(PAUSED, PATIENCE),
            stage.wait("condition=PauseAcknowledged", PATIENCE),
        )
    };
    let (theirs, by_word, by_condition) = watch(narration, stage, waits).await?;
    if let Some(answers) = theirs.answers(stage).await? {
        narration.pause();
        narration.say(&format!(
            "Cluster API's `Paused` of the Cluster was content after {}.",
            seconds(&theirs)
        ));
        let missing: Vec<_> = answers.against_cluster(true).collect();
        if missing.is_empty() {
            narration.say("This time everybody had answered by then; it does not have to be so.");
        } else {
            narration.say(&format!(
                "At that revision {} of {} answers were still missing: {}.",
                missing.len(),
                answers.0.len(),
                names(missing.into_iter())
            ));
        }
    }
    acknowledged(narration, stage, true, "the jsonpath wait", &by_word).await?;
    acknowledged(narration, stage, true, "the condition wait", &by_condition).await?;
    record(narration, stage, number, "paused").await
}

/// A frozen manager: the acknowledgement waits, and says for whom.
pub(super) async fn frozen(narration: &mut Narration, stage: &Stage) -> Result<(), Error> {
    narration.heading("Freeze a manager, and resume the Cluster");
    narration.say(
        "The infrastructure manager gets a SIGSTOP: it is there, holds its Lease and its connections, and does \
         nothing. A resume that it has not seen must not be acknowledged.",
    );
    stage.capi()?.manager(ManagerKind::Dev).freeze()?;
    let patch = r#"{"spec":{"paused":false}}"#;
    let written = stage
        .write(
            narration,
            &["patch", CLUSTER, "-n", NAMESPACE, "--type=merge", "-p", patch],
        )
        .await?;
    let number = generation(&written);
    for condition in [RUNNING, "condition=PauseAcknowledged=False"] {
        narration.command(&["wait", CLUSTER, &format!("--for={condition}"), "--timeout=6s"]);
    }
    let (by_word, by_condition) = tokio::try_join!(
        stage.wait(RUNNING, IMPATIENCE),
        stage.wait("condition=PauseAcknowledged=False", IMPATIENCE),
    )?;
    narration.claim(by_word.object.is_none(), "the jsonpath wait times out");
    narration.claim(by_condition.object.is_none(), "the condition wait times out");
    let answers = Answers::now(&stage.client, NAMESPACE).await?;
    narration.quote(&format!(
        "still say that it is paused: {}",
        names(answers.against_cluster(false))
    ));
    narration.claim(
        answers.against_cluster(false).any(|answer| answer.kind == "DevMachine"),
        "the machines of the frozen manager still say that the Cluster is paused",
    );
    awaited(narration, stage, "DevMachine").await?;

    narration.pause();
    narration.say("Let it go on (SIGCONT):");
    let (by_word, by_condition, ()) = tokio::try_join!(
        stage.wait(RUNNING, PATIENCE),
        stage.wait("condition=PauseAcknowledged=False", PATIENCE),
        stage.thaw(ManagerKind::Dev),
    )?;
    acknowledged(narration, stage, false, "the jsonpath wait", &by_word).await?;
    acknowledged(narration, stage, false, "the condition wait", &by_condition).await?;
    record(narration, stage, number, "running").await
}

/// The annotation, taken away and set again behind the back of a frozen manager.
pub(super) async fn fooled(narration: &mut Narration, stage: &Stage) -> Result<(), Error> {
    narration.heading("Fool the condition: pause, resume, pause");
    narration.say(
        "Cluster API's `Paused` is one bit. The Cluster object alone is paused with the annotation, and that is \
         acknowledged as `paused-self`:",
    );
    let key = "cluster.x-k8s.io/paused";
    let (on, off) = (format!("{key}="), format!("{key}-"));
    let first = stage
        .write(narration, &["annotate", CLUSTER, "-n", NAMESPACE, &on])
        .await?;
    let met = stage.wait(PAUSED_SELF, PATIENCE).await?;
    narration.claim(
        met.object
            .as_ref()
            .is_some_and(|object| generation(object) == generation(&first)),
        &format!(
            "pause generation {} is acknowledged",
            generation(&first).unwrap_or_default()
        ),
    );
    narration.pause();
    narration.say(
        "Now the core manager is frozen. The annotation goes and comes back: whoever set it this time wants to know \
         that *this* pause has been seen.",
    );
    stage.capi()?.manager(ManagerKind::Core).freeze()?;
    stage
        .write(narration, &["annotate", CLUSTER, "-n", NAMESPACE, &off])
        .await?;
    let written = stage
        .write(narration, &["annotate", CLUSTER, "-n", NAMESPACE, &on])
        .await?;
    let number = generation(&written);
    narration.command(&["wait", CLUSTER, "--for=condition=Paused", "--timeout=6s"]);
    narration.command(&["wait", CLUSTER, &format!("--for={PAUSED_SELF}"), "--timeout=18s"]);
    let long = stage.bound.saturating_mul(2) + Duration::from_secs(2);
    let (theirs, ours) = tokio::try_join!(
        stage.wait("condition=Paused", IMPATIENCE),
        stage.wait(PAUSED_SELF, long)
    )?;
    narration.claim(
        theirs
            .object
            .as_ref()
            .is_some_and(|object| generation(object) == number),
        &format!(
            "Cluster API's `Paused` is content after {}: nobody has seen anything",
            seconds(&theirs)
        ),
    );
    narration.claim(
        ours.object.is_none(),
        "pausegen is not: the wait times out, although twice the staleness bound has passed",
    );
    awaited(narration, stage, "Cluster").await?;

    narration.pause();
    narration.say(
        "Let it go on. The bit cannot tell this pause from the last one, so time has to: a whole staleness bound in \
         which the manager was seen to renew its Lease.",
    );
    let (met, ()) = tokio::try_join!(stage.wait(PAUSED_SELF, PATIENCE), stage.thaw(ManagerKind::Core))?;
    let answers = met.answers(stage).await?.unwrap_or_default();
    narration.claim(met.object.is_some(), &format!("acknowledged after {}", seconds(&met)));
    narration.claim(
        !answers.0.is_empty() && answers.against_annotation("Cluster", NAME, true).next().is_none(),
        "at that revision the Cluster's controllers say that they see the annotation",
    );
    narration.claim(
        met.object
            .as_ref()
            .and_then(acknowledgement)
            .is_some_and(|echo| echo.evidence == Evidence::Settled),
        "and the record says what it rests on: Settled",
    );
    record(narration, stage, number, "paused-self").await
}

/// Shows how the answers come in, until the waits are over.
async fn watch<T>(
    narration: &Narration,
    stage: &Stage,
    waits: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let start = Instant::now();
    let mut shown = String::new();
    tokio::pin!(waits);
    loop {
        let text = table(&Answers::now(&stage.client, NAMESPACE).await?);
        if text != shown {
            narration.show(&format!("{:>5.1} s  {text}", start.elapsed().as_secs_f32()));
            shown = text;
        }
        tokio::select! {
            result = &mut waits => return result,
            () = tokio::time::sleep(Duration::from_millis(300)) => {}
        }
    }
}

/// A wait was met: hold it against what every controller said at that very revision.
async fn acknowledged(
    narration: &mut Narration,
    stage: &Stage,
    paused: bool,
    what: &str,
    met: &Met,
) -> Result<(), Error> {
    let Some(answers) = met.answers(stage).await? else {
        narration.claim(false, &format!("{what} is met (it timed out)"));
        return Ok(());
    };
    narration.claim(true, &format!("{what} is met, after {}", seconds(met)));
    let missing = names(answers.against_cluster(paused));
    let text = if missing.is_empty() {
        format!("and at that revision all {} controllers have answered", answers.0.len())
    } else {
        format!("and at that revision all controllers have answered; these have not: {missing}")
    };
    narration.claim(!answers.0.is_empty() && missing.is_empty(), &text);
    Ok(())
}

/// The pending condition: it says whom it waits for.
async fn awaited(narration: &mut Narration, stage: &Stage, kind: &str) -> Result<(), Error> {
    let cluster = stage.cluster().await?;
    let get = |field| condition(&cluster, TYPE, field).unwrap_or_default();
    narration.quote(&format!(
        "{TYPE}={} {}: {}",
        get("status"),
        get("reason"),
        get("message")
    ));
    narration.claim(
        get("status") == "Unknown" && get("reason") == AWAITING_CONTROLLERS,
        "the condition is Unknown, AwaitingControllers",
    );
    narration.claim(get("message").contains(kind), &format!("and its message names {kind}"));
    Ok(())
}

/// The record of the echo.
async fn record(narration: &mut Narration, stage: &Stage, number: Option<u64>, word: &str) -> Result<(), Error> {
    let cluster = stage.cluster().await?;
    let echo = acknowledgement(&cluster);
    if let Some(echo) = &echo {
        let excluded = match echo.excluded.len() {
            0 => String::new(),
            n => format!(", {n} not asked (named in the record)"),
        };
        narration.show(&format!(
            "acknowledgement: generation {}, {:?}, {} objects{excluded}, at {}",
            echo.generation, echo.evidence, echo.objects, echo.at
        ));
    }
    narration.claim(
        number.is_some()
            && generation(&cluster) == number
            && echo.map(|echo| echo.generation) == number
            && annotation(&cluster, ACKNOWLEDGED) == Some(word),
        &format!(
            "the record says: pause generation {} is acknowledged, `{word}`",
            number.unwrap_or_default()
        ),
    );
    Ok(())
}

/// How many objects of each kind there are.
fn count(answers: &Answers) -> String {
    let mut parts = Vec::new();
    for kind in answers::kinds() {
        match answers
            .0
            .iter()
            .filter(|answer| answer.kind == kind && answer.controller == kind)
            .count()
        {
            0 => {}
            n => parts.push(format!("{kind} {n}")),
        }
    }
    parts.join(", ")
}

fn seconds(met: &Met) -> String {
    format!("{:.1} s", met.after.as_secs_f32())
}
