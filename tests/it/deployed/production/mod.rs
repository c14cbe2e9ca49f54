//! What happens to a production installation: certificates run out, replicas come and go, somebody is in the way.
//!
//! All of it under a load of flips, and with `failurePolicy: Fail`: a flip that is refused is a failure of the webhook.

mod crowd;
mod election;
mod renewal;
mod rig;
