//! `flexmem watch`: a running process, in the terminal, as lines, or as JSON.
//!
//! - `screen`: the picture that a terminal shows; `lines`: what another output gets.

mod lines;
mod screen;

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use flex_stream::ConnectError;

use self::screen::Screen;
use super::FAILED;
use super::output::print;
use super::text::complain;
use crate::watch::answers::Moment;
use crate::watch::{Connection, State, View};

/// There is no such process.
const NO_SUCH_PROCESS: u8 = 4;

/// The process does not stream its history.
const NO_STREAM: u8 = 5;

/// The process is another user's.
const OTHER_USER: u8 = 6;

/// What is older than this is said to be, where people read. A stream that is not behind is 50 ms old and younger.
const OLD_S: f64 = 1.0;

/// How long a process has to tell what is live.
const PATIENCE: Duration = Duration::from_secs(10);

/// Watch a running process.
///
/// The process has to stream its history: TORCH_SPYRE_ALLOC_CONF=history:100000,stream_socket:true, or
/// torch.spyre.memory._record_memory_history(stream_socket=True) while it runs. Only its user may watch it.
///
/// In a terminal it shows a picture, elsewhere a line for each device and interval. Ends with the process; ^C ends
/// it earlier, and the process does not notice.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The number of the process
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    process: u32,
    /// Print JSON, one object in a line for each interval
    #[arg(long)]
    json: bool,
    /// Show what is known now, and end
    #[arg(long)]
    once: bool,
    /// Seconds from one look to the next
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// How many places that hold memory are listed
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .filter(|seconds| (0.05..=86_400.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected seconds from 0.05 to 86400, such as 0.5".to_owned())
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let connection = match Connection::open(arguments.process) {
        Ok(connection) => connection,
        Err(error) => return Ok(refused(&error)),
    };
    let watch = Watch {
        arguments,
        view: View::new(arguments.process),
        connection,
        output: Output::new(arguments),
        began: Instant::now(),
    };
    if arguments.once { watch.once() } else { watch.until_the_end() }
}

/// Says why a process cannot be watched, and what would help.
fn refused(error: &ConnectError) -> ExitCode {
    complain(error);
    if let ConnectError::NoStream { .. } = error {
        let _ = writeln!(
            io::stderr(),
            "Start it with TORCH_SPYRE_ALLOC_CONF=history:100000,stream_socket:true, or let it call \
             torch.spyre.memory._record_memory_history(stream_socket=True)."
        );
    }
    ExitCode::from(status(error))
}

fn status(error: &ConnectError) -> u8 {
    match error {
        ConnectError::NoSuchProcess { .. } => NO_SUCH_PROCESS,
        ConnectError::OtherUser { .. } => OTHER_USER,
        ConnectError::NoStream { .. } => NO_STREAM,
        _ => FAILED,
    }
}

struct Watch<'a> {
    arguments: &'a Arguments,
    view: View,
    connection: Connection,
    output: Output,
    began: Instant,
}

impl Watch<'_> {
    fn once(mut self) -> anyhow::Result<ExitCode> {
        let (view, is_dated) = (&mut self.view, self.connection.is_dated());
        self.connection.records_until(self.began + PATIENCE, |record| {
            view.play(record);
            if is_ready(view, is_dated) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        anyhow::ensure!(
            is_ready(&self.view, is_dated),
            "process {} has not said within {} seconds what is live",
            self.arguments.process,
            PATIENCE.as_secs()
        );
        self.look(false)?;
        Ok(ExitCode::SUCCESS)
    }

    fn until_the_end(mut self) -> anyhow::Result<ExitCode> {
        let mut next = self.began;
        loop {
            next = next_look(next, self.arguments.interval, Instant::now());
            let view = &mut self.view;
            let state = self.connection.records_until(next, |record| {
                view.play(record);
                ControlFlow::Continue(())
            })?;
            // Until all that is live was told, figures would be too small.
            if is_ready(&self.view, self.connection.is_dated()) || state != State::Open {
                self.look(state != State::Open)?;
            }
            match state {
                State::Open => {}
                State::Ended => return Ok(ExitCode::SUCCESS),
                State::Broken => {
                    let process = self.arguments.process;
                    complain(format_args!(
                        "the stream of process {process} broke off: it was killed, or let us go"
                    ));
                    return Ok(ExitCode::SUCCESS);
                }
            }
            self.synchronize()?;
        }
    }

    fn look(&mut self, ended: bool) -> anyhow::Result<()> {
        let elapsed_s = (self.began.elapsed().as_secs_f64() * 1e3).round() / 1e3;
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now_ns = u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX);
        let moment = self.view.look(elapsed_s, now_ns, self.arguments.top, ended);
        self.output.show(&moment)
    }

    /// Begins anew if events were lost, unless the process has just ended its stream: then the next look says so.
    fn synchronize(&mut self) -> anyhow::Result<()> {
        if !self.view.is_uncertain() {
            return Ok(());
        }
        match Connection::open(self.arguments.process) {
            Ok(connection) => {
                self.connection = connection;
                self.view.synchronize();
                Ok(())
            }
            Err(ConnectError::NoSuchProcess { .. } | ConnectError::NoStream { .. }) => Ok(()),
            Err(error) => Err(error).context("events were lost, and the watch cannot begin anew"),
        }
    }
}

/// Whether all that is live was told, and how old that is, if the stream tells.
fn is_ready(view: &View, is_dated: bool) -> bool {
    view.is_known() && (view.is_dated() || !is_dated)
}

/// When to look after a look at `last`. Whoever was kept from looking, as one that was stopped, has a whole interval to
/// catch up first.
fn next_look(last: Instant, interval: Duration, now: Instant) -> Instant {
    if last + interval > now { last + interval } else { now + interval }
}

/// How old a moment is, where that is worth a word.
fn age(moment: &Moment) -> Option<String> {
    let age_s = moment.age_s.filter(|&age_s| age_s >= OLD_S)?;
    Some(format!("as of {age_s:.1} s ago"))
}

/// Where moments go.
enum Output {
    Json,
    /// Everything that is known, once.
    Page,
    Lines(lines::Lines),
    Screen(Screen),
}

impl Output {
    fn new(arguments: &Arguments) -> Output {
        match arguments {
            Arguments { json: true, .. } => Output::Json,
            Arguments { once: true, .. } => Output::Page,
            _ if io::stdout().is_terminal() => Output::Screen(Screen::new(arguments.interval)),
            _ => Output::Lines(lines::Lines::default()),
        }
    }

    fn show(&mut self, moment: &Moment) -> anyhow::Result<()> {
        let text = match self {
            Output::Screen(screen) => return screen.show(moment).context("the standard output"),
            Output::Json => serde_json::to_string(moment)? + "\n",
            Output::Page => screen::page(moment),
            Output::Lines(lines) => lines.of(moment),
        };
        print(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_users_process_has_a_status_of_its_own_and_both_users_are_named() {
        let error = ConnectError::OtherUser { process: 7, user: 1000, own: 1001 };
        assert_eq!(status(&error), OTHER_USER);
        let expected =
            "process 7 belongs to the user with number 1000; expected one of this user, whose number is 1001";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn looks_are_an_interval_apart_and_none_follows_at_once_on_a_late_one() {
        let (began, interval) = (Instant::now(), Duration::from_secs(1));
        let at = |ms| began + Duration::from_millis(ms);
        assert_eq!(next_look(began, interval, at(300)), at(1000));
        assert_eq!(next_look(began, interval, at(1000)), at(2000));
        assert_eq!(next_look(began, interval, at(60_000)), at(61_000));
    }
}
