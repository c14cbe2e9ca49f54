//! `pausegen demo`: the main job, on a real control plane with real Cluster API managers.
//!
//! What it tells is what it has read back: each line that states a result is a claim that is checked, and the exit code
//! is 0 only if all of them held.

mod narration;
mod scenes;
mod stage;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use narration::Narration;
use stage::Stage;

/// The staleness bound of the demo; in production it is a minute. It has to be longer than the time between two renewals
/// of a Lease, which is five seconds for the control plane manager.
const STALENESS_BOUND: Duration = Duration::from_secs(8);

/// Shows the main job on a local control plane: a pause is stamped, acknowledged when everybody has seen it, and a
/// frozen controller is caught.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  pausegen demo\n  pausegen demo --machines 20 --keep")]
pub struct Args {
    /// How many machines the Cluster has, one of them for its control plane
    #[arg(long, default_value_t = 6, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=200))]
    machines: u16,
    /// Leave everything running at the end, with a kubeconfig to play with, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

/// Runs the subcommand.
///
/// # Errors
///
/// Whatever keeps it from getting to the end. That a claim does not hold is no error but exit code 1.
pub async fn run(args: Args) -> super::Result {
    let Args { machines, keep } = args;
    let mut narration = Narration::default();
    // Ctrl-C drops everything that is under way; the sandbox ends what it has started.
    let stage = tokio::select! {
        stage = Box::pin(play(&mut narration, u32::from(machines))) => stage?,
        _ = tokio::signal::ctrl_c() => return Err("interrupted".into()),
    };
    let code = if narration.failed() == 0 {
        narration.pause();
        narration.say(&format!("All {} claims held.", narration.held()));
        ExitCode::SUCCESS
    } else {
        narration.pause();
        narration.say(&format!(
            "{} of {} claims did NOT hold: do not rest anything on this build.",
            narration.failed(),
            narration.failed() + narration.held()
        ));
        ExitCode::FAILURE
    };
    if keep {
        scenes::leave_running(&narration, &stage);
        tokio::signal::ctrl_c().await?;
    }
    Ok(code)
}

/// Plays the scenes; one that failed is the last, since the next ones rest on it.
async fn play(narration: &mut Narration, machines: u32) -> Result<Stage, Box<dyn std::error::Error + Send + Sync>> {
    let start = Instant::now();
    let stage = scenes::set_up(narration, machines, STALENESS_BOUND).await?;
    'scenes: {
        scenes::pause(narration, &stage).await?;
        if narration.failed() > 0 {
            break 'scenes;
        }
        scenes::frozen(narration, &stage).await?;
        if narration.failed() > 0 {
            break 'scenes;
        }
        scenes::fooled(narration, &stage).await?;
    }
    narration.pause();
    narration.say(&format!("(That took {} s.)", start.elapsed().as_secs()));
    Ok(stage)
}
