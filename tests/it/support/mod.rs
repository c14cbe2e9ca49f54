//! What the tests share, first of all sandboxes.
//!
//! - [`plain`] and [`capi`]: shared ones. A test makes its own clients (`sandbox.client().await`), since each test has
//!   its own runtime, and its own namespace, since others are at work as well.
//! - [`private_plain`] and [`private_capi`]: for tests that freeze, kill or restart something.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use pausegen::sandbox::{Options, Sandbox};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// The `pausegen` binary.
pub(crate) const EXE: &str = env!("CARGO_BIN_EXE_pausegen");

/// The options of every sandbox here.
pub(crate) fn options() -> Options {
    // Without it rustls does not know whose cryptography to use; an error means that another test was faster.
    drop(rustls::crypto::ring::default_provider().install_default());
    let mut options = Options::new(EXE);
    options.one_processor = true;
    if let Some(folder) = std::env::var_os("PAUSEGEN_TEST_LOGS") {
        static COUNT: AtomicUsize = AtomicUsize::new(1);
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("test").replace("::", ".");
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        options.keep_logs = Some(Path::new(&folder).join(format!("{test}-{count}")));
    }
    options
}

/// The API server that the tests share, without Cluster API.
pub(crate) async fn plain() -> &'static Sandbox {
    static SHARED: OnceCell<Sandbox> = OnceCell::const_new();
    SHARED.get_or_init(private_plain).await
}

/// The API server with Cluster API that the tests share.
pub(crate) async fn capi() -> &'static Sandbox {
    static SHARED: OnceCell<Sandbox> = OnceCell::const_new();
    SHARED.get_or_init(private_capi).await
}

/// An API server with Cluster API of one's own.
pub(crate) async fn private_capi() -> Sandbox {
    start(options().with_capi()).await
}

/// An API server of one's own that serves Cluster API's kinds, without its managers.
pub(crate) async fn kinds() -> Sandbox {
    start(options().with_capi_kinds()).await
}

/// An API server of one's own.
pub(crate) async fn private_plain() -> Sandbox {
    start(options()).await
}

/// An API server of one's own, the oldest that is tested against.
pub(crate) async fn private_oldest() -> Sandbox {
    start(options().with_oldest_api_server()).await
}

async fn start(options: Options) -> Sandbox {
    match Box::pin(Sandbox::start(options)).await {
        Ok(sandbox) => sandbox,
        Err(error) => {
            pausegen::commands::print_error(&error);
            panic!("no sandbox: {error}");
        }
    }
}

/// Asks again and again until there is an answer. Panics when it takes more than two minutes: `what` says what was waited
/// for.
pub(crate) async fn eventually<T>(what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(Duration::from_secs(120), what, ask).await
}

/// As [`eventually`], with a bound of one's own.
pub(crate) async fn eventually_within<T>(bound: Duration, what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < bound, "not within {} s: {what}", bound.as_secs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Writes a condition of an object as a controller does. The others stay as they are, also where somebody else (the
/// companion) writes one of them meanwhile.
pub(crate) async fn condition(api: &Api<DynamicObject>, name: &str, make: impl Fn(&DynamicObject) -> Value) {
    eventually(&format!("the condition of {name} is written"), async || {
        let object = api.get(name).await.unwrap();
        let condition = make(&object);
        let all = object.data["status"]["conditions"].as_array().cloned();
        let mut conditions = all.unwrap_or_default();
        conditions.retain(|other| other["type"] != condition["type"]);
        conditions.insert(0, condition);
        let patch = Patch::Merge(json!({
            "metadata": { "resourceVersion": object.metadata.resource_version },
            "status": { "conditions": conditions },
        }));
        match api.patch_status(name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.is_conflict() => None,
            written => Some(written.unwrap()),
        }
    })
    .await;
}

/// A number of kB from /proc/PID/status.
pub(crate) fn memory(pid: u32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A free port of this machine, for a moment.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Runs a command on a terminal of its own that has so many columns, and types something. Returns its exit code and
/// everything that the terminal was sent.
pub(crate) fn on_a_terminal(mut command: Command, typed: &str, columns: u16) -> (Option<i32>, String) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let size = rustix::termios::Winsize {
        ws_row: 40,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(&master, size).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = || {
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap());
        Stdio::from(file.unwrap())
    };
    let mut child = command.stdin(slave()).stdout(slave()).stderr(slave()).spawn().unwrap();
    // Our own ends have to go, or the terminal never ends.
    drop(command);
    let mut master = std::fs::File::from(master);
    master.write_all(typed.as_bytes()).unwrap();
    let mut shown = Vec::new();
    // It ends with an error when the last one who had the terminal is gone.
    drop(master.read_to_end(&mut shown));
    (
        child.wait().unwrap().code(),
        String::from_utf8_lossy(&shown).into_owned(),
    )
}
