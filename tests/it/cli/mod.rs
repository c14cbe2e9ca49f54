//! What people hold in hand, against a real API server: `audit`, `wait`, `pause`, `resume`, `describe`.
//!
//! One test with a sandbox of its own, whose scenes follow each other; the test plays the controllers.

mod audits;
mod histories;
mod many;
mod plugin;
mod refused;
mod terminal;
mod tool;
mod waits;

use pausegen::sandbox::product::{Product, ProductOptions};

use crate::{
    companion::{RULES, Sea, define},
    support,
};
use tool::Tool;

#[tokio::test]
async fn what_people_hold_in_hand() {
    let sandbox = support::private_plain().await;
    let client = sandbox.client().await.unwrap();
    define(&client, "Fleet").await;
    define(&client, "Ship").await;
    let tool = Tool::new(&sandbox, RULES);
    let sea = Sea::new(&client).await;

    println!("without a webhook");
    audits::without_a_webhook(&tool, &sea).await;

    let history = tool.folder.path().join("history.jsonl");
    let options = ProductOptions {
        rules: Some(RULES.to_owned()),
        env: vec![
            ("PAUSEGEN_HISTORY", history.display().to_string()),
            ("PAUSEGEN_HISTORY_ROTATE_AT", "16384".to_owned()),
        ],
        ..ProductOptions::default()
    };
    let mut product = Box::pin(Product::start(&sandbox, options.clone())).await.unwrap();
    println!("audits");
    Box::pin(audits::agree_with_the_server(&tool, &sea)).await;
    println!("rights");
    Box::pin(audits::with_rights_to_read(&tool, &sandbox, &client)).await;
    println!("as a plugin");
    Box::pin(plugin::by_kubectl(&tool, &sandbox)).await;
    println!("watched");
    Box::pin(audits::watched(&tool, &sea, &sandbox)).await;
    println!("terminals and pipes");
    Box::pin(terminal::colours_width_and_progress(&tool, &sea)).await;
    Box::pin(terminal::from_a_pipe(&tool, &sandbox)).await;
    Box::pin(terminal::no_answer(&tool)).await;
    println!("pause and resume");
    Box::pin(waits::pause_and_resume(&tool, &sea)).await;
    println!("waits");
    Box::pin(waits::before_during_and_after_the_echo(&tool, &sea)).await;
    println!("flips during a wait");
    Box::pin(waits::flips_during_a_wait(&tool, &sea)).await;
    println!("two objects, and a deletion");
    Box::pin(waits::two_objects_and_a_deletion(&tool, &sea)).await;
    println!("an API server that restarts");
    Box::pin(waits::while_the_server_restarts(&tool, &sea, &sandbox)).await;
    println!("history");
    Box::pin(histories::killed_while_it_writes(&tool, &sea, &mut product, &history)).await;
    let mut product = Box::pin(Product::start(&sandbox, options)).await.unwrap();
    Box::pin(histories::agree_with_the_audit_log(&tool, &sea, &sandbox, &history)).await;
    product.stop();
    println!("ten thousand objects");
    Box::pin(many::ten_thousand(&tool, &sandbox, &client)).await;
}
