//! The events of a chrome trace, one by one, without the file in memory.
//!
//! The JSON must be sound; what is in it may be of any type. A field of another type than the profiler's is odd, and so
//! is an event that is no map.

use std::fmt;
use std::io::BufRead;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::import::ImportError;

/// A field of an event.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) enum Field<T> {
    #[default]
    Missing,
    Known(T),
    /// Of another type.
    Odd,
}

impl<T: DeserializeOwned> Field<T> {
    fn of(value: Value) -> Field<T> {
        serde_json::from_value(value).map_or(Field::Odd, Field::Known)
    }
}

/// An event, as far as it matters.
#[derive(Debug, Default)]
pub(super) struct ChromeEvent {
    pub(super) name: Option<String>,
    pub(super) time_us: Option<f64>,
    pub(super) thread: Option<u64>,
    pub(super) args: Option<Args>,
}

#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) address: Field<u64>,
    pub(super) bytes: Field<i64>,
    pub(super) kind: Field<i64>,
    pub(super) index: Field<i64>,
}

/// Hands on each event of a file; None for what is none. Whether the file is a trace.
pub(super) fn events<R: BufRead>(
    input: R,
    mut take: impl FnMut(Option<ChromeEvent>),
) -> Result<bool, ImportError> {
    let mut json = serde_json::Deserializer::from_reader(input);
    let mut root = Root { take: &mut take, is_trace: false };
    (&mut root).deserialize(&mut json).map_err(broken)?;
    Ok(root.is_trace)
}

/// What is wrong with the JSON.
fn broken(error: serde_json::Error) -> ImportError {
    if error.is_io() {
        return ImportError::Io(error.into());
    }
    let what = if error.is_eof() {
        "the JSON ends in the middle: the file was cut off, or is still being written"
    } else {
        "this is no trace of PyTorch's profiler"
    };
    ImportError::Json(format!("{what}: {error}"))
}

/// The whole file: a map with `traceEvents`, or the list alone.
struct Root<'t, F> {
    take: &'t mut F,
    is_trace: bool,
}

impl<'de, F: FnMut(Option<ChromeEvent>)> DeserializeSeed<'de> for &mut Root<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de, F: FnMut(Option<ChromeEvent>)> Visitor<'de> for &mut Root<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a trace of PyTorch's profiler")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "traceEvents" {
                self.is_trace = true;
                map.next_value_seed(Events(self.take))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(Lenient(event)) = seq.next_element()? {
            self.is_trace = true;
            (self.take)(event);
        }
        Ok(())
    }
}

struct Events<'t, F>(&'t mut F);

impl<'de, F: FnMut(Option<ChromeEvent>)> DeserializeSeed<'de> for Events<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(Option<ChromeEvent>)> Visitor<'de> for Events<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(Lenient(event)) = seq.next_element()? {
            (self.0)(event);
        }
        Ok(())
    }
}

/// What is read from the entries of a map.
trait Entries: Default {
    type Key: DeserializeOwned;

    fn take<'de, A: MapAccess<'de>>(&mut self, key: Self::Key, map: &mut A) -> Result<(), A::Error>;
}

#[derive(Deserialize)]
#[serde(field_identifier)]
enum EventKey {
    #[serde(rename = "name")]
    Name,
    #[serde(rename = "ts")]
    Time,
    #[serde(rename = "tid")]
    Thread,
    #[serde(rename = "args")]
    Args,
    #[serde(other)]
    Other,
}

impl Entries for ChromeEvent {
    type Key = EventKey;

    fn take<'de, A: MapAccess<'de>>(&mut self, key: EventKey, map: &mut A) -> Result<(), A::Error> {
        match key {
            EventKey::Name => self.name = map.next_value::<Value>()?.as_str().map(str::to_owned),
            EventKey::Time => self.time_us = map.next_value::<Value>()?.as_f64(),
            EventKey::Thread => self.thread = map.next_value::<Value>()?.as_u64(),
            EventKey::Args => self.args = map.next_value::<Lenient<Args>>()?.0,
            EventKey::Other => drop(map.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(field_identifier)]
enum ArgsKey {
    #[serde(rename = "Addr")]
    Address,
    #[serde(rename = "Bytes")]
    Bytes,
    #[serde(rename = "Device Type")]
    Kind,
    #[serde(rename = "Device Id")]
    Index,
    #[serde(other)]
    Other,
}

impl Entries for Args {
    type Key = ArgsKey;

    fn take<'de, A: MapAccess<'de>>(&mut self, key: ArgsKey, map: &mut A) -> Result<(), A::Error> {
        match key {
            ArgsKey::Address => self.address = Field::of(map.next_value()?),
            ArgsKey::Bytes => self.bytes = Field::of(map.next_value()?),
            ArgsKey::Kind => self.kind = Field::of(map.next_value()?),
            ArgsKey::Index => self.index = Field::of(map.next_value()?),
            ArgsKey::Other => drop(map.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

/// What a map has; None of what is no map.
struct Lenient<T>(Option<T>);

impl<'de, T: Entries> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(LenientVisitor(PhantomData)).map(Lenient)
    }
}

struct LenientVisitor<T>(PhantomData<T>);

impl<'de, T: Entries> Visitor<'de> for LenientVisitor<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<T>, A::Error> {
        let mut found = T::default();
        while let Some(key) = map.next_key()? {
            found.take(key, &mut map)?;
        }
        Ok(Some(found))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Option<T>, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Option<T>, E> {
        Ok(None)
    }
}
