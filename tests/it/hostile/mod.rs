//! Hostile writers, copies and outages, on a real API server with Cluster API's kinds. Nobody runs the controllers: the
//! tests answer in their place, when it suits them.
//!
//! `forged`, `writes`, `create` and `others` are scenes that share one sandbox, each in namespaces of its own; the one test
//! that runs them all then waits once until nothing moves any more. `outages` and `reload` take away what the others need,
//! and have a sandbox to themselves. `bodies` needs none.

mod bodies;
mod create;
mod forged;
mod ground;
mod others;
mod outages;
mod reload;
mod writes;

use ground::Ground;

#[tokio::test]
async fn no_writer_loses_or_forges_a_stamp() {
    let ground = Box::pin(Ground::start()).await;
    Box::pin(async {
        tokio::join!(
            forged::scenes(&ground),
            writes::scenes(&ground),
            create::scenes(&ground),
            others::scenes(&ground),
        )
    })
    .await;
    Box::pin(ground.stands_still()).await;
}
